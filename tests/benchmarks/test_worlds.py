"""Worlds written out as tables, against the worlds themselves."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env

from benchmarks import tables as tables_module
from benchmarks.tables import NotEnumerable, Tables, TabularVectorEnv
from benchmarks.worlds import PartialView, SettingError, WholeGrid, World, minigrid, two_rooms
from gym_twoRooms.layout import NAMED_LAYOUTS, LayoutError
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import ManyGoalsDQN
from tests.sb3_manygoals.goal_worlds import Track
from tests.sb3_manygoals.worlds import NumberedCorridor

SMALL = World("TwoRoomsSwitchSmall-v0")
LAKE = World("FrozenLake8x8-v1")
CLIFF = World("CliffWalking-v1")
DOWN = 1
"""Action of TwoRoomsSwitch."""
RIGHT = 3
"""Action of TwoRoomsSwitch."""


def outcomes(tables, state, action):
    """Return the probability of each next state, and of whether the episode ends there."""
    here = slice(*tables.first[state * tables.n_actions + action :][:2])
    pairs = zip(tables.next_states[here].tolist(), tables.ended[here].tolist(), strict=True)
    return dict(zip(pairs, tables.chances[here].tolist(), strict=True))


@pytest.mark.parametrize("world", [SMALL, LAKE], ids=["two rooms", "lake"])
def test_a_world_that_has_a_model_is_that_model(world):
    tables = world.tables
    env = world.make().unwrapped
    if world is SMALL:
        np.testing.assert_array_equal(tables.observations, env.mdp.observations)
        np.testing.assert_allclose(tables.starts, 1 / env.mdp.n_states)
        number = range(env.mdp.n_states)
    else:  # The tables also have the holes and the goal, which end the episode.
        number = {int(observation): state for state, observation in enumerate(tables.observations)}
        assert tables.starts[number[0]] == 1.0
    assert len(tables) == len(env.P) == len(number)
    for before in env.P:
        over = world is LAKE and env.desc.flatten()[before] in (b"H", b"G")
        for action, listed in env.P[before].items():
            expected = {}
            for chance, after, _, ended in [] if over else listed:
                key = number[after], bool(ended)
                expected[key] = expected.get(key, 0.0) + chance
            assert outcomes(tables, number[before], action) == pytest.approx(expected)


@pytest.mark.parametrize("horizon", [1, 7, 200])
def test_the_ceiling_is_the_oracles(horizon):
    tables = SMALL.tables
    mdp = SMALL.make().unwrapped.mdp
    starts, goals = np.random.default_rng(0).integers(mdp.n_states, size=(2, 2_000))
    pair = tables.observations[starts], tables.observations[goals]
    np.testing.assert_allclose(
        tables.ceiling(horizon)(*pair), mastery_ceiling(mdp, horizon)(*pair), atol=1e-5
    )


def test_the_ceiling_leads_through_no_end_of_the_episode():
    """State 1 leads on to the goal 2, and ends an episode that comes to it from state 0."""
    states = np.arange(3)
    world = Tables(
        spaces.Discrete(3),
        observations=states,
        starts=np.array([0.5, 0.5, 0.0]),
        n_actions=1,
        first=np.arange(4),
        next_states=np.array([1, 2, 2]),
        chances=np.ones(3),
        ended=np.array([True, False, False]),
    )
    assert world.ceiling(10)(states, np.full(3, 2)).tolist() == [0.0, 1.0, 1.0]
    assert world.ceiling(10)(states, np.full(3, 1)).tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(NotEnumerable, match="look the same"):
        replace(world, observations=np.array([0, 2, 2]))


@pytest.mark.parametrize(
    ("name", "states", "best"), [("Taxi-v4", 404, 0.24), ("CliffWalking-v1", 38, 1.0)]
)
def test_only_what_can_be_reached_is_in_the_tables(name, states, best):
    tables = World(name).tables
    rng = np.random.default_rng(0)
    # Taxi has 500 states, and CliffWalking 48.
    assert len(tables) == states
    starts = rng.choice(states, 2_000, p=tables.starts)
    goals = rng.integers(states, size=2_000)
    found = tables.ceiling(200)(tables.observations[starts], tables.observations[goals])
    assert found.mean() == pytest.approx(best, abs=0.03)


def test_steps_of_the_tables_are_distributed_as_the_worlds():
    tables = LAKE.tables
    n = 4_000
    env = TabularVectorEnv(tables, n)
    env.reset(seed=0)
    expected = tables.starts
    for action in (1, 2, 2):
        observations, rewards, _, truncated, _ = env.step(np.full(n, action))
        assert not np.any([truncated, rewards])
        before = expected
        expected = np.zeros(64)
        for state in np.flatnonzero(before):
            for (after, _), chance in outcomes(tables, state, action).items():
                expected[after] += before[state] * chance
    counts = np.bincount(tables.states_of(observations), minlength=64)
    assert np.abs(counts - n * expected).max() < 5 * np.sqrt(n / 4)
    assert set(np.flatnonzero(counts)) == set(np.flatnonzero(expected > 1e-9))


def test_an_episode_that_ended_begins_anew_with_the_next_step_whatever_the_action():
    env = TabularVectorEnv(CLIFF.tables, 2)
    assert env.reset(seed=0)[0].tolist() == [36, 36]
    # The first goes up, along the cliff, and down into the goal; the other against the upper wall.
    for pair in [(0, 0), *[(1, 1)] * 11, (2, 0)]:
        observations, _, terminated, _, _ = env.step(np.array(pair))
    assert (observations.tolist(), terminated.tolist()) == ([47, 23], [True, False])
    observations, _, terminated, _, _ = env.step(np.array([1, 0]))
    assert (observations.tolist(), terminated.tolist()) == ([36, 11], [False, False])
    # The last state has no outcomes.
    tables = Tables(
        spaces.Discrete(2),
        observations=np.arange(2),
        starts=np.array([1.0, 0.0]),
        n_actions=1,
        first=np.array([0, 1, 1]),
        next_states=np.array([1]),
        chances=np.ones(1),
        ended=np.array([True]),
    )
    env = TabularVectorEnv(tables, 1)
    env.reset(seed=0)
    assert [env.step(np.zeros(1, dtype=np.int64))[0].item() for _ in range(3)] == [1, 0, 1]


@pytest.fixture(scope="module")
def door_key():
    """A world of MiniGrid with a key and a locked door."""
    pytest.importorskip("minigrid")
    return World("MiniGrid-DoorKey-5x5-v0")


def test_what_is_carried_can_be_seen(door_key):
    env = door_key.make()
    grid = env.unwrapped
    before, _ = env.reset(seed=1)
    # Every seed has the same layout.
    np.testing.assert_array_equal(before, env.reset(seed=2)[0])
    assert env.observation_space.contains(before)
    assert not before[-1].any()
    place = next(
        (x, y)
        for x in range(5)
        for y in range(5)
        if (cell := grid.grid.get(x, y)) and cell.type == "key"
    )
    grid.carrying = grid.grid.get(*place)
    held = env.observation(None)
    np.testing.assert_array_equal(held[:-1], before[:-1])
    np.testing.assert_array_equal(held[-1], [before[place]] * 5)
    grid.agent_dir = (grid.agent_dir + 1) % 4
    # The direction in which the agent looks can be seen, too.
    assert (env.observation(None) != held).any()


# The second world is not square.
@pytest.mark.parametrize("name", ["DoorKey-5x5", "UnlockPickup"])
def test_a_whole_grid_shows_what_minigrid_does_and_the_agent(name):
    pytest.importorskip("minigrid")
    env = World(f"MiniGrid-{name}-v0").make()
    seen, _ = env.reset()
    grid = env.unwrapped
    expected = grid.grid.encode()
    expected[grid.agent_pos] = (10, 0, grid.agent_dir)
    np.testing.assert_array_equal(seen[:-1], expected * np.array([25, 51, 85], np.uint8))
    vector = WholeGrid.one_hot(seen[None]).reshape(*seen.shape[:2], 21)
    numbers = [part.argmax(axis=2) for part in np.split(vector, [11, 17], axis=2)]
    np.testing.assert_array_equal(np.stack(numbers, axis=2) * WholeGrid.SCALE, seen)
    assert (vector.sum(axis=2) == 3.0).all()


def test_a_world_without_a_model_is_explored_by_copies(door_key):
    tables = door_key.tables
    assert len(set(tables.states_of(tables.observations))) == len(tables) > 100
    assert (tables.chances == 1.0).all()
    best = tables.ceiling(200)(
        tables.observations[np.zeros(len(tables), dtype=int)], tables.observations
    )
    assert (best == 1.0).all()
    # Random steps of the world are those of the tables.
    env = door_key.make()
    rng = np.random.default_rng(3)
    carried = 0
    start = state = int(tables.states_of(env.reset()[0][None])[0])
    assert tables.starts[start] == 1.0
    for _ in range(400):
        action = int(rng.integers(tables.n_actions))
        observation, _, terminated, truncated, _ = env.step(action)
        ((state, ended),) = outcomes(tables, state, action)
        np.testing.assert_array_equal(observation, tables.observations[state])
        assert ended == terminated
        carried += env.unwrapped.carrying is not None
        if terminated or truncated:
            env.reset()
            state = start
    assert carried > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v1", "begins at random"),
        ("MiniGrid-Dynamic-Obstacles-5x5-v0", "left to chance"),
        ("Taxi-v4", "observations were met in 0 s, and there are more"),
    ],
)
def test_what_cannot_be_written_out_is_said(name, message, monkeypatch):
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    monkeypatch.setattr(tables_module, "MOST_STATES", 100)
    with pytest.raises(NotEnumerable, match=message):
        _ = World(name).tables


def test_worlds_by_name_and_by_file(tmp_path):
    file = tmp_path / "mine.txt"
    broken = tmp_path / "broken.txt"
    file.write_text(str(NAMED_LAYOUTS["small"]))
    broken.write_text("#")
    for map_, name in (("small", "TwoRoomsSwitch-small"), (str(file), "TwoRoomsSwitch-mine")):
        world = World("TwoRoomsSwitch-v0", map_)
        assert (len(world.tables), world.name, world.is_seen) == (220, name, True)
    for map_, message in (
        ("nofile", "map must be one of paper, small, .* got 'nofile'"),
        (str(broken), "broken"),
    ):
        with pytest.raises(LayoutError, match=message):
            World("TwoRoomsSwitch-v0", map_).make()
    native = SMALL.make_many(3, 0)
    assert (native.num_envs, LAKE.make_many(3, 0).num_envs) == (3, 3)
    assert type(native.vector_env).__name__ == "TwoRoomsSwitchVectorEnv"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["Nowhere-v0"],
            "a world with goals to learn of 'Nowhere-v0' cannot be built: "
            "Environment `Nowhere` doesn't exist",
        ),
        (
            ["Blackjack-v1"],
            "'Blackjack-v1' cannot be built: "
            "observation_space cannot be treated as a space of goals",
        ),
        (["Pendulum-v1"], "discrete actions that start at 0, got 'Pendulum-v1' with Box"),
        (
            ["CartPole-v1", "small"],
            "map is for TwoRoomsSwitch worlds only, got 'small' for 'CartPole-v1'",
        ),
    ],
)
def test_what_is_no_world_is_refused(arguments, message):
    world = World(*arguments)
    with pytest.raises(SettingError, match=message):
        world.make()


def test_a_goal_env_is_refused_in_words():
    gym.register("Track-v0", Track)
    message = "observations are Dicts, which the command line does not take. ManyGoalsDQN itself"
    with pytest.raises(SettingError, match=message):
        World("Track-v0").make()


def test_the_goal_is_worth_one_and_ends_the_episode_as_time_does():
    """The second cell of the upper room is one step to the right of the first."""
    world = gym.make(SMALL.id).unwrapped
    world.reset(options={"state": 0})
    goal = world.step(RIGHT)[4]["state"]
    env = two_rooms(SMALL.id, goal, max_episode_steps=3)
    check_env(env, warn=False)
    env.reset(seed=0, options={"state": 0})
    observation, *end, info = env.step(RIGHT)
    assert (end, info["state"]) == ([1.0, True, False], goal)
    # The picture was made square.
    assert env.observation_space.shape == observation.shape == (8, 8, 3)
    np.testing.assert_array_equal(observation[:, :4], world.observation_of(goal))
    assert not observation[:, 4:].any()
    env.reset(options={"state": 219})
    assert [env.step(DOWN)[1:4] for _ in range(3)] == [(0.0, False, False)] * 2 + [
        (0.0, False, True)
    ]
    with pytest.raises(SettingError, match=r"goal must be in \[0, 220\), got 220"):
        two_rooms(SMALL.id, 220, 3)


@pytest.mark.parametrize("goal", [0, 130])
def test_episodes_begin_wherever_the_block_is_as_at_the_goal(goal):
    """The map has 55 states for each of the four cells of its block."""
    env, again = (two_rooms(SMALL.id, goal, 50) for _ in range(2))
    blocks = env.unwrapped.mdp.blocks
    begun = [info["state"] for _, info in [env.reset(seed=0), *(env.reset() for _ in range(1000))]]
    assert begun[0] == again.reset(seed=0)[1]["state"]
    assert (len(set(begun)), goal in begun) == (54, False)
    assert (blocks[begun] == blocks[goal]).all()


@pytest.mark.parametrize(
    ("make", "wrapper", "side"),
    [(minigrid, "RGBImgObs", 20), (PartialView, "RGBImgPartialObs", 28)],
)
def test_minigrid_is_seen_as_its_own_wrappers_show_it(make, wrapper, side):
    wrappers = pytest.importorskip("minigrid.wrappers")
    name = "MiniGrid-DoorKey-5x5-v0"
    theirs = gym.make(name, max_steps=40, highlight=make is PartialView)
    envs = (
        make(name, 40),
        wrappers.ImgObsWrapper(getattr(wrappers, f"{wrapper}Wrapper")(theirs, tile_size=4)),
    )
    assert (
        envs[0].observation_space
        == envs[1].observation_space
        == spaces.Box(0, 255, (side, side, 3), np.uint8)
    )
    for seed in range(5):
        steps = [(*env.reset(seed=seed), 0, 0) for env in envs]
        for action in np.random.default_rng(seed).integers(6, size=40):
            np.testing.assert_array_equal(steps[0][0], steps[1][0])
            steps = [env.step(action) for env in envs]
        assert all(truncated for *_, truncated, _ in steps)


class TenScenarios(NumberedCorridor):
    """A world that refuses every seed but those of its scenarios."""

    def reset(self, *, seed=None, options=None):
        assert seed is None or 0 <= seed < 10, f"seed {seed}: ten scenarios only"
        return super().reset(seed=seed, options=options)


def test_a_world_of_few_scenarios_is_trained_in_with_any_number_of_environments():
    gym.register("TenScenarios-v0", TenScenarios)
    world = World("TenScenarios-v0", scenarios=10)
    model = ManyGoalsDQN("MlpPolicy", world.make_many(4, seed=8), seed=20, learning_starts=5)
    model.learn(40)
    with pytest.raises(AssertionError, match="ten scenarios only"):
        World("TenScenarios-v0").make().reset(seed=11)
