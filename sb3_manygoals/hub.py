"""
Trained agents on the Hugging Face Hub, through SB3's own integration.

Needs ``pip install "sb3-manygoals[hub]"``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.type_aliases import GymEnv

from sb3_manygoals.many_goals_dqn import ManyGoalsDQN

try:
    import huggingface_sb3
except ImportError as error:
    raise ImportError('the Hub needs huggingface_sb3: pip install "sb3-manygoals[hub]"') from error

# Names of the files in a repository.
_MODEL = "model.zip"
_WORLD = "world.npz"
_CARD = "README.md"


def push_to_hub(
    model: ManyGoalsDQN, repo_id: str, env_id: str, metrics: Mapping[str, float] | None = None
) -> str:
    """
    Upload an agent: ``model.zip``, what it knows of the world and its goals in ``world.npz``, and a
    model card in ``README.md``.

    :param model: the agent, which must know goals
    :param repo_id: repository on the Hub, "name/repository"; it is made if there is none
    :param env_id: id of the environment in which the model was trained, with the module that
        registers it, such as ``"gym_twoRooms:TwoRoomsSwitch-v0"``
    :param metrics: further results for the card by name, such as ``{"mastery": 0.98}``; None for
        none
    :return: address of the repository
    :raises TypeError: if the model has its goals in the replay memory (``goals_in_replay``)
    :raises ValueError: if ``repo_id`` is not of the form "name/repository", or the model knows no
        goals
    """
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f'repo_id must be "name/repository", got {repo_id!r}')
    if model.goal_buffer is None or len(model.goal_buffer) == 0:
        raise ValueError("model must know goals: train it first, or load them with load_world")
    address = ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save(folder / _MODEL)
        model.save_world(folder / _WORLD)
        card = _model_card(model, repo_id, env_id, metrics or {})
        (folder / _CARD).write_text(card, encoding="utf-8")
        for file in (_MODEL, _WORLD, _CARD):
            address = huggingface_sb3.push_to_hub(
                repo_id, str(folder / file), "Add a trained agent"
            )
    return str(address)


def load_from_hub(repo_id: str, env: GymEnv | None = None, **kwargs: Any) -> ManyGoalsDQN:
    """
    Download an agent that :func:`push_to_hub` has uploaded.

    SB3's models are pickles, which can execute anything. Load only models of people whom you trust,
    and say so by setting the environment variable ``TRUST_REMOTE_CODE`` to ``True``.

    :param repo_id: repository on the Hub, "name/repository"
    :param env: environment to learn on in. None to plan and act only
    :param kwargs: further arguments of :meth:`ManyGoalsDQN.load`
    :return: the agent
    :raises ValueError: if ``TRUST_REMOTE_CODE`` is not set
    """
    model = ManyGoalsDQN.load(huggingface_sb3.load_from_hub(repo_id, _MODEL), env, **kwargs)
    model.load_world(huggingface_sb3.load_from_hub(repo_id, _WORLD))
    return model


def _model_card(
    model: ManyGoalsDQN, repo_id: str, env_id: str, metrics: Mapping[str, float]
) -> str:
    """
    Return a model card in Markdown, with the Hub's metadata in YAML.

    Tags and results are written as JSON, which YAML includes.
    """
    assert model.goal_buffer is not None
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env_id, "type": env_id},
        "metrics": [
            {"type": name, "name": name, "value": float(value)} for name, value in metrics.items()
        ],
    }
    index = [{"name": "ManyGoalsDQN", "results": [result] if metrics else []}]
    tags = [
        env_id,
        "reinforcement-learning",
        "deep-reinforcement-learning",
        "stable-baselines3",
        "goal-conditioned",
    ]
    return f"""---
library_name: stable-baselines3
tags: {json.dumps(tags)}
model-index: {json.dumps(index)}
---

# ManyGoalsDQN in {env_id}

One network for {len(model.goal_buffer):,} goals, which the agent met in {model.num_timesteps:,}
steps.

```python
import gymnasium as gym
from sb3_manygoals import GoalBufferWrapper
from sb3_manygoals.hub import load_from_hub

world = gym.make({env_id!r})  # in the same wrappers as in training, if there were any
model = load_from_hub({repo_id!r}, world)
env = GoalBufferWrapper(world, model.goal_buffer, training=False)
obs, info = env.reset(options={{"goal": model.goal_buffer.observations[0]}})
action, _ = model.predict(obs, deterministic=True)
```
"""
