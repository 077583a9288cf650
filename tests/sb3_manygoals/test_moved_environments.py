"""Tests of callbacks that move the environments in which a model learns."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import (
    AuxiliaryActorCriticPolicy,
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    ManyGoalsCallback,
    ManyGoalsDQN,
    MasteryCallback,
    RewardPredictor,
    TabularAllGoals,
    VecGoalBufferWrapper,
)
from sb3_manygoals.goals import UniformSelector
from tests.sb3_manygoals.many_goals_dqn.memories import kept
from tests.sb3_manygoals.many_goals_dqn.models import make_model, td_model
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor

LENGTH = 30
RIGHT, STAY = 1, 2


def world():
    return NumberedCorridor(LENGTH)


class Evaluates(BaseCallback):
    """Evaluates a model in its own environments, at a given point of the training."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def evaluate(self, where):
        if where == self.where:
            evaluate_policy(self.model, self.model.get_env(), 1, warn=False)

    def _on_training_start(self):
        self.evaluate("training start")

    def _on_rollout_start(self):
        self.evaluate("rollout start")

    def _on_step(self):
        if self.n_calls % 7 == 0:
            self.evaluate("step")
        return True

    def _on_rollout_end(self):
        self.evaluate("rollout end")


class Resets(BaseCallback):
    """Resets the environments of the training."""

    def _on_step(self):
        if self.n_calls % 7 == 0:
            self.training_env.reset()
        return True


def around_each():
    buffer = GoalBuffer(world().observation_space)
    return DummyVecEnv([lambda: GoalBufferWrapper(world(), buffer)] * 2)


def native():
    worlds = gym.vector.SyncVectorEnv(
        [world] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    return GymnasiumVecEnv(worlds)


KINDS = {
    "one": world,
    "wrapped": lambda: GoalBufferWrapper(world()),
    "around each": around_each,
    "vector": lambda: VecGoalBufferWrapper(make_vec_env(world, 2)),
    "native": native,
}


def check(rows):
    """Check that each row has a cell, an action and the cell to which the action leads."""
    there = np.clip(rows[:, 0] + np.array([-1, 1, 0])[rows[:, 1]], 0, LENGTH - 1)
    np.testing.assert_array_equal(rows[:, 2], there)


def evaluates(model):
    return EvalCallback(model.get_env(), n_eval_episodes=1, eval_freq=7, warn=False)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        *((kind, evaluates) for kind in KINDS),
        ("wrapped", lambda _: Resets()),
        *(
            ("vector", lambda _, where=where: Evaluates(where))
            for where in ("training start", "rollout start", "step", "rollout end")
        ),
    ],
)
def test_no_transition_is_made_up_if_a_callback_moves_the_world(kind, make):
    model = make_model(KINDS[kind](), updates_per_step=0.1)
    with pytest.warns(UserWarning, match="a callback has moved the environments") as caught:
        model.learn(150, make(model))
    assert len([one for one in caught if "has moved" in str(one.message)]) == 1
    outcomes = model.world.outcomes()
    cells = model.world.identity.observations
    here = cells[outcomes.state_ids]
    check(np.column_stack([here, outcomes.actions, cells[outcomes.next_state_ids]]))
    assert model.world.n_counted == outcomes.counts.sum() == model.num_timesteps
    assert model.num_timesteps >= 150


@pytest.mark.filterwarnings("ignore:a callback has moved the environments")
def test_no_transition_is_made_up_with_a_target_network():
    model = td_model(GoalBufferWrapper(world()), updates_per_step=0.1)
    model.learn(150, [Evaluates("step"), Resets()])
    observations, next_observations = (array.reshape(-1) for array in kept(model.replay_buffer))
    actions = model.replay_buffer.actions[: model.replay_buffer.size()].reshape(-1)
    check(np.column_stack([observations, actions, next_observations]))


@pytest.mark.filterwarnings("ignore:a callback has moved the environments")
@pytest.mark.parametrize("where", ["step", "rollout start"])
def test_no_table_is_updated_by_a_made_up_transition(where, monkeypatch):
    model = TabularAllGoals("TablePolicy", world(), seed=0)
    seen = []
    monkeypatch.setattr(model.table, "update", lambda *columns, **_: seen.append(columns))
    model.learn(100, Evaluates(where))
    check(np.array(seen)[:, :, 0])


class Masked(NumberedCorridor):
    """A corridor in which staying and running into a wall are not allowed."""

    def mask(self):
        return np.array([self.cell > 0, self.cell < self.length - 1, False])

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, info | {"action_mask": self.mask()}

    def step(self, action):
        assert self.mask()[int(action)]
        observation, *outcome, info = super().step(action)
        return observation, *outcome, info | {"action_mask": self.mask()}


@pytest.mark.filterwarnings("ignore:a callback has moved the environments")
def test_masks_are_those_of_the_current_observation():
    model = make_model(Masked(3), action_masks=True)
    model.learn(150, Resets())


def test_an_evaluation_in_other_environments_does_not_warn():
    model = make_model(make_vec_env(world, 1))
    other = VecGoalBufferWrapper(make_vec_env(world, 2), model.goal_buffer, training=False)
    resets = []
    reset = model.env.reset
    model.env.reset = lambda: resets.append(model.num_timesteps) or reset()
    model.learn(60, EvalCallback(other, eval_freq=20, n_eval_episodes=1))
    assert resets == [0]


@pytest.mark.filterwarnings("ignore:Training and eval env are not of the same type")
@pytest.mark.parametrize("kind", ["vectorized", "single", "nested"])
def test_an_evaluation_whose_goal_wrapper_knows_no_goals_is_a_warning(kind):
    model = make_model(make_vec_env(world, 1))
    other = VecGoalBufferWrapper(make_vec_env(world, 2))
    if kind == "single":
        other = DummyVecEnv([lambda: Monitor(GoalBufferWrapper(world()))])
    one = EvalCallback(other, eval_freq=20, n_eval_episodes=1, warn=False)
    evaluation = CallbackList([EveryNTimesteps(30, one) if kind == "nested" else one])
    with pytest.warns(UserWarning, match="knows no goals, so its episodes would succeed at once"):
        model.learn(10, evaluation)


def test_an_evaluation_by_another_learner_whose_goal_wrapper_knows_no_goals_is_a_warning():
    """An agent that stays where it is would look perfect."""

    class Stays:
        def predict(self, seen, **kwargs):
            return np.full(len(seen["observation"]), STAY), None

    with pytest.warns(UserWarning, match="10 goal episodes in a row began at their goal") as said:
        evaluate_policy(Stays(), Monitor(GoalBufferWrapper(Corridor(start=0))), 30)
    assert len(said) == 1
    goals = GoalBuffer(Corridor().observation_space)
    goals.add(np.eye(6, dtype=np.uint8))
    worlds = GoalBufferWrapper(Corridor(start=0), goals, training=False)
    assert evaluate_policy(Stays(), Monitor(worlds), 10)[0] < -1.0


def test_one_step_that_leads_on_ends_the_row_of_episodes_at_their_goal():
    env = GoalBufferWrapper(Corridor(start=0))
    env.reset()
    for _ in range(3):
        for _ in range(8):
            assert env.step(STAY)[2]
            env.reset()
        env.step(RIGHT)
        env.reset()
        env.goal_tracker.goal_buffer = GoalBuffer(env.goal_buffer.observation_space)
        env.reset()


def test_goals_that_a_loaded_model_lacks_are_a_warning(tmp_path):
    model = make_model(Corridor()).learn(200)
    model.save_all(tmp_path)
    whole = ManyGoalsDQN.load_all(tmp_path, Corridor())
    assert evaluate_policy(whole, whole.get_env(), 10)[0] < 0.0
    path = tmp_path / "model.zip"
    alone = ManyGoalsDQN.load(path, Corridor())
    worlds = GoalBufferWrapper(Corridor(), whole.goal_buffer, training=False)
    # Elsewhere it may pursue any goals, also when its own environment has been moved.
    first = alone.get_env().reset()
    evaluate_policy(alone, Monitor(worlds), 2)
    # An observation need not say what is achieved.
    alone.predict({key: first[key] for key in ("observation", "desired_goal")})
    with pytest.warns(UserWarning, match="was loaded without the goals that it knew.* load_all"):
        evaluate_policy(alone, alone.get_env(), 1)
    # A single environment shows its observations without an axis of copies.
    single = GoalBufferWrapper(Corridor())
    alone = ManyGoalsDQN.load(path, single)
    observation, _ = single.reset(options={"goal": np.eye(6, dtype=np.uint8)[3]})
    alone.predict(observation)
    observation, _ = single.reset()
    with pytest.warns(UserWarning, match="was loaded without the goals that it knew"):
        alone.predict(observation)
    # An environment that knows goals, or in which the user sets them, is in order.
    knowing = ManyGoalsDQN.load(path, Monitor(worlds))
    evaluate_policy(knowing, knowing.get_env(), 2)
    other = ManyGoalsDQN.load(path, Corridor())
    other.get_env().set_options({"goal": np.eye(6, dtype=np.uint8)[3]})
    other.predict(other.get_env().reset())


def test_resets_alone_are_no_episodes():
    env = GoalBufferWrapper(Corridor(start=0))
    for _ in range(12):
        env.reset()


class OneGoal(UniformSelector):
    """A rule that always chooses the first goal."""

    def select(self, goal_buffer, current_ids, rng):
        return np.zeros_like(current_ids)


def test_a_rule_that_chooses_a_goal_again_and_again_is_in_order():
    env = GoalBufferWrapper(Corridor(start=0), selector_class=OneGoal)
    env.reset()
    env.step(RIGHT)
    for _ in range(12):
        env.reset()
        assert env.step(STAY)[2]


@pytest.mark.parametrize(
    "around",
    [lambda one: one, lambda one: CallbackList([one]), lambda one: EveryNTimesteps(9, one)],
)
def test_an_evaluation_in_the_same_world_that_cannot_be_noticed_is_refused(around):
    shared = world()
    model = make_model(shared)
    beneath = EvalCallback(GoalBufferWrapper(shared, model.goal_buffer), warn=False)
    with pytest.raises(ValueError, match="EvalCallback evaluates in the environment"):
        model.learn(50, around(beneath))


@pytest.mark.parametrize("model_of", [make_model, lambda env: A2C("MlpPolicy", env)])
def test_measuring_mastery_in_the_world_of_training_is_refused(model_of):
    shared = Corridor()
    worlds = gym.vector.SyncVectorEnv([lambda: shared])
    measured = MasteryCallback(worlds, np.eye(6, dtype=np.uint8), 10)
    with pytest.raises(ValueError, match="MasteryCallback evaluates in the environment"):
        model_of(shared).learn(50, measured)


def test_episodes_of_auxiliary_tasks_are_not_mixed_with_those_of_an_evaluation():
    env = make_vec_env(lambda: gym.wrappers.TimeLimit(Corridor(), 20), 1)
    agent = A2C(AuxiliaryActorCriticPolicy, env)
    evaluates = EvalCallback(env, eval_freq=10, n_eval_episodes=1)
    with pytest.raises(ValueError, match="EvalCallback evaluates in the environment"):
        agent.learn(60, [ManyGoalsCallback(), evaluates])
    others = make_vec_env(lambda: gym.wrappers.TimeLimit(Corridor(), 20), 1)
    agent.learn(60, [ManyGoalsCallback(), EvalCallback(others, eval_freq=10, n_eval_episodes=1)])


def limited():
    """Make a world whose time limit shows that it has moved. Its resets draw no numbers."""
    return gym.wrappers.TimeLimit(NumberedCorridor(LENGTH, start=0), 1_000)


def drawn():
    """Make a world that starts anywhere, so its random generator shows that it was reset."""
    return NumberedCorridor(LENGTH)


class Walks(BaseCallback):
    """Walks in the world beneath the learner's goal wrapper, which does not notice."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def _on_step(self):
        if self.n_calls % 7 == 0:
            self.world.reset()
            for _ in range(3):
                self.world.step(1)
        return True


@pytest.mark.parametrize("make", [limited, drawn])
@pytest.mark.parametrize("table", [False, True])
def test_moves_of_the_world_beneath_the_goal_wrapper_are_noticed(make, table):
    bare = make()
    if table:
        model = TabularAllGoals("TablePolicy", bare)
    else:
        model = make_model(bare, seed=0, updates_per_step=1.0)
    with pytest.warns(UserWarning, match="a callback has moved the environments"):
        model.learn(100, Walks(bare))
    # They are noticed between trainings too.
    bare.reset()
    bare.step(1)
    model.learn(50, reset_num_timesteps=False)
    if not table:
        here, there = kept(model.replay_buffer)
        rows = np.column_stack([here.ravel(), model.replay_buffer.actions[:150].ravel()])
        check(np.column_stack([rows, there.ravel()]).astype(np.int64))


def test_callbacks_that_move_nothing_change_nothing():
    class Looks(BaseCallback):
        def _on_step(self):
            return True

    models = [make_model(limited(), learning_starts=10, seed=1) for _ in range(2)]
    models[0].learn(100)
    models[1].learn(100, Looks())
    for left, right in zip(*(kept(model.replay_buffer) for model in models), strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_evaluation_in_the_environments_of_a_reward_predictor_is_refused():
    env = make_vec_env(lambda: Corridor(LENGTH), 2)
    model = RewardPredictor("MlpPolicy", env, learning_starts=10)
    with pytest.raises(ValueError, match="EvalCallback evaluates in the environment"):
        model.learn(50, EvalCallback(env, n_eval_episodes=1, eval_freq=7, warn=False))
