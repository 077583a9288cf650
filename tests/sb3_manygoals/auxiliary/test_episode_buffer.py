"""Tests that compare the episode buffer with a plain record of everything that happened."""

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.auxiliary import EpisodeBuffer
from sb3_manygoals.checkpoint import copy_tree


class Step(NamedTuple):
    """A transition."""

    observation: np.ndarray
    action: int
    reward: float
    next_observation: np.ndarray
    terminated: bool


class Game(NamedTuple):
    """A complete episode."""

    score: float
    number: int
    segments: list[list[Step]]


class Player:
    """Plays worlds of random transitions into a buffer, and records all of it."""

    def __init__(self, rng, n_envs, space, n_stack=1, capacity=2000, lives=False):
        self.rng = rng
        self.n_envs = n_envs
        self.space = space
        self.n_stack = n_stack
        self.lives = lives
        self.frame = (space.shape[0] // n_stack, *space.shape[1:]) if n_stack > 1 else space.shape
        self.buffer = EpisodeBuffer(space, capacity, n_stack)
        self.buffer.monitored = True
        self.number = 0
        self.frames = [[] for _ in range(n_envs)]
        self.games = []
        self.pending = [[[]] for _ in range(n_envs)]
        self.current = np.stack([self.first(env) for env in range(n_envs)])
        self.buffer.start(self.current)

    def first(self, env):
        """Return the first observation of an episode."""
        zero = np.zeros(self.frame, self.space.dtype)
        self.frames[env] = [zero] * (self.n_stack - 1)
        return self.following(env)

    def following(self, env):
        """Return an observation that was not shown before."""
        self.number += 1
        frame = np.full(self.frame, self.number % 251 + 1, self.space.dtype)
        self.frames[env] = [*self.frames[env], frame][-self.n_stack :]
        return np.concatenate(self.frames[env]) if self.n_stack > 1 else frame

    def step(self, n=1):
        """Make ``n`` steps of all environments."""
        for _ in range(n):
            n_envs = self.n_envs
            actions = self.rng.integers(4, size=n_envs)
            rewards = self.rng.integers(-1, 2, size=n_envs) * 0.5
            dones = self.rng.random(n_envs) < 0.3
            truncated = self.rng.random(n_envs) < 0.5
            reached = np.stack([self.following(env) for env in range(n_envs)])
            observations = reached.copy()
            infos = [{} for _ in range(n_envs)]
            for env in range(n_envs):
                terminated = bool(dones[env] and not truncated[env])
                step = Step(self.current[env], actions[env], rewards[env], reached[env], terminated)
                self.pending[env][-1].append(step)
                if dones[env]:
                    infos[env] = {
                        "terminal_observation": reached[env],
                        "TimeLimit.truncated": truncated[env],
                    }
                    if not self.lives or truncated[env] or self.rng.random() < 0.5:
                        score = float(self.rng.integers(5))
                        infos[env]["episode"] = {"r": score}
                        self.games.append(Game(score, len(self.games), self.pending[env]))
                        self.pending[env] = []
                    self.pending[env].append([])
                    observations[env] = self.first(env)
            self.buffer.add(actions, rewards, dones, observations, infos)
            self.current = observations

    @property
    def best(self):
        """The games that the buffer keeps, those with the highest scores."""
        return sorted(self.games, key=lambda game: game[:2])[-self.buffer.capacity :]

    def pieces(self, n_steps):
        """Yield all trajectories that may be sampled."""
        for game in self.best:
            for segment in game.segments:
                for start in range(max(len(segment) - n_steps, 0) + 1):
                    yield segment[start : start + n_steps]


IMAGE = spaces.Box(0, 255, (4, 3, 3), np.uint8)
VECTOR = spaces.Box(-1e9, 1e9, (6,), np.float32)


def players():
    """Return a Hypothesis strategy of players in worlds of different kinds."""
    return st.builds(
        lambda seed, n_envs, kind, capacity, lives: Player(
            np.random.default_rng(seed), n_envs, *kind, capacity, lives
        ),
        st.integers(0, 2**31),
        st.integers(1, 3),
        st.sampled_from(
            [(IMAGE, 4), (IMAGE, 2), (IMAGE, 1), (VECTOR, 3), (spaces.Discrete(300), 1)]
        ),
        st.integers(1, 6),
        st.booleans(),
    )


def key(piece, n_steps):
    """Return a trajectory as bytes and plain numbers. Its last observation is repeated."""
    observations = [piece[0].observation, *(step.next_observation for step in piece)]
    observations += [observations[-1]] * (n_steps + 1 - len(observations))
    shown = b"".join(one.tobytes() for one in observations)
    actions = tuple(int(step.action) for step in piece)
    rewards = tuple(float(step.reward) for step in piece)
    return shown, actions, rewards, piece[-1].terminated


@given(players(), st.integers(1, 60), st.integers(1, 6))
def test_sampled_trajectories_are_those_that_happened(player, steps, n_steps):
    player.step(steps)
    buffer = player.buffer
    assert buffer.returns.tolist() == [game.score for game in player.best]
    assert len(buffer) == len(player.best)
    if not len(buffer):
        return
    possible = {key(piece, n_steps) for piece in player.pieces(n_steps) if piece}
    batch = buffer.sample(20, n_steps, player.rng)
    assert batch.observations.shape == (20, n_steps + 1, *player.space.shape)
    assert batch.observations.dtype == player.space.dtype
    for row in range(20):
        length = batch.lengths[row]
        assert not batch.actions[row, length:].any()
        assert not batch.rewards[row, length:].any()
        sampled = (
            batch.observations[row].tobytes(),
            tuple(batch.actions[row, :length].tolist()),
            tuple(batch.rewards[row, :length].tolist()),
            bool(batch.terminated[row]),
        )
        assert sampled in possible


@given(players(), st.integers(20, 60))
def test_rewards_are_sampled_with_the_observations_before(player, steps):
    player.step(steps)
    if not len(player.buffer):
        return
    seen = set()
    for game in player.best:
        for segment in game.segments:
            for t, step in enumerate(segment):
                three = [segment[max(t - back, 0)].observation for back in (2, 1, 0)]
                seen.add((b"".join(one.tobytes() for one in three), float(step.reward)))
    sampled, rewards = player.buffer.sample_rewards(21, player.rng)
    for observations, reward in zip(sampled, rewards.tolist(), strict=True):
        assert (observations.tobytes(), reward) in seen
    n_rewarded = {(True,): 21, (False,): 0, (False, True): 10}
    kinds = tuple(sorted({reward != 0 for _, reward in seen}))
    assert (rewards != 0).sum() == n_rewarded[kinds]


@given(players(), st.integers(1, 60))
def test_only_frames_of_kept_and_unfinished_episodes_are_kept(player, steps):
    player.step(steps)
    ongoing = [segment for pending in player.pending for segment in pending]
    kept = [segment for game in player.best for segment in game.segments]
    # There is one frame for each observation, and one of zeros.
    assert player.buffer.n_frames <= 1 + sum(1 + len(segment) for segment in kept + ongoing)
    transitions = [step for segment in kept + ongoing for step in segment]
    shown = {step.observation.tobytes() for step in transitions}
    shown |= {step.next_observation.tobytes() for step in transitions}
    assert player.buffer.n_frames >= len(shown)
    assert player.buffer.n_transitions == sum(len(segment) for segment in kept)


def test_all_places_are_equally_likely():
    player = Player(np.random.default_rng(0), 2, VECTOR)
    player.step(40)
    # No two trajectories begin with the same observation.
    n_places = len(list(player.pieces(2)))
    batch = player.buffer.sample(100 * n_places, 2, player.rng)
    counts = np.unique(batch.observations[:, 0, 0], return_counts=True)[1]
    assert len(counts) == n_places
    assert 50 < counts.min() <= counts.max() < 150


@given(players(), st.integers(1, 40))
def test_a_restored_buffer_goes_on_as_the_saved_one(player, steps):
    player.step(steps)
    state = copy_tree(player.buffer.get_checkpoint_state())
    fresh = EpisodeBuffer(player.space, player.buffer.capacity, player.n_stack)
    fresh.set_checkpoint_state(state)
    assert fresh.monitored
    fresh.start(player.current, keep_ongoing=True)
    player.buffer.start(player.current, keep_ongoing=True)
    actions = np.ones(player.n_envs)
    zeros = np.zeros(player.n_envs)
    last = [np.stack([player.following(env) for env in range(player.n_envs)]) for _ in range(2)]
    end = [player.following(env) for env in range(player.n_envs)]
    for buffer in (fresh, player.buffer):
        for observations in last:
            buffer.add(actions, zeros, zeros, observations, [{}] * player.n_envs)
        infos = [{"terminal_observation": one, "episode": {"r": 7.0}} for one in end]
        buffer.add(actions, zeros, zeros + 1, player.current, infos)
    same = [buffer.sample(9, 4, np.random.default_rng(1)) for buffer in (fresh, player.buffer)]
    for left, right in zip(*same, strict=True):
        np.testing.assert_array_equal(left, right)
    assert fresh.returns.tolist() == player.buffer.returns.tolist()


def test_an_environment_that_was_reset_begins_a_new_episode():
    buffer = EpisodeBuffer(spaces.Box(0, 255, (2,), np.uint8))
    first = np.array([[1, 1]], np.uint8)
    second = np.array([[2, 2]], np.uint8)
    # Only the second time, the environment still is where it was and goes on.
    for shown, keep in ((first, True), (second, True), (second, False)):
        buffer.start(first)
        buffer.add([0], [1.0], [False], second, [{}])
        buffer.start(shown, keep_ongoing=keep)
        buffer.add([0], [1.0], [True], first, [{"terminal_observation": second[0]}])
    assert buffer.returns.tolist() == [1.0, 1.0, 2.0]


def test_an_episode_that_a_limit_around_the_monitor_ends_has_the_sum_of_its_rewards():
    buffer = EpisodeBuffer(spaces.Box(0, 255, (2,), np.uint8))
    shown = np.array([[1, 1]], np.uint8)
    buffer.start(shown)
    last = {"terminal_observation": shown[0]}
    # A life is lost, then the limit ends the episode. The Monitor sees only the end of the next.
    for info in (
        last,
        last | {"TimeLimit.truncated": True},
        last | {"episode": {"r": 7.0}},
    ):
        buffer.monitored = True
        buffer.add([0], [2.0], [True], shown, [info])
    assert buffer.returns.tolist() == [4.0, 7.0]


def test_the_buffer_warns_if_a_monitor_never_gives_a_return():
    buffer = EpisodeBuffer(spaces.Box(0, 255, (2,), np.uint8))
    buffer.monitored = True
    shown = np.array([[1, 1]], np.uint8)
    buffer.start(shown)
    last = {"terminal_observation": shown[0]}
    for _ in range(99):
        buffer.add([0], [2.0], [True], shown, [last])
    with pytest.warns(
        UserWarning, match="environment 0 ended 100 times without a return of its Monitor"
    ):
        buffer.add([0], [2.0], [True], shown, [last])
    # From now on, each end is that of an episode.
    buffer.add([0], [3.0], [True], shown, [last])
    assert buffer.returns.tolist()[-4:] == [2.0, 2.0, 2.0, 3.0]
    assert buffer.n_frames <= 2 * buffer.n_transitions + 2
    # A checkpoint of an earlier version may have more ends than that.
    buffer = EpisodeBuffer(spaces.Box(0, 255, (2,), np.uint8))
    buffer.monitored = True
    buffer.start(shown)
    for _ in range(99):
        buffer.add([0], [2.0], [True], shown, [last])
    state = buffer.get_checkpoint_state()
    state["segments"] = {name: np.tile(one, 2) for name, one in state["segments"].items()}
    kept = buffer._ongoing[0].segments * 2
    state["frames"] = buffer.frames.get_checkpoint_state(
        np.concatenate([life.frames for life in kept]), np.array(buffer._ongoing[0].frames, object)
    )
    state["ongoing"] = [[198, *state["ongoing"][0][1:4]]]
    del state["monitor_is_silent"]
    buffer.set_checkpoint_state(state)
    with pytest.warns(UserWarning, match="without a return of its Monitor"):
        buffer.add([0], [2.0], [True], shown, [last])
    assert buffer.returns.tolist() == [2.0] * 199


def test_all_environments_go_on_without_a_silent_monitor():
    buffer = EpisodeBuffer(COUNT)
    shown = np.zeros((2, 1), np.float32)
    buffer.start(shown)
    buffer.monitored = True

    def step(time, lengths):
        """Take a step in both environments, whose episodes have these lengths."""
        seen = np.full((2, 1), time, np.float32)
        ends = [time % length == 0 for length in lengths]
        infos = [{"terminal_observation": seen[0]} if end else {} for end in ends]
        buffer.add([0, 0], [1.0, 1.0], np.array(ends), seen, infos)

    for time in range(1, 500):
        step(time, (5, 7))
    with pytest.warns(UserWarning, match="without a return of its Monitor"):
        step(500, (5, 7))
    for time in range(501, 1_000):
        step(time, (5, 7))
    assert not buffer.monitored
    assert set(buffer.returns.tolist()) == {5.0, 7.0}
    assert len(buffer) == 999 // 5 + 999 // 7
    # An episode that never ends is cut after 100 steps, as those that ended have 7 at most.
    for time in range(1_000, 1_101):
        step(time, (10_000, 10_000))
    assert len(buffer) == 999 // 5 + 999 // 7 + 2


def test_episodes_that_a_wrapper_around_the_monitor_ends_are_episodes():
    """The Monitor's length says that it saw no step of those before: they were no lives."""
    buffer = EpisodeBuffer(COUNT, capacity=10)
    buffer.start(np.zeros((1, 1), np.float32))
    buffer.monitored = True
    shown = walk(buffer, 9, ends=(4, 9), reward=2.0)
    assert len(buffer) == 0
    for step in range(3):
        shown = shown + 1
        over = step == 2
        info = {"terminal_observation": shown[0], "episode": {"r": 1.5, "l": 3}} if over else {}
        buffer.add([0], [0.5], [over], shown, [info])
    assert buffer.returns.tolist() == [1.5, 8.0, 10.0]
    assert len(buffer.sample(50, 20, np.random.default_rng(0)).lengths) == 50
    assert set(buffer.sample(200, 20, np.random.default_rng(0)).lengths.tolist()) == {3, 4, 5}


def test_lives_of_one_game_are_one_episode():
    buffer = EpisodeBuffer(COUNT, capacity=10)
    buffer.start(np.zeros((1, 1), np.float32))
    buffer.monitored = True
    shown = walk(buffer, 4, ends=(4,), reward=2.0) + 1
    over = {"terminal_observation": shown[0], "episode": {"r": 9.0, "l": 5}}
    buffer.add([0], [1.0], [True], shown, [over])
    assert buffer.returns.tolist() == [9.0]
    assert buffer.n_transitions == 5


def test_returns_are_sums_of_the_original_rewards():
    buffer = EpisodeBuffer(COUNT, capacity=10)
    buffer.start(np.zeros((1, 1), np.float32))
    shown = np.ones((1, 1), np.float32)
    buffer.add([0], [0.1], [False], shown, [{}], [5.0])
    fresh = EpisodeBuffer(COUNT, capacity=10)
    fresh.set_checkpoint_state(buffer.get_checkpoint_state())
    for one in (buffer, fresh):
        one.add([0], [0.2], [True], shown + 1, [{"terminal_observation": shown[0] + 1}], [7.0])
        assert one.returns.tolist() == [12.0]
        rewards = one.sample(1, 2, np.random.default_rng(0)).rewards
        np.testing.assert_array_equal(rewards, np.array([[0.1, 0.2]], np.float32))


def walk(buffer, n_steps, ends=(), first=0, reward=1.0, **info):
    """
    Add the steps of an environment that counts them, and return what it shows.

    It begins a new episode after the steps in ``ends``.
    """
    shown = np.array([[first]], np.float32)
    for step in range(1, n_steps + 1):
        shown = shown + 1
        done = step in ends
        infos = [{"terminal_observation": shown[0], **info} if done else {}]
        buffer.add([0], [reward], [done], shown, infos)
    return shown


COUNT = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def counting(**kwargs):
    buffer = EpisodeBuffer(COUNT, **kwargs)
    buffer.start(np.zeros((1, 1), np.float32))
    return buffer


def lengths_of(buffer):
    """Return the lengths of episodes and pieces in which each step has the reward 1."""
    return sorted(int(score) for score in buffer.returns)


def test_endless_episodes_are_cut_and_the_world_goes_on():
    buffer = counting(cut_after=20)
    walk(buffer, 59)
    assert lengths_of(buffer) == [20, 20]
    batch = buffer.sample(200, 3, np.random.default_rng(0))
    assert not batch.terminated.any()
    firsts = batch.observations[:, 0, 0]
    assert set(firsts.tolist()) == {*range(18), *range(20, 38)}
    np.testing.assert_array_equal(batch.observations[:, 3, 0], firsts + 3)


def test_an_episode_is_endless_only_if_it_is_ten_times_as_long_as_those_that_ended():
    buffer = counting(cut_after=20)
    walk(buffer, 5 + 49 + 51, ends=(5,))
    assert lengths_of(buffer) == [5, 50, 50]
    uncut = counting(cut_after=None)
    walk(uncut, 500)
    assert len(uncut) == 0


def test_complete_episodes_come_before_pieces():
    buffer = counting(cut_after=20, capacity=3)
    walk(buffer, 80)
    assert lengths_of(buffer) == [20, 20, 20]
    # The rest of an episode with pieces is not complete, although its Monitor gives a return.
    walk(buffer, 7, ends=(7,), first=80, episode={"r": 87.0})
    assert lengths_of(buffer) == [20, 20, 20]
    walk(buffer, 4, ends=(2, 4), episode={"r": 2.0})
    assert lengths_of(buffer) == [2, 2, 20]


def test_the_rest_of_a_cut_episode_has_the_return_of_its_own_rewards():
    buffer = counting(cut_after=20)
    walk(buffer, 45, ends=(45,), episode={"r": 45.0})
    assert lengths_of(buffer) == [5, 20, 20]
    assert buffer.sample(99, 1, np.random.default_rng(0)).terminated.any()


@given(players(), st.integers(1, 60))
def test_short_episodes_are_not_cut(player, steps):
    whole = EpisodeBuffer(player.space, player.buffer.capacity, player.n_stack, cut_after=None)
    whole.monitored = True
    whole.start(player.current)
    buffer = player.buffer
    original = buffer.add

    def add_to_both(*transition):
        whole.add(*transition)
        original(*transition)

    buffer.add = add_to_both
    player.step(steps)
    if len(buffer):
        samples = [one.sample(9, 4, np.random.default_rng(1)) for one in (buffer, whole)]
        for left, right in zip(*samples, strict=True):
            np.testing.assert_array_equal(left, right)


def test_pieces_go_on_from_a_checkpoint():
    buffer = counting(cut_after=20)
    shown = walk(buffer, 50)
    fresh = EpisodeBuffer(COUNT, cut_after=20)
    fresh.set_checkpoint_state(copy_tree(buffer.get_checkpoint_state()))
    for one in (fresh, buffer):
        one.start(shown, keep_ongoing=True)
        walk(one, 35, ends=(15,), first=50, episode={"r": 65.0})
    assert lengths_of(fresh) == lengths_of(buffer) == [5, 20, 20, 20]
    ours, theirs = (one.get_checkpoint_state() for one in (fresh, buffer))
    for name in ("episodes", "ongoing", "longest"):
        assert ours[name] == theirs[name]
    other = EpisodeBuffer(COUNT, cut_after=30)
    with pytest.raises(ValueError, match="an episode buffer with cut_after=20, not 30"):
        other.set_checkpoint_state(buffer.get_checkpoint_state())


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), np.float64),
        (spaces.Discrete(5), np.int32),
        (spaces.MultiBinary(3), np.int64),
    ],
)
def test_dtypes_of_one_kind_are_converted(space, given):
    space.seed(0)
    shown = np.stack([space.sample() for _ in range(4)])
    buffers = EpisodeBuffer(space), EpisodeBuffer(space)
    for buffer, observations in zip(buffers, (shown, shown.astype(given)), strict=True):
        buffer.start(observations[:1])
        buffer.add([0], [1.0], [False], observations[1:2], [{}])
        ended = {"terminal_observation": observations[2]}
        buffer.add([1], [2.0], [True], observations[3:], [ended])
    samples = [buffer.sample(8, 2, np.random.default_rng(0)) for buffer in buffers]
    np.testing.assert_array_equal(samples[0].observations, samples[1].observations)
    assert samples[1].observations.dtype == space.dtype


def test_numbers_that_the_dtype_does_not_hold_are_refused():
    buffer = EpisodeBuffer(spaces.MultiBinary(3))
    buffer.start(np.zeros((1, 3), np.int8))
    with pytest.raises(ValueError, match="numbers that int8 holds, got numbers from 0 to 300"):
        buffer.add([0], [0.0], [False], np.array([[0, 300, 1]]), [{}])


def test_bad_input_is_refused():
    with pytest.raises(
        ValueError, match="capacity must be a whole number of episodes, at least 1, got 0"
    ):
        EpisodeBuffer(IMAGE, capacity=0)
    with pytest.raises(ValueError, match="cut_after must be a whole number, at least 1, got 0"):
        EpisodeBuffer(IMAGE, cut_after=0)
    buffer = EpisodeBuffer(spaces.Box(0, 255, (4,), np.uint8), n_stack=4)
    begin = np.array([[0, 0, 0, 1]], np.uint8)
    after = np.array([[0, 0, 1, 2]], np.uint8)
    with pytest.raises(ValueError, match="before the first episode has ended"):
        buffer.sample(1, 1, np.random.default_rng())
    buffer.start(begin)
    with pytest.raises(ValueError, match="a reward that is not finite"):
        buffer.add([0], [np.nan], [True], after, [{"terminal_observation": after[0]}])
    # Nothing was kept.
    assert len(buffer) == 0

    def refused(message, observations, reward=0.0, done=False, **info):
        n = len(observations)
        with pytest.raises(ValueError, match=message):
            buffer.add([0] * n, [reward] * n, [done] * n, observations, [info] * n)

    buffer.start(begin)
    refused(r"observations must be of 1 environments, as at start\(\), got 2", after.repeat(2, 0))
    refused(
        r"observations must have shape \(n, \*\(4,\)\) and dtype uint8.*int64",
        after.astype(np.int64),
    )
    for last in (None, begin, begin[0] / 2.0):
        refused(
            "environment 0 gave a terminal_observation of shape",
            begin,
            done=True,
            terminal_observation=last,
        )
    other = np.array([[0, 1, 1, 2]], np.uint8)
    refused(
        "n_stack=4 along the first axis, but an observation of environment 0 does not begin", other
    )
    # The environment was used since, so another episode begins.
    buffer.start(begin, keep_ongoing=True)
    buffer.add([0], [0], [0], other, [{}])
    refused("does not begin with the newest frames", begin)
    buffer.start(begin)
    refused(
        "environment 0 gave a reward that is not finite: nan",
        begin,
        np.nan,
        True,
        terminal_observation=after[0],
    )
    buffer.start(begin)
    refused("environment 0 gave a reward that is not finite: nan", after, np.nan)
    for bad in (None, "two", [1.0], np.zeros(2)):
        refused("environment 0 gave a reward of .*: one number is needed", after, bad)
    state = EpisodeBuffer(IMAGE, capacity=3).get_checkpoint_state()
    with pytest.raises(
        ValueError, match="the state is of an episode buffer with capacity=3, not 4"
    ):
        EpisodeBuffer(IMAGE, capacity=4).set_checkpoint_state(state)
