"""Signals that wait until a checkpoint is written."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

_Handler = Callable[[int, FrameType | None], Any] | int | None


class DeferredSignals:
    """
    Let SIGINT (Ctrl-C) and SIGTERM wait while a model trains.

    The first signal is noted as :attr:`pending`, and :meth:`raise_pending` raises it again for the
    handlers that stood there before. A second one is not kept waiting. Signals that the process
    ignores stay ignored.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        """The number of the signal that waits, or None."""
        self._previous_handlers: dict[int, _Handler] = {}
        self._model: BaseAlgorithm | None = None
        self._start_time = 0.0

    def start(self, model: BaseAlgorithm) -> None:
        """
        Let signals wait from now on, until :meth:`stop`.

        :param model: the model whose ``learn()`` runs now. Signals that come after this call of
            ``learn()`` do not wait, even if it was left by an exception
        """
        self.pending = None
        self._model = model
        self._start_time = model.start_time
        self._install()

    def stop(self) -> None:
        """
        Put the previous handlers back.

        Where another handler was put before this one, and passes on to it what comes, nothing can
        be put back without removing the other one, and nothing is.
        """
        if all(signal.getsignal(number) == self._note for number in self._previous_handlers):
            self._restore()

    def raise_pending(self) -> None:
        """Raise the signal that waits, if there is one, as if it came only now."""
        number = self.pending
        self.pending = None
        if number is not None:
            signal.raise_signal(number)

    def go_on(self) -> None:
        """Let signals wait again after :meth:`raise_pending`, where that has not ended training."""
        self._install()

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note it during training, else leave it to the previous handler."""
        self._restore()
        if self._is_training(frame):
            self.pending = number
        else:
            signal.raise_signal(number)

    def _is_training(self, frame: FrameType | None) -> bool:
        """
        Return whether the code that a signal interrupts belongs to the call of ``learn()``.

        SB3 tells callbacks when ``learn()`` returns, but nobody tells them when an exception leaves
        it. A flag would then stay set, and a signal wait for ever. The stack is always right.
        """
        assert self._model is not None
        if self._model.start_time != self._start_time:
            # Another call of learn() has begun since.
            return False
        for caller, _ in traceback.walk_stack(frame):
            if caller.f_code.co_name == "learn" and caller.f_locals.get("self") is self._model:
                return True
        return False

    def _install(self) -> None:
        """Install the handlers, where they are not left from a training that an exception ended."""
        # Python allows it only in the main thread.
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            if number not in self._previous_handlers and not is_ignored:
                self._previous_handlers[number] = signal.signal(number, self._note)

    def _restore(self) -> None:
        for number, previous in self._previous_handlers.items():
            # A handler that was not installed by Python cannot be put back.
            signal.signal(number, previous or signal.SIG_DFL)
        self._previous_handlers = {}
