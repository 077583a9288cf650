"""
Atari games for Stable-Baselines3, by ale-py's native vector environment. Needs the extra ``atari``.

Learners see what SB3's ``make_atari_env`` with ``VecFrameStack(4)`` and ``VecTransposeImage``
shows: every 4th frame, the maximum of the last two, 84 x 84 grey levels, in stacks of 4 that begin
with zeros; an episode for each life; the signs of rewards; and the score and length of each game in
``infos[i]["episode"]``, as a Monitor gives them. With the same beginning and actions, all of these
are equal to SB3's but for one difference in the pictures (``test_atari.py`` plays games of both).

Differences from SB3's:

- **Grey** is computed before the maximum of two frames, not of the maximum of red, green and blue.
  This shows where colours change between frames: in random play of Pong in less than 1 of 200
  pixels, by up to 16 of 255; in Breakout nowhere.
- **A lost life** ends the learner's episode and nothing else: play continues from the last frame,
  and the learner must learn to serve the ball of Breakout. SB3's wrappers serve it, by 4 frames
  each of no-op, FIRE and the action after it.
- **A game begins** with 0 to 29 frames of no-op. If the game has the action FIRE, the first of them
  (at least 1) is FIRE. SB3's begins with 1 to 30 frames of no-op, then plays FIRE and the action
  after it for 4 frames each.
- **The last picture** of a game that ends between two shown frames is the one before; SB3's may be
  up to a frame later.
- **The time limit** of 108,000 frames does not count the frames with which a game begins; SB3's
  counts them.
- **Infos** of each step are ``lives``, 0 when a game is over, and ``TimeLimit.truncated``; numbers
  of frames are left out. ``life_lost`` marks an episode that ends by a lost life. For goals it is
  truncated and not terminated, because play continues.

Sticky actions are off by default, as in SB3; the paper does not mention them. Machado et al. (2018)
recommend ``repeat_action_probability=0.25``, each frame's chance that the emulator repeats the last
action.
"""

import time
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_manygoals.validation import check_count, check_game, check_number, check_seed
from sb3_manygoals.vec_env import GymnasiumVecEnv

try:
    import ale_py

    from sb3_manygoals.atari_replay import STACK, ReplayableAtari
except ImportError as error:
    raise ImportError('Atari games need ale-py: pip install "sb3-manygoals[atari]"') from error


OWN_SETTINGS = {
    *("num_envs", "batch_size", "continuous", "episodic_life", "life_loss_info", "grayscale"),
    *("img_height", "img_width", "stack_num", "frameskip", "reward_clipping", "autoreset_mode"),
}
"""Arguments of ale-py's AtariVectorEnv that :class:`AtariVecEnv` gives itself."""


class AtariVecEnv(GymnasiumVecEnv):
    """
    N copies of an Atari game, stepped by threads of ale-py without the interpreter.

    Observations are four frames, the latest last, ``Box(0, 255, (4, 84, 84), uint8)``, which SB3's
    CnnPolicy takes as they are. See :mod:`sb3_manygoals.atari` for the differences from SB3's
    games.

    A learner's episode is one life. A game is over where ``"episode" in infos[i]``. Then ``"r"`` is
    its score by unclipped rewards, and ``"l"`` its length in emulated frames, including the frames
    before the first observation. SB3's ``evaluate_policy`` uses these entries, so it counts games
    and not lives. Exact checkpoints work if actions are not sticky.

    :param game: name of the game, such as ``"MsPacman"`` or ``"ms_pacman"``
    :param n_envs: number of copies, N
    :param seed: seed of the first copy; the others count up from it; None draws a random one.
        ale-py takes 31 bits, so the same games follow from two seeds that differ by 2^31
    :param clip_reward: whether the learner sees the signs of rewards
    :param terminal_on_life_loss: whether a lost life ends the learner's episode
    :param settings: further arguments of ale-py's AtariVectorEnv with its defaults:
        ``repeat_action_probability``, ``noop_max``, ``use_fire_reset``,
        ``max_num_frames_per_episode``, ``num_threads`` and so on
    :raises ValueError: if there is no such game, N is not positive, the seed is no whole number in
        [0, 2^32), ``repeat_action_probability`` is not in [0, 1], or this class gives one of the
        settings itself
    :ivar game: ale-py's name of the game
    """

    vector_env: ReplayableAtari
    n_stack = STACK
    """Number of frames in an observation."""

    def __init__(
        self,
        game: str,
        n_envs: int = 16,
        seed: int | None = None,
        *,
        clip_reward: bool = True,
        terminal_on_life_loss: bool = True,
        **settings: Any,
    ) -> None:
        check_count("n_envs", n_envs)
        seed = check_seed(seed)
        refused = OWN_SETTINGS & settings.keys()
        if refused:
            raise ValueError(
                f"settings must leave out {sorted(refused)}, which this class gives itself"
            )
        # ale-py takes any number. Actions stick as if it were 0 or 1.
        name = "repeat_action_probability"
        if name in settings:
            check_number(name, settings[name], at_least=0, at_most=1)
        self.game = rom_id(game)
        super().__init__(
            ReplayableAtari(self.game, n_envs, life_loss_info=terminal_on_life_loss, **settings)
        )
        self.clip_reward = clip_reward
        self._scores = np.zeros(n_envs, dtype=np.int64)
        # How many frames of each stack belong to the learner's episode.
        self._frames_of_episode = np.ones(n_envs, dtype=np.int64)
        self._began = time.time()
        if seed is not None:
            self.seed(seed)

    def reset(self) -> VecEnvObs:
        """
        Begin new games.

        :return: the first observations, (N, 4, 84, 84) uint8
        """
        observations = super().reset()
        # Only now, because options may have been refused.
        self._scores[:] = 0
        self._frames_of_episode[:] = 1
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        """
        Act in all games. The class describes the infos.

        :return: observations (N, 4, 84, 84) uint8, rewards (N,) float32, dones (N,) bool, N infos
        """
        obs, rewards, terminated, truncated, native = self.vector_env.step(self._actions)
        over = native["game_over"]
        dones = np.logical_or(terminated, truncated)
        self._scores += rewards
        self._frames_of_episode = np.minimum(self._frames_of_episode + 1, STACK)
        # The stack shows nothing of an earlier life, as in SB3's.
        for row in np.flatnonzero(self._frames_of_episode < STACK).tolist():
            earlier = STACK - self._frames_of_episode[row]
            (native["final_obs"] if over[row] else obs)[row, :earlier] = 0
        lives = np.where(over, 0, native["lives"]).tolist()
        only_truncated = np.logical_and(truncated, np.logical_not(terminated)).tolist()
        infos: list[Any] = [
            {"lives": lives_left, "TimeLimit.truncated": cut}
            for lives_left, cut in zip(lives, only_truncated, strict=True)
        ]
        for row in np.flatnonzero(dones).tolist():
            info = infos[row]
            self._frames_of_episode[row] = 1
            self.reset_infos[row] = {"lives": int(native["lives"][row])}
            if over[row]:
                info["terminal_observation"] = native["final_obs"][row].copy()
                info["episode"] = {
                    "r": float(self._scores[row]),
                    "l": int(native["game_frames"][row]),
                    "t": round(time.time() - self._began, 6),
                }
                self._scores[row] = 0
            else:
                info["life_lost"] = True
                info["terminal_observation"] = obs[row].copy()
                obs[row, :-1] = 0
        if self.clip_reward:
            rewards = np.sign(rewards)
        return obs, np.asarray(rewards, dtype=np.float32), dones, infos

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """
        Return whether games are wrapped in a class.

        :param wrapper_class: the class of the wrapper
        :param indices: number of a game, or several numbers; None for all
        :return: for each of these games True for Monitor, because infos have its entries, else
            False
        :raises IndexError: if there is no such game
        """
        return [wrapper_class is Monitor for _ in super().env_is_wrapped(wrapper_class, indices)]

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return scores and times so far. The games themselves are in the state of ``vector_env``.

        :return: a tree of plain data and arrays for :meth:`set_checkpoint_state`
        """
        state = {
            "scores": self._scores,
            "frames_of_episode": self._frames_of_episode,
            "seconds": time.time() - self._began,
            "reset_infos": self.reset_infos,
            "seeds": self._seeds,
        }
        return deepcopy(state)

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Continue from a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        state = deepcopy(state)
        self._scores = state["scores"]
        self._frames_of_episode = state["frames_of_episode"]
        self._began = time.time() - state["seconds"]
        self.reset_infos = state["reset_infos"]
        self._seeds = state["seeds"]


def rom_id(game: str) -> str:
    """
    Return ale-py's name of a game.

    :param game: the game in any spelling: ``"MsPacman"``, ``"ms_pacman"`` or ``"ms pacman"``
    :return: ale-py's name, such as ``"ms_pacman"``
    :raises ValueError: if there is no such game; the message has the names that are near
    """
    return check_game(game, ale_py.roms.get_all_rom_ids())
