"""Models whose states and goals are what functions of the user's say."""

import copy
import functools
import re
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

import gym_twoRooms  # noqa: F401
from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, TabularAllGoals
from sb3_manygoals.goals import UNKNOWN, LearningProgressSelector, VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, make_model, parameters
from tests.sb3_manygoals.worlds import Corridor, Dusty, NumberedCorridor, cell_of, pair_of

PAIRS = spaces.Discrete(3)
KINDS = {
    "keys": {"state_key": lambda seen: int(seen[0])},
    "keys and pairs": {"state_key": cell_of, "goal": pair_of, "goal_space": PAIRS},
    "keys, cells at a distance": {
        "state_key": cell_of,
        "goal": lambda seen: np.float32(cell_of(seen)),
        "reached": 1.0,
    },
    "pairs": {"goal": pair_of, "goal_space": PAIRS},
    "cells at a distance": {"goal": lambda seen: seen[:1], "reached": 1.0},
    "a function": {
        "state_key": cell_of,
        "reached": lambda left, right: left[:, 0] == right[:, 0],
    },
}
KEYED = [name for name in KINDS if "state_key" in KINDS[name]]
LEFT, RIGHT, STAY = range(3)


def model_of(kind, env=None, **kwargs):
    """Return a model in dusty corridors with goals of this kind."""
    settings = {"goal_wrapper_kwargs": {"max_episode_steps": 15, **KINDS[kind]}}
    return make_model(Dusty() if env is None else env, **{**settings, **kwargs})


@pytest.fixture(scope="module")
def learned():
    """Return models that have learned by a plan. Tests share them, so they may only ask them."""

    @functools.cache
    def of_kind(kind, env_class=Dusty):
        return model_of(kind, env_class(), learning_starts=100).learn(1_500)

    return of_kind


def td_model_of(kind, goal_sampling="segments", **kwargs):
    """Return such a model with a target network."""
    return model_of(
        kind,
        target_class=TDTargets,
        target_kwargs={"goal_sampling": goal_sampling},
        target_update_interval=50,
        **kwargs,
    )


def observation(cell, dust=0.3):
    """Return an observation of a dusty corridor."""
    return np.array([cell, dust], np.float32)


def obs_towards(model, cell, goal_cell):
    """Return a goal observation in one cell, with what another one achieves as the goal."""
    goals = model.goal_buffer
    here, there = (goals.achieved(observation(each)[None])[0] for each in (cell, goal_cell))
    return {"observation": observation(cell), "achieved_goal": here, "desired_goal": there}


def share_of_right_moves(model, cells=6):
    """Return in which share of all ways the model makes a step towards the goal."""
    rights = []
    for cell, goal_cell in np.ndindex(cells, cells):
        obs = obs_towards(model, cell, goal_cell)
        if model.goal_buffer.is_reached(obs["achieved_goal"], obs["desired_goal"]):
            continue
        action = int(model.predict(obs, deterministic=True)[0])
        rights.append(action == (RIGHT if goal_cell > cell else LEFT))
    return np.mean(rights)


def test_another_head_learns_by_a_plan_too():
    kind = "keys and pairs"
    model = model_of(kind, policy_kwargs={**SMALL, "head": "bilinear"}, learning_starts=100)
    model.learn(1_500)
    assert share_of_right_moves(model) == 1.0


@pytest.mark.parametrize("kind", KEYED)
def test_where_keys_recur_a_plan_teaches_the_network(learned, kind):
    """The dust never recurs, so without a key nothing could be planned."""
    model = learned(kind)
    assert isinstance(model.targets, PlannedTargets)
    assert len(model.goal_buffer.states) == 6
    assert len(model.goal_buffer) == (3 if "pairs" in kind else 6)
    assert share_of_right_moves(model) == 1.0
    # Ways are as short as the sets of states allow.
    plan = model.targets.plan
    states = model.goal_buffer.states
    cells = states.observations[:, 0]
    for state, goal_id in np.ndindex(6, len(model.goal_buffer)):
        goal = model.goal_buffer[goal_id]
        away = min(
            abs(int(cells[state]) - cell)
            for cell in range(6)
            if model.goal_buffer.is_reached(
                model.goal_buffer.achieved(observation(cell)[None])[0], goal
            )
        )
        if away:
            value = -0.1 * (1 - 0.99 ** (away - 1)) / 0.01
            assert plan.values[state, goal_id] == pytest.approx(value, abs=1e-3)
        else:
            assert plan.is_achieved(np.array([state]), np.array([goal_id]))[0]


# The pairs that are reached are tested for all kinds below, so two are enough here.
@pytest.mark.parametrize("kind", ["keys and pairs", "keys, cells at a distance"])
def test_a_target_network_learns_too(kind):
    model = td_model_of(kind, learning_rate=3e-3, gamma=0.9)
    model.learn(1_000)
    assert share_of_right_moves(model) > 0.9


@pytest.mark.parametrize("goal_sampling", ["uniform", "segments", "behavior"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reached_pairs_of_an_update_are_those_of_a_loop(kind, goal_sampling):
    """With gamma 0, a target is the reward of the step."""
    world = Dusty(deadly=True)
    model = td_model_of(kind, goal_sampling, env=world, gamma=0.0, learning_starts=300)
    model.learn(310)
    batch = model.targets.sample(40, 12, np.random.default_rng(0))
    targets = model.targets.target_values(batch).numpy()
    goals = model.goal_buffer
    achieved = goals.achieved(batch.samples.next_observations.numpy())
    desired = batch.goals.numpy()
    is_known = batch.goal_ids.numpy() != UNKNOWN
    if goal_sampling == "behavior":
        pairs = [(row, row, 0) for row in range(40) if is_known[row]]
    else:
        assert is_known.all()
        pairs = [(row, goal, goal) for row, goal in np.ndindex(40, len(desired))]
    n_reached = 0
    for row, goal, column in pairs:
        reached = bool(goals.is_reached(achieved[row], desired[goal]))
        assert targets[row, column] == np.float32(0.0 if reached else -0.1)
        n_reached += reached
    assert 0 < n_reached < len(pairs)
    # What ids say is what goals say.
    np.testing.assert_array_equal(goals.ids(desired)[is_known], batch.goal_ids.numpy()[is_known])


def test_when_the_goal_buffer_is_full_new_states_still_reach_known_goals():
    """Of dusty observations, only the first 30 are states."""
    env = GoalBufferWrapper(
        Dusty(),
        GoalBuffer(Dusty().observation_space, 30, goal=pair_of, goal_space=PAIRS),
    )
    model = td_model_of("pairs", env=env, gamma=0.0, learning_starts=300, goal_wrapper_kwargs=None)
    with pytest.warns(RuntimeWarning, match="the goal buffer is full with 30 goals"):
        model.learn(310)
    batch = model.targets.sample(200, 3, np.random.default_rng(0))
    targets = model.targets.target_values(batch).numpy()
    pairs = batch.samples.next_observations.numpy()[:, :1].astype(int) // 2
    np.testing.assert_array_equal(targets == 0.0, pairs == batch.goals.numpy())


@pytest.mark.parametrize("targets", [PlannedTargets, TDTargets])
def test_pictures_with_cells_as_goals(targets):
    """The goals go through layers of their own."""

    def place(picture):
        return np.argwhere((picture == (214, 48, 42)).all(axis=2))[0]

    space = spaces.MultiDiscrete([8, 4])
    model = make_model(
        gym.make("TwoRoomsSwitchSmall-v0"),
        "CnnPolicy",
        goal_wrapper_kwargs={"goal": place, "goal_space": space},
        target_class=targets,
        updates_per_step=0.1,
        learning_starts=500,
    )
    model.learn(1_200)
    assert model.goal_buffer.goal_space == space
    assert 10 < len(model.goal_buffer) <= 32
    assert len(model.goal_buffer.states) > len(model.goal_buffer)
    assert model.policy.goals_have_own_trunk
    obs = model.env.reset()
    actions, _ = model.predict(obs, deterministic=True)
    assert actions.shape == (1,)
    single = {key: value[0] for key, value in obs.items()}
    assert model.predict(single, deterministic=True)[0] == actions[0]
    pairwise = model.q_net.pairwise(
        *model.q_net.embed(th.as_tensor(obs["observation"]), th.as_tensor(obs["desired_goal"]))
    )
    together = model.q_net(th.as_tensor(obs["observation"]), th.as_tensor(obs["desired_goal"]))
    th.testing.assert_close(pairwise[0], together)


@pytest.mark.parametrize(
    ("desired", "message"),
    [
        (np.array([0, 1, 2]), "as many of one as of the other"),
        (np.int64(5), "desired_goal must be of the observation space|desired_goal is 5"),
    ],
)
def test_goals_that_do_not_fit_are_refused(desired, message):
    model = model_of("keys and pairs")
    with pytest.raises(ValueError, match=message):
        model.predict({"observation": observation(2), "desired_goal": desired})


def test_goals_in_the_replay_memory_are_whole_observations():
    for kind in KINDS:
        with pytest.raises(ValueError, match=r"goals_in_replay: goals are whole observations"):
            model_of(kind, goals_in_replay=True, target_class=TDTargets)
        env = GoalBufferWrapper(Dusty(), **KINDS[kind])
        with pytest.raises(ValueError, match="goals_in_replay: goals are whole observations, but"):
            make_model(env, goals_in_replay=True, target_class=TDTargets)


@pytest.mark.parametrize("targets", [None, TDTargets])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_was_saved_goes_on_with_the_same_functions(kind, targets, tmp_path):
    model = model_of(kind, target_class=targets, learning_starts=60)
    model.learn(80)
    model.save_all(tmp_path)
    for env in (Dusty(), GoalBufferWrapper(Dusty(), **KINDS[kind], max_episode_steps=15)):
        loaded = ManyGoalsDQN.load_all(tmp_path, env)
        goals = loaded.goal_buffer
        assert goals.identity == model.goal_buffer.identity
        np.testing.assert_array_equal(goals.observations, model.goal_buffer.observations)
        np.testing.assert_array_equal(
            goals.states.observations, model.goal_buffer.states.observations
        )
        for left, right in zip(
            goals.achieving_states(), model.goal_buffer.achieving_states(), strict=True
        ):
            np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(loaded.world.visit_counts[:6], model.world.visit_counts[:6])
        assert loaded.replay_buffer.size() == model.replay_buffer.size()
        np.testing.assert_array_equal(
            loaded.replay_buffer.next_goal_ids[:80], model.replay_buffer.next_goal_ids[:80]
        )
        n_updates = loaded._n_updates
        loaded.learn(20, reset_num_timesteps=False)
        assert loaded.num_timesteps == 100
        assert loaded._n_updates > n_updates
        if kind in KEYED:
            assert len(loaded.goal_buffer.states) == 6
        tracker = loaded._trackers[0]
        assert tracker.goal_buffer is loaded.goal_buffer


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_an_environment_acts_on(kind, tmp_path):
    model = model_of(kind, learning_starts=60, target_class=TDTargets)
    model.learn(80)
    model.save_all(tmp_path)
    loaded = ManyGoalsDQN.load_all(tmp_path)
    only_networks = ManyGoalsDQN.load(tmp_path / "model.zip")
    for cell, goal_cell in np.ndindex(6, 6):
        obs = obs_towards(model, cell, goal_cell)
        actions = {
            int(each.predict(obs, deterministic=True)[0]) for each in (model, loaded, only_networks)
        }
        assert len(actions) == 1
    assert loaded.goal_buffer.identity == model.goal_buffer.identity
    copied = copy.deepcopy(model)
    copied.learn(20, reset_num_timesteps=False)
    assert not th.equal(parameters(copied), parameters(model))


def test_a_loaded_model_takes_only_environments_with_the_same_functions(tmp_path):
    model = model_of("keys and pairs", learning_starts=60)
    model.learn(100)
    model.save(tmp_path / "model")
    other = {**KINDS["keys and pairs"], "goal": lambda seen: pair_of(seen) ^ 1}
    with pytest.raises(ValueError, match="env's goal wrapper has another goal than the model"):
        ManyGoalsDQN.load(tmp_path / "model", GoalBufferWrapper(Dusty(), **other))
    near = {**KINDS["keys and pairs"], "reached": 1, "state_key": pair_of}
    with pytest.raises(ValueError, match="another state_key and another reached than the model"):
        model.set_env(GoalBufferWrapper(Dusty(), **near))


@pytest.mark.parametrize("kind", KINDS)
def test_another_environment_gets_the_goals_that_there_are(kind):
    model = model_of(kind, learning_starts=60)
    model.learn(100)
    goals = model.goal_buffer
    n_known = len(goals)
    for env in (
        Dusty(),
        GoalBufferWrapper(Dusty(), **KINDS[kind]),
        VecGoalBufferWrapper(DummyVecEnv([Dusty]), **KINDS[kind]),
    ):
        model.set_env(env)
        assert model.goal_buffer is goals
        assert len(goals) >= n_known
        model.learn(40, reset_num_timesteps=False)
    filled = GoalBufferWrapper(Dusty(), **KINDS[kind])
    filled.reset(seed=0)
    with pytest.raises(ValueError, match="env has a goal buffer of its own"):
        model.set_env(filled)
    if KINDS[kind].keys() & {"goal"}:
        with pytest.raises(ValueError, match="Observation spaces do not match"):
            model.set_env(GoalBufferWrapper(Dusty()))
    else:
        # A wrapper that says nothing of states takes over the model's.
        model.set_env(GoalBufferWrapper(Dusty()))
        assert model.env.get_attr("goal_tracker")[0].goal_buffer is goals


@pytest.mark.parametrize("targets", [PlannedTargets, TDTargets])
def test_goals_can_be_chosen_by_learning_progress(targets):
    settings = {
        "selector_class": LearningProgressSelector,
        "selector_kwargs": {"m": 2},
        **KINDS["keys and pairs"],
    }
    model = model_of("keys", goal_wrapper_kwargs=settings, target_class=targets)
    model.learn(300)
    assert isinstance(model.selector, LearningProgressSelector)
    assert (model.goal_updates[:3] > 20).all()
    assert model.goal_updates[3:].sum() == 0


def test_several_environments_share_keys_and_goals():
    model = model_of("keys and pairs", DummyVecEnv([Dusty] * 3), learning_starts=300)
    model.learn(1_500)
    assert len(model.goal_buffer.states) == 6
    assert share_of_right_moves(model) == 1.0


def test_held_out_achievements_are_not_pursued_but_can_be_reached():
    model = model_of(
        "keys and pairs",
        goal_wrapper_kwargs={
            "goal_buffer": GoalBuffer(
                Dusty().observation_space, 50, np.array([1]), **KINDS["keys and pairs"]
            )
        },
    )
    model.learn(400)
    assert sorted(model.goal_buffer.observations.tolist()) == [0, 2]
    obs = obs_towards(model, 0, 2)
    assert obs["desired_goal"] == 1
    assert model.predict(obs, deterministic=True)[0] in range(3)


def test_a_table_takes_no_goals_but_states():
    goals = {"goal": lambda cell: cell // 2, "goal_space": PAIRS}
    for settings, name in (
        (goals, "goal and goal_space"),
        ({"state_key": lambda cell: cell // 2}, "state_key"),
        ({"reached": 1}, "reached"),
    ):
        message = f"goal_wrapper_kwargs has {name}: every goal of a table is a state"
        with pytest.raises(ValueError, match=message):
            TabularAllGoals("TablePolicy", NumberedCorridor(), goal_wrapper_kwargs=settings)
        env = GoalBufferWrapper(NumberedCorridor(), **settings)
        message = f"the goal buffer of env has {name.split(' and')[0]}.*: every goal of a table is"
        with pytest.raises(ValueError, match=message):
            TabularAllGoals("TablePolicy", env)
        model = TabularAllGoals("TablePolicy", NumberedCorridor())
        with pytest.raises(ValueError, match=f"the goal buffer of env has {name.split(' and')[0]}"):
            model.set_env(GoalBufferWrapper(NumberedCorridor(), **settings))


class PaidDust(Dusty):
    """
    A dusty corridor that pays 1 in its last cell, and ends there.

    :param length: number of cells
    """

    def __init__(self, length=6):
        super().__init__(length, start=2)

    def step(self, action):
        seen, _, _, truncated, info = super().step(action)
        is_last = self.cell == self.length - 1
        return seen, float(is_last), is_last, truncated, info


@pytest.mark.filterwarnings("ignore:. of . rewarded observations did not always end the episode")
@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("kind", KEYED)
def test_the_tasks_rewards_are_found(learned, kind, planned):
    model = learned(kind, PaidDust)
    policy = model.task_policy(planned=planned)
    seen = np.array([observation(cell, dust) for cell in range(5) for dust in (-0.9, 0.4)])
    actions, _ = policy.predict(seen)
    assert (actions == RIGHT).all()
    rewards = model.goal_rewards
    world = model.world
    for goal_id, mean in enumerate(rewards):
        begin, states = model.goal_buffer.achieving_states()
        of_goal = states[begin[goal_id] : begin[goal_id + 1]]
        n_arrivals = world.arrivals[of_goal].sum()
        assert mean == pytest.approx(world.arrival_rewards[of_goal].sum() / n_arrivals)


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("kind", KEYED)
def test_a_task_may_reward_goals(learned, kind, planned):
    model = learned(kind)
    # Of these goals, the one of the first cell is rewarded.
    wanted = model.goal_buffer.achieved(observation(0)[None])[0]

    def reward(goals):
        return np.array([model.goal_buffer.is_reached(goal, wanted) for goal in goals]).astype(
            float
        )

    policy = model.task_policy(reward, planned=planned)
    seen = np.array([observation(cell) for cell in range(3, 6)])
    assert (policy.predict(seen)[0] == LEFT).all()
    assert policy.predict(observation(5))[0] == LEFT
    with pytest.raises(ValueError, match=re.escape("one for each of model.goal_buffer")):
        model.task_policy(np.ones(17))


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        ("keys", None, "is of a model with state_key, this one has none of state_key, goal and"),
        ("keys", "keys and pairs", "with state_key, this one has state_key and goal"),
        ("pairs", "keys", "with goal, this one has state_key"),
        ("cells at a distance", "pairs", "with goal and reached, this one has goal"),
    ],
)
def test_what_is_known_of_other_states_or_goals_is_refused(saved, other, message, tmp_path):
    model_of(saved).learn(60).save_world(tmp_path / "world")
    model_of(saved).load_world(tmp_path / "world")
    model = make_model(Dusty()) if other is None else model_of(other)
    model.learn(60)
    n_known = len(model.goal_buffer)
    with pytest.raises(ValueError, match=message):
        model.load_world(tmp_path / "world")
    assert len(model.goal_buffer) == n_known


def test_a_planned_task_knows_all_states_of_a_rewarded_goal(learned):
    """The other states of the rewarded pair are as good as the first one that was met."""
    model = learned("keys and pairs")
    begin, states = model.goal_buffer.achieving_states()
    for goal in range(3):
        goal_id = int(model.goal_buffer.ids(np.array([goal]))[0])
        policy = model.task_policy(np.eye(3)[goal_id])
        cells = model.goal_buffer.states.observations[
            states[begin[goal_id] : begin[goal_id + 1]], 0
        ]
        assert sorted(cells.tolist()) == [2 * goal, 2 * goal + 1]
        for cell in range(6):
            if cell // 2 != goal:
                action = policy.predict(observation(cell))[0]
                assert action == (RIGHT if cell < 2 * goal else LEFT)
        # From one cell of the pair, the next arrival may be to stay, not to walk to the first.
        table = policy.table
        assert len(table.states) == 6


def test_a_model_pursues_only_the_goals_of_a_list(tmp_path):
    """The pair on the right is the only goal, and it is reached from everywhere."""
    settings = {"max_episode_steps": 15, **KINDS["keys and pairs"], "goal_list": [2]}
    model = make_model(Dusty(), goal_wrapper_kwargs=settings, learning_starts=100)
    model.learn(600)
    assert model.goal_buffer.observations.tolist() == [2]
    for cell in range(4):
        assert model.predict(obs_towards(model, cell, 5), deterministic=True)[0] == RIGHT
    model.save_all(tmp_path)
    loaded = ManyGoalsDQN.load_all(tmp_path, Dusty())
    loaded.learn(50, reset_num_timesteps=False)
    assert loaded.goal_buffer.observations.tolist() == [2]


class Locked:
    """
    A function that cannot be pickled nor copied, as one that has a window.

    :param function: the function
    """

    def __init__(self, function):
        self.function = function
        self.lock = threading.Lock()

    def __call__(self, *args):
        with self.lock:
            return self.function(*args)


def far(left, right):
    """Return which dusty observations show cells of one pair."""
    return left[:, 0] // 2 == right[:, 0] // 2


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"state_key": Locked(cell_of)}, ["state_key"]),
        ({"state_key": Locked(cell_of), "reached": Locked(far)}, ["state_key", "reached"]),
        ({"state_key": cell_of, "goal": Locked(pair_of), "goal_space": PAIRS}, ["goal"]),
    ],
)
def test_of_functions_that_cannot_be_pickled_the_name_is_saved(settings, names, tmp_path):
    model = make_model(Dusty(), goal_wrapper_kwargs=settings, learning_starts=60).learn(80)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.save(tmp_path / "model")
    assert [str(one.message).split()[0] for one in caught] == names
    assert "only its name is saved: an object of tests." in str(caught[0].message)
    # The model itself keeps them.
    assert (
        model.learn(20, reset_num_timesteps=False).goal_wrapper_kwargs[names[0]]
        is (settings[names[0]])
    )
    model.save_world(tmp_path / "world")
    obs = obs_towards(model, 1, 4)
    expected = model.predict(obs, deterministic=True)[0]
    assert ManyGoalsDQN.load(tmp_path / "model").predict(obs)[0] in range(3)
    with pytest.raises(ValueError, match=rf"({'|'.join(names)}) was not saved .* an environment"):
        ManyGoalsDQN.load(tmp_path / "model", Dusty()).learn(20)
    loaded = ManyGoalsDQN.load(tmp_path / "model", GoalBufferWrapper(Dusty(), **settings))
    loaded.load_world(tmp_path / "world")
    np.testing.assert_array_equal(loaded.goal_buffer.observations, model.goal_buffer.observations)
    loaded.set_parameters(model.get_parameters())
    assert loaded.predict(obs, deterministic=True)[0] == expected
    loaded.learn(20, reset_num_timesteps=False)
    with pytest.raises(ValueError, match=f"env's goal wrapper has another {names[0]}"):
        ManyGoalsDQN.load(
            tmp_path / "model",
            GoalBufferWrapper(Dusty(), **{**settings, names[0]: lambda *seen: 0}),
        )


@pytest.mark.parametrize("kind", KEYED)
def test_policies_with_lambdas_are_saved(learned, kind, tmp_path):
    model = learned(kind)
    seen = np.array([observation(cell) for cell in range(6)])
    goals = model.goal_buffer
    for policy in (
        model.goal_policy(goals[0]),
        model.task_policy(np.eye(len(goals))[0], planned=True),
    ):
        policy.save(tmp_path / "policy.pt")
        loaded = type(policy).load(tmp_path / "policy.pt")
        np.testing.assert_array_equal(loaded.predict(seen)[0], policy.predict(seen)[0])


def test_policies_whose_functions_cannot_be_pickled_say_so(tmp_path):
    settings = {"state_key": Locked(cell_of)}
    kwargs = {"goal_wrapper_kwargs": settings, "target_class": PlannedTargets}
    model = make_model(Dusty(), **kwargs, learning_starts=60).learn(80)
    for policy in (
        model.goal_policy.__func__,
        lambda one: one.task_policy(np.ones(len(one.goal_buffer))),
    ):
        with pytest.raises(TypeError, match=r"because state_key cannot be pickled: an object of"):
            policy(model).save(tmp_path / "policy.pt")
    assert not (tmp_path / "policy.pt").exists()


def test_functions_see_only_what_environments_show(tmp_path):
    """An array of zeros is no observation: there is no cell in a picture without the agent."""

    def cell(seen):
        return int(np.flatnonzero(seen)[0])

    kwargs = {"goal_wrapper_kwargs": {"state_key": cell}, "learning_starts": 60}
    model = make_model(Corridor(), **kwargs).learn(80)
    model.set_env(Corridor())
    model.save_all(tmp_path)
    loaded = ManyGoalsDQN.load_all(tmp_path, Corridor())
    loaded.learn(20, reset_num_timesteps=False)
    assert len(loaded.goal_buffer.states) == 6
