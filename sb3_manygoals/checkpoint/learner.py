"""The part of a checkpoint that every Stable-Baselines3 algorithm has."""

import inspect
import random
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_manygoals.checkpoint.tree import CheckpointError

_COUNTERS = (
    *(
        "num_timesteps",
        "_total_timesteps",
        "_episode_num",
        "_n_updates",
        "_current_progress_remaining",
    ),
    *(
        "ep_info_buffer",
        "ep_success_buffer",
        "_last_obs",
        "_last_episode_starts",
        "_last_original_obs",
    ),
)


def get_algorithm_state(model: BaseAlgorithm) -> dict[str, Any]:
    """
    Networks, optimizer, counters, statistics and what the algorithm saw last. Not its replay memory, environment or logger.

    :param model: any algorithm of Stable-Baselines3 with at most one optimizer, that of its policy
    :return: a plain tree, some of whose arrays are the algorithm's own: to be written before training goes on
    """
    optimizer = _optimizer(model)
    return {
        "built": _built(model),
        "policy": dict(model.policy.state_dict()),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "action_space": model.action_space._np_random,
    }


def set_algorithm_state(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    """
    :param state: of :func:`get_algorithm_state`
    :raises CheckpointError: if it was built in another way: class, spaces, number of environments, shapes of the network, kind
        of optimizer, discount or targets with their arguments. Then nothing was changed
    """
    ours, theirs = _built(model), state["built"]
    for name in {**theirs, **ours}:
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"the checkpoint is of a learner with {name} {theirs.get(name)}, got {ours.get(name)}"
            )
    model.policy.load_state_dict(state["policy"])
    if (optimizer := _optimizer(model)) is not None:
        optimizer.load_state_dict(state["optimizer"])
    for name, value in state["counters"].items():
        setattr(model, name, value)
    model.action_space._np_random = state["action_space"]


def get_learner_state(model: BaseAlgorithm) -> Any:
    """
    :param model: has a checkpoint state, or is one of SB3's own on-policy algorithms (A2C, PPO), whose memory is empty where a
        rollout starts
    :return: as :func:`get_algorithm_state`
    :raises TypeError: if it is another one of SB3's algorithms
    :raises CheckpointError: if it explores by gSDE, whose noise was drawn before a checkpoint can be written, or has an LSTM
    """
    if hasattr(model, "get_checkpoint_state"):
        return model.get_checkpoint_state()
    if not isinstance(model, OnPolicyAlgorithm):
        raise TypeError(
            f"model must have get_checkpoint_state and set_checkpoint_state, got {type(model).__name__}"
        )
    if model.use_sde or hasattr(model, "_last_lstm_states"):
        raise CheckpointError(
            "neither the noise of use_sde nor the LSTM states of RecurrentPPO can be saved"
        )
    return {"algorithm": get_algorithm_state(model)}


def get_generators(model: BaseAlgorithm) -> dict[str, Any]:
    """The states of the process's generators: Python's, NumPy's and torch's, those of GPUs too if the model is on one."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the one that SB3 uses
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if model.device.type == "cuda" else [],
    }


def set_generators(state: dict[str, Any]) -> None:
    """:param state: of :func:`get_generators`; those of GPUs that are not there are left out"""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    th.set_rng_state(state["torch"])
    th.cuda.set_rng_state_all(state["cuda"][: th.cuda.device_count()])


def _built(model: BaseAlgorithm) -> dict[str, Any]:
    """What must be equal between the learner that was saved and the one that goes on."""
    targets: dict[str, Any] = {"target_class": None}  # of a learner about goals that is told which
    if kind := getattr(model, "target_class", None):
        given = inspect.signature(kind).bind_partial(
            **(getattr(model, "target_kwargs", None) or {})
        )
        given.apply_defaults()
        arguments = {f"target_kwargs[{name!r}]": str(one) for name, one in given.arguments.items()}
        targets = {"target_class": kind.__name__, **arguments}
    return {
        "class": type(model).__qualname__,
        "observation space": str(model.observation_space),
        "action space": str(model.action_space),
        "number of environments": model.n_envs,
        "optimizer": type(_optimizer(model)).__qualname__,
        **{name: getattr(model, name) for name in ("gamma", "gae_lambda") if hasattr(model, name)},
        **targets,
        **{
            f"weights {name}, shape": list(tensor.shape)
            for name, tensor in model.policy.state_dict().items()
        },
    }


def _optimizer(model: BaseAlgorithm) -> th.optim.Optimizer | None:
    """That of the policy; a table has none."""
    return getattr(model.policy, "optimizer", None)
