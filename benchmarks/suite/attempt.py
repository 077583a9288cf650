"""One attempt at a run, in this process or in a child."""

from __future__ import annotations

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
from collections.abc import Callable, Mapping
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


class Stopped(SystemExit):
    """A signal told the process to end."""


class Busy(Exception):
    """Another process holds the run."""


def attempt(spec: Spec, folder: Path, threads: int = 1, wait: float = 30.0) -> Result:
    """
    Carry out a run, or go on with it, unless it has finished, and write its result. A lock of the operating system, which is
    never stale and on a shared disk holds between machines, is held meanwhile; Busy if another holds it for ``wait`` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, lock = folder / "attempts.jsonl", FileLock(folder / "lock")
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
        with log.open("a", encoding="utf-8") as lines:
            lines.write(
                json.dumps({"started": started, "host": socket.gethostname(), "pid": os.getpid()})
                + "\n"
            )
        start, function = time.monotonic(), _function(spec.carry_out)
        torch: Any = sys.modules.get(
            "torch"
        )  # if it comes later, OMP_NUM_THREADS of in_child counts
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
    """The exit status of an :func:`attempt`, :data:`BUSY` among them; what went wrong is written to ``log``, or stderr."""
    try:
        attempt(spec, folder, threads, wait)
    except Busy as busy:
        print(busy, file=log or sys.stderr)
        return BUSY
    except Stopped:
        raise
    except (Exception, SystemExit):  # even with status 0: there is no result
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
    Make an attempt in a child process, which logs to ``log.txt``. The child is told to end (SIGTERM) when ``stop`` is set or
    this function is left by an exception, and ends by itself when this process has died. Returns its exit status: 0 if the run
    has finished, :data:`BUSY`, or minus the number of a signal.
    """
    spec.write(folder.parent)  # where the child reads it
    path = os.pathsep.join(
        entry or os.getcwd() for entry in sys.path
    )  # the child imports what this process can
    code = "from benchmarks.suite.attempt import main; main()"
    command = [sys.executable, "-c", code, str(folder.resolve()), str(threads), str(wait)]
    variables = os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
    }
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        # In its own session Ctrl-C does not reach the child, which would take this process' SIGTERM for a second signal.
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
    """Nothing is written to the pipe; it ends when the parent does, even by ``kill -9``."""
    os.read(
        sys.stdin.fileno(), 1
    )  # sys.stdin.read would hold a lock that the interpreter needs when it ends
    os.kill(os.getpid(), signal.SIGTERM)


def leave(number: int, frame: FrameType | None) -> None:
    """Signal handler: raise :class:`Stopped`, so that the process cleans up. A second signal ends it at once."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Stopped(128 + number)


def main() -> None:
    """What :func:`in_child` starts; its arguments are the folder, the threads and the seconds to wait."""
    folder, threads, wait = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in SIGNALS:
        signal.signal(number, leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spec = Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8")))
    sys.exit(attempted(spec, folder, threads, wait))
