"""
A small warehouse with a robot whose battery must be charged, to measure speed and mastery in.

It never ends, has no reward and leaves nothing to chance. It is written out as tables once, so that
a step costs next to nothing::

    python -m benchmarks mastery --world benchmarks.charging:Charging-v0
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.tables import Outcomes, Tables, TrainingVectorEnv, explore

SIDE = 4
"""Cells of the warehouse in each direction."""

FULL = 5
"""Steps that a full battery lasts."""

Cell = tuple[int, int]
"""Row and column."""

State = tuple[Cell, tuple[Cell, ...], int]
"""Cell of the robot, sorted cells of the boxes, and battery."""

CHARGER: Cell = (1, 1)
"""The cell that fills the battery."""

START: State = (CHARGER, ((1, 2), (2, 1)), FULL)
"""The state with which every episode begins."""


class Action(IntEnum):
    """Moves, which push a box ahead, and the same that pull along a box behind."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3
    PULL_UP = 4
    PULL_DOWN = 5
    PULL_LEFT = 6
    PULL_RIGHT = 7


_DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""What a move adds to row and column: up, down, left, right."""


class ChargingEnv(gym.Env[NDArray[np.uint8], np.int64]):
    """
    A warehouse of 4 x 4 cells with a robot, two boxes and a charger.

    A move pushes a box ahead, if the cell beyond it is free. A pull takes along a box from the cell
    behind the robot; it does not push. Boxes look alike, and may stand on the charger.

    The battery falls by one with each step, also with one that is blocked, and is full when the
    robot stands on the charger. A robot with an empty battery cannot move: any action tows it to
    the charger, and leaves the boxes where they are. If a box stands on the charger, the world
    begins anew instead. There are 6,050 states, and each can be reached from every other.

    Observations are pictures of shape (5, 4, 3). The first four rows show the robot in red, boxes
    in green and the charger in blue. The brightness of the last row shows the battery.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE + 1, SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(len(Action))
        self._state = 0

    @property
    def tables(self) -> Tables:
        """The world as tables, which all environments share."""
        return _tables()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin an episode.

        :param seed: has no effect on the world
        :param options: have no effect
        :return: first observation, shape (5, 4, 3), uint8, and an empty dict
        """
        super().reset(seed=seed, options=options)
        # The tables number the states in the order in which they were found, from the start.
        self._state = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """
        Take a step.

        :param action: a number of :class:`Action`
        :return: observation, shape (5, 4, 3), uint8; a reward of 0; two times False, as episodes
            do not end; and an empty dict
        """
        row = self._state * len(Action) + int(action)
        self._state = int(self.tables.next_states[row])
        return self._observation(), 0.0, False, False, {}

    def _observation(self) -> NDArray[np.uint8]:
        """Return a copy of the picture of the current state."""
        return np.array(self.tables.observations[self._state])


class ChargingVectorEnv(TrainingVectorEnv):
    """
    Many of these worlds, which step as one. It does not reset itself, as episodes do not end.

    :param num_envs: number of worlds
    """

    def __init__(self, num_envs: int) -> None:
        super().__init__(_tables(), num_envs)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """
        Take a step in each world, with one look-up, as nothing is left to chance.

        :param actions: numbers of :class:`Action`, shape (num_envs,)
        :return: observations, shape (num_envs, 5, 4, 3), uint8; rewards of 0, shape (num_envs,);
            two times False, shape (num_envs,), as episodes do not end; and an empty dict
        """
        self.states = self.tables.next_states[self.states * len(Action) + actions]
        ended = np.zeros(self.num_envs, dtype=np.bool_)
        return (
            self.tables.observations[self.states],
            np.zeros(self.num_envs),
            ended,
            ended.copy(),
            {},
        )


def _after(state: State, action: int) -> State:
    """Return the state to which an action leads."""
    robot, boxes, battery = state
    if battery == 0:
        return START if CHARGER in boxes else (CHARGER, boxes, FULL)
    robot, boxes = _moved(robot, boxes, Action(action))
    return robot, boxes, FULL if robot == CHARGER else battery - 1


def _moved(robot: Cell, boxes: tuple[Cell, ...], action: Action) -> tuple[Cell, tuple[Cell, ...]]:
    """Return where the robot and the boxes are after a move, which changes nothing if blocked."""
    rows, columns = _DIRECTIONS[action % len(_DIRECTIONS)]
    ahead = (robot[0] + rows, robot[1] + columns)
    beyond = (ahead[0] + rows, ahead[1] + columns)
    behind = (robot[0] - rows, robot[1] - columns)
    pulls = action >= Action.PULL_UP
    if not _is_inside(ahead):
        return robot, boxes
    to = {behind: robot} if pulls else {ahead: beyond}
    if ahead in boxes and (pulls or beyond in boxes or not _is_inside(beyond)):
        return robot, boxes
    return ahead, tuple(sorted(to.get(box, box) for box in boxes))


def _is_inside(cell: Cell) -> bool:
    """Return whether a cell is one of the warehouse."""
    return 0 <= cell[0] < SIDE and 0 <= cell[1] < SIDE


@cache
def _tables() -> Tables:
    """Find all states, and write out where actions lead."""

    def outcomes(state: State, action: int) -> Outcomes:
        return [(1.0, _after(state, action), False)]

    return explore(ChargingEnv(), {START: 1.0}, outcomes, _pictures)


def _pictures(states: list[Any]) -> NDArray[np.uint8]:
    """Return the pictures of S states, (S, 5, 4, 3)."""
    pictures = np.zeros((len(states), SIDE + 1, SIDE, 3), dtype=np.uint8)
    pictures[:, CHARGER[0], CHARGER[1], 2] = 255
    for picture, (robot, boxes, battery) in zip(pictures, states, strict=True):
        picture[(*robot, 0)] = 255
        for box in boxes:
            picture[(*box, 1)] = 255
        picture[SIDE] = battery * (255 // FULL)
    return pictures


gym.register(
    "Charging-v0",
    entry_point="benchmarks.charging:ChargingEnv",
    vector_entry_point="benchmarks.charging:ChargingVectorEnv",
)
