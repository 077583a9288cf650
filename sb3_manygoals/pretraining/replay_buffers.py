"""
Replay memories that keep each frame once.

Next observations share frames with observations, and stacks of frames share frames with each other.
"""

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.checkpoint.added import note_attributes
from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.frames import FrameArray, FrameStore, frame_bytes
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.world import ExactStates

_SETTINGS = ("buffer_size", "n_envs")
_ARRAYS = ("actions", "rewards", "dones", "timeouts")


class FrameReplayBuffer(ReplayBuffer):
    """
    SB3's replay memory with observations as frames in a :class:`~sb3_manygoals.frames.FrameStore`.

    :param args: positional arguments of SB3's ReplayBuffer
    :param n_stack: frames in an observation along its first axis
    :param kwargs: keyword arguments of SB3's ReplayBuffer
    :raises ValueError: if observations cannot be cut into that many frames
    """

    def __init__(self, *args: Any, n_stack: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Observations are no Dict.
        assert isinstance(self.obs_shape, tuple)
        self.frames = FrameStore(self.obs_shape, self.observation_space.dtype, n_stack)
        # These replace SB3's arrays, which have not taken any memory yet.
        self.observations: Any = FrameArray(self.frames, self.buffer_size, self.n_envs)
        self.next_observations: Any = FrameArray(self.frames, self.buffer_size, self.n_envs)
        note_attributes(self)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for a checkpoint.

        :return: a plain tree of all that the memory holds
        """
        state = {name: getattr(self, name) for name in (*_SETTINGS, "pos", "full")}
        state |= {name: getattr(self, name)[: self.size()] for name in _ARRAYS}
        return state | {"frames": self._frames_state()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is the state of a memory of another size or for other frames
        """
        check_same("a replay memory", state, {name: getattr(self, name) for name in _SETTINGS})
        self._restore_frames(state)
        for name in _ARRAYS:
            getattr(self, name)[: len(state[name])] = state[name]
        self.pos = state["pos"]
        self.full = state["full"]

    def _frames_state(self) -> dict[str, Any]:
        return self.frames.get_checkpoint_state(
            self.observations.frames, self.next_observations.frames
        )

    def _restore_frames(self, state: dict[str, Any]) -> None:
        """Restore the frames of a checkpoint. Raise a CheckpointError if it has none."""
        if "frames" not in state:
            raise CheckpointError(
                "the replay memory was saved with whole observations, this one keeps frames"
            )
        here, there = self.frames.set_checkpoint_state(state["frames"])
        self.observations.frames = here
        self.next_observations.frames = there


class ManyGoalsFrameReplayBuffer(FrameReplayBuffer, ManyGoalsReplayBuffer):
    """
    ManyGoalsDQN's replay memory with observations as frames.

    The frames are in a :class:`~sb3_manygoals.frames.FrameStore`. For Atari this takes an eighth of
    the memory of whole stacks. Use it by ``ManyGoalsDQN(replay_buffer_class=...)``.

    :param args: positional arguments of
        :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer`
    :param n_stack: frames in an observation along its first axis
    :param kwargs: keyword arguments of
        :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer`
    :raises ValueError: if observations cannot be cut into that many frames
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
        """
        Return how much memory the arrays of such a memory take.

        Each start of an episode in it takes a frame more.

        :param buffer_size: number of transitions, in all environments together
        :param observation_space: space of "observation", "achieved_goal" and "desired_goal"
        :param action_space: the action space
        :param n_envs: number of environments
        :param n_stack: frames in an observation along its first axis
        :param kwargs: further arguments of
            :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer`
        :return: bytes, by what they are for
        """
        needed = ManyGoalsReplayBuffer.memory_needed(
            buffer_size, observation_space, action_space, n_envs, **kwargs
        )
        # Frames take the place of observations, and ids of states are never stored.
        del needed["replay observations"]
        del needed["replay state ids"]
        space = observation_space["observation"]
        rows = max(buffer_size // n_envs, 1) * n_envs
        frames = frame_bytes(rows, n_envs, space.shape or (), space.dtype, n_stack)
        return {"replay frames": frames, **needed}

    def store_observations(self) -> None:
        """Store observations as frames, for which there is room from the beginning."""
        self.stores_observations = True

    def move_to(
        self,
        goal_buffer: GoalBuffer,
        states: ExactStates | None,
        are_restored: bool = False,
    ) -> None:
        """
        Let ids refer to another goal buffer from now on. Next observations become goals in it.

        :param goal_buffer: the goals that ids refer to
        :param states: not used, because observations are stored
        :param are_restored: whether the goals are those that ids refer to now
        """
        self.store_observations()
        super().move_to(goal_buffer, None, are_restored)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for a checkpoint.

        :return: a plain tree of all that the memory holds
        """
        return {**ManyGoalsReplayBuffer.get_checkpoint_state(self), "frames": self._frames_state()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is the state of a memory of another size, with or without
            action masks unlike this one, or for other frames
        """
        ManyGoalsReplayBuffer.set_checkpoint_state(self, state)
        self._restore_frames(state)

    @property
    def _arrays_to_save(self) -> tuple[str, ...]:
        """The names of the arrays of a checkpoint. Observations are no arrays here."""
        return tuple(name for name in super()._arrays_to_save if "observations" not in name)
