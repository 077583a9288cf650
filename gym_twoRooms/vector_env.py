"""Many worlds at once, without sub-environments: each step is a few table lookups."""

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

from gym_twoRooms.env import TwoRoomsSwitchEnv, check_rendering, given_state, observation_space
from gym_twoRooms.layout import Layout, as_layout
from gym_twoRooms.mdp import TwoRoomsMDP, compile_layout
from gym_twoRooms.rendering import draw


class TwoRoomsSwitchVectorEnv(gym.vector.VectorEnv[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]):
    """
    N copies of :class:`~gym_twoRooms.env.TwoRoomsSwitchEnv`, step for step equal to a
    :class:`gymnasium.vector.SyncVectorEnv` of them with the same seeds, and much faster.

    Worlds never terminate. With ``max_episode_steps`` they are truncated, and the step after that one resets
    (``AutoresetMode.NEXT_STEP``), ignoring the action.

    Random numbers are drawn ahead in blocks, so the generators themselves are not exposed; a copy or a pickle goes on with
    the very same numbers.

    :param num_envs: N, at least 1
    :param layout: As for :class:`~gym_twoRooms.env.TwoRoomsSwitchEnv`
    :param slip_probability: As there
    :param close_probability: As there
    :param render_mode: As there; :meth:`render` returns a tuple of N pictures
    :param cell_size: As there
    :param max_episode_steps: Number of steps after which an episode is truncated; None for never
    :raises LayoutError: As there
    :raises TypeError: If ``num_envs`` or ``max_episode_steps`` is not an integer
    :raises ValueError: If an argument is out of range
    """

    metadata = {**TwoRoomsSwitchEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as VectorEnv

    def __init__(
        self,
        num_envs: int,
        layout: Layout | str = "paper",
        slip_probability: float = 0.5,
        close_probability: float = 0.01,
        render_mode: str | None = None,
        cell_size: int = 32,
        max_episode_steps: int | None = None,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("max_episode_steps", max_episode_steps)):
            if value is None and name == "max_episode_steps":
                continue
            if not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}.")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        check_rendering(render_mode, cell_size)
        self.mdp: TwoRoomsMDP = compile_layout(as_layout(layout), slip_probability, close_probability)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.cell_size = cell_size
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = observation_space(self.mdp)
        self.single_action_space = spaces.Discrete(self.mdp.n_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._streams = _UniformStreams(num_envs)
        self._states: NDArray[np.int64] | None = None
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._truncated = np.zeros(num_envs, dtype=np.bool_)

    @property
    def states(self) -> NDArray[np.int64]:
        """
        A copy of the numbers of the current states, (N,) int64.

        :raises ResetNeeded: If the environment was not reset yet
        """
        return self._current().copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Start an episode in each world. Draws one uniform number for each, or none when states are given.

        :param seed: ``seed + i`` seeds world i; or one seed for each; None, also in the sequence, goes on with the generator
        :param options: ``{"state": number}`` or ``{"state": (N,) numbers}`` to start in certain states
        :return: Observations, (N, H, W, 3) uint8, and the infos: ``"state"`` (N,) int64, ``"action_mask"`` (N, 5) int8, and
            ``"_state"`` and ``"_action_mask"``, (N,) bool, all True
        :raises TypeError: If a state is not an integer
        :raises ValueError: If there is no such state, an option is unknown, or the number of seeds or states is not N
        """
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"There must be one seed for each of the {self.num_envs} environments, got {len(seeds)}.")
        given = given_state(options)
        for index, single in enumerate(seeds or ()):
            if single is not None:
                self._streams.seed(index, single)
        if given is None:
            uniforms = self._streams.take(np.ones(self.num_envs, dtype=np.intp))
            self._states = self.mdp.initial_states(uniforms[:, 0])
        else:
            states = self.mdp.check_states(given)
            if states.shape not in ((), (self.num_envs,)):
                raise ValueError(f"The states must be one integer or have shape ({self.num_envs},), got {states.shape}.")
            self._states = np.broadcast_to(states, self.num_envs).copy()
        self._elapsed[:] = 0
        self._truncated[:] = False
        return self.mdp.observe(self._states), self._infos(self._states)

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """
        Act once in each world. Draws two uniform numbers for each, or one where an episode starts.

        :param actions: An action for each world, (N,) int
        :return: Observations, (N, H, W, 3) uint8; rewards, (N,) float64, all 0; terminations, (N,) bool, all False;
            truncations, (N,) bool; infos as from :meth:`reset`
        :raises InvalidAction: If the actions are not N integers in [0, 5)
        :raises ResetNeeded: If the environment was not reset yet
        """
        states = self._current()
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise InvalidAction(f"Actions must be {self.num_envs} integers, got {actions.dtype} of shape {actions.shape}.")
        if actions.min() < 0 or actions.max() >= self.mdp.n_actions:
            raise InvalidAction(f"Each action must be in [0, {self.mdp.n_actions}), got {actions.min()} to {actions.max()}.")

        starting = self._truncated
        uniforms = self._streams.take(np.where(starting, 1, 2))
        states = self.mdp.step(states, actions, uniforms).astype(np.int64)
        self._states = np.where(starting, self.mdp.initial_states(uniforms[:, 0]), states)
        self._elapsed = np.where(starting, 0, self._elapsed + 1)
        limit = np.inf if self.max_episode_steps is None else self.max_episode_steps
        self._truncated = self._elapsed >= limit
        return (
            self.mdp.observe(self._states),
            np.zeros(self.num_envs),
            np.zeros(self.num_envs, dtype=np.bool_),
            self._truncated.copy(),
            self._infos(self._states),
        )

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """
        Draw the current states for people.

        :return: N pictures, (H * cell_size, W * cell_size, 3) uint8 each, or None without a render mode
        :raises ResetNeeded: If the environment was not reset yet
        """
        if self.render_mode is None:
            gym.logger.warn('render() does nothing without a render mode: make the environment with render_mode="rgb_array".')
            return None
        return tuple(draw(self.mdp, int(state), self.cell_size) for state in self._current())

    def _current(self) -> NDArray[np.int64]:
        if self._states is None:
            raise ResetNeeded("The environment has no states yet: call reset() first.")
        return self._states

    def _infos(self, states: NDArray[np.int64]) -> dict[str, Any]:
        return {
            "state": states.copy(),
            "_state": np.ones(self.num_envs, dtype=np.bool_),
            "action_mask": self.mdp.action_mask[states],
            "_action_mask": np.ones(self.num_envs, dtype=np.bool_),
        }


class _UniformStreams:
    """
    A generator of uniform numbers for each world, read in blocks: ``random(K)`` gives the numbers that K calls would.

    :param n: Number of streams
    """

    BLOCK = 256

    def __init__(self, n: int) -> None:
        self._generators: list[np.random.Generator | None] = [None] * n
        self._block = np.empty((n, self.BLOCK))
        self._used = np.full(n, self.BLOCK)
        self._row_starts = np.arange(n) * self.BLOCK

    def seed(self, index: int, seed: int) -> None:
        """Start a stream anew, dropping the numbers read ahead."""
        self._generators[index] = seeding.np_random(seed)[0]
        self._used[index] = self.BLOCK

    def take(self, counts: NDArray[np.intp]) -> NDArray[np.float64]:
        """
        The next two numbers of each stream, (n, 2), of which only ``counts`` (n,), at most 2, are used up.
        """
        for index in np.flatnonzero(self._used > self.BLOCK - 2):
            generator = self._generators[index]
            if generator is None:
                generator = self._generators[index] = seeding.np_random()[0]
            left = self._block[index, self._used[index] :].copy()
            self._block[index, : len(left)] = left
            self._block[index, len(left) :] = generator.random(self.BLOCK - len(left))
            self._used[index] = 0
        start = self._row_starts + self._used
        self._used += counts
        return self._block.take(np.stack([start, start + 1], axis=1))
