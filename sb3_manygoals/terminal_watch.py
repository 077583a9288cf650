"""
Detection of terminal observations that are lost.

They are lost if an environment returns the same array again and again and writes into it. This
module notices such environments and warns.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecTransposeImage,
    is_vecenv_wrapped,
    unwrap_vec_wrapper,
)

# After so many ends of episodes it is clear what an environment does.
_ENOUGH_ENDS = 20
# For so many steps after these, an environment may still be seen to write into an array.
_PATIENCE = 100

_LOST = (
    "SB3's and Gymnasium's vector environments keep a reference to the last observation of an"
    " episode while they reset, so the first one of the next episode stands in its place, and its"
    " goal and its reward are learned wrongly. Let step() and reset() return copies, such as"
    " self.state.copy()"
)


class TerminalWatch:
    """
    Looks at ends of episodes until it is clear whether terminal observations are lost.

    An environment may return one array from all calls of ``step`` and ``reset``, and write into it.
    Vector environments keep a reference to this array and reset before anyone reads it. Then the
    terminal observation equals the first observation of the next episode. That alone proves
    nothing, as the episodes of a world may end where they begin. So it warns in two cases.

    1. In a DummyVecEnv or SyncVectorEnv, the array itself can be seen. It equals the next first
       observation, and the environment writes into it later. This proves that it was lost.
    2. Elsewhere, only the values can be seen. At each of the first 20 ends they equal the next
       first observation, although the last step changed what was shown. This makes it likely that
       they were lost, and the warning says so.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether it has stopped looking."""
        # By environment: a terminal array, and a copy of it.
        self._held: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._n_ends = 0
        self._patience = _PATIENCE
        # The observations at the last look.
        self._before: NDArray[Any] | None = None

    def look(
        self,
        venv: VecEnv,
        observations: NDArray[Any],
        dones: NDArray[np.bool_],
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """
        Look at a step of an SB3 VecEnv.

        :param venv: the VecEnv
        :param observations: the observations after the step, shape (n_envs, ...)
        :param dones: whether an episode ended, bool, shape (n_envs,)
        :param infos: one info for each environment, with "terminal_observation" where its episode
            ended
        """
        if self.done:
            return
        base = venv.unwrapped
        if hasattr(base, "terminal_watch") and base.terminal_watch is not self:
            # The VecEnv has a watch of its own.
            self.done = True
            return
        # When a life of an Atari game is lost, the game goes on without a reset.
        rows = [row for row in np.flatnonzero(dones).tolist() if not infos[row].get("life_lost")]
        if not isinstance(base, DummyVecEnv):
            terminal = [infos[row].get("terminal_observation") for row in rows]
            terminal_frames, frames = _newest_frames(venv, terminal, observations)
            self._look_at_values(rows, terminal_frames, frames)
            return
        shown: Any = base.buf_obs
        # The buffer has the key None if an observation is a single array.
        if None in shown:
            terminal = [base.buf_infos[row].get("terminal_observation") for row in rows]
            self._look_at_arrays(rows, terminal, shown[None])

    def look_at_vector(
        self,
        env: VectorEnv[Any, Any, Any],
        observations: Any,
        ended: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> None:
        """
        Look at a step of one of Gymnasium's vector environments.

        :param env: the vector environment. It loses observations only in the mode SAME_STEP
        :param observations: the observations after the step, shape (num_envs, ...)
        :param ended: whether an episode ended, bool, shape (num_envs,)
        :param infos: infos of the step, with "final_obs" where an episode ended
        """
        same_step = env.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP
        if self.done or not same_step or not isinstance(observations, np.ndarray):
            return
        rows = np.flatnonzero(ended).tolist()
        terminal = [infos["final_obs"][row] for row in rows]
        if isinstance(env, SyncVectorEnv):
            self._look_at_arrays(rows, terminal, observations)
        else:
            # A wrapper may have made other arrays of the environments' own.
            self._look_at_values(rows, terminal, observations)

    def _look_at_arrays(
        self, rows: Sequence[int], terminal: Sequence[Any], observations: NDArray[Any]
    ) -> None:
        """
        Check whether an environment writes into an array that was a terminal observation.

        ``terminal`` has the environments' own arrays, one for each environment of ``rows``.
        """
        self._n_ends += len(rows)
        for row, (array, copy) in self._held.items():
            if not _same(array, copy):
                self._warn(
                    f"environment {row} writes into an array that it has handed out: {_LOST}"
                )
                return
        for row, last in zip(rows, terminal, strict=True):
            self._held.pop(row, None)
            if isinstance(last, np.ndarray) and _same(last, observations[row]):
                self._held[row] = (last, last.copy())
        if self._n_ends >= _ENOUGH_ENDS:
            self._patience -= 1
            if self._patience == 0:
                self._stop()

    def _look_at_values(
        self, rows: Sequence[int], terminal: Sequence[Any], observations: NDArray[Any]
    ) -> None:
        """
        Check whether every terminal observation equals the next first one.

        Ends at which the last step changed nothing are not counted.
        """
        self._n_ends += len(rows)
        before = self._before
        # A copy, because the environments may write the next observations into the same array.
        self._before = observations.copy()
        for row, last in zip(rows, terminal, strict=True):
            if not _same(last, observations[row]):
                self._stop()
                return
            if before is None or _same(last, before[row]):
                self._n_ends -= 1
        if self._n_ends >= _ENOUGH_ENDS:
            self._warn(
                f"the last observation of {self._n_ends} episodes was the first of the next: the"
                f" environments seem to hand out one array again and again. {_LOST}. If episodes do"
                " end where the next begins, ignore this"
            )

    def _warn(self, what: str) -> None:
        warnings.warn(what, stacklevel=3)
        self._stop()

    def _stop(self) -> None:
        self.done = True
        self._held = {}
        self._before = None

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for a checkpoint.

        :return: whether it has stopped looking. If not, a restored watch starts from the beginning
        """
        return {"done": self.done}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self.done = state["done"]


def _newest_frames(
    venv: VecEnv, terminal: Sequence[Any], observations: NDArray[Any]
) -> tuple[Sequence[Any], NDArray[Any]]:
    """
    Return terminal and current observations without the older frames of a VecFrameStack.

    The older frames always differ, as a reset makes them blank.
    """
    stack = unwrap_vec_wrapper(venv, VecFrameStack)
    if not isinstance(stack, VecFrameStack) or not isinstance(observations, np.ndarray):
        return terminal, observations
    stacked: Any = stack.stacked_obs
    # The axis of a batch along which frames are stacked, 1 or -1.
    axis = stacked.stack_dimension
    if is_vecenv_wrapped(venv, VecTransposeImage):
        axis = 1
    if observations.shape[axis] % stacked.n_stack:
        # A wrapper around the stack has changed the observations.
        return terminal, observations
    axis_of_one = axis if axis < 0 else axis - 1
    newest = [
        np.split(last, stacked.n_stack, axis_of_one)[-1] if isinstance(last, np.ndarray) else last
        for last in terminal
    ]
    return newest, np.split(observations, stacked.n_stack, axis)[-1]


def _same(seen: Any, shown: NDArray[Any]) -> bool:
    """
    Return whether an environment's observation has the bytes of ``shown`` in the same dtype.

    NaN equals NaN.
    """
    try:
        array = np.asarray(seen, shown.dtype)
    except (TypeError, ValueError):
        # It is no observation at all.
        return False
    return array.shape == shown.shape and array.tobytes() == shown.tobytes()
