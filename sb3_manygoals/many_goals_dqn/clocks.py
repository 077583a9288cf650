"""Numbers in observations that grow at every step, as a clock does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import ExactStates, WorldModel

# From fewer transitions nothing is told: an agent may have gone in one direction only.
_FEWEST_TRANSITIONS = 200
# At most so many transitions are looked at.
_MOST_TRANSITIONS = 20_000
# So many are looked at together. In most worlds, no number grows in all of the first of them.
_TRANSITIONS_AT_A_TIME = 200


def find_clock(world: WorldModel) -> str | None:
    """
    Find a number of the observations that grew in all transitions that were counted, or fell in all
    of them. Then no state recurs within an episode, and each goal is a goal at one time only.

    :param world: model of the world, whose states are told apart by all of their bytes
    :return: a name of the first such number, such as ``"number 2 of the observations"``. None if
        there is none, if observations have one number only, or if there are too few transitions to
        tell
    """
    states = world.identity
    # Other states may leave a clock out.
    if type(states) is not ExactStates:
        return None
    outcomes = world.outcomes()
    n = len(outcomes.counts)
    if n < _FEWEST_TRANSITIONS:
        return None
    chosen = np.arange(0, n, math.ceil(n / _MOST_TRANSITIONS))
    rises: dict[str, NDArray[np.bool_]] = {}
    falls: dict[str, NDArray[np.bool_]] = {}
    for begin in range(0, len(chosen), _TRANSITIONS_AT_A_TIME):
        rows = chosen[begin : begin + _TRANSITIONS_AT_A_TIME]
        before = _parts(states, outcomes.state_ids[rows])
        after = _parts(states, outcomes.next_state_ids[rows])
        if sum(part[0].size for part in before.values()) == 1:
            return None
        for name, part in before.items():
            up = (after[name] > part).all(axis=0)
            down = (after[name] < part).all(axis=0)
            rises[name] = np.asarray(up & rises.get(name, True))
            falls[name] = np.asarray(down & falls.get(name, True))
        if not any(found.any() for found in (*rises.values(), *falls.values())):
            return None
    for name in rises:
        places = np.argwhere(rises[name] | falls[name])
        if len(places) > 0:
            return _described(name, tuple(places[0].tolist()))
    return None


def _parts(states: ExactStates, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the observations of states, by their names, each of shape (n, ...)."""
    space = states.observation_space
    observations = states.observations[ids]
    return space.unpack(observations) if isinstance(space, PackedSpace) else {"": observations}


def _described(part: str, place: tuple[int, ...]) -> str:
    """Return the name of a number at a place of a part of the observations."""
    where = f"{part!r} in the observations" if part else "the observations"
    if not place:
        return where
    return f"number {place[0] if len(place) == 1 else place} of {where}"
