"""What the parts of ManyGoalsDQN have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

if TYPE_CHECKING:
    from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN


class ModelPart(OffPolicyAlgorithm):
    """A part of :class:`~sb3_manygoals.ManyGoalsDQN` that has a module of its own."""

    @property
    def _model(self) -> ManyGoalsDQN:
        """The model that this is a part of."""
        return cast("ManyGoalsDQN", self)
