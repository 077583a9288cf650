"""Training stops, with the culprit named, before it learns from what no environment, worker or network should give."""

from __future__ import annotations

import math
import select
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

_SILENCE_MS = 1_000
"""How long a worker may be silent before it is looked at whether it lives."""
_GOODBYE_S = 5.0
"""How long a worker is waited for that was told to end, or whose pipe is closed."""


class Fault(Exception):
    """
    What an environment did wrong. Whoever notices knows neither the step nor, of one environment among others, its index: the
    learner adds them on the way out.

    :param what: it did
    :param source: ``id`` of the object that noticed
    :param index: of the environment, as far as the source knows
    """

    def __init__(self, what: str, source: int, index: int = 0) -> None:
        super().__init__(what, source, index)
        self.what, self.source, self.index = what, source, index
        self.num_timesteps: int | None = None

    def __str__(self) -> str:
        return self.what + ("" if self.num_timesteps is None else f", after num_timesteps={self.num_timesteps}")


class EnvironmentFault(Fault, ValueError):
    """An environment gave what is not finite, or has not the shape or dtype of its space."""

    def __str__(self) -> str:
        return f"environment {self.index} gave {super().__str__()}"


class WorkerDied(Fault, RuntimeError):
    """Worker processes of a SubprocVecEnv have ended, so its others were ended too."""


def check_finite(values: NDArray[Any], what: str, source: object, first: int = 0) -> None:
    """
    Costs nothing for integers.

    :param values: one row an environment
    :param what: they are
    :param source: the object that asks
    :param first: index of the first of the environments
    :raises EnvironmentFault: (a ValueError) if one is NaN or infinite
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    row, *place = np.argwhere(~np.isfinite(values))[0].tolist()
    where = f" at {tuple(place)}" if place else ""
    raise EnvironmentFault(f"{what} that is not finite: {values[(row, *place)]}{where}", id(source), first + row)


def own_observation(
    observation: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str, source: object, index: int = 0
) -> NDArray[Any]:
    """
    A copy, since environments may write into what they returned; in the dtype of the space, as SB3's VecEnvs store it. Only
    dtypes of the same kind are converted, float64 to float32 for example.

    :param observation: of one environment
    :param shape: that it must have
    :param dtype: of the space
    :param what: it is
    :param source: the object that asks
    :param index: of the environment
    :return: the copy
    :raises EnvironmentFault: (a ValueError) if it has another shape, a dtype of another kind, or is not finite
    """
    array = _array(observation, True, what, source, index)
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise _misfit(what, array, shape, dtype, source, index)
    array = array.astype(dtype, copy=False)
    check_finite(array[None], what, source, index)
    return array


def watch(venv: VecEnv) -> None:
    """
    Have the environments of SB3's own VecEnvs looked at one by one, before their observations become one array: a DummyVecEnv
    copies them into a buffer, which broadcasts and casts in silence; a SubprocVecEnv stacks them. Others are left alone.

    :param venv: is changed; nothing else of it is than what it does with a bad observation and a dead worker
    """
    base = venv.unwrapped
    if isinstance(base, DummyVecEnv) and not isinstance(base._save_obs, _CheckedSave):
        base._save_obs = _CheckedSave(base)  # type: ignore[method-assign]
    elif isinstance(base, SubprocVecEnv) and not isinstance(base.remotes[0], _WatchedRemote):
        workers = zip(base.remotes, base.processes, strict=True)
        base.remotes = tuple(_WatchedRemote(base, remote, process) for remote, process in workers)


def blame(venv: VecEnv) -> None:
    """
    Name the environment of a SubprocVecEnv whose last observation does not fit, once it is known that one does not.

    :param venv: watched
    :raises EnvironmentFault: (a ValueError) if there is one
    """
    base = venv.unwrapped
    if not isinstance(base, SubprocVecEnv):
        return
    for index, remote in enumerate(base.remotes):
        for what, part, space in _parts(remote.shown, base.observation_space):
            assert space.shape is not None
            assert space.dtype is not None
            array = _array(part, None, what, base, index)
            # np.stack finds a dtype for all: what the space's does not hold changes it
            if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, "safe"):
                raise _misfit(what, array, space.shape, space.dtype, base, index)


def check_loss(loss: th.Tensor, networks: th.nn.Module, update: int, num_timesteps: int) -> None:
    """
    On a CUDA device without waiting for it: there the device itself stops before anything that follows, prints which update it
    was (of a captured graph the first one, for it knows no other), and can be used again only by a new process; PyTorch raises
    at its next operation.

    :param loss: of one update, before the optimizer's step
    :param networks: whose parameters and buffers are looked at if it is not finite
    :param update: its number, from 1
    :param num_timesteps: environment steps taken
    :raises FloatingPointError: if it is NaN or infinite, elsewhere than on a CUDA device
    """
    where = f"update {update}, after num_timesteps={num_timesteps}"
    if loss.is_cuda:
        # a captured graph goes on printing what it was captured with
        _assert_on_device(loss, f"{where}, or of a later one" if th.cuda.is_current_stream_capturing() else where)
        return
    value = loss.item()
    if math.isfinite(value):
        return
    spoiled = [
        name
        for name, values in networks.state_dict().items()
        if values.is_floating_point() and not th.isfinite(values).all().item()
    ]
    state = f"Not finite already: {', '.join(spoiled)}" if spoiled else "All parameters of the networks are finite"
    raise FloatingPointError(f"the loss of {where} is {value}: stopped before the optimizer's step. {state}")


def _assert_on_device(loss: th.Tensor, where: str) -> None:
    th._assert_async(th.isfinite(loss), f"the loss of {where} is not finite")


class _CheckedSave:
    """
    Stands for ``_save_obs`` of one DummyVecEnv. No closure: copies of the VecEnv must save into their own buffers.

    :param venv: the DummyVecEnv
    """

    def __init__(self, venv: DummyVecEnv) -> None:
        self.venv = venv

    def __call__(self, env_idx: int, obs: Any) -> None:
        venv = self.venv
        for key, rows in venv.buf_obs.items():
            part = obs if key is None else obs[key]
            if not isinstance(part, np.ndarray) or part.dtype != rows.dtype or part.shape != rows.shape[1:]:
                part, what = _array(part, None, "an observation", venv, env_idx), "an observation"
                if part.shape != rows.shape[1:] or not np.can_cast(part.dtype, rows.dtype, "same_kind"):
                    raise _misfit(what, part, rows.shape[1:], rows.dtype, venv, env_idx)
        type(venv)._save_obs(venv, env_idx, obs)


class _WatchedRemote:
    """
    The pipe to one worker of a SubprocVecEnv, which remembers what it showed last and knows when it is dead. Asking whether it
    lives is not left to the pipe: forked workers hold each other's ends of the pipes open, so that no end of file ever comes.

    :param venv: the SubprocVecEnv
    :param remote: the pipe
    :param process: the worker
    """

    def __init__(self, venv: SubprocVecEnv, remote: Any, process: BaseProcess) -> None:
        self._venv, self._remote, self._process = venv, remote, process
        self._poller = select.poll() if hasattr(select, "poll") else None  # Windows has none, and does not fork
        if self._poller is not None:
            self._poller.register(remote.fileno(), select.POLLIN)
        self._shows = False
        self.shown: Any = None
        """The observation of the last step or reset."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote, name)

    def send(self, message: tuple[str, Any]) -> None:
        self._shows = message[0] in ("step", "reset")
        try:
            self._remote.send(message)
        except OSError as error:
            self._raise_if_dead(error)
            raise

    def recv(self) -> Any:
        try:
            self._wait()
            answer = self._remote.recv()
        except (EOFError, OSError) as error:
            self._raise_if_dead(error)
            raise
        if self._shows:
            self.shown = answer[0]
        return answer

    def _wait(self) -> None:
        if self._poller is None:
            return
        while not self._poller.poll(_SILENCE_MS):
            # it may have answered and ended just after the silence
            if not self._process.is_alive() and not self._poller.poll(0):
                raise EOFError

    def _raise_if_dead(self, error: Exception) -> None:
        self._process.join(_GOODBYE_S)  # the pipe is closed a little before the process ends
        if self._process.exitcode is not None:
            raise _end_workers(self._venv) from error


def _end_workers(venv: SubprocVecEnv) -> WorkerDied:
    """Leave no process behind. :return: says which had ended before"""
    exits = {index: process.exitcode for index, process in enumerate(venv.processes) if process.exitcode is not None}
    for process in venv.processes:
        process.terminate()
    for process in venv.processes:
        process.join(_GOODBYE_S)
        if process.is_alive():
            process.kill()
            process.join()
    for remote in venv.remotes:
        remote.close()
    venv.waiting, venv.closed = False, True  # close() would wait for answers
    deaths = ", ".join(f"environment {index} ({_cause(code)})" for index, code in exits.items())
    return WorkerDied(f"worker processes died: {deaths}; the others were ended", id(venv), min(exits))


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"


def _parts(observation: Any, space: spaces.Space[Any]) -> Iterator[tuple[str, Any, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict) and isinstance(observation, dict):
        for key, part_space in space.spaces.items():
            yield f"an observation {key!r}", observation[key], part_space
    elif not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield "an observation", observation, space


def _array(observation: Any, copy: bool | None, what: str, source: object, index: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.array(observation) if copy else np.asarray(observation)
    except ValueError as error:  # lists of unequal length
        raise EnvironmentFault(f"{what} that is no array: {error}", id(source), index) from error
    return array


def _misfit(
    what: str, array: NDArray[Any], shape: tuple[int, ...], dtype: DTypeLike, source: object, index: int
) -> EnvironmentFault:
    text = f"{what} of shape {array.shape} and dtype {array.dtype}, its space has {shape} and {np.dtype(dtype)}"
    return EnvironmentFault(text, id(source), index)
