"""Terminal observations that are lost because an environment hands out one array again and again: noticed, and said."""

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

_ENOUGH = 20  # ends after which it is clear what an environment does
_PATIENCE = 100  # steps after these in which it may still be seen to write into what it handed out

_LOST = (
    "SB3's and Gymnasium's vector environments keep a reference to the last observation of an episode"
    " while they reset, so the first one of the next episode stands in its place, and its goal and"
    " its reward are learned wrongly. Let step() and reset() return copies, such as self.state.copy()"
)


class TerminalWatch:
    """
    Looks at the ends of episodes until it is clear whether terminal observations are what the environments showed.

    An environment that returns one array from ``step`` and ``reset``, and writes into it, loses them: vector environments keep
    a reference to the array and reset before anyone sees it. By then it equals the first observation of the next episode. That
    alone may be true, in a world whose episodes end where they begin. So it warns in one of two cases.

    1. In a DummyVecEnv or SyncVectorEnv the array itself can be seen. It equals the next first observation, and the
       environment writes into it later. That is certain.
    2. Elsewhere only the values can be seen. At each of the first 20 ends they equal the next first observation, although the
       last step changed what was shown. That is likely, and the warning says so.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether there is nothing more to be seen."""
        self._held: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}  # terminal arrays, and copies
        self._n_ends = 0
        self._patience = _PATIENCE
        self._before: NDArray[Any] | None = None  # what was shown at the last look

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
        :param observations: what it shows after the step, shape (n_envs, ...)
        :param dones: whose episode ended, bool, shape (n_envs,)
        :param infos: one for each environment, with "terminal_observation" where its episode ended
        """
        base = venv.unwrapped
        if hasattr(base, "terminal_watch") and base.terminal_watch is not self:
            self.done = True  # it looks itself
        if self.done:
            return
        # at a lost life of an Atari game play goes on
        rows = [row for row in np.flatnonzero(dones).tolist() if not infos[row].get("life_lost")]
        if not isinstance(base, DummyVecEnv):
            lasts = [infos[row].get("terminal_observation") for row in rows]
            self._look(rows, *_newest_frames(venv, lasts, observations))
            return
        shown: Any = base.buf_obs  # by key, None where an observation is one array
        if None in shown:
            lasts = [base.buf_infos[row].get("terminal_observation") for row in rows]
            self._look(rows, lasts, shown[None], certain=True)

    def look_at_vector(
        self,
        env: VectorEnv[Any, Any, Any],
        observations: Any,
        ended: NDArray[np.bool_],
        infos: dict[str, Any],
    ) -> None:
        """
        Look at a step of one of Gymnasium's vector environments.

        :param env: the vector environment; in other modes than SAME_STEP nothing is lost
        :param observations: what it shows after the step, shape (num_envs, ...)
        :param ended: whose episode ended, bool, shape (num_envs,)
        :param infos: of the step, with "final_obs" where an episode ended
        """
        same_step = env.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP
        if self.done or not same_step or not isinstance(observations, np.ndarray):
            return
        rows = np.flatnonzero(ended).tolist()
        lasts = [infos["final_obs"][row] for row in rows]
        # a wrapper may have made other arrays of the environments' own
        self._look(rows, lasts, observations, certain=isinstance(env, SyncVectorEnv))

    def _look(
        self,
        rows: Sequence[int],
        lasts: Sequence[Any],
        observations: NDArray[Any],
        certain: bool = False,
    ) -> None:
        """``lasts`` are the terminal observations of ``rows``; if ``certain``, the environments' own arrays."""
        self._n_ends += len(rows)
        if certain:
            self._look_at_arrays(rows, lasts, observations)
        else:
            self._look_at_values(rows, lasts, observations)

    def _look_at_arrays(
        self, rows: Sequence[int], lasts: Sequence[Any], observations: NDArray[Any]
    ) -> None:
        """Is an array, which was a terminal observation and shows the next first one, written into?"""
        for row, (array, copy) in self._held.items():
            if not _same(array, copy):
                self._warn(
                    f"environment {row} writes into an array that it has handed out: {_LOST}"
                )
                return
        for row, last in zip(rows, lasts, strict=True):
            self._held.pop(row, None)
            if isinstance(last, np.ndarray) and _same(last, observations[row]):
                self._held[row] = (last, last.copy())
        if self._n_ends >= _ENOUGH:
            self._patience -= 1
            if self._patience == 0:
                self._stop()

    def _look_at_values(
        self, rows: Sequence[int], lasts: Sequence[Any], observations: NDArray[Any]
    ) -> None:
        """Is every terminal observation that the last step changed the next first one?"""
        before = self._before
        self._before = observations
        for row, last in zip(rows, lasts, strict=True):
            if not _same(last, observations[row]):
                self._stop()
                return
            if before is None or _same(last, before[row]):
                self._n_ends -= 1  # it tells nothing
        if self._n_ends >= _ENOUGH:
            seen = f"the last observation of {self._n_ends} episodes was the first of the next"
            likely = "the environments seem to hand out one array again and again"
            self._warn(
                f"{seen}: {likely}. {_LOST}. If episodes do end where the next begins, ignore this"
            )

    def _warn(self, what: str) -> None:
        warnings.warn(what, stacklevel=4)
        self._stop()

    def _stop(self) -> None:
        self.done = True
        self._held = {}
        self._before = None

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: whether there is nothing more to be seen; else a restored one looks from the beginning"""
        return {"done": self.done}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.done = state["done"]


def _newest_frames(
    venv: VecEnv, lasts: Sequence[Any], observations: NDArray[Any]
) -> tuple[Sequence[Any], NDArray[Any]]:
    """
    Terminal observations and those of now without the older frames of a VecFrameStack, which differ in any case: at a reset
    they become blank.
    """
    stack = unwrap_vec_wrapper(venv, VecFrameStack)
    if not isinstance(stack, VecFrameStack) or not isinstance(observations, np.ndarray):
        return lasts, observations
    stacked: Any = stack.stacked_obs
    axis = stacked.stack_dimension  # of a batch: 1 or -1
    if is_vecenv_wrapped(venv, VecTransposeImage):
        axis = 1
    if observations.shape[axis] % stacked.n_stack:  # a wrapper around it has changed them
        return lasts, observations
    of_one = axis if axis < 0 else axis - 1
    newest = [
        np.split(last, stacked.n_stack, of_one)[-1] if isinstance(last, np.ndarray) else last
        for last in lasts
    ]
    return newest, np.split(observations, stacked.n_stack, axis)[-1]


def _same(seen: Any, shown: NDArray[Any]) -> bool:
    """Whether what an environment returned is the observation ``shown``, in its dtype; NaN equals NaN."""
    try:
        array = np.asarray(seen, shown.dtype)
    except (TypeError, ValueError):  # no observation at all
        return False
    return array.shape == shown.shape and array.tobytes() == shown.tobytes()
