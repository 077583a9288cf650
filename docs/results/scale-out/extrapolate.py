"""
Compute the tables of docs/scale_out.md from figures that were measured.

Run it in the folder of the project: PYTHONPATH=. python docs/results/scale-out/extrapolate.py
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.studies.games import GAMES, STEPS
from gym_twoRooms import NAMED_LAYOUTS, compile_layout

RESULTS = Path(__file__).parents[1]
LARGE = 10_000_000
"""Observations of the world that nobody has tried."""
MANSION = 190_800
"""Observations of the largest world that was measured."""
SEEDS = 3
RUNS = len(GAMES) * SEEDS
BYTES_OF_PAIR = 5
"""What a plan takes for a pair of state and goal: a float32 and a byte."""
PLAN_BYTES = 4 * 2**30
"""``max_plan_bytes`` by default."""
PLAN_BYTES_OF_RUN = 6_500_000_000
"""``max_plan_bytes`` of the run of ``mansion`` in scale/run.csv."""
BYTES_OF_OUTCOME = 24
"""Key, count and sum of rewards of an outcome in a ``WorldModel``."""
USERS = 1_000


def table(header: str, rows: Iterator[str]) -> str:
    """Return a table in Markdown."""
    columns = header.count("|") - 1
    return "\n".join([header, "|" + "---|" * columns, *rows]) + "\n"


def exponents() -> dict[str, float]:
    """Return the exponents of growth of the settings for large worlds, as the page of scale has."""
    runs = pd.read_csv(RESULTS / "scale/growth.csv")
    reached = runs[(runs["agent"] == "large") & (runs["greedy"] >= 0.85)]
    first = reached.sort_values("training_seconds").groupby("observations", as_index=False).first()
    size = np.log(first["observations"])
    columns = ("training_seconds", "steps", "peak_mb")
    return {each: round(np.polyfit(size, np.log(first[each]), 1)[0], 2) for each in columns}


def rates() -> dict[str, float]:
    """Return the steps a second of A2C's agents in Atari, and of pre-training."""

    def median(file: str, contender: str) -> float:
        rows = pd.read_csv(RESULTS / file)
        return float(round(rows["value"][rows["contender"] == contender].median()))

    agents = ("a2c", "pixel_control", "reward_prediction", "many_goals")
    found = {each: median("auxiliary/speed-1-threads.csv", each) for each in agents}
    a2c_beside = median("pretraining/speed-1-threads.csv", "a2c")
    for each in ("reward_prediction", "many_goals"):
        # A tenth of the steps is pre-training, and A2C makes the others.
        pretraining = median("pretraining/speed-1-threads.csv", each)
        found[f"{each}_pretraining"] = 1.0 / (0.1 / pretraining + 0.9 / a2c_beside)
    return {name.replace("_", "-"): rate for name, rate in found.items()}


def games() -> Iterator[str]:
    """Return what the study of games takes, agent by agent."""
    for agent, rate in rates().items():
        hours = STEPS / rate / 3600
        yield f"| {agent} | {rate:.0f} | {hours:.1f} | {hours * RUNS:,.0f} |"


def growth() -> Iterator[str]:
    """Return what ten million observations take if the growth of the whole run goes on."""
    runs = pd.read_csv(RESULTS / "scale/growth.csv")
    run = runs[runs["observations"] == MANSION].iloc[0]
    more = {name: (LARGE / MANSION) ** exponent for name, exponent in exponents().items()}
    seconds = run["training_seconds"]
    hours = seconds * more["training_seconds"] / 3600
    steps = run["steps"] * more["steps"] / 1e6
    memory = run["peak_mb"] * more["peak_mb"] / 1e3
    found = exponents()
    yield f"| core time | {found['training_seconds']:.2f} | {seconds:,.0f} s | {hours:.0f} h |"
    yield f"| steps | {found['steps']:.2f} | {run['steps']:,} | {steps:,.0f} million |"
    yield f"| peak memory | {found['peak_mb']:.2f} | {run['peak_mb']:,} MB | {memory:.0f} GB |"


def parts() -> Iterator[str]:
    """Return what the parts of a run take with ten million observations, each from its count."""
    n_times = LARGE / MANSION
    run = pd.read_csv(RESULTS / "scale/run.csv").iloc[-1]
    goals_of_run = PLAN_BYTES_OF_RUN // (MANSION * BYTES_OF_PAIR)
    goals = PLAN_BYTES // (MANSION * BYTES_OF_PAIR)
    few = PLAN_BYTES // (LARGE * BYTES_OF_PAIR)
    share = goals / MANSION
    yield (
        f"| goals in a plan of 4 GiB | {goals:,}, {share:.1%} of all "
        f"| {few}, {few / LARGE:.5%} of all |"
    )
    same = goals_of_run * LARGE * BYTES_OF_PAIR / 1e9
    yield (
        f"| memory of a plan of {goals_of_run:,} goals | {PLAN_BYTES_OF_RUN / 1e9:.1f} GB "
        f"| {same:,.0f} GB |"
    )
    first_plan = pd.read_csv(RESULTS / "scale/run.csv")["first_plan_seconds"].iloc[0]
    of_goal = first_plan / goals_of_run
    yield f"| search for one goal | {1e3 * of_goal:.0f} ms | {of_goal * n_times:.1f} s |"
    every = of_goal * MANSION / 3600
    yield f"| a search for each goal | {every:.1f} h | {every * n_times**2:,.0f} h |"
    labels = pd.read_csv(RESULTS / "scale/labels.csv").set_index("random_steps")
    enough = 30_000_000
    yield (
        f"| random steps after which .998 of the plan's best actions are right | {enough:,} "
        f"| {enough * n_times / 1e6:,.0f} million |"
    )
    discovery = pd.read_csv(RESULTS / "scale/mansion-half-discovered.csv").set_index("step")
    steps = 16_000_000
    seconds = discovery["training_seconds"][steps]
    hours = enough * n_times / (steps / seconds) / 3600
    yield (
        f"| time of random steps: {steps:,} in `mansion`, "
        f"{enough * n_times / 1e6:,.0f} million in the larger world "
        f"| {seconds:.0f} s | {hours:.1f} h |"
    )
    updates = int(run["updates"])
    alone = (run["update_and_exchange_seconds"] - run["exchange_seconds"]) / 3600
    yield (
        f"| updates, if there are as many for each observation as in `mansion` | {updates:,} "
        f"| {updates * n_times / 1e6:.1f} million |"
    )
    yield f"| time of these updates | {alone:.2f} h | {alone * n_times:.0f} h |"
    bytes_of_one = compile_layout(NAMED_LAYOUTS["mansion"]).observe(0).nbytes
    yield (
        f"| observations of {bytes_of_one:,} bytes | {bytes_of_one * MANSION / 1e9:.2f} GB "
        f"| {bytes_of_one * LARGE / 1e9:.1f} GB |"
    )
    of_id = pd.read_csv(RESULTS / "scale-out/ids.csv")["bytes_of_ids"].max()
    yield (
        f"| ids, {of_id} bytes each | {of_id * MANSION / 1e9:.2f} GB "
        f"| {of_id * LARGE / 1e9:.1f} GB |"
    )
    outcomes = labels["outcomes"][enough]
    yield (
        f"| outcomes of {BYTES_OF_OUTCOME} bytes | {outcomes:,}, "
        f"{outcomes * BYTES_OF_OUTCOME / 1e9:.2f} GB "
        f"| {outcomes * n_times / 1e6:.0f} million, "
        f"{outcomes * n_times * BYTES_OF_OUTCOME / 1e9:.1f} GB |"
    )


def users() -> Iterator[str]:
    """Return what a thousand worlds a day take, by kinds of worlds that were measured."""
    learning = pd.read_csv(RESULTS / "speed/learning.csv")
    one_core = learning[(learning["agent"] == "default") & (learning["threads"] == 1)]
    commit = one_core["commit"] == "372175b"
    kinds = {
        "three rooms of MiniGrid, mean": ["Empty-6x6", "LavaGapS6", "SimpleCrossingS9N1"],
        "the paper's map, 115,200 steps, mean of three seeds": ["TwoRoomsSwitch"],
        "`Charging-v0`, 6,050 observations": ["Charging"],
        "`warehouse`, 20,710 observations": ["warehouse"],
    }
    measured = {
        name: one_core[commit & one_core["world"].str.endswith(tuple(ends))]["seconds"].mean()
        for name, ends in kinds.items()
    }
    long = pd.read_csv(RESULTS / "default/three-million.csv")["training_seconds"][0]
    measured["the paper's map, three million steps"] = long
    for name, seconds in measured.items():
        hours = USERS * seconds / 3600
        yield f"| {name} | {seconds:.0f} | {hours:,.0f} | {hours / 24:.1f} |"


TABLES = {
    "games": ("| agent | steps/s | hours of a run | core-hours of 147 runs |", games),
    "users": (
        "| world | seconds of one | core-hours of a thousand | cores, all day |",
        users,
    ),
    "growth": ("| | exponent | `mansion`, measured | ten million, extrapolated |", growth),
    "parts": ("| | `mansion`, measured or counted | ten million, extrapolated |", parts),
}
"""Headers and rows of the tables."""


def main() -> None:
    """Print all tables."""
    for header, rows in TABLES.values():
        print(table(header, rows()))


if __name__ == "__main__":
    main()
