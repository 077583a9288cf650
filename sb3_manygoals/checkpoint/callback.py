"""Write checkpoints while training goes on, and go on from them."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.checkpoint.folder import checkpoints, read_newest, write_checkpoint
from sb3_manygoals.checkpoint.learner import (
    get_generators,
    get_learner_state,
    set_algorithm_state,
    set_generators,
)
from sb3_manygoals.checkpoint.lock import Lock
from sb3_manygoals.checkpoint.signals import DeferredSignals
from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree
from sb3_manygoals.inner_callbacks import inner_callbacks
from sb3_manygoals.validation import check_count, check_number

# The attributes of a logger that hold what it has recorded and not yet written.
_UNWRITTEN_LOG = ("name_to_value", "name_to_count", "name_to_excluded")


@runtime_checkable
class Checkpointable(Protocol):
    """An object whose state can be saved and restored."""

    def get_checkpoint_state(self) -> Any:
        """
        Return the state of the object.

        :return: a tree of plain data and arrays. These may be the object's own, because they are
            written at once
        """

    def set_checkpoint_state(self, state: Any) -> None:
        """
        Restore a state.

        :param state: from :meth:`get_checkpoint_state` of an object that was built in the same way
        """


class ExactCheckpointCallback(BaseCallback):
    """
    Write checkpoints from which training goes on as if it had never stopped.

    A checkpoint holds the learner, its optimizer, replay memory and goals, the environments, all
    random generators, and what was not yet logged. On a CPU, with the same number of threads, the
    result is equal to the last bit. Call :meth:`resume` before ``learn()``, as
    ``docs/checkpoints.md`` shows. :mod:`sb3_manygoals.checkpoint.envs` says which environments can
    be saved.

    A checkpoint is written where a rollout starts, after all updates, by
    :func:`~sb3_manygoals.checkpoint.folder.write_checkpoint`. One more is written after training,
    unless a callback ended it within a rollout. When SIGTERM or SIGINT (Ctrl-C) tells the process
    to end, a last one is written first; a second signal ends the process at once.

    What can never be saved is refused before the first step, and so is a folder to which another
    process writes. If a checkpoint cannot be written, because the disk is full, a warning says so,
    the older ones stay, and training goes on. It ends with the error if the last checkpoint could
    not be written either.

    Give it to ``learn()`` itself or in a list of callbacks, after those whose state it saves.

    :param root: folder of the checkpoints, of one run only; made if it is missing
    :param every_steps: number of environment steps between two checkpoints; default: None, no
        checkpoints by steps
    :param every_seconds: seconds between two checkpoints; default: None, no checkpoints by time.
        If both are given, whichever comes first counts
    :param keep: how many of the newest checkpoints are kept; None keeps all; default: 3
    :param extras: by name, further objects whose state belongs to the run, such as callbacks and
        logs; default: None, no further objects
    :param verbose: 1 to print each checkpoint; default: 0, print nothing
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
        if extras is not None and not isinstance(extras, Mapping):
            raise TypeError(
                f"extras must be a dict of names and objects, got {extras!r}: "
                'for a list, {"first": ..., "second": ...}'
            )
        for name, extra in (extras or {}).items():
            if not isinstance(extra, Checkpointable):
                raise TypeError(
                    f"extras[{name!r}] must have get_checkpoint_state and set_checkpoint_state, "
                    f"got {extra!r}"
                )
        self.root = Path(root)
        self.extras = dict(extras or {})
        self.every_steps = every_steps
        self.every_seconds = every_seconds
        self.keep = None if keep is None else check_count("keep", keep, floats=True)
        # When the last checkpoint was written or tried.
        self._saved_step = 0
        self._saved_time = time.monotonic()
        # Why the last attempt to write failed, if it did.
        self._failure: OSError | None = None
        # How many checkpoints newer than the resumed one could not be read. They count in addition
        # to those that are kept, so that they do not push out the readable ones.
        self._n_unreadable = 0
        # What resume() leaves to the first rollout: the generators and the log.
        self._resumed: dict[str, Any] | None = None
        self._is_within_rollout = False
        self._signals = DeferredSignals()
        self._lock = Lock(self.root)
        self._has_lock = False

    def resume(self, model: BaseAlgorithm, fallback: bool = False) -> bool:
        """
        Restore a model, its environments and the extras from the newest checkpoint.

        The random generators of the process follow when training begins. A warning says so if the
        number of torch's threads is another one.

        :param model: built as the one that was saved, with its environment
        :param fallback: whether to take an older checkpoint, with a warning, if the newest cannot
            be read; default: False
        :return: whether there was a checkpoint
        :raises CheckpointError: if a checkpoint is damaged, written by another version, or of a
            model that was built otherwise. Build model, environments and extras anew then, because
            some of them may have been restored
        """
        found = read_newest(self.root, fallback=fallback)
        if found is None:
            return False
        path, state = found
        if state["extras"].keys() != self.extras.keys():
            raise CheckpointError(
                f"{path} has the extras {sorted(state['extras'])}, this run has "
                f"{sorted(self.extras)}"
            )
        if hasattr(model, "set_checkpoint_state"):
            model.set_checkpoint_state(state["learner"])
        else:
            set_algorithm_state(model, state["learner"]["algorithm"])
        assert model.env is not None
        set_env_state(model.env, state["env"])
        self._restore_extras(path, state["extras"])
        if state["threads"] != th.get_num_threads():
            warnings.warn(
                f"{path} was written with {state['threads']} threads of torch, this process has "
                f"{th.get_num_threads()}: results will not be equal to the last bit",
                stacklevel=2,
            )
        self._resumed = {name: state[name] for name in ("generators", "log")}
        self._n_unreadable = checkpoints(self.root).index(path)
        self._saved_step = model.num_timesteps
        if self.verbose:
            print(f"going on from {path}")
        return True

    def save(self) -> Path:
        """
        Write a checkpoint now.

        Only where a rollout starts, or after training, is the model in a state to go on from.

        :return: the file of the checkpoint
        :raises RuntimeError: if ``learn()`` has not begun
        :raises OSError: if it cannot be written
        :raises CheckpointError: if something has a state that cannot be saved
        """
        if not hasattr(self, "model") or self._resumed is not None:
            raise RuntimeError(
                "save() must be called after learn() has begun: before, this callback knows no "
                "state to write"
            )
        keep = None if self.keep is None else self.keep + self._n_unreadable
        path = write_checkpoint(self.root, self._state(), step=self.model.num_timesteps, keep=keep)
        self._start_interval()
        self._failure = None
        if self.verbose:
            print(f"checkpoint {path}")
        return path

    def _on_training_start(self) -> None:
        """Refuse what cannot work before the first step, and take the folder and the signals."""
        if self.parent is not None:
            raise ValueError(
                f"{type(self).__name__} is inside of {type(self.parent).__name__}, which does not "
                "tell it where rollouts start: give it to learn() itself or in a list of "
                "callbacks, with every_steps or every_seconds"
            )
        if self._resumed is not None and (
            self.locals["reset_num_timesteps"] or self.model.num_timesteps != self._saved_step
        ):
            raise ValueError(
                "learn() has set the model back to the start: after resume(), pass "
                "reset_num_timesteps=False"
            )
        self._start_interval()
        self._failure = None
        self._is_within_rollout = False
        self._warn_of_callbacks(self.locals["callback"])
        check_tree(self._state())
        # After a training that was left by an exception, this callback has the lock already.
        if not self._has_lock:
            self._lock.acquire()
            self._has_lock = True
        self._signals.start(self.model)

    def _warn_of_callbacks(self, callback: BaseCallback) -> None:
        """Warn of callbacks whose state belongs to the run, but would be lost or be too old."""
        saved = [id(extra) for extra in self.extras.values()]
        comes_after = False
        for one in inner_callbacks(callback):
            if one is self:
                comes_after = True
            elif isinstance(one, Checkpointable) and id(one) not in saved:
                warnings.warn(
                    f"checkpoints do not have the state of {type(one).__name__}, unless another "
                    "extra has it, so a run that is resumed from them will differ from one without "
                    f'a break: give it in extras, {{"name": callback}}, to {type(self).__name__}',
                    stacklevel=2,
                )
            elif isinstance(one, Checkpointable) and comes_after:
                warnings.warn(
                    f"{type(one).__name__} comes after {type(self).__name__} in the list of "
                    "callbacks, so checkpoints do not have what it does when a rollout starts or "
                    "training ends: put it before",
                    stacklevel=2,
                )

    def _on_rollout_start(self) -> None:
        """Write a checkpoint if one is due or a signal waits. Then the signal ends the process."""
        # A signal that comes from here on waits for the next rollout, and for a checkpoint there.
        is_told_to_end = self._signals.pending is not None
        if self._resumed is not None:
            self._finish_resuming(self._resumed)
        elif is_told_to_end or self._is_due():
            self._try_to_save()
        self._is_within_rollout = True
        if is_told_to_end:
            self._signals.raise_pending()
            # The program's own handler has not ended training.
            self._signals.go_on()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._is_within_rollout = False

    def _on_training_end(self) -> None:
        """Write the last checkpoint, and give the folder and the signals back."""
        try:
            self._save_last()
        finally:
            self._lock.release()
            self._has_lock = False
            self._signals.stop()
        self._signals.raise_pending()

    def _state(self) -> dict[str, Any]:
        """Return the state of the run; arrays in it may be those in use."""
        env = self.model.get_env()
        assert env is not None
        return {
            "learner": get_learner_state(self.model),
            "env": get_env_state(env),
            "extras": {name: extra.get_checkpoint_state() for name, extra in self.extras.items()},
            "generators": get_generators(self.model),
            "log": {name: dict(getattr(self.logger, name)) for name in _UNWRITTEN_LOG},
            "threads": th.get_num_threads(),
        }

    def _restore_extras(self, path: Path, states: dict[str, Any]) -> None:
        """Restore the extras, and turn what their own code raises into a CheckpointError."""
        for name, extra in self.extras.items():
            try:
                extra.set_checkpoint_state(states[name])
            except (TypeError, ValueError, KeyError) as error:
                raise CheckpointError(
                    f"{path}: the state does not fit extras[{name!r}]: {error!r}"
                ) from error

    def _finish_resuming(self, resumed: dict[str, Any]) -> None:
        """Restore generators and log, now that nothing else draws numbers before the rollout."""
        set_generators(resumed["generators"])
        for name in _UNWRITTEN_LOG:
            values = getattr(self.logger, name)
            values.clear()
            values.update(resumed["log"][name])
        self._resumed = None

    def _is_due(self) -> bool:
        """Return whether the steps or the seconds between two checkpoints have passed."""
        is_due = False
        if self.every_steps is not None:
            saved_intervals = self._saved_step // self.every_steps
            is_due = self.model.num_timesteps // self.every_steps > saved_intervals
        if self.every_seconds is not None:
            is_due |= time.monotonic() - self._saved_time >= self.every_seconds
        return is_due

    def _start_interval(self) -> None:
        """Count steps and seconds to the next checkpoint from now on."""
        self._saved_step = self.model.num_timesteps
        self._saved_time = time.monotonic()

    def _try_to_save(self) -> None:
        """Save; if the checkpoint cannot be written, warn and go on."""
        try:
            self.save()
        except OSError as error:
            self._failure = error
            self._start_interval()
            warnings.warn(
                f"no checkpoint at step {self.model.num_timesteps}: {error}. Training goes on, the "
                f"{len(checkpoints(self.root))} older ones stay, and the next one is tried when it "
                "is due",
                stacklevel=2,
            )

    def _save_last(self) -> None:
        """Save after training, or say why that is not possible."""
        if self._is_within_rollout:
            warnings.warn(
                f"no checkpoint at step {self.model.num_timesteps}: a callback has ended training "
                "within a rollout",
                stacklevel=3,
            )
            if self._failure is not None:
                raise self._failure
        elif self.model.num_timesteps > self._saved_step or self._failure is not None:
            self.save()
