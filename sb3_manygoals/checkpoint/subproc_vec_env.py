"""Questions to the environments that SB3's SubprocVecEnv runs in other processes."""

from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_manygoals.checkpoint.tree import CheckpointError

METHOD = "checkpoint_in_worker"
"""The method of an environment that is called in its worker: bytes or nothing -> bytes, error."""
MARK = "<StatefulEnv "
"""How the names of environments begin that have the method."""


def get_worker_states(env: SubprocVecEnv) -> list[bytes]:
    """
    Ask each environment for its state, in its worker.

    :param env: the environment
    :return: the state of each of the N environments
    :raises CheckpointError: if an environment cannot be reached, or its state cannot be saved
    """
    return _ask(env, [()] * env.num_envs)


def set_worker_states(env: SubprocVecEnv, states: list[bytes]) -> None:
    """
    Restore the state of each environment, in its worker.

    :param env: the environment
    :param states: from :func:`get_worker_states`, for each of the N environments
    :raises CheckpointError: if an environment cannot be reached, or its state does not fit
    """
    _ask(env, [(state,) for state in states])


def _ask(env: SubprocVecEnv, arguments: list[Any]) -> list[bytes]:
    """Call the method in all workers at once, with each environment's own arguments."""
    if env.waiting:
        raise CheckpointError("SubprocVecEnv is in the middle of a step: wait for it first")
    # A worker ends if its environment lacks a method. Every object has this one.
    names = env.env_method("__str__")
    if not all(name.startswith(MARK) for name in names):
        raise CheckpointError(
            "the environments of SubprocVecEnv cannot be reached in their workers: put a "
            "StatefulEnv around each, outermost, as in "
            "SubprocVecEnv([lambda: StatefulEnv(make_env())] * n)"
        )
    for remote, given in zip(env.remotes, arguments, strict=True):
        remote.send(("env_method", (METHOD, given, {})))
    answers = [remote.recv() for remote in env.remotes]
    for row, (_, error) in enumerate(answers):
        if error:
            raise CheckpointError(f"environment {row} of SubprocVecEnv: {error}")
    return [state for state, _ in answers]
