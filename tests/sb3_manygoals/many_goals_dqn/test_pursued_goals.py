"""Goals that were pursued are taught with the transitions in which they were."""

import copy
import math
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.sensors import NoisyRoom
from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    ManyGoalsDQN,
    TDTargets,
    VecGoalBufferWrapper,
)
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.losses import near_weights
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.many_goals_dqn.replay_buffer import OWN_GOAL
from sb3_manygoals.world import ExactStates
from tests.sb3_manygoals.goal_worlds import RIGHT, STAY, Sparse, near
from tests.sb3_manygoals.many_goals_dqn.models import CELLS, gradient, make_model, moved, td_model
from tests.sb3_manygoals.worlds import Corridor

PLACE = spaces.Box(-10.0, 10.0, (1,), np.float64)
SPACE = spaces.Dict({key: PLACE for key in ("observation", "achieved_goal", "desired_goal")})


def add(buffer, goals, ids, **infos_of_all):
    """Add a transition of each environment, in which goals were pursued that had these ids."""
    goals = np.array(goals, dtype=np.float64)[:, None]
    obs = {"observation": goals, "achieved_goal": goals, "desired_goal": goals}
    infos = [
        {
            "desired_goal_id": goal_id,
            "desired_goal_is_known": goal_id != UNKNOWN,
            "achieved_goal_id": UNKNOWN,
            "env_terminated": False,
            **infos_of_all,
        }
        for goal_id in ids
    ]
    n = len(goals)
    buffer.add(obs, obs, np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool), infos)


def memory(buffer_size=8, n_envs=2):
    """Return an empty replay memory of numbers that keeps goals without an id."""
    buffer = ManyGoalsReplayBuffer(buffer_size, SPACE, spaces.Discrete(3), "cpu", n_envs)
    buffer.keeps_behavior_goals = True
    return buffer


def pursued(buffer):
    """Return the goals pursued in a memory: ids, but the goals themselves where they have none."""
    n = buffer.size()
    found = buffer.behavior_goal_ids[:n].astype(np.float64)
    if buffer.behavior_goals is not None:
        own = buffer.behavior_goals[:n, :, 0]
        found = np.where(found == OWN_GOAL, own, found)
    return found.tolist()


def test_goals_without_an_id_are_kept_themselves():
    buffer = memory(buffer_size=3_000)
    add(buffer, [3.0, 4.0], [3, 4])
    assert buffer.behavior_goals is None
    add(buffer, [0.5, 4.0], [UNKNOWN, 4])
    add(buffer, [0.5, 0.25], [UNKNOWN, UNKNOWN])
    expected = [[3.0, 4.0], [0.5, 4.0], [0.5, 0.25]]
    assert pursued(buffer) == expected
    other = memory(buffer_size=3_000)
    other.set_checkpoint_state(copy.deepcopy(buffer.get_checkpoint_state()))
    assert pursued(other) == expected
    assert pursued(pickle.loads(pickle.dumps(buffer))) == expected
    for _ in range(999):
        add(buffer, [0.75, 1.0], [UNKNOWN, 1])
    with pytest.warns(UserWarning, match="it keeps the newest 2002"):
        buffer.shrink(2_002)
    assert pursued(buffer)[:3] == [[0.5, 4.0], [0.5, 0.25], [0.75, 1.0]]
    assert len(buffer.behavior_goals) == 1_001
    # Goals of another goal buffer may mean something else.
    buffer.move_to(GoalBuffer(PLACE, 100), None)
    assert np.unique(pursued(buffer)).tolist() == [UNKNOWN]
    assert buffer.behavior_goals is None
    other.set_checkpoint_state(memory(buffer_size=3_000).get_checkpoint_state())
    assert other.behavior_goals is None


def test_a_memory_of_an_earlier_version_is_read():
    buffer = memory()
    add(buffer, [3.0, 4.0], [3, 4])
    state = copy.deepcopy(buffer.get_checkpoint_state())
    del state["behavior_goals"]
    other = memory()
    other.set_checkpoint_state(state)
    assert pursued(other) == [[3.0, 4.0]]
    old = buffer.__getstate__()
    for name in ("behavior_goals", "keeps_behavior_goals"):
        del old["attributes"][name]
    restored = ManyGoalsReplayBuffer.__new__(ManyGoalsReplayBuffer)
    restored.__setstate__(old)
    add(restored, [0.5, 4.0], [UNKNOWN, 4])
    assert restored.behavior_goals is None
    assert pursued(restored) == [[3.0, 4.0], [UNKNOWN, 4.0]]
    restored.keeps_behavior_goals = True
    add(restored, [0.5, 4.0], [UNKNOWN, 4])
    assert pursued(restored)[2] == [0.5, 4.0]


@pytest.mark.parametrize("stores_observations", [False, True])
def test_the_memory_becomes_smaller_where_goals_do_not_fit(monkeypatch, stores_observations):
    buffer = memory(buffer_size=4_000, n_envs=2)
    if stores_observations:
        buffer.store_observations()
    else:
        buffer.move_to(GoalBuffer(PLACE, 100), ExactStates(PLACE, 100))
    # A step of both environments has two goals of 8 bytes, and four observations if they are kept.
    of_step = 48 if stores_observations else 16
    room = 1_500 * of_step + (0 if stores_observations else 100 * 8)
    monkeypatch.setattr(
        "sb3_manygoals.many_goals_dqn.replay_buffer.share_of_memory", lambda share: room
    )
    known = {"state_id": 0, "next_state_id": 0}
    with pytest.warns(UserWarning, match="it keeps the newest 3000"):
        add(buffer, [0.5, 0.25], [UNKNOWN, UNKNOWN], **known)
    assert buffer.behavior_goals.shape == (1_500, 2, 1)
    assert buffer.stores_observations == stores_observations
    assert pursued(buffer) == [[0.5, 0.25]]


def test_goals_that_no_targets_ask_for_are_not_kept():
    buffer = memory()
    buffer.keeps_behavior_goals = False
    add(buffer, [0.5, 4.0], [UNKNOWN, 4])
    assert buffer.behavior_goals is None
    assert pursued(buffer) == [[UNKNOWN, 4.0]]
    asks = td_model(Sparse(), "MultiInputPolicy", targets={"goal_sampling": "segments"})
    assert asks.replay_buffer.keeps_behavior_goals
    does_not = td_model(Sparse(), "MultiInputPolicy")
    assert not does_not.replay_buffer.keeps_behavior_goals
    default = make_model(Sparse(), "MultiInputPolicy")
    assert default.replay_buffer.keeps_behavior_goals == isinstance(default.targets, TDTargets)


def test_own_goals_of_an_environment_are_taught_with_their_transitions():
    model = td_model(
        Sparse(offset=0.125),
        "MultiInputPolicy",
        targets={
            "goal_sampling": "segments",
            "pursued_share": 0.25,
            "near_floor": 0.1,
            "action_gap": 0.3,
        },
        gamma=0.9,
    )
    model.learn(200)
    moved(model)
    model.targets.before_updates(0.4)
    replay = model.replay_buffer
    assert (replay.behavior_goal_ids[:200] == OWN_GOAL).all()
    batch = model.targets.sample(32, 16, np.random.default_rng(0))
    assert batch.pursued.shape == (32, 16)
    goals = batch.goals.numpy()[:, 0]
    # Own goals lie beside the cells, which are the goals that can be met.
    is_own = goals % 1 == 0.125
    assert 1 <= is_own.sum() <= 4
    np.testing.assert_array_equal(batch.goal_ids[th.as_tensor(is_own)], UNKNOWN)
    own = batch.samples.behavior_goals.numpy()[:, 0]
    np.testing.assert_array_equal(batch.pursued, own[:, None] == goals[None])
    assert batch.pursued.any(dim=0).tolist() == is_own.tolist()

    samples = batch.samples
    achieved = model.goal_buffer.achieved(
        samples.next_observations.numpy(), samples.next_goal_ids.numpy()
    )
    with th.no_grad():
        taken = samples.actions[:, None, None].expand(-1, 16, 1)
        now = model.q_net.pairwise(*model.q_net.embed(batch.observations, batch.goals))
        then = model.q_net_target.pairwise(
            *model.q_net_target.embed(samples.next_observations, batch.goals)
        )
    targets = -0.1 + 0.9 * then.amax(dim=2)
    targets[samples.terminated] = -1.0
    reached = near(achieved[:, None], batch.goals.numpy()[None])
    targets[th.as_tensor(reached)] = 0.0
    values = now.gather(2, taken)[:, :, 0]
    with th.no_grad():
        before = model.q_net_target.pairwise(
            *model.q_net_target.embed(batch.observations, batch.goals)
        )
    best = before.amax(dim=2)
    # With a discount of .9, the distance from the value of a goal that is never reached, -1, falls
    # by .9 for each step to the goal. The share by which targets are lowered falls by .95.
    n_steps = (best + 1.0).clamp(0.0, 1.0).log() / math.log(0.9)
    targets -= 0.3 * 0.95**n_steps * (best - before.gather(2, taken)[:, :, 0])
    both = [near_weights(each, 0.75, 0.1, 0.9, 0.0, -0.1) for each in (values, targets)]
    share = 0.25 * batch.pursued.any(dim=1).float().mean()
    # With .4 of training done, weights are by targets for .6 of a half.
    weights = (1.0 - share) * (0.7 * both[0] + 0.3 * both[1])
    weights += share * batch.pursued * (32 * 16 / batch.pursued.sum())
    expected = (weights * (values - targets).square()).mean(dim=0)
    losses = model.targets.losses(batch, model.targets.target_values(batch))
    th.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)


def test_on_policy_own_goals_of_an_environment_are_taught():
    model = td_model(
        Sparse(offset=0.125),
        "MultiInputPolicy",
        targets={"goal_sampling": "behavior"},
        updates_per_step=1.0,
    )
    model.learn(100)
    moved(model)
    batch = model.targets.sample(64, 16, model.rng)
    assert set(batch.goals.numpy()[:, 0]) == {0.125, 1.125, 2.125, 3.125, 4.125}
    loss = model.targets.losses(batch, model.targets.target_values(batch)).mean()
    assert gradient(model, loss).abs().max() > 0
    samples = batch.samples
    target = model.targets.target_values(batch)[:, 0]
    achieved = model.goal_buffer.achieved(
        samples.next_observations.numpy(), samples.next_goal_ids.numpy()
    )
    reached = near(achieved, batch.goals.numpy())
    assert reached.any()
    np.testing.assert_array_equal(target.numpy() == 0.0, reached)


@pytest.mark.parametrize("goal_sampling", ["segments", "behavior"])
def test_own_goals_that_are_held_out_are_not_taught(goal_sampling):
    class Own(Sparse):
        """A track that sets goals that can be met."""

        def __init__(self):
            super().__init__(offset=0.0)

    kinds = GoalBufferWrapper(Own()).goal_buffer
    goals = GoalBuffer(kinds.observation_space, **{**kinds.config, "held_out": np.array([[2.0]])})
    model = ManyGoalsDQN(
        "MultiInputPolicy",
        GoalBufferWrapper(Own(), goals),
        target_class=TDTargets,
        target_kwargs={"goal_sampling": goal_sampling},
        learning_starts=20,
        batch_size=32,
        goal_batch_size=16,
        seed=0,
        device="cpu",
    )
    seen = set()
    losses = model.targets.losses

    def look(batch, target_values):
        is_taught = np.ones(len(batch.goals), bool)
        if goal_sampling == "behavior":
            is_taught = batch.pursued.numpy()
        seen.update(batch.goals.numpy()[is_taught, 0].tolist())
        return losses(batch, target_values)

    model.targets.losses = look
    model.learn(300)
    assert 2.0 in np.ravel(pursued(model.replay_buffer))
    assert seen == {0.0, 1.0, 3.0, 4.0}


def test_known_goals_are_found_by_their_ids():
    model = td_model(
        Corridor(6),
        targets={"goal_sampling": "segments", "pursued_share": 0.5},
        goal_wrapper_kwargs={"max_episode_steps": 5},
    ).learn(300)
    assert model.replay_buffer.behavior_goals is None
    batch = model.targets.sample(32, 16, model.rng)
    n_pursued = int(batch.pursued.any(dim=0).sum())
    assert 1 <= n_pursued <= 4
    ids = batch.goal_ids[-n_pursued:]
    of_transitions = batch.samples.behavior_goal_ids
    assert th.equal(batch.pursued[:, -n_pursued:], of_transitions[:, None] == ids)
    assert not batch.pursued[:, :-n_pursued].any()
    np.testing.assert_array_equal(batch.goals, model.goal_buffer[batch.goal_ids.numpy()])


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "half"])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="pursued_share"):
        td_model(targets={"goal_sampling": "segments", "pursued_share": share})


@pytest.mark.parametrize(
    ("env", "share", "is_taught"),
    [
        (Corridor(6), None, False),
        (Corridor(6), 0.1, True),
        (Sparse(), None, True),
        (Sparse(), 0.0, False),
        (BitFlippingEnv(4, continuous=False), None, False),
        (gym.make("CartPole-v1"), None, False),
    ],
)
def test_by_default_pursued_goals_have_a_part_in_updates_if_goals_are_places(env, share, is_taught):
    is_goal_env = isinstance(env.observation_space, spaces.Dict)
    policy = "MultiInputPolicy" if is_goal_env else "MlpPolicy"
    targets = {"goal_sampling": "segments", "pursued_share": share}
    model = td_model(env, policy, targets=targets).learn(60)
    assert (model.targets.sample(8, 4, model.rng).pursued is not None) == is_taught


def test_a_goal_without_an_id_is_reached_where_the_goal_buffer_is_full():
    space = Corridor(6).observation_space
    model = td_model(
        Corridor(6),
        targets={"goal_sampling": "behavior"},
        goal_wrapper_kwargs={"goal_buffer": GoalBuffer(space, capacity=4)},
    )
    env = model.get_env()
    env.set_options({"goal": CELLS[4]})
    env.reset()
    with pytest.warns(RuntimeWarning, match="the goal buffer is full"):
        model.goal_buffer.add(CELLS[[0, 1, 2, 5, 3, 4]])
    assert (model.goal_buffer.ids(CELLS[[3, 4]]) == UNKNOWN).all()
    samples = ManyGoalsSamples(
        observations=th.tensor(CELLS[[3, 2]]),
        actions=th.tensor([1, 1]),
        next_observations=th.tensor(CELLS[[4, 3]]),
        next_goal_ids=th.tensor([UNKNOWN, UNKNOWN]),
        terminated=th.tensor([False, False]),
        behavior_goal_ids=th.tensor([OWN_GOAL, OWN_GOAL]),
        behavior_goals=th.tensor(CELLS[[4, 4]]),
    )
    model.replay_buffer.sample = lambda _: samples
    batch = model.targets.sample(2, 16, model.rng)
    assert batch.pursued.tolist() == [True, True]
    targets = model.targets.target_values(batch)[:, 0]
    assert targets[0] == 0.0
    assert targets[1] < 0.0


def test_goal_episodes_go_on_with_what_was_known_of_their_goals():
    def make(goals=None):
        return VecGoalBufferWrapper(DummyVecEnv([lambda: Sparse(offset=0.0)] * 2), goals)

    env = make()
    env.set_options([{"cell": 0, "own": 3.0}, {"cell": 2, "own": 0.0}])
    env.reset()
    tracker = env.goal_tracker
    env.step(np.array([STAY, RIGHT]))
    # One environment has met the goal of the other by now.
    assert tracker.goal_buffer.ids(np.array([[3.0]]))[0] != UNKNOWN
    assert tracker.desired_are_known.tolist() == [False, True]
    other = make(tracker.goal_buffer)
    other.reset()
    state = tracker.get_checkpoint_state()
    other.goal_tracker.set_checkpoint_state(state)
    assert other.goal_tracker.desired_are_known.tolist() == [False, True]
    # Checkpoints of earlier versions do not say it.
    del state["arrays"]["desired_are_known"]
    other.goal_tracker.set_checkpoint_state(state)
    known = tracker.desired_ids != UNKNOWN
    assert other.goal_tracker.desired_are_known.tolist() == known.tolist()


def test_places_are_bootstrapped_without_learning_states():
    """States that are learned show ways through walls."""
    model = ManyGoalsDQN("MultiInputPolicy", NoisyRoom(0.1), seed=0, updates_per_step=0.001)
    with warnings.catch_warnings():
        # Nothing has to be set, so nothing is advised.
        warnings.simplefilter("error")
        # So long a training may learn states. It would begin at once, so a few steps are enough.
        model.learn(20_000, callback=lambda local, _: local["self"].num_timesteps < 3_000)
    assert type(model.targets) is TDTargets
    assert model.goal_buffer.states.is_exact
