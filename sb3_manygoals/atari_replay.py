"""ale-py's vector environment with checkpoints: to restore one, it plays its games again."""

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
    N copies of an Atari game in ``SAME_STEP`` mode, with checkpoints.

    Infos say when a game is over, because ale-py's ``terminated`` is True at lost lives too if
    ``life_loss_info`` is set. The infos of a step have two more entries of shape (N,).
    ``game_over``, bool, is True where a game is over and ``final_obs`` has its last observation.
    ``game_frames``, int64, is the number of frames of the game that is over, including those before
    its first observation; it is 0 where no game is over.

    ale-py's vector environment does not give the emulators' states. But three things determine the
    state of a game: its seed, the number of games since the seed was set (each draws a number of
    no-ops), and its actions so far. A checkpoint holds these. To restore it, the games are played
    again. This takes some milliseconds for each game since the seed was set, and the time of the
    steps of the longest current game.

    :param rom: ale-py's name of the game, such as ``"breakout"``
    :param n_envs: number of copies, N
    :param settings: further arguments of :class:`~ale_py.vector_env.AtariVectorEnv`, by name. Image
        size, stack, frame skip, clipping of rewards and autoreset mode are set here
    """

    def __init__(self, rom: str, n_envs: int, **settings: Any) -> None:
        # ale-py writes its autoreset mode into the dict that all vector environments share.
        self.metadata = dict(type(self).metadata)
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
        # The latest frame of each game, (N, 84, 84). Games that are played again must end in it. It
        # is a copy, because users may write into what they are shown.
        self._latest: NDArray[np.uint8] | None = None

    # ale-py annotates reset with a type variable that nothing binds.
    def reset(  # type: ignore[override]
        self, *, seed: int | NDArray[np.int64] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin new games.

        :param seed: one integer, with which game i gets the seed ``seed + i``, or the seeds of all
            games, (N,) integers. None: each game goes on with its random numbers of no-ops; before
            the first reset, the seed is random
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
        self._latest = obs[:, -1].copy()
        return obs, {"lives": infos["lives"]}

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """
        Act in all games. The class describes the infos.

        :param actions: an action for each game, (N,) integers
        :return: observations (N, 4, 84, 84) uint8, rewards (N,) int32, terminated (N,) bool,
            truncated (N,) bool, infos
        :raises ValueError: if an action or the shape is wrong: ale-py would wait for ever
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
        self._latest = obs[:, -1].copy()
        return obs, rewards, terminated, truncated, infos

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the seed, number of resets and actions of each game, and a digest of its last frame.

        :return: a dictionary of plain data and arrays for :meth:`set_checkpoint_state`. Arrays are
            not copied
        :raises CheckpointError: if actions are sticky, because their chance depends on all games
            that were played before
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

        A state that was saved before the first reset changes nothing.

        :param state: what :meth:`get_checkpoint_state` returned, of as many copies
        :raises CheckpointError: if the games that were played again do not end in the saved frames,
            for example because the state is of another game or another version of ale-py
        """
        if state["seeds"] is None:
            return
        actions = [np.asarray(played, dtype=np.int64) for played in state["actions"]]
        lengths = np.array([len(played) for played in actions])
        self.reset(seed=state["seeds"])
        longest = lengths.max()
        # All games are stepped together. A shorter game begins later; its steps before that do not
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
        """
        Bring some copies to the beginning of their current games.

        :return: the observations of all copies
        """
        obs: NDArray[np.uint8]
        obs, infos = super().reset(seed=seeds[rows], options={"reset_mask": rows})
        for done in range(resets[rows].max()):
            obs, infos = super().reset(options={"reset_mask": rows & (resets > done)})
        self._first_frames = _first_frames(infos)
        self._latest = obs[:, -1].copy()
        for row in np.flatnonzero(rows).tolist():
            self._actions[row] = bytearray()
        return obs


def _first_frames(infos: dict[str, Any]) -> NDArray[np.int64]:
    return np.asarray(infos["frame_number"].astype(np.int64) - infos["episode_frame_number"])


def _digest(frames: NDArray[np.uint8]) -> bytes:
    return hashlib.blake2b(frames.tobytes(), digest_size=16).digest()
