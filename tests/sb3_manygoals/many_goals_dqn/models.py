"""Small models for tests."""

import torch as th

from sb3_manygoals import ManyGoalsDQN
from tests.sb3_manygoals.worlds import Corridor

SMALL = {"net_arch": [32], "embedding_dim": 32}
SMALL_IMAGE = {"features_extractor_kwargs": {"features_dim": 32}, "embedding_dim": 32}


def make_model(env=None, policy="MlpPolicy", **kwargs):
    settings = {"learning_starts": 20, "policy_kwargs": SMALL if policy == "MlpPolicy" else SMALL_IMAGE, "seed": 0}
    return ManyGoalsDQN(policy, Corridor() if env is None else env, **{**settings, **kwargs})


def parameters(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


def goal_obs(env, cell, goal):
    observations = {"observation": env.observation_of(cell), "desired_goal": env.observation_of(goal)}
    return {**observations, "achieved_goal": observations["observation"]}
