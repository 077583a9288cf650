"""Trained agents that come with the package."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import GymEnv

from sb3_manygoals.many_goals_dqn import ManyGoalsDQN

_FOLDER = Path(__file__).parent


def load_pretrained(
    env_id: str, env: GymEnv | None = None, device: th.device | str = "auto"
) -> ManyGoalsDQN:
    """
    Return an agent that has been trained with the defaults.

    Its weights were rounded to float16. It knows its goals, but nothing else of the world, and has
    no transitions. So it would unlearn in further training.

    ``"TwoRoomsSwitch-v0"``: three million steps of one environment, seed 0. It reaches all 5,728
    goals.

    :param env_id: id of an environment for which there is an agent
    :param env: environment for the model, with the same spaces. None makes
        ``gymnasium.make(env_id)``, so the package that registers the id must be imported
    :param device: PyTorch's device for the networks. ``"auto"`` takes a GPU if there is one
    :return: a model that knows its goals
    :raises ValueError: if there is no agent for ``env_id``
    """
    known = sorted(file.stem for file in _FOLDER.glob("*.npz"))
    if env_id not in known:
        raise ValueError(
            f"env_id must be one of {', '.join(known)}, for which there are trained agents, got "
            f"{env_id!r}"
        )
    model = ManyGoalsDQN("CnnPolicy", gym.make(env_id) if env is None else env, device=device)
    assert model.goal_buffer is not None
    with np.load(_FOLDER / f"{env_id}.npz", allow_pickle=False) as file:
        names = [name for name in file.files if name != "goals"]
        weights = {name: th.as_tensor(file[name], dtype=th.float32) for name in names}
        model.goal_buffer.add(file["goals"])
    for network in model.policy.networks:
        network.load_state_dict(weights)
    # Explore as at the end of training.
    model.exploration_rate = model.exploration_final_eps
    # Before its first update, a model fits the standardization of inputs. The weights know it.
    model._n_updates = 1
    return model
