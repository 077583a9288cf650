"""Learning from recorded transitions, without an environment."""

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure

from sb3_manygoals import ManyGoalsDQN, NoEnv, PlannedTargets, TDTargets, Transitions
from sb3_manygoals.goals import UNKNOWN
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, parameters

LENGTH = 6
SPACE = spaces.Discrete(LENGTH)
ACTIONS = spaces.Discrete(2)


def walk(n, seed=0):
    """Return random steps in a corridor whose last cell ends the episode and pays 1."""
    rng = np.random.default_rng(seed)
    here = rng.integers(LENGTH - 1, size=n)
    actions = rng.integers(2, size=n)
    there = np.clip(here + 2 * actions - 1, 0, LENGTH - 1)
    ended = there == LENGTH - 1
    return Transitions(here, actions, there, rewards=ended.astype(float), terminated=ended)


def new_model(**kwargs):
    settings = {"policy_kwargs": SMALL, "learning_starts": 10, "seed": 0, "device": "cpu"}
    return ManyGoalsDQN("MlpPolicy", NoEnv(SPACE, ACTIONS), **{**settings, **kwargs})


@pytest.mark.parametrize("target_class", [None, PlannedTargets])
def test_the_shortest_ways_are_learned_from_random_steps_of_somebody_else(target_class):
    model = new_model(target_class=target_class)
    model.learn_from(walk(300), n_updates=400)
    assert len(model.goal_buffer) == LENGTH
    assert 0 < model._n_updates <= 400
    assert model.exploration_rate == model.exploration_final_eps == 0.1
    for start in range(LENGTH - 1):
        for goal in set(range(LENGTH)) - {start}:
            seen = {"observation": np.array(start), "desired_goal": np.array(goal)}
            action, _ = model.predict(seen, deterministic=True)
            assert action == int(goal > start)
    np.testing.assert_allclose(model.goal_rewards[model.goal_buffer.ids(np.array([5]))], 1.0)


@pytest.mark.parametrize("n_updates", [1, 2, 50, 99, 150])
@pytest.mark.parametrize("n", [100, 300])
def test_few_updates_are_all_made_whether_they_waited_or_not(n, n_updates):
    # Updates wait if there are fewer than 40 transitions for each state.
    model = new_model().learn_from(walk(n), n_updates=n_updates)
    assert isinstance(model.targets, PlannedTargets)
    assert model._n_updates == n_updates


@pytest.mark.parametrize("n", [1_000, 1_050, 2_500])
def test_observations_that_recur_are_planned_for_however_many_are_taken_in_together(n):
    model = new_model(learning_starts=1_000).learn_from(walk(n), n_updates=2)
    assert isinstance(model.targets, PlannedTargets)


def test_the_log_has_the_updates(tmp_path):
    model = new_model()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn_from(walk(300), n_updates=30)
    model.logger.close()
    rows = pd.read_csv(tmp_path / "progress.csv")
    assert rows["train/n_updates"].iloc[-1] == model._n_updates == 30
    assert rows["time/total_timesteps"].iloc[-1] == 300


def test_numbers_of_16_bits_are_learned_from_in_mixed_precision():
    rng = np.random.default_rng(0)
    seen = rng.choice([-1.0, 0.0, 1.0], (101, 2)).astype(np.float16)
    model = ManyGoalsDQN(
        "MlpPolicy",
        NoEnv(spaces.Box(-1.0, 1.0, (2,), np.float16), ACTIONS),
        target_class=PlannedTargets,
        policy_kwargs={**SMALL, "mixed_precision": True},
        device="cpu",
    )
    model.learn_from(Transitions(seen[:-1], rng.integers(2, size=100), seen[1:]), n_updates=4)
    assert model._n_updates == 4


def test_the_counts_are_those_of_the_transitions():
    transitions = walk(50)
    model = new_model()
    model.learn_from(transitions, n_updates=1)
    counts = np.zeros((LENGTH, 2), dtype=int)
    np.add.at(counts, (transitions.observations, transitions.actions), 1)
    ids = model.world.identity.ids(np.arange(LENGTH))
    np.testing.assert_array_equal(model.world.visit_counts[ids[:-1]], counts[:-1])
    outcomes = model.world.outcomes()
    assert outcomes.counts[outcomes.terminated].sum() == transitions.terminated.sum()
    # Without target_class, targets may bootstrap later, so the replay memory has them, too.
    assert model.replay_buffer.size() == 50


def test_bootstrapped_targets_learn_from_them():
    model = new_model(target_class=TDTargets, batch_size=16, goal_batch_size=4)
    before = parameters(model).clone()
    model.learn_from(walk(200), n_updates=20)
    assert model._n_updates == 20
    assert model.num_timesteps == 200
    assert not before.equal(parameters(model))


@pytest.mark.parametrize(
    ("target_kwargs", "goal_kwargs"),
    [({}, {"reached": 0.2}), ({"goal_sampling": "behavior"}, {})],
)
def test_targets_that_read_pursued_goals_learn_from_transitions_without_any(
    target_kwargs, goal_kwargs
):
    points = np.random.default_rng(0).uniform(-1, 1, (101, 2)).astype(np.float32)
    model = ManyGoalsDQN(
        "MlpPolicy",
        NoEnv(spaces.Box(-1, 1, (2,)), ACTIONS),
        target_class=TDTargets,
        target_kwargs=target_kwargs,
        goal_wrapper_kwargs=goal_kwargs,
        policy_kwargs=SMALL,
    )
    transitions = Transitions(points[:-1], np.arange(100) % 2, points[1:])
    for times in (1, 2):
        model.learn_from(transitions, n_updates=2)
        assert model.replay_buffer.size() == 100 * times
        assert model.world.n_counted == 100 * times
    assert (model.replay_buffer.behavior_goal_ids[:200] == UNKNOWN).all()


def test_transitions_come_from_a_replay_memory_of_sb3():
    env = gym.make("FrozenLake-v1")
    rival = DQN("MlpPolicy", env, learning_starts=1_000, buffer_size=64, seed=0, device="cpu")
    rival.learn(100)
    found = Transitions.of_replay_buffer(rival.replay_buffer)
    assert len(found) == 64
    memory = rival.replay_buffer
    # The memory is full, and its oldest transitions come first.
    in_order = np.roll(np.arange(64), -memory.pos)
    seen = memory.observations[in_order].reshape(-1)
    np.testing.assert_array_equal(found.observations, seen)
    after = memory.next_observations[in_order].reshape(-1)
    np.testing.assert_array_equal(found.next_observations, after)
    ended = memory.dones[:, 0] * (1 - memory.timeouts[:, 0])
    np.testing.assert_array_equal(found.terminated, ended[in_order])
    model = ManyGoalsDQN(
        "MlpPolicy",
        NoEnv(env.observation_space, env.action_space),
        policy_kwargs=SMALL,
        device="cpu",
    )
    model.learn_from(found, n_updates=1)
    assert model.world.n_counted == 64


@pytest.mark.parametrize("is_full", [False, True])
def test_a_memory_that_shares_observations_gives_each_transition_with_its_own_next_one(is_full):
    memory = ReplayBuffer(
        8,
        spaces.Box(0, 100, (1,), np.float32),
        ACTIONS,
        device="cpu",
        optimize_memory_usage=True,
        handle_timeout_termination=False,
    )
    for step in range(11 if is_full else 5):
        seen = np.array([[step]], dtype=np.float32)
        memory.add(seen, seen + 1, np.array([[step % 2]]), np.zeros(1), np.zeros(1), [{}])
    found = Transitions.of_replay_buffer(memory)
    np.testing.assert_array_equal(found.next_observations, found.observations + 1)
    assert len(found) == (7 if is_full else 5)


def test_transitions_of_several_environments_come_one_environment_after_the_other():
    memory = ReplayBuffer(12, spaces.Box(0, 100, (1,), np.float32), ACTIONS, "cpu", n_envs=3)
    for step in range(6):
        seen = np.array([[10 * env + step] for env in range(3)], dtype=np.float32)
        dones = np.zeros(3)
        memory.add(seen, seen + 1, np.array([[0], [1], [2]]), np.arange(3.0), dones, [{}] * 3)
    found = Transitions.of_replay_buffer(memory)
    # There is room for four steps of each environment.
    assert found.observations[:, 0].tolist() == [2, 3, 4, 5, 12, 13, 14, 15, 22, 23, 24, 25]
    assert found.actions.tolist() == found.rewards.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def filled_memory(action_space=ACTIONS, **kwargs):
    """Return a memory of cells 0, 1, 2 and 10, 11 after the first episode has ended at 2."""
    space = spaces.Box(0, 100, (1,), np.float32)
    memory = ReplayBuffer(8, space, action_space, device="cpu", **kwargs)
    for cell, done in ((0, False), (1, True), (10, False), (11, True)):
        seen = np.array([[cell]], dtype=np.float32)
        action = np.array([[0]])
        memory.add(seen, seen + 1, action, np.zeros(1), np.array([done]), [{}])
    return memory


def test_where_sb3_overwrites_the_ends_of_episodes_their_transitions_are_left_out():
    memory = filled_memory(optimize_memory_usage=True, handle_timeout_termination=False)
    with (
        pytest.warns(UserWarning, match="1 transitions that ended an episode are left out"),
        pytest.warns(UserWarning, match="all ends of episodes count as terminations"),
    ):
        found = Transitions.of_replay_buffer(memory)
    # What followed the newest one is still there.
    assert found.observations[:, 0].tolist() == [0, 10, 11]
    assert found.next_observations[:, 0].tolist() == [1, 11, 12]
    assert found.terminated.tolist() == [False, False, True]


def test_a_memory_that_does_not_tell_truncations_is_warned_of():
    with pytest.warns(UserWarning, match="all ends of episodes count as terminations"):
        found = Transitions.of_replay_buffer(filled_memory(handle_timeout_termination=False))
    assert found.terminated.tolist() == [False, True, False, True]
    # With its knowledge of truncations there is no warning.
    assert Transitions.of_replay_buffer(filled_memory()).terminated.sum() == 2


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (lambda: filled_memory(spaces.Box(-1, 1, (1,))), "must have discrete actions, got .*Box"),
        (lambda: [1], "must be SB3's ReplayBuffer, .*, got list"),
    ],
)
def test_other_memories_are_refused(memory, message):
    with pytest.raises(TypeError, match=message):
        Transitions.of_replay_buffer(memory())


def test_transitions_come_from_minari_episodes():
    class Episode:
        observations = np.arange(4)
        actions = np.array([1, 1, 1])
        rewards = np.array([0.0, 0.0, 1.0])
        terminations = np.array([False, False, True])

    class Dataset:
        def iterate_episodes(self):
            return iter([Episode(), Episode()])

    found = Transitions.of_minari(Dataset())
    assert found.observations.tolist() == [0, 1, 2] * 2
    assert found.next_observations.tolist() == [1, 2, 3] * 2
    assert found.rewards.tolist() == [0.0, 0.0, 1.0] * 2
    assert found.terminated.tolist() == [False, False, True] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transitions([], [], []), "must be whole numbers|at least 1"),
        (lambda: Transitions(np.arange(3), np.arange(2), np.arange(3)), "one length of at least 1"),
        (lambda: Transitions(np.arange(2), np.zeros(2), np.arange(2)), "actions must be whole"),
        (
            lambda: new_model().learn_from(Transitions([0], np.array([2]), [1])),
            "actions must be from 0 to 1, got 2",
        ),
        (
            lambda: new_model().learn_from(
                Transitions(np.array([LENGTH]), np.array([0]), np.array([0]))
            ),
            "6 is not in",
        ),
        (
            lambda: new_model().learn_from(
                Transitions(np.array([[0]]), np.array([0]), np.array([[0]]))
            ),
            "observations must be int64 of shape",
        ),
        (lambda: new_model(action_masks=True).learn_from(walk(5)), "cannot be used with"),
        (lambda: new_model().learn_from(walk(5), n_updates=0), "n_updates must be a whole number"),
        (
            lambda: Transitions([0, 1], np.array([0, 1]), [1, 2], rewards=np.ones((2, 2))),
            r"rewards must be of shape \(N,\) or \(N, 1\), got \(2, 2\)",
        ),
        (
            lambda: Transitions([0, 1], np.array([0, 1]), [1, 2], terminated=["False", "True"]),
            "terminated must be booleans, got <U5",
        ),
        (
            lambda: Transitions([0, 1], np.array([0, 1]), [1, 2], terminated=[0.0, 0.5]),
            r"terminated must be booleans, or 0 and 1, got \[0\.  ?0\.5\]",
        ),
        (
            lambda: Transitions({"a": [0], "b": [0, 1]}, np.array([1]), {"a": [0], "b": [1]}),
            r"one length of at least 1, got .*\"observations\['b'\]\": 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_may_have_an_axis_of_their_own():
    found = Transitions([0, 1], [[0], [1]], [1, 2], rewards=[[0.5], [1]], terminated=[[0], [1]])
    assert found.actions.tolist() == [0, 1]
    assert found.rewards.tolist() == [0.5, 1.0]
    assert found.terminated.tolist() == [False, True]


def test_a_memory_in_place_of_transitions_is_refused():
    with pytest.raises(TypeError, match=r"got ReplayBuffer: .*of_replay_buffer\("):
        new_model().learn_from(filled_memory())


@pytest.mark.parametrize("part", ["observations", "next_observations", "rewards"])
def test_nothing_is_recorded_if_the_last_transition_does_not_fit(part):
    transitions = walk(1_500)
    getattr(transitions, part)[-1] = np.nan if part == "rewards" else LENGTH
    model = new_model()
    which = r"rewards\[1499\] is nan" if part == "rewards" else rf"{part}\[1499\] is {LENGTH}"
    with pytest.raises(ValueError, match=which):
        model.learn_from(transitions)
    assert len(model.goal_buffer.states) == 0
    assert model.world.n_counted == 0


def test_no_update_and_too_small_a_memory_are_warned_of():
    model = new_model(target_class=TDTargets, buffer_size=8, updates_per_step=0.1)
    with (
        pytest.warns(UserWarning, match="0.1 updates for each transition are none for 9"),
        pytest.warns(UserWarning, match="has room for the last 8 of 9 transitions"),
    ):
        model.learn_from(walk(9))


@pytest.mark.parametrize(
    ("rhythm", "expected"),
    [
        ({"train_freq": 2, "gradient_steps": 3}, 150),
        ({"gradient_steps": -1}, 100),
        ({"train_freq": (1, "episode"), "gradient_steps": -1}, 100),
        # As a float, 29 / 100 * 100 is a little less than 29.
        ({"train_freq": 100, "gradient_steps": 29}, 29),
        # SB3's default of the other argument.
        ({"train_freq": 5}, 20),
        ({"updates_per_step": 0.5}, 50),
        # By default, TDTargets have 0.3 updates for each step.
        ({"train_freq": (1, "episode")}, 30),
        ({}, 30),
    ],
)
def test_updates_are_as_many_as_in_a_training_of_as_many_steps(rhythm, expected):
    model = new_model(target_class=TDTargets, **rhythm).learn_from(walk(100))
    assert model._n_updates == expected


def test_no_gradient_steps_are_no_updates():
    model = new_model(target_class=TDTargets, train_freq=1, gradient_steps=0)
    with pytest.warns(UserWarning, match="0 updates for each transition are none for 100"):
        model.learn_from(walk(100))
    assert model._n_updates == 0


def test_a_data_set_without_episodes_is_refused():
    class Dataset:
        def iterate_episodes(self):
            return iter([])

    with pytest.raises(ValueError, match="dataset must have at least one episode"):
        Transitions.of_minari(Dataset())


def test_there_is_no_world_to_step_in():
    with pytest.raises(RuntimeError, match="NoEnv has no world to step in"):
        new_model().learn(10)
    with pytest.raises(TypeError, match="Discrete action space"):
        NoEnv(SPACE, spaces.Box(0, 1, (2,)))
