"""
Streams of random numbers.

Each part that draws random numbers has its own stream. Two parts with the same seed therefore draw
different numbers.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """
    The part of the library that draws.

    The number goes into the seed of the part's generator, so it must not change.
    """

    EVALUATION = 1
    """Random actions of ``evaluate_mastery``. Worlds seed their own generators with its seed."""
    GOALS = 2
    """Goals that the wrappers pursue."""
    MANY_GOALS_DQN = 3
    """Batches and exploration of ManyGoalsDQN."""
    TABULAR_ALL_GOALS = 4
    """Batches and exploration of TabularAllGoals."""
    PLAN = 5
    """Goals of a plan that has no room for all of them."""
    REWARD_PREDICTOR = 6
    """Random actions of the RewardPredictor."""
    WORLDS = 7
    """Seeds of the worlds of ``evaluate_mastery``, if the worlds accept only some seeds."""
    FILM = 8
    """Random actions of ``record_goals``."""


def generator(seed: int | None, stream: Stream) -> np.random.Generator:
    """
    Return the random number generator of a stream.

    :param seed: seed of the whole run; None: the numbers differ in every run
    :param stream: the part that draws
    :return: a generator whose numbers no other stream has
    """
    return np.random.default_rng(None if seed is None else (seed, int(stream)))
