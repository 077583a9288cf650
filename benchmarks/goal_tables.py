"""What became of single goals: how often each was taught, which fail, and how much longer the way is than it need be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.past_runs import PastRun
from gym_twoRooms.layout import DOORS
from gym_twoRooms.mdp import TwoRoomsMDP

BINS = 30
"""Of the histogram of updates."""
UPDATES = ["label", "low", "high", "goals", "share"]
FAILURES = ["label", "goals", "measure", "part", "row", "column", "doors", "count", "failures"]
STEPS = ["label", "state", "optimal", "greedy", "greedy_reached", "epsilon", "epsilon_reached"]


def updates(runs: Sequence[PastRun]) -> list[dict[str, Any]]:
    """
    The paper's histogram: how often each goal was in an update. Goals held out are left out, and so are labels of which all
    goals were in as many: tables, which teach all goals at once.

    :param runs: those not finished are left out
    :return: rows of ``updates.csv``, by label and bin: its bounds, the goals in it, pooled over seeds, and their share
    """
    rows = []
    for label, alike in _by_label(runs):
        counts = [run.outcomes.updates[~run.outcomes.held_out] for run in alike if run.outcomes.updates is not None]
        pooled = np.concatenate(counts) if counts else np.zeros(0)
        if len(pooled) == 0 or np.ptp(pooled) == 0:
            continue
        found, edges = np.histogram(pooled, BINS)
        for low, high, goals in zip(edges[:-1], edges[1:], found.tolist(), strict=True):
            share = f"{goals / len(pooled):.6f}"
            rows.append({"label": label, "low": f"{low:.1f}", "high": f"{high:.1f}", "goals": goals, "share": share})
    return rows


def failures(runs: Sequence[PastRun], mdp: TwoRoomsMDP) -> list[dict[str, Any]]:
    """
    How often goals were not reached after training, by what they show.

    :param runs: those not finished are left out
    :param mdp: their world
    :return: rows of ``failures.csv``: "goals" is "taught" or "held-out", "measure" "greedy" or "epsilon"; "part" is "agent" or
        "block", then "row" and "column" are where it is in the goal, or "doors", then "doors" says which are open; "count" is
        the number of such goals, over all seeds, "failures" the share of their starts from which they were not reached
    """
    rows = []
    for label, alike in _by_label(runs):
        for kind in ("taught", "held-out"):
            masks = [run.outcomes.held_out == (kind == "held-out") for run in alike]
            if not any(mask.any() for mask in masks):
                continue
            counts = np.sum(masks, axis=0)
            for measure in ("greedy", "epsilon"):
                # of each goal, added over the runs in which it is of that kind
                missed = [mask * (1.0 - run.outcomes.reached[measure]) for mask, run in zip(masks, alike, strict=True)]
                for place, count, failed in _parts(mdp, counts, np.sum(missed, axis=0)):
                    share = f"{failed / count:.4f}"
                    rows.append(
                        {"label": label, "goals": kind, "measure": measure, **place, "count": count, "failures": share}
                    )
    return rows


def _parts(
    mdp: TwoRoomsMDP, counts: NDArray[np.int64], missed: NDArray[np.float64]
) -> Iterator[tuple[dict[str, Any], int, float]]:
    """What goals may show, how many show it, and the sum of their failures."""
    places = {"agent": mdp.agent[:, np.newaxis], "block": mdp.blocks}
    for part, cells in places.items():
        for cell in np.unique(cells).tolist():
            # not of each block: a goal may show several
            here = (cells == cell).any(axis=1)
            if counts[here].any():
                row, column = divmod(cell, mdp.layout.width)
                yield {"part": part, "row": row, "column": column}, int(counts[here].sum()), float(missed[here].sum())
    if mdp.doors_open.shape[1]:
        for doors in np.unique(mdp.doors_open, axis=0):
            here = (mdp.doors_open == doors).all(axis=1)
            if counts[here].any():
                said = " ".join(f"{name} {'open' if is_open else 'shut'}" for name, is_open in zip(DOORS, doors, strict=False))
                yield {"part": "doors", "doors": said}, int(counts[here].sum()), float(missed[here].sum())


def steps(runs: Sequence[PastRun], goals: NDArray[np.int64], optimal: NDArray[np.float64]) -> list[dict[str, Any]]:
    """
    Steps to goals after training beside those of the best policy without a deadline, on average over all starts. Only episodes
    that reached their goal have steps, of which hard starts are rarely ones: where much fails the steps look too good.

    :param runs: those not finished are left out
    :param goals: the states to be looked at as goals, shape (n,)
    :param optimal: expected steps to each, on average over starts, shape (n,)
    :return: rows of ``steps.csv``, by label and state: mean steps and the share of starts that reached, over all seeds
    """
    rows = []
    for label, alike in _by_label(runs):
        means = {}
        for measure in ("greedy", "epsilon"):
            reached = np.array([run.outcomes.reached[measure][goals] for run in alike])
            taken = np.where(reached > 0, [run.outcomes.steps[measure][goals] for run in alike], 0.0)
            total = reached.sum(axis=0)
            mean = np.divide((reached * taken).sum(axis=0), total, out=np.full(len(goals), np.nan), where=total > 0)
            means[measure] = [f"{value:.2f}" if np.isfinite(value) else None for value in mean]
            means[f"{measure}_reached"] = [f"{value:.4f}" for value in total / len(alike)]
        for number, state in enumerate(goals.tolist()):
            measured = {name: values[number] for name, values in means.items()}
            rows.append({"label": label, "state": state, "optimal": f"{optimal[number]:.3f}", **measured})
    return rows


def _by_label(runs: Iterable[PastRun]) -> list[tuple[str, list[PastRun]]]:
    """Finished runs."""
    grouped: dict[str, list[PastRun]] = {}
    for run in runs:
        if run.is_finished:
            grouped.setdefault(run.label, []).append(run)
    return list(grouped.items())
