"""GoalEnvs and Dict observations in the goal wrappers."""

import copy
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from sb3_manygoals import GoalBufferWrapper, VecGoalBufferWrapper
from sb3_manygoals.goals import GoalBuffer, LearningProgressSelector, UniformSelector
from sb3_manygoals.goals.sources import EnvReached, ObservationSource, caller_of
from sb3_manygoals.packing import PackedSpace
from tests.sb3_manygoals.goal_worlds import (
    LEFT,
    RIGHT,
    STAY,
    TOLERANCE,
    Broken,
    Clipped,
    ClippedTerminates,
    Constant,
    Dense,
    DenseTerminates,
    Maze,
    Raises,
    Room,
    Singles,
    Sparse,
    Terminates,
    Track,
    near,
)

PLACES = spaces.Box(-9.0, 9.0, (1,), np.float64)


def asked(world, space=PLACES):
    """Return the function that says which goals of a world are reached, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EnvReached(space, caller_of(world))


def wrapped(vector, make, n=1, **settings):
    """Return a vector of worlds, with goals around it as a whole or around each."""
    if vector:
        return VecGoalBufferWrapper(DummyVecEnv([make] * n), **settings)
    return DummyVecEnv([lambda: GoalBufferWrapper(make(), **settings)] * n)


def test_goal_envs_that_cannot_be_reset_one_by_one_are_a_warning():
    with pytest.warns(UserWarning, match="cannot be reset in a VecMonitor: if it goes on after"):
        VecGoalBufferWrapper(VecMonitor(DummyVecEnv([Sparse] * 2)))
    # These are asked for, set no goals, or are reset.
    VecGoalBufferWrapper(VecMonitor(DummyVecEnv([Sparse])), reset_worlds=False)
    VecGoalBufferWrapper(VecMonitor(DummyVecEnv([Sparse])), goals_from="achieved")
    VecGoalBufferWrapper(DummyVecEnv([Sparse] * 2))


@pytest.mark.parametrize(
    ("world", "method", "success", "takes_batches"),
    [
        (Sparse, "compute_reward", 0.0, True),
        (Maze, "compute_reward", 1.0, True),
        (Singles, "compute_reward", 0.0, False),
        (Raises, "compute_reward", 0.0, False),
        (Terminates, "compute_terminated", 1.0, True),
        (DenseTerminates, "compute_terminated", 1.0, True),
        (ClippedTerminates, "compute_terminated", 1.0, True),
    ],
)
def test_the_environment_says_which_goals_are_reached(world, method, success, takes_batches):
    env = Monitor(world())
    if takes_batches:
        reached = EnvReached(PLACES, caller_of(env))
    else:
        with pytest.warns(UserWarning, match=f"{method} .* does not take batches of goals: .*slow"):
            reached = EnvReached(PLACES, caller_of(env))
    assert (reached.method, reached.success_value) == (method, success)
    rng = np.random.default_rng(0)
    achieved, desired = rng.uniform(-0.5, 0.5, (2, 40, 1))
    expected = near(achieved, desired)
    assert 0 < expected.sum() < 40
    np.testing.assert_array_equal(reached(achieved, desired), expected)
    assert reached(achieved[:0], desired[:0]).tolist() == []


@pytest.mark.parametrize(
    ("world", "message"),
    [
        # Six goals have fifteen distances from each other, and none from themselves.
        (Dense, "dense rewards, .*: compute_reward gave 16 different ones for 36 pairs. .*sparse"),
        (Clipped, "dense rewards, .*: compute_reward gave .* different ones for"),
        (Constant, "compute_reward does not tell a goal .*, and compute_terminated neither. Give"),
        (Track, "compute_reward does not tell a goal .*, and compute_terminated neither. Give"),
        (Broken, r"its compute_reward raised KeyError\('reward'\). Give reached"),
    ],
)
def test_an_environment_that_does_not_say_it_is_refused(world, message):
    with pytest.raises(ValueError, match=message):
        GoalBufferWrapper(world())
    # The user may say it.
    env = GoalBufferWrapper(world(), reached=0.125)
    env.reset(options={"cell": 0, "own": 1.125})
    assert env.step(RIGHT)[2]


def test_dense_rewards_that_are_cut_off_before_the_next_random_goal_are_found():
    """Only points on the ways between goals are near enough to them: twelve on each of five."""
    with pytest.raises(ValueError, match=r"compute_reward gave .* different ones for 60 pairs"):
        asked(Clipped())


def test_sparse_rewards_of_several_levels_or_of_few_places_are_sparse():
    class Levels(Track):
        def compute_reward(self, achieved, desired, info):
            distances = np.abs(achieved - desired)[..., 0]
            return -0.5 * (distances > TOLERANCE) - 0.5 * (distances > 1.1 * TOLERANCE)

    class Cells(Track):
        def compute_reward(self, achieved, desired, info):
            if not np.isin(achieved, goals).all():
                raise KeyError("no such cell")
            return near(achieved, desired) - 1.0

    places = np.float64([[0.0], [TOLERANCE / 2], [2 * TOLERANCE]])
    assert asked(Levels())(places, np.zeros((3, 1))).tolist() == [True, True, False]
    space = copy.deepcopy(PLACES)
    space.seed(0)
    goals = np.stack([space.sample() for _ in range(6)])
    found = asked(Cells())
    assert (found.method, found.success_value) == ("compute_reward", 0.0)


@pytest.mark.parametrize("vector", [False, True])
def test_an_attribute_that_a_method_lacks_is_no_missing_method(vector):
    class Lacks(Track):
        """Its rewards need what a reset should have set."""

        def compute_reward(self, achieved, desired, info):
            return self.tolerance

    message = (
        r"compute_reward raised AttributeError\(.*'tolerance'.*Give reached, a distance or a f"
    )
    with pytest.raises(ValueError, match=message):
        VecGoalBufferWrapper(DummyVecEnv([Lacks])) if vector else GoalBufferWrapper(Lacks())


def test_an_observation_without_a_goal_is_refused():
    class Forgets(Sparse):
        """It shows no goal, though its space has one."""

        def observation(self):
            seen = super().observation()
            del seen["desired_goal"]
            return seen

    with pytest.raises(ValueError, match=r"the observation must have .*, got no 'desired_goal'"):
        GoalBufferWrapper(Forgets()).reset()


def test_what_the_user_says_wins():
    env = GoalBufferWrapper(Sparse(ends=False), reached=lambda got, goal: (got == goal)[:, 0])
    env.reset(options={"cell": 0, "own": 1.125})
    assert not env.step(RIGHT)[2]
    env.reset(options={"cell": 0, "own": 1.0})
    assert env.step(RIGHT)[2]


def test_random_goals_may_be_near_to_each_other():
    # Of six random numbers of a unit interval, some are nearer to each other than a quarter.
    reached = asked(Sparse(), spaces.Box(0.0, 1.0, (1,), np.float64))
    assert reached.success_value == 0.0
    assert reached(np.array([[0.5], [0.5]]), np.array([[0.6], [0.9]])).tolist() == [True, False]
    # All goals of this space reach each other.
    with pytest.raises(ValueError, match="does not tell a goal that is reached from others"):
        asked(Sparse(), spaces.Box(0.0, 0.125, (1,), np.float64))


def test_learning_how_success_is_said_draws_no_random_numbers_of_the_environment():
    world = Sparse()
    world.observation_space.seed(0)
    expected = copy.deepcopy(world.observation_space).sample()
    GoalBufferWrapper(world)
    np.testing.assert_equal(world.observation_space.sample(), expected)


def test_a_copy_asks_the_same_environment_and_a_saved_one_none():
    reached = asked(Sparse())
    pair = np.array([[1.0]]), np.array([[1.125]])
    assert copy.deepcopy(reached)(*pair).tolist() == [True]
    saved = pickle.loads(pickle.dumps(reached))
    assert (reached.is_bound, saved.is_bound) == (True, False)
    with pytest.raises(ValueError, match=r"compute_reward of the .* there is no environment: load"):
        saved(*pair)


def test_a_wrapper_that_was_pickled_asks_the_environment_that_came_with_it():
    env = GoalBufferWrapper(BitFlippingEnv(4))
    env.reset(seed=0)
    env.step(0)
    other = pickle.loads(pickle.dumps(env))
    for action in (1, 2, 1, 3):
        expected = env.step(action)
        found = other.step(action)
        np.testing.assert_equal(found, expected)


def subprocesses(make):
    return SubprocVecEnv([make] * 2, start_method="fork")


class Late(Sparse):
    """A track that knows only after a reset what is near."""

    def reset(self, **kwargs):
        self.is_near = near
        return super().reset(**kwargs)

    def compute_reward(self, achieved, desired, info):
        return self.is_near(achieved, desired).astype(np.float32) - 1.0


class LateTerminates(Terminates):
    """A track that knows only after a reset what is near, and says so by ``compute_terminated``."""

    def reset(self, **kwargs):
        self.is_near = near
        return super().reset(**kwargs)

    def compute_terminated(self, achieved, desired, info):
        return self.is_near(achieved, desired)


def test_a_monitor_that_allows_one_reset_is_not_reset_before():
    env = GoalBufferWrapper(Monitor(Sparse(), allow_early_resets=False))
    env.reset()
    vector = VecGoalBufferWrapper(subprocesses(lambda: Monitor(Sparse(), allow_early_resets=False)))
    try:
        vector.reset()
    finally:
        vector.close()


def test_an_environment_that_must_be_reset_first_is_reset():
    for env in (
        GoalBufferWrapper(Late()),
        VecGoalBufferWrapper(DummyVecEnv([Late])),
        GoalBufferWrapper(LateTerminates()),
    ):
        places = np.array([[1.0], [1.5]])
        achievement = env.goal_buffer.achievement
        assert achievement.reached(places, np.ones((2, 1))).tolist() == [True, False]
    # Others are left as they are.
    world = Sparse()
    world.reset(seed=0, options={"cell": 3})
    GoalBufferWrapper(world)
    assert world.cell == 3


@pytest.mark.parametrize("world", [Sparse, Terminates, Late])
def test_environments_in_other_processes_are_asked(world):
    """Without the look whether there is a method, the missing one would end the process."""
    env = VecGoalBufferWrapper(subprocesses(world))
    try:
        env.set_options([{"cell": 0, "own": 1.125}, {"cell": 0, "own": 2.125}])
        env.reset()
        _, _, dones, infos = env.step(np.array([RIGHT, RIGHT]))
        assert dones.tolist() == [True, False]
        assert [info["is_success"] for info in infos] == [True, False]
    finally:
        env.close()


def test_an_error_for_a_batch_in_another_process_is_explained(capfd):
    with pytest.raises(ValueError, match=r"error for a batch of goals, .*axis=-1, use a DummyVecE"):
        VecGoalBufferWrapper(subprocesses(Raises))
    assert "ambiguous" in capfd.readouterr().err


@pytest.mark.parametrize("vector", [False, True])
def test_whose_goals_are_pursued(vector):
    def make(world, **settings):
        env = wrapped(vector, world, **settings)
        env.seed(3)
        first = env.reset()["desired_goal"][0].tolist()
        tracker = env.goal_tracker if vector else env.get_attr("goal_tracker")[0]
        own = env.get_attr("own_goal")[0].tolist()
        return first == own, tracker.max_episode_steps, tracker.reset_worlds

    for settings in ({}, {"goals_from": "auto"}, {"goals_from": "env"}):
        assert make(Sparse, **settings) == (True, None, True)
    assert make(Sparse, max_episode_steps=7, reset_worlds=False) == (True, 7, False)
    # Goals that were achieved are cells, and the environment's own goals are beside them.
    assert make(Sparse, goals_from="achieved") == (False, 50, "auto")
    assert GoalBufferWrapper(Room()).goal_tracker.max_episode_steps == 50


def test_bad_choices_of_goals_are_refused():
    with pytest.raises(ValueError, match="goals_from must be one of 'auto', 'env', 'achieved', g"):
        GoalBufferWrapper(Sparse(), goals_from="Env")
    learns = {"selector_class": LearningProgressSelector}
    for wrap in (
        lambda **kwargs: GoalBufferWrapper(Sparse(), **kwargs),
        lambda **kwargs: VecGoalBufferWrapper(DummyVecEnv([Sparse]), **kwargs),
    ):
        with pytest.raises(ValueError, match=r'the environment sets the goals: .*"achieved"'):
            wrap(**learns)
        tracker = wrap(**learns, goals_from="achieved").goal_tracker
        assert isinstance(tracker.selector, LearningProgressSelector)
        assert wrap(selector_class=UniformSelector).goal_tracker.env_sets_goals
    for make in (Room, lambda: gym.make("CartPole-v1")):
        with pytest.raises(ValueError, match=r'goals_from="env" needs a GoalEnv, .* got '):
            GoalBufferWrapper(make(), goals_from="env")
    for settings in ({"goal": lambda seen: seen}, {"goal_space": PLACES}):
        with pytest.raises(ValueError, match="goal must not be given: the environment is a GoalEn"):
            GoalBufferWrapper(Sparse(), **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"desired_goal": spaces.Box(0, 9, (2,))}, "one shape and kind of dtype, got Box"),
        ({"achieved_goal": spaces.Discrete(9), "desired_goal": PLACES}, "one shape and kind"),
    ],
)
def test_goals_of_two_kinds_are_refused(changes, message):
    world = Sparse()
    world.observation_space = spaces.Dict({**world.observation_space, **changes})
    with pytest.raises(ValueError, match=message):
        GoalBufferWrapper(world)


@pytest.mark.parametrize("vector", [False, True])
def test_an_end_at_the_own_goal_is_a_truncation_for_other_goals(vector):
    def end_of(goal, **world):
        """Go right from cell 0, with an own goal near cell 2, until an episode ends."""
        env = wrapped(vector, lambda: Sparse(**world))
        goals = {} if goal is None else {"goal": np.array([goal])}
        env.set_options({"cell": 0, "own": 2.125, **goals})
        env.reset()
        for _ in range(4):
            _, _, dones, (info,) = env.step(np.array([RIGHT]))
            if dones[0]:
                keys = ("goal_steps", "is_success", "TimeLimit.truncated", "env_terminated")
                return [info[key] for key in keys]
        return None

    assert end_of(None) == [2, True, False, False]
    assert end_of(4.0) == [2, False, True, False]
    # What is no success ends all goals.
    assert end_of(None, trap=1) == [1, False, False, True]
    assert end_of(4.0, trap=1) == [1, False, False, True]
    assert end_of(4.0, ends=False) == [4, True, False, False]


def test_both_wrappers_are_the_same_to_the_learner():
    """The environments' own goals, by chance within tolerance of the start too."""
    actions = np.random.default_rng(0).integers(3, size=150)

    def story(vector):
        env = wrapped(vector, lambda: gym.wrappers.TimeLimit(Sparse(trap=4), 6))
        env.seed(5)
        told = [env.reset()]
        for action in actions:
            obs, rewards, dones, (info,) = env.step(np.array([action]))
            # The goal is the one that the environment has set, also after its reset.
            assert obs["desired_goal"][0] == env.get_attr("own_goal")[0]
            # A vector adds what a Monitor would add.
            told += [obs, rewards, dones, {**info, "episode": None}]
        return told

    stories = [story(vector) for vector in (False, True)]
    np.testing.assert_equal(*stories)
    ends = [one for one in stories[0][4::4] if "terminal_observation" in one]
    kinds = {(one["is_success"], one["env_terminated"], one["env_truncated"]) for one in ends}
    assert kinds == {(True, False, True), (False, True, False), (False, False, True)}
    assert len({one["desired_goal_id"] for one in stories[0][4::4]}) > 3


def test_a_known_goal_stands_for_one_that_was_never_met():
    env = GoalBufferWrapper(Sparse())
    _, info = env.reset(options={"cell": 1, "own": 2.125})
    assert info["desired_goal_id"] == -1
    env.step(RIGHT)
    _, info = env.reset(options={"cell": 0, "own": 2.125})
    known = env.goal_buffer
    assert known[info["desired_goal_id"]].tolist() == [2.0]
    # Goals are achieved, and never those that the environment sets.
    assert known.observations.tolist() == [[1.0], [2.0], [0.0]]
    assert known.stand_ins(np.array([[0.1], [2.0], [0.9], [3.9]])).tolist() == [2, 1, 0, -1]


def test_a_goal_may_be_set_and_must_fit():
    env = GoalBufferWrapper(Sparse())
    obs, _ = env.reset(options={"cell": 0, "goal": np.array([3.0])})
    assert obs["desired_goal"].tolist() == [3.0]
    obs, _ = env.reset()
    assert obs["desired_goal"] == env.unwrapped.own_goal
    with pytest.raises(ValueError, match=r"options\['goal'\] must be float64 of shape \(1,\)"):
        env.reset(options={"goal": np.zeros(2)})
    # A Dict world has whole observations as goals.
    room = GoalBufferWrapper(Room())
    goal = room.unwrapped.observation_of(2, 3)
    obs, _ = room.reset(options={"goal": goal})
    packed = room.goal_buffer.observation_space.pack(goal)
    np.testing.assert_array_equal(obs["desired_goal"], packed)
    obs, _ = room.reset(options={"goal": packed})
    np.testing.assert_array_equal(obs["desired_goal"], packed)


@pytest.mark.parametrize("vector", [False, True])
def test_the_goal_before_a_step_counts_though_the_environment_moves_its_array(vector):
    class Moves(Sparse):
        """Draws the next goal when one is reached."""

        def step(self, action):
            result = super().step(action)
            if result[2]:
                self.own_goal[:] = 4.125
            return result

    env = wrapped(vector, Moves)
    env.set_options({"cell": 0, "own": 1.125, "goal": np.array([3.0])})
    env.reset()
    _, _, dones, (info,) = env.step(np.array([RIGHT]))
    assert dones[0]
    assert info["TimeLimit.truncated"]


@pytest.mark.parametrize("vector", [False, True])
def test_a_checkpoint_has_the_goals_that_the_environments_have_set(vector):
    world = Sparse()
    wraps = VecGoalBufferWrapper if vector else GoalBufferWrapper
    env = DummyVecEnv([lambda: world]) if vector else world
    first = wraps(env)
    second = wraps(env, first.goal_buffer)
    options = {"cell": 0, "own": 1.125, "goal": np.array([3.0])}
    if vector:
        first.set_options(options)
        first.reset()
    else:
        first.reset(options=options)
    second.set_checkpoint_state(first.get_checkpoint_state())
    if vector:
        _, _, _, (info,) = second.step(np.array([RIGHT]))
        assert info["TimeLimit.truncated"]
    else:
        assert second.step(RIGHT)[2:4] == (False, True)


def test_goals_have_the_dtype_of_what_is_achieved():
    class Mixed(Sparse):
        """Sets its goals in single precision."""

        def observation(self):
            seen = super().observation()
            return {**seen, "desired_goal": seen["desired_goal"].astype(np.float32)}

    world = Mixed()
    goals = spaces.Box(-1.0, 5.0, (1,), np.float32)
    world.observation_space = spaces.Dict({**world.observation_space, "desired_goal": goals})
    env = GoalBufferWrapper(world)
    obs, _ = env.reset(options={"cell": 0, "own": 1.125})
    assert (obs["desired_goal"].dtype, obs["desired_goal"].tolist()) == (np.float64, [1.125])
    assert env.step(RIGHT)[2]


@pytest.mark.parametrize("vector", [False, True])
def test_the_functions_of_the_user_see_parts(vector):
    seen = []

    def key(observation):
        seen.append(observation)
        return observation["wheel"]

    env = wrapped(
        vector, lambda: Room(clock=True), state_key=key, goal=lambda parts: parts["picture"][0, 0]
    )
    obs = env.reset()
    assert obs["achieved_goal"].shape == (1, 3)
    for _ in range(8):
        env.step(np.array([0]))
    assert {tuple(one) for one in seen} == {("clock", "picture", "wheel")}
    buffer = env.goal_buffer if vector else env.get_attr("goal_buffer")[0]
    # Four directions of the wheel, whatever the clock shows.
    assert len(buffer.states) == 4
    assert len(buffer) <= 2


def test_the_state_key_of_a_goal_env_sees_its_observation():
    seen = []
    env = GoalBufferWrapper(Sparse(), state_key=lambda one: seen.append(one) or one[1] // 4)
    env.reset(options={"cell": 0, "own": 4.125})
    for _ in range(3):
        env.step(RIGHT)
    assert {one.shape for one in seen} == {(2,)}
    # Cells 0 and 1 are one state, and so are 2 and 3. Each achieves a goal of its own.
    assert len(env.goal_buffer.states) == 2


@pytest.mark.parametrize("part", ["observation", "achieved_goal", "desired_goal"])
@pytest.mark.parametrize("vector", [False, True])
def test_what_is_not_finite_is_refused_with_the_environment(vector, part):
    class Fails(Sparse):
        """Its second environment shows what is not finite."""

        fails = False

        def observation(self):
            seen = super().observation()
            return {**seen, part: seen[part] * np.nan} if self.fails else seen

    env = wrapped(vector, Fails, 2)
    env.set_options({"cell": 0, "own": 4.125})
    env.reset()
    env.get_attr("unwrapped")[1].fails = True
    with pytest.raises(ValueError, match=f"'{part}' of the observation must be finite") as caught:
        env.step(np.array([STAY, STAY]))
    # A wrapper around one environment does not know its place.
    assert f"environment {int(vector)} gave an observation" in str(caught.value)


@pytest.mark.parametrize("vector", [False, True])
def test_observations_that_do_not_fit_are_refused(vector):
    class Fails(Room):
        """A wheel with a direction too many."""

        def observation_of(self, place, wheel, time=0):
            return {**super().observation_of(place, wheel, time), "wheel": np.int64(wheel + 3)}

    env = wrapped(vector, Fails)
    env.seed(1)
    with pytest.raises(ValueError, match=r"first observation: 'wheel' of the .*be of Discrete"):
        env.reset()
    source = ObservationSource(Room().observation_space)
    with pytest.raises(ValueError, match="the observation must be a dict, got ndarray"):
        source.array(np.zeros(3))
    goals = ObservationSource(Sparse().observation_space)
    with pytest.raises(
        ValueError, match=r"'desired_goal' .* float64 of shape \(1,\), got .*\(2,\)"
    ):
        goals.desired({"desired_goal": np.zeros(2)})
    assert source.desired({}) is None
    cells = spaces.Box(0, 9, (1,), np.uint8)
    parts = {"observation": cells, "achieved_goal": cells, "desired_goal": cells}
    with pytest.raises(ValueError, match=r"'desired_goal' .* must be uint8, got \[257\]"):
        ObservationSource(spaces.Dict(parts)).desired({"desired_goal": np.array([257], np.uint16)})


def test_a_shared_goal_buffer_must_be_of_a_goal_env():
    first = GoalBufferWrapper(Sparse())
    space = first.goal_buffer.observation_space
    assert space == PackedSpace(
        spaces.Dict(
            {name: Sparse().observation_space[name] for name in ("achieved_goal", "observation")}
        )
    )
    with pytest.raises(ValueError, match=r"goal_buffer has observations as goals, .* a GoalEnv"):
        GoalBufferWrapper(Sparse(), GoalBuffer(space))
    held_out = {**first.goal_buffer.config, "held_out": np.array([[1.0]])}
    env = GoalBufferWrapper(Sparse(), GoalBuffer(space, **held_out))
    env.reset(options={"cell": 0, "own": 1.125})
    assert env.step(RIGHT)[2]
    assert env.goal_buffer.observations.tolist() == [[0.0]]


@pytest.mark.parametrize("reached", [0.25, lambda achieved, goals: np.ones(len(goals), bool)])
def test_in_observations_of_several_parts_a_tolerance_needs_the_part_that_counts(reached):
    """The bytes of all parts have no distance."""
    with pytest.raises(ValueError, match="reached needs goal for observations of several parts"):
        GoalBufferWrapper(Room(), reached=reached)
    env = GoalBufferWrapper(Room(), goal=lambda seen: seen["wheel"], reached=reached)
    assert env.goal_buffer.achievement.reached is reached


def test_a_goal_buffer_of_ones_own_takes_observations_of_several_parts():
    space = Room().observation_space
    seen = [Room().observation_of(place, wheel=3) for place in range(3)]
    held_out = {name: np.stack([one[name] for one in seen]) for name in space}
    env = GoalBufferWrapper(Room(), GoalBuffer(space, capacity=50, held_out=held_out))
    env.reset(seed=0)
    for _ in range(8):
        env.step(0)
    known = env.goal_buffer.observation_space.unpack(env.goal_buffer.observations)
    assert set(known["wheel"].ravel().tolist()) == {0, 1, 2}
    keyed = GoalBuffer(space, state_key=lambda observation: observation["wheel"])
    env = GoalBufferWrapper(Room(), keyed)
    env.reset(seed=0)
    for action in (1, 1, 0, 1):
        env.step(action)
    assert len(keyed) == 2
    # What a goal buffer says of itself makes another one.
    for buffer in (keyed, GoalBuffer(space, held_out=held_out)):
        again = GoalBuffer(space, **buffer.config)
        again.add(again.observation_space.pack(seen[0])[None])
        assert len(again) == (buffer is keyed)
    with pytest.raises(TypeError, match=r"is that of a GoalEnv.* put GoalBufferWrapper"):
        GoalBuffer(Sparse().observation_space)


def test_who_shares_a_goal_buffer_need_not_say_what_is_reached():
    """Dense rewards do not say it, but the user has."""
    first = GoalBufferWrapper(Dense(), reached=0.25)
    second = GoalBufferWrapper(Dense(), first.goal_buffer)
    second.reset(options={"cell": 0, "own": 1.125})
    assert second.step(RIGHT)[2]


def test_an_environment_to_evaluate_in_is_not_asked_in_training():
    class Closes(Sparse):
        """Answers only until it is closed."""

        closed = False

        def close(self):
            self.closed = True

        def compute_reward(self, achieved, desired, info):
            assert not self.closed
            return super().compute_reward(achieved, desired, info)

    trained = GoalBufferWrapper(Closes())
    evaluated = GoalBufferWrapper(Closes(), trained.goal_buffer, training=False)
    evaluated.close()
    trained.reset(options={"cell": 2, "own": 1.125})
    assert trained.step(LEFT)[2]
    # The next environment of training takes the place of the last one.
    following = GoalBufferWrapper(Closes(), trained.goal_buffer)
    trained.close()
    following.reset(options={"cell": 2, "own": 1.125})
    assert following.step(LEFT)[2]


@pytest.mark.parametrize("name", ["state_key", "goal"])
def test_functions_of_a_goal_env_or_a_dict_are_checked_at_once(name):
    for world in (Sparse, Room):
        with pytest.raises(TypeError, match=f"{name} must be a function, got 3"):
            GoalBufferWrapper(world(), **{name: 3})
