"""Settings of ManyGoalsDQN other than the default: the paper's own."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from sb3_manygoals.many_goals_dqn.targets import TDTargets
from sb3_manygoals.networks import PaddedCNN

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
