"""Which targets a learner chooses if it is given no target_class, and when it chooses others."""

import copy
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_manygoals import ExactCheckpointCallback, GoalBuffer, ManyGoalsDQN
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals import LearningProgressSelector
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from sb3_manygoals.many_goals_dqn.target_choice import TargetChoice, estimate_states
from sb3_manygoals.world import UNKNOWN, ExactStates, LearnedStates
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, make_model, parameters, reloaded
from tests.sb3_manygoals.worlds import Corridor


class Changing(gym.Env):
    """
    Six cells in a ring. While observations are stamped with the time, none of them recurs.

    :param stamped: function of the time that tells whether observations are stamped
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1e6, (2,), np.float64)

    def __init__(self, stamped):
        self.stamped = stamped
        self.cell = 0
        self.time = 0

    def show(self):
        self.time += 1
        return np.array([self.cell, self.time if self.stamped(self.time) else 0.0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(6))
        return self.show(), {}

    def step(self, action):
        self.cell = (self.cell + 2 * int(action) - 1) % 6
        return self.show(), 0.0, False, False, {}


def always(time):
    return True


def never(time):
    return False


def choosing(env, **kwargs):
    """Return a model that chooses its targets, and says so."""
    return make_model(env, **{"verbose": 1, "updates_per_step": 0.2, **kwargs})


def choices_in_log(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if "were met before" in line]


def test_where_observations_never_recur_targets_are_bootstrapped(capsys):
    model = choosing("CartPole-v1").learn(400)
    assert isinstance(model.targets, TDTargets)
    assert model.q_net_target is not None
    # It says so once, not at each review.
    (line,) = choices_in_log(capsys)
    assert line.endswith("values are bootstrapped by a target network (TDTargets)")


def test_values_begin_as_in_a_learner_that_was_given_bootstrapped_targets():
    # Standardization would depend on the goals that were met.
    settings = {"learning_rate": 0.0, "policy_kwargs": {**SMALL, "standardize": False}}
    # The first update, with a learning rate of 0, comes after the choice.
    chosen = choosing("CartPole-v1", **settings).learn(25)
    given = choosing("CartPole-v1", target_class=TDTargets, **settings).learn(25)
    assert isinstance(chosen.targets, TDTargets)
    obs = {key: th.tensor(value) for key, value in given.env.reset().items()}
    for network in ("q_net", "q_net_target", "q_net_ema"):
        values = [
            getattr(model.policy, network)(obs["observation"], obs["desired_goal"])
            for model in (chosen, given)
        ]
        th.testing.assert_close(*values)


@pytest.mark.parametrize("to_planned", [False, True])
def test_a_choice_is_changed_when_the_world_changes(to_planned, capsys):
    before = TDTargets if to_planned else PlannedTargets
    after = PlannedTargets if to_planned else TDTargets
    stamped = (lambda time: time < 60) if to_planned else (lambda time: time > 100)
    model = choosing(Changing(stamped)).learn(60)
    assert isinstance(model.targets, before)
    model.learn(300, reset_num_timesteps=False)
    assert isinstance(model.targets, after)
    assert model.targets.context.replay_buffer is model.replay_buffer
    assert (model.q_net_target is None) == to_planned
    # What was met before the change is known, too.
    assert model.world.n_counted == model.replay_buffer.size() == 360
    assert ["Planned" in line for line in choices_in_log(capsys)] == [not to_planned, to_planned]
    assert parameters(model).isfinite().all()


def test_a_target_network_begins_as_the_network_that_has_learned_plans():
    model = choosing(Changing(lambda time: time > 100), tau=0.0)
    initial = parameters(model.q_net).clone()
    weights = []

    def look(*_):
        weights.append(parameters(model.q_net).clone())
        return model.q_net_target is None

    model.learn(360, look)
    assert isinstance(model.targets, TDTargets)
    assert not th.equal(weights[-2], initial)
    # The update in between has changed the network, but not its target network.
    assert th.equal(parameters(model.q_net_target), weights[-2])
    assert not th.equal(parameters(model.q_net_target), weights[-1])


def test_a_saved_planner_loaded_to_bootstrap_begins_with_what_it_learned(tmp_path):
    model = make_model(target_class=PlannedTargets).learn(60)
    loaded = reloaded(model, tmp_path, Corridor(), target_class=TDTargets)
    assert isinstance(loaded.targets, TDTargets)
    assert th.equal(parameters(loaded.q_net), parameters(model.q_net))
    assert th.equal(parameters(loaded.q_net), parameters(loaded.q_net_target))


def test_a_saved_bootstrapper_loaded_to_plan_goes_on_without_its_target_network(tmp_path):
    model = make_model(target_class=TDTargets).learn(60)
    loaded = reloaded(model, tmp_path, Corridor(), target_class=PlannedTargets)
    assert isinstance(loaded.targets, PlannedTargets)
    assert loaded.q_net_target is None
    assert th.equal(parameters(loaded.q_net), parameters(model.q_net))
    loaded.learn(60)


def observed(n_new, n_recurring, states=None):
    """Return states, after so many new and so many recurring observations."""
    if states is None:
        states = ExactStates(spaces.Discrete(100_000), 100_000)
    first = len(states)
    states.observe(np.arange(first, first + n_new))
    states.observe(np.full(n_recurring, first))
    return states


def test_a_choice_is_reviewed_when_steps_have_doubled_or_are_counted_from_0_again():
    choice = TargetChoice()
    states = observed(10, 90)
    assert choice.review(100, 20, states, is_planned=True)[:3] == (True, 0.9, True)
    observed(1_000, 0, states)
    for num_timesteps in (100, 150, 199):
        assert choice.review(num_timesteps, 20, states, is_planned=True) is None
    assert choice.review(200, 20, states, is_planned=True)[:3] == (False, 0.0, False)
    observed(10, 90, states)
    assert choice.review(250, 20, states, is_planned=False) is None
    # Fewer steps than at the last review mean that they are counted anew.
    assert choice.review(30, 20, states, is_planned=False)[:3] == (True, 0.9, False)


@pytest.mark.parametrize(
    ("share", "is_planned", "is_first", "plans"),
    [
        (0.11, True, True, True),
        (0.09, True, True, False),
        (0.06, True, False, True),
        (0.04, True, False, False),
        (0.21, False, False, True),
        (0.19, False, False, False),
    ],
)
def test_targets_do_not_alternate_between_the_shares_at_which_they_change(
    share, is_planned, is_first, plans
):
    choice = TargetChoice()
    states = observed(0, 0)
    if not is_first:
        observed(50, 50, states)
        choice.review(100, 20, states, is_planned)
    observed(round(10_000 * (1 - share)), round(10_000 * share), states)
    found = choice.review(20_000, 20, states, is_planned)
    assert found.plan == plans
    assert found.is_first == is_first


@pytest.mark.parametrize(
    ("share", "ratio", "is_planned", "plans"),
    [
        (0.3, 2.1, True, False),
        (0.3, 1.9, True, True),
        (0.3, 1.1, False, False),
        (0.3, 0.9, False, True),
        (0.3, None, True, True),
        (0.8, 2.1, True, False),
        # Whatever else is seen, a world in which nearly all observations recur is not too large.
        (0.95, 1e9, True, True),
    ],
)
def test_a_world_with_far_more_states_than_steps_is_not_planned(share, ratio, is_planned, plans):
    states = observed(round(10_000 * (1 - share)), round(10_000 * share))
    found = TargetChoice().review(10_000, 20, states, is_planned, lambda: ratio)
    assert found.plan == plans
    assert found.is_too_large == (not plans)
    assert not found.is_noisy


def shown_at_once(states, values):
    """Show each of some values in eight environments at once."""
    for value in values:
        states.observe(np.full(8, value))
    return states


def test_what_copies_show_at_once_says_nothing_until_each_has_made_some_steps():
    choice = TargetChoice()
    states = shown_at_once(observed(0, 0), range(60))
    # They may begin together, or have clocks that tick together.
    assert choice.review(480, 20, states, is_planned=True, n_envs=8) is None
    # Their clocks do.
    endless = shown_at_once(copy.deepcopy(states), range(60, 100))
    found = copy.deepcopy(choice).review(800, 20, endless, is_planned=True, n_envs=8)
    assert (found.plan, found.share, found.is_noisy) == (False, 0.0, True)
    # They begin together, and again and again.
    episodes = shown_at_once(states, range(40))
    assert choice.review(800, 20, episodes, is_planned=True, n_envs=8)[:3] == (True, 0.4, True)


class Endless(gym.Env):
    """Shows a place on a ring, and a clock that no reset sets back."""

    observation_space = spaces.Box(0, 10**6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, ends=False):
        self.ends = ends
        self.now = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        self.now = 0 if self.ends else self.now
        return np.float32([self.place, self.now]), {}

    def step(self, action):
        self.now += 1
        self.place = (self.place + (-1, 1)[int(action)]) % 10
        return np.float32([self.place, self.now]), 0.0, False, self.now % 30 == 0, {}


@pytest.mark.filterwarnings("ignore:only 0%", "ignore:number 1 of the observations")
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("n_envs", [1, 16])
def test_copies_choose_as_one_environment_does(ends, n_envs):
    model = make_model(make_vec_env(lambda: Endless(ends), n_envs), updates_per_step=0.001)
    model.learn(120 * n_envs)
    assert isinstance(model.targets, PlannedTargets) == ends


def test_a_full_goal_buffer_does_not_make_observations_seem_to_recur():
    choice = TargetChoice()
    states = ExactStates(spaces.Discrete(100_000), 200)
    rng = np.random.default_rng(0)
    states.observe(rng.integers(100_000, size=1_000))
    assert choice.review(1_000, 20, states, is_planned=True).plan is False
    states.observe(rng.integers(100_000, size=20_000))
    assert choice.review(20_000, 20, states, is_planned=False) is None
    # What recurs although there is no more room recurs surely.
    states.observe(states.observations[rng.integers(200, size=20_000)])
    assert choice.review(40_000, 20, states, is_planned=False).plan is True


@pytest.mark.filterwarnings("ignore:the goal buffer is full")
def test_a_learner_whose_goal_buffer_is_full_goes_on_bootstrapping():
    env = BitFlippingEnv(n_bits=13)
    model = make_model(
        env,
        "MultiInputPolicy",
        goal_wrapper_kwargs={"goals_from": "achieved"},
        updates_per_step=0.002,
        learning_starts=500,
    )
    model.goal_buffer.capacity = 700
    model.goal_buffer.states.capacity = 700
    model.learn(4_500)
    assert len(model.goal_buffer.states) == 700
    assert isinstance(model.targets, TDTargets)


@pytest.mark.filterwarnings("ignore:the goal buffer is full")
@pytest.mark.parametrize("target_class", [None, PlannedTargets])
def test_a_learner_plans_although_its_goal_buffer_is_full(target_class):
    # An update has fewer goals than there are, so states are sampled on ways to them.
    model = make_model(
        Corridor(length=12), target_class=target_class, learning_starts=100, goal_batch_size=3
    )
    model.goal_buffer.capacity = 6
    model.goal_buffer.states.capacity = 6
    model.learn(600)
    assert isinstance(model.targets, PlannedTargets)
    assert len(model.world.identity) == 6
    # From the edge of what is known, an action leads to where it is not.
    assert model.targets.plan.model.lost is not None
    assert model._n_updates > 0


def walks_on_a_ring(n_states, n_episodes, n_steps, rng, n_envs=2):
    """
    Return ids of states and next states of random walks in a ring, which begin anywhere.

    Ids are in the order in which states are met.
    """
    begins = rng.integers(n_states, size=(n_episodes, 1))
    moves = rng.choice([-1, 1], size=(n_episodes, n_steps))
    cells = np.concatenate([begins, begins + moves.cumsum(axis=1)], axis=1) % n_states
    _, ids = np.unique(cells, return_inverse=True)
    ids = ids.reshape(cells.shape)

    def columns(part):
        """Return the walks one after another, as many of them in each environment."""
        return part.reshape(n_envs, -1).T

    return columns(ids[:, :-1]), columns(ids[:, 1:])


@pytest.mark.parametrize(
    ("n_states", "n_episodes", "n_steps"),
    [(1_000, 40, 30), (50_000, 400, 50), (500, 200, 20)],
)
def test_the_number_of_states_is_estimated_from_states_that_episodes_have_in_common(
    n_states, n_episodes, n_steps
):
    rng = np.random.default_rng(0)
    estimates = [
        estimate_states(*walks_on_a_ring(n_states, n_episodes, n_steps, rng)) for _ in range(20)
    ]
    assert 0.8 * n_states <= np.median(estimates) <= 1.3 * n_states


def test_the_estimate_is_computed_by_hand():
    # Environment 0 has episodes 0-1-0 and 2-3, and so on. All in all there are nine episodes.
    state_ids = np.array([[0, 4], [1, 6], [2, 8], [10, 12], [14, 16]])
    next_ids = np.array([[1, 5], [0, 0], [3, 9], [11, 13], [15, 17]])
    # Each but the first one has two states, and 0 is the only one in common, of two episodes.
    n_pairs = 36 * 4
    assert estimate_states(state_ids, next_ids) == n_pairs
    # Without it there is none, which counts as half a state.
    next_ids[1, 1] = 7
    assert estimate_states(state_ids, next_ids) == 2 * n_pairs
    # States without an id are different ones. The first episode has three states now.
    next_ids[1] = UNKNOWN
    assert estimate_states(state_ids, next_ids) == 2 * (28 * 4 + 8 * 6)
    # The action after an unknown state is taken in it, which is counted once.
    state_ids[2] = UNKNOWN
    state_ids = np.append(state_ids, [[18, 20]], axis=0)
    next_ids = np.append(next_ids, [[19, 21]], axis=0)
    lengths = np.array([4, 2, 2, 2, 2, 3, 2, 2, 2])
    n_pairs = (lengths.sum() ** 2 - np.square(lengths).sum()) / 2
    assert estimate_states(state_ids, next_ids) == 2 * n_pairs


def test_where_all_episodes_begin_in_one_state_there_seem_to_be_few_states():
    # Twenty episodes of one step, from state 0.
    state_ids = np.zeros((20, 1), np.int64)
    next_ids = np.arange(1, 21)[:, None]
    assert estimate_states(state_ids, next_ids) == 21


def test_of_few_episodes_the_number_of_states_cannot_be_told():
    nothing = np.zeros((0, 2), np.int64)
    assert estimate_states(nothing, nothing) is None
    walk = np.arange(50)[:, None]
    assert estimate_states(walk[:-1], walk[1:]) is None


@pytest.mark.parametrize(("n_bits", "is_large"), [(8, False), (20, True)])
def test_bits_are_planned_while_there_are_few_of_them(n_bits, is_large, capsys):
    bits = BitFlippingEnv(n_bits=n_bits, max_steps=n_bits)
    model = ManyGoalsDQN(
        "MultiInputPolicy",
        bits,
        learning_starts=1_000,
        updates_per_step=0.01,
        policy_kwargs=SMALL,
        goal_wrapper_kwargs={"goals_from": "achieved"},
        verbose=1,
        seed=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # 20,000 steps are enough to learn states, were pictures noisy. Flipped bits are not.
        model.learn(20_000, callback=lambda found, _: found["self"].num_timesteps < 1_500)
    assert isinstance(model.targets, TDTargets if is_large else PlannedTargets)
    assert isinstance(model.world.identity, ExactStates)
    assert not isinstance(model.world.identity, LearnedStates)
    (line,) = choices_in_log(capsys)
    assert line.endswith("(TDTargets)" if is_large else "(PlannedTargets)")


class Wide(gym.Env):
    """
    A ring of many cells, in which episodes begin anywhere, and half of the actions take back the
    one before.
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1e6, (1,), np.float64)

    def show(self):
        return np.array([self.cell], dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(1_000_000))
        self.time = 0
        return self.show(), {}

    def step(self, action):
        self.cell = (self.cell + 2 * int(action) - 1) % 1_000_000
        self.time += 1
        return self.show(), 0.0, False, self.time == 5, {}


def test_a_world_that_is_far_too_large_is_bootstrapped_though_observations_recur(capsys):
    model = choosing(Wide(), learning_starts=500)
    model.learn(600)
    assert isinstance(model.targets, TDTargets)
    (line,) = choices_in_log(capsys)
    assert "of the observations were met before, but the world seems to have some" in line


def test_a_long_training_does_not_delay_the_choice_in_the_next_one():
    model = choosing(Changing(lambda time: time > 1_100)).learn(1_000)
    assert isinstance(model.targets, PlannedTargets)
    # The last review was at 800 steps, so the next one would be at 1,600.
    assert isinstance(model.learn(600).targets, TDTargets)


def test_a_given_target_class_is_kept_and_checkpoints_of_others_are_refused(tmp_path):
    planned = make_model(Changing(always), target_class=PlannedTargets, updates_per_step=0.2)
    with pytest.warns(UserWarning, match="number 1 .* as a clock does"):
        planned.learn(300)
    assert isinstance(planned.targets, PlannedTargets)
    bootstrapped = make_model(Changing(never), target_class=TDTargets, updates_per_step=0.2)
    bootstrapped.learn(300, ExactCheckpointCallback(tmp_path))
    assert isinstance(bootstrapped.targets, TDTargets)
    message = "is of a learner with target_class TDTargets, got PlannedTargets"
    with pytest.raises(CheckpointError, match=message):
        ExactCheckpointCallback(tmp_path).resume(planned)


@pytest.mark.parametrize("recurs", [False, True])
def test_a_loaded_model_chooses_anew_by_what_it_meets(recurs, tmp_path):
    """Neither the steps of the saved model count, nor loaded observations that do not recur."""
    model = choosing(Changing(always)).learn(60)
    assert isinstance(model.targets, TDTargets)
    world = Changing(never if recurs else always)
    world.time = 1_000
    parts = ("world", "replay_buffer")
    loaded = reloaded(model, tmp_path, world, parts, learning_starts=10).learn(60)
    assert isinstance(loaded.targets, PlannedTargets if recurs else TDTargets)


@pytest.mark.parametrize("kwargs", [{"held_out": np.eye(6, dtype=np.uint8)[1:]}, {"capacity": 2}])
def test_observations_recur_though_few_may_be_goals(kwargs):
    world = Corridor()
    goals = GoalBuffer(world.observation_space, **kwargs)
    with warnings.catch_warnings():
        # A goal buffer that becomes full is a warning.
        warnings.simplefilter("ignore", RuntimeWarning)
        model = choosing(world, goal_wrapper_kwargs={"goal_buffer": goals}).learn(200)
    assert isinstance(model.targets, PlannedTargets)


def test_it_warns_when_nothing_recurs_and_a_loaded_model_goes_on_as_it_was(tmp_path):
    model = choosing("CartPole-v1")
    message = r"only \d% of the observations were met before: goals that are never met again"
    with pytest.warns(UserWarning, match=message):
        model.learn(400)
    assert isinstance(reloaded(model, tmp_path, gym.make("CartPole-v1")).targets, TDTargets)


def test_what_a_selector_has_measured_is_kept_with_the_goals():
    model = make_model(goal_wrapper_kwargs={"selector_class": LearningProgressSelector}).learn(100)
    before = model.selector.progress(6).copy()
    model.set_env(Corridor())
    np.testing.assert_array_equal(model.selector.progress(6), before)
    assert not np.isnan(before).all()
