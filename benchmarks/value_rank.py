"""How many dimensions do exact values need? A product of embeddings has no more than its features have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from benchmarks import run_folder
from benchmarks.exact_targets import exact_values
from benchmarks.summary_tables import write
from benchmarks.value_errors import DISTANCES, GOAL_REWARD, STEP_REWARD, TIE
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import expected_steps
from sb3_manygoals.evaluation import evaluate_mastery

CHUNK = 256
"""Goals looked at together."""
BINS = [f"best_{int(bound)}" for bound in DISTANCES] + ["best_beyond"]
"""Columns of the share of best actions, named by the most steps to the goal."""
COLUMNS = [
    *("rank", "squares_left", "rms", "greedy", "greedy_low", "greedy_high", "epsilon", "epsilon_low", "epsilon_high"),
    *BINS,
]


@dataclass(frozen=True)
class ValueRankConfig:
    """
    Cut the exact values of a world, as a matrix of states and actions by goals, to a lower rank, the best of that rank in mean
    squares, and see how well the greedy policy of what is left reaches its goals.

    Where an embedding of the goal is a linear layer over its features, and the value is linear in that embedding, as in the
    paper's network, values have at most the rank of the features' number and one for the bias: 513 of 512.
    """

    env_id: str = "TwoRoomsSwitch-v0"
    """The world."""
    ranks: tuple[int, ...] = (32, 64, 128, 256, 513, 1024)
    """To cut to."""
    gamma: float = 0.99
    """Discount factor."""
    eval_steps: int = 200
    """Steps within which a goal must be reached."""
    eval_epsilon: float = 0.1
    """Probability of a random action in the second measurement."""
    episodes: int = 1
    """Random starts for each goal."""
    seed: int = 0
    """Of starts and random actions."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


class Greedy:
    """
    Acts by a table of actions.

    :param mdp: the world
    :param actions: of each state for each state as goal, shape (S, S)
    """

    def __init__(self, mdp: TwoRoomsMDP, actions: NDArray[np.integer[Any]]) -> None:
        self.mdp, self.actions = mdp, actions

    def predict(
        self, observation: dict[str, NDArray[np.uint8]], *, deterministic: bool = True
    ) -> tuple[NDArray[np.integer[Any]], None]:
        """
        :param observation: "observation" and "desired_goal", shape (n, H, W, 3) each
        :param deterministic: without effect: there is nothing random in it
        :return: actions, shape (n,), and None
        """
        states = self.mdp.states_of(observation["observation"])
        return self.actions[states, self.mdp.states_of(observation["desired_goal"])], None


def run(config: ValueRankConfig) -> Path:
    """
    Measure, print, and write ``value-rank.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    :raises ValueError: if a rank is not in [1, number of goals]
    """
    worlds = gym.make_vec(config.env_id, num_envs=_count(config.env_id), vectorization_mode="vector_entry_point")
    mdp: TwoRoomsMDP = worlds.unwrapped.mdp  # type: ignore[attr-defined]
    for rank in config.ranks:
        if not 1 <= rank <= mdp.n_states:
            raise ValueError(f"ranks must be in [1, {mdp.n_states}], the number of goals, got {rank}")
    folder = run_folder.create(config.output, "value-rank")
    run_folder.write_config(folder, config)
    exact = exact_values(mdp, config.gamma, GOAL_REWARD, STEP_REWARD, tolerance=TIE / 10)
    rows = []
    for row, actions in track(cuts(mdp, exact, config.ranks), "ranks", total=len(config.ranks)):
        for name, epsilon in (("greedy", 0.0), ("epsilon", config.eval_epsilon)):
            found = evaluate_mastery(
                Greedy(mdp, actions), worlds, mdp.observations, config.eval_steps, epsilon, config.episodes, seed=config.seed
            )
            for column, share in zip((name, f"{name}_low", f"{name}_high"), (found.rate, *found.interval), strict=True):
                row[column] = f"{share:.4f}"
        rows.append(row)
        write(folder / "value-rank.csv", COLUMNS, rows)
    print((folder / "value-rank.csv").read_text(encoding="utf-8"), end="")
    print(f"written to {folder}")
    return folder


def cuts(
    mdp: TwoRoomsMDP, exact: NDArray[np.float32], ranks: tuple[int, ...]
) -> Iterator[tuple[dict[str, Any], NDArray[np.int8]]]:
    """
    :param mdp: the world
    :param exact: values, shape (S, A, S)
    :param ranks: to cut to
    :return: for each rank a row of the table, without mastery, and the greedy actions for each state and goal, shape (S, S)
    """
    matrix = exact.reshape(-1, mdp.n_states)
    directions = goal_directions(matrix, max(ranks))
    coordinates = matrix @ directions
    bins = np.concatenate(
        [np.digitize(expected_steps(mdp, goals), DISTANCES).astype(np.int8) for goals in _chunks(mdp)], axis=1
    )
    bins[np.arange(mdp.n_states), np.arange(mdp.n_states)] = -1  # there already
    squares = float(np.square(matrix, dtype=np.float64).sum())
    for rank in ranks:
        actions = np.empty((mdp.n_states, mdp.n_states), dtype=np.int8)
        is_best = np.empty((mdp.n_states, mdp.n_states), dtype=np.bool_)
        left = 0.0
        for goals in _chunks(mdp):
            cut = (coordinates[:, :rank] @ directions[goals, :rank].T).reshape(mdp.n_states, mdp.n_actions, len(goals))
            left += float(np.square(cut - exact[:, :, goals], dtype=np.float64).sum())
            actions[:, goals] = cut.argmax(axis=1)
            taken = np.take_along_axis(exact[:, :, goals], actions[:, np.newaxis, goals].astype(np.int64), axis=1)[:, 0]
            is_best[:, goals] = taken > exact[:, :, goals].max(axis=1) - TIE
        row = {"rank": rank, "squares_left": f"{left / squares:.2e}", "rms": f"{np.sqrt(left / matrix.size):.5f}"}
        yield (
            row
            | {name: f"{is_best[bins == number].mean():.4f}" for number, name in enumerate(BINS) if (bins == number).any()},
            actions,
        )


def goal_directions(matrix: NDArray[np.float32], rank: int) -> NDArray[np.float32]:
    """
    :param matrix: shape (N, G)
    :param rank: at most G
    :return: its first right singular vectors, those of the largest singular values first, shape (G, rank)
    """
    from scipy.linalg import eigh  # importing it takes longer than the small map's values

    n_goals = matrix.shape[1]
    gram = np.zeros((n_goals, n_goals))
    for first in range(0, len(matrix), 8 * CHUNK):  # in double precision, of which there is not room for all at once
        some = matrix[first : first + 8 * CHUNK].astype(np.float64)
        gram += some.T @ some
    vectors = eigh(gram, subset_by_index=(n_goals - rank, n_goals - 1), overwrite_a=True)[1]
    return np.asarray(vectors[:, ::-1], dtype=np.float32)


def _chunks(mdp: TwoRoomsMDP) -> list[NDArray[np.int64]]:
    return [np.arange(first, min(first + CHUNK, mdp.n_states)) for first in range(0, mdp.n_states, CHUNK)]


def _count(env_id: str) -> int:
    env = gym.make(env_id)
    n_states: int = env.unwrapped.mdp.n_states  # type: ignore[attr-defined]
    env.close()
    return n_states
