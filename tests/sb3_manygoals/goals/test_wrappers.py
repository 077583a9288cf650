"""What environments and vectors of them become by the goal wrappers."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import A2C, DQN, HerReplayBuffer
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from sb3_manygoals import ManyGoalsDQN, TabularAllGoals
from sb3_manygoals.goals import GoalBuffer, GoalBufferWrapper, GoalSelector, VecGoalBufferWrapper
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of
from tests.sb3_manygoals.many_goals_dqn.models import CELLS
from tests.sb3_manygoals.worlds import Always, Corridor, numbered_from_one

LEFT = 0
RIGHT = 1
STAY = 2


class Farthest(GoalSelector):
    """
    Chooses the known goal with the highest cell. There is no randomness, so that two wrappers can
    be compared.
    """

    def select(self, goal_buffer, current_ids, rng):
        cells = goal_buffer.observations.reshape(len(goal_buffer), -1).argmax(axis=1)
        return np.full(len(current_ids), cells.argmax())


def wrapped(vector, make, n=1, buffer=None, **settings):
    """Return a vector of worlds, with goals around it as a whole or around each."""
    if vector:
        return VecGoalBufferWrapper(DummyVecEnv([make] * n), buffer, **settings)
    return DummyVecEnv([lambda: GoalBufferWrapper(make(), buffer, **settings)] * n)


class Spoiling:
    """Functions of the user's that write into what they get."""

    def key(self, seen):
        seen[1] = 0
        return seen

    def goal(self, seen):
        seen[1:] = -seen[1:]
        return seen[:1]

    def reached(self, achieved, desired):
        found = (achieved == desired).all(axis=1)
        achieved[:] = desired[:] = -1
        return found


class Timed(gym.Env):
    """A place, and a clock."""

    observation_space = spaces.MultiDiscrete([6, 50])
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = [0, 0]
        return np.array(self.seen), {}

    def step(self, action):
        self.seen = [(self.seen[0] + 1 + action) % 6, self.seen[1] + 1]
        return np.array(self.seen), 0.0, False, False, {}


@pytest.mark.parametrize("vector", [False, True])
def test_functions_may_write_into_what_they_get(vector):
    functions = Spoiling()
    kinds = {"state_key": functions.key, "goal": functions.goal, "reached": functions.reached}
    for settings in ({"state_key": functions.key}, kinds):
        env = wrapped(vector, Timed, **settings)
        env.reset()
        for time in range(1, 5):
            obs, *_ = env.step(np.array([0]))
            assert obs["observation"].tolist() == [[time, time]]
            assert (obs["desired_goal"] >= 0).all()
            assert obs["achieved_goal"][0, 0] == time


class Pictures(gym.Env):
    """A point in the first row of a picture, with its channels last."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def picture(self):
        shown = np.zeros((36, 36, 3), np.uint8)
        shown[0, self.place] = 255, 100, 0
        return shown

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.picture(), {}

    def step(self, action):
        self.place = int(np.clip(self.place + 2 * action - 1, 0, 5))
        return self.picture(), 0.0, False, False, {}


@pytest.mark.parametrize("vector", [False, True])
def test_hindsight_learns_from_pictures_whose_channels_are_last(vector):
    """SB3 moves the channels outside of the goal wrapper, and asks for rewards of such goals."""
    env = wrapped(vector, Pictures, max_episode_steps=10)
    if not vector:
        env = env.envs[0]
    settings = {"learning_starts": 30, "buffer_size": 100, "train_freq": 10, "seed": 0}
    replay = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 9}}
    model = DQN("MultiInputPolicy", env, **settings, **replay, device="cpu").learn(60)
    batch = model.replay_buffer.sample(200)
    same = (batch.next_observations["achieved_goal"] == batch.observations["desired_goal"]).all(1)
    reached = same.all(-1).all(-1)
    assert 0 < reached.sum() < 200
    assert batch.rewards.flatten().tolist() == th.where(reached, 0.0, -0.1).tolist()


def test_an_episode_by_hand():
    world = Corridor(length=4)
    env = GoalBufferWrapper(world, max_episode_steps=5)
    goal = world.observation_of(2)
    obs, info = env.reset(seed=0, options={"cell": 0, "goal": goal})
    assert info["cell"] == 0
    np.testing.assert_array_equal(obs["observation"], world.observation_of(0))
    np.testing.assert_array_equal(obs["achieved_goal"], world.observation_of(0))
    np.testing.assert_array_equal(obs["desired_goal"], goal)
    obs, *outcome, info = env.step(RIGHT)
    assert outcome == [-0.1, False, False]
    assert (info["env_reward"], info["goal_steps"], info["is_success"]) == (1.0, 1, False)
    obs, *outcome, info = env.step(RIGHT)
    assert outcome == [0.0, True, False]
    assert (info["env_reward"], info["goal_steps"], info["is_success"]) == (2.0, 2, True)
    assert info["achieved_goal_id"] == env.goal_buffer.ids(goal[None])[0]
    between = np.array([world.observation_of(1), goal])
    state_ids = env.goal_buffer.states.ids(between)
    assert [info["state_id"], info["next_state_id"]] == state_ids.tolist()
    assert len(env.goal_buffer) == 3
    env.reset(options={"cell": 0, "goal": world.observation_of(3)})
    assert [env.step(STAY)[2:4] for _ in range(5)] == [(False, False)] * 4 + [(False, True)]


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("limit", "ends"), [(9, "env_terminated"), (3, "env_truncated")])
def test_the_environments_own_end_is_an_end_and_no_success(vector, limit, ends):
    """A time limit must not be taught as a state from which no goal can be reached."""

    def make():
        return gym.wrappers.TimeLimit(Corridor(length=6, start=2, deadly=True), limit)

    venv = wrapped(vector, make)
    venv.set_options({"goal": Corridor(length=6).observation_of(0)})
    venv.reset()
    for _ in range(9):
        _, rewards, dones, (info,) = venv.step(np.array([RIGHT]))
        assert rewards[0] == np.float32(-0.1)
        if dones[0]:
            break
    assert info["goal_steps"] == (3 if ends == "env_truncated" else 4)
    assert [info[key] for key in ("env_terminated", "env_truncated")] == [
        ends == "env_terminated",
        ends == "env_truncated",
    ]
    assert info["TimeLimit.truncated"] == (ends == "env_truncated")
    assert not info["is_success"]


@pytest.mark.filterwarnings("ignore:the goal buffer is full")
@pytest.mark.parametrize("capacity", [1, 2, 6])
@pytest.mark.parametrize("vector", [False, True])
def test_ids_say_what_bytes_say(vector, capacity):
    """
    Observations may be held out, too late for the buffer, or set as goals before they are known.
    """
    world = Corridor(length=6, deadly=True)
    buffer = GoalBuffer(world.observation_space, capacity, held_out=world.observation_of(4)[None])
    venv = wrapped(vector, lambda: Corridor(length=6, deadly=True), 3, buffer, max_episode_steps=6)
    venv.seed(0)
    rng = np.random.default_rng(0)
    outcomes = set()
    for goal in (0, 4, 5, None):
        venv.set_options({} if goal is None else {"goal": world.observation_of(goal)})
        desired = venv.reset()["desired_goal"]
        for _ in range(60):
            obs, rewards, dones, infos = venv.step(rng.integers(2, size=3))
            shown = obs["achieved_goal"].copy()
            for row in np.flatnonzero(dones):
                shown[row] = infos[row]["terminal_observation"]["achieved_goal"]
            reached = (shown == desired).all(axis=1)
            outcomes |= {
                (bool(one), info["desired_goal_id"] < 0)
                for one, info in zip(reached, infos, strict=True)
            }
            assert [info["is_success"] for info in infos] == reached.tolist()
            assert [info["achieved_goal_id"] for info in infos] == buffer.ids(shown).tolist()
            assert (
                venv.env_method("compute_reward", shown, desired, infos)[0].tolist()
                == rewards.tolist()
            )
            desired = obs["desired_goal"]
    assert len(outcomes) == 4


def test_observations_are_copies_in_the_dtype_of_the_space():
    class Sloppy(Corridor):
        """Returns its own array, in double precision."""

        observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)

        def __init__(self):
            self.action_space = spaces.Discrete(2)
            self.place = np.zeros(2)

        def reset(self, **_):
            return self.place, {}

        def step(self, action):
            self.place += 1.0
            return self.place, 0.0, False, False, {}

    env = GoalBufferWrapper(Sloppy())
    first, _ = env.reset()
    second = env.step(0)[0]
    assert first["observation"].dtype == np.float32
    np.testing.assert_array_equal(first["observation"], first["achieved_goal"])
    assert (second["observation"] != first["observation"]).all()


@pytest.mark.filterwarnings(
    "ignore:.*is different from the unwrapped version", "ignore:.*minimal resolution for an image"
)
def test_the_checkers_of_gymnasium_and_sb3_pass():
    rooms = gym.make("gym_twoRooms:TwoRoomsSwitchSmall-v0")
    worlds = {rooms: rooms.unwrapped.mdp.observe(np.arange(220))}
    worlds |= {
        world: [world.observation_of(cell) for cell in range(5)]
        for world in (Corridor(5), Corridor(5, image=True))
    }
    worlds |= {
        world: np.arange(world.observation_space.n)
        for world in map(gym.make, ("FrozenLake-v1", "Taxi-v4"))
    }
    for world, observations in worlds.items():
        # If the buffer grew, the same seed would draw another goal later.
        buffer = goals_of(observations, world.observation_space)
        check_env(GoalBufferWrapper(world, buffer), skip_render_check=True)
        sb3_check_env(GoalBufferWrapper(world, buffer))


@pytest.mark.parametrize("vector", [False, True])
def test_first_goals_come_from_a_random_walk_where_the_start_is_held_out(vector):
    cells = np.eye(4, dtype=np.uint8)

    class Masked(Corridor):
        """A corridor in which staying and going left in the first cell are not allowed."""

        def mask(self):
            return np.array([self.cell > 0, True, False])

        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return observation, info | {"action_mask": self.mask()}

        def step(self, action):
            assert self.mask()[action]
            observation, *outcome, info = super().step(action)
            return observation, *outcome, info | {"action_mask": self.mask()}

    def first_goals(held_out):
        buffer = GoalBuffer(Corridor(length=4).observation_space, held_out=held_out)
        venv = wrapped(vector, lambda: Masked(length=4, start=0), 2, buffer)
        venv.seed(0)
        return venv.reset()["desired_goal"].argmax(axis=1).tolist()

    assert first_goals(cells[:1]) == [1, 1]
    with pytest.raises(ValueError, match="goal buffer is still empty after 1000 random steps"):
        first_goals(cells)


def rollout(venv, steps=120):
    """Return what a reset and random steps return."""
    rng = np.random.default_rng(0)
    venv.seed(5)
    return [
        (venv.reset(), None, None, []),
        *(venv.step(rng.integers(3, size=venv.num_envs)) for _ in range(steps)),
    ]


@pytest.mark.parametrize(
    ("deadly", "base", "reset_worlds"),
    [(False, DummyVecEnv, True), (True, DummyVecEnv, False), (True, SubprocVecEnv, True)],
)
def test_around_the_vector_is_the_same_as_around_each(deadly, base, reset_worlds):
    settings = {
        "selector_class": Farthest,
        "max_episode_steps": 7,
        "reset_worlds": reset_worlds,
    }
    worlds = base([lambda: Corridor(deadly=deadly)] * 3)
    around = VecGoalBufferWrapper(worlds, goals_of(CELLS, worlds.observation_space), **settings)
    each = wrapped(
        False,
        lambda: Corridor(deadly=deadly),
        3,
        goals_of(CELLS, worlds.observation_space),
        **settings,
    )
    ends = 0
    for one, two in zip(rollout(each), rollout(around), strict=True):
        np.testing.assert_equal(one[:3], two[:3])
        for ours, theirs in zip(one[3], two[3], strict=True):
            ends += "episode" in theirs
            assert theirs.pop("episode", {"l": theirs["goal_steps"]})["l"] == theirs["goal_steps"]
            np.testing.assert_equal(ours, theirs)
    assert ends > 10
    around.close()


def test_without_resets_the_world_goes_on():
    stacked = VecFrameStack(DummyVecEnv([lambda: Corridor(length=5, image=True, start=0)]), 2)
    venv = VecGoalBufferWrapper(stacked, max_episode_steps=2)
    venv.reset()
    _, _, dones, _ = venv.step(np.array([RIGHT]))
    obs, _, dones, infos = venv.step(np.array([RIGHT]))
    assert dones[0]
    # It is two steps from the start, and still there.
    np.testing.assert_array_equal(
        obs["observation"][0, ..., -3:], Corridor(length=5, image=True).observation_of(2)
    )
    np.testing.assert_array_equal(
        obs["observation"][0], infos[0]["terminal_observation"]["observation"]
    )


@pytest.mark.parametrize("vector", [False, True])
def test_goals_can_be_set_and_a_monitors_episodes_are_kept_apart(vector):
    world = Corridor(length=4, deadly=True)
    venv = wrapped(vector, lambda: Monitor(Corridor(length=4, deadly=True)), 2)
    goals = [world.observation_of(1), world.observation_of(0)]
    venv.set_options([{"goal": goals[0], "cell": 2}, {"goal": goals[1], "cell": 3}])
    obs = venv.reset()
    np.testing.assert_array_equal(obs["desired_goal"], goals)
    np.testing.assert_array_equal(obs["observation"].argmax(axis=1), [2, 3])
    _, rewards, dones, infos = venv.step(np.array([LEFT, RIGHT]))
    np.testing.assert_allclose(rewards, [0.0, -0.1])
    assert dones.all()
    assert infos[0]["episode"] == {"r": 0.0, "l": 1}
    assert "env_episode" not in infos[0]
    assert infos[1]["env_episode"]["r"] == 3.0
    assert infos[1]["episode"]["r"] == pytest.approx(-0.1)
    endless = wrapped(vector, lambda: Monitor(Corridor(length=4)), max_episode_steps=3)
    returns, lengths = evaluate_policy(Always(STAY), endless, 4, return_episode_rewards=True)
    assert set(zip(np.round(returns, 3).tolist(), lengths, strict=True)) <= {(0.0, 1), (-0.3, 3)}


@pytest.mark.parametrize("vector", [False, True])
def test_an_evaluation_adds_no_goals_and_records_no_rewards(vector):
    goals = GoalBuffer(Corridor(length=4).observation_space)
    with pytest.raises(ValueError, match="the goal buffer is empty"):
        wrapped(vector, lambda: Corridor(length=4), 2, goals, training=False).reset()
    goals.add(np.eye(4, dtype=np.uint8)[:2])
    before = goals.get_checkpoint_state()
    venv = wrapped(
        vector,
        lambda: Corridor(length=4, deadly=True),
        2,
        goals,
        max_episode_steps=3,
        training=False,
    )
    venv.seed(0)
    venv.reset()
    infos = [info for _ in range(30) for info in venv.step(np.array([LEFT, RIGHT]))[3]]
    assert {info["achieved_goal_id"] for info in infos} == {-1, 0, 1}
    assert any(info["is_success"] for info in infos)
    np.testing.assert_equal(goals.get_checkpoint_state(), before)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"max_episode_steps": 0},
            ValueError,
            "max_episode_steps must be a whole number, at least 1, got 0",
        ),
        (
            {"goal_reward": -1.0},
            ValueError,
            "goal_reward must be greater than step_reward, got -1.0 and -0.1",
        ),
        *(
            ({"goal_reward": it}, ValueError, "goal_reward must be a number")
            for it in ("a", np.inf, np.nan)
        ),
        ({"goal_buffer": 3}, TypeError, "goal_buffer must be a GoalBuffer or None, got 3"),
        ({"state_key": 3}, TypeError, "state_key must be a function, got 3"),
        (
            {"goal_buffer": GoalBuffer(spaces.Discrete(5))},
            ValueError,
            "goal_buffer is for observations of",
        ),
        *(
            ({"reset_worlds": it}, ValueError, 'reset_worlds must be True, False or "auto"')
            for it in ("always", None, 2)
        ),
        *(
            (
                {"selector_class": it},
                TypeError,
                "selector_class must be a subclass of GoalSelector, got ",
            )
            for it in ("uniform", Farthest(), GoalBuffer)
        ),
        (
            {"selector_class": Farthest, "selector_kwargs": {"m": 3}},
            TypeError,
            "takes no arguments",
        ),
    ],
)
def test_bad_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        GoalBufferWrapper(Corridor(), **settings)


def test_actions_are_handed_on_as_they_are_counted_and_no_others():
    """Learners that count from 1 can use the wrappers. Those of SB3, which count from 0, fail."""
    env = GoalBufferWrapper(numbered_from_one(Corridor(start=3)))
    env.reset(seed=0)
    assert env.step(1)[4]["cell"] == 2
    assert env.step(np.int64(3))[4]["cell"] == 2
    venv = VecGoalBufferWrapper(DummyVecEnv([lambda: numbered_from_one(Corridor(start=3))] * 2))
    venv.reset()
    infos = venv.step(np.array([1, 2]))[3]
    assert [info["cell"] for info in infos] == [2, 4]
    message = r"action 0 is not in Discrete\(3, start=1\), whose actions are 1 to 3: SB3's learners"
    with pytest.raises(ValueError, match=message):
        env.step(0)
    with pytest.raises(ValueError, match=message):
        venv.step(np.array([2, 0]))
    with pytest.raises(ValueError, match="action 4 is not in"):
        env.step(4)
    learner = A2C("MultiInputPolicy", env, seed=0, device="cpu")
    with pytest.raises(ValueError, match=message):
        learner.learn(100)


def test_bad_goals_are_refused_and_a_tracker_stays_as_it_was():
    env = GoalBufferWrapper(Corridor(length=4))
    env.reset(seed=0)
    tracker = env.goal_tracker
    before = tracker.get_checkpoint_state()
    for goal, got in (
        (np.zeros(5, np.uint8), r"uint8 of \(5,\)"),
        (np.zeros(4), r"float64 of \(4,\)"),
    ):
        with pytest.raises(
            ValueError, match=rf"options\['goal'\] must be uint8 of shape \(4,\), got {got}"
        ):
            env.reset(options={"goal": goal})
        with pytest.raises(
            ValueError, match=rf"achieved_goal must be uint8 of shape \(\*batch, 4\), got {got}"
        ):
            env.compute_reward(goal, np.zeros(4, np.uint8), {})
        with pytest.raises(ValueError, match=rf"goal must be uint8 of shape \(4,\), got {got}"):
            tracker.start(np.array([0]), np.array([0]), goal)
    np.testing.assert_equal(tracker.get_checkpoint_state() | {"rng": None}, before | {"rng": None})
    with pytest.raises(
        ValueError, match=r"options\['goal'\] must be uint8 of shape \(4,\), got uint8 of \(1, 4\)"
    ):
        env.reset(options={"goal": np.zeros((1, 4), np.uint8)})
    with pytest.raises(ValueError, match="must have one shape"):
        env.compute_reward(np.zeros((2, 4), np.uint8), np.zeros(4, np.uint8), {})
    tracker.goal_buffer = GoalBuffer(env.env.observation_space)
    with pytest.raises(ValueError, match="the goal buffer is empty"):
        tracker.start(np.array([0]), np.array([1]))


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_prediction_is_an_action_of_an_environment_that_looks_it_up(deterministic):
    env = GoalBufferWrapper(gym.make("FrozenLake-v1"))
    learner = DQN("MultiInputPolicy", env, learning_starts=5, device="cpu").learn(20)
    model = ManyGoalsDQN("MlpPolicy", env, learning_starts=5, device="cpu").learn(20)
    for one in (learner, model):
        seen, _ = env.reset(seed=0)
        action, _ = one.predict(seen, deterministic=deterministic)
        env.step(action)
        env.reset()
        env.step(np.array(action))


def test_what_our_models_predict_is_an_action_of_the_bare_environment_too():
    lake = gym.make("FrozenLake-v1", is_slippery=False)
    taxi = gym.make("Taxi-v4")
    model = ManyGoalsDQN("MlpPolicy", lake, learning_starts=5, seed=0, device="cpu").learn(60)
    table = TabularAllGoals("TablePolicy", gym.make("Taxi-v4"), seed=0).learn(20)
    task = model.task_policy(lambda seen: seen == 1)
    seen, _ = lake.reset(seed=0)
    query = {"observation": seen, "achieved_goal": seen, "desired_goal": 1}
    place, _ = taxi.reset(seed=0)
    there = {"observation": place, "achieved_goal": place, "desired_goal": place}
    for deterministic in (False, True):
        actions = [
            model.predict(query, deterministic=deterministic)[0],
            task.predict(seen, deterministic=deterministic)[0],
            table.predict(there, deterministic=deterministic)[0],
        ]
        assert all(action.shape == () for action in actions)
        assert len({hash(action) for action in actions}) > 0
        for action in actions[:2]:
            lake.reset(seed=0)
            lake.step(action)
        taxi.step(actions[2])


def test_one_action_is_taken_whatever_holds_it_and_others_are_named():
    env = GoalBufferWrapper(gym.make("FrozenLake-v1"))
    for action in (1, np.int64(1), np.array(1), np.array([1]), [1], th.tensor(1)):
        env.reset(seed=0)
        env.step(action)
    for action in (np.array([1, 2]), 1.5, "left", 9, -1, None):
        with pytest.raises(ValueError, match="action must be one"):
            env.step(action)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_goal_may_be_a_sequence_of_numbers(kind):
    env = GoalBufferWrapper(Corridor(), training=False)
    observation, _ = env.reset(options={"goal": kind(CELLS[3].tolist())})
    np.testing.assert_array_equal(observation["desired_goal"], CELLS[3])
    assert observation["desired_goal"].dtype == CELLS.dtype
    with pytest.raises(ValueError, match=r"options\['goal'\] must be uint8 of shape"):
        env.reset(options={"goal": kind([1.5] * CELLS.shape[1])})


@pytest.mark.parametrize("env", [Corridor, lambda: gym.vector.SyncVectorEnv([Corridor] * 2)])
def test_what_is_no_vec_env_of_sb3_is_refused(env):
    with pytest.raises(TypeError, match=r"venv must be a VecEnv of SB3, got .*GymnasiumVecEnv"):
        VecGoalBufferWrapper(env())
