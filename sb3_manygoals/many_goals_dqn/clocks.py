"""Numbers in observations that grow at every step, as a clock does."""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import ExactStates, WorldModel

# From fewer transitions nothing is told: an agent may have gone in one direction only.
_FEWEST_TRANSITIONS = 200
# At most so many transitions are looked at.
_MOST_TRANSITIONS = 20_000
# Vectors of more numbers are not looked at.
_MOST_NUMBERS = 4_096


def find_clock(world: WorldModel) -> int | None:
    """
    Find a number of the observations that grew in all transitions that were counted, or fell in all
    of them. Then no state recurs within an episode, and each goal is a goal at one time only.

    :param world: model of the world, whose states are told apart by all of their bytes
    :return: the index of the first such number. None if there is none, if observations are no
        vectors, or if there are too few transitions to tell
    """
    states = world.identity
    space = states.observation_space
    # Other states may leave a clock out.
    if type(states) is not ExactStates or isinstance(space, PackedSpace):
        return None
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.shape[0] > _MOST_NUMBERS:
        return None
    outcomes = world.outcomes()
    n = len(outcomes.counts)
    if n < _FEWEST_TRANSITIONS:
        return None
    chosen = slice(None, None, math.ceil(n / _MOST_TRANSITIONS))
    before = states.observations[outcomes.state_ids[chosen]].astype(np.float64)
    after = states.observations[outcomes.next_state_ids[chosen]].astype(np.float64)
    grows = (after > before).all(axis=0) | (after < before).all(axis=0)
    return int(np.argmax(grows)) if grows.any() else None
