"""Mirrors beside the replay memory and goal buffer that they mirror."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, ManyGoalsSamples, device_memory
from sb3_manygoals.many_goals_dqn.device_memory import DeviceMemory

pytestmark = pytest.mark.filterwarnings("ignore:.* goals are known, no more are kept:RuntimeWarning")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device"))]
CPU = th.device("cpu")
SPACES = {
    "picture": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "doubles": spaces.Box(-1.0, 1.0, (1,), np.float64),
    "number": spaces.Discrete(50),
    "numbers": spaces.MultiDiscrete([5, 5]),
    "bits": spaces.MultiBinary(5),
}


class Host:
    """Both memories and what is added to them: observations are those of the numbers 0 to 11, 11 is held out."""

    def __init__(self, space="picture", n_envs=2, buffer_size=8, masks=False, capacity=9, pursued=False):
        self.space, self.n_envs, self.masks, self.pursued = SPACES[space], n_envs, masks, pursued
        keys = ("observation", "achieved_goal", "desired_goal")
        self.replay = ManyGoalsReplayBuffer(
            buffer_size, spaces.Dict(dict.fromkeys(keys, self.space)), spaces.Discrete(4), "cpu", n_envs, False, masks, pursued
        )
        self.capacity = capacity
        self.goals = self.new_goals()
        self.rng = np.random.default_rng(0)

    def observations(self, numbers):
        space = self.space
        if isinstance(space, spaces.Discrete):
            return np.asarray(numbers, space.dtype)
        size = int(np.prod(space.shape))
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            rows = np.linspace(0.0, 0.5, size) + np.asarray(numbers)[:, None] / 24
        elif isinstance(space, spaces.Box):
            rows = np.arange(size) + 20 * np.asarray(numbers)[:, None]
        else:
            base = 2 if isinstance(space, spaces.MultiBinary) else 5
            rows = np.asarray(numbers)[:, None] // base ** np.arange(size) % base
        return rows.astype(space.dtype).reshape(-1, *space.shape)

    def new_goals(self):
        return GoalBuffer(self.space, self.capacity, held_out=self.observations([11]))

    def add(self, times):
        for _ in range(times):
            here, there = self.rng.integers(12, size=(2, self.n_envs))
            obs, next_obs = self.observations(here), self.observations(there)
            infos = [
                {
                    "achieved_goal_id": goal_id,
                    "desired_goal_id": int(self.rng.integers(UNKNOWN, 5)),
                    "env_terminated": bool(self.rng.random() < 0.3),
                    "action_mask": np.r_[True, self.rng.random(3) < 0.5],
                }
                for goal_id in self.goals.add(next_obs)
            ]
            actions = self.rng.integers(4, size=self.n_envs)
            none = np.zeros(self.n_envs)
            self.replay.add({"observation": obs}, {"observation": next_obs}, actions, none, none.astype(bool), infos)

    def check(self, memory):
        """All rows of the mirror, and what it draws, are the host's."""
        replay, size = self.replay, self.replay.size()
        batch = memory.gather(th.arange(size * self.n_envs, device=memory._device))
        batch = ManyGoalsSamples(*(None if field is None else field.cpu() for field in batch))
        shape = (size * self.n_envs, *self.space.shape)
        np.testing.assert_array_equal(batch.observations.numpy(), replay.observations[:size].reshape(shape))
        np.testing.assert_array_equal(batch.next_observations.numpy(), replay.next_observations[:size].reshape(shape))
        np.testing.assert_array_equal(batch.actions.numpy(), replay.actions[:size].ravel())
        np.testing.assert_array_equal(batch.next_ids.numpy(), replay.next_ids[:size].ravel())
        np.testing.assert_array_equal(batch.terminated.numpy(), replay.dones[:size].ravel().astype(bool))
        assert (batch.next_action_mask is not None) == self.masks
        if self.masks:
            np.testing.assert_array_equal(batch.next_action_mask.numpy(), replay.next_action_masks[:size].reshape(shape[0], 4))
        assert (batch.behavior_goal_ids is not None) == self.pursued
        if self.pursued:
            np.testing.assert_array_equal(batch.behavior_goal_ids.numpy(), replay.behavior_goal_ids[:size].ravel())
        eager = replay.sample(3)  # the same shapes and dtypes as the host's batches
        for ours, theirs in zip(memory.sample(3), eager, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        goals, ids = memory.sample_goals(200)
        np.testing.assert_array_equal(goals.cpu().numpy(), self.goals[ids.cpu().numpy()])
        assert set(ids.tolist()) == set(range(len(self.goals)))  # of at most 9: missing one has probability 1e-9


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("masks", "behavior"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_observation_is_mirrored(space, masks, pursued, device):
    host = Host(space, masks=masks, pursued=pursued)
    memory = DeviceMemory(host.replay, host.goals, th.device(device))
    for times in (1, 2, 3):  # the last goes past the end of the ring
        host.add(times)
        memory.sync()
        host.check(memory)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 11)),
        st.tuples(st.sampled_from(["sync", "restore", "identify", "reset", "goals"]), st.just(0)),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.integers(1, 3), st.booleans())
def test_the_mirror_follows_whatever_happens_to_the_host(steps, n_envs, masks):
    host = Host(n_envs=n_envs, buffer_size=5 * n_envs, masks=masks)
    other = Host(n_envs=n_envs, buffer_size=5 * n_envs, masks=masks)
    other.rng = np.random.default_rng(1)
    other.add(7)
    memory = DeviceMemory(host.replay, host.goals, CPU)
    for step, times in steps:
        if step == "add":
            host.add(times)
        elif step == "restore":
            host.replay.set_checkpoint_state(other.replay.get_checkpoint_state())
            host.goals.set_checkpoint_state(other.goals.get_checkpoint_state())
        elif step == "identify":
            another = Host(n_envs=n_envs)
            another.goals.add(another.observations([3, 1]))
            host.replay.identify(another.goals)
            host.goals.set_checkpoint_state(another.goals.get_checkpoint_state())
        elif step == "reset":
            host.replay.reset()
        elif step == "goals":  # met elsewhere, in an evaluation for example
            host.goals.add(host.observations([int(host.rng.integers(12))]))
        elif host.replay.size() > 0 and len(host.goals) > 0:
            memory.sync()
            host.check(memory)
    host.add(1)
    if len(host.goals) > 0:
        memory.sync()
        host.check(memory)


@pytest.mark.parametrize("device", DEVICES)
def test_much_is_copied_in_pieces(device, monkeypatch):
    host = Host(buffer_size=200, capacity=11)
    host.add(90)
    monkeypatch.setattr(device_memory, "_PIECE", 100)
    memory = DeviceMemory(host.replay, host.goals, th.device(device))
    memory.sync()
    host.check(memory)


def test_only_what_is_new_is_copied(monkeypatch):
    host = Host(n_envs=2, buffer_size=8, capacity=9)
    memory = DeviceMemory(host.replay, host.goals, CPU)
    host.add(3)
    memory.sync()
    copied = []
    monkeypatch.setattr(DeviceMemory, "_copy_transitions", lambda self, first, last: copied.append((first, last)))
    monkeypatch.setattr(DeviceMemory, "_copy_goals", lambda self, first, last: copied.append(("goals", first, last)))
    known = len(host.goals)
    memory.sync()
    assert copied == [("goals", known, known)]
    copied.clear()
    host.add(2)
    memory.sync()
    assert copied == [(3, 4), (0, 1), ("goals", known, len(host.goals))]


def test_there_must_be_something_to_draw_from():
    host = Host()
    with pytest.raises(ValueError, match="nothing to draw from: 0 transitions of each environment, 0 goals"):
        DeviceMemory(host.replay, host.goals, CPU).sync()


# --- draws -----------------------------------------------------------------------------------------------------------


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum()


def filled(n_envs=2, times=7, device="cpu"):
    host = Host("number", n_envs, buffer_size=20)
    host.add(times)
    memory = DeviceMemory(host.replay, host.goals, th.device(device))
    memory.sync()
    return host, memory


@pytest.mark.parametrize("device", DEVICES)
def test_transitions_are_drawn_uniformly(device, monkeypatch):
    _, memory = filled(device=device)
    drawn = []
    monkeypatch.setattr(memory, "gather", lambda rows: drawn.append(rows))
    th.manual_seed(0)
    memory.sample(140_000)
    counts = np.bincount(drawn[0].cpu().numpy(), minlength=14)
    assert len(counts) == 14
    assert chi_square(counts) < 50  # 13 degrees of freedom: probability 3e-6


@pytest.mark.parametrize("device", DEVICES)
def test_goals_are_drawn_uniformly(device):
    host, memory = filled(device=device)
    th.manual_seed(0)
    counts = np.bincount(memory.sample_goals(90_000)[1].cpu().numpy())
    assert len(counts) == len(host.goals)
    assert chi_square(counts) < 45


@pytest.mark.parametrize("count", [1, 2, 3, 10, 2**20, 2**20 + 1, 3 * 2**40 + 1, 2**52 - 1, 2**53])
def test_the_largest_number_drawn_stays_in_range(count, monkeypatch):
    _, memory = filled()
    for number in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(th, "rand", lambda n, dtype, device, number=number: th.full((n,), number, dtype=dtype))
        drawn = memory._draw(1, th.tensor(count)).item()
        assert drawn == (0 if number == 0.0 else count - 1)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(UNKNOWN, 8), min_size=1, max_size=12),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(0, 12)),
    st.integers(0, 2**32 - 1),
)
def test_goals_of_the_batch_come_first(next_ids, n, most, seed):
    """As TDTargets.draw: the different known ones, each once, in random choice, then uniform ones."""
    host, memory = filled(times=20)
    assert len(host.goals) == 9
    th.manual_seed(seed)
    goals, ids = memory.sample_goals(n, th.tensor(next_ids), most)
    met = set(next_ids) - {UNKNOWN}
    taken = ids.numpy()[: min(len(met), n, n if most is None else most)]
    assert ids.shape == (n,)
    assert ids.dtype == th.int64
    assert len(set(taken)) == len(taken)
    assert set(taken) <= met
    np.testing.assert_array_equal(goals.numpy(), host.goals[ids.numpy()])


def test_any_choice_of_the_batch_and_any_other_goal_are_as_likely():
    _, memory = filled(times=20)
    th.manual_seed(0)
    next_ids = th.tensor([4, 7, 4, UNKNOWN, 2, 4, 7, 0])
    pairs, chosen = np.zeros((9, 9), int), th.tensor([0, 2, 4, 7])
    for _ in range(6_000):
        _, ids = memory.sample_goals(2, next_ids)  # two of four, in any order
        pairs[tuple(ids.tolist())] += 1
    of_the_batch = pairs[chosen][:, chosen]
    assert of_the_batch.sum() == 6_000
    assert np.trace(of_the_batch) == 0
    assert chi_square(of_the_batch[~np.eye(4, dtype=bool)]) < 45  # 11 degrees of freedom: 5e-6
    rest = np.zeros(9, int)
    for _ in range(3_000):
        _, ids = memory.sample_goals(7, next_ids)
        assert set(ids[:4].tolist()) == {0, 2, 4, 7}
        rest += np.bincount(ids[4:].numpy(), minlength=9)
    assert chi_square(rest) < 40  # 8 degrees of freedom: 3e-6
    of_the_batch = 0
    for _ in range(300):
        _, ids = memory.sample_goals(7, next_ids, most=1)
        assert ids[0].item() in {0, 2, 4, 7}
        of_the_batch += set(ids[1:].tolist()) <= {0, 2, 4, 7}
    assert of_the_batch < 30  # six that are drawn uniformly are all among these four with probability 0.008
