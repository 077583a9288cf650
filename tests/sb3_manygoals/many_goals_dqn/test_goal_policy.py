"""Acting towards goals by a plan: predict(planned=True), and policies that follow a plan."""

import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

import gym_twoRooms  # noqa: F401  # registers TwoRoomsSwitchSmall-v0
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import GoalBuffer, GoalBufferWrapper, GymnasiumVecEnv, evaluate_mastery
from sb3_manygoals.many_goals_dqn import GoalPolicy, ManyGoalsDQN, PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    make_model,
    parameters,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor, Paid

HERE, GOAL = (np.repeat(np.arange(6), 6), np.tile(np.arange(6), 6))
"""The cell and the goal of all pairs."""
IS_OTHER = HERE != GOAL
RIGHT_WAY = np.where(GOAL > HERE, 1, 0)
PAIRS = {"observation": CELLS[HERE], "desired_goal": CELLS[GOAL]}
NO_CELL = np.ones(6, np.uint8)
"""An observation that no corridor shows."""


class OneWay(Corridor):
    """A corridor in which no action leads to the left."""

    def step(self, action):
        return super().step(2 if action == 0 else action)


def walked(env=None, steps=300, **kwargs):
    """Return a model that has made random steps and no updates."""
    return make_model(env, learning_starts=steps, **kwargs).learn(steps)


def planning(**kwargs):
    """Return a model that has a plan, and a network that has hardly learned."""
    return make_model(updates_per_step=0.01, **kwargs).learn(400)


@pytest.fixture(scope="module")
def walker():
    return walked()


@pytest.fixture(scope="module")
def planner():
    return planning()


def check_all_ways(actions):
    """Assert that these actions for all pairs go straight to the goal."""
    np.testing.assert_array_equal(actions[IS_OTHER], RIGHT_WAY[IS_OTHER])


def of_network(model, query):
    return model.predict(query, deterministic=True)[0]


def test_predict_follows_the_plan_if_it_is_asked_to(planner):
    assert planner.targets.planned_at is not None
    assert (of_network(planner, PAIRS)[IS_OTHER] != RIGHT_WAY[IS_OTHER]).any()
    check_all_ways(planner.predict(PAIRS, deterministic=True, planned=True)[0])
    one = {key: values[4] for key, values in PAIRS.items()}
    action, _ = planner.predict(one, deterministic=True, planned=True)
    assert (action, np.shape(action)) == (1, ())


def test_predict_explores_also_where_it_follows_the_plan(planner):
    planner.exploration_rate = 0.0
    check_all_ways(planner.predict(PAIRS, planned=True)[0])
    planner.exploration_rate = 0.5
    tried = np.stack([planner.predict(PAIRS, planned=True)[0] for _ in range(200)])[:, IS_OTHER]
    # A random action is the planned one in a third of the cases.
    assert np.mean(tried == RIGHT_WAY[IS_OTHER]) == pytest.approx(0.5 + 0.5 / 3, abs=0.02)


def both(model):
    """Return functions that act by the plan: the model's, and that of its policy."""
    policy = model.goal_policy()

    def of_model(query, **kwargs):
        return model.predict(query, deterministic=True, planned=True, **kwargs)[0]

    def of_policy(query, **kwargs):
        return policy.predict(query, **kwargs)[0]

    return of_model, of_policy


def test_the_network_acts_in_unknown_observations_and_for_unknown_goals(planner):
    queries = [
        {"observation": np.repeat(NO_CELL[None], 6, 0), "desired_goal": CELLS},
        {"observation": CELLS, "desired_goal": np.repeat(NO_CELL[None], 6, 0)},
    ]
    for act in both(planner):
        for query in queries:
            np.testing.assert_array_equal(act(query), of_network(planner, query))
            # Others of the batch are planned for.
            together = {key: np.concatenate([query[key], PAIRS[key]]) for key in query}
            actions = act(together)
            np.testing.assert_array_equal(actions[:6], of_network(planner, query))
            check_all_ways(actions[6:])


def test_the_network_acts_where_the_plan_knows_no_way():
    model = walked(OneWay(6))
    policy = model.goal_policy()
    actions = policy.predict(PAIRS)[0]
    is_ahead = GOAL > HERE
    assert (actions[is_ahead] == 1).all()
    is_behind = GOAL < HERE
    expected = of_network(model, PAIRS)
    np.testing.assert_array_equal(actions[is_behind], expected[is_behind])


def test_a_mask_forbids_planned_actions(planner):
    query = {"observation": CELLS[[2, 2]], "desired_goal": CELLS[[5, 0]]}
    masks = np.array([[True, False, False], [True, True, False]])
    for act in both(planner):
        assert act(query, action_masks=masks).tolist() == [0, 0]
        one = {key: values[0] for key, values in query.items()}
        assert act(one, action_masks=masks[0]) == 0
        with pytest.raises(ValueError, match="action masks must have 3 entries"):
            act(query, action_masks=masks[:, :2])


def test_predict_warns_once_if_there_is_no_plan(planner, tmp_path):
    alone = reloaded(planner, tmp_path)
    for model in (walked(), td_model().learn(60), alone):
        with pytest.warns(UserWarning, match="the model has no plan, so its network acts"):
            actions, _ = model.predict(PAIRS, deterministic=True, planned=True)
        np.testing.assert_array_equal(actions, of_network(model, PAIRS))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict(PAIRS, planned=True)


def test_random_steps_are_enough_for_a_policy_to_all_goals(walker):
    assert walker.targets.planned_at is None
    policy = walker.goal_policy()
    check_all_ways(policy.predict(PAIRS)[0])
    # The plan is the policy's own.
    assert walker.targets.planned_at is None
    settings = {"goal_buffer": policy.goal_buffer, "reset_worlds": True, "training": False}
    infos = []
    returns, lengths = evaluate_policy(
        policy,
        DummyVecEnv([lambda: GoalBufferWrapper(Corridor(start=2), **settings)]),
        20,
        callback=lambda values, _: infos.append(values["info"]),
        return_episode_rewards=True,
        warn=False,
    )
    ends = [info for info in infos if info["is_success"]]
    assert len(ends) == 20
    goals = policy.goal_buffer[np.array([info["desired_goal_id"] for info in ends])]
    assert lengths == np.abs(goals.argmax(axis=1) - 2).tolist()
    np.testing.assert_allclose(returns, -0.1 * (np.array(lengths) - 1))


@pytest.mark.parametrize("goal", range(6))
@pytest.mark.parametrize("given", [np.asarray, list])
def test_a_policy_to_one_goal_goes_there_and_stays(walker, goal, given):
    policy = walker.goal_policy(given(CELLS[goal]))
    assert policy.observation_space == Corridor().observation_space
    actions, _ = policy.predict(CELLS)
    is_other = np.arange(6) != goal
    np.testing.assert_array_equal(actions[is_other], (np.arange(6) < goal)[is_other])
    venv = make_vec_env(lambda: gym.wrappers.TimeLimit(Corridor(start=3), 12), 2)
    steps = abs(goal - 3)
    # The reward is the number of the cell, so a return says that it stays.
    on_the_way = sum(range(min(3, goal) + (goal > 3), max(3, goal) + (goal > 3)))
    mean, deviation = evaluate_policy(policy, venv, 2)
    assert (mean, deviation) == (on_the_way + goal * (12 - steps), 0.0)


def test_the_plan_that_a_model_has_is_followed(planner):
    policy = planner.goal_policy()
    plan = planner.targets.plan
    assert policy.table.actions.shape == plan.best.shape
    state_ids, goal_ids = (planner.goal_buffer.look_up(CELLS[cells])[0] for cells in (HERE, GOAL))
    np.testing.assert_array_equal(policy.predict(PAIRS)[0], plan.best[state_ids, goal_ids])


def test_it_does_not_change_when_the_model_learns_on():
    model = walked(Corridor(start=0), 8)
    n_known = len(model.goal_buffer)
    assert n_known < 6
    policies = [model.goal_policy(), model.goal_policy(CELLS[1])]
    queries = [PAIRS, CELLS]
    before = [policy.predict(query)[0] for policy, query in zip(policies, queries, strict=True)]
    weights = parameters(policies[0]).clone()
    model.learning_starts = 0
    model.learn(400)
    assert len(model.goal_buffer) == 6
    after = [policy.predict(query)[0] for policy, query in zip(policies, queries, strict=True)]
    np.testing.assert_array_equal(np.concatenate(after), np.concatenate(before))
    np.testing.assert_array_equal(parameters(policies[0]), weights)
    assert (parameters(model.policy.q_net_ema) != weights).any()
    assert len(policies[0].goal_buffer) == n_known
    check_all_ways(model.goal_policy().predict(PAIRS)[0])


def test_it_is_saved_and_loaded(walker, tmp_path):
    for policy, query in (
        (walker.goal_policy(), PAIRS),
        (walker.goal_policy(CELLS[4]), np.concatenate([CELLS, NO_CELL[None]])),
    ):
        policy.save(tmp_path / "policy.pt")
        loaded = GoalPolicy.load(tmp_path / "policy.pt")
        np.testing.assert_array_equal(loaded.predict(query)[0], policy.predict(query)[0])


def test_it_plans_in_a_world_that_was_loaded(walker, tmp_path):
    for env in (None, Corridor()):
        loaded = reloaded(walker, tmp_path, env)
        message = "the model knows none: let it learn, or call load_world"
        with pytest.raises(ValueError, match=message):
            loaded.goal_policy()
        walker.save_world(tmp_path / "world")
        loaded.load_world(tmp_path / "world")
        check_all_ways(loaded.goal_policy().predict(PAIRS)[0])
        assert loaded.goal_policy(CELLS[0]).predict(CELLS[1:])[0].tolist() == [0] * 5


# A pair takes five bytes, so two goals of six states fit.
SMALL_PLAN = {"target_class": PlannedTargets, "target_kwargs": {"max_plan_bytes": 2 * 6 * 5}}


@pytest.mark.filterwarnings("ignore:.*plans are for samples of goals")
@pytest.mark.parametrize("make", [walked, planning])
def test_a_plan_that_does_not_fit_is_partial_and_one_goal_always_fits(make):
    model = make(**SMALL_PLAN)
    with pytest.warns(UserWarning, match="2 of 6 goals are in the plan: the network acts for the"):
        policy = model.goal_policy()
    assert policy.table.actions.shape == (6, 2)
    actions = policy.predict(PAIRS)[0]
    planned_ids = np.flatnonzero(policy.table.columns[:-1] >= 0)
    is_planned = np.isin(policy.goal_buffer.ids(CELLS[GOAL]), planned_ids)
    assert is_planned.sum() == 12
    np.testing.assert_array_equal(actions[is_planned & IS_OTHER], RIGHT_WAY[is_planned & IS_OTHER])
    np.testing.assert_array_equal(actions[~is_planned], of_network(model, PAIRS)[~is_planned])
    for goal in range(5):
        assert model.goal_policy(CELLS[goal]).predict(CELLS[5])[0] == 0


def test_a_goal_that_an_episode_ends_at_is_reached():
    model = walked(Paid({}, (0, 8), start=4), 600)
    cells = np.eye(9, dtype=np.uint8)
    for goal, action in ((0, 0), (8, 1)):
        policy = model.goal_policy(cells[goal])
        assert policy.predict(cells[1:8])[0].tolist() == [action] * 7
    # The ways to others do not lead through the ends.
    policy = model.goal_policy()
    query = {"observation": cells[[1, 7]], "desired_goal": cells[[7, 1]]}
    assert policy.predict(query)[0].tolist() == [1, 0]


def test_numbers_of_states_and_images_are_observations_too():
    model = walked(NumberedCorridor())
    policy = model.goal_policy()
    check_all_ways(policy.predict({"observation": HERE, "desired_goal": GOAL})[0])
    action, _ = policy.predict({"observation": np.int64(1), "desired_goal": np.int64(4)})
    assert (action, np.shape(action)) == (1, ())
    assert model.goal_policy(np.int64(3)).predict(np.int64(5))[0] == 0
    shown = np.stack([Corridor(image=True).observation_of(cell) for cell in range(6)])
    venv = VecTransposeImage(make_vec_env(lambda: Corridor(image=True), 1))
    model = walked(venv, policy="CnnPolicy")
    policy = model.goal_policy()
    for images in (shown, shown.transpose(0, 3, 1, 2)):
        query = {"observation": images[HERE], "desired_goal": images[GOAL]}
        check_all_ways(policy.predict(query)[0])
    to_last = model.goal_policy(shown[5].transpose(2, 0, 1))
    assert to_last.predict(shown[:5])[0].tolist() == [1] * 5


class Noisy(Corridor):
    """A corridor whose observation is the number of the cell and noise."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0.0, 5.0, (2,), np.float32)

    def observation_of(self, cell):
        return np.array([cell, self.np_random.random()], np.float32)


def place(seen):
    """Return in which cell a noisy observation is."""
    return seen[:1]


def noisy(**kinds):
    """Return a model that has walked in a noisy corridor, with these kinds of states and goals."""
    return walked(Noisy(), goal_wrapper_kwargs={"state_key": place, **kinds})


NOISY = np.stack([np.arange(6), np.full(6, 0.123)], axis=1).astype(np.float32)


def test_states_are_told_apart_by_their_keys():
    model = noisy()
    policy = model.goal_policy()
    query = {"observation": NOISY[HERE], "desired_goal": NOISY[GOAL]}
    check_all_ways(policy.predict(query)[0])
    query["observation"] = query["observation"] + np.array([0.0, 0.5], np.float32)
    check_all_ways(policy.predict(query)[0])
    assert model.goal_policy(NOISY[2]).predict(NOISY)[0].tolist() == [1, 1, 2, 0, 0, 0]


def test_a_goal_may_be_a_set_of_states(tmp_path):
    half = {"goal": is_in_right_half, "goal_space": spaces.Discrete(2)}
    model = noisy(**half)
    to_right = model.goal_policy(np.int64(1))
    to_right.save(tmp_path / "policy.pt")
    for policy in (to_right, GoalPolicy.load(tmp_path / "policy.pt")):
        assert policy.predict(NOISY[:3])[0].tolist() == [1, 1, 1]
        # In the first cell of the right half it must not go back.
        assert policy.predict(NOISY[3])[0] != 0
    query = {"observation": NOISY[[1, 4]], "desired_goal": np.array([1, 0])}
    assert model.goal_policy().predict(query)[0].tolist() == [1, 0]
    with pytest.raises(ValueError, match="goal must be of the goal space, goal is 2"):
        model.goal_policy(np.int64(2))


def is_in_right_half(seen):
    return int(seen[0] > 2)


def test_a_goal_that_is_reached_nearby_need_not_have_been_met():
    model = noisy(goal=place, reached=0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = model.goal_policy(np.array([2.5], np.float32))
    assert policy.predict(NOISY[[0, 1, 4, 5]])[0].tolist() == [1, 1, 0, 0]


def test_a_goal_that_was_never_met_is_a_warning(walker):
    with pytest.warns(UserWarning, match="1 of 1 goals are not known to the model"):
        policy = walker.goal_policy(NO_CELL)
    query = {"observation": CELLS, "desired_goal": np.repeat(NO_CELL[None], 6, 0)}
    np.testing.assert_array_equal(policy.predict(CELLS)[0], of_network(walker, query))


def test_a_held_out_goal_is_not_planned_for():
    held_out = GoalBuffer(Corridor().observation_space, held_out=CELLS[5:])
    model = walked(goal_wrapper_kwargs={"goal_buffer": held_out})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_all = model.goal_policy()
        policy = model.goal_policy(CELLS[5])
    query = {"observation": CELLS, "desired_goal": np.repeat(CELLS[5:], 6, 0)}
    for actions in (to_all.predict(query)[0], policy.predict(CELLS)[0]):
        np.testing.assert_array_equal(actions, of_network(model, query))


@pytest.mark.parametrize(
    ("make", "goal", "error", "message"),
    [
        (make_model, None, ValueError, "the model knows none: let it learn, or call load_world"),
        (make_model, CELLS[0], ValueError, "the model knows none"),
        (
            lambda: td_model().learn(60),
            None,
            ValueError,
            "goal_policy needs PlannedTargets, the targets of this model are TDTargets",
        ),
        (
            lambda: make_model(target_class=TDTargets, goals_in_replay=True),
            None,
            TypeError,
            "the goals of this model are in its replay memory",
        ),
        (walked, 2 * CELLS[0], ValueError, "goal must be of the observation space, goal is [2, 0"),
        (walked, CELLS, ValueError, "goal must be uint8 of shape (6,), got uint8 of (6, 6)"),
        (walked, CELLS[0].astype(float), ValueError, "goal must be uint8 of shape (6,), got float"),
    ],
)
def test_policies_that_cannot_be_made_are_refused(make, goal, error, message):
    model = make()
    with pytest.raises(error, match=re.escape(message)):
        model.goal_policy(goal)


@pytest.mark.parametrize(
    ("goal", "observation", "message"),
    [
        (None, CELLS[0], 'observation must be a dict with "observation" and "desired_goal", got n'),
        (None, {"observation": CELLS[0]}, "got ['observation']: wrap the environment"),
        (
            None,
            {"observation": CELLS, "desired_goal": CELLS[0]},
            "as many of one as of the other, got (6, 6) and (6,)",
        ),
        (CELLS[0], PAIRS, "got a dict: the policy was made for one goal"),
        (CELLS[0], CELLS[:, :5], "observation"),
    ],
)
def test_observations_that_do_not_fit_are_refused(walker, goal, observation, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        walker.goal_policy(goal).predict(observation)


def test_numbers_out_of_their_range_are_refused():
    model = walked(NumberedCorridor())
    with pytest.raises(ValueError, match=r"observation is 6: 6 is not in \[0, 5\]"):
        model.goal_policy(np.int64(0)).predict(np.int64(6))
    with pytest.raises(ValueError, match=r"desired_goal is 6: 6 is not in \[0, 5\]"):
        model.goal_policy().predict({"observation": np.int64(0), "desired_goal": np.int64(6)})


def test_after_random_steps_a_policy_reaches_all_goals_that_the_oracle_reaches():
    # Many environments take so many steps in less time than one.
    env = gym.make_vec("TwoRoomsSwitchSmall-v0", num_envs=16, autoreset_mode="Disabled")
    training_env = GymnasiumVecEnv(env)
    model = ManyGoalsDQN("CnnPolicy", training_env, learning_starts=30_000, seed=0).learn(30_000)
    goals = model.goal_buffer.observations
    assert len(goals) == 220
    worlds = gym.make_vec("TwoRoomsSwitchSmall-v0", num_envs=220)
    ceiling = mastery_ceiling(env.unwrapped.mdp, 200)
    found = evaluate_mastery(model.goal_policy(), worlds, goals, ceiling=ceiling)
    assert found.ceiling.min() > 0.9999
    assert found.rate == 1.0
