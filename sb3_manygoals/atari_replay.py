"""ale-py's vector environment made restorable: it plays its games again."""

import hashlib
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import CheckpointError

STACK = 4
"""Number of frames in an observation."""


class ReplayableAtari(AtariVectorEnv):
    """
    Atari games in ``SAME_STEP`` mode that say when a game is over; ``terminated`` counts lost lives
    too.

    The vector environment does not give the emulators' states. But a game follows from its seed,
    from the number of games before it (each draws a number of no-ops) and from its actions so far.
    A checkpoint holds these. Restoring it plays the games again: this takes some milliseconds for
    each game since the seed was set, and the steps of the longest current game.

    The infos of a step have two more entries of shape (N,). ``game_over``, bool, says where
    ``final_obs`` has a row. ``game_frames``, int64, is the number of frames that the game took,
    including the frames before the first observation; it is 0 where the game is not over.

    :param rom: ale-py's name of the game
    :param n_envs: number of copies, N
    :param settings: further arguments of :class:`~ale_py.vector_env.AtariVectorEnv`
    """

    def __init__(self, rom: str, n_envs: int, **settings: Any) -> None:
        super().__init__(
            rom,
            n_envs,
            img_height=84,
            img_width=84,
            stack_num=STACK,
            frameskip=4,
            # If ale-py clips rewards, the score is lost.
            reward_clipping=False,
            autoreset_mode=AutoresetMode.SAME_STEP,
            **settings,
        )
        self._sticky = settings.get("repeat_action_probability", 0.0) > 0.0
        self._n_actions = len(self.ale.get_action_set())
        self._seeds: NDArray[np.int64] | None = None
        # The number of resets of each game since its seed was set.
        self._resets = np.zeros(n_envs, dtype=np.int64)
        # The actions of each game since it began.
        self._actions = [bytearray() for _ in range(n_envs)]
        # The emulator's number of the frame with which each game began.
        self._first_frames = np.zeros(n_envs, dtype=np.int64)
        # The latest frames, (N, 84, 84), which a replay must reach.
        self._latest: NDArray[np.uint8] | None = None

    # ale-py annotates reset with a type variable that nothing binds.
    def reset(  # type: ignore[override]
        self, *, seed: int | NDArray[np.int64] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin new games.

        :param seed: seed of the first game, from which the others count up, or the seeds of all,
            (N,); None continues the random numbers of no-ops
        :param options: None or an empty dict, because the games have no options
        :return: the first observations, (N, 4, 84, 84) uint8, and infos: ``"lives"``, (N,)
        :raises ValueError: if there are options
        """
        if options:
            raise ValueError(f"Atari games have no options, got {options}")
        if seed is None and self._seeds is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._resets += 1
        if seed is not None:
            seeds = seed if isinstance(seed, np.ndarray) else seed + np.arange(self.num_envs)
            # ale-py takes 31 bits; it reads negative numbers as no seed.
            self._seeds = seeds % 2**31
            self._resets[:] = 0
        obs, infos = super().reset(seed=None if seed is None else self._seeds)
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
        Act in all games. The class describes the infos.

        :param actions: actions of the games, (N,) integers
        :return: observations (N, 4, 84, 84) uint8, rewards (N,) int32, terminated (N,) bool,
            truncated (N,) bool, infos
        :raises ValueError: if there is no such action, because ale-py would wait for ever
        """
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be {self.num_envs} integers, got {actions.dtype} of shape "
                f"{actions.shape}"
            )
        if actions.min() < 0 or actions.max() >= self._n_actions:
            raise ValueError(
                f"actions must be from 0 to {self._n_actions - 1}, got {actions.tolist()}"
            )
        obs, rewards, terminated, truncated, infos = super().step(actions.astype(np.int64))
        for played, action in zip(self._actions, actions.tolist(), strict=True):
            played.append(action)
        # The number of a game's first frame changes when the game is reset, and only then.
        first_frames = _first_frames(infos)
        infos["game_frames"] = first_frames - self._first_frames
        over = infos["game_frames"] != 0
        infos["game_over"] = over
        self._first_frames = first_frames
        self._resets += over
        for row in np.flatnonzero(over).tolist():
            self._actions[row] = bytearray()
        self._latest = obs[:, -1]
        return obs, rewards, terminated, truncated, infos

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return what the games follow from, and a digest of the frames to reach.

        :return: a tree of plain data and arrays for :meth:`set_checkpoint_state`
        :raises CheckpointError: if actions are sticky, because chance in them depends on all that
            was played before
        """
        if self._sticky:
            raise CheckpointError(
                "games with sticky actions cannot be saved: make them with "
                "repeat_action_probability=0"
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
        """
        Continue from a saved state, by playing the games again.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the games come to other frames, for example because the state is
            of another game or another version of ale-py
        """
        if state["seeds"] is None:
            return
        actions = [np.asarray(played, dtype=np.int64) for played in state["actions"]]
        lengths = np.array([len(played) for played in actions])
        self.reset(seed=state["seeds"])
        longest = lengths.max()
        # Games are stepped together. Shorter games begin later; what they do until then does not
        # count.
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
                "the games were played again and came to other frames: is it the same game, and "
                "the same version of ale-py?"
            )

    def _begin(
        self, rows: NDArray[np.bool_], seeds: NDArray[np.int64], resets: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """Bring some games to where their latest one began. Return the observations of all."""
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
