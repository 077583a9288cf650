"""Functions run in child processes, to be killed at will."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class Child:
    """
    A forked child process that runs a function: it has all that was imported, so starting takes milliseconds. What the
    function returns, JSON-able, is kept in a file; its output goes nowhere.

    :param function: to run; it is given a function that sends a word to the parent
    :param report: file for the result or the error
    """

    def __init__(self, function: Callable[[Callable[[str], None]], Any], report: Path) -> None:
        self.report = report
        report.unlink(missing_ok=True)
        self._pipe, theirs = os.pipe()
        self._heard = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._pipe)
            _run(function, report, theirs)
        os.close(theirs)

    def next_word(self, timeout: float = 60.0) -> str | None:
        """
        :param timeout: in seconds; 0: only what has come already
        :return: the next word that the child has sent, None if there is none
        """
        until = time.monotonic() + timeout
        while b"\n" not in self._heard:
            if not select.select([self._pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            data = os.read(self._pipe, 4096)
            if not data:
                return None
            self._heard += data
        word, self._heard = self._heard.split(b"\n", 1)
        return word.decode()

    def ended(self) -> bool:
        """:return: whether it has come to an end by itself; it can still be killed, to no effect"""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does, and everything is gone that was not on the disk's side of the kernel."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def result(self, timeout: float = 120.0) -> dict[str, Any]:
        """
        Wait for its end.

        :param timeout: in seconds; then it is killed
        :return: ``{"value": ...}``, ``{"error": ...}``, or ``{"died": ...}`` where it left nothing
        """
        until = time.monotonic() + timeout
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                self.kill()
                return {"died": f"no end after {timeout:.0f} s"}
            time.sleep(0.002)
        os.close(self._pipe)
        if not self.report.exists():
            return {"died": "without a word"}
        found: dict[str, Any] = json.loads(self.report.read_text(encoding="utf-8"))
        return found

    def _reap(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._pipe)


def in_child(function: Callable[[], Any], report: Path, timeout: float = 120.0) -> dict[str, Any]:
    """
    :param function: to run in a child process
    :param report: file for its result
    :param timeout: in seconds
    :return: as :meth:`Child.result`
    """
    return Child(lambda tell: function(), report).result(timeout)


def _send(pipe: int, word: str) -> None:
    os.write(pipe, f"{word}\n".encode())


def _run(function: Callable[[Callable[[str], None]], Any], report: Path, pipe: int) -> None:
    """The whole life of a child."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                os.dup2(nowhere, stream.fileno())
        try:
            found = {"value": function(partial(_send, pipe))}
        except BaseException as error:  # whatever it is, it is looked for
            text = "".join(traceback.format_exception_only(error)).strip()
            found = {"error": text, "type": type(error).__name__}
        staged = report.with_name(report.name + ".tmp")
        staged.write_text(json.dumps(found), encoding="utf-8")
        staged.replace(report)
    finally:
        os._exit(0)
