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

    With ``max_episode_steps`` episodes are truncated, and ``autoreset_mode`` says what follows:

    - ``NEXT_STEP``: the next step resets them, ignoring the action;
    - ``SAME_STEP``: they are reset at once. Observations and infos are of the new episode. Those of
      the last step are in ``infos["final_obs"]``, (N,) object, and ``infos["final_info"]``. The
      masks ``"_final_obs"`` and ``"_final_info"``, (N,) bool, tell which worlds have them;
    - ``DISABLED``: they must be reset by ``reset(options={"reset_mask": mask})`` before the next
      step.

    Random numbers are drawn ahead, so generators are not exposed. Copies and pickles continue with
    the same numbers.

    :param num_envs: N, at least 1
    :param layout: A :class:`~gym_twoRooms.layout.Layout`, the name of one (``"paper"``,
        ``"small"``, ``"locks"``, ``"warehouse"`` or ``"mansion"``), or an ASCII map
    :param slip_probability: Probability, in [0, 1], that an action on slippery floor becomes a
        random move
    :param close_probability: Probability, in [0, 1], that an open, empty door closes after an
        action, for each door
    :param render_mode: ``"rgb_array"``: :meth:`render` returns pictures, (H * cell_size, W *
        cell_size, 3) uint8 each; ``"ansi"``: maps in characters, H lines each; None: nothing
    :param cell_size: Width and height of a cell in pictures for people, in pixels
    :param max_episode_steps: Number of steps after which an episode is truncated; None for never
    :param autoreset_mode: One of :class:`gymnasium.vector.AutoresetMode`, or its value; it is
        ``metadata["autoreset_mode"]``
    :raises LayoutError: If the map is not valid, or not all states can be reached from each other
    :raises TypeError: If ``num_envs`` or ``max_episode_steps`` is not an integer
    :raises ValueError: If another argument is out of range
    :ivar mdp: The compiled world, a :class:`~gym_twoRooms.mdp.TwoRoomsMDP`
    """

    # Gymnasium declares the metadata as a plain class attribute too.
    metadata = {  # noqa: RUF012
        **TwoRoomsSwitchEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    copy = True
    """Observations are new arrays at each step, like those of a SyncVectorEnv with ``copy``."""

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
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, got {value!r}.")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        check_rendering(render_mode, cell_size)
        known = [mode.value for mode in AutoresetMode]
        if autoreset_mode not in [*AutoresetMode, *known]:
            raise ValueError(
                f"autoreset_mode must be an AutoresetMode or one of {known}, "
                f"got {autoreset_mode!r}."
            )
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.mdp: TwoRoomsMDP = compile_layout(layout, slip_probability, close_probability)
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.render_mode = render_mode
        self.cell_size = cell_size
        self.single_observation_space = observation_space(self.mdp)
        self.single_action_space = spaces.Discrete(self.mdp.n_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams = _UniformStreams(num_envs)
        self._states: NDArray[np.int64] | None = None
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        # Worlds whose episode has ended. The next step resets them, or the user must.
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    @property
    def states(self) -> NDArray[np.int64]:
        """
        The numbers of the current states, a copy, (N,) int64.

        :raises ResetNeeded: If the environment was never reset
        """
        return self._current().copy()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin episodes. This draws one uniform number for each world that is reset, or none if
        states are given.

        :param seed: One integer, with which world i gets the seed ``seed + i``; or N seeds, each an
            integer or None. None leaves the random number generator of a world as it is
        :param options: None, or a dict with one or both of two keys. ``"state"``: the state to
            start in, one integer for all worlds or (N,) integers; without it, starts are random.
            ``"reset_mask"``: whether to reset each world, (N,) bool; without it, all are reset.
            Where the mask is False, the world and its generator stay as they are
        :return: The observations of all worlds, (N, H, W, 3) uint8, and infos: ``"state"``, (N,)
            int64, and ``"action_mask"``, (N, 5) int8. Both are 0 for worlds that were not reset;
            ``"_state"`` and ``"_action_mask"``, (N,) bool, tell which were reset
        :raises TypeError: If a given state is not an integer, or the mask is not an array of bool
        :raises ValueError: If there is no such state, the mask has another shape or is False
            everywhere, there are other options, or the number of seeds is not N
        :raises ResetNeeded: If the first reset leaves out a world
        """
        if seed is None:
            seeds: Sequence[int | None] = [None] * self.num_envs
        elif isinstance(seed, int):
            seeds = [seed + row for row in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"There must be one seed for each of the {self.num_envs} environments, "
                f"got {len(seeds)}."
            )
        # SyncVectorEnv takes the mask out of the caller's dict. This copy leaves it there, because
        # wrappers look for it after this call.
        options = dict(options or {})
        mask = self._check_mask(options.pop("reset_mask", None))
        rows = np.flatnonzero(mask)
        states = given_state(options, ("reset_mask",))
        if states is not None:
            if np.shape(states) not in ((), (self.num_envs,)):
                raise ValueError(
                    f"The states must be one or have shape ({self.num_envs},), "
                    f"got {np.shape(states)}."
                )
            states = self.mdp.check_states(np.broadcast_to(np.asarray(states), self.num_envs)[rows])
        for row in rows.tolist():
            seed_of_row = seeds[row]
            if seed_of_row is not None:
                self._streams.seed(row, seed_of_row)
        if states is None:
            states = self.mdp.initial_states(self._streams.take(rows))
        if self._states is None:
            self._states = np.zeros(self.num_envs, dtype=np.int64)
        self._states[rows] = states
        self._elapsed[rows] = 0
        self._ended[rows] = False
        return self.mdp.observe(self._states), self._infos(mask)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the states of the worlds and of their random number generators.

        :return: A dictionary for :meth:`set_checkpoint_state`. It also has the arguments of the
            environment, and it is a copy: later steps do not change it
        """
        variables = {
            "states": self._states,
            "elapsed": self._elapsed,
            "ended": self._ended,
            "streams": vars(self._streams),
        }
        return {"world": self._world(), **copy.deepcopy(variables)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Continue from a saved state.

        :param state: What :meth:`get_checkpoint_state` returned
        :raises ValueError: If it is the state of an environment with other arguments
        """
        check_world(state["world"], self._world())
        state = copy.deepcopy(state)
        self._states = state["states"]
        self._elapsed = state["elapsed"]
        self._ended = state["ended"]
        vars(self._streams).update(state["streams"])

    def action_masks(self) -> NDArray[np.bool_]:
        """
        Return ``infos["action_mask"]`` for sb3-contrib's maskable learners.

        :return: Whether each action may do something, a new array, (N, 5) bool
        :raises ResetNeeded: If the environment was never reset
        """
        return self.mdp.action_masks(self._current()).astype(np.bool_)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[
        NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]
    ]:
        """
        Act in all worlds. This draws one uniform number for each world in which the step is random,
        and one for each in which an episode starts.

        :param actions: The actions, (N,) integers in [0, 5)
        :return: Observations, (N, H, W, 3) uint8; rewards 0, (N,) float64; terminated, all False,
            (N,) bool; truncated, (N,) bool; infos: ``"state"``, (N,) int64, and ``"action_mask"``,
            (N, 5) int8, with the masks ``"_state"`` and ``"_action_mask"``, all True, (N,) bool. In
            mode ``SAME_STEP`` the infos also have what the class describes
        :raises InvalidAction: If there is no such action, or the shape is wrong
        :raises ResetNeeded: If the environment was never reset
        :raises AssertionError: If an episode has ended in mode ``DISABLED`` and was not reset
        """
        states = self._current()
        actions = self._check_actions(actions)
        starting = self._ended
        if starting.any():
            states = self._step_some(states, actions, starting)
        else:
            states = self.mdp.step(states, actions, self._streams.take)
        self._states = states
        self._elapsed += 1
        self._elapsed[starting] = 0
        if self.max_episode_steps is None:
            truncated = np.zeros(self.num_envs, dtype=np.bool_)
        else:
            truncated = self._elapsed >= self.max_episode_steps
        infos: dict[str, Any] = {}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended = truncated.copy()
        elif truncated.any():
            infos = self._final_infos(states, truncated)
            rows = np.flatnonzero(truncated)
            states[rows] = self.mdp.initial_states(self._streams.take(rows))
            self._elapsed[rows] = 0
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        return self.mdp.observe(states), rewards, terminated, truncated, infos | self._infos()

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """
        Show the current states in the form of the render mode.

        :return: N pictures, (H * cell_size, W * cell_size, 3) uint8 each; or N maps in characters;
            or None, with a warning, if there is no render mode
        :raises ResetNeeded: If the environment was never reset
        """
        if self.render_mode is None:
            warn_about_rendering()
            return None
        return tuple(
            show(self.mdp, state, self.render_mode, self.cell_size)
            for state in self._current().tolist()
        )

    def _world(self) -> dict[str, Any]:
        """Return what a checkpoint says about its environment."""
        return {
            **world_of(self.mdp),
            "num_envs": self.num_envs,
            "max_episode_steps": self.max_episode_steps,
            "autoreset_mode": self.autoreset_mode.value,
            "block": self._streams.BLOCK,
        }

    def _current(self) -> NDArray[np.int64]:
        if self._states is None:
            raise ResetNeeded("The environment has no states yet: call reset() first.")
        return self._states

    def _step_some(
        self, states: NDArray[np.int64], actions: NDArray[np.int64], starting: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Step where an episode continues, and start a new one where it has ended."""
        rows = np.flatnonzero(starting)
        going = np.flatnonzero(~starting)
        # SyncVectorEnv raises the same error, but steps some worlds before.
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise AssertionError(
                f"Environments {rows.tolist()} have ended: reset them with "
                "options={'reset_mask': mask} first."
            )
        states = states.copy()
        states[going] = self.mdp.step(
            states[going], actions[going], lambda chosen: self._streams.take(going[chosen])
        )
        states[rows] = self.mdp.initial_states(self._streams.take(rows))
        return states

    def _infos(self, mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """Return the infos of the worlds where ``mask`` is True, zeros elsewhere, with masks."""
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

    def _final_infos(
        self, states: NDArray[np.int64], truncated: NDArray[np.bool_]
    ) -> dict[str, Any]:
        """Return the last observations and infos of the episodes that this step truncated."""
        rows = np.flatnonzero(truncated)
        observations = np.full(self.num_envs, None, dtype=object)
        for row, observation in zip(rows.tolist(), self.mdp.observe(states[rows]), strict=True):
            observations[row] = observation
        return {
            "final_obs": observations,
            "_final_obs": truncated.copy(),
            "final_info": self._infos(truncated),
            "_final_info": truncated.copy(),
        }

    def _check_actions(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the actions as an array, or raise InvalidAction."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise InvalidAction(
                f"Actions must be {self.num_envs} integers, got {actions.dtype} of shape "
                f"{actions.shape}."
            )
        if actions.min() < 0 or actions.max() >= self.mdp.n_actions:
            raise InvalidAction(
                f"Each action must be in [0, {self.mdp.n_actions}), got {actions.min()} to "
                f"{actions.max()}."
            )
        return actions.astype(np.intp, copy=False)

    def _check_mask(self, mask: Any) -> NDArray[np.bool_]:
        """Return the mask of a reset, or raise an error if it does not fit."""
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
    """
    Streams of uniform numbers for N worlds, drawn in blocks.

    A generator's ``random(K)`` gives the numbers that K calls would give.
    """

    # The length of a block is no power of two. Otherwise the next numbers of all streams would
    # share a few lines of the cache.
    BLOCK = 392

    def __init__(self, n: int) -> None:
        self.generators: list[np.random.Generator | None] = [None] * n
        self.block = np.zeros((n, self.BLOCK))
        self.ends = (np.arange(n) + 1) * self.BLOCK
        self.next = self.ends.copy()

    def seed(self, index: int, seed: int) -> None:
        self.generators[index] = seeding.np_random(seed)[0]
        self.next[index] = self.ends[index]

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the next number of each of these streams. Each stream may be named once."""
        places = self.next.take(rows)
        used_up = places == self.ends.take(rows)
        if used_up.any():
            for index in rows[used_up].tolist():
                generator = self.generators[index]
                if generator is None:
                    generator = seeding.np_random()[0]
                    self.generators[index] = generator
                generator.random(out=self.block[index])
                self.next[index] -= self.BLOCK
            places = self.next.take(rows)
        self.next[rows] = places + 1
        return self.block.take(places)
