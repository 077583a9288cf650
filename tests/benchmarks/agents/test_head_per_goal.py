import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.agents.head_per_goal import AllGoalsDQN
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, TDTargets
from sb3_manygoals.goals import GoalBuffer

WORLD = "TwoRoomsSwitchSmall-v0"


@pytest.fixture(scope="module")
def model():
    env = make_vec_env(WORLD, 4, seed=0)
    model = AllGoalsDQN(
        "CnnPolicy",
        env,
        learning_rate=1e-3,
        learning_starts=60,
        updates_per_step=0.25,
        policy_kwargs={"net_arch": [32], "ema_decay": 0.0},
        goal_wrapper_kwargs={"goal_buffer": GoalBuffer(env.observation_space, 220), "max_episode_steps": 5},
        seed=0,
        device="cpu",
    )
    model.learn(80)
    with th.no_grad():  # targets other than the learner's own values
        model.q_net_target.head.bias.add_(th.randn(1100))
    return model


def test_every_known_goal_is_taught_as_it_would_be_alone(model):
    known = len(model.goal_buffer)
    assert 10 < known < 220
    draw = model.targets.draw(6, 1, model.rng)
    batch = draw.batch
    losses = model.targets.losses(draw)
    assert losses.shape == (known,)
    assert draw.goal_ids.tolist() == list(range(known))
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


def test_it_acts_on_goals_by_their_ids(model):
    ids = np.array([7, 0, 9, 7])
    observations = model.goal_buffer[np.array([1, 2, 3, 4])]
    actions, _ = model.predict({"observation": observations, "desired_goal": model.goal_buffer[ids]}, deterministic=True)
    with th.no_grad():
        q = model.q_net(th.as_tensor(observations.copy()), len(model.goal_buffer))
        th.testing.assert_close(q[range(4), ids], model.q_net.of_goals(th.as_tensor(observations.copy()), th.as_tensor(ids)))
    assert actions.tolist() == q[range(4), ids].argmax(dim=1).tolist()


def test_goals_that_are_not_known_are_pursued_at_random(model):
    goals = World(WORLD).tables.observations
    goal = goals[model.goal_buffer.ids(goals) == -1][:1].repeat(500, axis=0)
    here = model.goal_buffer[np.zeros(500, dtype=np.int64)]
    actions, _ = model.predict({"observation": here, "desired_goal": goal}, deterministic=True)
    counts = np.bincount(actions, minlength=5)
    assert counts.min() > 60  # 100 each expected


def test_it_learns_with_manygoalsdqns_settings_and_the_average_acts():
    env = make_vec_env(WORLD, 4, seed=0)
    settings = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 20, "updates_per_step": 0.25, "seed": 0}
    ours = ManyGoalsDQN("CnnPolicy", env, target_class=TDTargets, **settings)
    goals = {"goal_buffer": GoalBuffer(env.observation_space, 220)}
    model = AllGoalsDQN("CnnPolicy", env, goal_wrapper_kwargs=goals, **settings)
    assert str(model.q_net.trunk) == str(ours.q_net.trunk)
    assert str(model.policy.optimizer) == str(ours.policy.optimizer)
    for name in ("gamma", "batch_size", "buffer_size", "exploration_fraction"):
        assert getattr(model, name) == getattr(ours, name)
    before = [parameter.clone() for parameter in model.q_net.parameters()]
    model.learn(60)
    assert not any(th.equal(a, b) for a, b in zip(before, model.q_net.parameters(), strict=True))
    state, ids = model.goal_buffer[np.arange(9)], np.arange(9)[::-1].copy()
    actions, _ = model.predict({"observation": state, "desired_goal": model.goal_buffer[ids]}, deterministic=True)
    with th.no_grad():
        q = model.policy.q_net_ema.of_goals(th.as_tensor(state.copy()), th.as_tensor(ids))
    assert actions.tolist() == q.argmax(dim=1).tolist()
