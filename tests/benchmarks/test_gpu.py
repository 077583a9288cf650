"""The steps that a GPU takes, rehearsed without one."""

import os
import signal
import time

import pytest
import torch as th

from benchmarks import gpu
from benchmarks.gpu import GPUConfig, steps
from benchmarks.mastery import MasteryConfig
from benchmarks.speed.update import UpdateConfig
from benchmarks.suite.attempt import Stopped, obeying_signals
from benchmarks.worlds import SettingError
from tests import ROOT
from tests.benchmarks.command_line import command, rows_of


def test_every_step_is_a_command_that_exists(tmp_path, monkeypatch):
    seen = []
    timed = []
    monkeypatch.setattr(MasteryConfig, "run", lambda config: seen.append(config))
    monkeypatch.setattr(UpdateConfig, "run", lambda config: timed.append(config))
    found = steps(GPUConfig(device="cpu", scale=0.01), tmp_path)
    assert list(found) == ["tests", "update", "default", "long"]
    for line in [*found["update"], *found["default"], *found["long"]]:
        assert line[0] == "benchmarks"
        assert command(*line[1:]).returncode == 0
    assert [(config.threads, config.rounds) for config in timed] == [((1,), 3)]
    (tests,) = found["tests"]
    assert tests[0] == "pytest"
    assert (ROOT / tests[-1]).is_dir()
    assert [(run.device, run.total_steps) for run in seen] == [
        ("cpu", n) for n in [2_000] * 2 + [160_000] + [30_000] * 8
    ]
    assert (seen[2].map, seen[2].agent) == ("mansion", "default")
    assert len({config.agent_kwargs for config in seen[3:]}) == 8


def test_the_default_is_measured_beside_a_cpu(tmp_path):
    found = steps(GPUConfig(device="cuda"), tmp_path)
    devices = [line[line.index("--device") + 1] for line in found["default"]]
    assert devices == ["cuda", "cpu"]


def test_what_does_not_end_in_time_is_stopped_and_said(tmp_path, monkeypatch, capsys):
    long = ("timeit", "-n1", "-r1", "import time; time.sleep(60)")
    deaf = (*long[:3], "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", long[3])
    monkeypatch.setattr(
        gpu,
        "steps",
        lambda config, runs: {
            "quick": [("this",)],
            "slow": [long, long, deaf],
            "late": [("this",)],
        },
    )
    monkeypatch.setattr(gpu, "GRACE", 1.0)
    began = time.monotonic()
    folder = GPUConfig(minutes=0.05, device="cpu", output=tmp_path).run()
    assert time.monotonic() - began < 20
    ended = [row["status"] for row in rows_of(folder / "gpu.csv")]
    # Of two commands that are out of time, both say so.
    late = "out of time, exit"
    assert ended == ["exit 0", f"{late} -15", f"{late} -15", f"{late} -9", "no time left"]
    assert "Beautiful is better than ugly." in (folder / "quick-0.txt").read_text()
    assert {file.stem for file in folder.iterdir()} == {
        "config",
        "gpu",
        "quick-0",
        "slow-0",
        "slow-1",
        "slow-2",
    }


@pytest.fixture
def heeds_hangup():
    """Tests that are started by ``nohup`` ignore a closed terminal. This one must not."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_commands_end_with_the_process_that_began_them(number, tmp_path, monkeypatch):
    """A signal to this process ends the commands, too, and what has ended is written down."""
    before = signal.getsignal(number)
    slow = ("timeit", "-n1", "-r1", "import time; time.sleep(60)")
    monkeypatch.setattr(gpu, "steps", lambda config, runs: {"quick": [("this",)], "slow": [slow]})
    begun = []
    wait = gpu._wait

    def told_to_end(running, until, why):
        if running[0].args[2:] == list(slow) and why != "stopped":
            os.kill(os.getpid(), number)
        if why == "stopped" and number == signal.SIGHUP:
            # The shell says it after the system.
            os.kill(os.getpid(), number)
        begun.extend(running)
        return wait(running, until, why)

    monkeypatch.setattr(gpu, "_wait", told_to_end)
    began = time.monotonic()
    with pytest.raises(Stopped):
        GPUConfig(minutes=1, device="cpu", output=tmp_path).run()
    assert time.monotonic() - began < 20
    assert [process.returncode for process in begun] == [0, -signal.SIGTERM]
    (folder,) = tmp_path.iterdir()
    assert [row["status"] for row in rows_of(folder / "gpu.csv")] == ["exit 0", "stopped, exit -15"]
    assert signal.getsignal(number) == before


def test_a_closed_terminal_is_ignored_where_it_was_before():
    """The command ``nohup`` lets a process ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with obeying_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_each_of_several_commands_has_its_own_seconds(tmp_path, monkeypatch):
    slow, fast = (("timeit", "-n1", "-r1", f"import time; time.sleep({n})") for n in (2, 0))
    monkeypatch.setattr(gpu, "steps", lambda config, runs: {"both": [slow, fast]})
    folder = GPUConfig(minutes=1, device="cpu", output=tmp_path).run()
    first, second = (float(row["seconds"]) for row in rows_of(folder / "gpu.csv"))
    assert first > 2.0
    assert second < first - 0.5


def test_no_device_and_no_time_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    assert (
        "no CUDA device; --device cpu rehearses" in command("gpu", "--output", str(tmp_path)).stderr
    )
    with pytest.raises(SettingError, match="minutes and scale must be positive, got 0 and 1"):
        GPUConfig(minutes=0, scale=1, device="cpu", output=tmp_path).run()
    assert not list(tmp_path.iterdir())
