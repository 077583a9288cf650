"""Many worlds at once, without sub-environments: each step is a few table lookups."""

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from gym_twoRooms.env import (
    TwoRoomsSwitchEnv,
    check_world,
    given_state,
    observation_space,
    world_of,
)
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import TwoRoomsMDP, compile_layout
from gym_twoRooms.rendering import check_rendering, show, warn_about_rendering


class TwoRoomsSwitchVectorEnv(
    gym.vector.VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]
):
    """
    N copies of :class:`~gym_twoRooms.env.TwoRoomsSwitchEnv`, step for step equal to a
    :class:`gymnasium.vector.SyncVectorEnv` of them with the same seeds, and much faster.

    Options of ``reset`` are ``"state"``, one number or N, and ``"reset_mask"``, (N,) bool. Where it is False, the world and
    its generator stay as they are, and the infos of the reset are 0.

    With ``max_episode_steps`` episodes are truncated, and ``autoreset_mode`` says what follows:

    - ``NEXT_STEP``: the next step resets them, ignoring the action;
    - ``SAME_STEP``: they are reset at once. Observations and infos are of the new episode; those of the last step are in
      ``infos["final_obs"]``, (N,) object, and ``infos["final_info"]``, with masks ``"_final_obs"`` and ``"_final_info"``;
    - ``DISABLED``: they must be reset by ``reset(options={"reset_mask": mask})`` before the next step.

    Random numbers are drawn ahead, so generators are not exposed. Copies and pickles go on with the same numbers.

    :param num_envs: N, at least 1
    :param layout: As for :class:`~gym_twoRooms.env.TwoRoomsSwitchEnv`, like ``slip_probability``, ``close_probability``,
        ``render_mode`` and ``cell_size``
    :param max_episode_steps: Number of steps after which an episode is truncated; None for never
    :param autoreset_mode: One of :class:`gymnasium.vector.AutoresetMode`, or its value; it is ``metadata["autoreset_mode"]``
    :raises LayoutError: As there
    :raises TypeError: If ``num_envs`` or ``max_episode_steps`` is not an integer
    :raises ValueError: If an argument is out of range
    """

    metadata = {**TwoRoomsSwitchEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as VectorEnv
    copy = True
    """Observations are new arrays at each step, as a SyncVectorEnv's with ``copy``."""

    def __init__(
        self,
        num_envs: int,
        layout: Layout | str = "paper",
        slip_probability: float = 0.5,
        close_probability: float = 0.01,
        render_mode: str | None = None,
        cell_size: int = 32,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        limit = 1 if max_episode_steps is None else max_episode_steps
        for name, value in (("num_envs", num_envs), ("max_episode_steps", limit)):
            if not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {value!r}.")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        check_rendering(render_mode, cell_size)
        known = [mode.value for mode in AutoresetMode]
        if autoreset_mode not in [*AutoresetMode, *known]:
            raise ValueError(
                f"autoreset_mode must be an AutoresetMode or one of {known}, got {autoreset_mode!r}."
            )
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.mdp: TwoRoomsMDP = compile_layout(layout, slip_probability, close_probability)
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.render_mode, self.cell_size = render_mode, cell_size
        self.single_observation_space = observation_space(self.mdp)
        self.single_action_space = spaces.Discrete(self.mdp.n_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams = _UniformStreams(num_envs)
        self._states: NDArray[np.int64] | None = None
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(
            num_envs, dtype=np.bool_
        )  # worlds that the next step resets, or that the user must reset

    @property
    def states(self) -> NDArray[np.int64]:
        """The numbers of the current states, a copy, (N,) int64; ResetNeeded before the first reset."""
        return self._current().copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Draws one uniform number for each world reset, or none when states are given. ``seed + i`` seeds world i."""
        every = range(self.num_envs)
        seeds = (
            [seed + i for i in every]
            if isinstance(seed, int)
            else [None for _ in every]
            if seed is None
            else seed
        )
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"There must be one seed for each of the {self.num_envs} environments, got {len(seeds)}."
            )
        options = dict(
            options or {}
        )  # a copy, unlike in SyncVectorEnv: wrappers look for the mask after this call
        mask = self._check_mask(options.pop("reset_mask", None))
        rows = np.flatnonzero(mask)
        states = given_state(options)
        if states is not None:
            if np.shape(states) not in ((), (self.num_envs,)):
                raise ValueError(
                    f"The states must be one or have shape ({self.num_envs},), got {np.shape(states)}."
                )
            states = self.mdp.check_states(np.broadcast_to(np.asarray(states), self.num_envs)[rows])
        for row in rows.tolist():
            if (single := seeds[row]) is not None:
                self._streams.seed(row, single)
        if states is None:
            states = self.mdp.initial_states(self._streams.take(rows))
        if self._states is None:
            self._states = np.zeros(self.num_envs, dtype=np.int64)
        self._states[rows] = states
        self._elapsed[rows] = 0
        self._ended[rows] = False
        return self.mdp.observe(self._states), self._infos(mask)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """All that decides what comes next, random numbers included, copied; for :meth:`set_checkpoint_state`."""
        found = {
            "states": self._states,
            "elapsed": self._elapsed,
            "ended": self._ended,
            "streams": vars(self._streams),
        }
        return {"world": self._world(), **copy.deepcopy(found)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`get_checkpoint_state` gave; ValueError if the arguments were others."""
        check_world(state["world"], self._world())
        state = copy.deepcopy(state)
        self._states, self._elapsed, self._ended = state["states"], state["elapsed"], state["ended"]
        vars(self._streams).update(state["streams"])

    def action_masks(self) -> NDArray[np.bool_]:
        """The current masks for sb3-contrib's maskable learners, (N, 5) bool; ResetNeeded before the first reset."""
        return self.mdp.action_masks(self._current()).astype(np.bool_)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """Draws one uniform number where anything is left to chance, and one where an episode starts."""
        states = self._current()
        actions = self._check_actions(actions)
        starting = self._ended
        if starting.any():
            rows, going = np.flatnonzero(starting), np.flatnonzero(~starting)
            if (
                self.autoreset_mode is AutoresetMode.DISABLED
            ):  # as in SyncVectorEnv, but before any world has stepped
                ended = f"Environments {rows.tolist()} have ended"
                raise AssertionError(
                    f"{ended}: reset them with options={{'reset_mask': mask}} first."
                )
            states = states.copy()
            states[going] = self.mdp.step(
                states[going], actions[going], lambda chosen: self._streams.take(going[chosen])
            )
            states[rows] = self.mdp.initial_states(self._streams.take(rows))
        else:
            states = self.mdp.step(states, actions, self._streams.take)
        self._states = states
        self._elapsed += 1
        self._elapsed[starting] = 0
        truncated = self._elapsed >= (
            np.inf if self.max_episode_steps is None else self.max_episode_steps
        )
        infos: dict[str, Any] = {}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended = truncated.copy()
        elif truncated.any():
            rows = np.flatnonzero(truncated)
            final_observations = np.full(self.num_envs, None, dtype=object)
            for row, observation in zip(rows.tolist(), self.mdp.observe(states[rows]), strict=True):
                final_observations[row] = observation
            infos = {"final_obs": final_observations, "_final_obs": truncated.copy()}
            infos |= {"final_info": self._infos(truncated), "_final_info": truncated.copy()}
            states[rows] = self.mdp.initial_states(self._streams.take(rows))
            self._elapsed[rows] = 0
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        return (
            self.mdp.observe(states),
            np.zeros(self.num_envs),
            terminated,
            truncated,
            infos | self._infos(),
        )

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        if self.render_mode is None:
            warn_about_rendering()
            return None
        return tuple(
            show(self.mdp, state, self.render_mode, self.cell_size)
            for state in self._current().tolist()
        )

    def _world(self) -> dict[str, Any]:
        ends = {
            "max_episode_steps": self.max_episode_steps,
            "autoreset_mode": self.autoreset_mode.value,
        }
        return {
            **world_of(self.mdp),
            "num_envs": self.num_envs,
            **ends,
            "block": self._streams.BLOCK,
        }

    def _current(self) -> NDArray[np.int64]:
        if self._states is None:
            raise ResetNeeded("The environment has no states yet: call reset() first.")
        return self._states

    def _infos(self, mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """The infos of the worlds where ``mask`` is True, zeros elsewhere, and a mask for each key."""
        states = self._current().copy()
        action_mask = self.mdp.action_masks(states)
        if mask is None:
            mask = np.ones(self.num_envs, dtype=np.bool_)
        else:
            states[~mask] = 0
            action_mask[~mask] = 0
        return {
            "state": states,
            "_state": mask.copy(),
            "action_mask": action_mask,
            "_action_mask": mask.copy(),
        }

    def _check_actions(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise InvalidAction(
                f"Actions must be {self.num_envs} integers, got {actions.dtype} of shape {actions.shape}."
            )
        actions = actions.astype(np.intp, copy=False)
        if actions.min() < 0 or actions.max() >= self.mdp.n_actions:
            raise InvalidAction(
                f"Each action must be in [0, {self.mdp.n_actions}), got {actions.min()} to {actions.max()}."
            )
        return actions

    def _check_mask(self, mask: Any) -> NDArray[np.bool_]:
        name = "options['reset_mask']"
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"{name} must be a NumPy array of bool, got {mask!r}.")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"{name} must have shape ({self.num_envs},) and be True somewhere, got {mask}."
            )
        if self._states is None and not mask.all():
            raise ResetNeeded(
                f"The environment has no states yet: call reset() without {name} first."
            )
        return mask


class _UniformStreams:
    """Uniform numbers for each of N worlds, read in blocks: a generator's ``random(K)`` gives what K calls would."""

    BLOCK = (
        392  # no power of two: the next numbers of all streams would share a few lines of the cache
    )

    def __init__(self, n: int) -> None:
        self.generators: list[np.random.Generator | None] = [None] * n
        self.block = np.zeros((n, self.BLOCK))
        self.ends = (np.arange(n) + 1) * self.BLOCK
        self.next = self.ends.copy()

    def seed(self, index: int, seed: int) -> None:
        self.generators[index] = seeding.np_random(seed)[0]
        self.next[index] = self.ends[index]

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """The next number of each of these streams, which are named once."""
        places = self.next.take(rows)
        used_up = places == self.ends.take(rows)
        if used_up.any():
            for index in rows[used_up].tolist():
                if (generator := self.generators[index]) is None:
                    generator = self.generators[index] = seeding.np_random()[0]
                generator.random(out=self.block[index])
                self.next[index] -= self.BLOCK
            places = self.next.take(rows)
        self.next[rows] = places + 1
        return self.block.take(places)
