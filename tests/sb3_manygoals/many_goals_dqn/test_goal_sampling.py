"""Which goals an update teaches."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import GoalBuffer, ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples, PlannedTargets
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    gradient,
    make_model,
    moved,
    parameters,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


def sampling(goal_sampling, n_envs=1, **kwargs):
    return td_model(
        DummyVecEnv([lambda: Corridor(6)] * n_envs),
        targets={"goal_sampling": goal_sampling},
        goal_wrapper_kwargs={"max_episode_steps": 5},
        **kwargs,
    )


def cell(number):
    """Return a batch of one observation."""
    return th.tensor(CELLS[number])[None]


def samples_of(model, here, actions, there, terminated, pursued):
    """Return transitions between cells as a batch. ``pursued`` are cells, or UNKNOWN."""
    ids = model.goal_buffer.ids
    return ManyGoalsSamples(
        observations=th.tensor(CELLS[here]),
        actions=th.tensor(actions),
        next_observations=th.tensor(CELLS[there]),
        next_goal_ids=th.tensor(ids(CELLS[there])),
        terminated=th.tensor(terminated),
        behavior_goal_ids=th.tensor(np.where(pursued == UNKNOWN, UNKNOWN, ids(CELLS[pursued]))),
    )


@pytest.mark.parametrize("action_gap", [0.0, 0.4])
def test_on_policy_each_transition_teaches_the_goal_that_was_pursued(action_gap):
    model = moved(sampling("behavior"))
    model.targets.action_gap = action_gap
    # Goals are in another order than cells, so that no id is the number of the cell.
    model.goal_buffer.add(CELLS[::-1])
    here = np.array([0, 1, 2, 5, 3, 3])
    actions = np.array([1, 0, 2, 1, 1, 0])
    there = np.array([1, 0, 2, 5, 4, 2])
    terminated = np.array([False, False, False, True, False, False])
    pursued = np.array([1, 5, 2, 3, 1, UNKNOWN])
    samples = samples_of(model, here, actions, there, terminated, pursued)
    model.replay_buffer.sample = lambda _: samples
    batch = model.targets.sample(6, 16, model.rng)
    np.testing.assert_array_equal(batch.goal_ids, samples.behavior_goal_ids)
    np.testing.assert_array_equal(batch.goals[:5], CELLS[pursued[:5]])
    loss = model.targets.losses(batch, model.targets.target_values(batch)).mean()

    expected = th.zeros(())
    # The sixth transition has an unknown goal.
    for row in range(5):
        goal = cell(pursued[row])
        with th.no_grad():
            target = -0.1 + 0.99 * model.q_net_target(cell(there[row]), goal).max()
        if terminated[row]:
            target = -10.0
        if there[row] == pursued[row]:
            target = 0.0
        with th.no_grad():
            values = model.q_net_target(cell(here[row]), goal)[0]
        n_steps = np.log(float((values.max() + 10.0) / 10.0)) / np.log(0.99)
        target -= action_gap * 0.95 ** max(n_steps, 0.0) * (values.max() - values[actions[row]])
        q = model.q_net(cell(here[row]), goal)[0, actions[row]]
        expected = expected + (q - target) ** 2 / 5
    th.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    th.testing.assert_close(gradient(model, loss), gradient(model, expected), rtol=1e-3, atol=1e-4)


def test_transitions_with_unknown_goals_teach_nothing():
    model = moved(sampling("behavior"))
    model.goal_buffer.add(CELLS)
    model.set_logger(configure(None, []))
    cells = np.arange(6)
    ended = np.zeros(6, dtype=bool)
    samples = samples_of(model, cells, cells % 3, cells, ended, np.full(6, UNKNOWN))
    model.replay_buffer.sample = lambda _: samples
    before = parameters(model.q_net).clone()
    model.train(gradient_steps=1, batch_size=6)
    assert th.equal(parameters(model.q_net), before)
    assert model.goal_updates.sum() == 0


def test_the_replay_memory_keeps_which_goal_was_pursued():
    pursued = []

    def listen(local, _):
        pursued.append([info["desired_goal_id"] for info in local["infos"]])
        return True

    model = sampling("behavior", n_envs=3, learning_starts=1000).learn(60, listen)
    memory = model.replay_buffer
    np.testing.assert_array_equal(memory.behavior_goal_ids[: len(pursued)], pursued)
    assert len(np.unique(pursued)) > 3
    assert memory.sample(7).behavior_goal_ids.shape == (7,)
    other = GoalBuffer(Corridor(6).observation_space)
    memory.move_to(other, other.states)
    assert (memory.behavior_goal_ids[: len(pursued)] == UNKNOWN).all()


def test_the_goals_that_were_pursued_are_saved_and_loaded(tmp_path):
    model = sampling("behavior", n_envs=2).learn(200)
    model.save_all(tmp_path)
    loaded = ManyGoalsDQN.load_all(tmp_path, model.get_env())
    ids = model.replay_buffer.behavior_goal_ids
    assert (ids[: model.replay_buffer.size()] != UNKNOWN).any()
    np.testing.assert_array_equal(loaded.replay_buffer.behavior_goal_ids, ids)
    batch = loaded.targets.sample(32, 16, loaded.rng)
    assert batch.pursued.any()
    assert loaded.targets.losses(batch, loaded.targets.target_values(batch)).sum() > 0


def test_pursued_goals_that_nothing_led_to_are_known_again_only_with_their_world(tmp_path):
    def model_of(last):
        goals = {"goal": lambda seen: seen.argmax(), "goal_list": [5, 4, *last]}
        return td_model(
            Corridor(20, start=3),
            targets={"goal_sampling": "behavior"},
            goal_wrapper_kwargs={"max_episode_steps": 5, "reset_worlds": True, **goals},
            learning_starts=1_000,
        )

    model = model_of([15, 17])
    with pytest.warns(UserWarning, match="2 of 4 goals in goal_list were never achieved"):
        model.learn(200)
    pursued = model.replay_buffer.behavior_goal_ids[:200].copy()
    assert set(np.unique(pursued)) == {0, 1, 2, 3}
    model.save_replay_buffer(tmp_path / "transitions")
    model.save_world(tmp_path / "world")
    for last in ([15, 17], [18, 16], []):
        other = model_of(last)
        other.load_replay_buffer(tmp_path / "transitions")
        assert (other.replay_buffer.behavior_goal_ids[:200] == UNKNOWN).all()
    restored = model_of([15, 17])
    restored.load_world(tmp_path / "world")
    restored.load_replay_buffer(tmp_path / "transitions")
    np.testing.assert_array_equal(restored.replay_buffer.behavior_goal_ids[:200], pursued)


def test_the_goals_that_were_pursued_are_forgotten_where_goals_have_other_ids(tmp_path):
    model = sampling("behavior", n_envs=2).learn(200)
    model.save_replay_buffer(tmp_path / "transitions")
    other = sampling("behavior", n_envs=2)
    # Goals are found in another order.
    other.goal_buffer.add(CELLS[model.goal_buffer.observations.argmax(axis=1)[::-1]])
    other.load_replay_buffer(tmp_path / "transitions")
    assert (other.replay_buffer.behavior_goal_ids[:100] == UNKNOWN).all()


def test_segment_goals_are_the_next_observations_filled_up_with_uniform_ones():
    model = sampling("segments")
    model.goal_buffer.add(CELLS)
    known = model.goal_buffer.ids(CELLS)
    samples = ManyGoalsSamples(
        observations=th.zeros(4),
        actions=th.zeros(4),
        next_observations=th.tensor(CELLS[[4, 4, 2, 0]]),
        next_goal_ids=th.tensor([known[4], known[4], known[2], UNKNOWN]),
        terminated=th.zeros(4),
        behavior_goal_ids=th.full((4,), UNKNOWN),
    )
    model.replay_buffer.sample_segments = lambda *_: samples
    model.goal_buffer.is_held_out = lambda goals: np.ones(len(goals), np.bool_)
    for _ in range(20):
        batch = model.targets.sample(4, 5, model.rng)
        assert set(batch.goal_ids[:2].tolist()) == {known[4], known[2]}
        assert batch.goal_ids.shape == (5,)
        found = model.goal_buffer[batch.goal_ids.numpy()]
        np.testing.assert_array_equal(batch.goals.numpy(), found)


WITH_FULL_BUFFERS = {
    "observations": {},
    "keys": {"state_key": lambda seen: seen.argmax() // 2},
    "achieved": {"goal": lambda seen: np.array([seen.argmax() // 2], np.int64)},
    "near": {
        "goal": lambda seen: np.array([seen.argmax()], np.float32),
        "reached": 1.0,
    },
}


@pytest.mark.parametrize("kind", WITH_FULL_BUFFERS)
@pytest.mark.parametrize("action_gap", [0.0, 0.4])
def test_segments_teach_goals_for_which_the_goal_buffer_had_no_room(kind, action_gap):
    goal_buffer = GoalBuffer(Corridor(12).observation_space, 3, **WITH_FULL_BUFFERS[kind])
    model = td_model(
        DummyVecEnv([lambda: Corridor(12)] * 2),
        targets={"goal_sampling": "segments", "action_gap": action_gap},
        goal_wrapper_kwargs={"goal_buffer": goal_buffer, "max_episode_steps": 5},
        learning_starts=1_000,
    )
    with pytest.warns(RuntimeWarning, match="full with 3 goals"):
        model = moved(model.learn(400))
    batch = model.targets.sample(32, 32, model.rng)
    cells = batch.samples.observations.argmax(dim=1)
    next_cells = batch.samples.next_observations.argmax(dim=1).numpy()

    def places(seen):
        return seen.argmax(axis=1) // 2 if kind in ("keys", "achieved") else seen.argmax(axis=1)

    if kind == "observations" or kind == "keys":
        taught = places(batch.goals.numpy())
    else:
        taught = batch.goals.numpy()[:, 0]
    # Each transition's own next observation is among the goals.
    met = next_cells // 2 if kind in ("keys", "achieved") else next_cells
    assert len(set(met)) > 3
    assert set(met) <= set(taught)
    assert (batch.goal_ids == UNKNOWN).any()

    distance = np.abs(met[:, None] - taught)
    reached = th.tensor(distance <= (1.0 if kind == "near" else 0.0))
    with th.no_grad():
        target = model.q_net_target
        embedded = target.embed(batch.samples.next_observations, batch.goals)
        expected = -0.1 + 0.99 * target.pairwise(*embedded).amax(dim=2)
        expected[reached] = 0.0
        values = target.pairwise(*target.embed(batch.observations, batch.goals))
        best = values.amax(dim=2)
        actions = batch.samples.actions[:, None, None].expand(-1, values.shape[1], 1)
        taken = values.gather(2, actions)[..., 0]
        n_steps = th.log((best + 10.0).clamp(1e-6, 10.0) / 10.0) / np.log(0.99)
        expected -= action_gap * 0.95**n_steps * (best - taken)
    found = model.targets.target_values(batch)
    assert len(cells) == len(found)
    th.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reached", [None, 0.5])
def test_segments_teach_only_the_goals_of_a_list(reached):
    goals = {
        "goal": lambda seen: np.array([seen.argmax()], np.float32),
        "goal_list": np.float32([[2], [9]]),
        "reached": reached,
    }
    model = td_model(
        DummyVecEnv([lambda: Corridor(12)] * 2),
        targets={"goal_sampling": "segments"},
        goal_wrapper_kwargs={"max_episode_steps": 5, **goals},
        learning_starts=1_000,
    ).learn(400)
    batch = model.targets.sample(32, 32, model.rng)
    assert len(batch.samples.next_observations.unique(dim=0)) > 2
    assert set(batch.goals[:, 0].tolist()) == {2.0, 9.0}
    assert (batch.goal_ids != UNKNOWN).all()


def test_segments_do_not_teach_held_out_goals():
    goal_buffer = GoalBuffer(Corridor(6).observation_space, 3, CELLS[[5]])
    model = td_model(
        DummyVecEnv([lambda: Corridor(6)]),
        targets={"goal_sampling": "segments"},
        goal_wrapper_kwargs={"goal_buffer": goal_buffer, "max_episode_steps": 5},
        learning_starts=1_000,
    )
    with pytest.warns(RuntimeWarning, match="full with 3 goals"):
        model.learn(300)
    for _ in range(10):
        batch = model.targets.sample(32, 16, model.rng)
        assert (batch.samples.next_observations.argmax(dim=1) == 5).any()
        assert (batch.goals.argmax(dim=1) != 5).all()


def test_an_update_has_segments_of_four_transitions():
    model = sampling("segments", n_envs=3, learning_starts=1000).learn(300)
    asked = []
    sample_segments = model.replay_buffer.sample_segments

    def look(*arguments):
        asked.append(arguments[:2])
        return sample_segments(*arguments)

    model.replay_buffer.sample_segments = look
    batch = model.targets.sample(32, 4, model.rng)
    assert asked == [(32, 4)]
    assert batch.samples.observations.shape == (32, 6)


@pytest.mark.parametrize("goal_sampling", ["uniform", "segments", "behavior", "planned"])
def test_held_out_goals_are_neither_pursued_nor_taught(goal_sampling):
    space = Corridor(6).observation_space
    wrapper = {"goal_buffer": GoalBuffer(space, held_out=CELLS[[2, 4]]), "max_episode_steps": 10}
    if goal_sampling == "planned":
        model = make_model(Corridor(6), goal_wrapper_kwargs=wrapper, target_class=PlannedTargets)
    else:
        targets = {"goal_sampling": goal_sampling}
        model = td_model(Corridor(6), goal_wrapper_kwargs=wrapper, targets=targets)
    pursued = set()
    taught = set()
    losses = model.targets.losses

    def look_at_batch(batch, target_values):
        taught.update(batch.goals.argmax(dim=1).tolist())
        return losses(batch, target_values)

    def look_at_step(local, _):
        pursued.add(int(local["new_obs"]["desired_goal"].argmax()))
        return True

    model.targets.losses = look_at_batch
    model.learn(400, callback=look_at_step)
    assert pursued == {0, 1, 3, 5}
    assert taught == {0, 1, 3, 5}


def test_updates_of_each_goal_are_counted_and_not_saved_with_the_model(tmp_path):
    model = sampling("behavior")
    batches = []
    sample = model.targets.sample

    def look(*sizes):
        batches.append(sample(*sizes))
        return batches[-1]

    model.targets.sample = look
    model.learn(100)
    ids = np.concatenate([batch.goal_ids for batch in batches])
    assert len(ids) > 100
    expected = np.bincount(ids[ids != UNKNOWN], minlength=len(model.goal_updates))
    np.testing.assert_array_equal(model.goal_updates, expected)
    model.save_world(tmp_path / "world")
    again = reloaded(model, tmp_path, Corridor(6))
    model.load_world(tmp_path / "world")
    for one in (again, model):
        assert one.goal_updates.tolist() == [0] * one.goal_buffer.capacity


def test_gaps_of_a_batch_are_those_of_its_transitions_one_by_one():
    """In segments, the network sees most observations only once."""
    model = sampling("segments", n_envs=2).learn(60)
    moved(model)
    model.targets.action_gap = 0.4
    batch = model.targets.sample(32, 16, model.rng)
    targets = model.targets.target_values(batch)
    samples = batch.samples
    follows = samples.observations[1:] == samples.next_observations[:-1]
    assert 16 <= follows.all(dim=1).sum() < 31
    for row in range(32):
        one = ManyGoalsSamples(*(None if part is None else part[row : row + 1] for part in samples))
        found = model.targets.target_values(batch._replace(samples=one))
        th.testing.assert_close(found[0], targets[row], rtol=1e-4, atol=1e-5)
