"""One attempt at a run, in this process or in one of its own: ``python -m benchmarks.suite.attempt FOLDER``."""

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
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from benchmarks.suite.spec import Result, Spec, SuiteError, read_result, write_whole

BUSY = 75
"""Exit status where another process has the run in its hands: EX_TEMPFAIL of sysexits.h."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Those that tell a process to end."""

CarryOut: TypeAlias = Callable[[Spec, Path], Mapping[str, Any]]
"""What carries out runs: see :class:`~benchmarks.suite.spec.Spec`."""


class Stopped(SystemExit):
    """The process was told to end by a signal."""


class Busy(Exception):
    """Another process has the run in its hands."""


def attempt(spec: Spec, folder: Path, threads: int = 1, wait: float = 30.0) -> Result:
    """
    Carry out a run, or go on with it, unless it has finished, and write its result.

    While it lasts the run's lock is held, one of the operating system's (``flock``): whoever is killed no longer holds it, so
    that there are no stale ones to recognise, and on a shared disk it holds between machines.

    :param spec: the run
    :param folder: of the run
    :param threads: of torch, and of what else asks OMP_NUM_THREADS; the last bits of results depend on it
    :param wait: seconds to wait for another process that has the run in its hands, as one may that was told to end
    :return: what came out
    :raises Busy: if it did not let go of it
    :raises SuiteError: if there is no such function, or it returns no plain JSON
    :raises Exception: whatever the function raises
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, lock = folder / "attempts.jsonl", FileLock(folder / "lock")
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        holders = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        raise Busy(f"{folder} is in the hands of another process: {holders[-1] if holders else 'unknown'}") from None
    try:
        if (folder / "result.json").exists():
            return read_result(folder)
        write_whole(folder / "spec.json", json.dumps(asdict(spec), indent=2) + "\n")
        who = {"started": datetime.now().astimezone().isoformat(timespec="seconds"), "host": socket.gethostname()}
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**who, "pid": os.getpid()}) + "\n")
        start = time.monotonic()
        with _prepared(spec.carry_out, threads) as function:
            values = function(spec, folder)
        attempts = len(log.read_text(encoding="utf-8").splitlines())
        result = Result(spec, values, time.monotonic() - start, attempts)
        result.write(folder)
        return result
    finally:
        lock.release()


@contextlib.contextmanager
def _prepared(path: str, threads: int) -> Iterator[CarryOut]:
    """The function, and meanwhile so many threads for torch: set where its import is done, and before that by a variable."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        function = _function(path)
        torch = sys.modules.get("torch")
        if torch is None:
            yield function
            return
        of_torch = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield function
        finally:
            torch.set_num_threads(of_torch)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _function(path: str) -> CarryOut:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SuiteError(f"there is no {path}: {error}") from error
    if not callable(function):
        raise SuiteError(f"{path} is not callable: {function!r}")
    return function  # type: ignore[no-any-return]


def in_child(spec: Spec, folder: Path, threads: int = 1, wait: float = 30.0, stop: threading.Event | None = None) -> int:
    """
    :func:`attempt` in a process of its own. Its output goes to ``log.txt``. It is told to end (SIGTERM) when ``stop`` is set,
    when this function is left by an exception, and by itself when this process is no more.

    :param spec: the run
    :param folder: of the run
    :param threads: of torch
    :param wait: for the lock, in seconds
    :param stop: to be set where it should end
    :return: its exit status, 0 if the run has finished, :data:`BUSY`, or minus a signal
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "spec.json", json.dumps(asdict(spec), indent=2) + "\n")
    # What can be imported here can be there: the function's module is found by the same path.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-m", "benchmarks.suite.attempt", str(folder.resolve()), str(threads), str(wait)]
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        # A session of its own: Ctrl-C in a terminal comes to all of its session, and would come once more from here, and a
        # second signal is no longer waited for.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    told = False
    try:
        while child.poll() is None:
            if stop is not None and stop.is_set() and not told:
                child.terminate()
                told = True
            time.sleep(0.05)
        return child.returncode
    finally:
        if child.poll() is None and not told:
            child.terminate()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()


def _end_with_parent() -> None:
    """Nothing is ever written to the pipe; it ends when the process at its other end does, even by ``kill -9``."""
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock the interpreter wants back when it ends
    os.kill(os.getpid(), signal.SIGTERM)


def leave(number: int, frame: FrameType | None) -> None:
    """
    A handler of signals: the process ends, by an exception, so that things can be put in order. A second signal is not kept
    waiting.

    :param number: of the signal
    :param frame: where it came
    :raises Stopped: always
    """
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    raise Stopped(128 + number)


def _main() -> None:
    folder, threads, wait = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for number in SIGNALS:
        signal.signal(number, leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        attempt(Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8"))), folder, threads, wait)
    except Busy as busy:
        print(busy, file=sys.stderr)
        sys.exit(BUSY)
    except Stopped:
        raise
    except (Exception, SystemExit):  # even with status 0: without a result the run has not finished
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    _main()
