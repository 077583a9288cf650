"""Behaviour goals by disagreement: those of which two estimates of the value differ most."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector, Values, mixture


class ValueDisagreementSelector(GoalSelector):
    """
    Among some goals drawn uniformly, one in proportion to how much the estimates of V(s, g) differ, s being what is on show.

    After Zhang, Abbeel and Pinto 2020 ("Automatic Curriculum Learning through Value Disagreement"), who train an ensemble for
    it. The two estimates here are the learning network and its target network, which cost nothing to train: they are not
    independent, so what they show is not how little is known about a goal but how much its value has changed since the target
    network was last updated. Where they agree, as at the start, the choice is uniform; so it is where what is on show is no
    goal, being held out.

    :param n_candidates: goals among which one is chosen, each time
    :param uniform_share: of candidates that are chosen uniformly
    :raises ValueError: if ``n_candidates`` is no positive whole number or ``uniform_share`` not in [0, 1]
    """

    def __init__(self, n_candidates: int = 32, uniform_share: float = 0.1) -> None:
        if not isinstance(n_candidates, (int, np.integer)) or isinstance(n_candidates, bool) or n_candidates < 1:
            raise ValueError(f"n_candidates must be a whole number, at least 1, got {n_candidates!r}")
        if not 0.0 <= uniform_share <= 1.0:
            raise ValueError(f"uniform_share must be in [0, 1], got {uniform_share!r}")
        self.n_candidates = int(n_candidates)
        self.uniform_share = float(uniform_share)
        self._values: Values | None = None

    def use_values(self, values: Values) -> None:
        self._values = values

    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """As :meth:`GoalSelector.select`. :raises RuntimeError: if no learner has given values"""
        if self._values is None:
            raise RuntimeError("ValueDisagreementSelector needs a learner that gives values, as ManyGoalsDQN.learn() does")
        # a row of candidates for each environment, none of them on show already
        candidates = UniformSelector().select(goal_buffer, np.repeat(current_ids, self.n_candidates), rng)
        candidates = candidates.reshape(len(current_ids), self.n_candidates)
        weights = np.zeros(candidates.shape)
        known = current_ids != UNKNOWN
        if known.any():
            starts = goal_buffer[np.repeat(current_ids[known], self.n_candidates)]
            values = self._values(starts, goal_buffer[candidates[known].ravel()])
            weights[known] = values.astype(np.float64).std(axis=0).reshape(-1, self.n_candidates)
        chosen = [
            rng.choice(row, p=mixture(weight, self.uniform_share)) for row, weight in zip(candidates, weights, strict=True)
        ]
        return np.array(chosen, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        # The values belong to a learner, which gives them anew when it goes on: copied, they would bring a copy of it along.
        return {**vars(self), "_values": None}

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"n_candidates": self.n_candidates, "uniform_share": self.uniform_share}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
