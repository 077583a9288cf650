"""A policy for a task: rewards remembered or told, and what is refused."""

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
from sb3_manygoals.many_goals_dqn.planning import ReplayModel
from sb3_manygoals.many_goals_dqn.task_policy import OutcomeRewards, planned_actions
from tests.sb3_manygoals.many_goals_dqn.models import make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor, Paid

ENDS = (0, 8)


def taught(world, steps=600, **kwargs):
    return make_model(
        world, goal_wrapper_kwargs={"max_episode_steps": 20, **kwargs.pop("pursuit", {})}, **kwargs
    ).learn(steps)


@pytest.fixture(scope="module")
def treasure():
    """Nine cells from the middle one: the last ends with a reward of 1, the first ends without."""
    return taught(Paid({8: 1.0}, ENDS), 1_500)


def test_a_plan_can_be_used_where_random_steps_are_all_there_is():
    model = make_model(Paid({8: 1.0}, ENDS), learning_starts=400)
    with pytest.warns(
        UserWarning, match=r"nothing is learned by the network. task_policy\(\) plans"
    ):
        model.learn(400)
    assert model._n_updates == 0
    assert all(
        ends_at(model.task_policy(), Paid({8: 1.0}, ENDS), cell) == 8 for cell in range(1, 8)
    )


def ends_at(policy, world, start):
    seen, _ = world.reset(options={"cell": start})
    for _ in range(20):
        seen, _, ended, *_ = world.step(policy.predict(seen, deterministic=True)[0])
        if ended:
            break
    return world.cell


def test_it_goes_to_the_reward_and_past_no_end(treasure):
    policy, world = treasure.task_policy(), Paid({8: 1.0}, ENDS)
    assert [ends_at(policy, world, start) for start in range(1, 8)] == [8] * 7
    np.testing.assert_array_equal(policy.goals, world.observation_of(8)[None])
    mean, spread = evaluate_policy(policy, Monitor(gym.wrappers.TimeLimit(world, 20)), 3)
    assert (mean, spread) == (1.0, 0.0)
    several = make_vec_env(lambda: gym.wrappers.TimeLimit(Paid({8: 1.0}, ENDS), 20), 3)
    assert evaluate_policy(policy, several, 6) == (1.0, 0.0)


def test_the_policy_is_saved_and_does_not_change_with_the_model(treasure, tmp_path):
    policy = treasure.task_policy(gamma=0.9)
    policy.save(tmp_path / "task.pt")
    loaded, cells = TaskPolicy.load(tmp_path / "task.pt"), np.eye(9, dtype=np.uint8)
    np.testing.assert_array_equal(loaded.predict(cells)[0], policy.predict(cells)[0])
    assert (loaded.gamma, loaded.rewards.tolist()) == (0.9, [1.0])
    assert policy.q_net is not treasure.policy.q_net_ema


def chooses_by_distance_and_discount(model, planned):
    rewards, cells = np.zeros(9), np.eye(9, dtype=np.uint8)
    rewards[model.goal_buffer.ids(cells[[1, 7]])] = (
        1.0,
        1.03,
    )  # at .99 worth a way of three steps more, at .8 not worth one
    for gamma, expected in ((None, [0, 1, 1, 1]), (1.0, [1, 1, 1, 1]), (0.8, [0, 0, 1, 1])):
        policy = model.task_policy(rewards, gamma=gamma, planned=planned)
        assert policy.predict(cells[[2, 3, 5, 6]])[0].tolist() == expected, gamma


def test_images_are_planned_for_with_the_channels_first_or_last():
    model = make_model(
        VecTransposeImage(make_vec_env(lambda: Corridor(image=True), 1)), "CnnPolicy"
    ).learn(40)
    first = model.goal_buffer.observations.copy()
    goal = first[first[:, 0, 0, 5] > 0]
    policy = model.task_policy(lambda seen: (seen == goal).all(axis=(1, 2, 3)))
    policy.table[1][:] = np.arange(len(policy.table[1])) % 3  # not what the network does
    expected = policy.table[1][policy.table[0].ids(first)]
    for batch in (first, first.transpose(0, 2, 3, 1)):
        np.testing.assert_array_equal(policy.predict(batch, deterministic=True)[0], expected)


def test_the_best_of_several_rewards_depends_on_distance_and_discount(treasure):
    chooses_by_distance_and_discount(treasure, planned=False)
    cells = np.eye(9, dtype=np.uint8)
    by_function = treasure.task_policy(lambda seen: seen[:, 3] == 1, planned=False)
    assert by_function.predict(cells[[2, 4]])[0].tolist() == [1, 0]
    assert by_function.predict(cells[2], action_masks=np.array([True, False, False]))[0] == 0


def test_a_plan_tells_more_than_a_network_that_has_not_learned():
    cells = np.eye(9, dtype=np.uint8)
    model = taught(Paid({8: 1.0}, ENDS), updates_per_step=0.01)
    planned = model.task_policy()  # as it has a plan
    assert planned.predict(cells[1:8])[0].tolist() == [1] * 7
    assert planned.predict(cells[3], action_masks=np.array([True, False, False]))[0] == 0
    chooses_by_distance_and_discount(model, planned=True)


@pytest.mark.filterwarnings("ignore:.*plans are of draws of goals")
@pytest.mark.parametrize("sweeps", [0, 100])
def test_rewards_that_the_last_plan_did_not_have_are_planned(sweeps):
    targets = {
        "target_class": PlannedTargets,
        "target_kwargs": {"max_plan_bytes": 9 * 5, "sweeps": sweeps},
    }  # one goal
    model = taught(Paid({0: 0.1, 8: 10.0}, ENDS), 1_000, updates_per_step=0.002, **targets)
    assert (
        model.task_policy().predict(np.eye(9, dtype=np.uint8)[1:8])[0].tolist() == [1] * 7
    )  # the network has hardly learned


@pytest.mark.parametrize("seed", range(20))
def test_planned_actions_are_as_good_as_the_best_of_all_policies(seed):
    """Four states, one or two of them rewarded, two actions: each of the 16 policies, by linear equations."""
    rng, n = np.random.default_rng(seed), 4
    led = rng.dirichlet(np.ones(2 * n) / 4, 2 * n)
    rewards, on, ends = np.array([0.0, 0.0, 1.0, seed % 2 * 0.7]), led[:, :n], led[:, n:]
    gamma = float(rng.uniform(0.3, 0.99))

    def values(actions):
        rows = 2 * np.arange(n) + actions
        return np.linalg.solve(
            np.eye(n) - gamma * on[rows] * (rewards == 0), (on + ends)[rows] @ rewards
        )

    best = np.max([values(np.array(actions)) for actions in product(range(2), repeat=n)], axis=0)
    planned = planned_actions(ReplayModel(csr_array(on), csr_array(ends)), rewards, gamma)
    np.testing.assert_allclose(values(planned), best, rtol=1e-6)
    nowhere = planned_actions(ReplayModel(csr_array(on * 0), csr_array(ends * 0)), rewards, gamma)
    assert nowhere.tolist() == [-1] * n


def test_a_plan_of_a_task_that_takes_too_long_is_a_warning(treasure, monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.task_policy._SWEEPS", 3)
    with pytest.warns(UserWarning, match="still changing after 3 sweeps"):
        treasure.task_policy()


def test_a_reward_that_ends_nothing_is_stayed_at_by_the_plan_too():
    model = taught(Paid({8: 1.0}, ()), 1_500)
    with pytest.warns(UserWarning, match="stays there if it can"):
        policy = model.task_policy()
    states, actions = policy.table
    assert actions[states.ids(np.eye(9, dtype=np.uint8))].tolist() in (
        [1] * 9,
        [1] * 8 + [2],
    )  # against the wall, or staying


def test_labels_count_arrivals_rewards_and_ends(treasure, tmp_path):
    goals, world = treasure.goal_buffer, Paid({8: 1.0}, ENDS)
    arrivals, sums, ended = goals.labels[goals.ids(np.eye(9, dtype=np.uint8))].T
    assert arrivals.sum() == 1_500 == goals.labels[:-1, 0].sum()
    np.testing.assert_array_equal(sums, np.where(np.arange(9) == 8, arrivals, 0))
    np.testing.assert_array_equal(ended, np.where(np.isin(np.arange(9), ENDS), arrivals, 0))
    treasure.save_goal_buffer(tmp_path / "goals")
    loaded = reloaded(treasure, tmp_path, Paid({8: 1.0}, ENDS))
    with pytest.raises(ValueError, match="no reward is known"):
        loaded.task_policy()
    loaded.load_goal_buffer(tmp_path / "goals")
    np.testing.assert_array_equal(loaded.goal_buffer.labels, goals.labels)
    assert ends_at(loaded.task_policy(), world, 2) == 8
    other = make_model(Paid({8: 1.0}, ENDS), goal_wrapper_kwargs={"max_episode_steps": 20})
    other.set_checkpoint_state(treasure.get_checkpoint_state())
    np.testing.assert_array_equal(other.goal_buffer.rewards, goals.rewards)


def test_steps_that_all_cost_the_same_are_accounted_for():
    """As in MountainCar: -1 a step, the last one included. An end that costs as much as 100 steps is none to go for."""
    policy = taught(Paid({0: -100.0, 8: -1.0}, ENDS, cost=-1.0)).task_policy()
    assert len(policy.goals) == 1
    assert policy.goals[0, 8] == 1
    np.testing.assert_allclose(policy.rewards, 99.0)


def test_what_is_rewarded_on_the_way_is_said():
    model = taught(Paid({6: 1.0, 8: 2.0}, ENDS))
    with pytest.warns(
        UserWarning, match="1 of 2 rewarded observations did not always end the episode"
    ):
        model.task_policy()


def test_what_cannot_be_done_is_refused(treasure):
    def refused(match, model=treasure, error=ValueError, **kwargs):
        with pytest.raises(error, match=re.escape(match)):
            model.task_policy(**kwargs)

    for gamma in (0.0, 1.1, float("nan"), "1"):
        refused(f"gamma must be a number in (0, 1], got {gamma!r}", gamma=gamma)
    refused("reward must be numbers of shape (9,), one for each", reward=np.ones(8))
    refused("reward must return numbers of shape (9,), one for each", reward=lambda seen: seen)
    refused("reward must be finite and not negative", reward=np.full(9, -1.0))
    refused("reward must be finite and not negative", reward=np.full(9, np.nan))
    refused(
        "reward must be positive for a known observation, it is 0 for all 9", reward=np.zeros(9)
    )
    refused("planned=True needs PlannedTargets and transitions", make_model(), planned=True)
    refused("the model has met no observation yet", make_model())
    refused("of 9 known observations none had a positive mean reward", taught(Paid({}, ENDS)))
    refused("negative rewards differ, from -2 to 0", taught(Paid({5: -2.0, 8: 1.0}, ENDS)))
    refused(
        "gamma must be less than 1 where each step",
        taught(Paid({8: 1.0}, ENDS, cost=-1.0)),
        gamma=1.0,
    )
    refused(
        "their rewards are not known",
        make_model(target_class=TDTargets, goals_in_replay=True),
        TypeError,
    )
    refused("a model with gamma=0", make_model(gamma=0.0, target_class=TDTargets))
    held_out = GoalBuffer(Corridor(9).observation_space, held_out=np.eye(9, dtype=np.uint8)[8:])
    model = taught(Paid({8: 1.0}, ENDS), pursuit={"goal_buffer": held_out})
    refused("on arriving at observations that are no goals, as they were held out", model)
    refused("Held-out observations cannot be goals", model, reward=lambda seen: seen[:, 8])
    policy = treasure.task_policy()
    for wrong in (
        np.zeros(8, np.uint8),
        np.zeros((2, 3, 9), np.uint8),
        {"observation": np.zeros(9, np.uint8)},
    ):
        with pytest.raises(ValueError, match="observation"):
            policy.predict(wrong)


class Grid(gym.Env):
    """5 x 5 places; what a step pays and whether it ends is told of place, action and next place."""

    observation_space = spaces.MultiDiscrete([5, 5])
    action_space = spaces.Discrete(4)

    def __init__(self, paid, starts_at=None):
        self.paid = paid
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
        reward, ended = self.paid(before, int(action), self.place)
        return self.show(), reward, ended, False, {}


def leaves_the_middle(before, action, after):
    """Paid, and the end, for leaving the middle by action 0; its other ways out cost nothing."""
    paid = before == (2, 2) and action == 0
    return float(paid), paid


def share_of_starts(policy, paid, max_steps=30):
    """From how many of the 25 places the policy is paid."""
    reached = 0
    for start in product(range(5), repeat=2):
        world = Grid(paid, starts_at=start)
        seen, _ = world.reset()
        for _ in range(max_steps):
            seen, reward, ended, *_ = world.step(policy.predict(seen, deterministic=True)[0])
            if reward > 0 or ended:
                reached += reward > 0
                break
    return reached / 25


def test_a_reward_that_belongs_to_a_transition_is_found_wherever_else_its_end_is_reached():
    model = taught(Grid(leaves_the_middle), 3_000, updates_per_step=0.01)
    assert share_of_starts(model.task_policy(), leaves_the_middle) == 1.0
    # the memory's file has the rewards, too
    state = model.get_checkpoint_state()
    other = make_model(
        Grid(leaves_the_middle),
        updates_per_step=0.01,
        goal_wrapper_kwargs={"max_episode_steps": 20},
    )
    other.set_checkpoint_state(state)
    assert share_of_starts(other.task_policy(), leaves_the_middle) == 1.0


def test_rewards_of_transitions_survive_saving_and_another_goal_buffer(tmp_path):
    model = taught(Grid(leaves_the_middle), 3_000, updates_per_step=0.01)
    loaded = reloaded(
        model, tmp_path, Grid(leaves_the_middle), also=("goal_buffer", "replay_buffer")
    )
    assert share_of_starts(loaded.task_policy(), leaves_the_middle) == 1.0


def test_a_way_that_costs_more_than_others_to_the_same_place_is_avoided_at_ends():
    """The corner ends the episode: well by one action, badly by the other."""

    def paid(before, action, after):
        if after != (4, 4):
            return 0.0, False
        return (1.0 if action == 0 else -1.0), True

    model = taught(Grid(paid), 3_000, updates_per_step=0.01)
    policy = model.task_policy()
    for start in ((3, 4), (4, 3), (0, 0)):
        world = Grid(paid, starts_at=start)
        seen, _ = world.reset()
        rewards = []
        for _ in range(30):
            seen, reward, ended, *_ = world.step(policy.predict(seen, deterministic=True)[0])
            rewards.append(reward)
            if ended:
                break
        assert sum(rewards) == 1.0, start


@given(st.integers(0, 2**32 - 1))
def test_planned_actions_for_rewards_of_outcomes_are_as_good_as_the_best_of_all_policies(seed):
    """As above, with a reward for each outcome; those of ends may be negative."""
    rng, n = np.random.default_rng(seed), 4
    led = rng.dirichlet(np.ones(2 * n) / 4, 2 * n)
    paid = np.where(rng.random(led.shape) < 0.2, rng.uniform(0.1, 1.0, led.shape), 0.0)
    paid[:, n:] -= rng.uniform(0.0, 0.2, (2 * n, n)) * (rng.random((2 * n, n)) < 0.3)
    gamma = float(rng.uniform(0.3, 0.99))
    on, ends = csr_array(led[:, :n]), csr_array(led[:, n:])
    rewards = OutcomeRewards(paid[:, :n][led[:, :n] != 0], paid[:, n:][led[:, n:] != 0])

    def values(actions):
        rows = 2 * np.arange(n) + actions
        going_on = led[rows, :n] * (paid[rows, :n] == 0)
        return np.linalg.solve(np.eye(n) - gamma * going_on, (led * paid)[rows].sum(axis=1))

    policies = [values(np.array(actions)) for actions in product(range(2), repeat=n)]
    best = np.max(policies, axis=0)
    planned = planned_actions(ReplayModel(on, ends), rewards, gamma)
    # where nothing is to be won, no action is told
    told = np.where(planned < 0, 0, planned)
    np.testing.assert_array_equal(planned < 0, best <= 1e-12)
    if (planned >= 0).all():
        np.testing.assert_allclose(values(told), best, rtol=1e-6, atol=1e-8)


def test_an_end_without_reward_is_avoided_only_where_steps_cost_little():
    """It saves the cost of all further steps, and is sought where these cost more than the reward is worth."""
    free, dear = (taught(Paid({8: 1.0}, ENDS, cost), 1_500) for cost in (0.0, -0.5))
    for model, near_the_end in ((free, 8), (dear, 0)):
        policy = model.task_policy()
        assert ends_at(policy, Paid({8: 1.0}, ENDS), 1) == near_the_end
        assert ends_at(policy, Paid({8: 1.0}, ENDS), 7) == 8
