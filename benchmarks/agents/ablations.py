"""The default's targets with one thing changed."""

from __future__ import annotations

from sb3_manygoals import PlannedTargets


class NoBestActionLoss(PlannedTargets):
    """Planned targets of which the network learns the values alone, not the best actions."""

    best_weight = 0.0


class EqualWeights(PlannedTargets):
    """Planned targets whose errors have the same weight near goals and far away from them."""

    near_decay = 1.0
