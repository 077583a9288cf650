"""How right are the values that a run has learnt? They are compared with exact ones."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from benchmarks.past_runs import PastRun
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import optimal_values
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.tabular import TabularAllGoals

DISTANCES = (1.5, 2.5, 4.5, 8.5, 16.5, 32.5)
"""Bounds between bins of the expected steps from start to goal: 1, 2, 3-4, 5-8, 9-16, 17-32, more."""
CHUNK = 1_024
"""States whose values for all goals are computed at a time."""
TIE = 1e-4
"""Actions whose exact values differ by less are as good: ten times what the exact values may be off, and a thousandth of the
reward of a step."""
STEP_REWARD, GOAL_REWARD = -0.1, 0.0
"""Of the paper, and of every study; a table does not keep them."""
VALUES = ["label", "seed", "goals", "steps_from", "steps_to", "pairs", "exact", "bias", "rms", "greedy_optimal"]


def chosen(runs: Sequence[PastRun]) -> list[PastRun]:
    """
    :param runs: finished or not
    :return: the one of each label whose values are looked at: of finished ones with a saved model that with the lowest seed
    """
    first: dict[str, PastRun] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.is_finished and (run.folder / "model.zip").is_file():
            first.setdefault(run.label, run)
    return [first[label] for label in sorted(first)]


def values(
    runs: Sequence[PastRun], mdp: TwoRoomsMDP, goals: NDArray[np.int64], distances: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """
    Compare the value of each start for each goal, the highest over the actions, with the exact one, and the greedy action with
    the best ones. Starts that are the goal are left out. Of models other than ManyGoalsDQN and TabularAllGoals it is printed
    that they are left out.

    :param runs: with saved models
    :param mdp: their world
    :param goals: states, shape (G,)
    :param distances: expected steps to each goal from each state, shape (S, G)
    :return: rows of ``values.csv``: by label, kind of goal ("taught" or "held-out") and bin of the distance, and at last for
        all distances, the number of pairs, the mean of the exact values, the mean of the errors ("bias"), the root of
        their mean square, and the share of pairs for which the greedy action is a best one
    """
    rows: list[dict[str, Any]] = []
    exact: dict[tuple[float, float, float], NDArray[np.float64]] = {}
    away = distances > 0.0
    bins = [*zip((0.0, *DISTANCES), (*DISTANCES, np.inf), strict=True), (0.0, np.inf)]
    for run in runs:
        learnt = learnt_values(run, mdp, goals)
        if learnt is None:
            print(f"left out: values of {run.folder}, whose model is of another kind")
            continue
        found, rewards = learnt
        if rewards not in exact:
            gamma, step_reward, goal_reward = rewards
            exact[rewards] = optimal_values(mdp, goals, gamma, step_reward, goal_reward, tolerance=TIE / 10)
        best = exact[rewards].max(axis=1)
        error = found.max(axis=1) - best
        greedy = np.take_along_axis(exact[rewards], found.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        is_best = greedy > best - TIE
        held_out = run.outcomes.held_out[goals]
        for kind, columns in (("taught", ~held_out), ("held-out", held_out)):
            for low, high in bins:
                pairs = away & columns & (distances >= low) & (distances < high)
                if pairs.any():
                    rows.append(
                        {
                            "label": run.label,
                            "seed": run.seed,
                            "goals": kind,
                            "steps_from": low,
                            "steps_to": high,
                            "pairs": int(pairs.sum()),
                            "exact": f"{best[pairs].mean():.4f}",
                            "bias": f"{error[pairs].mean():.4f}",
                            "rms": f"{np.sqrt(np.square(error[pairs]).mean()):.4f}",
                            "greedy_optimal": f"{is_best[pairs].mean():.4f}",
                        }
                    )
    return rows


def learnt_values(
    run: PastRun, mdp: TwoRoomsMDP, goals: NDArray[np.int64]
) -> tuple[NDArray[np.floating[Any]], tuple[float, float, float]] | None:
    """
    The values by which the saved model of a run acts: with averaged weights, if it has them.

    :param run: with a saved model
    :param mdp: its world
    :param goals: states, shape (G,)
    :return: for each start, action and goal, shape (S, A, G), and the discount factor and the rewards of a step and of the
        goal; None if the model is neither a ManyGoalsDQN nor a TabularAllGoals
    """
    path = run.folder / "model.zip"
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    kind = data["policy_class"]["__module__"]
    if kind == "sb3_manygoals.tabular":
        table = TabularAllGoals.load(path)
        return table.table.values[:, :, goals], (table.gamma, STEP_REWARD, GOAL_REWARD)
    if not kind.startswith("sb3_manygoals.many_goals_dqn"):
        return None
    model = ManyGoalsDQN.load(path, device="cpu")
    model.policy.set_training_mode(False)
    network = model.q_net if model.policy.q_net_ema is None else model.policy.q_net_ema
    found = np.empty((mdp.n_states, mdp.n_actions, len(goals)), dtype=np.float32)
    with th.no_grad():
        embedded = network.goal_embedding(network.trunk(th.as_tensor(mdp.observe(goals))))
        for first in range(0, mdp.n_states, CHUNK):
            states = np.arange(first, min(first + CHUNK, mdp.n_states))
            features = network.trunk(th.as_tensor(mdp.observe(states)))
            found[states] = network.pairwise(network.state_embedding(features), embedded).transpose(1, 2).numpy()
    return found, (model.gamma, model.step_reward, model.goal_reward)
