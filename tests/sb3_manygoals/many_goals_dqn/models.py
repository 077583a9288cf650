"""Small models for tests."""

import torch as th
from torch import nn

from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.many_goals_dqn import TDTargets
from tests.sb3_manygoals.worlds import Corridor

SMALL = {"net_arch": [32], "embedding_dim": 32}
PLAIN = {**SMALL, "head": "bilinear", "ema_decay": 0.0, "standardize": False, "activation_fn": nn.ReLU}
"""Nothing between the weights and what is computed by hand."""


def make_model(env=None, policy="MlpPolicy", **kwargs):
    """One that plans in a corridor, and makes an update of few pairs at each step."""
    settings = {"learning_starts": 20, "updates_per_step": 1.0, "batch_size": 32, "goal_batch_size": 16, "buffer_size": 10_000}
    settings |= {"learning_rate": 1e-3, "policy_kwargs": SMALL, "seed": 0, "device": "cpu"}
    return ManyGoalsDQN(policy, Corridor() if env is None else env, **{**settings, **kwargs})


def td_model(env=None, policy="MlpPolicy", policy_kwargs=None, targets=None, **kwargs):
    """
    One with a target network.

    :param targets: arguments of TDTargets; the goals of an update are uniform if not told
    """
    targets = {"goal_sampling": "uniform", **(targets or {})}
    policy_kwargs = {**PLAIN, **(policy_kwargs or {})}
    return make_model(env, policy, target_class=TDTargets, target_kwargs=targets, policy_kwargs=policy_kwargs, **kwargs)


def parameters(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


def goal_obs(env, cell, goal):
    observations = {"observation": env.observation_of(cell), "desired_goal": env.observation_of(goal)}
    return {**observations, "achieved_goal": observations["observation"]}
