"""Checkpoints while training goes on, and going on from them."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.checkpoint.folder import Lock, checkpoints, read_newest, write_checkpoint
from sb3_manygoals.checkpoint.learner import (
    get_generators,
    get_learner_state,
    set_algorithm_state,
    set_generators,
)
from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree
from sb3_manygoals.validation import check_count, check_number

_LOG = ("name_to_value", "name_to_count", "name_to_excluded")  # what a logger has not written yet


@runtime_checkable
class Checkpointable(Protocol):
    """What has a state that can be saved and restored."""

    def get_checkpoint_state(self) -> Any:
        """:return: a tree of plain data and arrays; these may be the object's own, as they are written at once"""

    def set_checkpoint_state(self, state: Any) -> None:
        """:param state: of :meth:`get_checkpoint_state`, of an object built in the same way"""


class ExactCheckpointCallback(BaseCallback):
    """
    Writes checkpoints from which training goes on as if it had never stopped: learner, optimizer, replay memory, goals,
    environments, all random generators, and what was not yet logged. On a CPU, with the same number of threads, the result is
    equal to the last bit. Call :meth:`resume` before ``learn()``, as ``docs/checkpoints.md`` shows.

    :mod:`sb3_manygoals.checkpoint.envs` says which environments can be saved. A checkpoint is written where a rollout starts,
    after all updates, by :func:`~sb3_manygoals.checkpoint.folder.write_checkpoint`. One more is written after training, unless
    a callback ended it within a rollout. When SIGTERM or SIGINT (Ctrl-C) tells the process to end, a last one is written
    first; a second signal ends it at once. What can never be saved is refused before the first step, and so is a folder to
    which another process writes. If a checkpoint cannot be written, as the disk is full, a warning says so, the older ones
    stay, and training goes on; it ends with the error if the last one could not be written either.

    Give it to ``learn()`` itself or in a list of callbacks, after those whose state it saves.

    :param root: folder of the checkpoints, of one run only
    :param every_steps: environment steps between two, or None
    :param every_seconds: time between two, or None; if both are given, whichever comes first
    :param keep: the newest of them that are kept; None for all
    :param extras: by name, further objects whose state belongs to the run: callbacks, logs
    :param verbose: 1 to print each
    :raises ValueError: if an interval is not positive, or ``keep`` no positive whole number
    :raises TypeError: if an extra has no checkpoint state
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        every_steps: int | None = None,
        every_seconds: float | None = None,
        keep: int | None = 3,
        extras: Mapping[str, Checkpointable] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        for name, value in (("every_steps", every_steps), ("every_seconds", every_seconds)):
            if value is not None:
                check_number(name, value, above=0, at_most=math.inf)
        for name, extra in (extras or {}).items():
            if not isinstance(extra, Checkpointable):
                raise TypeError(
                    f"extras[{name!r}] must have get_checkpoint_state and set_checkpoint_state, got {extra!r}"
                )
        self.root, self.extras = Path(root), dict(extras or {})
        self.every_steps, self.every_seconds = every_steps, every_seconds
        self.keep = None if keep is None else check_count("keep", keep, floats=True)
        self._saved_step, self._saved_time = 0, time.monotonic()
        self._start_time = 0.0  # of this call of learn()
        self._within_rollout = False
        self._signal: int | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._resumed: dict[str, Any] | None = None
        self._lock = Lock(self.root)
        self._has_lock = False
        self._failure: OSError | None = None  # of the last attempt to write
        self._damaged = 0  # checkpoints, which must not push out those that are whole

    def resume(self, model: BaseAlgorithm, fallback: bool = False) -> bool:
        """
        Put a model, its environments and the extras into the state of the newest checkpoint, if there is one. The random
        generators of the process follow when training begins. Another number of torch's threads is a warning.

        :param model: built as the one that was saved, with its environment
        :param fallback: whether to take an older checkpoint if the newest is damaged, with a warning
        :return: whether there was one
        :raises CheckpointError: if a checkpoint is damaged, of another format, or of a model that was built otherwise. Build
            model, environments and extras anew then: some of them may have been restored
        """
        found = read_newest(self.root, fallback=fallback)
        if found is None:
            return False
        path, state = found
        if state["extras"].keys() != self.extras.keys():
            raise CheckpointError(
                f"{path} has the extras {sorted(state['extras'])}, this run has {sorted(self.extras)}"
            )
        if hasattr(model, "set_checkpoint_state"):
            model.set_checkpoint_state(state["learner"])
        else:
            set_algorithm_state(model, state["learner"]["algorithm"])
        assert model.env is not None
        set_env_state(model.env, state["env"])
        for name, extra in self.extras.items():
            try:
                extra.set_checkpoint_state(state["extras"][name])
            except (TypeError, ValueError, KeyError) as error:
                raise CheckpointError(
                    f"{path}: the state does not fit extras[{name!r}]: {error!r}"
                ) from error
        if state["threads"] != th.get_num_threads():
            threads = (
                f"{state['threads']} threads of torch, this process has {th.get_num_threads()}"
            )
            warnings.warn(
                f"{path} was written with {threads}: results will not be equal to the last bit",
                stacklevel=2,
            )
        self._resumed = {name: state[name] for name in ("generators", "log")}
        self._damaged = checkpoints(self.root).index(path)
        self._saved_step = model.num_timesteps
        if self.verbose:
            print(f"going on from {path}")
        return True

    def save(self) -> Path:
        """
        Write a checkpoint now; only where a rollout starts, or after training, is the model in a state to go on from.

        :return: its file
        :raises RuntimeError: if ``learn()`` has not begun
        :raises OSError: if it cannot be written
        :raises CheckpointError: if something has a state that cannot be saved
        """
        if not hasattr(self, "model") or self._resumed is not None:
            raise RuntimeError(
                "save() must be called after learn() has begun: before, this callback knows no state to write"
            )
        keep = None if self.keep is None else self.keep + self._damaged
        path = write_checkpoint(self.root, self._state(), step=self.model.num_timesteps, keep=keep)
        self._saved_step, self._saved_time = self.model.num_timesteps, time.monotonic()
        self._failure = None
        if self.verbose:
            print(f"checkpoint {path}")
        return path

    def _try_to_save(self) -> None:
        """Save; where it cannot be written, warn and go on."""
        try:
            self.save()
        except OSError as error:
            self._failure = error
            self._saved_step, self._saved_time = self.model.num_timesteps, time.monotonic()
            kept = len(checkpoints(self.root))
            warnings.warn(
                f"no checkpoint at step {self.model.num_timesteps}: {error}. Training goes on, the {kept} older ones "
                "stay, and the next one is tried when it is due",
                stacklevel=2,
            )

    def _state(self) -> dict[str, Any]:
        env = self.model.get_env()
        assert env is not None
        return {
            "learner": get_learner_state(self.model),
            "env": get_env_state(env),
            "extras": {name: extra.get_checkpoint_state() for name, extra in self.extras.items()},
            "generators": get_generators(self.model),
            "log": {name: dict(getattr(self.logger, name)) for name in _LOG},
            "threads": th.get_num_threads(),
        }

    def _on_training_start(self) -> None:
        if self.parent is not None:
            inside = f"{type(self).__name__} is inside of {type(self.parent).__name__}"
            advice = "give it to learn() itself or in a list of callbacks, with every_steps or every_seconds"
            raise ValueError(f"{inside}, which does not tell it where rollouts start: {advice}")
        if self._resumed is not None and (
            self.locals["reset_num_timesteps"] or self.model.num_timesteps != self._saved_step
        ):
            raise ValueError(
                "learn() has set the model back to the start: after resume(), pass reset_num_timesteps=False"
            )
        self._saved_step, self._saved_time = self.model.num_timesteps, time.monotonic()
        self._start_time, self._within_rollout, self._signal = self.model.start_time, False, None
        self._failure = None
        check_tree(self._state())  # what cannot be saved is an error now, not after hours
        if not self._has_lock:  # training was left by an exception, otherwise
            self._lock.acquire()
            self._has_lock = True
        self._install_handlers()

    def _on_rollout_start(self) -> None:
        told = (
            self._signal
        )  # one that comes from here on is obeyed where the next rollout starts, after a checkpoint
        if self._resumed is not None:
            set_generators(
                self._resumed["generators"]
            )  # only now: since resume(), random numbers may have been drawn
            for name in _LOG:
                getattr(self.logger, name).clear()
                getattr(self.logger, name).update(self._resumed["log"][name])
            self._resumed = None
        else:
            steps, last, waited = (
                self.model.num_timesteps,
                self._saved_step,
                time.monotonic() - self._saved_time,
            )
            due = (
                self.every_steps is not None
                and steps // self.every_steps > last // self.every_steps
            )
            due |= self.every_seconds is not None and waited >= self.every_seconds
            if due or told is not None:
                self._try_to_save()
        self._within_rollout = True
        if told is not None:
            self._obey_signal()
            self._install_handlers()  # the process goes on

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._within_rollout = False

    def _on_training_end(self) -> None:
        try:
            if self._within_rollout:
                reason = "a callback has ended training within a rollout"
                warnings.warn(
                    f"no checkpoint at step {self.model.num_timesteps}: {reason}", stacklevel=2
                )
                if self._failure is not None:
                    raise self._failure
            elif self.model.num_timesteps > self._saved_step or self._failure is not None:
                self.save()
        finally:
            self._lock.release()
            self._has_lock = False
            # Not where another handler stands before this one, and passes to it what comes.
            if all(signal.getsignal(number) == self._on_signal for number in self._previous):
                self._restore_handlers()
        self._obey_signal()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._restore_handlers()  # a second one is not kept waiting
        while frame is not None and not (
            frame.f_code.co_name == "learn" and frame.f_locals.get("self") is self.model
        ):
            frame = frame.f_back
        if frame is not None and self.model.start_time == self._start_time:
            self._signal = number
        else:
            signal.raise_signal(
                number
            )  # this call of learn() has ended by an exception, nobody would look

    def _obey_signal(self) -> None:
        number, self._signal = self._signal, None
        if number is not None:
            signal.raise_signal(number)  # as if it came only now

    def _install_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python allows it nowhere else
        for number in (signal.SIGINT, signal.SIGTERM):
            # What is ignored stays ignored. One that an exception has left behind is there already.
            if number not in self._previous and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)

    def _restore_handlers(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous or signal.SIG_DFL)
        self._previous = {}
