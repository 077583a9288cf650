"""
MinAtar for Stable-Baselines3: five small games (Young and Tian, 2019,
https://arxiv.org/abs/1903.03176). Needs the extra ``minatar``.

The games are MinAtar's own, with sticky actions and rising difficulty as published. Observations
are images that SB3 takes as they are: ``Box(0, 255, (channels, 10, 10), uint8)``, one channel for
each kind of object, 255 where one is.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from torch import nn

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.validation import check_count, check_game, check_number, check_seed
from sb3_manygoals.vec_env import GymnasiumVecEnv

try:
    from minatar import Environment
except ImportError as error:
    raise ImportError('MinAtar games need minatar: pip install "sb3-manygoals[minatar]"') from error

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
"""MinAtar's names of the games."""


class MinAtarVectorEnv(VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]):
    """
    N copies of a MinAtar game in one process, as a Gymnasium vector environment.

    It resets a game in the step in which it ends (``AutoresetMode.SAME_STEP``). The actions are
    MinAtar's minimal set. Exact checkpoints work.

    :param game: one of :data:`GAMES`, in any spelling: ``"SpaceInvaders"``, ``"space_invaders"``
    :param num_envs: number of copies, N
    :param max_episode_steps: steps after which a game is truncated; MinAtar itself has no limit
    :param sticky_action_prob: probability that a game repeats the previous action instead
    :raises ValueError: if there is no such game, or a number is out of range
    :ivar game: MinAtar's name of the game
    :ivar games: MinAtar's environments, N
    :ivar action_set: MinAtar's numbers of the actions
    :ivar steps: steps of each current game so far, (N,) int64
    """

    # Gymnasium declares the metadata as a plain class attribute too.
    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        game: str,
        num_envs: int = 1,
        max_episode_steps: int = 5_000,
        sticky_action_prob: float = 0.1,
    ) -> None:
        self.num_envs = check_count("num_envs", num_envs)
        self.max_episode_steps = check_count("max_episode_steps", max_episode_steps)
        check_number("sticky_action_prob", sticky_action_prob, at_least=0, at_most=1)
        self.game = check_game(game, GAMES)
        self.games = [Environment(self.game, sticky_action_prob) for _ in range(num_envs)]
        self.action_set = self.games[0].minimal_action_set()
        height, width, channels = self.games[0].state_shape()
        self._shape = (channels, height, width)
        self.single_observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        self.single_action_space = spaces.Discrete(len(self.action_set))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self._seed(None)

    def _seed(self, seed: int | None) -> None:
        sequences = np.random.SeedSequence(seed).spawn(self.num_envs)
        for game, sequence in zip(self.games, sequences, strict=True):
            game.seed(sequence.generate_state(4))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin new games.

        :param seed: seed of all games; None lets them continue with their random numbers
        :param options: not used, but ``"reset_mask"`` is refused, because games reset themselves
        :return: observations, (N, channels, 10, 10) uint8, and no infos
        :raises ValueError: if ``options`` has a ``"reset_mask"``
        """
        super().reset(seed=seed)
        if "reset_mask" in (options or {}):
            raise ValueError(
                "options must have no reset_mask: a game that ends is reset in the same step"
            )
        if seed is not None:
            self._seed(seed)
        self.steps[:] = 0
        return np.stack([_begin(game) for game in self.games]), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """
        Act in all games, and reset those that end.

        :param actions: actions of the games, (N,) integers below ``single_action_space.n``
        :return: observations, (N, channels, 10, 10) uint8; rewards, (N,) float64; terminated and
            truncated, (N,) bool; infos, with ``"final_obs"`` and its mask if a game ended
        :raises ValueError: if there is no such action, or the shape is wrong. Then no game has
            moved
        """
        chosen = np.asarray(actions)
        n_actions = len(self.action_set)
        if (
            chosen.shape != (self.num_envs,)
            or chosen.dtype.kind not in "iu"
            or not (chosen.min() >= 0 and chosen.max() < n_actions)
        ):
            raise ValueError(
                f"actions must be {self.num_envs} numbers in [0, {n_actions}), got {actions!r}"
            )
        obs: NDArray[np.uint8] = np.empty((self.num_envs, *self._shape), dtype=np.uint8)
        rewards = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, dtype=np.bool_)
        for row, (game, action) in enumerate(zip(self.games, chosen.tolist(), strict=True)):
            rewards[row], terminated[row] = game.act(self.action_set[action])
            np.multiply(game.state().transpose(2, 0, 1), 255, out=obs[row], casting="unsafe")
        self.steps += 1
        truncated = (self.steps >= self.max_episode_steps) & ~terminated
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if ended.any():
            infos = {
                "final_obs": np.where(ended[:, None, None, None], obs, np.uint8(0)),
                "_final_obs": ended,
            }
            for row in np.flatnonzero(ended).tolist():
                obs[row] = _begin(self.games[row])
            self.steps[ended] = 0
        return obs, rewards, terminated, truncated, infos

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the states of the games, random numbers included.

        :return: a copy for :meth:`set_checkpoint_state`
        """
        games = []
        for game in self.games:
            variables = {
                name: value
                for name, value in vars(game.env).items()
                if name not in ("random", "channels", "action_map")
            }
            games.append(
                {
                    "random": game.random.get_state(),
                    "last_action": game.last_action,
                    "variables": deepcopy(variables),
                }
            )
        return {"game": self.game, "steps": self.steps.copy(), "games": games}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Continue from a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the state is of another game, or another number of them
        """
        check_same(
            "games",
            {**state, "number": len(state["games"])},
            {"game": self.game, "number": self.num_envs},
        )
        self.steps = state["steps"].copy()
        for game, saved in zip(self.games, state["games"], strict=True):
            game.random.set_state(saved["random"])
            game.last_action = saved["last_action"]
            vars(game.env).update(deepcopy(saved["variables"]))


def _begin(game: Environment) -> NDArray[np.uint8]:
    """Begin a new game and return its first observation."""
    game.reset()
    # MinAtar keeps the last action, so a sticky action would repeat it in the next game.
    game.last_action = 0
    return np.asarray(game.state().transpose(2, 0, 1) * np.uint8(255))


class MinAtarCNN(BaseFeaturesExtractor):
    """
    MinAtar's own network: a convolution of 16 filters of 3 x 3 and a layer of 128, with ReLU.

    :param observation_space: space of the images, channels first
    :param features_dim: width of the last layer
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 128) -> None:
        super().__init__(observation_space, features_dim)
        channels, height, width = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (height - 2) * (width - 2), features_dim),
            nn.ReLU(),
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        Return the features of images.

        :param observations: images, (B, channels, height, width) float32 in [0, 1]
        :return: features, (B, features_dim) float32
        """
        return self.layers(observations)  # type: ignore[no-any-return]


def make_minatar_vec_env(
    game: str, n_envs: int = 16, seed: int | None = None, **kwargs: Any
) -> VecEnv:
    """
    Make games for SB3's algorithms.

    The score and length of each game are in ``infos[i]["episode"]``.

    :param game: one of :data:`GAMES`, in any spelling
    :param n_envs: number of copies, N
    :param seed: seed of all copies; None draws a random one
    :param kwargs: further arguments of :class:`MinAtarVectorEnv`
    :return: the environment, with observations (N, channels, 10, 10) uint8
    :raises ValueError: if there is no such game, or an argument is out of range
    """
    check_count("n_envs", n_envs)
    seed = check_seed(seed)
    env = GymnasiumVecEnv(MinAtarVectorEnv(game, n_envs, **kwargs))
    if seed is not None:
        env.seed(seed)
    return VecMonitor(env)
