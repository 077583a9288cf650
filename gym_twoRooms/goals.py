"""
Parts of a state, read from its picture: where the agent is, open doors, and blocks beside it.

They are goals of a user's kind, or say which states count as one.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import Layout, as_layout
from gym_twoRooms.mdp import COLOURS
from gym_twoRooms.states import flat

_AGENT = np.array(COLOURS["agent"], dtype=np.int64)
_SHUT = np.array(COLOURS["door shut"], dtype=np.uint8)
_BLOCK = np.array(COLOURS["block"], dtype=np.uint8)


def agent_cell(observation: NDArray[np.uint8]) -> NDArray[np.int64]:
    """
    Return the cell of the agent.

    It is the cell whose colour is nearest to the agent's. So a picture of this world gives the
    agent's cell, whatever is under the agent, and any other picture gives some cell.

    :param observation: A picture of any map, (H, W, 3) uint8
    :return: Row and column, counted from 0 at the top left, (2,) int64
    :raises ValueError: If it is no picture
    """
    picture = _checked(observation)
    distances = np.square(picture.astype(np.int64) - _AGENT).sum(axis=2)
    return np.array(divmod(int(distances.argmin()), picture.shape[1]), dtype=np.int64)


def agent_cell_and_doors(
    observation: NDArray[np.uint8], layout: Layout | str = "paper"
) -> NDArray[np.int64]:
    """
    Return the cell of the agent and which doors are open.

    The map says where the doors are, because the agent hides the door in which it stands. For
    another map than the paper's, use ``functools.partial(agent_cell_and_doors, layout="locks")``.

    :param observation: A picture of this map, (H, W, 3) uint8
    :param layout: The map: a layout, the name of one, or an ASCII map. By default the paper's
    :return: Row and column, counted from 0 at the top left, and for each of the D doors 1 if it is
        open, else 0, in the order of ``layout.doors``, (2 + D,) int64
    :raises ValueError: If it is no picture of the size of the map
    :raises LayoutError: If there is no layout of that name or the map is not valid
    """
    # What is no string may be no key of a cache.
    size, doors = _doors(layout if isinstance(layout, str) else as_layout(layout))
    picture = _checked(observation)
    if picture.shape[:2] != size:
        raise ValueError(
            f"observation must have the size {size} of the map, got {picture.shape[:2]}."
        )
    is_shut = (picture.reshape(-1, 3) == _SHUT).all(axis=1)
    # The agent hides a door only when it stands in it, and then the door is open.
    opened = [not is_shut[cells].any() for cells in doors]
    return np.array([*agent_cell(picture), *opened], dtype=np.int64)


def agent_surroundings(
    observation: NDArray[np.uint8], layout: Layout | str = "paper"
) -> NDArray[np.int64]:
    """
    Return the cell of the agent, which doors are open, and on which sides a block is beside it.

    It is a key of states for goals such as :func:`agent_cell`. A block changes what a step does
    only when it is beside the agent, so a step is nearly as certain as in whole states, of which
    there are many more. For another map than the paper's, use
    ``functools.partial(agent_surroundings, layout="locks")``.

    :param observation: A picture of this map, (H, W, 3) uint8
    :param layout: The map: a layout, the name of one, or an ASCII map. By default the paper's
    :return: What :func:`agent_cell_and_doors` returns, and then 1 if there is a block above, below,
        to the left, and to the right of the agent, else 0, (2 + D + 4,) int64
    :raises ValueError: If it is no picture of the size of the map
    :raises LayoutError: If there is no layout of that name or the map is not valid
    """
    cell_and_doors = agent_cell_and_doors(observation, layout)
    row, column = cell_and_doors[:2]
    is_block = (np.asarray(observation) == _BLOCK).all(axis=2)
    # A border without blocks, so that cells at the edge of the map have neighbours too.
    is_block = np.pad(is_block, 1)
    rows = row + 1 + np.array([-1, 1, 0, 0])
    columns = column + 1 + np.array([0, 0, -1, 1])
    return np.concatenate([cell_and_doors, is_block[rows, columns].astype(np.int64)])


@lru_cache(maxsize=16)
def _doors(layout: Layout | str) -> tuple[tuple[int, int], list[NDArray[np.intp]]]:
    """Return height and width of a map, and the flat indexes of the cells of each door."""
    layout = as_layout(layout)
    return (layout.height, layout.width), [flat(layout, cells) for cells in layout.doors]


def _checked(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an observation as an array. A ValueError if it is no picture."""
    picture = np.asarray(observation)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
        raise ValueError(f"observation must be of shape (H, W, 3), got {picture.shape}.")
    return picture
