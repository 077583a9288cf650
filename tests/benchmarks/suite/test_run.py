"""Suites of runs: what each engine makes of them, and what is left when processes are killed."""

import json
import os
import signal
import sys
import time
from subprocess import PIPE, STDOUT, Popen

import psutil
import pytest
import torch as th
from filelock import FileLock

from benchmarks.suite import Spec, SuiteError, read_result, results
from benchmarks.suite.attempt import Busy, attempt, in_child
from benchmarks.suite.run import SuiteConfig, hours_until_done, measured_rates
from benchmarks.suite.spec import Result
from tests import ROOT
from tests.benchmarks.command_line import command
from tests.benchmarks.suite import suite_agent
from tests.benchmarks.suite.suite_agent import (
    make,
    one_fails,
    quick,
    slow,
    starts,
    very_slow,
)

PROCESSES = ("--engine", "processes", "--workers", "2")
DRIVER = """
import sys, tyro
from benchmarks.suite.run import SuiteConfig
from tests.benchmarks.suite import suite_agent
lacking = tyro.cli(SuiteConfig, args=sys.argv[2:]).carry_out(getattr(suite_agent, sys.argv[1])())
sys.exit(bool(lacking))
"""


def driver(specs, root, *arguments):
    """Start a suite beside the test, in a process group of its own as in a terminal."""
    command = [sys.executable, "-c", DRIVER, specs, "--root", str(root), *arguments]
    return Popen(command, cwd=ROOT, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True)


def finish(root, undisturbed):
    """Go on without pauses with the slow suite, of which most is left, and check its end."""
    assert len(results(slow(), root)) <= 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WALK_AT_ONCE", "1")
        ended(driver("slow", root))
    assert places(slow(), root) == undisturbed


def ended(process, status=0):
    """Return what a process prints until it ends with this status."""
    output = process.communicate(timeout=60)[0]
    assert process.returncode == status, output
    return output


def until(condition, seconds=30.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def steps_in(folder):
    """Return the number of steps that were saved."""
    path = folder / "state.json"
    return json.loads(path.read_text())[0]["step"] if path.exists() else 0


def child_of(folder):
    """Return the process that carries out a run."""
    last = (folder / "attempts.jsonl").read_text().splitlines()[-1]
    return psutil.Process(json.loads(last)["pid"])


def places(specs, root):
    """Return where the walks of finished runs ended, by the names of the runs."""
    return {spec.name: result.values["place"] for spec, result in results(specs, root).items()}


def walked(specs, root):
    """Return the results of specs without a suite and without a pause."""
    found = {}
    for number, spec in enumerate(specs):
        (root / str(number)).mkdir()
        at_once = Spec(spec.carry_out, spec.agent, spec.game, spec.seed, spec.steps)
        found[spec.name] = suite_agent.walk(at_once, root / str(number))["place"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The ends of the slow walks, if nothing disturbs them."""
    return walked(slow(), tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize("engine", [{}, {"engine": "processes", "workers": 2}])
def test_each_engine_gives_the_same_and_a_second_call_does_nothing(
    tmp_path, engine, tmp_path_factory
):
    specs = quick()
    # Each run is carried out once.
    assert SuiteConfig(tmp_path, **engine).carry_out([*specs, *specs]) == {}
    assert places(specs, tmp_path) == walked(specs, tmp_path_factory.mktemp("walk"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert SuiteConfig(tmp_path, **engine).carry_out(specs) == {}
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


@pytest.mark.parametrize("engine", [(), PROCESSES])
def test_failures_are_tried_again_and_stop_nobody(tmp_path, engine):
    output = ended(driver("one_fails", tmp_path, *engine), status=1)
    hopeless, flaky = one_fails()
    log = hopeless.folder(tmp_path) / "log.txt"
    said = (
        f"failed with exit status 1; see {log}, which ends: RuntimeError: it was to fail at step 3"
    )
    assert f"not finished: {hopeless.name}: {said}" in output
    assert "Traceback" in log.read_text()
    assert starts(hopeless.folder(tmp_path)) == [0, 1, 2]
    assert starts(flaky.folder(tmp_path)) == [0, 2, 4]
    assert read_result(flaky.folder(tmp_path)).attempts == 3
    assert not (hopeless.folder(tmp_path) / "result.json").exists()
    # Another call goes on, and now it has no step left to fail at.
    ended(driver("one_fails", tmp_path))


@pytest.mark.parametrize(
    ("engine", "number"),
    [
        ((), signal.SIGKILL),
        ((), signal.SIGTERM),
        *((PROCESSES, n) for n in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_driver_that_ends_loses_nothing(tmp_path, undisturbed, engine, number):
    # Of two runs that start together, this is the one that ends later.
    watched = slow()[1 if engine else 0].folder(tmp_path)
    process = driver("slow", tmp_path, *engine)
    until(lambda: steps_in(watched) > 5)
    children = psutil.Process(process.pid).children(recursive=True)
    assert bool(children) == bool(engine)
    if number == signal.SIGINT:
        # Ctrl-C signals the whole group.
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    ended(process, -9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:  # The driver has waited for its children.
        assert not any(child.is_running() for child in children)
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert (watched / "told to end").exists() == (bool(engine) or number != signal.SIGKILL)
    assert 5 < steps_in(watched) < 50
    # Runs that were not begun have a spec, too.
    assert all((spec.folder(tmp_path) / "spec.json").exists() for spec in slow())
    finish(tmp_path, undisturbed)
    # The watched run went on.
    assert starts(watched)[1] > 5


def test_a_killed_worker_goes_on(tmp_path, undisturbed):
    first = slow()[0]
    process = driver("slow", tmp_path, "--engine", "processes", "--workers", "4")
    until(lambda: steps_in(first.folder(tmp_path)) > 5)
    pid = json.loads((first.folder(tmp_path) / "attempts.jsonl").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    assert f"again: {first.name}: killed by SIGKILL" in ended(process)
    assert places(slow(), tmp_path) == undisturbed
    assert starts(first.folder(tmp_path))[1] > 5
    attempts = {spec: result.attempts for spec, result in results(slow(), tmp_path).items()}
    assert attempts == dict.fromkeys(slow(), 1) | {first: 2}


def test_two_calls_share_the_runs_of_a_root(tmp_path, undisturbed):
    calls = [driver("slow", tmp_path, *PROCESSES) for _ in range(2)]
    try:
        outputs = [call.communicate(timeout=60)[0] for call in calls]
    finally:
        for call in calls:
            call.kill()
    # A run that another call holds has not failed.
    for call, output in zip(calls, outputs, strict=True):
        assert call.returncode == ("another process holds it" in output), output
        assert "Traceback" not in output
    assert places(slow(), tmp_path) == undisturbed
    assert all(starts(spec.folder(tmp_path)) == [0] for spec in slow())


def test_runs_go_on_if_the_finished_ones_cannot_be_noted(tmp_path, capsys):
    class Full(SuiteConfig):
        def note_finished(self):
            raise OSError("no space left on device")

    assert Full(tmp_path).carry_out([make(seed=seed, steps=2) for seed in range(2)]) == {}
    said = "not noted: no space left on device. The next call notes all finished runs\n"
    assert capsys.readouterr().out.count(said) == 2


def test_a_run_in_other_hands_is_left_to_them(tmp_path, capsys):
    spec = make(steps=5)
    folder = spec.folder(tmp_path)
    folder.mkdir()
    (folder / "attempts.jsonl").write_text('{"pid": 17}\n')
    with FileLock(folder / "lock"):
        with pytest.raises(Busy, match=r'is in the hands of another process: \{"pid": 17\}'):
            attempt(spec, folder, wait=0.1)
        assert in_child(spec, folder, wait=0.1) == 75
    assert not (folder / "starts.txt").exists()
    assert [in_child(spec, folder, wait=0.1) for _ in range(2)] == [0, 0]
    # The last attempt found the run finished.
    assert len((folder / "attempts.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("run", [attempt, in_child])
def test_torch_has_as_many_threads_as_it_is_given(tmp_path, run):
    spec = make(carry_out=f"{suite_agent.__name__}:threads")
    run(spec, spec.folder(tmp_path), threads=2)
    assert read_result(spec.folder(tmp_path)).values == {"threads": 2}
    assert th.get_num_threads() == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at_all:walk", "there is no nowhere.at_all:walk: No module named 'nowhere'"),
        (
            f"{suite_agent.__name__}:run",
            f"there is no {suite_agent.__name__}:run: module .* has no attribute 'run'",
        ),
        (f"{suite_agent.__name__}:SLOW", f"{suite_agent.__name__}:SLOW is not callable: 0.02"),
        (f"{suite_agent.__name__}:bad_value", "bad_value must return plain JSON, got {'path': "),
    ],
)
def test_a_function_that_will_not_do_is_an_error(tmp_path, path, message):
    spec = make(carry_out=path)
    with pytest.raises(SuiteError, match=message):
        attempt(spec, spec.folder(tmp_path))


@pytest.mark.parametrize("engine", ["in-process", "processes"])
def test_a_function_that_leaves_has_failed(tmp_path, engine):
    """The main() of a program leaves, even with status 0. That ends the run, and not the suite."""
    leaving = make(carry_out=f"{suite_agent.__name__}:leaves")
    assert list(SuiteConfig(tmp_path, engine, retries=0).carry_out([leaving, make(steps=2)])) == [
        leaving
    ]
    assert "SystemExit: 0" in (leaving.folder(tmp_path) / "log.txt").read_text()


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(tmp_path, capsys):
    done = [
        Result(make(agent="a", seed=0, steps=100), {}, 50.0, 1),
        Result(make(agent="a", seed=1, steps=300), {}, 150.0, 1),
        # This one went on from an unknown step.
        Result(make(agent="a", seed=4, steps=300), {}, 1.0, 2),
        # These noted the seconds of their training over all attempts.
        Result(make(agent="a", seed=5, steps=100), {"training_seconds": 50.0}, 1.0, 3),
        Result(make(agent="c", seed=0, steps=90), {"training_seconds": 30.0}, 1.0, 2),
        # This one had solved its task after 40 steps.
        Result(make(agent="d", seed=0, steps=9_000), {"steps": 40}, 10.0, 1),
    ]
    assert measured_rates(done) == {"a": 2.0, "c": 3.0, "d": 4.0}
    todo = [make(seed=2, steps=7200), make(seed=3, steps=7200), make(agent="b", steps=3600)]
    rates = {"a": 2.0, "b": 0.5}
    # The third run waits for one of the first two.
    assert [hours_until_done(todo, rates, workers) for workers in (1, 2, 8)] == [4.0, 3.0, 2.0]
    root = tmp_path / "none"
    assert SuiteConfig(root, dry_run=True, steps_per_second={"a": 2.0}).carry_out(todo) is None
    output = capsys.readouterr().out
    assert f"would run {todo[1].name}\n" in output
    assert "no estimate: never measured: b" in output
    SuiteConfig(root, "processes", 2, dry_run=True, steps_per_second=rates).carry_out(todo)
    assert "4 hours of work; done after 3 hours with 2 at a time" in capsys.readouterr().out
    assert not root.exists()
    with pytest.raises(SuiteError, match="agents of steps_per_second must be of a, b, got A c"):
        SuiteConfig(root, dry_run=True, steps_per_second=rates | {"A": 1, "c": 1}).carry_out(todo)


def test_a_dry_run_takes_rates_of_other_lengths_if_there_are_none_of_its_own(tmp_path, capsys):
    def finish(seconds, attempts=1, **fields):
        spec = make(**fields)
        spec.write(tmp_path)
        Result(spec, {}, seconds, attempts).write(spec.folder(tmp_path))

    def said(**options):
        todo = [make(agent=agent, seed=seed, steps=7200) for agent in "ab" for seed in range(2)]
        SuiteConfig(tmp_path, dry_run=True, **options).carry_out(todo)
        return capsys.readouterr().out

    # These tell nothing: of another game, of another function, and the last attempt of two.
    finish(1.0, steps=100, game="other")
    finish(1.0, steps=100, carry_out="other:walk")
    finish(1.0, steps=200, attempts=2)
    assert "no estimate: never measured: a, b" in said()
    finish(10.0, steps=10, seed=7)
    finish(490.0, steps=990)
    finish(50.0, steps=200, agent="b")
    output = said()
    assert "a: 2 runs, 14,400 steps, 2 steps/s in other runs, of 10 and 990 steps, 2 h" in output
    assert "b: 2 runs, 14,400 steps, 4 steps/s in other runs, of 200 steps, 1 hours" in output
    assert "3 hours of work" in output
    assert "a: 2 runs, 14,400 steps, 8 steps/s, 0.5 hours" in said(steps_per_second={"a": 8.0})
    # Runs of the same length count alone.
    finish(7200.0, steps=7200)
    assert "a: 1 runs, 7,200 steps, 1 steps/s, 2 hours" in said()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2}, "workers must be 1 in-process, got 2"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"retries": -1}, "retries must be at least 0, got -1"),
        (
            {"steps_per_second": {"a": 0}, "dry_run": True},
            "steps per second of a must be positive, got 0",
        ),
        ({"steps_per_second": {"a": 1}}, "steps_per_second is for --dry-run, got it without"),
        ({"engine": "ray", "cpus": -3}, "cpus must be positive, and gpus not negative, got -3"),
        ({"engine": "ray", "gpus": -1}, "gpus not negative, got 1.0 and -1"),
        ({"gpus": 1}, "gpus is for --engine ray, got 1 with in-process"),
        ({"engine": "processes", "address": "x"}, "address is for --engine ray, got x with proc"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SuiteConfig(**options)


def test_ray_that_is_not_there_is_a_message(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    message = "the engine ray needs Ray, which the extra 'ray' brings"
    with pytest.raises(SuiteError, match=message):
        SuiteConfig(tmp_path, engine="ray").carry_out(quick())
    study = ("mastery-study", "--seeds", "1", "--root", str(tmp_path), "--engine", "ray")
    assert f"error: {message}" in command(*study).stderr


def test_a_stopped_study_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SuiteConfig, "_engine", stop)
    said = command("mastery-study", "--seeds", "1", "--root", str(tmp_path))
    assert said.returncode == 128 + signal.SIGTERM
    assert "a study with the same command" in said.stderr


@pytest.mark.extras
@pytest.mark.parametrize("what", ["worker", "child", "driver", "driver killed"])
def test_ray_goes_on_where_something_ends(tmp_path, undisturbed, monkeypatch, what):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    if what == "driver killed":
        # Ray notices after seconds: the run must not have finished by then.
        monkeypatch.setenv("WALK_SLOWER", "30")
    first = slow()[0]
    folder = first.folder(tmp_path)
    process = driver("slow", tmp_path, "--engine", "ray", "--workers", "2")
    until(lambda: steps_in(folder) > 5, seconds=60)
    child = child_of(folder)
    if what in ("worker", "child"):
        worker = child.parent()
        assert worker.name().startswith("ray::")
        (worker if what == "worker" else child).kill()
        assert f"again: {first.name}: " in ended(process)
        assert places(slow(), tmp_path) == undisturbed
    else:
        number = signal.SIGTERM if what == "driver" else signal.SIGKILL
        process.send_signal(number)
        ended(process, -9 if number == signal.SIGKILL else 128 + number)
        assert psutil.wait_procs([child], timeout=30)[1] == []
        if number == signal.SIGTERM:  # After SIGKILL, Ray notices after seconds, and then kills.
            assert (folder / "told to end").exists()
            assert 5 < steps_in(folder) < 50
        finish(tmp_path, undisturbed)
    assert starts(folder)[1] > 5


@pytest.mark.extras
def test_ray_waits_for_the_remains_of_a_lost_worker(tmp_path, undisturbed, monkeypatch):
    """The child of a lost worker may need longer for its checkpoint than a lock is waited for."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    first = slow()[0]
    folder = first.folder(tmp_path)
    process = driver("slow", tmp_path, "--engine", "ray", "--workers", "2")
    until(lambda: steps_in(folder) > 5, seconds=60)
    child = child_of(folder)
    worker = child.parent()
    child.suspend()
    worker.kill()
    log = folder / "log.txt"
    until(lambda: "in the hands of another process" in log.read_text(), seconds=90)
    child.resume()
    assert f"again: {first.name}: another process holds it" in ended(process)
    assert places(slow(), tmp_path) == undisturbed
    assert starts(folder)[1] > 5


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of two nodes on this machine, which have a core each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.mark.extras
def test_ray_spreads_runs_over_nodes_and_a_lost_node_costs_no_run(
    tmp_path, cluster, tmp_path_factory
):
    (second,) = cluster.worker_nodes
    options = ("--engine", "ray", "--address", cluster.address, "--workers", "2")
    process = driver("very_slow", tmp_path, *options)
    folders = [spec.folder(tmp_path) for spec in very_slow()]
    until(lambda: all(steps_in(folder) > 5 for folder in folders), seconds=60)
    raylets = [child_of(folder).parents()[1] for folder in folders]
    # Each node has one of the two runs.
    assert {raylet.name() for raylet in raylets} == {"raylet"}
    assert len(set(raylets)) == 2
    pids = [raylet.pid for raylet in raylets]
    lost = folders[pids.index(second.all_processes["raylet"][0].process.pid)]
    cluster.remove_node(second, allow_graceful=False)
    assert f"again: {lost.name}: its worker was lost" in ended(process)
    assert places(very_slow(), tmp_path) == walked(very_slow(), tmp_path_factory.mktemp("walk"))
    assert starts(lost)[1] > 5


@pytest.mark.extras
def test_ray_says_that_no_node_is_large_enough_and_waits_for_one(tmp_path, cluster):
    options = ("--engine", "ray", "--address", cluster.address, "--cpus", "2")
    process = driver("quick", tmp_path, *options)
    said = "cpus and gpus of a run are 2 and 0, but the nodes have 1 and 0, 1 and 0: runs wait"
    with process.stdout as output:
        assert any(said in line for line in output)
        cluster.add_node(num_cpus=2)
        assert process.wait(timeout=120) == 0
    assert len(results(quick(), tmp_path)) == len(quick())


@pytest.mark.extras
def test_ray_refuses_runs_that_are_too_large_for_this_machine(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    output = ended(driver("quick", tmp_path, "--engine", "ray", "--gpus", "1000"), status=1)
    assert "cpus and gpus of a run are 1 and 1000, but the nodes have 1 and " in output
