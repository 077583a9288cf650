"""Replay memories that keep each frame once: next observations share frames with observations, and stacks with each other."""

from typing import Any

from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.frames import FrameArray, FrameStore, frame_bytes
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

_ARRAYS = ("actions", "rewards", "dones", "timeouts")


class FrameReplayBuffer(ReplayBuffer):
    """
    SB3's replay memory, whose observations are frames in a :class:`~sb3_manygoals.frames.FrameStore`.

    :param args: as SB3's ReplayBuffer has them, like ``kwargs``
    :param n_stack: frames in an observation along its first axis
    """

    def __init__(self, *args: Any, n_stack: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.obs_shape, tuple)  # for mypy: no Dict
        self.frames = FrameStore(self.obs_shape, self.observation_space.dtype, n_stack)
        # in place of arrays that have taken no memory yet
        self.observations: Any = FrameArray(self.frames, self.buffer_size, self.n_envs)
        self.next_observations: Any = FrameArray(self.frames, self.buffer_size, self.n_envs)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """As :class:`~sb3_manygoals.checkpoint.callback.Checkpointable` has it."""
        numbers = {name: getattr(self, name) for name in ("buffer_size", "n_envs", "pos", "full")}
        return {
            **numbers,
            **{name: getattr(self, name)[: self.size()] for name in _ARRAYS},
            "frames": self._frames_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:raises CheckpointError: if it is of a memory of another size or for other frames"""
        built = {"buffer_size": self.buffer_size, "n_envs": self.n_envs}
        check_same("a replay memory", state, built)
        self._restore_frames(state)
        for name in _ARRAYS:
            getattr(self, name)[: len(state[name])] = state[name]
        self.pos, self.full = state["pos"], state["full"]

    def _frames_state(self) -> dict[str, Any]:
        return self.frames.get_checkpoint_state(
            self.observations.frames, self.next_observations.frames
        )

    def _restore_frames(self, state: dict[str, Any]) -> None:
        if "frames" not in state:
            raise CheckpointError(
                "the replay memory was saved with whole observations, this one keeps frames"
            )
        self.observations.frames, self.next_observations.frames = self.frames.set_checkpoint_state(
            state["frames"]
        )


class ManyGoalsFrameReplayBuffer(FrameReplayBuffer, ManyGoalsReplayBuffer):
    """
    ManyGoalsDQN's replay memory, whose observations are frames in a :class:`~sb3_manygoals.frames.FrameStore`: for Atari an
    eighth of the memory of whole stacks. For ``ManyGoalsDQN(replay_buffer_class=...)``.

    :param args: as :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer` has them, like ``kwargs``
    :param n_stack: frames in an observation along its first axis
    """

    @staticmethod
    def memory_needed(
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        n_stack: int = 1,
        **kwargs: Any,
    ) -> dict[str, int]:
        """:return: bytes of its arrays, by what they are of; a frame more for each start of an episode"""
        needed = ManyGoalsReplayBuffer.memory_needed(
            buffer_size, observation_space, action_space, n_envs, **kwargs
        )
        others = {name: size for name, size in needed.items() if not name.endswith("observations")}
        space, rows = observation_space["observation"], max(buffer_size // n_envs, 1) * n_envs
        return {
            "replay frames": frame_bytes(rows, n_envs, space.shape or (), space.dtype, n_stack),
            **others,
        }

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {**ManyGoalsReplayBuffer.get_checkpoint_state(self), "frames": self._frames_state()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        ManyGoalsReplayBuffer.set_checkpoint_state(self, state)
        self._restore_frames(state)

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        return {
            name: array
            for name, array in super()._arrays.items()
            if not name.endswith("observations")
        }
