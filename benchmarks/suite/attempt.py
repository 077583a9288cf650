"""One attempt at a run, in this process or in a child."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from filelock import FileLock, Timeout

from benchmarks.suite.spec import Result, Spec, SuiteError, read_result

BUSY = 75
"""Exit status if another process holds the run: EX_TEMPFAIL of sysexits.h."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that tell a process to end."""

# The signal that a terminal was closed. Windows has none.
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)


class Stopped(SystemExit):
    """Raised when a signal tells the process to end."""


class Busy(Exception):
    """Raised when another process holds the run."""


def attempt(spec: Spec, folder: Path, threads: int = 1, wait: float = 30.0) -> Result:
    """
    Carry out a run, or go on with it, and write its result.

    A finished run is only read. A lock of the operating system is held meanwhile. It is never
    stale, and on a shared disk it holds between machines.

    :param spec: the run
    :param folder: its folder
    :param threads: torch threads
    :param wait: seconds to wait for the lock
    :return: the result of the run
    :raises Busy: if another process holds the lock
    :raises SuiteError: if the function of the run is not there, or its result is damaged
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "attempts.jsonl"
    lock = FileLock(folder / "lock")
    try:
        held = lock.acquire(timeout=wait)
    except Timeout:
        holders = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        raise Busy(
            f"{folder} is in the hands of another process: {holders[-1] if holders else 'unknown'}"
        ) from None
    with held:
        if (folder / "result.json").exists():
            return read_result(folder)
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        record = {"started": started, "host": socket.gethostname(), "pid": os.getpid()}
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        start = time.monotonic()
        function = _function(spec.carry_out)
        # If PyTorch is imported later, it has the threads that in_child sets by OMP_NUM_THREADS.
        torch: Any = sys.modules.get("torch")
        before = torch and torch.get_num_threads()
        try:
            if torch:
                torch.set_num_threads(threads)
            values = function(spec, folder)
        finally:
            if torch:
                torch.set_num_threads(before)
        attempts = len(log.read_text(encoding="utf-8").splitlines())
        result = Result(spec, values, time.monotonic() - start, attempts)
        result.write(folder)
        return result


def _function(path: str) -> Callable[[Spec, Path], Mapping[str, Any]]:
    """Return the function that a path names."""
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SuiteError(f"there is no {path}: {error}") from error
    if not callable(function):
        raise SuiteError(f"{path} is not callable: {function!r}")
    return function  # type: ignore[no-any-return]


def attempted(
    spec: Spec, folder: Path, threads: int = 1, wait: float = 30.0, log: TextIO | None = None
) -> int:
    """
    Make an :func:`attempt`, and write what went wrong to a log.

    :param spec: the run
    :param folder: its folder
    :param threads: torch threads
    :param wait: seconds to wait for the lock
    :param log: a text file; by default stderr
    :return: exit status: 0 if the run has finished, :data:`BUSY` if another process holds it, or 1
        if it has failed
    :raises Stopped: if a signal told this process to end
    """
    try:
        attempt(spec, folder, threads, wait)
    except Busy as busy:
        print(busy, file=log or sys.stderr)
        return BUSY
    except Stopped:
        raise
    except (Exception, SystemExit):  # After an exit with status 0 there is no result either.
        traceback.print_exc(file=log)
        return 1
    return 0


def in_child(
    spec: Spec,
    folder: Path,
    threads: int = 1,
    wait: float = 30.0,
    stop: threading.Event | None = None,
) -> int:
    """
    Make an attempt in a child process, which logs to ``log.txt``.

    The child is told to end (SIGTERM) when ``stop`` is set or this function is left by an
    exception. It ends by itself when this process has died.

    :param spec: the run
    :param folder: its folder
    :param threads: torch threads
    :param wait: seconds to wait for the lock
    :param stop: event that tells the child to end; by default nothing does
    :return: exit status of the child: 0 if the run has finished, :data:`BUSY` if another process
        holds it, or minus the number of a signal
    """
    # The child reads the spec from its folder, and imports what this process can.
    spec.write(folder.parent)
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    code = "from benchmarks.suite.attempt import main; main()"
    command = [sys.executable, "-c", code, str(folder.resolve()), str(threads), str(wait)]
    variables = os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        # In its own session Ctrl-C does not reach the child, which would take this process' SIGTERM
        # for a second signal.
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=variables,
            start_new_session=True,
        )
    try:
        while child.poll() is None and not (stop is not None and stop.is_set()):
            time.sleep(0.05)
    finally:
        if child.poll() is None:
            child.terminate()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
    return child.returncode


def _end_with_parent() -> None:
    """
    End this process when its parent has died.

    Nothing is written to the pipe; it ends when the parent does, even by ``kill -9``.
    """
    # sys.stdin.read would hold a lock that the interpreter needs when it ends.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def leave(number: int, frame: FrameType | None) -> None:
    """
    Handle a signal: raise :class:`Stopped`, so that the process cleans up.

    A second signal ends the process at once, unless it says that a terminal was closed.

    :param number: number of the signal
    :param frame: stack frame, which has no effect
    :raises Stopped: always
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    if _HANGUP is not None:
        # The system and the shell may both say that a terminal was closed.
        signal.signal(_HANGUP, signal.SIG_IGN)
    raise Stopped(128 + number)


@contextlib.contextmanager
def obeying_signals() -> Iterator[None]:
    """
    Let signals that tell the process to end raise an exception, see :func:`leave`.

    A terminal that is closed is one of them, unless ``nohup`` or the like ignores it.
    """
    numbers = list(SIGNALS)
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        numbers.append(_HANGUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """Make an attempt in a child of :func:`in_child`; see the command there for its arguments."""
    folder = Path(sys.argv[1])
    threads = int(sys.argv[2])
    wait = float(sys.argv[3])
    for number in SIGNALS:
        signal.signal(number, leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spec = Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8")))
    sys.exit(attempted(spec, folder, threads, wait))
