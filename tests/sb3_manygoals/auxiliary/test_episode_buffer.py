"""The buffer against a plain record of everything that happened."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.auxiliary import EpisodeBuffer
from sb3_manygoals.checkpoint import copy_tree


class Player:
    """Plays worlds of nothing but noise into a buffer, and remembers all of it."""

    def __init__(self, rng, n_envs, space, n_stack=1, capacity=2000, lives=False):
        self.rng, self.n_envs, self.space, self.n_stack, self.lives = (
            rng,
            n_envs,
            space,
            n_stack,
            lives,
        )
        self.frame = (space.shape[0] // n_stack, *space.shape[1:]) if n_stack > 1 else space.shape
        self.buffer = EpisodeBuffer(space, capacity, n_stack)
        self.buffer.monitored = True
        self.number = 0
        self.frames = [[] for _ in range(n_envs)]
        self.games = []  # (return, number, segments), of lists of (observation, action, reward, next observation, terminated)
        self.pending = [[[]] for _ in range(n_envs)]
        self.current = np.stack([self.first(env) for env in range(n_envs)])
        self.buffer.start(self.current)

    def first(self, env):
        zero = np.zeros(self.frame, self.space.dtype)
        self.frames[env] = [zero] * (self.n_stack - 1)
        return self.following(env)

    def following(self, env):
        self.number += 1
        frame = np.full(self.frame, self.number % 251 + 1, self.space.dtype)
        self.frames[env] = [*self.frames[env], frame][-self.n_stack :]
        return np.concatenate(self.frames[env]) if self.n_stack > 1 else frame

    def step(self, n=1):
        for _ in range(n):
            n_envs, rng = self.n_envs, self.rng
            actions, rewards = rng.integers(4, size=n_envs), rng.integers(-1, 2, size=n_envs) * 0.5
            dones, truncated = rng.random(n_envs) < 0.3, rng.random(n_envs) < 0.5
            reached = np.stack([self.following(env) for env in range(n_envs)])
            observations, infos = reached.copy(), [{} for _ in range(n_envs)]
            for env in range(n_envs):
                ended = bool(dones[env] and not truncated[env])
                step = (self.current[env], actions[env], rewards[env], reached[env], ended)
                self.pending[env][-1].append(step)
                if dones[env]:
                    infos[env] = {
                        "terminal_observation": reached[env],
                        "TimeLimit.truncated": truncated[env],
                    }
                    if not self.lives or truncated[env] or rng.random() < 0.5:
                        infos[env]["episode"] = {"r": float(rng.integers(5))}
                        self.games.append(
                            (infos[env]["episode"]["r"], len(self.games), self.pending[env])
                        )
                        self.pending[env] = []
                    self.pending[env].append([])
                    observations[env] = self.first(env)
            self.buffer.add(actions, rewards, dones, observations, infos)
            self.current = observations

    @property
    def best(self):
        return sorted(self.games, key=lambda game: game[:2])[-self.buffer.capacity :]

    def pieces(self, n_steps):
        """All that may be drawn, as bytes of observations and so on."""
        for *_, segments in self.best:
            for segment in segments:
                for start in range(max(len(segment) - n_steps, 0) + 1):
                    yield segment[start : start + n_steps]


IMAGE, VECTOR = spaces.Box(0, 255, (4, 3, 3), np.uint8), spaces.Box(-1e9, 1e9, (6,), np.float32)


def players():
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
    observations = [piece[0][0], *(step[3] for step in piece)]
    observations += [observations[-1]] * (n_steps + 1 - len(observations))
    actions, rewards = [int(step[1]) for step in piece], [float(step[2]) for step in piece]
    return b"".join(o.tobytes() for o in observations), tuple(actions), tuple(rewards), piece[-1][4]


@given(players(), st.integers(1, 60), st.integers(1, 6))
def test_what_is_drawn_is_what_happened(player, steps, n_steps):
    player.step(steps)
    buffer = player.buffer
    assert buffer.returns.tolist() == [score for score, *_ in player.best]
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
        actions, rewards = (
            tuple(values[row, :length].tolist()) for values in (batch.actions, batch.rewards)
        )
        assert (
            batch.observations[row].tobytes(),
            actions,
            rewards,
            bool(batch.terminated[row]),
        ) in possible


@given(players(), st.integers(20, 60))
def test_rewards_are_drawn_with_what_was_seen_before(player, steps):
    player.step(steps)
    if not len(player.buffer):
        return
    seen = set()
    for *_, segments in player.best:
        for segment in segments:
            for t, step in enumerate(segment):
                seen.add(
                    (
                        b"".join(segment[max(t - back, 0)][0].tobytes() for back in (2, 1, 0)),
                        float(step[2]),
                    )
                )
    drawn, rewards = player.buffer.sample_rewards(21, player.rng)
    for observations, reward in zip(drawn, rewards.tolist(), strict=True):
        assert (observations.tobytes(), reward) in seen
    kinds = {reward != 0 for _, reward in seen}
    nonzero = int((rewards != 0).sum())
    assert nonzero == (10 if len(kinds) == 2 else 21 if kinds == {True} else 0)


@given(players(), st.integers(1, 60))
def test_only_frames_of_kept_and_unfinished_episodes_are_kept(player, steps):
    player.step(steps)
    ongoing = [segment for pending in player.pending for segment in pending]
    kept = [segment for *_, segments in player.best for segment in segments]
    pieces = [
        piece for one in player.buffer._ongoing for piece in (one, *one.segments)
    ] + player.buffer._segments
    frames = {id(frame) for piece in pieces for frame in piece.frames}
    # one frame for each observation, and zeros
    assert len(frames) <= 1 + sum(1 + len(segment) for segment in kept + ongoing)
    shown = {
        step[key].tobytes() for segment in kept + ongoing for step in segment for key in (0, 3)
    }
    assert len(frames) >= len(shown)


def test_every_place_is_as_likely():
    player = Player(np.random.default_rng(0), 2, VECTOR)
    player.step(40)
    n_places = len(list(player.pieces(2)))  # no two begin alike
    batch = player.buffer.sample(100 * n_places, 2, player.rng)
    counts = np.unique(batch.observations[:, 0, 0], return_counts=True)[1]
    assert len(counts) == n_places
    assert 50 < counts.min() <= counts.max() < 150


@given(players(), st.integers(1, 40))
def test_going_on_from_a_checkpoint(player, steps):
    player.step(steps)
    state = copy_tree(player.buffer.get_checkpoint_state())
    fresh = EpisodeBuffer(player.space, player.buffer.capacity, player.n_stack)
    fresh.set_checkpoint_state(state)
    assert fresh.monitored
    fresh.start(player.current, keep_ongoing=True)
    player.buffer.start(player.current, keep_ongoing=True)
    actions, zeros = np.ones(player.n_envs), np.zeros(player.n_envs)
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
    first, second = np.array([[1, 1]], np.uint8), np.array([[2, 2]], np.uint8)
    for shown, keep in (
        (first, True),
        (second, True),
        (second, False),
    ):  # the second time it is where it was
        buffer.start(first)
        buffer.add([0], [1.0], [False], second, [{}])
        buffer.start(shown, keep_ongoing=keep)
        buffer.add([0], [1.0], [True], first, [{"terminal_observation": second[0]}])
    assert buffer.returns.tolist() == [1.0, 1.0, 2.0]


def test_what_a_monitor_does_not_see_end_has_the_sum_of_its_rewards_or_is_said():
    buffer, shown = EpisodeBuffer(spaces.Box(0, 255, (2,), np.uint8)), np.array([[1, 1]], np.uint8)
    buffer.start(shown)
    last = {"terminal_observation": shown[0]}
    for info in (
        last,
        last | {"TimeLimit.truncated": True},
        last | {"episode": {"r": 7.0}},
    ):  # a life, and a limit around it
        buffer.monitored = True
        buffer.add([0], [2.0], [True], shown, [info])
    assert buffer.returns.tolist() == [4.0, 7.0]
    for _ in range(99):
        buffer.add([0], [2.0], [True], shown, [last])
    with pytest.warns(
        UserWarning, match="environment 0 ended 100 times without a return of its Monitor"
    ):
        buffer.add([0], [2.0], [True], shown, [last])


def walk(buffer, n_steps, ends=(), first=0, reward=1.0, **info):
    """One environment counts its steps; after those in ``ends`` it begins anew. :return: its count"""
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
    return sorted(int(n) for n in buffer.returns)  # each step pays 1


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
    # the rest of an episode of which pieces were kept is none that is complete, whatever its Monitor says
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
def test_where_episodes_are_short_nothing_is_cut(player, steps):
    whole = EpisodeBuffer(player.space, player.buffer.capacity, player.n_stack, cut_after=None)
    whole.monitored = True
    whole.start(player.current)
    kept, add = player.buffer, whole.add
    original = kept.add

    def both(*transition):
        add(*transition)
        original(*transition)

    kept.add = both
    player.step(steps)
    if len(kept):
        draws = [one.sample(9, 4, np.random.default_rng(1)) for one in (kept, whole)]
        for left, right in zip(*draws, strict=True):
            np.testing.assert_array_equal(left, right)


def test_pieces_go_on_from_a_checkpoint():
    buffer, fresh = counting(cut_after=20), EpisodeBuffer(COUNT, cut_after=20)
    shown = walk(buffer, 50)
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


def test_bad_input_is_refused():
    with pytest.raises(
        ValueError, match="capacity must be a whole number of episodes, at least 1, got 0"
    ):
        EpisodeBuffer(IMAGE, capacity=0)
    with pytest.raises(ValueError, match="cut_after must be a whole number, at least 1, got 0"):
        EpisodeBuffer(IMAGE, cut_after=0)
    buffer = EpisodeBuffer(spaces.Box(0, 255, (4,), np.uint8), n_stack=4)
    begin, after = np.array([[0, 0, 0, 1]], np.uint8), np.array([[0, 0, 1, 2]], np.uint8)
    with pytest.raises(ValueError, match="before the first episode has ended"):
        buffer.sample(1, 1, np.random.default_rng())

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
    buffer.start(begin, keep_ongoing=True)
    buffer.add([0], [0], [0], other, [{}])  # the world was used since: another episode
    refused("does not begin with the newest frames", begin)
    buffer.start(begin)
    refused(
        "the return of an episode of environment 0 is nan",
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
