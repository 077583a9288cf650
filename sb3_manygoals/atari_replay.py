"""ale-py's vector environment, which can be saved and restored: it plays its games again."""

import hashlib
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import CheckpointError

STACK = 4
"""Frames of an observation."""


class ReplayableAtari(AtariVectorEnv):
    """
    Atari games in ``SAME_STEP`` mode that say when a game is over; ``terminated`` counts lost lives too.

    Emulators give no state away. But a game follows from its seed, the number of games before it (each draws a number of
    no-ops) and its actions so far. A checkpoint holds these, and restoring it plays the games again: some milliseconds for
    each one since the seed was set, and the steps of the longest current one.

    The infos of a step have two more entries of shape (N,): ``game_over`` bool, where ``final_obs`` has a row, and
    ``game_frames`` int64, the frames that the game took then, with those before the first observation.

    :param rom: ale-py's name of the game
    :param n_envs: N
    :param settings: of :class:`~ale_py.vector_env.AtariVectorEnv`
    """

    def __init__(self, rom: str, n_envs: int, **settings: Any) -> None:
        super().__init__(
            rom,
            n_envs,
            img_height=84,
            img_width=84,
            stack_num=STACK,
            frameskip=4,
            reward_clipping=False,  # ale-py's loses the score
            autoreset_mode=AutoresetMode.SAME_STEP,
            **settings,
        )
        self._sticky = settings.get("repeat_action_probability", 0.0) > 0.0
        self._n_actions = len(self.ale.get_action_set())
        self._seeds: NDArray[np.int64] | None = None
        self._resets = np.zeros(n_envs, dtype=np.int64)  # of each game since its seed was set
        self._actions = [bytearray() for _ in range(n_envs)]  # of each game since it began
        self._first_frames = np.zeros(
            n_envs, dtype=np.int64
        )  # numbers of the frames with which the games began
        self._latest: NDArray[np.uint8] | None = (
            None  # frames, (N, 84, 84): what a replay must come to
        )

    def reset(  # type: ignore[override]  # ale-py's has a type variable that nothing binds
        self, *, seed: int | NDArray[np.int64] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        :param seed: of the first, which the others count up from, or of each, (N,); None: go on drawing no-ops as before
        :return: the first observations of new games, (N, 4, 84, 84) uint8, and infos
        :raises ValueError: if there are options
        """
        if options:
            raise ValueError(f"Atari games have no options, got {options}")
        if seed is None and self._seeds is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._resets += 1
        if seed is not None:
            seed = seed if isinstance(seed, np.ndarray) else seed + np.arange(self.num_envs)
            self._seeds = seed = (
                seed % 2**31
            )  # the limit of ale-py, to which negative ones mean none
            self._resets[:] = 0
        obs, infos = super().reset(seed=seed)
        self._actions = [bytearray() for _ in range(self.num_envs)]
        self._first_frames = _first_frames(infos)
        self._latest = obs[:, -1]
        return obs, {"lives": infos["lives"]}

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """
        :param actions: shape (N,), integers
        :return: observations (N, 4, 84, 84) uint8, rewards (N,) int32, terminated (N,) bool, truncated (N,) bool, infos
        :raises ValueError: if there is no such action, for which ale-py would wait for ever
        """
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be {self.num_envs} integers, got {actions.dtype} of shape {actions.shape}"
            )
        if actions.min() < 0 or actions.max() >= self._n_actions:
            raise ValueError(
                f"actions must be from 0 to {self._n_actions - 1}, got {actions.tolist()}"
            )
        obs, rewards, terminated, truncated, infos = super().step(actions.astype(np.int64))
        for played, action in zip(self._actions, actions.tolist(), strict=True):
            played.append(action)
        # the number of a game's first frame changes when the game is reset, and only then
        first_frames = _first_frames(infos)
        infos["game_frames"] = first_frames - self._first_frames
        infos["game_over"] = over = infos["game_frames"] != 0
        self._first_frames = first_frames
        self._resets += over
        for row in np.flatnonzero(over).tolist():
            self._actions[row] = bytearray()
        self._latest = obs[:, -1]
        return obs, rewards, terminated, truncated, infos

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:raises CheckpointError: if actions are sticky, as chance in them depends on all that was played before"""
        if self._sticky:
            raise CheckpointError(
                "games with sticky actions cannot be saved: make them with repeat_action_probability=0"
            )
        if self._seeds is None or self._latest is None:
            return {"seeds": None}
        actions = [np.frombuffer(bytes(played), dtype=np.uint8) for played in self._actions]
        return {
            "seeds": self._seeds,
            "resets": self._resets,
            "actions": actions,
            "latest": _digest(self._latest),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:raises CheckpointError: if the games are played again and come to other frames, as of another game or ale-py"""
        if state["seeds"] is None:
            return
        actions = [np.asarray(played, dtype=np.int64) for played in state["actions"]]
        lengths = np.array([len(played) for played in actions])
        self.reset(seed=state["seeds"])
        longest = lengths.max()
        # Games are stepped together: the shorter ones begin later, and what they do until then does not count.
        for step in range(longest + 1):
            begin = lengths == longest - step
            if begin.any():
                obs = self._begin(begin, state["seeds"], state["resets"])
            if step < longest:
                now = [
                    played[step - longest] if len(played) >= longest - step else 0
                    for played in actions
                ]
                obs = self.step(np.array(now))[0]
        self._resets = state["resets"].copy()
        if _digest(obs[:, -1]) != state["latest"]:
            raise CheckpointError(
                "the games were played again and came to other frames: is it the same game, and ale-py?"
            )

    def _begin(
        self, rows: NDArray[np.bool_], seeds: NDArray[np.int64], resets: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Bring some games to where their latest one began. :return: the observations of all"""
        obs: NDArray[np.uint8]
        obs, infos = super().reset(seed=seeds[rows], options={"reset_mask": rows})
        for done in range(resets[rows].max()):
            obs, infos = super().reset(options={"reset_mask": rows & (resets > done)})
        self._first_frames = _first_frames(infos)
        self._latest = obs[:, -1]
        for row in np.flatnonzero(rows).tolist():
            self._actions[row] = bytearray()
        return obs


def _first_frames(infos: dict[str, Any]) -> NDArray[np.int64]:
    return np.asarray(infos["frame_number"].astype(np.int64) - infos["episode_frame_number"])


def _digest(frames: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(frames.tobytes(), digest_size=16).digest()
