"""Worlds written out as tables, against the worlds themselves."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from benchmarks import tables as tables_module
from benchmarks.tables import NotEnumerable, Tables, TabularVectorEnv
from benchmarks.worlds import FixedGoal, SettingError, SquarePicture, World, minigrid, two_rooms
from gym_twoRooms.layout import Layout, LayoutError
from gym_twoRooms.oracle import mastery_ceiling, transition_matrices
from sb3_manygoals import evaluate_mastery

SMALL = World("TwoRoomsSwitchSmall-v0")


def outcomes(tables, state, action):
    """{(next state, whether the episode ends): probability}"""
    here = slice(*tables.first[state * tables.n_actions + action :][:2])
    pairs = zip(tables.next_states[here].tolist(), tables.ended[here].tolist(), strict=True)
    return dict(zip(pairs, tables.chances[here].tolist(), strict=True))


def test_two_rooms_is_its_compiled_layout():
    tables, mdp = SMALL.tables, SMALL.make().unwrapped.mdp
    np.testing.assert_array_equal(tables.observations, mdp.observations)
    np.testing.assert_allclose(tables.starts, 1 / mdp.n_states)
    assert not tables.ended.any()
    matrices = [matrix.toarray() for matrix in transition_matrices(mdp)]
    for state in range(mdp.n_states):
        for action, matrix in enumerate(matrices):
            found = np.zeros(mdp.n_states)
            for (after, _), chance in outcomes(tables, state, action).items():
                found[after] += chance
            np.testing.assert_allclose(found, matrix[state], atol=1e-12)


@pytest.mark.parametrize("horizon", [1, 7, 200])
def test_the_ceiling_is_the_oracles(horizon):
    tables, mdp = SMALL.tables, SMALL.make().unwrapped.mdp
    starts, goals = np.random.default_rng(0).integers(mdp.n_states, size=(2, 2_000))
    pair = tables.observations[starts], tables.observations[goals]
    np.testing.assert_allclose(tables.ceiling(horizon)(*pair), mastery_ceiling(mdp, horizon)(*pair), atol=1e-5)


def test_a_slippery_lake_has_its_probabilities_and_its_ends():
    world = World("FrozenLake8x8-v1")
    tables, lake = world.tables, world.make().unwrapped
    number = {int(observation): state for state, observation in enumerate(tables.observations)}
    assert len(tables) == 64  # holes and the goal, which end the episode, included
    assert tables.starts[number[0]] == 1.0
    for cell, state in number.items():
        if lake.desc.flatten()[cell] in (b"H", b"G"):
            assert outcomes(tables, state, 0) == {}
            continue
        for action in range(4):
            expected = {}
            for chance, after, _, ended in lake.P[cell][action]:
                key = number[after], bool(ended)
                expected[key] = expected.get(key, 0.0) + chance
            assert outcomes(tables, state, action) == pytest.approx(expected)
    # by hand: of moves to the right from the corner a third goes there, a third stays, a third goes down
    corner = np.zeros(2, dtype=np.int64)
    assert tables.ceiling(1)(corner, np.array([1, 8])) == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize(("name", "states", "best"), [("Taxi-v4", 404, 0.24), ("CliffWalking-v1", 38, 1.0)])
def test_only_what_can_be_reached_is_in_the_tables(name, states, best):
    world = World(name)
    tables = world.tables
    assert len(tables) == states  # of 500, and of 48
    starts = np.random.default_rng(0).choice(states, 2_000, p=tables.starts)
    goals = np.random.default_rng(1).integers(states, size=2_000)
    found = tables.ceiling(200)(tables.observations[starts], tables.observations[goals])
    assert found.mean() == pytest.approx(best, abs=0.03)


def test_steps_of_the_tables_are_distributed_as_the_worlds():
    world = World("FrozenLake8x8-v1")
    tables, n = world.tables, 4_000
    env = TabularVectorEnv(tables, n)
    env.reset(seed=0)
    for actions in (1, 2, 2):
        observations, rewards, _, truncated, _ = env.step(np.full(n, actions))
        assert not truncated.any()
        assert not rewards.any()
    matrix = np.zeros((64, 64))
    for cell in range(64):
        for chance, after, _, _ in world.make().unwrapped.P[cell][2]:
            matrix[cell, after] += chance
    first = np.zeros(64)
    for chance, after, _, _ in world.make().unwrapped.P[0][1]:
        first[after] += chance
    expected = first @ matrix @ matrix
    counts = np.bincount(observations, minlength=64)
    assert np.abs(counts - n * expected).max() < 5 * np.sqrt(n / 4)
    assert set(np.flatnonzero(counts)) == set(np.flatnonzero(expected > 1e-9))


def test_an_episode_that_ended_begins_anew_with_the_next_step_whatever_the_action():
    tables = World("CliffWalking-v1").tables
    env = TabularVectorEnv(tables, 2)
    observations, _ = env.reset(seed=0)
    assert observations.tolist() == [36, 36]
    moves = [(0, 0), *[(1, 1)] * 11, (2, 0)]  # up, along the cliff, and down into the goal, or against the upper wall
    for pair in moves:
        observations, _, terminated, _, _ = env.step(np.array(pair))
    assert observations.tolist() == [47, 23]
    assert terminated.tolist() == [True, False]
    observations, _, terminated, _, _ = env.step(np.array([1, 0]))
    assert observations.tolist() == [36, 11]
    assert not terminated.any()


class Straight:
    """Along the cliff."""

    def predict(self, observation, *, deterministic=False):
        here = observation["observation"]
        return np.where(here == 36, 0, np.where(here % 12 == 11, 2, 1)), None


def test_the_ceiling_leads_through_no_end_of_the_episode():
    """State 1 may be a start, leads on to the goal 2, and ends an episode that comes to it from 0."""
    rows = [[(1, True)], [(2, False)], [(2, False)]]  # of states 0, 1, 2, with one action
    ends = [end for row in rows for end in row]
    observations = np.arange(3)
    world = Tables(
        spaces.Discrete(3),
        observations,
        np.array([0.5, 0.5, 0.0]),
        1,
        np.arange(4),
        np.array([after for after, _ in ends]),
        np.ones(3),
        np.array([ended for _, ended in ends]),
    )
    assert world.ceiling(10)(observations, np.full(3, 2)).tolist() == [0.0, 1.0, 1.0]
    assert world.ceiling(10)(observations, np.full(3, 1)).tolist() == [1.0, 1.0, 0.0]


def test_arriving_where_the_episode_ends_counts_as_reached():
    tables = World("CliffWalking-v1").tables
    result = evaluate_mastery(Straight(), TabularVectorEnv(tables, 2), np.array([47, 0]), ceiling=tables.ceiling(200))
    assert result.steps.ravel().tolist() == [13, -1]
    assert result.ceiling.ravel().tolist() == [1.0, 1.0]


@pytest.fixture(scope="module")
def door_key():
    pytest.importorskip("minigrid")
    return World("MiniGrid-DoorKey-5x5-v0")


def test_what_is_carried_can_be_seen(door_key):
    env = door_key.make()
    grid = env.unwrapped
    before, _ = env.reset(seed=1)
    again, _ = env.reset(seed=2)
    np.testing.assert_array_equal(before, again)  # one layout
    assert env.observation_space.contains(before)
    assert before.shape == (6, 5, 3)
    place = next((x, y) for x in range(5) for y in range(5) if (cell := grid.grid.get(x, y)) and cell.type == "key")
    key = grid.grid.get(*place)
    assert not before[-1].any()
    np.testing.assert_array_equal(before[place], np.array(key.encode()) * [25, 51, 85])
    grid.carrying = key
    held = env.observation(None)
    np.testing.assert_array_equal(held[:-1], before[:-1])
    np.testing.assert_array_equal(held[-1], [before[place]] * 5)
    grid.carrying = None
    grid.agent_dir = (grid.agent_dir + 1) % 4
    assert (env.observation(None) != before).any()  # and so can where it looks


def test_a_world_without_a_model_is_explored_by_copies(door_key):
    tables = door_key.tables
    assert len(np.unique(tables.observations.reshape(len(tables), -1), axis=0)) == len(tables)
    assert len(set(tables.states_of(tables.observations))) == len(tables) > 100
    assert (tables.chances == 1.0).all()
    assert tables.starts.max() == 1.0
    best = tables.ceiling(200)(tables.observations[np.zeros(len(tables), dtype=int)], tables.observations)
    assert (best == 1.0).all()
    # random steps of the world are those of the tables
    env = door_key.make()
    observation, _ = env.reset()
    rng, state, carried = np.random.default_rng(3), int(tables.states_of(observation[None])[0]), 0
    assert tables.starts[state] == 1.0
    for _ in range(400):
        action = int(rng.integers(tables.n_actions))
        observation, _, terminated, truncated, _ = env.step(action)
        ((state, ended),) = outcomes(tables, state, action)
        np.testing.assert_array_equal(observation, tables.observations[state])
        assert ended == terminated
        carried += env.unwrapped.carrying is not None
        if terminated or truncated:
            observation, _ = env.reset()
            state = int(tables.states_of(observation[None])[0])
    assert carried > 0


@pytest.mark.parametrize(
    ("name", "message"), [("CartPole-v1", "begins at random"), ("MiniGrid-Dynamic-Obstacles-5x5-v0", "left to chance")]
)
def test_what_cannot_be_written_out_is_said(name, message):
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    with pytest.raises(NotEnumerable, match=message):
        _ = World(name).tables


def test_a_world_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr(tables_module, "MOST_STATES", 100)
    with pytest.raises(NotEnumerable, match="observations were met in 0 s, and there are more"):
        _ = World("Taxi-v4").tables


class ThereAndBack(gym.Env):
    """Between two states."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(1)
    P, initial_state_distrib = {0: {0: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)]}}, np.array([1.0, 0.0])


def test_states_that_look_the_same_are_not_told_apart(monkeypatch):
    monkeypatch.setattr(World, "make", lambda self, **options: ThereAndBack())
    tables = World("ThereAndBack-v0").tables
    assert tables.states_of(np.array([0, 1, 2])).tolist() == [0, 1, -1]
    with pytest.raises(NotEnumerable, match="look the same"):
        replace(tables, observations=np.array([2, 2]))


def test_worlds_by_name_and_by_file(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(str(Layout.named("small")))
    for map_, name in (("small", "TwoRoomsSwitch-small"), (str(file), "TwoRoomsSwitch-mine")):
        world = World("TwoRoomsSwitch-v0", map_)
        assert (len(world.tables), world.name, world.is_seen) == (220, name, True)
    assert World("FrozenLake8x8-v1").space == spaces.Discrete(64)
    native, others = SMALL.make_many(3, 0), World("FrozenLake8x8-v1").make_many(3, 0)
    assert (native.num_envs, others.num_envs) == (3, 3)
    assert type(native.vector_env).__name__ == "TwoRoomsSwitchVectorEnv"


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (World("Nowhere-v0"), "world must be the id of an environment with goals to learn, got 'Nowhere-v0'"),
        (World("Blackjack-v1"), "got 'Blackjack-v1': observation_space cannot be treated as a space of goals"),
        (World("Pendulum-v1"), "discrete actions that start at 0, got 'Pendulum-v1' with Box"),
        (World("CartPole-v1", "small"), "map is for TwoRoomsSwitch worlds only, got 'small' for 'CartPole-v1'"),
    ],
)
def test_what_is_no_world_is_refused(world, message):
    with pytest.raises(SettingError, match=message):
        world.make()


def test_what_is_no_map_is_refused(tmp_path):
    broken = tmp_path / "broken.txt"
    broken.write_text("#")
    for name, message in (("nofile", "map must be one of paper, small, .* got 'nofile'"), (str(broken), "broken")):
        with pytest.raises(LayoutError, match=message):
            World("TwoRoomsSwitch-v0", name).make()


DOWN, RIGHT = 1, 3


def test_the_goal_is_worth_one_and_ends_the_episode():
    """The second cell of the upper room is one step to the right of the first."""
    world = gym.make(SMALL.id).unwrapped
    _, info = world.reset(options={"state": 0})
    goal = world.step(RIGHT)[4]["state"]
    env = FixedGoal(gym.make(SMALL.id), goal)
    env.reset(seed=0, options={"state": 0})
    assert env.step(DOWN)[1:4] == (0.0, False, False)
    env.reset(options={"state": 0})
    observation, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated, info["state"]) == (1.0, True, False, goal)
    np.testing.assert_array_equal(observation, world.observation_of(goal))


@pytest.mark.parametrize("goal", [0, 130])
def test_episodes_begin_wherever_the_block_is_as_at_the_goal(goal):
    """The map has 55 states for each of the four cells of its block, which is the only thing of its colour."""
    env = FixedGoal(gym.make(SMALL.id), goal)
    colour = gym.make(SMALL.id).unwrapped.observation_of(0)[5, 1]
    observation, info = env.reset(seed=0)
    again = FixedGoal(gym.make(SMALL.id), goal).reset(seed=0)[1]
    assert info["state"] == again["state"]
    begun = [env.reset() for _ in range(1000)]
    assert len({info["state"] for _, info in begun}) == 54
    assert goal not in {info["state"] for _, info in begun}
    for observation, _ in begun:
        np.testing.assert_array_equal((observation == colour).all(-1), (env.goal == colour).all(-1))


def test_pictures_are_made_square():
    env = SquarePicture(gym.make(SMALL.id))
    observation, _ = env.reset(seed=1)
    assert env.observation_space.shape == observation.shape == (8, 8, 3)
    np.testing.assert_array_equal(observation[:, :4], env.unwrapped.observation_of(env.unwrapped.state))
    assert not observation[:, 4:].any()


def test_time_is_over():
    env = two_rooms(SMALL.id, 0, max_episode_steps=3)
    env.reset(seed=0, options={"state": 219})
    ends = [env.step(DOWN)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(ValueError, match="220"):
        two_rooms(SMALL.id, 220, 3)


def test_minigrid_is_seen_whole():
    pytest.importorskip("minigrid")
    env = minigrid("MiniGrid-DoorKey-5x5-v0", max_episode_steps=40)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == observation.shape == (20, 20, 3)
    assert env.unwrapped.max_steps == 40
    grid = env.unwrapped.grid
    wall = observation[:4, :4]
    for column in range(5):
        for row in range(5):
            cell = observation[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            is_wall = grid.get(column, row) is not None and grid.get(column, row).type == "wall"
            assert np.array_equal(cell, wall) == is_wall
    pictures = [env.step(action)[0] for action in (0, 0, 0, 0)]  # the agent turns around
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_they_are_environments():
    check_env(two_rooms(SMALL.id, 7, 20), warn=False)
