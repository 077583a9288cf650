import csv

import numpy as np
import pytest

from benchmarks.exact_targets import exact_values
from benchmarks.value_rank import BINS, COLUMNS, ValueRankConfig, cuts, goal_directions
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import expected_steps
from tests.benchmarks.command_line import command

WORLD = "TwoRoomsSwitchSmall-v0"


@pytest.fixture(scope="module")
def world():
    return compile_layout(Layout.named("small"))


@pytest.fixture(scope="module")
def exact(world):
    return exact_values(world, 0.99, 0.0, -0.1, tolerance=1e-5)


def test_directions_are_those_of_a_singular_value_decomposition():
    matrix = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32)
    directions = goal_directions(matrix, 5)
    right = np.linalg.svd(matrix, full_matrices=False)[2][:5]
    np.testing.assert_allclose(np.abs(right @ directions), np.eye(5), atol=1e-4)


def test_no_matrix_of_that_rank_is_nearer(world, exact):
    singular = np.linalg.svd(exact.reshape(-1, world.n_states).astype(np.float64), compute_uv=False)
    for row, _ in cuts(world, exact, (3, 40)):
        left = np.square(singular[row["rank"] :]).sum()
        assert float(row["squares_left"]) == pytest.approx(left / np.square(singular).sum(), rel=0.01)
        assert float(row["rms"]) == pytest.approx(np.sqrt(left / exact.size), rel=0.01)


def test_best_actions_are_counted_by_the_steps_to_the_goal(world, exact):
    (row, actions), *_ = cuts(world, exact, (10,))
    steps = expected_steps(world, np.arange(world.n_states))
    taken = np.take_along_axis(exact, actions[:, np.newaxis].astype(np.int64), axis=1)[:, 0]
    is_best = taken > exact.max(axis=1) - 1e-4
    assert row["best_1"] == f"{is_best[(steps > 0) & (steps < 1.5)].mean():.4f}"
    assert row["best_8"] == f"{is_best[(steps >= 4.5) & (steps < 8.5)].mean():.4f}"
    assert float(row["best_1"]) < 0.6 < float(row["best_8"])


def test_a_higher_rank_masters_more_and_the_full_one_all_of_it(tmp_path):
    folder = ValueRankConfig(env_id=WORLD, ranks=(8, 220), output=tmp_path).run()
    with (folder / "value-rank.csv").open() as file:
        low, full = csv.DictReader(file)
    assert [*low] == COLUMNS
    assert float(low["greedy"]) < 0.5
    assert float(low["greedy_low"]) <= float(low["greedy"]) <= float(low["greedy_high"])
    assert float(full["greedy"]) == float(full["epsilon"]) == 1.0
    assert {full[name] for name in BINS} == {"1.0000"}


@pytest.mark.parametrize("rank", [0, 221])
def test_ranks_there_are_none_of_are_refused(tmp_path, rank):
    with pytest.raises(ValueError, match=f"1, 220.*got {rank}"):
        command("value-rank", "--env-id", WORLD, "--ranks", "5", str(rank), "--output", str(tmp_path))
    assert not list(tmp_path.iterdir())
