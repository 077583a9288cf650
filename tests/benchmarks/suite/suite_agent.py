"""A tiny experiment for tests of the suite: a random walk that can be stopped and made to fail."""

import json
import os
import random
import time
from pathlib import Path

import psutil

from benchmarks.suite import Spec

SLOW = 0.02


def walk(spec, folder):
    """
    Write the state after each step, and go on from it.

    The end of a walk is the same however often it is stopped.
    """
    state_file = folder / "state.json"
    where = {"step": 0, "place": 0}
    generator = random.Random(f"{spec.game} {spec.agent} {spec.seed}")
    if state_file.exists():
        where, (version, numbers, gauss) = json.loads(state_file.read_text())
        generator.setstate((version, tuple(numbers), gauss))
    with (folder / "starts.txt").open("a") as file:
        file.write(f"{where['step']}\n")
    alone = folder / f"walking-{os.getpid()}"
    alone.touch()
    try:
        while where["step"] < spec.steps:
            walking = {int(path.name.split("-")[1]) for path in folder.glob("walking-*")}
            # A process that was killed has left its file.
            assert {pid for pid in walking if psutil.pid_exists(pid)} == {os.getpid()}
            if "WALK_AT_ONCE" not in os.environ:
                time.sleep(spec.settings.get("sleep", 0.0) * int(os.environ.get("WALK_SLOWER", 1)))
            where = {
                "step": where["step"] + 1,
                "place": where["place"] + generator.choice([-1, 1]) * generator.randint(1, 9),
            }
            staged = state_file.with_suffix(".tmp")
            staged.write_text(json.dumps([where, generator.getstate()]))
            staged.replace(state_file)
            if where["step"] in spec.settings.get("fail_at", []):
                raise RuntimeError(f"it was to fail at step {where['step']}")
    except SystemExit:
        # A checkpoint takes that long; a second signal would cut it short.
        time.sleep(0.3)
        (folder / "told to end").touch()
        raise
    finally:
        alone.unlink()
    return {"place": where["place"]}


def threads(spec, folder):
    """Return the number of torch threads."""
    import torch

    return {"threads": torch.get_num_threads()}


def bad_value(spec, folder):
    """Return a value that is no JSON."""
    return {"path": folder}


def leaves(spec, folder):
    """Exit as a program does."""
    print("error: no such thing")
    raise SystemExit(spec.seed)


def make(**changes):
    """Return the spec of a walk, with some fields changed."""
    settings = {"sleep": SLOW} | changes.pop("settings", {})
    given = {
        "carry_out": f"{__name__}:walk",
        "agent": "a",
        "game": "g",
        "seed": 0,
        "steps": 50,
        "settings": settings,
    }
    return Spec(**given | changes)


def slow():
    """Return 2 games x 2 agents x 2 seeds, which take a second each."""
    return [
        make(agent=agent, game=game, seed=seed)
        for agent in "ab"
        for game in ("X/1", "X_1")
        for seed in range(2)
    ]


def very_slow():
    """Return two runs, which take ten seconds each."""
    return [make(seed=seed, settings={"sleep": 10 * SLOW}) for seed in range(2)]


def quick():
    """Return the runs of :func:`slow`, each in few steps without pauses."""
    return [
        make(agent=spec.agent, game=spec.game, seed=spec.seed, steps=5, settings={"sleep": 0.0})
        for spec in slow()
    ]


def one_fails():
    """Return two runs: one fails at every step, the other at two."""
    return [
        make(seed=9, steps=5, settings={"fail_at": [1, 2, 3, 4, 5]}),
        make(steps=5, settings={"fail_at": [2, 4]}),
    ]


def starts(folder: Path) -> list[int]:
    """Return the steps at which the attempts of a run began."""
    return [int(line) for line in (folder / "starts.txt").read_text().split()]
