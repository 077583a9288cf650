"""How well actions predict what follows, which tells whether states are worth anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.world.states import UNKNOWN

LEAST_GAIN = 0.4
"""States are worth nothing if their gain is less than this, see :func:`gain_of_states`."""


def predictability(pairs: NDArray[np.integer], counts: NDArray[np.integer]) -> float:
    """
    Return with which probability two transitions from one state by one action lead to one state.

    :param pairs: the state and action of each different outcome, as one number, shape ``(K,)``
    :param counts: how often each outcome occurred, shape ``(K,)``
    :return: from 0 to 1, the mean over all transitions of actions that were tried twice. 0 if there
        are none
    """
    weights = counts.astype(np.float64)
    totals = np.bincount(pairs, weights=weights, minlength=1)
    same = np.bincount(pairs, weights=weights * (weights - 1.0), minlength=1)
    tried = totals > 1
    if not tried.any():
        return 0.0
    return float(np.average(same[tried] / (totals * (totals - 1.0))[tried], weights=totals[tried]))


def gain_over_chance(predicted: float, arrivals: NDArray[np.floating]) -> float:
    """
    Return how much more often two transitions from one state by one action lead to one state than
    any two transitions do.

    :param predicted: with which probability they do
    :param arrivals: how often a transition led to each state, shape ``(S,)``
    :return: at most 1, if they always do. 0 if all transitions lead to one state
    """
    by_chance = float(np.square(arrivals / max(arrivals.sum(), 1.0)).sum())
    return (predicted - by_chance) / max(1.0 - by_chance, 1e-9)


def gain_of_states(
    ids: NDArray[np.int64], actions: NDArray[np.integer], next_ids: NDArray[np.int64]
) -> float:
    """
    Return how much more often two transitions from one state by one action lead to one state than
    any two transitions do.

    :param ids: the states in which actions were taken, shape ``(n,)``. Of a state that is
        ``UNKNOWN`` nothing can be predicted, nor can it be predicted itself
    :param actions: the actions, shape ``(n,)``
    :param next_ids: the states that they led to, shape ``(n,)``
    :return: at most 1
    """
    known = (ids != UNKNOWN) & (next_ids != UNKNOWN)
    if not known.any():
        return 0.0
    n_actions = int(actions.max()) + 1
    rows = np.stack([ids[known] * n_actions + actions[known], next_ids[known]])
    (pairs, _), counts = np.unique(rows, axis=1, return_counts=True)
    arrivals = np.bincount(next_ids[known]).astype(np.float64)
    return gain_over_chance(predictability(pairs, counts), arrivals) * float(known.mean())
