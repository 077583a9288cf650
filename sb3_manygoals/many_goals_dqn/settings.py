"""Settings of ManyGoalsDQN for other uses than the default: the paper's own, and large worlds."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from sb3_manygoals.many_goals_dqn.planned_targets import LargeWorldTargets
from sb3_manygoals.many_goals_dqn.targets import TDTargets
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.validation import check_count

PAPER: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 10_000,
    "learning_starts": 10_000,
    "batch_size": 32,
    "goal_batch_size": 16,
    "tau": 1.0,
    "gamma": 0.99,
    "updates_per_step": 1.0,
    "target_update_interval": 250,
    "target_class": TDTargets,
    "target_kwargs": {"goal_sampling": "uniform"},
    "exploration_fraction": 1 / 3,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.1,
    "goal_wrapper_kwargs": {"max_episode_steps": 50, "reset_worlds": True},
    "policy_kwargs": {
        "features_extractor_class": PaddedCNN,
        "net_arch": [],
        "activation_fn": nn.ReLU,
        "embedding_dim": 1024,
        "head": "bilinear",
        "standardize": True,
        "ema_decay": 0.0,
        "optimizer_class": RMSpropTFLike,
        "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-12},
    },
}
"""
The settings of Veeriah et al. (2018), for ``ManyGoalsDQN("CnnPolicy", env, **PAPER).learn(3e6)``: a
replay memory of 10,000, an update of 32 transitions x 16 goals every step, RMSProp, gamma 0.99,
epsilon from 1 to 0.1 over a million steps. The paper does not give step size, target network, T and
normalization. For these see ``docs/design.md``.
"""


def large_world(steps: float, max_plan_bytes: float = 6_500_000_000) -> dict[str, Any]:
    """
    Return settings for a world of more than some ten thousand observations with a fast vector
    environment: ``ManyGoalsDQN("CnnPolicy", env, **large_world(7e6)).learn(7e6)``. Most steps are
    random. The updates that follow learn plans without chance.

    :param steps: steps of ``learn``, of all environments together. 150 for each observation are
        enough
    :param max_plan_bytes: memory for the plan, in bytes, see
        :class:`~sb3_manygoals.many_goals_dqn.PlannedTargets`
    :return: arguments of :class:`~sb3_manygoals.ManyGoalsDQN`, in a new dictionary: random steps
        for the first 93% of training
    :raises ValueError: if a number is not whole and positive
    """
    steps = check_count("steps", steps, floats=True)
    max_plan_bytes = check_count("max_plan_bytes", max_plan_bytes, floats=True)
    return {
        "learning_starts": steps * 40 // 43,
        "batch_size": 256,
        "goal_batch_size": 16,
        "updates_as_needed": False,
        "target_class": LargeWorldTargets,
        "target_kwargs": {"max_plan_bytes": max_plan_bytes},
    }


LARGE_WORLD: dict[str, Any] = large_world(32_250_000)
"""
:func:`~sb3_manygoals.large_world` for a world of 190,800 observations and ``learn(32_250_000)``:
some 150 random steps an observation, then an update for 25 steps, in 10 GB.
"""
