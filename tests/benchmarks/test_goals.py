"""The command that measures success in worlds whose goals are what the user says."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks import goals
from benchmarks.goal_sets import RandomSets
from benchmarks.goal_worlds import Clock, GoalWorld, NearestColors, car_cells, record, worlds
from benchmarks.goals import GoalsConfig
from benchmarks.puzzles import (
    LayoutPictures,
    NewLayouts,
    RandomGoalBits,
    SlidingPuzzle,
    WiredBits,
)
from benchmarks.sensors import NearObservations, NoisyRoom, random_observations
from benchmarks.told_tasks import GAMMA, returns
from benchmarks.worlds import SettingError
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals import GoalBuffer, ManyGoalsDQN
from tests.benchmarks.command_line import rows_of


@pytest.mark.parametrize(
    ("world", "agent", "steps", "seeds"),
    [
        ("bits-8", "default", 300, [0, 1]),
        ("bits-8", "her", 300, [0]),
        ("agent-cell-keyed", "default", 640, [0]),
        ("car", "her", 300, [0]),
        ("near-pole", "td", 300, [0]),
        ("near-pole", "random", 300, [0, 1]),
        ("bits-8", "ppo", 1_024, [0]),
        ("recorded", "td", 300, [0]),
    ],
)
@pytest.mark.filterwarnings("ignore:learning_starts")
def test_a_row_is_added_for_each_run(tmp_path, monkeypatch, world, agent, steps, seeds):
    # A short measurement is enough, because nothing is learned in so few steps.
    measured = dataclasses.replace(worlds()[world](), episodes=5, max_steps=5)
    if measured.to_reach is not None:
        measured = dataclasses.replace(measured, to_reach=lambda: car_cells()[:10])
    monkeypatch.setattr(goals, "worlds", lambda: {world: lambda: measured})
    if world == "recorded":
        # It learns from what was recorded, and does not act.
        monkeypatch.setattr(ManyGoalsDQN, "learn", None)
    output = tmp_path / "goals.csv"
    for seed in seeds:
        GoalsConfig(world=world, agent=agent, seed=seed, total_steps=steps, output=output).run()
    rows = rows_of(output)
    assert [row["seed"] for row in rows] == list(map(str, seeds))
    assert {(row["world"], row["agent"]) for row in rows} == {(world, agent)}
    assert all(0.0 <= float(row["success"]) <= 1.0 for row in rows)


def test_a_world_that_does_not_exist_is_refused_by_name(tmp_path):
    with pytest.raises(SettingError, match="there is no world 'moon', one of bits-8"):
        GoalsConfig(world="moon", output=tmp_path / "goals.csv").run()


def test_sac_is_for_worlds_with_continuous_actions(tmp_path):
    config = GoalsConfig(world="bits-8", agent="sac", output=tmp_path / "goals.csv")
    with pytest.raises(SettingError, match="sac needs continuous actions, bits-8 has none"):
        config.run()


def test_pictures_that_are_too_small_for_the_rival_are_refused(tmp_path):
    with pytest.raises(SettingError, match="'her' cannot learn in the world 'agent-cell', whose"):
        GoalsConfig(world="agent-cell", agent="her", output=tmp_path / "goals.csv").run()


@pytest.mark.parametrize("agent", ["ppo", "random"])
def test_ppo_and_random_actions_are_measured_in_goal_envs_only(tmp_path, agent):
    config = GoalsConfig(world="agent-cell", agent=agent, output=tmp_path / "goals.csv")
    with pytest.raises(SettingError, match=f"{agent} is measured in GoalEnvs, agent-cell is none"):
        config.run()


def test_ppo_is_told_the_goal(tmp_path, monkeypatch):
    def make():
        return RandomGoalBits(3)

    world = GoalWorld(make, 4_000, "MultiInputPolicy", goal_env=make, episodes=100)
    monkeypatch.setattr(goals, "worlds", lambda: {"bits": lambda: world})
    row = GoalsConfig(world="bits", agent="ppo", output=tmp_path / "goals.csv").run()
    # An agent that does not know the goal reaches it in at most half of its episodes: three flips
    # show four of the eight goals.
    assert row["success"] > 0.9
    assert row["sampled"] > 0.6
    # Each rollout has 128 steps of 8 environments, and is learned from in 10 passes of 16 batches.
    assert row["steps"] == 4 * 1_024
    assert row["updates"] == 4 * 160


def test_observations_are_near_by_the_mean_square_in_standard_deviations_of_the_goals():
    goals = np.array([[0.0, 0.0], [2.0, 20.0]], dtype=np.float32)
    env = NearObservations(gym.make("MountainCar-v0"), goals, distance=0.5)
    # Standard deviations are 1 and 10. Offsets of .5 and of 5 are half of them.
    achieved = np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 5.0], [0.51, 5.0], [0.0, 7.0], [0.0, 7.1]])
    rewards = env.compute_reward(achieved, np.zeros_like(achieved), {})
    assert rewards.tolist() == [0.0, 0.0, 0.0, -1.0, 0.0, -1.0]


def test_a_numbered_goal_is_pursued_until_it_is_near():
    goals = random_observations("CartPole-v1", 5, seed=1)
    assert goals.shape == (5, 4)
    assert len(np.unique(goals, axis=0)) == 5
    env = NearObservations(gym.make("CartPole-v1"), goals, distance=1e9)
    observation, _ = env.reset(seed=0, options={"goal": 3})
    np.testing.assert_array_equal(observation["desired_goal"], goals[3])
    _, reward, ended, cut, info = env.step(0)
    assert (reward, ended, cut, info["is_success"]) == (0.0, True, False, True)
    env.distance = 0.0
    env.reset(seed=0, options={"goal": 3})
    _, reward, ended, _, info = env.step(0)
    assert (reward, ended, info["is_success"]) == (-1.0, False, False)


def test_the_cells_that_a_car_reaches_are_found_by_the_search():
    found = {cell.tobytes() for cell in car_cells()}
    key = worlds()["car"]().goals["state_key"]
    env = gym.make("MountainCar-v0").unwrapped
    rng = np.random.default_rng(0)
    met = set()
    for episode in range(40):
        observation, _ = env.reset(seed=episode)
        ended = False
        for _ in range(200):
            # A car that mostly pushes in the direction in which it goes comes far.
            forward = 2 if observation[1] >= 0.0 else 0
            action = forward if rng.random() < 0.8 else int(rng.integers(3))
            observation, _, ended, _, _ = env.step(action)
            met.add(key(observation).tobytes())
            if ended:
                break
    # The search leaves out few cells, which are reached from few places.
    assert len(met) > 500
    assert len(met - found) <= 0.02 * len(met)
    assert len(found) < 1_300


def test_keys_leave_out_the_clock_and_noise():
    clock = worlds()["clock"]().goals["state_key"]
    pictures = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    pictures[1, 0, 0] = 9
    np.testing.assert_array_equal(*map(clock, pictures))
    colors = np.array([[0, 0, 0], [100, 0, 0]], dtype=np.uint8)
    noisy = np.array([[[30, 9, 9], [80, 20, 3]]], dtype=np.uint8)
    assert NearestColors(colors)(noisy).tolist() == [[0, 1]]
    assert Clock.__doc__


class BestOfSets:
    """Takes the best action for each set, or always the same one."""

    def __init__(self, sets, is_best):
        self.mdp = sets.mdp
        self.is_best = is_best
        matrices = transition_matrices(self.mdp)
        self.actions = []
        for mask in sets.masks:
            worth = np.where(mask, 1.0, GAMMA * returns(matrices, mask, GAMMA))
            self.actions.append(np.stack([each @ worth for each in matrices]).argmax(axis=0))

    def predict(self, seen, deterministic):
        states = self.mdp.states_of(seen["observation"])
        set_number = int(seen["desired_goal"][0].argmax())
        best = self.actions[set_number][states]
        return best if self.is_best else np.zeros_like(best), None


def test_random_sets_are_measured_against_their_optimum():
    sets = RandomSets(seed=0, n=4)
    assert len(sets.names) == 4
    assert sets.masks.any(axis=1).all()
    assert len(np.unique(sets.masks, axis=0)) == 4
    state = int(np.flatnonzero(sets.masks[3])[0])
    achieved = sets.goal(sets.mdp.observe(state))
    np.testing.assert_array_equal(achieved, sets.masks[:, state])
    goals = sets.goals["goal_list"]
    is_reached = sets.reached(np.tile(achieved, (4, 1)), goals)
    np.testing.assert_array_equal(is_reached, sets.masks[:, state])
    np.testing.assert_allclose(sets.shares_of_optimum(BestOfSets(sets, True)), 1.0, atol=1e-6)
    assert sets.shares_of_optimum(BestOfSets(sets, False)).mean() < 0.5
    assert len(GoalBuffer(gym.make("TwoRoomsSwitch-v0").observation_space, **sets.goals)) == 4
    other = RandomSets(seed=1, n=4)
    assert other.names != sets.names


def test_the_wall_of_the_room_is_passed_at_the_top_only():
    room = NoisyRoom(distance=0.1)
    room.reset(seed=0)
    for height, passes in ((0.5, False), (0.9, True)):
        room._place = np.array([0.48, height])
        room.step(0)
        assert (room._place[0] > 0.5) == passes


def test_recorded_transitions_follow_each_other_between_resets():
    transitions, spaces_of_world = record(64 * 4, seed=0, reset_every=2)
    assert len(transitions) == 64 * 4
    before = transitions.observations.reshape(4, 64, -1)
    after = transitions.next_observations.reshape(4, 64, -1)
    np.testing.assert_array_equal(before[1], after[0])
    np.testing.assert_array_equal(before[3], after[2])
    assert (before[2] != after[1]).any()
    assert spaces_of_world.action_space.n == transitions.actions.max() + 1


def test_a_sliding_puzzle_moves_its_gap():
    puzzle = SlidingPuzzle(side=3, walks=(1,))
    check_env(puzzle, skip_render_check=True)
    puzzle.reset(seed=0)
    puzzle._tiles = np.array([1, 2, 3, 4, 0, 5, 6, 7, 8])
    found = [puzzle.step(action)[0]["observation"].tolist() for action in (0, 0, 2, 2, 1, 3)]
    up = [1, 0, 3, 4, 2, 5, 6, 7, 8]
    left = [0, 1, 3, 4, 2, 5, 6, 7, 8]
    down = [4, 1, 3, 0, 2, 5, 6, 7, 8]
    right = [4, 1, 3, 2, 0, 5, 6, 7, 8]
    # At the border nothing happens.
    assert found == [up, up, left, left, down, right]


def test_a_puzzle_begins_in_all_orders_that_moves_can_reach():
    puzzle = SlidingPuzzle(side=2, walks=(0,))
    found = {tuple(puzzle.reset(seed=seed)[0]["observation"].tolist()) for seed in range(300)}
    reached = {(0, 1, 2, 3)}
    waiting = [np.arange(4)]
    while waiting:
        tiles = waiting.pop()
        for action in range(4):
            after = puzzle._moved(tiles, action)
            if tuple(after.tolist()) not in reached:
                reached.add(tuple(after.tolist()))
                waiting.append(after)
    assert found == reached


def test_goals_of_a_puzzle_are_as_far_as_their_walk_and_anywhere():
    puzzle = SlidingPuzzle(side=3, walks=(1, 0))
    for seed in range(20):
        seen, _ = puzzle.reset(seed=seed, options={"goal": 0})
        ends = []
        for action in range(4):
            puzzle.reset(seed=seed, options={"goal": 0})
            ends.append(puzzle.step(action)[2])
        assert any(ends)
        assert not np.array_equal(seen["observation"], seen["desired_goal"])
    far = [puzzle.reset(seed=seed, options={"goal": 1})[0] for seed in range(20)]
    differ = [np.count_nonzero(one["observation"] != one["desired_goal"]) for one in far]
    # Two random orders of nine tiles have one in the same place on average.
    assert np.mean(differ) > 6.5
    # No order is left out, but half of all orders cannot be reached.
    goals = np.stack([one["desired_goal"] for one in far])
    assert (np.sort(goals, axis=1) == np.arange(9)).all()


def test_success_is_told_apart_by_the_kind_of_goal(tmp_path):
    config = GoalsConfig("puzzle-8", "random", total_steps=1, output=tmp_path / "rows.csv")
    row = config.run()
    kinds = [row[name] for name in ("5_moves", "10_moves", "20_moves", "anywhere")]
    assert row["success"] == pytest.approx(np.mean(kinds), abs=1e-4)
    assert kinds[0] > kinds[3]


def test_a_wire_flips_the_next_bit_too():
    env = WiredBits(5)
    check_env(env, skip_render_check=True)
    with_wire = set()
    for seed in range(20):
        for action in range(5):
            seen, _ = env.reset(seed=seed)
            wires, bits = np.split(seen["observation"], 2)
            after, *_ = env.step(action)
            expected = bits.copy()
            expected[action] = 1 - bits[action]
            if wires[action]:
                after_it = (action + 1) % 5
                expected[after_it] = 1 - bits[after_it]
            np.testing.assert_array_equal(after["observation"], np.concatenate([wires, expected]))
            np.testing.assert_array_equal(after["desired_goal"], seen["desired_goal"])
            with_wire.add((action, int(wires[action])))
    assert len(with_wire) == 10


def test_all_bits_can_be_reached_with_the_wires_of_each_episode():
    # Three bits have eight wirings, and all but that with three wires are drawn.
    env = WiredBits(3)
    wirings = set()
    for seed in range(100):
        seen, _ = env.reset(seed=seed)
        wires = seen["observation"][:3]
        wirings.add(wires.tobytes())
        np.testing.assert_array_equal(seen["desired_goal"][:3], wires)
        # An action twice does nothing, so the actions taken once decide where it ends.
        ends = set()
        for actions in range(8):
            env.reset(seed=seed)
            for action in range(3):
                if actions >> action & 1:
                    env.step(action)
            ends.add(env._seen()["achieved_goal"].tobytes())
        assert len(ends) == 8
    assert len(wirings) == 7


def test_an_episode_of_wired_bits_ends_at_its_goal():
    env = WiredBits(4)
    found = 0
    for seed in range(40):
        seen, _ = env.reset(seed=seed)
        for action in range(4):
            env.reset(seed=seed)
            after, reward, terminated, truncated, info = env.step(action)
            is_there = np.array_equal(after["achieved_goal"], seen["desired_goal"])
            assert (reward, terminated, info["is_success"]) == (is_there - 1.0, is_there, is_there)
            assert not truncated
            found += is_there
    assert found
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("name", ["MiniGrid-FourRooms-v0", "MiniGrid-MultiRoom-N2-S4-v0"])
def test_goals_are_in_the_layout_of_the_episode(name):
    pytest.importorskip("minigrid")
    env = NewLayouts(name)
    check_env(env, skip_render_check=True)
    layouts = set()
    for seed in range(40):
        seen, _ = env.reset(seed=seed)
        n_cells = len(seen["desired_goal"]) // 2
        walls = seen["observation"][:n_cells]
        layouts.add(walls.tobytes())
        np.testing.assert_array_equal(seen["desired_goal"][:n_cells], walls)
        assert seen["desired_goal"][n_cells:].sum() == 1
        assert not (seen["desired_goal"][n_cells:] & walls).any()
        np.testing.assert_array_equal(seen["achieved_goal"], seen["observation"][: 2 * n_cells])
        assert not np.array_equal(seen["achieved_goal"], seen["desired_goal"])
    assert len(layouts) > 5


@pytest.mark.parametrize("name", ["MiniGrid-FourRooms-v0", "MiniGrid-MultiRoom-N2-S4-v0"])
def test_pictures_show_what_bits_say(name):
    pytest.importorskip("minigrid")
    env = LayoutPictures(name)
    bits = NewLayouts(name)
    for action in (0, 1, 2, 3):
        env.reset(seed=action)
        bits.reset(seed=action)
        picture, reward, *ends = env.step(action)
        row, *expected = bits.step(action)
        assert env.observation_space.contains(picture)
        assert [reward, *ends] == expected
        seen = picture["observation"] // 255
        height, width, _ = seen.shape
        walls, agent, doors = row["observation"][:-4].reshape(3, height, width)
        np.testing.assert_array_equal(seen[..., 0], walls)
        np.testing.assert_array_equal(seen[..., 1], doors)
        directions = np.argwhere(seen[..., 2:])
        assert directions.tolist() == [[*np.argwhere(agent)[0], row["observation"][-4:].argmax()]]
        for key in ("achieved_goal", "desired_goal"):
            channels = row[key].reshape(2, height, width)
            np.testing.assert_array_equal(picture[key] // 255, np.moveaxis(channels, 0, 2))


def test_a_picture_is_reached_by_an_equal_one():
    pytest.importorskip("minigrid")
    env = LayoutPictures("MiniGrid-FourRooms-v0")
    goals = [env.reset(seed=seed)[0]["desired_goal"] for seed in (0, 1)]
    assert env.compute_reward(goals[0], goals[0], {}) == 0.0
    batch = env.compute_reward(np.stack(goals), np.stack([goals[0]] * 2), {})
    assert batch.tolist() == [0.0, -1.0]


def test_doors_and_steps_of_a_layout_are_shown():
    pytest.importorskip("minigrid")
    env = NewLayouts("MiniGrid-MultiRoom-N2-S4-v0")
    seen, _ = env.reset(seed=0)
    n_cells = len(seen["desired_goal"]) // 2
    # There is one closed door between two rooms.
    assert seen["observation"][2 * n_cells : 3 * n_cells].sum() == 1
    after, reward, terminated, *_ = env.step(0)
    assert (reward, terminated) == (-1.0, False)
    turned = after["observation"] != seen["observation"]
    assert np.flatnonzero(turned).min() >= 3 * n_cells
