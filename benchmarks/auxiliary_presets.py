"""
The settings of the actor-critic with auxiliary tasks, section 5 of Veeriah et al. (2018), and where each is from: the paper;
OpenAI's baselines, whose A2C on Atari the paper takes its step size from; Jaderberg et al. (2017); SB3, where all of them are
silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sb3_manygoals.optim import FusedRMSprop

N_ENVS = 16
"""Baselines (num_env of run_atari). With n = 5 steps of each these are the 80 transitions of the paper's updates."""

A2C_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "learning_rate": 7e-4,  # paper, after baselines; constant, as in baselines' run_atari
        "n_steps": 5,  # paper: n
        "gamma": 0.99,  # baselines; the paper gives it for its goals
        "gae_lambda": 1.0,  # paper: R is the n-step bootstrapped return
        "ent_coef": 0.01,  # baselines; the paper tuned it and does not give it
        "vf_coef": 0.25,  # paper: 0.5, of half the squared error. SB3's loss is the whole of it
        "max_grad_norm": 0.5,  # baselines
        "normalize_advantage": False,  # paper: no such thing in its equation
    }
)
"""Arguments of SB3's A2C, beside ``policy``, ``env`` and ``policy_kwargs``."""

OPTIMIZER: Mapping[str, Any] = MappingProxyType(
    {
        "optimizer_class": FusedRMSprop,  # paper: RMSProp; baselines': TensorFlow's, epsilon inside the root
        "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5},  # baselines
    }
)
"""Arguments of the policy that say how it is optimized."""

TASKS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # paper: beta, 80 transitions, the expectation (a mean); gamma and rewards are those of its goals. It does not give the
        # other two: n is the actor-critic's, and the target network is copied as often as our ManyGoalsDQN's
        "many_goals": {
            "beta": 0.02,
            "reduction": "mean",
            "n_steps": 5,
            "batch_size": 80,
            "gamma": 0.99,
            "goal_reward": 0.0,
            "step_reward": -0.1,
            "target_update_interval": 250,
        },
        # Jaderberg et al.: n and gamma; the weight was drawn between 0.0001 and 0.01 for Atari, evenly on a logarithmic scale,
        # of which this is the middle. 80 transitions as for the other tasks
        "pixel_control": {"weight": 0.001, "reduction": "mean", "n_steps": 20, "batch_size": 80, "gamma": 0.9},
        # Jaderberg et al.: the weight
        "reward_prediction": {"weight": 1.0, "reduction": "mean", "batch_size": 80},
    }
)
"""Arguments of each task's callback, by the name of its head; A2C alone has none of them."""

HEADS: Mapping[str, Any] = MappingProxyType(
    {
        "embedding_dim": 1024,  # paper, of its gridworld
        "crop": 80,  # Jaderberg et al.
        "cell": 4,  # Jaderberg et al.
    }
)
"""Arguments of the policy about its heads."""

K_BEST_EPISODES = 2000
"""Paper: K."""
