"""Tables about runs, computed from data frames of :mod:`benchmarks.report.runs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from benchmarks.report import PastRunError
from benchmarks.scores import interquartile_mean
from benchmarks.scores import interval as bootstrap
from gym_twoRooms.layout import DOORS
from gym_twoRooms.mdp import TwoRoomsMDP

POLICIES = ("greedy", "epsilon")
MEASURES = (*POLICIES, "held_out_greedy", "held_out_epsilon")
LEVELS = (0.5, 0.9, 0.95)
"""Of mastery at epsilon, how soon each is reached."""
BINS = 30
"""Of the histogram of updates."""
BASELINE = "a2c"
"""How the name of the agent ends that others are compared with, if it is there."""


def student(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """
    :param values: of independent runs, shares in [0, 1], shape (n,)
    :param confidence: of the interval
    :return: Student's t interval of their mean, clipped to [0, 1]; NaN of fewer than two
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return np.nan, np.nan
    from scipy import stats  # importing it takes a second

    half = stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * stats.sem(values)
    return max(0.0, float(values.mean() - half)), min(1.0, float(values.mean() + half))


def finals(goals: pd.DataFrame) -> pd.DataFrame:
    """
    :param goals: rows of ``goals.csv`` of finished runs, with "label" and "seed"
    :return: by label and seed :data:`MEASURES` after training; NaN where no goals were held out
    """
    shares = goals.rename(columns={f"{policy}_reached": policy for policy in POLICIES})
    overall = shares.groupby(["label", "seed"])[list(POLICIES)].mean()
    held_out = shares[shares["held_out"] > 0].groupby(["label", "seed"])[list(POLICIES)].mean()
    return overall.join(held_out.add_prefix("held_out_")).reset_index()


def mastery(runs: pd.DataFrame, curves: pd.DataFrame, goals: pd.DataFrame, base: str | None = None) -> pd.DataFrame:
    """
    :param runs: comparable runs, finished or not
    :param curves: their rows of ``mastery.csv``
    :param goals: rows of ``goals.csv`` of those that have finished
    :param base: the label whose time for a step is 1, or None
    :return: a row a label: numbers of "runs" and "finished" ones, the median "step" that they have come to; of finished ones
        :data:`MEASURES` with Student t intervals over seeds ("_low", "_high"), for each of :data:`LEVELS` the median step at
        which so much was first measured (infinity: it was not), the median of "training_seconds", and "time_ratio"
    :raises PastRunError: if no finished run has the label ``base``
    """
    final, rows = finals(goals).set_index("label"), []
    speeds: dict[str, float] = {}
    for label, alike in runs.groupby("label"):
        done = alike[alike["status"] == "finished"]
        row: dict[str, Any] = {
            "label": label,
            "runs": len(alike),
            "finished": len(done),
            "step": alike["step"].dropna().median(),
        }
        if len(done):
            for name in MEASURES:
                values = final.loc[[label]].get(name, pd.Series(dtype=float)).dropna()
                row[name], (row[f"{name}_low"], row[f"{name}_high"]) = values.mean(), student(values)
            of_done = curves[curves["label"] == label]
            for level in LEVELS:
                first = of_done[of_done["epsilon"] >= level].groupby("seed")["step"].min()
                row[f"steps_to_{level:g}"] = first.reindex(done["seed"], fill_value=np.inf).median()
            row["training_seconds"] = done["training_seconds"].dropna().median()
            speeds[label] = (done["training_seconds"] / done["step"]).dropna().median()
        rows.append(row)
    ends = [f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")]
    columns = ["label", "runs", "finished", "step", *ends, *(f"steps_to_{level:g}" for level in LEVELS), "training_seconds"]
    found = pd.DataFrame(rows, columns=[*columns, "time_ratio"])
    if base is not None:
        if base not in speeds:
            raise PastRunError(f"base must be the label of a finished run, one of {', '.join(speeds) or 'none'}; got {base!r}")
        if speeds[base] > 0.0:  # the shortest runs take no time that is measured
            found["time_ratio"] = found["label"].map(speeds) / speeds[base]
    return found


def updates(goals: pd.DataFrame) -> pd.DataFrame:
    """
    The paper's histogram: how often each goal was in an update. Without goals held out, and without labels of which all goals
    were in as many: tables, which teach all goals at once.

    :param goals: rows of ``goals.csv``
    :return: by label and bin its bounds, "low" and "high", its "goals", pooled over seeds, and their "share"
    """
    found = [pd.DataFrame(columns=["label", "low", "high", "goals", "share"])]
    for label, counts in goals[goals["held_out"] == 0].groupby("label")["updates"]:
        if np.ptp(counts) > 0:
            number, edges = np.histogram(counts, BINS)
            bins = {"low": edges[:-1], "high": edges[1:], "goals": number, "share": number / len(counts)}
            found.append(pd.DataFrame({"label": label, **bins}))
    return pd.concat(found[1:] or found, ignore_index=True)


def failures(goals: pd.DataFrame, mdp: TwoRoomsMDP) -> pd.DataFrame:
    """
    How often goals were not reached after training, by what they show.

    :param goals: rows of ``goals.csv``
    :param mdp: their world
    :return: by "label", "goals" ("taught" or "held-out") and "measure": "part" is "agent" or "block", then "row" and "column"
        are where it is in the goal, or "doors", then "doors" says which are open; "count" is the number of such goals over
        all seeds, "failures" the share of their starts from which they were not reached
    """
    states = np.arange(mdp.n_states)
    cells = [pd.DataFrame({"state": states, "part": "agent", "cell": mdp.agent})]
    for blocks in mdp.blocks.T:
        cells.append(pd.DataFrame({"state": states, "part": "block", "cell": blocks}))
    places = pd.concat(cells).drop_duplicates()  # a goal may show several blocks
    places["row"], places["column"] = places["cell"] // mdp.layout.width, places["cell"] % mdp.layout.width
    if mdp.doors_open.shape[1]:
        said = [
            " ".join(f"{name} {'open' if is_open else 'shut'}" for name, is_open in zip(DOORS, doors, strict=False))
            for doors in mdp.doors_open
        ]
        places = pd.concat([places, pd.DataFrame({"state": states, "part": "doors", "doors": said})])
    reached = goals.melt(["label", "state", "held_out"], [f"{policy}_reached" for policy in POLICIES], "measure", "reached")
    reached["measure"] = reached["measure"].str.removesuffix("_reached")
    reached["goals"] = np.where(reached["held_out"] > 0, "held-out", "taught")
    shown = reached.assign(failures=1.0 - reached["reached"]).merge(
        places.reindex(columns=["state", "part", "row", "column", "doors"]), on="state"
    )
    by = ["label", "goals", "measure", "part", "row", "column", "doors"]
    found = shown.groupby(by, dropna=False)["failures"].agg(count="size", failures="mean").reset_index()
    return found.astype({"row": "Int64", "column": "Int64"})


def steps(goals: pd.DataFrame, states: NDArray[np.int64], optimal: NDArray[np.float64]) -> pd.DataFrame:
    """
    Steps to goals after training beside those of the best policy without a deadline, on average over all starts. Only episodes
    that reached their goal have steps, of which hard starts are rarely ones: where much fails the steps look too good.

    :param goals: rows of ``goals.csv``
    :param states: the goals to look at, shape (n,)
    :param optimal: expected steps to each, on average over starts, shape (n,)
    :return: by label and state "optimal", and for each policy the mean steps and the share of starts that reached, over seeds
    """
    found = goals[goals["state"].isin(states)].copy()
    for policy in POLICIES:
        found[f"{policy}_steps"] = (found[f"{policy}_reached"] * found[f"{policy}_mean_steps"]).fillna(0.0)
    means = found.groupby(["label", "state"]).mean(numeric_only=True).reset_index()
    columns: dict[str, Any] = {"optimal": means["state"].map(dict(zip(states.tolist(), optimal, strict=True)))}
    for policy in POLICIES:
        share = means[f"{policy}_reached"]
        columns |= {policy: means[f"{policy}_steps"] / share.where(share > 0), f"{policy}_reached": share}
    return means[["label", "state"]].assign(**columns)


def returns(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """
    :param curves: "game", "agent", "seed", "step", "episode_return"
    :param runs: those runs
    :return: by game and agent, at the steps that all runs of the game have: numbers of seeds, the last of these steps, the
        interquartile mean over seeds of the return there ("final") and of each run's mean over all these steps ("area"), with
        bootstrap intervals of several seeds, the median of "training_seconds", and the median time of a step by a2c's
    """
    rows = []
    for game, here in curves.groupby("game"):
        table = here.pivot_table("episode_return", "step", ["agent", "seed"]).dropna()
        if table.empty:
            print(f"left out: returns in {game}, whose runs have no step in common at which they were noted")
            continue
        timed = runs[runs["game"] == game]
        speeds = (timed["training_seconds"] / timed["step"]).groupby(timed["agent"]).median()
        base = next((agent for agent in speeds.index if agent.endswith(BASELINE)), None)
        for agent in dict.fromkeys(table.columns.get_level_values("agent")):
            ours = table[agent]
            row = {"game": game, "agent": agent, "seeds": ours.shape[1], "step": ours.index[-1]}
            for what, values in (("final", ours.iloc[-1]), ("area", ours.mean())):
                row |= estimated(what, interquartile_mean, values.to_numpy()[:, None])
            seconds = timed["training_seconds"][timed["agent"] == agent].dropna().median()
            rows.append(row | {"training_seconds": seconds, "time_ratio": speeds[agent] / speeds.get(base, np.nan)})
    ends = [f"{what}{end}" for what in ("final", "area") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=["game", "agent", "seeds", "step", *ends, "training_seconds", "time_ratio"])


def estimated(name: str, statistic: Any, *scores: NDArray[np.float64]) -> dict[str, float]:
    """
    :param name: of a column
    :param statistic: of :mod:`benchmarks.scores`
    :param scores: its arguments, each of shape (n_runs, n_games)
    :return: the value, and with at least two runs of each the ends of its interval, by columns
    """
    if min(len(each) for each in scores) < 2:
        return {name: float(statistic(*scores))}
    found = bootstrap(statistic, *scores)
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def cost(runs: pd.DataFrame) -> pd.DataFrame:
    """
    :param runs: of :func:`benchmarks.report.runs.read`
    :return: by study, agent and length: numbers of runs begun and their steps, hours of training, hours of the last attempts
        of finished runs of suites, median steps a second of training, or else of whole runs of one attempt; and a row of sums
    """
    rows = []
    for (study, agent, _), alike in runs.groupby(["study", "agent", "steps"]):
        begun = alike[alike["status"] != "not begun"]
        training, wall = begun["training_seconds"], begun["wall_seconds"]
        rates = (begun["step"] / training.where(training > 0)).dropna()
        whole = (begun["steps"] / wall)[begun["attempts"] == 1].dropna()
        rows.append(
            {
                "study": study,
                "agent": agent,
                "runs": len(begun),
                "steps": begun["step"].sum(),
                "training_hours": training.sum(min_count=1) / 3600,
                "wall_hours": wall.sum(min_count=1) / 3600,
                "steps_per_second": (rates if len(rates) else whole).median(),
            }
        )
    found = pd.DataFrame(rows)
    sums = found[["runs", "steps", "training_hours", "wall_hours"]].sum()
    return pd.concat([found, pd.DataFrame([{"agent": "all", **sums}])], ignore_index=True)
