"""The part of a checkpoint that every Stable-Baselines3 algorithm has."""

import inspect
import random
import re
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_manygoals.checkpoint.tree import CheckpointError

# The attributes of SB3's algorithms that training changes, besides networks and optimizer.
_TRAINING_ATTRIBUTES = (
    "num_timesteps",
    "_total_timesteps",
    "_episode_num",
    "_n_updates",
    "_current_progress_remaining",
    "ep_info_buffer",
    "ep_success_buffer",
    "_last_obs",
    "_last_episode_starts",
    "_last_original_obs",
)
# The settings that must be equal, of algorithms that have them.
_SETTINGS = ("gamma", "gae_lambda", "tau", "target_update_interval")
# The place in memory that Python writes of an object, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def get_algorithm_state(model: BaseAlgorithm) -> dict[str, Any]:
    """
    Return the state that every algorithm of Stable-Baselines3 has.

    It holds networks, optimizer, counters, statistics, and the last observations. It does not hold
    replay memory, environment and logger.

    :param model: any algorithm of Stable-Baselines3 with at most one optimizer, that of its policy
    :return: a plain tree. Some of its arrays are the algorithm's own, so it must be written before
        training goes on
    """
    optimizer = _optimizer(model)
    attributes = {
        name: getattr(model, name) for name in _TRAINING_ATTRIBUTES if hasattr(model, name)
    }
    return {
        "built": _construction(model),
        "policy": dict(model.policy.state_dict()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "counters": attributes,
        "action_space": model.action_space._np_random,
    }


def set_algorithm_state(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """
    Restore the state that every algorithm of Stable-Baselines3 has.

    :param model: built as the one that the state is of
    :param state: from :func:`get_algorithm_state`
    :raises CheckpointError: if the model was built otherwise: with another class, other spaces,
        another number of environments, other shapes of the network, another kind of optimizer,
        another discount or target network, or other targets or arguments of these. Functions are
        the same if their modules and names are. Then nothing was changed
    """
    saved = state["built"]
    found = _construction(model)
    for name in {**saved, **found}:
        if found.get(name) != saved.get(name):
            raise CheckpointError(
                f"the checkpoint is of a learner with {name} {saved.get(name, '(unset)')}, "
                f"got {found.get(name, '(unset)')}"
            )
    model.policy.load_state_dict(state["policy"])
    optimizer = _optimizer(model)
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    for name, value in state["counters"].items():
        setattr(model, name, value)
    model.action_space._np_random = state["action_space"]


def get_learner_state(model: BaseAlgorithm) -> Any:
    """
    Return the whole state of a learner, without its environment and logger.

    :param model: an algorithm with a checkpoint state of its own, or one of SB3's on-policy
        algorithms (A2C, PPO), whose memory is empty where a rollout starts
    :return: what its ``get_checkpoint_state()`` returns; for an algorithm without that method a
        dict with the state of :func:`get_algorithm_state` as "algorithm"
    :raises TypeError: if it is another one of SB3's algorithms
    :raises CheckpointError: if it explores by gSDE, whose noise was drawn before a checkpoint can
        be written, or has an LSTM
    """
    if hasattr(model, "get_checkpoint_state"):
        return model.get_checkpoint_state()
    if not isinstance(model, OnPolicyAlgorithm):
        raise TypeError(
            "model must have get_checkpoint_state and set_checkpoint_state, got "
            f"{type(model).__name__}"
        )
    if model.use_sde or hasattr(model, "_last_lstm_states"):
        raise CheckpointError(
            "neither the noise of use_sde nor the LSTM states of RecurrentPPO can be saved"
        )
    return {"algorithm": get_algorithm_state(model)}


def get_generators(model: BaseAlgorithm) -> dict[str, Any]:
    """
    Return the states of the random number generators of this process.

    :param model: the learner; if it is on a GPU, the generators of all GPUs are included
    :return: the states of Python's, NumPy's and torch's generators
    """
    return {
        "python": random.getstate(),
        # SB3 draws from NumPy's global generator.
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if model.device.type == "cuda" else [],
    }


def set_generators(state: dict[str, Any]) -> None:
    """
    Restore the random number generators of this process.

    :param state: from :func:`get_generators`. States of GPUs that are not there are ignored
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    th.set_rng_state(state["torch"])
    th.cuda.set_rng_state_all(state["cuda"][: th.cuda.device_count()])


def _construction(model: BaseAlgorithm) -> dict[str, Any]:
    """Return what must be equal between the learner that was saved and the one that goes on."""
    found = {
        "class": type(model).__qualname__,
        "observation space": str(model.observation_space),
        "action space": str(model.action_space),
        "number of environments": model.n_envs,
        "optimizer": type(_optimizer(model)).__qualname__,
    }
    for name in _SETTINGS:
        if hasattr(model, name):
            found[name] = getattr(model, name)
    found.update(_targets(model))
    for name, tensor in model.policy.state_dict().items():
        found[f"weights {name}, shape"] = list(tensor.shape)
    return found


def _targets(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the class of a learner's targets, if it has one, and all arguments of that class."""
    target_class = getattr(model, "target_class", None)
    if target_class is None:
        return {"target_class": None}
    kwargs = getattr(model, "target_kwargs", None) or {}
    given = inspect.signature(target_class).bind_partial(**kwargs)
    given.apply_defaults()
    found = {"target_class": target_class.__name__}
    for name, value in given.arguments.items():
        found[f"target_kwargs[{name!r}]"] = _text_of(value)
    return found


def _text_of(value: Any) -> str:
    """Return a text of an argument that is the same in another process."""
    if hasattr(value, "__qualname__"):
        # The text of a function does not say in which module it is.
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", str(value))


def _optimizer(model: BaseAlgorithm) -> th.optim.Optimizer | None:
    """Return the optimizer of the policy; a table has none."""
    return getattr(model.policy, "optimizer", None)
