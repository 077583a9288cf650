"""Tables about runs, computed from data frames of :mod:`benchmarks.report.runs`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from benchmarks.scores import DATA, estimated, interquartile_mean, interval

POLICIES = ("greedy", "epsilon", "plan")
"""Policies whose mastery is measured."""
MEASURES = {name: name for name in POLICIES} | {
    f"held_out_{name}": f"goals held out, {name}" for name in POLICIES
}
"""Columns of ``summary.csv`` with mastery, and what they are called."""
LEVELS = (0.5, 0.9, 0.95)
"""Levels of mastery at epsilon: the table of mastery says how soon each is reached."""
BINS = 30
"""Bins of the histogram of updates."""
FEWEST = 3
"""Seeds from which on a line has an interval. Fewer are drawn one by one."""
POINTS = 100
"""Points of a curve against hours."""
BASELINE = "a2c"
"""How the name of the agent ends that others are compared with, if it is there."""


def student(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """
    Return Student's t interval of the mean of shares of independent runs.

    :param values: a share of each run, shape (n,)
    :param confidence: share of such intervals that have the true mean
    :return: low and high end, clipped to [0, 1]; NaN for fewer than two runs
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return np.nan, np.nan
    from scipy import stats  # Importing it takes a second.

    half = stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * stats.sem(values)
    return max(0.0, float(values.mean() - half)), min(1.0, float(values.mean() + half))


def coverage(runs: pd.DataFrame) -> pd.DataFrame:
    """
    Count the runs of each study, agent and length.

    A row says how many runs have which status, which are not finished, the hours of training and of
    finished runs' last attempts, and the median of steps a second: of training, or else of whole
    runs. The last row has the sums.

    :param runs: runs as :func:`benchmarks.report.runs.read` returns them
    :return: the table
    """
    rows = []
    for (study, agent, steps), alike in runs.groupby(["study", "agent", "steps"]):
        row = {
            "study": study,
            "agent": agent,
            "steps": steps,
            "games": alike["game"].nunique(),
            "planned": len(alike),
        }
        for status in ("finished", "unfinished", "not begun"):
            row[status] = (alike["status"] == status).sum()
        lacking = alike[alike["status"] != "finished"]
        said = [
            f"{run.game}, seed {run.seed} ({run.status})" for run in lacking.head(6).itertuples()
        ]
        if len(lacking) > len(said):
            said.append("and more")
        row["lacking"] = "; ".join(said)
        seconds = alike["training_seconds"]
        rates = (alike["step"] / seconds.where(seconds > 0)).dropna()
        if not len(rates):
            # A run may have ended early.
            made = alike["step"].fillna(alike["steps"])
            rates = (made / alike["wall_seconds"])[alike["attempts"] == 1].dropna()
        for kind in ("training", "wall"):
            row[f"{kind}_hours"] = alike[f"{kind}_seconds"].sum(min_count=1) / 3600
        rows.append(row | {"steps_per_second": rates.median()})
    found = pd.DataFrame(rows)
    summed = ["planned", "finished", "unfinished", "not begun", "training_hours", "wall_hours"]
    sums = found[summed].sum(min_count=1)
    return pd.concat([found, pd.DataFrame([{"agent": "all", **sums}])], ignore_index=True)


def mastery(
    runs: pd.DataFrame, curves: pd.DataFrame, finals: pd.DataFrame, goals: pd.DataFrame
) -> pd.DataFrame:
    """
    Sum up comparable runs of mastery, a row an agent.

    The columns are the mean number of goals that finished runs know; means of these runs with
    Student t intervals over seeds; how many goals were reached greedily from every start with every
    seed ("always") and from none ("never"); the median step at which each of :data:`LEVELS` was
    first measured (infinity: it was not); and what the paper has of the same agent.

    :param runs: runs as :func:`benchmarks.report.runs.read` returns them
    :param curves: the rows of ``mastery.csv`` of these runs
    :param finals: the rows of ``summary.csv`` of those that are finished
    :param goals: the rows of ``goals.csv`` of those that are finished
    :return: the table
    """
    paper = pd.read_csv(DATA / "paper_mastery.csv")
    parts = ("paper-", "generalization-")
    of_paper = pd.concat([paper.assign(agent=part + paper["agent"]) for part in parts])
    of_all_goals = of_paper["agent"].str.startswith("paper-")
    of_paper["paper"] = of_paper["mastery"].where(of_all_goals, of_paper["held_out"])
    rows = []
    for agent, alike in runs.groupby("agent"):
        final = finals[finals["agent"] == agent]
        curve = curves[curves["agent"] == agent]
        row: dict[str, Any] = {"agent": agent, "runs": len(alike), "finished": len(final)}
        row["known"] = final["known"].mean()
        for name in MEASURES:
            values = final[name].dropna()
            row[name] = values.mean()
            row[f"{name}_low"], row[f"{name}_high"] = student(values)
        # Worlds without tables have other goals in each run. Their rows have no state.
        known = goals[goals["agent"] == agent].dropna(subset=["state"])
        shares = known.groupby("state")["greedy_reached"].mean()
        row |= {
            "ceiling": final["ceiling"].mean(),
            "always": (shares == 1.0).sum() if len(shares) else np.nan,
            "never": (shares == 0.0).sum() if len(shares) else np.nan,
        }
        for level in LEVELS if len(curve) else ():
            first = curve[curve["epsilon"] >= level].groupby("seed")["step"].min()
            row[f"steps_to_{level:g}"] = first.reindex(final["seed"], fill_value=np.inf).median()
        rows.append(row | {"training_seconds": final["training_seconds"].dropna().median()})
    return pd.DataFrame(rows).merge(of_paper[["agent", "paper", "said"]], "left", on="agent")


def updates(goals: pd.DataFrame) -> pd.DataFrame:
    """
    Count how often each goal that was not held out was in an update.

    :param goals: the rows of ``goals.csv`` of finished runs
    :return: bins of each agent's histogram, pooled over seeds; none of agents with one number for
        all goals
    """
    found = [pd.DataFrame(columns=["agent", "low", "high", "goals", "share"])]
    for agent, counts in goals[goals["held_out"] == 0].groupby("agent")["updates"]:
        if np.ptp(counts) > 0:
            number, edges = np.histogram(counts, BINS)
            bins = {
                "low": edges[:-1],
                "high": edges[1:],
                "goals": number,
                "share": number / len(counts),
            }
            found.append(pd.DataFrame({"agent": agent, **bins}))
    return pd.concat(found[1:] or found, ignore_index=True)


def bands(curves: pd.DataFrame) -> pd.DataFrame:
    """
    Return the lines of a figure.

    An agent with :data:`FEWEST` seeds or more has one line: the interquartile mean over its seeds,
    with its bootstrap interval. An agent with fewer has a line a seed, since an interval would say
    nothing.

    :param curves: columns "panel", "agent", "seed", "step" and "value"
    :return: a row for each panel, agent and step that all seeds of the agent have; or for each
        panel, agent, seed and step of agents with few seeds. "seed" is NaN in rows of all seeds
    """
    columns = ["panel", "agent", "seed", "step", "seeds", "value", "low", "high"]
    found = [pd.DataFrame(columns=columns)]
    for (panel, agent), alike in curves.groupby(["panel", "agent"], sort=False):
        seeds = alike["seed"].nunique()
        if seeds < FEWEST:
            lines = alike.sort_values(["seed", "step"]).assign(seeds=seeds)
        else:
            table = alike.pivot_table("value", "step", "seed").dropna()
            values = table.to_numpy()[:, :, None]
            value = np.nan
            low = np.nan
            high = np.nan
            # Seeds that have just begun may have no step in common.
            if len(table):
                value, low, high = interval(interquartile_mean, values)
            line = {"step": table.index, "seeds": seeds, "value": value, "low": low, "high": high}
            lines = pd.DataFrame({"panel": panel, "agent": agent, **line})
        found.append(lines.reindex(columns=columns))
    return pd.concat(found[1:] or found, ignore_index=True)


def against_hours(curves: pd.DataFrame) -> pd.DataFrame:
    """
    Return curves whose steps are hours of training.

    Seeds that share a line, see :func:`bands`, get the same :data:`POINTS` hours, from the first
    that all have to the end of the shortest. Values between two measurements are interpolated.

    :param curves: columns "panel", "agent", "seed", "training_seconds" and "value"; rows without a
        time are left out
    :return: columns "panel", "agent", "seed", "step" (hours) and "value"
    """
    columns = ["panel", "agent", "seed", "step", "value"]
    found = [pd.DataFrame(columns=columns)]
    timed = curves.dropna(subset=["training_seconds"])
    timed = timed.assign(step=timed["training_seconds"] / 3600)
    for (panel, agent), runs in timed.groupby(["panel", "agent"], sort=False):
        alike = runs.sort_values("step")
        if alike["seed"].nunique() < FEWEST:
            found.append(alike[columns])
            continue
        by_seed = alike.groupby("seed")
        first = by_seed["step"].min().max()
        last = by_seed["step"].max().min()
        if first > last:
            # There is no hour that all seeds have.
            found.append(alike[columns])
            continue
        hours = np.linspace(first, last, POINTS)
        for seed, run in by_seed:
            values = np.interp(hours, run["step"], run["value"])
            line = {"panel": panel, "agent": agent, "seed": seed, "step": hours, "value": values}
            found.append(pd.DataFrame(line))
    return pd.concat(found[1:] or found, ignore_index=True)


def returns(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """
    Sum up the returns of each agent in each game, at steps that all runs of the game came by. A run
    that has come less far than those that have finished is left out: it would leave the first steps
    only.

    The columns are interquartile means over seeds of the return at the last step ("final") and of
    each run's mean over all steps ("area"), with bootstrap intervals of several seeds; the step at
    which the interquartile mean has come half of its way to its end ("half"); and the median time
    of a step divided by a2c's ("time_ratio").

    :param curves: the rows of ``curve.csv``
    :param runs: runs as :func:`benchmarks.report.runs.read` returns them
    :return: the table
    """
    rows = []
    for game, noted in curves.groupby("game"):
        here = noted[_came_far(noted, runs[runs["game"] == game])]
        table = here.pivot_table("episode_return", "step", ["agent", "seed"])
        # Runs with pre-training noted their returns at other steps.
        table = table.interpolate(method="index", limit_area="inside").dropna()
        if table.empty:
            print(
                f"left out: returns in {game}, whose runs have no step in common at which they "
                "were noted"
            )
            continue
        timed = runs[runs["game"] == game]
        speeds = (timed["training_seconds"] / timed["step"]).groupby(timed["agent"]).median()
        base = next((agent for agent in speeds.index if agent.endswith(BASELINE)), None)
        for agent in dict.fromkeys(table.columns.get_level_values("agent")):
            ours = table[agent]
            curve = interquartile_mean(ours.to_numpy()[:, :, None])
            way = (curve - curve[0]) / (curve[-1] - curve[0] or 1.0)
            row = {"game": game, "agent": agent, "seeds": ours.shape[1], "step": ours.index[-1]}
            for what, values in (("final", ours.iloc[-1]), ("area", ours.mean())):
                row |= estimated(what, interquartile_mean, values.to_numpy()[:, None])
            row |= {
                # A curve that ends where it began goes no way.
                "half": np.nan if curve[-1] == curve[0] else ours.index[np.argmax(way >= 0.5)],
                "time_ratio": speeds[agent] / speeds.get(base, np.nan),
            }
            seconds = timed["training_seconds"][timed["agent"] == agent].dropna().median()
            rows.append(row | {"training_seconds": seconds})
    ends = [f"{what}{end}" for what in ("final", "area") for end in ("", "_low", "_high")]
    return pd.DataFrame(
        rows,
        columns=["game", "agent", "seeds", "step", *ends, "half", "training_seconds", "time_ratio"],
    )


def _came_far(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """
    Return which points of curves are of runs that came as far as those that have finished.

    :param curves: the rows of ``curve.csv`` of one game
    :param runs: the runs in this game
    :return: True or False for each row of the curves; True, if no run has finished
    """
    key = ["agent", "seed"]
    last = curves.groupby(key)["step"].transform("max")
    finished = pd.MultiIndex.from_frame(runs.loc[runs["status"] == "finished", key])
    is_finished = pd.MultiIndex.from_frame(curves[key]).isin(finished)
    return last >= last[is_finished].min() if is_finished.any() else last.notna()
