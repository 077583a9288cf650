"""Mastery, measured on many environments at once."""

import time

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from scipy import stats
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from gym_twoRooms.oracle import OraclePolicy, mastery_ceiling, reach_probabilities
from sb3_manygoals import ManyGoalsDQN, MasteryCallback, MasteryResult, evaluate_mastery
from tests.sb3_manygoals.many_goals_dqn.models import CELLS
from tests.sb3_manygoals.worlds import Always, Corridor, numbered_from_one

SMALL = "TwoRoomsSwitchSmall-v0"
ALL_GOALS = gym.make(SMALL).unwrapped.mdp.observations


def slow_loop(model, env_id, goals, max_steps, epsilon, episodes_per_goal, n_envs, seed):
    """Step one world at a time, with the random numbers of evaluate_mastery."""
    steps = np.full(len(goals) * episodes_per_goal, -1)
    for episode in range(len(steps)):
        round_number, column = divmod(episode, n_envs)
        rng = np.random.default_rng((seed, round_number, 1))
        first_seed = int(np.random.SeedSequence((seed, round_number)).generate_state(1)[0])
        env = gym.make(env_id)
        goal = goals[episode // episodes_per_goal]
        observation, _ = env.reset(seed=first_seed + column)
        for step in range(max_steps + 1):
            if np.array_equal(observation, goal):
                steps[episode] = step
                break
            explore = rng.random(n_envs)[column] < epsilon
            random_action = rng.integers(5, size=n_envs)[column]
            obs = {"observation": observation, "achieved_goal": observation, "desired_goal": goal}
            action = random_action if explore else int(model.predict(obs, deterministic=True)[0])
            observation = env.step(action)[0]
    return steps.reshape(len(goals), episodes_per_goal)


@pytest.mark.parametrize(("epsilon", "n_envs"), [(0.0, 30), (0.8, 30), (0.8, 7)])
def test_agrees_exactly_with_a_slow_loop(epsilon, n_envs):
    policy = {"embedding_dim": 16, "head": "bilinear", "net_arch": [32]}
    model = ManyGoalsDQN("CnnPolicy", gym.make(SMALL), policy_kwargs=policy, seed=0)
    goals = ALL_GOALS[::14]
    env = gym.make_vec(SMALL, num_envs=n_envs, vectorization_mode="vector_entry_point")
    fast = evaluate_mastery(
        model, env, goals, max_steps=60, epsilon=epsilon, episodes_per_goal=2, seed=3
    )
    slow = slow_loop(model, SMALL, goals, 60, epsilon, 2, n_envs, seed=3)
    np.testing.assert_array_equal(fast.steps, slow)
    assert fast.rate == (slow >= 0).mean()
    assert epsilon == 0.0 or 0.0 < fast.rate < 1.0


def test_a_ceiling_for_another_number_of_steps_is_refused():
    env = gym.make_vec(SMALL, num_envs=2, vectorization_mode="vector_entry_point")
    mdp = env.unwrapped.mdp
    goals = mdp.observe(np.arange(2))
    message = "ceiling must be for max_steps=20 steps, got one for 200 steps"
    with pytest.raises(ValueError, match=message):
        evaluate_mastery(
            OraclePolicy(mdp, np.arange(2)), env, goals, 20, ceiling=mastery_ceiling(mdp, 200)
        )


def test_a_ceiling_that_is_no_function_is_refused():
    env = gym.make_vec(SMALL, num_envs=2, vectorization_mode="vector_entry_point")
    mdp = env.unwrapped.mdp
    policy = OraclePolicy(mdp, np.arange(2))
    with pytest.raises(TypeError, match=r"ceiling must be a function of a goal and .*, got 0\.5"):
        evaluate_mastery(policy, env, mdp.observe(np.arange(2)), 20, ceiling=0.5)


def test_a_model_that_cannot_act_is_refused():
    env = gym.make_vec(SMALL, num_envs=2, vectorization_mode="vector_entry_point")
    goals = env.unwrapped.mdp.observe(np.arange(2))
    with pytest.raises(TypeError, match=r"SB3's method predict, .* got function"):
        evaluate_mastery(lambda seen: 0, env, goals)


def test_the_ceiling_belongs_to_the_very_episodes():
    env = gym.make_vec(SMALL, num_envs=13, vectorization_mode="vector_entry_point")
    mdp = env.unwrapped.mdp
    wanted = np.arange(0, mdp.n_states, 9)
    goals = mdp.observe(wanted)
    model = OraclePolicy(mdp, wanted)
    for steps in (6, 12):
        result = evaluate_mastery(
            model,
            env,
            goals,
            steps,
            episodes_per_goal=40,
            seed=1,
            ceiling=mastery_ceiling(mdp, steps),
        )
        table = reach_probabilities(mdp, wanted, steps)
        starts = []
        for round_ in range(-(-len(goals) * 40 // 13)):
            seed = int(np.random.SeedSequence((1, round_)).generate_state(1)[0])
            _, infos = env.reset(seed=seed)
            starts += infos["state"].tolist()
        expected = table[starts[: len(goals) * 40], np.repeat(np.arange(len(goals)), 40)]
        np.testing.assert_array_equal(result.ceiling, expected.reshape(len(goals), 40))
        # The oracle has no deadline in mind, so it stays a little below. Five standard errors of
        # 1,000 episodes are 0.08.
        assert result.ceiling.mean() - 0.13 < result.rate < result.ceiling.mean() + 0.08
        assert 0.1 < result.rate < 0.9
    assert evaluate_mastery(model, env, goals[:1], 3).ceiling is None


class Pilgrim:
    """Walks the corridor straight to the goal, but never to the last cell."""

    def predict(self, observation, deterministic=False):
        assert deterministic
        here = observation["observation"].argmax(axis=1)
        there = observation["desired_goal"].argmax(axis=1)
        return np.where(there == 5, 2, np.sign(there - here) % 3 % 2), None


def corridors(n, mode=AutoresetMode.NEXT_STEP, **kwargs):
    return SyncVectorEnv([lambda: Corridor(length=6, **kwargs)] * n, autoreset_mode=mode)


def test_outcomes_by_hand():
    for max_steps, steps in ((4, [0, 1, 2, 3, 4, -1]), (3, [0, 1, 2, 3, -1, -1])):
        result = evaluate_mastery(Pilgrim(), corridors(6, start=0), CELLS, max_steps)
        np.testing.assert_array_equal(result.steps[:, 0], steps)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_an_environment_that_ends_has_failed_unless_it_ends_at_the_goal(mode):
    right = Always(1)
    # The step off the right end is deadly: it terminates there. The reset that follows must not
    # count.
    result = evaluate_mastery(right, corridors(6, mode, deadly=True, start=3), CELLS, max_steps=50)
    np.testing.assert_array_equal(result.steps[:, 0], [-1, -1, -1, 0, 1, 2])
    # With random starts the world comes by the missed goals after its resets.
    result = evaluate_mastery(
        right, corridors(60, mode, deadly=True), CELLS, max_steps=50, episodes_per_goal=10
    )
    assert 0.2 < result.rate < 0.9
    assert result.steps.max() <= 5
    ends_at_5 = SyncVectorEnv(
        [lambda: TimeLimit(Corridor(length=6, start=3), 2)] * 6, autoreset_mode=mode
    )
    np.testing.assert_array_equal(
        evaluate_mastery(right, ends_at_5, CELLS, 2).steps[:, 0], [-1, -1, -1, 0, 1, 2]
    )


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_environments_one_trains_in_give_the_same_mastery_and_masks(mode):
    def outcome(mode):
        """Return the steps to each goal, or -1."""
        env = gym.make_vec(
            SMALL,
            30,
            vectorization_mode="vector_entry_point",
            autoreset_mode=mode,
            max_episode_steps=40,
        )
        return evaluate_mastery(
            Masked(), env, ALL_GOALS[::4], 60, epsilon=0.9, action_masks=True
        ).steps

    class Masked:
        """Always takes the first action that is allowed."""

        def predict(self, observation, deterministic=False, action_masks=None):
            return action_masks.argmax(axis=1), None

    expected = outcome(AutoresetMode.NEXT_STEP)
    assert 0 < (expected > 0).mean() < 1
    np.testing.assert_array_equal(outcome(mode), expected)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
def test_masks_may_come_with_resets_alone(mode):
    class Masking(gym.Env):
        observation_space = spaces.Discrete(5)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.cell = 0
            return 0, {"action_mask": np.ones(2, np.int8)}

        def step(self, action):
            self.cell += 1
            return self.cell, 0.0, False, self.cell == 2, {}

    class First:
        def predict(self, observation, deterministic=False):
            return np.zeros(len(observation["observation"]), int), None

    env = SyncVectorEnv([Masking] * 2, autoreset_mode=mode)
    assert evaluate_mastery(First(), env, np.array([1, 3]), max_steps=6).rate == 0.5


def test_the_interval_is_the_bootstraps():
    reached = np.array([1.0] * 80 + [0.0] * 20)
    model = Pilgrim()
    env = corridors(50, start=0)
    goals = CELLS[np.array([1] * 80 + [5] * 20)]
    result = evaluate_mastery(model, env, goals, seed=1)
    np.testing.assert_array_equal(result.reached[:, 0], reached)
    resampled = np.random.default_rng(0).choice(reached, (20_000, 100)).mean(axis=1)
    np.testing.assert_allclose(result.interval, np.quantile(resampled, [0.025, 0.975]), atol=0.011)
    assert evaluate_mastery(model, env, goals[:80]).interval == (1.0, 1.0)


def test_the_callback_measures_before_during_and_after(tmp_path):
    model = ManyGoalsDQN(
        "MlpPolicy",
        Corridor(length=6),
        learning_starts=1_000,
        policy_kwargs={"net_arch": [8]},
        seed=0,
    )
    model.set_logger(configure(str(tmp_path), ["csv"]))
    points = []
    callback = MasteryCallback(corridors(6), CELLS, 40, epsilon=1.0, on_measure=points.append)
    model.learn(100, callback, log_interval=1_000)
    model.logger.close()
    assert [point.step for point in points] == [0, 40, 80, 100]
    # An untrained greedy policy goes to one end, a random one everywhere.
    assert points[0].greedy.rate < 0.8
    assert points[0].epsilon.rate == 1.0
    seconds = [point.training_seconds for point in points]
    assert seconds == sorted(seconds)
    rows = pd.read_csv(tmp_path / "progress.csv")
    assert rows["time/total_timesteps"].tolist() == [0, 40, 80, 100]
    assert rows["mastery/greedy"].tolist() == pytest.approx([point.greedy.rate for point in points])
    saved = callback.get_checkpoint_state()
    time.sleep(0.05)
    # The clock stands between trainings.
    assert callback.get_checkpoint_state() == saved
    model.set_logger(configure(None, []))
    # At step 100 it has measured already.
    for steps, reset, measured in ((50, False, [120, 150]), (50, True, [0, 40, 50])):
        model.learn(steps, callback, log_interval=1_000, reset_num_timesteps=reset)
        assert [point.step for point in points[-len(measured) :]] == measured
    assert len(points) == 9
    assert points[6].training_seconds < saved["training_seconds"]


def test_goals_may_be_lists_and_of_any_dtype_that_their_space_holds():
    expected = evaluate_mastery(Pilgrim(), corridors(2), CELLS)
    for goals in (CELLS.tolist(), CELLS.astype(np.int64), CELLS.astype(bool)):
        found = evaluate_mastery(Pilgrim(), corridors(2), goals)
        np.testing.assert_array_equal(found.steps, expected.steps)
    with pytest.raises(ValueError, match="got int64"):
        evaluate_mastery(Pilgrim(), corridors(2), CELLS.astype(np.int64) + 256)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"goals": np.zeros((2, 5), np.uint8)},
            r"goals must be uint8 of shape \(n, 6\) .* got uint8 of \(2, 5\)",
        ),
        ({"goals": np.zeros((2, 6))}, "goals must be uint8 of shape .* got float64"),
        ({"goals": np.zeros((0, 6), np.uint8)}, "with n > 0"),
        ({"max_steps": 0}, "max_steps must be a whole number, at least 1, got 0"),
        ({"episodes_per_goal": -1}, "episodes_per_goal must be a whole number, at least 1, got -1"),
        ({"seed": None}, "seed must be a whole number, at least 0, got None"),
        ({"epsilon": 1.5}, r"epsilon must be a number in \[0, 1\], got 1.5"),
        (
            {"ceiling": lambda starts, goals: np.full(6, 1.5)},
            "ceiling must give 6 probabilities, one for each episode, got",
        ),
        ({"ceiling": lambda starts, goals: np.ones(4)}, "ceiling must give 6 probabilities"),
        (
            {"ceiling": lambda starts, goals: np.full(6, np.nan)},
            "ceiling must give 6 probabilities",
        ),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluate_mastery(Pilgrim(), corridors(2), **{"goals": CELLS, **settings})


def test_other_environments_are_refused():
    unknown = corridors(2)
    pendulum = SyncVectorEnv([lambda: gym.make("Pendulum-v1")])
    unknown.metadata = {}
    for env, goals, error, message in (
        (unknown, CELLS, ValueError, r"env\.metadata must say its autoreset_mode, got None"),
        (
            DummyVecEnv([Corridor]),
            CELLS,
            TypeError,
            "env must be a gymnasium.vector.VectorEnv.*got DummyVecEnv",
        ),
        (
            pendulum,
            np.zeros((1, 3), np.float32),
            ValueError,
            "env must have discrete actions that start at 0, got Box",
        ),
        (
            SyncVectorEnv([lambda: numbered_from_one(Corridor())]),
            CELLS,
            ValueError,
            r"discrete actions that start at 0, got Discrete\(3, start=1\)",
        ),
    ):
        with pytest.raises(error, match=message):
            evaluate_mastery(Pilgrim(), env, goals)
    with pytest.raises(ValueError, match="eval_freq must be a whole number, at least 1, got 0"):
        MasteryCallback(corridors(1), CELLS, 0)


def test_mastery_of_some_of_the_goals():
    reached = np.array([[True, True], [False, True], [False, False], [True, False]])
    steps = np.where(reached, 3, -1)
    ceiling = np.linspace(0.1, 0.8, 8).reshape(4, 2)
    result = MasteryResult(0.5, (0.1, 0.9), reached, steps, ceiling)
    for goals in (np.array([True, False, False, True]), np.array([0, 3])):
        some = result.subset(goals)
        assert some.rate == 0.75
        assert 0.5 <= some.interval[0] <= 0.75 <= some.interval[1] <= 1.0
        for found, expected in (
            (some.reached, reached),
            (some.steps, steps),
            (some.ceiling, ceiling),
        ):
            np.testing.assert_array_equal(found, expected[[0, 3]])
    assert result.subset([2]).interval == (0.0, 0.0)
    with pytest.raises(ValueError, match="at least one of the goals"):
        result.subset(np.zeros(4, dtype=bool))


def test_a_subset_is_resampled_by_the_seed_of_the_evaluation():
    reached = np.random.default_rng(0).random((40, 1)) < 0.5
    intervals = []
    for seed in (3, 4):
        steps = np.where(reached, 3, -1)
        result = MasteryResult(0.5, (0.1, 0.9), reached, steps, seed=seed)
        means = stats.bootstrap(
            (reached.mean(axis=1),),
            np.mean,
            method="percentile",
            rng=np.random.default_rng(seed),
            batch=100,
        )
        expected = means.confidence_interval
        intervals.append(result.subset(np.arange(40)).interval)
        assert intervals[-1] == (expected.low, expected.high)


class Scenarios(Corridor):
    """A corridor whose seeds are the numbers of its starts, and no others."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed not in (3, 4, 5):
            raise ValueError(f"there is no scenario {seed}")
        observation, info = super().reset(seed=seed, options={"cell": seed or 0})
        self.starts = [*getattr(self, "starts", []), seed]
        return observation, info


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("env_seeds", [range(3, 6), [3, 4, 5], np.array([3, 4, 5])])
def test_environments_of_few_scenarios_are_given_the_seeds_that_they_accept(mode, env_seeds):
    worlds = SyncVectorEnv([Scenarios] * 4, autoreset_mode=mode)
    with pytest.raises(ValueError, match="there is no scenario"):
        evaluate_mastery(Pilgrim(), worlds, CELLS)
    found = [
        evaluate_mastery(
            Pilgrim(), worlds, CELLS, 1, episodes_per_goal=10, seed=seed, env_seeds=env_seeds
        )
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(found[0].steps, found[1].steps)
    assert (found[0].steps != found[2].steps).any()
    seen = [seed for one in worlds.envs for seed in one.starts if seed is not None]
    counts = np.bincount(seen)[3:]
    assert counts.min() > 0.7 * counts.max()


def test_the_callback_gives_them_too():
    worlds = SyncVectorEnv([Scenarios] * 4)
    model = ManyGoalsDQN("MlpPolicy", Corridor(), policy_kwargs={"net_arch": [8]}, seed=0)
    points = []
    measured = MasteryCallback(
        worlds, CELLS, 1_000, 3, on_measure=points.append, env_seeds=range(3, 6)
    )
    model.learn(20, measured)
    assert len(points) == 2


@pytest.mark.parametrize(
    ("env_seeds", "message"),
    [
        ([], "env_seeds must have at least one seed, got none"),
        ({1, 2}, r"env_seeds must be a sequence of seeds or None, got \{1, 2\}"),
        (10, "env_seeds must be a sequence of seeds or None, got 10"),
        ("10", "env_seeds must be a sequence of seeds or None, got '10'"),
        ([3, -1], "each of env_seeds must be a whole number, at least 0, got -1"),
        ([0.5], "each of env_seeds must be a whole number, at least 0, got 0.5"),
    ],
)
def test_what_are_no_seeds_is_refused(env_seeds, message):
    with pytest.raises(ValueError, match=message):
        evaluate_mastery(Pilgrim(), corridors(2), CELLS, env_seeds=env_seeds)
    with pytest.raises(ValueError, match=message):
        MasteryCallback(corridors(2), CELLS, 10, env_seeds=env_seeds)
