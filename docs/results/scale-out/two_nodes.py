"""
Carry out a small suite on two Ray nodes of this machine, and lose the second node on the way.

The runs are compared with those of one process: weights, the optimizer and curves, bit by bit. Run
it in the folder of the project, on Linux, with the extras benchmarks, atari and ray:
OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/scale-out/two_nodes.py runs/two-nodes
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch as th

HEAD = "127.0.0.2"
SECOND = "127.0.0.3"
RAY = str(Path(sys.executable).with_name("ray"))
# Each node has one core, and so one run at a time.
START = [RAY, "start", "--block", "--num-cpus=1", "--object-store-memory=200000000"]
STUDY = ["games-study", "--only", "a2c", "many-goals", "--seeds", "2", "--steps", "4000"]
GAMES = ["--games", "Breakout"]
# Rows of the log after which a node is lost. A run has fifty.
ROWS_BEFORE_LOSS = 20
# Columns of logs that depend on the machine and not on the run.
OF_TIME = ["time/time_elapsed", "time/fps", "training_seconds"]


class Nodes:
    """A Ray cluster of two nodes, each of which has one core."""

    silent: Sequence[psutil.Process] = ()

    def __init__(self) -> None:
        self.head = self._start("--head", f"--node-ip-address={HEAD}", "--include-dashboard=false")
        self.second = self._start(f"--address={HEAD}:6379", f"--node-ip-address={SECOND}")

    def _start(self, *options: str) -> psutil.Process:
        """Start a node, and return its first process, of which all others come."""
        quiet = subprocess.DEVNULL
        started = psutil.Process(subprocess.Popen([*START, *options], stdout=quiet).pid)
        while not self._raylets(started):
            time.sleep(1)
        # It answers a little later.
        time.sleep(10)
        return started

    @staticmethod
    def _raylets(node: psutil.Process) -> list[psutil.Process]:
        """Return the processes that make a node a node: one, once it has started."""
        return [each for each in node.children(recursive=True) if each.name() == "raylet"]

    def _processes(self) -> list[psutil.Process]:
        """Return all processes of the second node, those of its runs included."""
        return [*self.second.children(recursive=True), self.second]

    def lose_raylet(self) -> None:
        """Kill the process that makes the second node a node. Its other processes notice it."""
        for process in self._raylets(self.second):
            process.kill()

    def lose_power(self) -> None:
        """Kill all processes of the second node at once."""
        for process in self._processes():
            process.kill()

    def fall_silent(self) -> None:
        """Stop all processes of the second node, which keep their connections and locks."""
        self.silent = self._processes()
        for process in self.silent:
            process.suspend()

    def speak_again(self) -> None:
        """Let stopped processes go on: they find that they were given up, and end."""
        for process in self.silent:
            process.resume()

    def stop(self) -> None:
        """End both nodes, and wait for them."""
        started = [self.second, self.head]
        left = [each for each in started if each.is_running()]
        left += [child for each in left for child in each.children(recursive=True)]
        for process in left:
            if process.is_running():
                process.terminate()
        _, left = psutil.wait_procs(left, timeout=20)
        for process in left:
            process.kill()


def carry_out(root: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the suite. What it says is in a file beside its folder."""
    command = [sys.executable, "-m", "benchmarks", *STUDY, *GAMES, "--root", str(root), *options]
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".txt").open("wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


def rows_of(run: Path) -> int:
    """Return the number of rows in the log of a run."""
    return sum(len(log.read_text().splitlines()) - 1 for log in run.glob("*/run/progress.csv"))


def step_of(run: Path) -> int:
    """Return the step of a run's newest checkpoint, 0 before there is one."""
    names = [path.name for path in run.glob("*/run/checkpoints/*.pt")]
    return max((int(name.split("-")[1].removeprefix("step")) for name in names), default=0)


def node_of(pid: int) -> str:
    """Return the node whose raylet a process comes from."""
    for process in psutil.Process(pid).parents():
        if process.name() == "raylet":
            is_second = any(word.endswith(f"={SECOND}") for word in process.cmdline())
            return "second" if is_second else "head"
    return "none"


class Watch:
    """
    Notes where the attempts at each run are made, and loses the second node on the way.

    :param root: the folder of the suite
    :param lose: loses the node, once its run has made so many steps
    :param after: called once the suite has noticed that
    """

    def __init__(
        self,
        root: Path,
        lose: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.root = root
        self.attempts: dict[str, list[str]] = {}
        self.lost = ""
        self.noticed_after: float | None = None
        self._lose = lose
        self._after = after
        self._lost_at = 0.0
        self._seen: set[int] = set()

    def until_end(self, suite: subprocess.Popen[bytes]) -> None:
        """Look again and again, until the suite has ended."""
        while suite.poll() is None:
            time.sleep(0.05)
            self._note_attempts()
            if self._lose is not None:
                self._lose_at_the_right_step()
            elif self.lost and self.noticed_after is None:
                self._note_what_is_noticed()

    def _note_attempts(self) -> None:
        """Note the node of each new attempt, and the step that it goes on from."""
        for log in self.root.glob("*/attempts.jsonl"):
            for line in log.read_text().splitlines():
                pid = json.loads(line)["pid"]
                if pid not in self._seen:
                    self._seen.add(pid)
                    attempt = f"{node_of(pid)} from {step_of(log.parent):,}"
                    self.attempts.setdefault(log.parent.name, []).append(attempt)

    def _lose_at_the_right_step(self) -> None:
        for run, attempts in self.attempts.items():
            is_on_second = attempts[-1].startswith("second")
            if is_on_second and rows_of(self.root / run) >= ROWS_BEFORE_LOSS and self._lose:
                self._lose()
                self._lose = None
                self._lost_at = time.monotonic()
                self.lost = run

    def _note_what_is_noticed(self) -> None:
        if f"again: {self.lost}" in self.root.with_suffix(".txt").read_text():
            self.noticed_after = time.monotonic() - self._lost_at
            if self._after is not None:
                self._after()


def learned(run: Path) -> dict[str, Any]:
    """Return the weights and the optimizers of a run."""
    (path,) = run.glob("*/run/model.zip")
    with zipfile.ZipFile(path) as file:
        names = [name for name in file.namelist() if name.endswith(".pth")]
        return {name: th.load(file.open(name), weights_only=True) for name in sorted(names)}


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two nested containers of tensors and plain data are equal bit by bit."""
    if isinstance(first, th.Tensor):
        return th.equal(first, second)
    if isinstance(first, dict):
        alike = first.keys() == second.keys()
        return alike and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        pairs = zip(first, second, strict=True)
        return len(first) == len(second) and all(are_equal(*pair) for pair in pairs)
    return bool(first == second)


def logs(run: Path) -> list[str]:
    """Return the curve of a run and its log, without columns of time. SB3 orders them by chance."""
    found = []
    for name in ("curve.csv", "progress.csv"):
        (path,) = run.glob(f"*/run/{name}")
        table = pd.read_csv(path, dtype=str).drop(columns=OF_TIME, errors="ignore")
        found.append(table[sorted(table)].to_csv(index=False))
    return found


WAYS = ("both nodes stay", "raylet killed", "all processes killed", "all processes stopped")
"""What becomes of the second node."""


def tried(way: str, root: Path, alone: Path) -> list[dict[str, Any]]:
    """Carry the suite out in one way, and compare its runs with those of one process."""
    folder = root / way.replace(" ", "-")
    nodes = Nodes()
    lose = dict(
        zip(WAYS[1:], (nodes.lose_raylet, nodes.lose_power, nodes.fall_silent), strict=True)
    )
    watch = Watch(folder, lose.get(way), nodes.speak_again)
    try:
        options = ["--engine", "ray", "--address", f"{HEAD}:6379", "--workers", "2"]
        watch.until_end(carry_out(folder, *options))
    finally:
        nodes.stop()
    return [
        {
            "second_node": way,
            "run": run.rsplit("-", 1)[0],
            "attempts": "; ".join(watch.attempts[run]),
            "noticed_after_seconds": round(watch.noticed_after or 0) if run == watch.lost else "",
            "weights_equal": are_equal(learned(alone / run), learned(folder / run)),
            "logs_equal": logs(alone / run) == logs(folder / run),
        }
        for run in sorted(path.name for path in alone.iterdir() if path.is_dir())
    ]


def main() -> None:
    """Carry the suite out in each way, and write ``two-nodes.csv``."""
    root = Path(sys.argv[1])
    # All processes of a cluster show the same token, a file in ~/.ray.
    subprocess.run([RAY, "get-auth-token", "--generate"], stdout=subprocess.DEVNULL, check=True)
    os.environ["RAY_AUTH_MODE"] = "token"
    alone = root / "one-process"
    Watch(alone).until_end(carry_out(alone))
    rows = [row for way in WAYS for row in tried(way, root, alone)]
    pd.DataFrame(rows).to_csv(root / "two-nodes.csv", index=False)


if __name__ == "__main__":
    main()
