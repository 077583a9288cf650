"""
Streams of random numbers: whatever draws by itself has its own, so that no two draw the same numbers from the same seed.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Who draws. The number goes into the seed of its generator, so it must not change."""

    EVALUATION = 1
    """Random actions of ``evaluate_mastery``; worlds seed their own generators with the same seed."""
    GOALS = 2
    """Goals that the wrappers pursue."""
    MANY_GOALS_DQN = 3
    """Batches and exploration of ManyGoalsDQN."""
    TABULAR_ALL_GOALS = 4
    """Batches and exploration of TabularAllGoals."""
    PLAN = 5
    """Goals of a plan that cannot have all of them."""
    REWARD_PREDICTOR = 6
    """Batches of the RewardPredictor."""
    WORLDS = 7
    """Seeds of the worlds of ``evaluate_mastery``, where they accept only some."""


def generator(seed: int | None, stream: Stream) -> np.random.Generator:
    """
    :param seed: of everything; None for numbers that differ in every run
    :param stream: who draws
    :return: a generator whose numbers no other stream has
    """
    return np.random.default_rng(None if seed is None else (seed, int(stream)))
