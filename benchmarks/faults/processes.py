"""Processes that can be killed at any moment. They are forked, so they import nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Tell = Callable[[str], None]
"""Sends a word to the process that waits for it."""

PATIENCE_S = 120.0
"""A process that says nothing for so many seconds is taken to hang."""


@dataclass(frozen=True)
class Outcome:
    """How a function ended that another process called."""

    value: Any = None
    """What it returned."""
    error: str = ""
    """Its error, with the type. Empty if there was none."""
    warnings: tuple[str, ...] = ()
    """The texts of its warnings to the user."""

    @property
    def said(self) -> str:
        """Return the error and the warnings as one text."""
        return " ".join([self.error, *self.warnings])


class Child:
    """
    A forked process that calls a function.

    :param function: what it calls. The function gets a :data:`Tell`
    """

    def __init__(self, function: Callable[[Tell], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_call, args=(function, theirs))
        self._process.start()
        # Only the child has the other end now, so the pipe ends with the child.
        theirs.close()

    def hear(self) -> str | Outcome:
        """
        Wait for what the process says next.

        :return: a word, or the outcome. A process that dies or hangs has an outcome, too
        """
        if not self._connection.poll(PATIENCE_S):
            self.kill()
            return Outcome(error=f"the process said nothing for {PATIENCE_S:.0f} seconds")
        try:
            said: str | Outcome = self._connection.recv()
        except (EOFError, OSError):
            said = Outcome(error="the process died")
        if isinstance(said, Outcome):
            self._process.join()
        return said

    def outcome(self) -> Outcome:
        """
        Wait for the end of the process.

        :return: how its function ended
        """
        said = self.hear()
        while isinstance(said, str):
            said = self.hear()
        return said

    def kill(self) -> list[str | Outcome]:
        """
        Kill the process as ``kill -9`` does.

        :return: what it has said and nobody has heard yet
        """
        self._process.kill()
        self._process.join()
        said = []
        # The last thing may have been said in part.
        with contextlib.suppress(EOFError, OSError):
            while self._connection.poll():
                said.append(self._connection.recv())
        return said


def call(function: Callable[[], Any]) -> Outcome:
    """
    Call a function in another process.

    :param function: what is called
    :return: how it ended
    """
    return Child(lambda tell: function()).outcome()


def _call(function: Callable[[Tell], Any], connection: Connection) -> None:
    """Call a function, and send how it ended."""
    # Ctrl-C is for the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    value = None
    error = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(connection.send)
        except BaseException as raised:
            error = "".join(traceback.format_exception_only(raised)).strip()
    texts = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    connection.send(Outcome(value, error, tuple(texts)))
