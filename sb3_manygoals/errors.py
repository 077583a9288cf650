"""Training stops, with the culprit named, before it learns from what no environment, worker or network should give."""

import math
import reprlib
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from numbers import Real
from types import FrameType
from typing import Any

import numpy as np
import torch as th
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

_SILENCE_S = 1.0  # how long a worker may be silent before it is checked whether it lives
_NUMBERS = "biuf"  # kinds of dtypes
_GOODBYE_S = 5.0  # how long to wait for a worker to end whose pipe is closed


class Fault(Exception):
    """
    What an environment did wrong. The learner adds the step and, for one environment among others, its index.

    :param what: it did
    :param source: ``id`` of the object that noticed
    :param index: of the environment as far as the source knows, -1 if it does not
    """

    def __init__(self, what: str, source: int, index: int = 0) -> None:
        super().__init__(what, source, index)
        self.what, self.source, self.index = what, source, index
        self.num_timesteps: int | None = None

    def __str__(self) -> str:
        return self.what + (
            "" if self.num_timesteps is None else f", after num_timesteps={self.num_timesteps}"
        )


class EnvironmentFault(Fault, ValueError):
    """An environment gave what is not finite, has not the shape or dtype of its space, or is no reward."""

    def __str__(self) -> str:
        return f"{'an environment' if self.index < 0 else f'environment {self.index}'} gave {super().__str__()}"


class WorkerDied(Fault, RuntimeError):
    """Worker processes of a SubprocVecEnv have died, so its others were ended too."""


def check_finite(values: NDArray[Any], what: str, source: object, first: int = 0) -> None:
    """Raise an EnvironmentFault, noticed by ``source``, if a value is not finite; row i is of environment ``first`` + i."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, *place = np.argwhere(~np.isfinite(values))[0].tolist()
    where = f" at {tuple(place)}" if place else ""
    raise EnvironmentFault(
        f"{what} that is not finite: {values[(row, *place)]}{where}", id(source), first + row
    )


def own_reward(reward: Any, source: object, index: int = 0, none_counts: bool = True) -> float:
    """
    An environment's reward as a float, finite or not.

    :param reward: what the environment gave: one number, or an array without axes
    :param source: that noticed it
    :param index: of the environment
    :param none_counts: whether None counts as 0
    :raises EnvironmentFault: if it is not one number
    """
    if reward is None and none_counts:
        return 0.0
    try:
        if isinstance(reward, Real):
            return float(reward)
        array = np.asarray(reward)
        if array.shape == () and array.dtype.kind in _NUMBERS:
            return float(array)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        pass  # a whole number that no float holds, or an object that is no array
    shown = reprlib.repr(reward)
    raise EnvironmentFault(f"a reward of {shown}: one number is needed", id(source), index)


def own_rewards(
    rewards: Any, n: int, source: object, none_counts: bool = True
) -> NDArray[np.floating[Any]]:
    """
    The rewards of n environments as floats, finite or not.

    :param rewards: one number each, an array of shape (n,) or another sequence
    :param n: the number of environments
    :param source: that noticed it
    :param none_counts: whether None counts as 0
    :return: shape (n,), of the dtype of ``rewards`` if that is an array of floats
    :raises EnvironmentFault: if it is not one number each
    """
    array = rewards if isinstance(rewards, np.ndarray) else np.empty(0, object)
    if array.shape == (n,) and array.dtype.kind in _NUMBERS:
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    each = list(rewards) if np.iterable(rewards) else []
    # one string makes strings of all rewards that are joined in an array, so it cannot be told whose it was
    if len(each) != n or array.dtype.kind not in f"{_NUMBERS}O":
        text = f"rewards of {reprlib.repr(rewards)}: one number is needed of each of {n}"
        raise EnvironmentFault(text, id(source), -1)
    floats = [own_reward(one, source, row, none_counts) for row, one in enumerate(each)]
    return np.array(floats, np.float64)


@contextmanager
def stepping(source: object) -> Iterator[None]:
    """
    Put around a step of one environment or of several. SB3's and Gymnasium's code stores rewards before we see them, and fails
    with errors that do not name the reward where it is not one number.

    :param source: that notices it
    :raises EnvironmentFault: in place of such an error; errors of the environment itself pass
    """
    try:
        yield
    except Fault:
        raise
    except (TypeError, ValueError) as error:
        _name_reward(error, source)
        raise


def _name_reward(error: Exception, source: object) -> None:
    """Raise an EnvironmentFault if code of SB3 or Gymnasium failed at a reward that is not one number."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    while frames and _library(frames[-1]) == "numpy":
        frames.pop()
    if not frames or _library(frames[-1]) not in ("gymnasium", "stable_baselines3"):
        return
    index = 0
    for frame in frames:
        if isinstance(frame.f_locals.get("self"), (DummyVecEnv, SyncVectorEnv)):
            index = frame.f_locals.get("env_idx", frame.f_locals.get("i", 0))
    try:
        found = frames[-1].f_locals
        if "reward" in found:  # as in a Monitor
            own_reward(found["reward"], source, index, none_counts=False)
        for name in ("rews", "rewards"):  # of a SubprocVecEnv or an AsyncVectorEnv
            if isinstance(found.get(name), (list, tuple)):
                own_rewards(found[name], len(found[name]), source, none_counts=False)
    except EnvironmentFault as fault:
        raise fault from error
    stores = isinstance(found.get("self"), (DummyVecEnv, SyncVectorEnv))
    if stores and frames[-1].f_code.co_name in ("step", "step_wait"):
        text = f"a reward or an end that cannot be stored, one number is needed: {error}"
        raise EnvironmentFault(text, id(source), index) from error


def _library(frame: FrameType) -> str:
    """The package whose code it runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def own_observation(
    observation: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    what: str,
    source: object,
    index: int = 0,
) -> NDArray[Any]:
    """
    A copy of an environment's observation in the dtype of its space; only dtypes of the same kind are converted, float64 to
    float32 for example. An EnvironmentFault, noticed by ``source``, if it has another shape or dtype, or is not finite.
    """
    try:
        array: NDArray[Any] = np.asarray(observation)
    except ValueError as error:  # lists of unequal length
        raise EnvironmentFault(f"{what} that is no array: {error}", id(source), index) from error
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        text = f"{what} of shape {array.shape} and dtype {array.dtype}, its space has {shape} and {dtype}"
        raise EnvironmentFault(text, id(source), index)
    array = np.array(array, dtype=dtype)
    check_finite(array[None], what, source, index)
    return array


@contextmanager
def workers(venv: VecEnv, answering: bool = False) -> Iterator[None]:
    """
    Put around calls of a SubprocVecEnv, which would wait forever for a dead worker: forked workers hold each other's ends of
    the pipes, so no end of file comes. It does nothing with other VecEnvs.

    :param answering: whether its workers are about to answer
    :raises WorkerDied: (a RuntimeError) if one is dead before the call or, with ``answering``, dies before its answer. Where
        workers are not forked, also if one dies during the call
    :raises EnvironmentFault: (a ValueError) if observations cannot be stacked or are not of their space
    """
    base = venv.unwrapped
    if not isinstance(base, SubprocVecEnv):
        yield
        return
    for remote, process in zip(base.remotes, base.processes, strict=True):
        while answering and not remote.poll(_SILENCE_S):
            if not process.is_alive() and not remote.poll(
                0
            ):  # it may have answered and died just after the silence
                raise _end_workers(base)
        if not (answering or process.is_alive()):
            raise _end_workers(base)
    try:
        yield
    except Fault:
        raise
    except (EOFError, OSError) as error:
        if wait(
            [process.sentinel for process in base.processes], _GOODBYE_S
        ):  # a pipe closes before its process ends
            raise _end_workers(base) from error
        raise
    except ValueError as error:
        _name_reward(error, base)
        raise EnvironmentFault(
            f"observations that do not fit {base.observation_space}: {error}", id(base), -1
        ) from error


def _end_workers(venv: SubprocVecEnv) -> WorkerDied:
    """Leave no process behind. :return: says which had died before"""
    exits = {
        index: process.exitcode
        for index, process in enumerate(venv.processes)
        if process.exitcode is not None
    }
    for process in venv.processes:
        process.kill()
        process.join()
    for remote in venv.remotes:
        remote.close()
    venv.waiting, venv.closed = False, True  # close() would wait for answers
    deaths = ", ".join(
        f"environment {index} ({f'exit code {code}' if code >= 0 else f'signal {-code}, {signal.strsignal(-code)}'})"
        for index, code in exits.items()
    )
    return WorkerDied(
        f"worker processes died: {deaths}; the others were ended", id(venv), min(exits)
    )


def check_loss(loss: th.Tensor, networks: th.nn.Module, update: int, num_timesteps: int) -> None:
    """
    Stop at a loss that is not finite. A CUDA device checks it without being waited for: it prints the update, and the process
    must start anew.

    :param loss: of one update, before the optimizer's step
    :param networks: whose parameters and buffers are looked at if it is not finite
    :param update: its number, from 1
    :param num_timesteps: environment steps taken
    :raises FloatingPointError: if it is NaN or infinite, elsewhere than on a CUDA device
    """
    where = f"update {update}, after num_timesteps={num_timesteps}"
    if loss.is_cuda:
        th._assert_async(th.isfinite(loss), f"the loss of {where} is not finite")
        return
    value = loss.item()
    if math.isfinite(value):
        return
    parameters = networks.state_dict().items()
    spoiled = [
        name
        for name, values in parameters
        if values.is_floating_point() and not th.isfinite(values).all()
    ]
    state = (
        f"Not finite already: {', '.join(spoiled)}"
        if spoiled
        else "All parameters of the networks are finite"
    )
    raise FloatingPointError(
        f"the loss of {where} is {value}: stopped before the optimizer's step. {state}"
    )
