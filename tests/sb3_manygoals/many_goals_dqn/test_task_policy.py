"""Policies for tasks: rewards that were met or are given, and which tasks are refused."""

import re
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_manygoals import GoalBuffer
from sb3_manygoals.many_goals_dqn import PlannedTargets, TaskPolicy, TDTargets
from sb3_manygoals.many_goals_dqn.task_policy import OutcomeRewards, planned_actions
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel
from tests.sb3_manygoals.many_goals_dqn.models import make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor, Paid

ENDS = (0, 8)
CELLS = np.eye(9, dtype=np.uint8)
"""The observations of a corridor of nine cells."""


def taught(world, steps=600, wrapper=None, **kwargs):
    """
    Return a model that has learned in a world. ``wrapper`` are arguments of the goal wrapper.

    Plans read what was met, and not the network. So the network has few updates.
    """
    settings = {"max_episode_steps": 20, **(wrapper or {})}
    few = {"updates_per_step": 0.01, **kwargs}
    return make_model(world, goal_wrapper_kwargs=settings, **few).learn(steps)


def test_a_reward_near_a_goal_of_a_list_is_a_reward():
    near = {
        "goal": lambda seen: np.array([seen.argmax()], np.float32),
        "reached": 0.6,
        "goal_list": np.float32([[2.5], [7.5]]),
    }
    model = taught(Paid({8: 1.0}, (8,)), 900, wrapper=near)
    policy = model.task_policy(planned=True)
    assert last_cell(policy, Paid({8: 1.0}, (8,)), 1) == 8


def treasure_world():
    """Return nine cells. The last one ends with a reward of 1, the first one without."""
    return Paid({8: 1.0}, ENDS)


@pytest.fixture(scope="module")
def treasure():
    return taught(treasure_world(), 1_500, updates_per_step=1.0)


def last_cell(policy, world, start):
    """Return in which cell an episode ends."""
    observation, _ = world.reset(options={"cell": start})
    for _ in range(20):
        action, _ = policy.predict(observation, deterministic=True)
        observation, _, ended, *_ = world.step(action)
        if ended:
            break
    return world.cell


def test_a_task_can_be_planned_where_all_steps_were_random():
    model = make_model(treasure_world(), learning_starts=400)
    message = r"nothing is learned by the network. goal_policy\(\) and task_policy\(\) plan in"
    with pytest.warns(UserWarning, match=message):
        model.learn(400)
    policy = model.task_policy()
    assert [last_cell(policy, treasure_world(), cell) for cell in range(1, 8)] == [8] * 7


def test_it_goes_to_the_reward_and_past_no_end(treasure):
    policy = treasure.task_policy()
    world = treasure_world()
    assert [last_cell(policy, world, start) for start in range(1, 8)] == [8] * 7
    np.testing.assert_array_equal(policy.goals, world.observation_of(8)[None])
    one = Monitor(gym.wrappers.TimeLimit(world, 20))
    assert evaluate_policy(policy, one, 3) == (1.0, 0.0)
    several = make_vec_env(lambda: gym.wrappers.TimeLimit(treasure_world(), 20), 3)
    assert evaluate_policy(policy, several, 6) == (1.0, 0.0)


def test_observations_that_may_not_be_written_to_are_no_warning():
    """Those of the goal buffer are read-only, and PyTorch warns once of such pictures."""
    model = make_model(Corridor(image=True), "CnnPolicy").learn(40)
    picture = model.goal_buffer.observations[0]
    assert not picture.flags.writeable
    policy = model.task_policy(lambda seen: seen[:, 0, 5, 0] > 0)
    seen = []
    encode = policy.obs_to_tensor
    policy.obs_to_tensor = lambda observation: seen.append(observation) or encode(observation)
    policy.predict(picture)
    assert seen[0].flags.writeable


def test_the_policy_is_saved_and_does_not_change_with_the_model(treasure, tmp_path):
    policy = treasure.task_policy(gamma=0.9)
    policy.save(tmp_path / "task.pt")
    loaded = TaskPolicy.load(tmp_path / "task.pt")
    np.testing.assert_array_equal(loaded.predict(CELLS)[0], policy.predict(CELLS)[0])
    assert loaded.gamma == 0.9
    assert loaded.rewards.tolist() == [1.0]
    assert policy.q_net is not treasure.policy.q_net_ema
    assert policy.table.states is not treasure.world.identity


def check_choice_by_distance_and_discount(model, planned):
    """Assert that the better of two rewards is chosen by distance and discount."""
    rewards = np.zeros(9)
    # At a discount of 0.99 the larger reward is worth three steps more, at 0.8 not a single one.
    rewards[model.goal_buffer.ids(CELLS[[1, 7]])] = (1.0, 1.03)
    expected = {None: [0, 1, 1, 1], 1.0: [1, 1, 1, 1], 0.8: [0, 0, 1, 1]}
    for gamma, actions in expected.items():
        policy = model.task_policy(rewards, gamma=gamma, planned=planned)
        assert policy.predict(CELLS[[2, 3, 5, 6]])[0].tolist() == actions, gamma


def test_images_are_planned_for_with_the_channels_first_or_last():
    venv = VecTransposeImage(make_vec_env(lambda: Corridor(image=True), 1))
    model = make_model(venv, "CnnPolicy").learn(40)
    first = model.goal_buffer.observations.copy()
    goal = first[first[:, 0, 0, 5] > 0]
    policy = model.task_policy(lambda seen: (seen == goal).all(axis=(1, 2, 3)))
    # These are not the actions of the network.
    policy.table.actions[:] = np.arange(len(policy.table.actions)) % 3
    expected = policy.table.actions[policy.table.states.ids(first)]
    for batch in (first, first.transpose(0, 2, 3, 1)):
        np.testing.assert_array_equal(policy.predict(batch, deterministic=True)[0], expected)


def test_the_network_chooses_the_best_of_several_rewards_by_distance_and_discount(treasure):
    check_choice_by_distance_and_discount(treasure, planned=False)


def test_a_function_can_give_rewards_and_masks_forbid_actions(treasure):
    policy = treasure.task_policy(lambda seen: seen[:, 3] == 1, planned=False)
    assert policy.predict(CELLS[[2, 4]])[0].tolist() == [1, 0]
    only_left = np.array([True, False, False])
    assert policy.predict(CELLS[2], action_masks=only_left)[0] == 0


def test_a_plan_is_better_than_a_network_that_has_not_learned():
    model = taught(treasure_world())
    # It plans, because the model does.
    planned = model.task_policy()
    assert planned.predict(CELLS[1:8])[0].tolist() == [1] * 7
    only_left = np.array([True, False, False])
    assert planned.predict(CELLS[3], action_masks=only_left)[0] == 0
    check_choice_by_distance_and_discount(model, planned=True)


@pytest.mark.filterwarnings("ignore:.*plans are for samples of goals")
def test_a_task_is_planned_for_rewards_that_are_not_in_a_partial_plan():
    # One goal is planned, and the network has hardly learned.
    model = taught(
        Paid({0: 0.1, 8: 10.0}, ENDS),
        1_000,
        updates_per_step=0.002,
        target_class=PlannedTargets,
        target_kwargs={"max_plan_bytes": 9 * 5},
    )
    assert model.targets.plan.is_partial
    assert model.task_policy().predict(CELLS[1:8])[0].tolist() == [1] * 7


def outcome_probabilities(rng, n):
    """Return random probabilities of next states, and of last states, of two actions each."""
    return rng.dirichlet(np.ones(2 * n) / 4, 2 * n)


def best_values(values_of, n):
    """Return the best values of all policies with two actions in each of n states."""
    policies = [values_of(np.array(actions)) for actions in product(range(2), repeat=n)]
    return np.max(policies, axis=0)


@pytest.mark.parametrize("seed", range(20))
def test_planned_actions_are_as_good_as_the_best_of_all_policies(seed):
    """Four states, two actions: each of the 16 policies is evaluated by linear equations."""
    rng = np.random.default_rng(seed)
    n = 4
    probabilities = outcome_probabilities(rng, n)
    transitions = probabilities[:, :n]
    terminal = probabilities[:, n:]
    rewards = np.array([0.0, 0.0, 1.0, seed % 2 * 0.7])
    gamma = float(rng.uniform(0.3, 0.99))

    def values_of(actions):
        rows = 2 * np.arange(n) + actions
        # A task ends at its first reward.
        going_on = transitions[rows] * (rewards == 0)
        immediate = (transitions + terminal)[rows] @ rewards
        return np.linalg.solve(np.eye(n) - gamma * going_on, immediate)

    model = TransitionModel(csr_array(transitions), csr_array(terminal))
    planned = planned_actions(model, rewards, gamma)
    np.testing.assert_allclose(values_of(planned), best_values(values_of, n), rtol=1e-6)


def test_no_action_is_planned_where_nothing_is_known():
    nothing = csr_array(np.zeros((8, 4)))
    model = TransitionModel(nothing, nothing)
    assert planned_actions(model, np.ones(4), 0.9).tolist() == [-1] * 4


@given(st.integers(0, 2**32 - 1))
def test_planned_actions_for_rewards_of_outcomes_are_as_good_as_the_best_of_all_policies(seed):
    """Each outcome has a reward of its own. Rewards of terminal outcomes may be negative."""
    rng = np.random.default_rng(seed)
    n = 4
    probabilities = outcome_probabilities(rng, n)
    rewards = np.where(
        rng.random(probabilities.shape) < 0.2, rng.uniform(0.1, 1.0, probabilities.shape), 0.0
    )
    rewards[:, n:] -= rng.uniform(0.0, 0.2, (2 * n, n)) * (rng.random((2 * n, n)) < 0.3)
    gamma = float(rng.uniform(0.3, 0.99))
    is_possible = probabilities != 0
    model = TransitionModel(csr_array(probabilities[:, :n]), csr_array(probabilities[:, n:]))
    of_outcomes = OutcomeRewards(
        transitions=rewards[:, :n][is_possible[:, :n]],
        terminal_transitions=rewards[:, n:][is_possible[:, n:]],
    )

    def values_of(actions):
        rows = 2 * np.arange(n) + actions
        going_on = probabilities[rows, :n] * (rewards[rows, :n] == 0)
        immediate = (probabilities * rewards)[rows].sum(axis=1)
        return np.linalg.solve(np.eye(n) - gamma * going_on, immediate)

    best = best_values(values_of, n)
    planned = planned_actions(model, of_outcomes, gamma)
    # Where nothing can be gained, no action is planned.
    np.testing.assert_array_equal(planned < 0, best <= 1e-12)
    if (planned >= 0).all():
        np.testing.assert_allclose(values_of(planned), best, rtol=1e-6, atol=1e-8)


def test_a_plan_of_a_task_that_does_not_converge_is_a_warning(treasure, monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.task_policy._MOST_SWEEPS", 3)
    with pytest.warns(UserWarning, match="still changing after 3 sweeps"):
        treasure.task_policy()


def test_the_plan_stays_at_a_reward_that_does_not_end_the_episode():
    model = taught(Paid({8: 1.0}, ()), 1_500)
    with pytest.warns(UserWarning, match="stays there if it can"):
        policy = model.task_policy()
    actions = policy.table.actions[policy.table.states.ids(CELLS)].tolist()
    assert actions[:8] == [1] * 8
    # In the last cell it walks against the wall, or stays.
    assert actions[8] in (1, 2)


def test_arrivals_are_counted_with_their_rewards_and_ends(treasure):
    world = treasure.world
    state_ids = world.identity.ids(CELLS)
    arrivals = world.arrivals[state_ids]
    assert arrivals.sum() == 1_500
    expected = np.where(np.arange(9) == 8, arrivals, 0)
    np.testing.assert_array_equal(world.arrival_rewards[state_ids], expected)
    expected = np.where(np.isin(np.arange(9), ENDS), arrivals, 0)
    np.testing.assert_array_equal(world.arrival_ends[state_ids], expected)
    goal_ids = treasure.goal_buffer.ids(CELLS)
    np.testing.assert_array_equal(treasure.goal_rewards[goal_ids], np.arange(9) == 8)


def test_rewards_are_known_again_from_a_file_and_from_a_checkpoint(treasure, tmp_path):
    treasure.save_world(tmp_path / "world")
    loaded = reloaded(treasure, tmp_path, treasure_world())
    with pytest.raises(ValueError, match="no reward is known"):
        loaded.task_policy()
    loaded.load_world(tmp_path / "world")
    other = make_model(treasure_world(), goal_wrapper_kwargs={"max_episode_steps": 20})
    other.set_checkpoint_state(treasure.get_checkpoint_state())
    for one in (loaded, other):
        np.testing.assert_array_equal(one.goal_rewards, treasure.goal_rewards)
        assert last_cell(one.task_policy(), treasure_world(), 2) == 8


def test_rewards_are_not_known_in_a_model_without_goals(treasure, tmp_path):
    alone = reloaded(treasure, tmp_path)
    for ask in (lambda: alone.goal_rewards, alone.task_policy):
        with pytest.raises(ValueError, match=r"no reward is known: .* load with load_all"):
            ask()


def test_steps_that_all_cost_the_same_are_accounted_for():
    """
    As in MountainCar, each step has a reward of -1, also the last one.

    An end that costs as much as 100 steps is not worth going to.
    """
    policy = taught(Paid({0: -100.0, 8: -1.0}, ENDS, cost=-1.0)).task_policy()
    assert len(policy.goals) == 1
    assert policy.goals[0, 8] == 1
    np.testing.assert_allclose(policy.rewards, 99.0)


def test_a_reward_on_the_way_is_a_warning():
    model = taught(Paid({6: 1.0, 8: 2.0}, ENDS))
    message = "1 of 2 rewarded observations did not always end the episode"
    with pytest.warns(UserWarning, match=message):
        model.task_policy()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ({"gamma": gamma}, f"gamma must be a number in (0, 1], got {gamma!r}")
            for gamma in (0.0, 1.1, float("nan"), "1")
        ),
        ({"reward": np.ones(8)}, "reward must be numbers of shape (9,), one for each"),
        ({"reward": lambda seen: seen}, "reward must return numbers of shape (9,), one for each"),
        ({"reward": np.full(9, -1.0)}, "reward must be finite and not negative"),
        ({"reward": np.full(9, np.nan)}, "reward must be finite and not negative"),
        (
            {"reward": lambda one: float(one[3])},
            "reward raised TypeError. It is called once with all known observations, an array of "
            "shape (9, ",
        ),
        (
            {"reward": np.zeros(9)},
            "reward must be positive for a known observation, it is 0 for all 9",
        ),
    ],
)
def test_arguments_out_of_their_range_are_refused(treasure, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        treasure.task_policy(**arguments)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            make_model,
            {"planned": True},
            "planned=True needs PlannedTargets and a world in which transitions were made",
        ),
        (make_model, {}, "the model has met no observation yet"),
        (
            lambda: taught(Paid({}, ENDS)),
            {},
            "of 9 known observations none had a positive mean reward",
        ),
        (
            lambda: taught(Paid({5: -2.0, 8: 1.0}, ENDS)),
            {},
            "does not end the episode. To do without them: reward=np.fmax(model.goal_rewards, 0)",
        ),
        (
            lambda: taught(Paid({5: -2.0}, ENDS)),
            {},
            "No reward is positive, so say by reward= what to seek",
        ),
        (
            lambda: taught(Paid({8: 1.0}, ENDS, cost=-1.0)),
            {"gamma": 1.0},
            "gamma must be less than 1 where each step",
        ),
        (lambda: make_model(gamma=0.0, target_class=TDTargets), {}, "a model with gamma=0"),
    ],
)
def test_tasks_that_a_model_knows_no_policy_for_are_refused(make, arguments, message):
    model = make()
    with pytest.raises(ValueError, match=re.escape(message)):
        model.task_policy(**arguments)


def test_a_model_that_forgets_its_goals_has_no_policy_for_tasks():
    model = make_model(target_class=TDTargets, goals_in_replay=True)
    with pytest.raises(TypeError, match="their rewards are not known"):
        model.task_policy()


def test_rewards_for_held_out_observations_are_refused():
    held_out = GoalBuffer(Corridor(9).observation_space, held_out=CELLS[8:])
    model = taught(treasure_world(), wrapper={"goal_buffer": held_out})
    message = "on arriving at observations that are no goals, as they were held out"
    with pytest.raises(ValueError, match=message):
        model.task_policy()
    with pytest.raises(ValueError, match="Held-out observations cannot be goals"):
        model.task_policy(reward=lambda seen: seen[:, 8])


@pytest.mark.parametrize(
    "observation",
    [
        np.zeros(8, np.uint8),
        np.zeros((2, 3, 9), np.uint8),
        {"observation": np.zeros(9, np.uint8)},
    ],
)
def test_observations_that_do_not_fit_are_refused(treasure, observation):
    with pytest.raises(ValueError, match="observation"):
        treasure.task_policy().predict(observation)


class Grid(gym.Env):
    """
    5 x 5 places.

    :param outcome: function of a place, an action and the next place that returns the reward, and
        whether the episode ends
    :param starts_at: the place in which episodes begin. None: a random one
    """

    observation_space = spaces.MultiDiscrete([5, 5])
    action_space = spaces.Discrete(4)

    def __init__(self, outcome, starts_at=None):
        self.outcome = outcome
        self.starts_at = starts_at
        self.place = (0, 0)

    def show(self):
        return np.array(self.place, dtype=np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.starts_at or tuple(self.np_random.integers(5, size=2).tolist())
        return self.show(), {}

    def step(self, action):
        before = self.place
        move = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(action)]
        self.place = tuple(min(max(here + by, 0), 4) for here, by in zip(before, move, strict=True))
        reward, ended = self.outcome(before, int(action), self.place)
        return self.show(), reward, ended, False, {}


def total_reward(policy, world, max_steps=30):
    """Return the sum of rewards of an episode."""
    observation, _ = world.reset()
    total = 0.0
    for _ in range(max_steps):
        action, _ = policy.predict(observation, deterministic=True)
        observation, reward, ended, *_ = world.step(action)
        total += reward
        if ended:
            break
    return total


def leave_the_middle(before, action, after):
    """Leaving the middle by action 0 is rewarded, and ends. Other ways out of it do neither."""
    is_it = before == (2, 2) and action == 0
    return float(is_it), is_it


def share_of_starts(policy, outcome):
    """Return the share of places from which the policy gets a reward."""
    worlds = [Grid(outcome, starts_at=start) for start in product(range(5), repeat=2)]
    return np.mean([total_reward(policy, world) > 0 for world in worlds])


@pytest.fixture(scope="module")
def leaver():
    return taught(Grid(leave_the_middle), 3_000)


def test_a_reward_that_belongs_to_a_transition_is_found(leaver):
    """Its next state is also reached without a reward."""
    assert share_of_starts(leaver.task_policy(), leave_the_middle) == 1.0


def test_rewards_of_transitions_are_in_checkpoints(leaver):
    wrapper = {"max_episode_steps": 20}
    other = make_model(Grid(leave_the_middle), updates_per_step=0.01, goal_wrapper_kwargs=wrapper)
    other.set_checkpoint_state(leaver.get_checkpoint_state())
    assert share_of_starts(other.task_policy(), leave_the_middle) == 1.0


@pytest.mark.parametrize("parts", [("world",), ("replay_buffer",), ("world", "replay_buffer")])
def test_rewards_of_transitions_are_in_files(leaver, tmp_path, parts):
    loaded = reloaded(leaver, tmp_path, Grid(leave_the_middle), also=parts)
    assert share_of_starts(loaded.task_policy(), leave_the_middle) == 1.0


def test_a_way_that_costs_more_than_others_to_the_same_last_place_is_avoided():
    """The corner ends the episode: with a reward after one action, with a cost after another."""

    def outcome(before, action, after):
        if after != (4, 4):
            return 0.0, False
        return (1.0 if action == 0 else -1.0), True

    policy = taught(Grid(outcome), 3_000).task_policy()
    for start in ((3, 4), (4, 3), (0, 0)):
        assert total_reward(policy, Grid(outcome, starts_at=start)) == 1.0


@pytest.mark.parametrize(("cost", "nearest_end"), [(0.0, 8), (-0.5, 0)])
def test_an_end_without_reward_is_avoided_only_where_steps_cost_little(cost, nearest_end):
    """
    An end saves the cost of all further steps.

    The nearer end is chosen if these steps cost more than the reward is worth.
    """
    policy = taught(Paid({8: 1.0}, ENDS, cost), 1_500).task_policy()
    assert last_cell(policy, treasure_world(), 1) == nearest_end
    assert last_cell(policy, treasure_world(), 7) == 8
