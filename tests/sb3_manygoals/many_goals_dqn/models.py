import numpy as np
import torch as th
from torch import nn

from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.many_goals_dqn import TDTargets
from tests.sb3_manygoals.worlds import Corridor

CELLS = np.eye(6, dtype=np.uint8)
"""The observations of a corridor of six cells."""
SMALL = {"net_arch": [32], "embedding_dim": 32}
PLAIN = {
    **SMALL,
    "head": "bilinear",
    "ema_decay": 0.0,
    "standardize": False,
    "activation_fn": nn.ReLU,
}
"""Nothing between the weights and what is computed by hand."""


def make_model(env=None, policy="MlpPolicy", **kwargs):
    """One that plans in a corridor, and makes an update of few pairs at each step."""
    settings = {
        "learning_starts": 20,
        "updates_per_step": 1.0,
        "batch_size": 32,
        "goal_batch_size": 16,
        "buffer_size": 10_000,
    }
    settings |= {"learning_rate": 1e-3, "policy_kwargs": SMALL, "seed": 0, "device": "cpu"}
    return ManyGoalsDQN(policy, Corridor() if env is None else env, **{**settings, **kwargs})


def td_model(env=None, policy="MlpPolicy", policy_kwargs=None, targets=None, **kwargs):
    """One with a target network; ``targets`` are arguments of TDTargets, with uniform goals if not told."""
    targets = {"goal_sampling": "uniform", **(targets or {})}
    policy_kwargs = {**PLAIN, **(policy_kwargs or {})}
    return make_model(
        env,
        policy,
        target_class=TDTargets,
        target_kwargs=targets,
        policy_kwargs=policy_kwargs,
        **kwargs,
    )


def reloaded(model, folder, env=None, also=(), **kwargs):
    """The model saved and loaded, and what else is saved apart: "goal_buffer" and "replay_buffer"."""
    model.save(folder / "model")
    loaded = ManyGoalsDQN.load(folder / "model", env, **kwargs)
    for part in also:
        getattr(model, f"save_{part}")(folder / part)
        getattr(loaded, f"load_{part}")(folder / part)
    return loaded


def parameters(model):
    """Those of a learner's policy, or of a network."""
    return nn.utils.parameters_to_vector(getattr(model, "policy", model).parameters()).detach()


def goal_obs(env, cell, goal):
    observations = {
        "observation": env.observation_of(cell),
        "desired_goal": env.observation_of(goal),
    }
    return {**observations, "achieved_goal": observations["observation"]}


def moved(model):
    """With a network that differs from its target network."""
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    return model


def gradient(model, loss):
    model.q_net.zero_grad()
    loss.backward(retain_graph=True)
    return th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])


def n_mastered(model, length=7):
    """Of all pairs of cells, how many it travels by a shortest path; a random policy manages some 20 of 49."""
    world, mastered = Corridor(length), 0
    for start, goal in np.ndindex(length, length):
        cell = start
        for _ in range(abs(goal - start)):
            action = int(model.predict(goal_obs(world, cell, goal), deterministic=True)[0])
            cell = min(max(cell + (-1, 1, 0)[action], 0), length - 1)
        mastered += cell == goal
    return mastered
