"""Environments whose goals are what observations achieve, and whose states are keys."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_manygoals.goals import UNKNOWN, GoalBuffer, GoalBufferWrapper, VecGoalBufferWrapper
from tests.sb3_manygoals.worlds import Dusty, cell_of, pair_of

LEFT, RIGHT, STAY = range(3)
PAIRS = spaces.Discrete(20)


def is_near(achieved, desired):
    """Return which cells of dusty observations are at most one apart."""
    return np.abs(achieved[:, 0].astype(int) - desired[:, 0].astype(int)) <= 1


KINDS = {
    "pairs": {"goal": pair_of, "goal_space": PAIRS},
    "cells, inferred": {"goal": cell_of},
    "keys": {"state_key": cell_of},
    "keys and pairs": {"state_key": cell_of, "goal": pair_of, "goal_space": PAIRS},
    "cells at a distance": {"goal": lambda seen: seen[:1], "reached": 1.0},
    "a function": {"state_key": cell_of, "reached": is_near},
}


def reached_by(kind, observation, goal):
    """Return whether an observation of a dusty corridor reaches a goal, by hand."""
    cell = int(observation[0])
    return {
        "pairs": lambda: cell // 2 == goal,
        "cells, inferred": lambda: cell == goal[0],
        "keys": lambda: cell == int(goal[0]),
        "keys and pairs": lambda: cell // 2 == goal,
        "cells at a distance": lambda: abs(cell - goal[0]) <= 1,
        "a function": lambda: abs(cell - int(goal[0])) <= 1,
    }[kind]()


def achieved_by(kind, observation):
    """Return what an observation achieves, by hand."""
    cell = int(observation[0])
    if kind in ("keys", "a function"):
        return observation
    if kind == "cells, inferred":
        return np.array([cell])
    if kind == "cells at a distance":
        return observation[:1]
    return np.int64(cell // 2)


@pytest.mark.filterwarnings(
    "ignore:.*is different from the unwrapped version",
    "ignore:.*observation space.*",
    "ignore:.*Box .*",
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_spaces_are_those_of_observations_and_goals(kind):
    env = GoalBufferWrapper(Dusty(), **KINDS[kind])
    expected = env.goal_buffer.goal_space
    assert env.observation_space["observation"] == Dusty().observation_space
    for key in ("achieved_goal", "desired_goal"):
        assert env.observation_space[key] == expected
    if "pairs" in kind:
        assert expected == PAIRS
    venv = VecGoalBufferWrapper(DummyVecEnv([Dusty] * 2), **KINDS[kind])
    assert venv.observation_space == env.observation_space
    check_env(env, skip_render_check=True)
    sb3_check_env(GoalBufferWrapper(Dusty(), **KINDS[kind]), warn=False)
    obs, _ = env.reset(seed=0)
    for _ in range(30):
        assert env.observation_space.contains(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()


@pytest.mark.parametrize("resets", [True, False, "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_environment_and_a_vector_of_one_do_the_same(kind, resets):
    """Rewards, ends and goals are those by hand."""
    settings = {"max_episode_steps": 5, "reset_worlds": resets, **KINDS[kind]}
    env = GoalBufferWrapper(Monitor(Dusty(7, deadly=True)), **settings)
    venv = VecGoalBufferWrapper(DummyVecEnv([lambda: Monitor(Dusty(7, deadly=True))]), **settings)
    venv.seed(3)
    obs, _ = env.reset(seed=3)
    vec_obs = venv.reset()
    rng = np.random.default_rng(0)
    n_successes = 0
    n_ends = 0
    for _ in range(300):
        for key, value in obs.items():
            np.testing.assert_array_equal(vec_obs[key][0], value)
        np.testing.assert_array_equal(obs["achieved_goal"], achieved_by(kind, obs["observation"]))
        desired = obs["desired_goal"]
        action = rng.integers(3)
        obs, reward, terminated, truncated, info = env.step(action)
        vec_obs, rewards, dones, (vec_info,) = venv.step(np.array([action]))
        is_over = terminated or truncated
        assert dones[0] == is_over
        assert rewards[0] == np.float32(reward)
        last = (
            vec_info["terminal_observation"] if is_over else {k: v[0] for k, v in vec_obs.items()}
        )
        for key, value in obs.items():
            np.testing.assert_array_equal(last[key], value)
        reached = reached_by(kind, obs["observation"], desired)
        assert info["is_success"] == vec_info["is_success"] == reached
        assert reward == (0.0 if reached else -0.1)
        assert terminated == (reached or info["env_terminated"])
        shared = ("goal_steps", "achieved_goal_id", "desired_goal_id", "state_id", "next_state_id")
        assert [info[key] for key in shared] == [vec_info[key] for key in shared]
        assert env.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}) == reward
        n_successes += reached
        n_ends += is_over
        if is_over:
            obs, _ = env.reset()
    assert 0 < n_successes < n_ends
    np.testing.assert_array_equal(env.goal_buffer.observations, venv.goal_buffer.observations)
    if "state_key" in KINDS[kind]:
        assert len(env.goal_buffer.states) == 7
    else:
        assert len(env.goal_buffer.states) > 200


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_of_batches_are_those_of_single_goals(kind):
    env = GoalBufferWrapper(Dusty(), **KINDS[kind])
    world = Dusty()
    world.reset(seed=0)
    seen = [world.observation_of(cell) for cell in range(6)]
    goals = np.array([achieved_by(kind, one) for one in seen], env.goal_buffer.dtype)
    left, right = (index.ravel() for index in np.indices((6, 6)))
    single = [env.compute_reward(goals[a], goals[b], {}) for a, b in zip(left, right, strict=True)]
    wanted = [0.0 if reached_by(kind, seen[a], goals[b]) else -0.1 for a, b in np.ndindex(6, 6)]
    assert single == wanted
    rewards = env.compute_reward(goals[left], goals[right], [{}] * 36)
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(rewards, np.float32(wanted))
    deep = [goals[index].reshape(4, 9, *goals.shape[1:]) for index in (left, right)]
    np.testing.assert_array_equal(env.compute_reward(*deep, None).ravel(), rewards)
    venv = VecGoalBufferWrapper(DummyVecEnv([Dusty] * 3), **KINDS[kind])
    answers = venv.env_method("compute_reward", goals[left], goals[right], {}, indices=[0, 2])
    assert len(answers) == 2
    np.testing.assert_array_equal(answers[1], rewards)
    with pytest.raises(ValueError, match=r"must have one shape"):
        env.compute_reward(goals[left], goals, {})


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_goal_can_be_set(kind, vector):
    goal = np.asarray(
        achieved_by(kind, np.array([3, 0.25], np.float32)),
        GoalBuffer(Dusty().observation_space, **KINDS[kind]).dtype,
    )
    settings = {"reset_worlds": True, **KINDS[kind]}
    if vector:
        env = VecGoalBufferWrapper(DummyVecEnv([lambda: Dusty(start=0)]), **settings)
        env.seed(0)
        env.set_options({"goal": goal})
        np.testing.assert_array_equal(env.reset()["desired_goal"][0], goal)
        steps = [env.step(np.array([RIGHT]))[3][0]["is_success"] for _ in range(3)]
    else:
        env = GoalBufferWrapper(Dusty(start=0), **settings)
        obs, info = env.reset(seed=0, options={"goal": goal})
        np.testing.assert_array_equal(obs["desired_goal"], goal)
        assert info["desired_goal_id"] == UNKNOWN
        steps = [env.step(RIGHT)[4]["is_success"] for _ in range(3)]
    # The goal is cell 3, or it is reached one cell before.
    assert steps.index(True) == (1 if reached_by(kind, np.array([2, 0.0]), goal) else 2)


@pytest.mark.parametrize(
    ("kind", "goal", "message"),
    [
        ("pairs", 20, r"options\['goal'\] must be of the goal space, options\['goal'\] is 20"),
        ("pairs", [1, 2], r"options\['goal'\] must be int64 of shape \(\), got int64 of \(2,\)"),
        ("pairs", 1.5, r"options\['goal'\] must be int64 of shape \(\), got float64"),
        (
            "keys",
            np.zeros(3, np.float32),
            r"must be float32 of shape \(2,\), got float32 of \(3,\)",
        ),
        ("keys", np.array([9.0, 0.0], np.float32), "must be of the observation space"),
    ],
)
def test_a_goal_that_is_none_is_refused(kind, goal, message):
    env = GoalBufferWrapper(Dusty(), **KINDS[kind])
    with pytest.raises(ValueError, match=message):
        env.reset(options={"goal": goal})
    venv = VecGoalBufferWrapper(DummyVecEnv([Dusty]), **KINDS[kind])
    with pytest.raises(ValueError, match=message):
        venv.set_options({"goal": goal})


def test_a_goal_within_reach_of_known_ones_is_no_unknown_goal(recwarn):
    env = GoalBufferWrapper(Dusty(), goal=lambda seen: seen[:1], reached=1.0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(RIGHT)
    far = env.goal_buffer.observations.max() + np.float32(0.5)
    env.reset(options={"goal": np.array([far])})
    assert [str(warning.message) for warning in recwarn] == []
    with pytest.warns(UserWarning, match="the goal that was set is not known"):
        env.reset(options={"goal": np.array([-40.0], np.float32)})


@pytest.mark.parametrize("vector", [False, True])
def test_functions_belong_to_a_new_goal_buffer(vector):
    world = DummyVecEnv([Dusty]) if vector else Dusty()
    wrapper = VecGoalBufferWrapper if vector else GoalBufferWrapper
    buffer = GoalBuffer(Dusty().observation_space, goal=pair_of, goal_space=PAIRS)
    env = wrapper(world, buffer)
    assert env.goal_buffer is buffer
    assert env.observation_space["desired_goal"] == PAIRS
    message = "state_key and goal given together with goal_buffer: give them to GoalBuffer"
    with pytest.raises(ValueError, match=message):
        wrapper(world, buffer, goal=pair_of, state_key=cell_of)
    with pytest.raises(TypeError, match="goal must be a function, got 3"):
        wrapper(world, goal=3)


def roll_out(venv, n_steps=60):
    """Return all that a vector of worlds returns for random actions."""
    venv.seed(5)
    found = [venv.reset()]
    rng = np.random.default_rng(1)
    for _ in range(n_steps):
        obs, rewards, dones, infos = venv.step(rng.integers(3, size=venv.num_envs))
        for info in infos:
            info.pop("episode", None)
        found.append((copy.deepcopy(obs), rewards.copy(), dones.copy(), copy.deepcopy(infos)))
    return found


@pytest.mark.parametrize("kind", ["keys and pairs", "a function"])
def test_worlds_in_other_processes_do_the_same(kind):
    settings = {"max_episode_steps": 7, **KINDS[kind]}
    here = roll_out(VecGoalBufferWrapper(DummyVecEnv([Dusty] * 3), **settings))
    venv = VecGoalBufferWrapper(SubprocVecEnv([Dusty] * 3), **settings)
    try:
        elsewhere = roll_out(venv)
    finally:
        venv.close()
    np.testing.assert_equal(elsewhere, here)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_alike_and_apart(kind):
    venv = VecGoalBufferWrapper(DummyVecEnv([Dusty] * 2), max_episode_steps=7, **KINDS[kind])
    roll_out(venv, 20)
    copied = copy.deepcopy(venv)
    n_goals = len(venv.goal_buffer.states)
    outcomes = []
    for each in (venv, copied):
        rng = np.random.default_rng(2)
        outcomes.append([copy.deepcopy(each.step(rng.integers(3, size=2))) for _ in range(30)])
        if each is venv:
            assert len(copied.goal_buffer.states) == n_goals
    np.testing.assert_equal(*outcomes)
    env = GoalBufferWrapper(Dusty(), **KINDS[kind])
    env.reset(seed=0)
    pair = (env, copy.deepcopy(env))
    np.testing.assert_equal(*[[each.step(a % 3) for a in range(9)] for each in pair])


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_an_environment_goes_on_alike(kind):
    env, other = (GoalBufferWrapper(Dusty(), max_episode_steps=4, **KINDS[kind]) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=1)
    for number in range(9):
        if any(env.step(number % 2)[2:4]):
            env.reset()
    other.goal_buffer.set_checkpoint_state(env.goal_buffer.get_checkpoint_state())
    other.set_checkpoint_state(env.get_checkpoint_state())
    other.env.cell = env.env.cell
    other.env.np_random = copy.deepcopy(env.env.np_random)
    for number in range(40):
        outcomes = [each.step(number // 3 % 2) for each in (env, other)]
        np.testing.assert_equal(*outcomes)
        if any(outcomes[0][2:4]):
            np.testing.assert_equal(*[each.reset() for each in (env, other)])


@pytest.mark.parametrize("vector", [False, True])
def test_sb3s_dqn_learns_with_hindsight(vector):
    settings = {"max_episode_steps": 12, "reset_worlds": True, **KINDS["keys and pairs"]}
    settings["goal"] = lambda seen: np.eye(3, dtype=np.float32)[pair_of(seen)]
    settings["goal_space"] = spaces.Box(0, 1, (3,))
    if vector:
        env = VecGoalBufferWrapper(DummyVecEnv([Dusty] * 2), **settings)
    else:
        env = GoalBufferWrapper(Dusty(), **settings)
    model = DQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=HerReplayBuffer,
        learning_starts=200,
        learning_rate=5e-3,
        train_freq=2,
        gamma=0.9,
        target_update_interval=50,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        device="cpu",
    )
    model.learn(1_100)
    n_right = 0
    for cell, goal in np.ndindex(6, 3):
        wanted = RIGHT if cell // 2 < goal else LEFT
        obs = {
            "observation": np.array([cell, 0.3], np.float32),
            "achieved_goal": np.eye(3, dtype=np.float32)[cell // 2],
            "desired_goal": np.eye(3, dtype=np.float32)[goal],
        }
        if cell // 2 != goal:
            n_right += model.predict(obs, deterministic=True)[0] == wanted
    # A constant policy is right in half of 12.
    assert n_right >= 10


def test_gymnasiums_record_of_arguments_has_the_functions():
    gym.register("DustyGoals-v0", entry_point=lambda: Dusty())
    try:
        env = GoalBufferWrapper(gym.make("DustyGoals-v0"), goal=pair_of, goal_space=PAIRS)
        again = gym.make(env.spec)
        assert again.observation_space == env.observation_space
    finally:
        gym.registry.pop("DustyGoals-v0")
