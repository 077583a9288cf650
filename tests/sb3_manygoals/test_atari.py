"""AtariVecEnv against SB3's games, under SB3's learners, saved and restored."""

import copy
import importlib
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage, is_vecenv_wrapped

pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")
# ruff: noqa: E402 - what follows needs both

from sb3_manygoals import AuxiliaryActorCriticPolicy, ManyGoalsCallback
from sb3_manygoals.atari import OWN_SETTINGS, AtariVecEnv, rom_id
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.goals import VecGoalBufferWrapper
from tests.sb3_manygoals.checkpoint.trees import assert_same

# The first actions of Breakout, Pong and Assault. SB3's FireResetEnv plays the last two.
NOOP = 0
FIRE = 1
NEXT = 2


class GreyFirst(gym.ObservationWrapper):
    """Makes frames grey before SB3 takes the maximum of two, as ale-py does."""

    def observation(self, frame):
        return np.repeat(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)


def theirs_of(game, grey_first):
    """One game as SB3 makes it, without random no-ops."""

    def make():
        env = gym.make(f"{game}NoFrameskip-v4")
        return GreyFirst(env) if grey_first else env

    return VecTransposeImage(
        VecFrameStack(make_atari_env(make, 1, 0, wrapper_kwargs={"noop_max": 0}), 4)
    )


class OursAsTheirs:
    """
    One game of ours, whose episodes begin with the actions that SB3's FireResetEnv and
    EpisodicLifeEnv play.

    :ivar stack: the latest four frames
    """

    def __init__(self, game):
        self.env = AtariVecEnv(game, 1, seed=0, noop_max=0, use_fire_reset=False)
        assert self.env.reset().shape == (1, 4, 84, 84)
        self._begin(FIRE, NEXT)

    def _begin(self, *actions):
        for action in actions:
            obs, _, dones, _ = self.env.step(np.array([action]))
            assert not dones[0]
        self.stack = np.zeros((4, 84, 84), np.uint8)
        self.stack[-1] = obs[0, -1]

    def step(self, action):
        before = self.stack
        obs, rewards, dones, infos = self.env.step(np.array([action]))
        if dones[0]:
            last = infos[0]["terminal_observation"]
            np.testing.assert_array_equal(last[:-1], before[1:])
            assert not obs[0, :-1].any()
            if "episode" in infos[0]:
                self._begin(FIRE, NEXT)
            else:
                np.testing.assert_array_equal(obs[0, -1], last[-1])
                self._begin(NOOP, FIRE, NEXT)
        else:
            self.stack = np.concatenate([before[1:], obs[0, -1:]])
        return self.stack, rewards, dones, infos[0]


@pytest.mark.parametrize(
    ("game", "grey_first", "steps", "lives", "games"),
    [("Breakout", False, 500, 5, 2), ("Pong", True, 900, 0, 1)],
)
def test_equal_to_sb3s_but_for_what_the_module_lists(game, grey_first, steps, lives, games):
    theirs = theirs_of(game, grey_first)
    ours = OursAsTheirs(game)
    assert ours.env.observation_space == theirs.observation_space
    assert ours.env.action_space == theirs.action_space
    stack = ours.stack
    their_stack = theirs.reset()[0]
    rng = np.random.default_rng(1)
    differences = []
    lost = 0
    over = 0
    rewarded = 0
    for _ in range(steps):
        differences.append(np.abs(stack[-1].astype(int) - their_stack[-1]))
        np.testing.assert_array_equal(stack.any(axis=(1, 2)), their_stack.any(axis=(1, 2)))
        action = rng.integers(theirs.action_space.n)
        (their_stack,), their_rewards, their_dones, (their_info,) = theirs.step(np.array([action]))
        stack, rewards, dones, info = ours.step(action)
        np.testing.assert_array_equal(rewards, their_rewards, strict=True)
        np.testing.assert_array_equal(dones, their_dones, strict=True)
        for key in ("lives", "TimeLimit.truncated"):
            assert info[key] == their_info[key]
        assert ("episode" in info) == ("episode" in their_info)
        rewarded += rewards[0] != 0
        if "episode" in info:
            over += 1
            for key in ("r", "l"):
                assert info["episode"][key] == their_info["episode"][key]
        elif dones[0]:
            lost += 1
            last = info["terminal_observation"][-1].astype(int)
            differences.append(np.abs(last - their_info["terminal_observation"][-1]))
    assert np.max(differences) == 0
    assert rewarded > 3
    assert over >= games
    assert (lost >= 4) == (lives > 0)


def test_each_copy_is_stacked_scored_and_counted_by_itself():
    """Compare with loops that make stacks, scores and lengths from frames and raw rewards."""
    n = 3
    env, raw = (AtariVecEnv("assault", n, seed=7, clip_reward=clip) for clip in (True, False))
    first = env.reset()
    np.testing.assert_array_equal(first, raw.reset())
    # The numbers of no-ops differ.
    frames = env.step(np.zeros(n, int))[0][:, -1]
    assert len({frame.tobytes() for frame in frames}) > 1
    # The seed is used once.
    obs = env.reset()
    np.testing.assert_array_equal(obs, raw.reset())
    assert not np.array_equal(obs, first)
    stacks = [[frame] for frame in obs[:, -1]]
    scores = np.zeros(n)
    steps = np.zeros(n, int)
    games = 0
    lives_lost = 0
    rng = np.random.default_rng(0)
    for _ in range(700):
        actions = rng.integers(env.action_space.n, size=n)
        obs, rewards, dones, infos = env.step(actions)
        same_obs, raw_rewards, same_dones, raw_infos = raw.step(actions)
        np.testing.assert_array_equal(obs, same_obs)
        np.testing.assert_array_equal(dones, same_dones)
        np.testing.assert_array_equal(rewards, np.sign(raw_rewards))
        assert obs.flags.c_contiguous
        assert obs.flags.writeable
        scores += raw_rewards
        steps += 1
        for row, info in enumerate(infos):
            assert info["TimeLimit.truncated"] is False
            assert ("terminal_observation" in info) == dones[row]
            last = info["terminal_observation"] if dones[row] else obs[row]
            stacks[row].append(last[-1])
            expected = [np.zeros((84, 84), np.uint8)] * 3 + stacks[row]
            np.testing.assert_array_equal(last, expected[-4:])
            if dones[row]:
                stacks[row] = [obs[row, -1]]
                np.testing.assert_array_equal(obs[row, :-1], 0)
            if "episode" in info:
                games += 1
                assert info["episode"]["r"] == raw_infos[row]["episode"]["r"] == scores[row] > 0
                # The last step takes 1 to 4 frames, and up to 29 come before the first
                # observation.
                assert 4 * steps[row] - 3 <= info["episode"]["l"] <= 4 * steps[row] + 29
                assert info["lives"] == 0
                assert env.reset_infos[row] == {"lives": 4}
                scores[row] = 0
                steps[row] = 0
            elif dones[row]:
                lives_lost += 1
                assert 0 < info["lives"] < 4
                np.testing.assert_array_equal(obs[row, -1], last[-1])
    assert games >= 2
    assert lives_lost >= 3 * games


def test_a_game_is_stopped_after_its_frames_and_lives_need_not_end_anything():
    env = AtariVecEnv(
        "breakout",
        2,
        seed=0,
        max_num_frames_per_episode=200,
        terminal_on_life_loss=False,
        noop_max=0,
    )
    env.reset()
    lives = []
    for step in range(1, 101):
        obs, _, dones, infos = env.step(np.array([FIRE, NOOP]))
        lives.append(infos[0]["lives"])
        assert dones.tolist() == [step % 50 == 0] * 2
        assert [info["TimeLimit.truncated"] for info in infos] == dones.tolist()
        assert ["episode" in info for info in infos] == dones.tolist()
        if dones[0]:
            # One frame of FIRE comes before the first observation.
            assert [info["episode"]["l"] for info in infos] == [201, 201]
            assert all(info["terminal_observation"].any(axis=(1, 2)).all() for info in infos)
            np.testing.assert_array_equal(obs[:, :-1], 0)
    assert min(lives[:49]) < 5


def test_a_lost_life_ends_no_goal():
    """
    After a lost life play continues, so goals can still be reached, and values are bootstrapped.

    Once the game is over, no goal can be reached any more.
    """
    env = VecGoalBufferWrapper(AtariVecEnv("Breakout", 1, seed=0), max_episode_steps=1000)
    env.reset()
    lost = 0
    over = False
    before = None
    while not over:
        obs, _, dones, (info,) = env.step(np.array([FIRE]))
        over = info["env_terminated"]
        if over:
            assert dones[0]
            assert "env_episode" in info
            assert info["TimeLimit.truncated"] is False
        elif dones[0] and info.get("life_lost"):
            lost += 1
            # The episode is truncated there. Its last step leads to what was seen, and not to the
            # beginning of the next episode.
            assert info["TimeLimit.truncated"] is True
            last = info["terminal_observation"]["observation"]
            np.testing.assert_array_equal(last[:-1], before[1:])
        before = obs["observation"][0]
    assert lost == 4


def test_learners_take_the_stacks_as_they_are_and_evaluation_counts_games():
    env = AtariVecEnv("Breakout", 2, seed=3)
    model = A2C("CnnPolicy", env, seed=3, device="cpu").learn(30)
    assert not is_vecenv_wrapped(model.env, VecTransposeImage)
    assert env.env_is_wrapped(Monitor) == [True, True]
    lengths = evaluate_policy(
        model, env, n_eval_episodes=2, deterministic=False, return_episode_rewards=True
    )[1]
    # These are frames of five lives, not steps of one.
    assert min(lengths) > 4 * 5 * 10
    callback = ManyGoalsCallback()
    A2C(AuxiliaryActorCriticPolicy, env, seed=3, device="cpu").learn(30, callback)
    # Each frame is kept once.
    assert callback.episodes.frames.n_stack == 4


def played(*arguments, actions=(1,), **kwargs):
    env = AtariVecEnv(*arguments, **kwargs)
    env.reset()
    return [env.step(np.full(env.num_envs, actions[step % len(actions)]))[0] for step in range(60)]


def test_seeds_and_sticky_actions():
    # Once it is served, the ball tells how many no-ops there were.
    np.testing.assert_array_equal(played("breakout", 1, 4), played("breakout", 1, 2**31 + 4))
    # Without a seed, games are alike by chance only: nearly always the second one differs.
    first = played("breakout", 1)[19]
    assert not all(np.array_equal(played("breakout", 1)[19], first) for _ in range(9))
    # The seeds of copies count up.
    many = AtariVecEnv("pong", 3, seed=1)
    few = AtariVecEnv("pong", 2, seed=2)
    np.testing.assert_array_equal(many.reset()[1:], few.reset())
    for probability in (0.0, 0.5):
        kwargs = {"actions": (2, 3), "noop_max": 0, "repeat_action_probability": probability}
        frames = [played("pong", 1, seed, **kwargs)[-1] for seed in (1, 2)]
        assert np.array_equal(*frames) == (probability == 0.0)


@pytest.mark.parametrize("steps", [0, 200])
def test_games_go_on_where_they_were_saved(steps):
    rng = np.random.default_rng(0)
    env = AtariVecEnv("breakout", 3, seed=5)
    untouched = get_env_state(env)
    env.reset()
    for _ in range(steps):
        env.step(rng.integers(4, size=3))
    state = get_env_state(env)
    other = AtariVecEnv("breakout", 3)
    other.reset()
    for _ in range(20):
        other.step(rng.integers(4, size=3))
    set_env_state(other, state)
    games = 0
    for _ in range(150):
        actions = rng.integers(4, size=3)
        outcome = env.step(actions)
        assert_same(other.step(actions), outcome)
        games += sum("episode" in info for info in outcome[3])
        assert env.reset_infos == other.reset_infos
    assert games >= 2
    assert_same(other.vector_env.get_checkpoint_state(), env.vector_env.get_checkpoint_state())
    np.testing.assert_array_equal(env.reset(), other.reset())
    set_env_state(other, untouched)
    np.testing.assert_array_equal(AtariVecEnv("breakout", 3, seed=5).reset(), other.reset())


def test_what_cannot_be_saved_or_restored():
    env = AtariVecEnv("pong", 2, seed=0, noop_max=0)
    env.reset()
    for _ in range(60):
        env.step(np.array([2, 3]))
    state = get_env_state(env)
    with pytest.raises(CheckpointError, match="came to other frames"):
        set_env_state(AtariVecEnv("breakout", 2, noop_max=0), state)
    with pytest.raises(CheckpointError, match="built otherwise"):
        set_env_state(AtariVecEnv("pong", 3), state)
    sticky = AtariVecEnv("pong", 2, repeat_action_probability=0.25)
    sticky.reset()
    with pytest.raises(CheckpointError, match="sticky"):
        get_env_state(sticky)


def test_a_saved_state_stays_as_it_was():
    env = AtariVecEnv("pong", 1, seed=0, noop_max=0)
    env.reset()
    state = env.get_checkpoint_state()
    untouched = copy.deepcopy(state)
    for _ in range(100):
        env.step(np.array([0]))
    assert env.get_checkpoint_state()["scores"].any()
    assert_same(state, untouched)
    env.set_checkpoint_state(state)
    for _ in range(100):
        env.step(np.array([0]))
    assert_same(state, untouched)


def test_users_may_write_into_what_they_are_shown():
    """As a wrapper does that hides the score."""
    env = AtariVecEnv("pong", 1, seed=0, noop_max=0)
    env.reset()[:] = 0
    for _ in range(5):
        env.step(np.array([0]))[0][:] = 0
    set_env_state(AtariVecEnv("pong", 1, noop_max=0), get_env_state(env))


def test_other_vector_environments_keep_what_they_say_of_themselves():
    ours = AtariVecEnv("pong", 1)
    assert ours.vector_env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert "autoreset_mode" not in VectorEnv.metadata


def test_bad_input_is_refused():
    env = AtariVecEnv("breakout", 2)
    env.reset()
    for actions, message in (
        (np.array([0, 4]), r"from 0 to 3, got \[0, 4\]"),
        (np.array([0]), r"one action for each of 2 environments, got array\(\[0\]\)"),
        (np.array([0.0, 1.0]), "2 integers, got float64"),
    ):
        with pytest.raises(ValueError, match=message):
            env.step(actions)
    env.step(np.array([0, 3], dtype=np.int32))
    env.set_options({"difficulty": 1})
    env._scores[:] = 7
    with pytest.raises(ValueError, match=r"no options, got {'difficulty': 1}"):
        env.reset()
    # The games go on.
    assert env.get_checkpoint_state()["scores"].tolist() == [7, 7]
    env.reset()
    assert [rom_id(name) for name in ("MsPacman", "ms_pacman", "MS PACMAN")] == ["ms_pacman"] * 3
    for arguments, message in (
        ({"game": "Asault"}, r"no game 'Asault'; did you mean assault"),
        ({"game": "chess3000"}, r"no game 'chess3000'$"),
        (
            {"grayscale": False, "num_threads": 1},
            r"settings must leave out \['grayscale'\], which this class gives",
        ),
        ({"n_envs": 0}, "n_envs must be a whole number, at least 1, got 0"),
        (
            {"repeat_action_probability": 2.0},
            r"repeat_action_probability must be a number in \[0, 1\], got 2.0",
        ),
        ({"seed": -1}, "seed must be a whole number, at least 0, got -1"),
        ({"seed": 2**32}, "seed must be below 2\\*\\*32, got 4294967296"),
    ):
        with pytest.raises(ValueError, match=message):
            AtariVecEnv(**{"game": "pong", **arguments})
    for name in OWN_SETTINGS:
        with pytest.raises(ValueError, match=rf"settings must leave out \['{name}'\]"):
            AtariVecEnv("pong", **{name: 1})


def test_without_ale_py_it_says_what_to_install(monkeypatch):
    for name in ("ale_py", "sb3_manygoals.atari", "sb3_manygoals.atari_replay"):
        monkeypatch.setitem(sys.modules, name, None if name == "ale_py" else sys.modules[name])
    del sys.modules["sb3_manygoals.atari"], sys.modules["sb3_manygoals.atari_replay"]
    with pytest.raises(
        ImportError, match=r'Atari games need ale-py: pip install "sb3-manygoals\[atari\]"'
    ):
        importlib.import_module("sb3_manygoals.atari")
