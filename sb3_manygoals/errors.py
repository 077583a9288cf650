"""
Errors that stop training and name what caused them.

They are raised before a learner stores wrong data of an environment or learns from it, and before
its optimizer makes a step with a loss that is not finite.
"""

import math
import reprlib
import signal
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import wait
from numbers import Real
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from sb3_manygoals.validation import is_held

# If a worker does not answer for so many seconds, it is checked whether it lives.
_SILENCE_S = 1.0
# A worker whose pipe is closed has so many seconds to end.
_GOODBYE_S = 5.0
# The kinds of NumPy dtypes that hold real numbers.
_NUMBERS = "biuf"
# The packages whose code reads what environments return.
_LIBRARIES = ("gymnasium", "stable_baselines3", "sb3_manygoals")
# The values of the two methods of Gymnasium's API.
_STEP = "observation, reward, terminated, truncated and info"
_RESET = "observation and info"
_API = f"Gymnasium's API has 5 of step(), {_STEP}, and 2 of reset(), {_RESET}"
# Each step makes two contexts of workers, and most VecEnvs have none.
_NOT_WATCHING: AbstractContextManager[None] = nullcontext()


class Fault(Exception):
    """
    Raised when an environment or its process misbehaves.

    ``learn`` adds the time step, and the index of an environment that has its own goal wrapper.

    :param what: what the environment did, for the error message
    :param source: ``id`` of the object that noticed the fault
    :param index: index of the environment among those of the source; -1 if the source does not
        know it
    """

    def __init__(self, what: str, source: int, index: int = 0) -> None:
        super().__init__(what, source, index)
        self.what = what
        self.source = source
        self.index = index
        self.num_timesteps: int | None = None

    def __str__(self) -> str:
        if self.num_timesteps is None:
            return self.what
        return f"{self.what}, after num_timesteps={self.num_timesteps}"


class EnvironmentFault(Fault, ValueError):
    """
    Raised when an environment gives an observation or a reward that no environment may give.

    An observation must be finite and have the shape and dtype of its space. A reward must be one
    finite number.

    :param what: what the environment gave, for the error message
    :param source: ``id`` of the object that noticed the fault
    :param index: index of the environment among those of the source; -1 if the source does not
        know it
    """

    def __str__(self) -> str:
        culprit = "an environment" if self.index < 0 else f"environment {self.index}"
        return f"{culprit} gave {super().__str__()}"


class WorkerDied(Fault, RuntimeError):
    """
    Raised when worker processes of a SubprocVecEnv have died. The other workers were ended.

    :param what: which workers died and how, for the error message
    :param source: ``id`` of the SubprocVecEnv
    :param index: index of the first worker that died
    """


def check_finite(values: NDArray[Any], what: str, source: object, first: int = 0) -> None:
    """
    Raise an error if a value is not finite.

    :param values: one row for each environment, of any dtype, shape (n, ...)
    :param what: what one row is, for the error message, such as "an observation"
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param first: index of the environment of the first row
    :raises EnvironmentFault: if a value is NaN or infinite
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, *place = np.argwhere(~np.isfinite(values))[0].tolist()
    where = f" at {tuple(place)}" if place else ""
    raise EnvironmentFault(
        f"{what} that is not finite: {values[(row, *place)]}{where}", id(source), first + row
    )


def own_reward(reward: Any, source: object, index: int = 0, none_counts: bool = True) -> float:
    """
    Return an environment's reward as a float. It may be NaN or infinite.

    :param reward: what the environment gave: one number, or an array of shape ()
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param index: index of the environment among those of the source
    :param none_counts: whether None counts as 0. If not, it is an error
    :return: the reward
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
        # The reward is a whole number too large for a float, or an object that is no array.
        pass
    shown = reprlib.repr(reward)
    raise EnvironmentFault(f"a reward of {shown}: one number is needed", id(source), index)


def own_rewards(
    rewards: Any, n: int, source: object, none_counts: bool = True
) -> NDArray[np.floating[Any]]:
    """
    Return the rewards of n environments as floats. They may be NaN or infinite.

    :param rewards: one number for each environment, an array of shape (n,) or another sequence
    :param n: the number of environments
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param none_counts: whether None counts as 0. If not, it is an error
    :return: the rewards, shape (n,). If ``rewards`` is an array of floats, it is returned itself.
        Otherwise the result is a new array of float64
    :raises EnvironmentFault: if there is not one number for each environment
    """
    array = rewards if isinstance(rewards, np.ndarray) else np.empty(0, object)
    if array.shape == (n,) and array.dtype.kind in _NUMBERS:
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    each = list(rewards) if np.iterable(rewards) else []
    # In an array of numbers and a string, NumPy makes strings of all of them. Then nobody can tell
    # which environment gave the string.
    if len(each) != n or array.dtype.kind not in f"{_NUMBERS}O":
        raise EnvironmentFault(
            f"rewards of {reprlib.repr(rewards)}: one number is needed of each of {n}",
            id(source),
            -1,
        )
    floats = [own_reward(one, source, row, none_counts) for row, one in enumerate(each)]
    return np.array(floats, np.float64)


def own_step(stepped: Any, source: object) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """
    Return what a step of an environment gave, after a check.

    :param stepped: what ``step`` returned
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :return: observation, reward, whether the episode has terminated, whether it was truncated, and
        info
    :raises EnvironmentFault: if these are not five values, or info is no dict
    """
    _check_values(stepped, "step", _STEP, 5, source)
    observation, reward, terminated, truncated, info = stepped
    return observation, reward, terminated, truncated, info


def own_reset(first: Any, source: object, index: int = 0) -> tuple[Any, dict[str, Any]]:
    """
    Return what a reset of an environment gave, after a check.

    :param first: what ``reset`` returned
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param index: index of the environment among those of the source
    :return: observation and info
    :raises EnvironmentFault: if these are not two values, or info is no dict
    """
    _check_values(first, "reset", _RESET, 2, source, index)
    observation, info = first
    return observation, info


def _check_values(
    values: Any, method: str, parts: str, n: int, source: object, index: int = 0
) -> None:
    """Raise an error if these are not the values of a method of Gymnasium's API."""
    is_array = isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1
    is_several = isinstance(values, (tuple, list)) or is_array
    if not is_several or len(values) != n:
        got = f"{len(values)} values" if is_several else f"one {type(values).__name__}"
        what = f"{got} by {method}(): Gymnasium's API has {n}, {parts}"
        raise EnvironmentFault(what, id(source), index)
    check_info(values[-1], method, source, index)


def check_info(info: Any, method: str, source: object, index: int = 0) -> None:
    """
    Raise an error if an info is no dict.

    :param info: what an environment gave as its info
    :param method: the name of the method that gave it
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param index: index of the environment among those of the source
    :raises EnvironmentFault: if it is something else
    """
    if not isinstance(info, Mapping):
        raise _no_info(info, method, source, index)


def _no_info(info: Any, method: str, source: object, index: int) -> EnvironmentFault:
    """Return the error about an info that is no dict."""
    kind = type(info).__name__
    what = f"an info of {reprlib.repr(info)} by {method}(): a dict is needed, not a {kind}"
    return EnvironmentFault(what, id(source), index)


@contextmanager
def stepping(source: object) -> Iterator[None]:
    """
    Raise an error that names what an environment returned, if a step or a reset fails because it is
    not what Gymnasium's API has.

    Put this context manager around a step or a reset of one environment or of several. The code of
    SB3 and Gymnasium stores rewards and infos before this library sees them. If a reward is not one
    number, that code fails with an error that does not mention the reward. Errors of the
    environment itself are not changed.

    :param source: the object that makes the step, so that ``learn`` can tell which environments it
        has
    :return: the context manager
    :raises EnvironmentFault: if a reward is not one number, an info is no dict, or there are fewer
        or more values than Gymnasium's API has
    """
    try:
        yield
    except Fault:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        _name_fault(error, source)
        raise


def _name_fault(error: Exception, source: object) -> None:
    """
    Raise an EnvironmentFault if SB3's, Gymnasium's or this library's code failed because of what an
    environment returned.

    This is read from the local variables of the function that failed.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    while frames and _library(frames[-1]) == "numpy":
        frames.pop()
    if not frames or _library(frames[-1]) not in _LIBRARIES:
        return
    index = 0
    envs: list[Any] = []
    for frame in frames:
        own = frame.f_locals.get("self")
        if isinstance(own, (DummyVecEnv, SyncVectorEnv)):
            index = frame.f_locals.get("env_idx", frame.f_locals.get("i", 0))
            envs = list(own.envs)
        # A DummyVecEnv calls a method of one environment after the other so.
        called = frame.f_locals.get("env_i")
        index = next((i for i, env in enumerate(envs) if env is called), index)
    found = frames[-1].f_locals
    caller = found.get("self")
    function = frames[-1].f_code.co_name
    try:
        # A Monitor and other wrappers of one environment call it so.
        if "reward" in found:
            own_reward(found["reward"], source, index, none_counts=False)
        # A SubprocVecEnv and an AsyncVectorEnv call them so.
        for name in ("rews", "rewards"):
            if isinstance(found.get(name), (list, tuple)):
                own_rewards(found[name], len(found[name]), source, none_counts=False)
        if isinstance(caller, gym.Wrapper) and "info" in found:
            check_info(found["info"], "step() or reset", source, index)
        elif isinstance(caller, SyncVectorEnv) and function == "_add_info":
            check_info(found["env_info"], "step() or reset", source, found["env_num"])
        elif isinstance(caller, DummyVecEnv) and function == "step_wait":
            # SB3 writes into it.
            if not isinstance(caller.buf_infos[index], MutableMapping):
                raise _no_info(caller.buf_infos[index], "step", source, index)
    except EnvironmentFault as fault:
        raise fault from error
    message = None
    if not isinstance(caller, (gym.Wrapper, DummyVecEnv, SyncVectorEnv)):
        return
    if function in ("step", "step_wait", "reset") and "unpack" in str(error):
        # A step also resets an environment whose episode has ended.
        message = f"a wrong number of values by step() or reset(), {error}: {_API}"
    elif function in ("step", "step_wait") and isinstance(error, (TypeError, ValueError)):
        if isinstance(caller, (DummyVecEnv, SyncVectorEnv)):
            message = f"a reward or an end that cannot be stored, one number is needed: {error}"
    if message is not None:
        raise EnvironmentFault(message, id(source), index) from error


def _library(frame: FrameType) -> str:
    """Return the name of the package whose code a frame runs."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def naming(what: str, source: object, index: int = 0) -> Iterator[None]:
    """
    Turn a ValueError on an environment's observation into an EnvironmentFault.

    :param what: what the observation is, for the message, such as "a terminal observation"
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param index: index of the environment among those of the source
    :raises EnvironmentFault: if the block raises a ValueError
    """
    try:
        yield
    except ValueError as error:
        raise EnvironmentFault(f"{what}: {error}", id(source), index) from error


def own_observation(
    observation: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    what: str,
    source: object,
    index: int = 0,
) -> NDArray[Any]:
    """
    Return a copy of an environment's observation in the dtype of its space.

    The dtype is converted where NumPy's rule "same_kind" allows it, as from float64 to float32.
    Whole numbers that become whole numbers of another dtype must not change by that.

    :param observation: what the environment gave: an array, or what NumPy makes an array of
    :param shape: shape of the observation space
    :param dtype: dtype of the observation space
    :param what: what the observation is, for the error message, such as "a terminal observation"
    :param source: the object that checks, so that ``learn`` can tell which environments it has
    :param index: index of the environment among those of the source; 0, the default, if it has one
    :return: a new array of this shape and dtype
    :raises EnvironmentFault: if the observation is no array, has another shape, a dtype that
        cannot be converted or numbers that its dtype does not hold, or is not finite. It is a
        ValueError
    """
    try:
        array: NDArray[Any] = np.asarray(observation)
    except ValueError as error:
        # The observation consists of lists of unequal length.
        raise EnvironmentFault(f"{what} that is no array: {error}", id(source), index) from error
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvironmentFault(
            f"{what} of shape {array.shape} and dtype {array.dtype},"
            f" its space has {shape} and {dtype}",
            id(source),
            index,
        )
    own = np.array(array, dtype=dtype)
    if not is_held(array, own):
        raise EnvironmentFault(
            f"{what} with numbers from {array.min()} to {array.max()}, the dtype of its space is"
            f" {dtype}",
            id(source),
            index,
        )
    check_finite(own[None], what, source, index)
    return own


def workers(venv: VecEnv, answering: bool = False) -> AbstractContextManager[None]:
    """
    Raise an error if a worker of a SubprocVecEnv is dead, instead of waiting for it forever.

    Put this context manager around calls of the VecEnv. The pipe of a dead worker does not end,
    because forked workers hold each other's ends of the pipes. So the workers are checked before
    the call. If workers are not forked, one that dies during the call is noticed too. For other
    VecEnvs this context manager does nothing.

    :param venv: the VecEnv that is called
    :param answering: whether the call only waits for answers of the workers, as ``step_wait`` does.
        If so, workers that die before they answer are noticed too
    :return: the context manager
    :raises WorkerDied: if a worker is dead. The other workers were ended
    :raises EnvironmentFault: if observations cannot be stacked or do not fit their space
    """
    base = venv.unwrapped
    return _watching(base, answering) if isinstance(base, SubprocVecEnv) else _NOT_WATCHING


@contextmanager
def _watching(base: SubprocVecEnv, answering: bool) -> Iterator[None]:
    """Raise an error if a worker is dead before a call, or dies during it."""
    for remote, process in zip(base.remotes, base.processes, strict=True):
        while answering and not remote.poll(_SILENCE_S):
            # A worker may have answered just after the silence, and died then.
            if not process.is_alive() and not remote.poll(0):
                raise _end_workers(base)
        if not (answering or process.is_alive()):
            raise _end_workers(base)
    try:
        yield
    except Fault:
        raise
    except (EOFError, OSError) as error:
        # A pipe closes before its process ends, so wait for the end.
        sentinels = [process.sentinel for process in base.processes]
        if wait(sentinels, _GOODBYE_S):
            raise _end_workers(base) from error
        raise
    except ValueError as error:
        _name_fault(error, base)
        raise EnvironmentFault(
            f"observations that do not fit {base.observation_space}: {error}", id(base), -1
        ) from error


def _end_workers(venv: SubprocVecEnv) -> WorkerDied:
    """End all workers, and return the error that names the workers that were dead before."""
    ended = wait([process.sentinel for process in venv.processes], 0)
    for process in venv.processes:
        if process.sentinel in ended:
            # The exit code may be known only a moment after the sentinel.
            process.join()
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
    # Otherwise close() would wait for answers.
    venv.waiting = False
    venv.closed = True
    deaths = [f"environment {index} ({_cause_of_death(code)})" for index, code in exits.items()]
    return WorkerDied(
        f"worker processes died: {', '.join(deaths)}; the others were ended",
        id(venv),
        min(exits),
    )


def _cause_of_death(exit_code: int) -> str:
    """Return how a process ended."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {-exit_code}, {signal.strsignal(-exit_code)}"


def check_loss(loss: th.Tensor, networks: th.nn.Module, update: int, num_timesteps: int) -> None:
    """
    Raise an error if a loss is not finite.

    A loss on a CUDA device is checked by the device, so that the program does not wait for it. If
    the check fails, the device prints the number of the update and reports an error. After that the
    process cannot use the device any more.

    :param loss: loss of one update, before the optimizer's step, shape ()
    :param networks: the networks that learn. If the loss is not finite, the error names their
        parameters and buffers that are not finite either
    :param update: number of the update, from 1
    :param num_timesteps: environment steps taken so far
    :raises FloatingPointError: if the loss is NaN or infinite and not on a CUDA device
    """
    where = f"update {update}, after num_timesteps={num_timesteps}"
    if loss.is_cuda:
        th._assert_async(th.isfinite(loss), f"the loss of {where} is not finite")
        return
    value = loss.item()
    if math.isfinite(value):
        return
    spoiled = [
        name
        for name, values in networks.state_dict().items()
        if values.is_floating_point() and not th.isfinite(values).all()
    ]
    state = "All parameters of the networks are finite"
    if spoiled:
        state = f"Not finite already: {', '.join(spoiled)}"
    raise FloatingPointError(
        f"the loss of {where} is {value}: stopped before the optimizer's step. {state}"
    )
