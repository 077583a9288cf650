"""Which targets a learner chooses when it is not told, and how it changes its mind."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_manygoals import ExactCheckpointCallback, GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals import LearningProgressSelector
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import make_model, parameters, reloaded
from tests.sb3_manygoals.worlds import Corridor


class Changing(gym.Env):
    """A corridor whose observations are stamped with the time where it says so: then none recurs."""

    action_space = spaces.Discrete(2)

    def __init__(self, stamped, number=0):
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float64)
        self.stamped, self.number, self.cell, self.time = stamped, number, 0, 0

    def show(self):
        self.time += 1
        return np.array(
            [self.cell, self.time + 1e4 * self.number if self.stamped(self.time) else 0.0]
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(6))
        return self.show(), {}

    def step(self, action):
        self.cell = (self.cell + 2 * int(action) - 1) % 6
        return self.show(), 0.0, False, False, {}


def choosing(env, **kwargs):
    return make_model(env, verbose=1, updates_per_step=0.2, **kwargs)


def said(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "were met before" in line]


def test_where_observations_never_recur_targets_are_bootstrapped(capsys):
    model = choosing("CartPole-v1").learn(400)
    assert isinstance(model.targets, TDTargets)
    assert model.replay_buffer.states is None
    (line,) = said(capsys)  # once, and not each time it is looked at
    assert line.endswith("values are bootstrapped by a target network (TDTargets)")
    # as a learner that was told so: values begin as of goals that are never reached
    told = make_model("CartPole-v1", updates_per_step=0.2, target_class=TDTargets).learn(20)
    model = choosing("CartPole-v1").learn(20)
    model._review_targets()
    obs = {key: th.tensor(value) for key, value in model.env.reset().items()}
    for network in ("q_net", "q_net_target", "q_net_ema"):
        values = [
            getattr(one.policy, network)(obs["observation"], obs["desired_goal"])
            for one in (model, told)
        ]
        th.testing.assert_close(*values)


@pytest.mark.parametrize("to_planned", [False, True])
def test_a_choice_is_changed_when_the_world_changes(to_planned, capsys):
    model = choosing(
        Changing((lambda time: time < 60) if to_planned else (lambda time: time > 100))
    ).learn(60)
    assert isinstance(model.targets, TDTargets if to_planned else PlannedTargets)
    model.learn(300, reset_num_timesteps=False)
    assert isinstance(model.targets, PlannedTargets if to_planned else TDTargets)
    assert model.targets.learner.replay_buffer is model.replay_buffer
    if to_planned:
        assert (
            model.replay_buffer.tried.sum() == model.replay_buffer.size()
        )  # of what was kept before, too
    else:
        assert model.replay_buffer.states is None
    assert ["Planned" in line for line in said(capsys)] == [not to_planned, to_planned]
    assert np.isfinite(model._loss.item())


def test_a_target_network_begins_as_the_network_that_has_learned_plans():
    model = choosing(Changing(lambda _: True)).learn(60)
    model.targets, model._n_updates = PlannedTargets(model._learner), 1
    for parameter in model.q_net.parameters():
        parameter.data += 1.0
    model.num_timesteps, model.goal_buffer.n_added = 10_000, model.goal_buffer.n_added + 1_000
    model._review_targets()
    assert isinstance(model.targets, TDTargets)
    assert th.equal(parameters(model.q_net), parameters(model.q_net_target))


def test_a_saved_planner_loaded_to_bootstrap_begins_with_what_it_learned(tmp_path):
    model = make_model(target_class=PlannedTargets).learn(60)
    loaded = reloaded(model, tmp_path, Corridor(), target_class=TDTargets)
    assert isinstance(loaded.targets, TDTargets)
    assert th.equal(parameters(loaded.q_net), parameters(loaded.q_net_target))


def test_a_choice_is_reviewed_when_steps_are_counted_from_0_again():
    model = choosing(Changing(lambda time: time > 100)).learn(60)
    model._reviewed = 10_000, *model._reviewed[1:]  # as after a long run
    assert isinstance(model.learn(300).targets, TDTargets)


def test_who_is_told_does_not_change_its_mind_and_refuses_checkpoints_of_others(tmp_path):
    models = []
    for target_class, stamped in ((PlannedTargets, True), (TDTargets, False)):
        model = make_model(
            Changing(lambda _, stamped=stamped: stamped),
            target_class=target_class,
            updates_per_step=0.2,
        )
        assert isinstance(model.learn(300, ExactCheckpointCallback(tmp_path)).targets, target_class)
        models.append(model)
    with pytest.raises(
        CheckpointError, match="is of a learner with target_class TDTargets, got PlannedTargets"
    ):
        ExactCheckpointCallback(tmp_path).resume(models[0])


@pytest.mark.parametrize("again", [False, True])
def test_a_loaded_model_chooses_anew_by_what_it_meets(again, tmp_path):
    """Neither by how long the saved one had learned, nor by what is loaded, which is not met again."""
    model = choosing(Changing(lambda _: True)).learn(60)
    assert isinstance(model.targets, TDTargets)
    world = Changing(lambda _: not again)
    world.time = 1_000
    loaded = reloaded(
        model, tmp_path, world, ("goal_buffer", "replay_buffer"), learning_starts=10
    ).learn(60)
    assert isinstance(loaded.targets, PlannedTargets if again else TDTargets)


@pytest.mark.parametrize("kwargs", [{"held_out": np.eye(6, dtype=np.uint8)[1:]}, {"capacity": 2}])
def test_observations_recur_though_few_may_be_goals(kwargs):
    world = Corridor()
    goals = GoalBuffer(world.observation_space, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the capacity
        model = choosing(world, goal_wrapper_kwargs={"goal_buffer": goals}).learn(200)
    assert isinstance(model.targets, PlannedTargets)


def test_it_warns_when_nothing_recurs_and_a_loaded_model_goes_on_as_it_was(tmp_path):
    model = choosing("CartPole-v1")
    with pytest.warns(
        UserWarning,
        match=r"only \d% of the observations were met before: goals that are never met again",
    ):
        model.learn(400)
    assert isinstance(reloaded(model, tmp_path, gym.make("CartPole-v1")).targets, TDTargets)


def test_what_a_selector_has_measured_is_kept_with_the_goals():
    model = make_model(goal_wrapper_kwargs={"selector": LearningProgressSelector()}).learn(100)
    before = model._selectors[0].progress(6).copy()
    model.set_env(Corridor())
    np.testing.assert_array_equal(model._selectors[0].progress(6), before)
    assert not np.isnan(before).all()
