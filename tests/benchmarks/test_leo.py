import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.leo import AllGoalsDQN
from benchmarks.mastery import PRESETS, all_goals
from sb3_manygoals.goals import GoalBuffer

WORLD = "TwoRoomsSwitchSmall-v0"


@pytest.fixture(scope="module")
def model():
    env = make_vec_env(WORLD, 4, seed=0)
    model = AllGoalsDQN(
        "CnnPolicy",
        env,
        learning_starts=60,
        goal_batch_size=1,
        goal_wrapper_kwargs={"goal_buffer": GoalBuffer(env.observation_space, 220), "max_episode_steps": 5},
        seed=0,
        device="cpu",
    )
    model.learn(80)
    with th.no_grad():  # targets other than the learner's own values
        model.q_net_target.head.bias.add_(th.randn(1100))
    return model


def unknown_goals(model):
    goals = all_goals(WORLD)
    return goals[model.goal_buffer.ids(goals) == -1]


def test_every_known_goal_is_taught_as_it_would_be_alone(model):
    known = len(model.goal_buffer)
    assert 10 < known < 220
    batch = model.replay_buffer.sample(6)
    before = model.pairs_taught
    losses = model.goal_losses(batch, None, None)
    assert losses.shape == (known,)
    assert model.pairs_taught == before + 6 * known
    with th.no_grad():
        q = model.q_net.head(model.q_net.trunk(batch.observations)).numpy()
        next_q = model.q_net_target.head(model.q_net_target.trunk(batch.next_observations)).numpy()
    reaching = 0
    for goal in range(known):
        errors = []
        for row in range(6):
            if np.array_equal(batch.next_observations[row].numpy(), model.goal_buffer[goal]):
                target, reaching = 0.0, reaching + 1
            else:
                target = -0.1 + 0.99 * next_q[row, 5 * goal : 5 * goal + 5].max()
            errors.append((q[row, 5 * goal + batch.actions[row]] - target) ** 2)
        assert losses[goal].item() == pytest.approx(np.mean(errors), rel=1e-4, abs=1e-5)
    assert reaching == 6


def test_double_q_chooses_by_the_learning_network(model):
    batch = model.replay_buffer.sample(6)
    with th.no_grad():
        model.q_net.head.bias.add_(th.randn(1100))
        chosen = model.q_net(batch.next_observations, 3).argmax(dim=2)
        values = model.q_net_target(batch.next_observations, 3).gather(2, chosen[:, :, None]).squeeze(2)
        taken = model.q_net(batch.observations, 3)[th.arange(6), :, batch.actions]
    targets = th.where(batch.next_ids[:, None] == th.arange(3), 0.0, -0.1 + 0.99 * values)
    model.double_q = True
    losses = model.goal_losses(batch, None, None)[:3]
    model.double_q = False
    th.testing.assert_close(losses, (taken - targets).square().mean(dim=0))


def test_it_acts_on_goals_by_their_ids(model):
    ids = np.array([7, 0, 9, 7])
    observations = model.goal_buffer[np.array([1, 2, 3, 4])]
    actions, _ = model.predict({"observation": observations, "desired_goal": model.goal_buffer[ids]}, deterministic=True)
    with th.no_grad():
        q = model.q_net(th.as_tensor(observations.copy()), len(model.goal_buffer))
        th.testing.assert_close(q[range(4), ids], model.q_net.of_goals(th.as_tensor(observations.copy()), th.as_tensor(ids)))
    assert actions.tolist() == q[range(4), ids].argmax(dim=1).tolist()


def test_goals_that_are_not_known_are_pursued_at_random(model):
    goal = unknown_goals(model)[:1].repeat(500, axis=0)
    here = model.goal_buffer[np.zeros(500, dtype=np.int64)]
    actions, _ = model.predict({"observation": here, "desired_goal": goal}, deterministic=True)
    counts = np.bincount(actions, minlength=5)
    assert counts.min() > 60  # 100 each expected
    forbidden = np.tile([True, False, True, False, True], (500, 1))
    masked, _ = model.predict({"observation": here, "desired_goal": goal}, deterministic=True, action_masks=forbidden)
    assert set(masked) == {0, 2, 4}


def test_it_learns_and_its_target_network_follows_as_ours_would(model):
    before = [parameter.clone() for parameter in model.q_net.parameters()]
    still = [parameter.clone() for parameter in model.q_net_target.parameters()]
    model.train(1, 32)
    assert not any(th.equal(a, b) for a, b in zip(before, model.q_net.parameters(), strict=True))
    assert all(th.equal(a, b) for a, b in zip(still, model.q_net_target.parameters(), strict=True))


def test_all_but_the_head_is_the_presets():
    small = PRESETS["small"]
    ours = small.agent.make(WORLD, 100, 0, "cpu")
    head = small.agent.make(WORLD, 100, 0, "cpu", n_goals=220, algorithm=AllGoalsDQN)
    assert head.goal_buffer.capacity == 220
    assert head.q_net.head.weight.shape == (1100, 256)
    assert str(head.q_net.trunk) == str(ours.q_net.trunk)
    assert str(head.policy.optimizer) == str(ours.policy.optimizer)
    for name in (
        "gamma",
        "tau",
        "target_update_interval",
        "batch_size",
        "exploration_steps",
        "buffer_size",
        "learning_starts",
    ):
        assert getattr(head, name) == getattr(ours, name)
