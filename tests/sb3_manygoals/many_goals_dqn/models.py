"""Small models in corridors, and what is read from them."""

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
    """
    Return a model that makes an update of few pairs at every fourth step.

    It learns in a corridor by default. Give ``updates_per_step=1.0`` where a test counts updates or
    steps, or where it needs what is well learned.
    """
    settings = {
        "learning_starts": 20,
        "batch_size": 32,
        "goal_batch_size": 16,
        "buffer_size": 10_000,
        "learning_rate": 1e-3,
        "policy_kwargs": SMALL,
        "seed": 0,
        "device": "cpu",
    }
    if "train_freq" not in kwargs and "gradient_steps" not in kwargs:
        settings["updates_per_step"] = 0.25
    return ManyGoalsDQN(policy, Corridor() if env is None else env, **{**settings, **kwargs})


def td_model(env=None, policy="MlpPolicy", policy_kwargs=None, targets=None, **kwargs):
    """
    Return a model with a target network.

    ``targets`` are arguments of TDTargets. By default they are the paper's: goals are sampled
    uniformly, and all pairs have equal weights.
    """
    return make_model(
        env,
        policy,
        target_class=TDTargets,
        target_kwargs={"goal_sampling": "uniform", **(targets or {})},
        policy_kwargs={**PLAIN, **(policy_kwargs or {})},
        **kwargs,
    )


def reloaded(model, folder, env=None, also=(), **kwargs):
    """
    Return the model saved and loaded.

    ``also`` names what else is saved and loaded: "world" and "replay_buffer".
    """
    model.save(folder / "model")
    loaded = ManyGoalsDQN.load(folder / "model", env, **kwargs)
    for part in also:
        getattr(model, f"save_{part}")(folder / part)
        getattr(loaded, f"load_{part}")(folder / part)
    return loaded


def parameters(model):
    """Return the parameters of a learner's policy, or of a network, as one vector."""
    return nn.utils.parameters_to_vector(getattr(model, "policy", model).parameters()).detach()


def goal_obs(env, cell, goal):
    """Return the observation of one cell with another one as the goal."""
    observation = env.observation_of(cell)
    return {
        "observation": observation,
        "achieved_goal": observation,
        "desired_goal": env.observation_of(goal),
    }


def moved(model):
    """Return the model with a network that differs from its target network."""
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    return model


def gradient(model, loss):
    """Return the gradient of a loss for all parameters of the network, as one vector."""
    model.q_net.zero_grad()
    loss.backward(retain_graph=True)
    return th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])


def n_mastered(model, length=7):
    """
    Return between how many of all pairs of cells the model travels by a shortest path.

    A random policy manages some 20 of the 49 pairs of seven cells.
    """
    world = Corridor(length)
    mastered = 0
    for start, goal in np.ndindex(length, length):
        cell = start
        for _ in range(abs(goal - start)):
            action = int(model.predict(goal_obs(world, cell, goal), deterministic=True)[0])
            cell = min(max(cell + (-1, 1, 0)[action], 0), length - 1)
        mastered += cell == goal
    return mastered


def steps_of_updates(model, steps, **kwargs):
    """Train a model for so many steps, and return the step at which each update was made."""
    made_at = []
    hook = model.policy.optimizer.register_step_post_hook(
        lambda *_: made_at.append(model.num_timesteps)
    )
    model.learn(steps, **kwargs)
    hook.remove()
    return made_at
