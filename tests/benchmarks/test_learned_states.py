"""The command that measures mastery where no picture is ever seen twice."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.disturbances import DISTURBANCES, Spoiled, SpoiledReacher, Spoiler
from benchmarks.learned_states import LearnedStatesConfig, purity
from benchmarks.tables import TrainingVectorEnv, explore
from benchmarks.worlds import SettingError, World
from sb3_manygoals import GymnasiumVecEnv
from tests.benchmarks.command_line import rows_of


def pictures(n=3, height=4, width=5):
    return np.random.default_rng(0).integers(0, 256, (n, height, width, 3)).astype(np.uint8)


@pytest.mark.filterwarnings("ignore:learning_starts")
def test_a_row_is_added_for_each_run(tmp_path):
    output = tmp_path / "states.csv"
    for noise in (0, 20):
        LearnedStatesConfig(
            world="small", noise=noise, total_steps=640, most_goals=5, output=output
        ).run()
    clean, noisy = rows_of(output)
    # Clean pictures are told apart exactly. In so few steps, only some of them were met.
    assert clean["purity_door"] == clean["purity"] == str(round(1.0 - float(clean["unknown"]), 5))
    assert int(clean["clusters"]) <= int(clean["states"]) == 220
    # Noisy pictures never recur, and 640 steps are too few to learn states.
    assert float(noisy["unknown"]) == 1.0
    assert clean["ceiling"] == noisy["ceiling"] == "1.0"


def test_states_alone_are_learned_from_random_steps_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_manygoals.world.learned_states._FEWEST_UPDATES", 100)
    output = tmp_path / "states.csv"
    figure = tmp_path / "pictures" / "states.png"
    LearnedStatesConfig(
        world="small", total_steps=12_800, states_only=True, figure=figure, output=output
    ).run()
    (row,) = rows_of(output)
    assert float(row["purity_door"]) > 0.99
    assert row["network"] == row["targets"] == ""
    assert figure.stat().st_size > 1_000


def test_worlds_and_disturbances_that_do_not_exist_are_refused_by_name(tmp_path):
    with pytest.raises(SettingError, match="world must be one of small, paper, locks, warehouse"):
        LearnedStatesConfig(world="moon", output=tmp_path / "states.csv").run()
    with pytest.raises(SettingError, match="disturbance must be one of none, flicker"):
        LearnedStatesConfig(disturbance="rain", output=tmp_path / "states.csv").run()
    with pytest.raises(SettingError, match="total_steps must be at least n_envs, 64, got 9"):
        LearnedStatesConfig(total_steps=9, output=tmp_path / "states.csv").run()


@given(
    clusters=st.lists(st.integers(-1, 3), min_size=1, max_size=20),
    seed=st.integers(0, 100),
)
def test_purity_is_that_of_a_loop_over_clusters(clusters, seed):
    labels = np.random.default_rng(seed).integers(0, 3, len(clusters))
    right = 0
    for cluster in set(clusters) - {-1}:
        inside = [label for label, own in zip(labels, clusters, strict=True) if own == cluster]
        right += max(inside.count(label) for label in set(inside))
    assert purity(np.array(clusters), labels) == pytest.approx(right / len(clusters))


@settings(deadline=None)
@given(name=st.sampled_from(sorted(DISTURBANCES)), noise=st.integers(0, 40))
def test_spoiling_leaves_the_world_s_own_pictures_as_they_are(name, noise):
    clean = pictures()
    kept = clean.copy()
    spoiler = Spoiler(DISTURBANCES[name](), noise, seed=1)
    for seen in (spoiler.next(clean), spoiler.any(clean)):
        assert seen.shape == clean.shape
        assert seen.dtype == np.uint8
        assert not np.shares_memory(seen, clean)
    np.testing.assert_array_equal(clean, kept)


def test_noise_is_bounded():
    clean = np.full((50, 6, 6, 3), 128, dtype=np.uint8)
    seen = Spoiler(DISTURBANCES["none"](), 20, seed=1).next(clean).astype(int)
    assert (seen.min(), seen.max()) == (108, 148)


def test_a_circling_dot_visits_each_pixel_of_the_edge_once_in_a_round():
    clean = np.zeros((1, 4, 5, 3), dtype=np.uint8)
    spoiler = Spoiler(DISTURBANCES["circling-dot"](), 0, seed=1)
    places = [tuple(np.argwhere(spoiler.next(clean)[0, :, :, 0])[0]) for _ in range(15)]
    on_edge = {(row, column) for row in range(4) for column in range(5)}
    on_edge -= set(itertools.product((1, 2), (1, 2, 3)))
    assert set(places[:14]) == on_edge
    assert places[14] == places[0]
    steps = np.abs(np.diff(np.array(places), axis=0)).sum(axis=1)
    assert (steps == 1).all()


def test_a_walking_dot_goes_to_either_side():
    clean = np.zeros((1, 4, 5, 3), dtype=np.uint8)
    spoiler = Spoiler(DISTURBANCES["walking-dot"](), 0, seed=1)
    places = np.array([np.argwhere(spoiler.next(clean)[0, :, :, 0])[0] for _ in range(200)])
    assert (np.abs(np.diff(places, axis=0)).sum(axis=1) == 1).all()
    # It has turned round.
    assert (places[2:] == places[:-2]).all(axis=1).any()


def test_clocks_count_the_steps_of_each_environment():
    clean = np.zeros((2, 4, 5, 3), dtype=np.uint8)
    spoiler = Spoiler(DISTURBANCES["clock"](), 0, seed=1)
    times = np.array([spoiler.next(clean)[:, 0, -1, 0] // 4 for _ in range(70)]).astype(int)
    assert ((np.diff(times, axis=0) % 64) == 1).all()


@pytest.mark.parametrize("name", sorted(set(DISTURBANCES) - {"none"}))
def test_pictures_differ_from_time_to_time(name):
    spoiler = Spoiler(DISTURBANCES[name](), 0, seed=1)
    clean = pictures()
    assert not np.array_equal(spoiler.next(clean), spoiler.next(clean))


def test_flicker_hides_three_pixels_and_no_others():
    clean = pictures(n=64)
    seen = Spoiler(DISTURBANCES["flicker"](), 0, seed=1).next(clean)
    changed = (seen != clean).any(axis=(0, 3))
    assert np.argwhere(changed).tolist() == [[0, 0], [0, 1], [0, 2]]


def test_brightness_keeps_the_ratios_of_colors():
    clean = np.full((20, 2, 2, 3), 200, dtype=np.uint8)
    seen = Spoiler(DISTURBANCES["brightness"](), 0, seed=1).next(clean)
    assert (seen == seen[:, :1, :1, :1]).all()
    assert 120 <= seen.min() < seen.max() <= 200


def test_blur_mixes_a_pixel_with_its_four_neighbors():
    clean = np.zeros((50, 3, 3, 3), dtype=np.uint8)
    clean[:, 1, 1] = 200
    seen = Spoiler(DISTURBANCES["blur"](), 0, seed=1).next(clean).astype(float)
    share = 1.0 - seen[:, 1, 1, 0] / 200
    np.testing.assert_allclose(seen[:, 0, 1, 0], 200 * share / 4, atol=1.0)
    assert (seen[:, 0, 0] == 0).all()


def test_spoiled_environments_show_spoiled_pictures_also_after_a_single_reset():
    world = World("TwoRoomsSwitch-v0", "small")
    env = GymnasiumVecEnv(Spoiled(world.vector(2), Spoiler(DISTURBANCES["clock"](), 0, seed=1)))
    clock = env.reset()[:, 0, -1, 0].astype(int) // 4
    seen, _, _, _ = env.step(np.zeros(2, dtype=np.int64))
    assert (seen[:, 0, -1, 0] // 4 == (clock + 1) % 64).all()
    env.env_method("reset", indices=[0])
    after, _, _, _ = env.step(np.zeros(2, dtype=np.int64))
    # The clocks have not noticed.
    assert (after[:, 0, -1, 0] // 4 == (clock + 2) % 64).all()


class Watcher:
    """Notes what it sees, and acts always likewise."""

    def __init__(self):
        self.seen = []

    def predict(self, observation, *, deterministic=False):
        self.seen.append(observation)
        return np.zeros(len(observation["observation"]), dtype=np.int64), None


def test_the_picture_of_a_goal_stays_while_it_is_pursued():
    watcher = Watcher()
    reacher = SpoiledReacher(watcher, Spoiler(DISTURBANCES["none"](), 20, seed=1))
    clean = pictures()
    for goals in (clean, clean, clean[::-1]):
        reacher.predict({"observation": clean, "desired_goal": goals})
    first, second, third = watcher.seen
    np.testing.assert_array_equal(first["desired_goal"], second["desired_goal"])
    assert not np.array_equal(first["observation"], second["observation"])
    assert not np.array_equal(third["desired_goal"], second["desired_goal"])


def test_worlds_to_train_in_reset_only_those_that_are_named():
    class Steps:
        """A line of states from 0 to 5."""

        action_space = World("FrozenLake-v1").make().action_space
        observation_space = World("FrozenLake-v1").space

    line = explore(
        Steps(), {0: 1.0}, lambda state, action: [(1.0, min(state + 1, 5), state == 4)], np.array
    )
    env = TrainingVectorEnv(line, 2)
    env.reset()
    for _ in range(5):
        _, _, ended, _, _ = env.step(np.zeros(2, dtype=np.int64))
    assert ended.all()
    states, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert states.tolist() == [0, 5]
