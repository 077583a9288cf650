"""Numbers in observations that grow at every step, as a clock does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import UNKNOWN, ExactStates, WorldModel

# From fewer transitions nothing is told: an agent may have gone in one direction only.
_FEWEST_TRANSITIONS = 200
# At most so many transitions are looked at.
_MOST_TRANSITIONS = 20_000
# So many are looked at together. In most worlds, no number grows in all of the first of them.
_TRANSITIONS_AT_A_TIME = 200
# Whether states recur is told from at most so many of the newest observations.
_MOST_STATES_TO_ASK = 1_000


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

    def pairs() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for begin in range(0, len(chosen), _TRANSITIONS_AT_A_TIME):
            rows = chosen[begin : begin + _TRANSITIONS_AT_A_TIME]
            before = states.observations[outcomes.state_ids[rows]]
            yield before, states.observations[outcomes.next_state_ids[rows]]

    return _what_goes_on(states.observation_space, pairs())


def find_endless_clock(
    memory: ManyGoalsReplayBuffer, space: spaces.Space[Any], states: ExactStates
) -> str | None:
    """
    Find a number that grew, or fell, at every step in memory, also where the world was reset, and
    whose values are no part of states. The network gets it, and always in values that it has never
    seen.

    :param memory: the transitions, of whose first environment steps are looked at
    :param space: space of the observations
    :param states: which observations are one state
    :return: a name of the first such number, as :func:`find_clock` has it. None if there is none,
        if no state recurs, if states are told apart by all bytes of observations, or if nobody can
        tell, because the world was not reset or there are too few transitions
    """
    n = min(memory.size(), _MOST_TRANSITIONS)
    if states.is_exact or n < _FEWEST_TRANSITIONS:
        return None
    newest = (memory.pos - n + np.arange(n)) % memory.buffer_size
    n_resets = 0
    at_a_time = max(1, _TRANSITIONS_AT_A_TIME // memory.n_envs)

    def pairs() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        nonlocal n_resets
        for begin in range(0, n - 1, at_a_time):
            before, after = memory.observations_at(newest[begin : begin + at_a_time + 1])
            seen = before[:, 0]
            is_next = (seen[1:] == after[:-1, 0]).reshape(len(seen) - 1, -1).all(axis=1)
            n_resets += int(np.count_nonzero(~is_next))
            yield seen[:-1], seen[1:]

    found = _what_goes_on(space, pairs())
    if found is None or n_resets == 0:
        return None
    # States are asked for only now, because a function of the user's may take long.
    ids = states.ids(memory.observations_at(newest[-_MOST_STATES_TO_ASK:])[0][:, 0])
    known = ids[ids != UNKNOWN]
    return found if len(np.unique(known)) < len(known) else None


def _what_goes_on(
    space: spaces.Space[Any], pairs: Iterator[tuple[NDArray[Any], NDArray[Any]]]
) -> str | None:
    """
    Return the name of the first number that grew, or fell, in all pairs of observations.

    :param space: space of the observations
    :param pairs: observations, and those that came next, both of shape (n, *space.shape)
    """
    rises: dict[str, NDArray[np.bool_]] = {}
    falls: dict[str, NDArray[np.bool_]] = {}
    for before, after in pairs:
        parts = _parts(space, before)
        next_parts = _parts(space, after)
        if sum(part[0].size for part in parts.values()) == 1:
            return None
        for name, part in parts.items():
            up = (next_parts[name] > part).all(axis=0)
            down = (next_parts[name] < part).all(axis=0)
            rises[name] = np.asarray(up & rises.get(name, True))
            falls[name] = np.asarray(down & falls.get(name, True))
        if not any(found.any() for found in (*rises.values(), *falls.values())):
            return None
    for name in rises:
        places = np.argwhere(rises[name] | falls[name])
        if len(places) > 0:
            return _described(name, tuple(places[0].tolist()))
    return None


def _parts(space: spaces.Space[Any], observations: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of observations, by their names, each of shape (n, ...)."""
    return space.unpack(observations) if isinstance(space, PackedSpace) else {"": observations}


def _described(part: str, place: tuple[int, ...]) -> str:
    """Return the name of a number at a place of a part of the observations."""
    where = f"{part!r} in the observations" if part else "the observations"
    if not place:
        return where
    return f"number {place[0] if len(place) == 1 else place} of {where}"
