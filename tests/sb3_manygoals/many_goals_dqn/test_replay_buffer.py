import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

CELLS = spaces.Discrete(100)
SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def _add(buffer, time):
    n = buffer.n_envs
    here, there = np.arange(n) + 10 * time, np.arange(n) + 10 * time + 1
    infos = [{"achieved_goal_id": 100 + cell, "env_terminated": cell % 2 == 0} for cell in there]
    buffer.add({"observation": here}, {"observation": there}, np.full(n, time % 3), np.zeros(n), np.zeros(n, bool), infos)


def test_the_newest_transitions_stay_whole():
    buffer = ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), device="cpu", n_envs=2)
    for time in range(5):
        _add(buffer, time)
    assert buffer.full
    assert buffer.size() == 3
    batch = buffer.sample(500)
    here = batch.observations.numpy()
    assert set(here) == {20, 21, 30, 31, 40, 41}
    np.testing.assert_array_equal(batch.next_observations.numpy(), here + 1)
    np.testing.assert_array_equal(batch.next_ids.numpy(), here + 101)
    np.testing.assert_array_equal(batch.actions.numpy(), (here // 10) % 3)
    np.testing.assert_array_equal(batch.terminated.numpy(), here % 2 == 1)
    assert batch.actions.shape == (500,)


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 4))
def test_ways_are_followed_as_the_world_went(seed, n_added, n_steps):
    """Against a list of what was added: a way ends where the world did, was reset, or is no longer or not yet kept."""
    buffer, history = _filled(seed, n_added, n_steps=n_steps)
    expected = {}
    for kept in history:
        for start, (began, led_to, _) in enumerate(kept):
            path, last = [100 + led_to], start
            while len(path) < n_steps and _went_on(kept, last):
                last += 1
                path.append(100 + kept[last][1])
            expected[began] = (path, kept[last][1], kept[last][2])
    np.random.seed(seed)  # noqa: NPY002 - the generator that SB3 draws from
    batch = buffer.sample(300)
    seen = set()
    for began, after, after_id, end, ids, length in zip(
        *(batch[field].numpy() for field in (0, 2, 3, 4)), batch.path_ids.numpy(), batch.path_lengths.numpy(), strict=True
    ):
        path, last, ended = expected[int(began)]
        assert (list(ids[:length]), list(ids[length:])) == (path, [-1] * (n_steps - len(path)))
        assert (after, after_id, end) == (last, 100 + last, ended)
        seen.add(int(began))
    assert seen <= expected.keys()
    assert len(seen) > len(expected) / 2


def _filled(seed, n_added, rows=7, **ways):
    """A memory for two worlds, and what it should hold: where each transition began, led to, and whether the world ended."""
    rng = np.random.default_rng(seed)
    n_envs = 2
    buffer = ManyGoalsReplayBuffer(n_envs * rows, SPACE, spaces.Discrete(3), device="cpu", n_envs=n_envs, **ways)
    history = [[], []]
    fresh = iter(range(1, 100, 1))
    here = np.array([next(fresh), next(fresh)])
    for _ in range(n_added):
        if rng.random() < 0.2:  # no cell is met twice, so that what was drawn is known by where it began
            here[rng.integers(2)] = next(fresh)
        there, ended = np.array([next(fresh), next(fresh)]), rng.random(2) < 0.2
        infos = [{"achieved_goal_id": 100 + cell, "env_terminated": end} for cell, end in zip(there, ended, strict=True)]
        buffer.add({"observation": here}, {"observation": there}, np.zeros(2), np.zeros(2), np.zeros(2, bool), infos)
        for env in range(n_envs):
            history[env].append((here[env], there[env], ended[env]))
        here = there.copy()
    return buffer, [steps[-rows:] for steps in history]


def _went_on(kept, place):
    return place + 1 < len(kept) and not kept[place][2] and kept[place + 1][0] == kept[place][1]


def test_one_step_has_no_ways():
    buffer = ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), device="cpu", n_envs=2)
    _add(buffer, 0)
    batch = buffer.sample(3)
    assert batch.path_ids is None
    assert batch.path_lengths is None


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 4), st.floats(0.0, 1.0))
def test_segments_are_as_the_world_went(seed, n_added, length, share):
    buffer, history = _filled(seed, n_added, segment_length=length, segment_share=share)
    after = {kept[place][0]: kept[place + 1][0] for kept in history for place in range(len(kept)) if _went_on(kept, place)}
    led_to = {began: there for kept in history for began, there, _ in kept}
    np.random.seed(seed)  # noqa: NPY002 - the generator that SB3 draws from
    batch = buffer.sample(50)
    here, there = batch.observations.numpy().ravel().astype(int), batch.next_observations.numpy().ravel().astype(int)
    assert [led_to[cell] for cell in here] == there.tolist()
    np.testing.assert_array_equal(batch.next_ids.numpy(), 100 + there)
    in_segments = int(share * 50) // length * length
    for row, goes_on in enumerate(batch.goes_on.tolist()):
        inside = row < in_segments and (row + 1) % length != 0
        assert goes_on == (inside and here[row] in after)
        if goes_on:
            assert here[row + 1] == after[here[row]]
