"""
Worlds by their ids, written out as tables where that is possible: which observations can be met, what follows from each
action, and so how often the best policy would reach each goal.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv

import gym_twoRooms  # noqa: F401 - registers its worlds
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout, LayoutError
from sb3_manygoals import GoalBuffer, GymnasiumVecEnv
from sb3_manygoals.evaluation import Ceiling
from sb3_manygoals.goals.buffer import check_goal_space

MOST_STATES, MOST_SECONDS = 200_000, 120.0
"""A world that has more observations, or takes longer to be explored, is not written out."""

LAYOUT_SEED = 0
"""Of the one layout of a MiniGrid world."""

CHUNK = 64
"""Goals planned for at a time, so that what is worked on stays in the cache."""

SETTLED = 1e-7
"""Planning ends when no probability changes by more in a step."""

Outcomes = list[tuple[float, Hashable, bool]]
"""Of an action: how likely, what state follows, and whether the episode ends there."""


class SettingError(ValueError):
    """There is no such world, or an agent cannot learn in it so. The message says why."""


class NotEnumerable(Exception):
    """A world cannot be written out as tables; the message says why."""


def layout_of(name: str, setting: str = "map") -> Layout:
    """
    :param name: of a layout that comes with the package, or of a file with an ASCII map
    :param setting: what gives it, for messages
    :return: the layout
    :raises LayoutError: if there is none, or the map is not valid
    """
    if name in NAMED_LAYOUTS:
        return Layout.named(name)
    if not Path(name).is_file():
        raise LayoutError(f"{setting} must be one of {', '.join(NAMED_LAYOUTS)}, or a file, got {name!r}")
    return Layout.read(name)


@dataclass(frozen=True)
class World:
    """
    A world without goals.

    :ivar id: of a Gymnasium environment. Those of MiniGrid have one layout, and are seen as :class:`WholeGrid` shows them
    :ivar map: layout of a TwoRoomsSwitch world, see :func:`layout_of`; None: its own
    """

    id: str
    map: str | None = None

    @property
    def is_two_rooms(self) -> bool:
        """Whether it is one of this project's."""
        return self.id.startswith("TwoRoomsSwitch")

    @property
    def name(self) -> str:
        """For folders."""
        return self.id.replace("/", "-").removesuffix("-v0") + ("" if self.map is None else f"-{Path(self.map).stem}")

    @property
    def _options(self) -> dict[str, Any]:
        if self.map is None:
            return {}
        if not self.is_two_rooms:
            raise SettingError(f"map is for TwoRoomsSwitch worlds only, got {self.map!r} for {self.id!r}")
        return {"layout": layout_of(self.map)}

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        """
        :param options: of ``gymnasium.make``
        :return: an environment
        :raises SettingError: if there is none, or its observations cannot be goals or its actions are not discrete
        :raises LayoutError: if there is no such map
        """
        is_grid = self.id.startswith(("MiniGrid-", "BabyAI-"))
        try:
            if is_grid:
                import minigrid  # noqa: F401 - registers its worlds
            env = gym.make(self.id, **self._options, **options)
            env = WholeGrid(env) if is_grid else env
            check_goal_space(env.observation_space)
        except (gym.error.Error, ImportError, TypeError) as error:
            raise SettingError(
                f"world must be the id of an environment with goals to learn, got {self.id!r}: {error}"
            ) from error
        if not isinstance(env.action_space, spaces.Discrete) or env.action_space.start != 0:
            raise SettingError(f"world must have discrete actions that start at 0, got {self.id!r} with {env.action_space}")
        return env

    def vector(self, n_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """
        :param n_envs: how many
        :return: environments in one, the native one if there is one, which must be reset by their user
        """
        if self.is_two_rooms:
            return gym.make_vec(self.id, n_envs, "vector_entry_point", autoreset_mode="Disabled", **self._options)
        return gym.vector.SyncVectorEnv([self.make] * n_envs, autoreset_mode=AutoresetMode.DISABLED)

    def make_many(self, n_envs: int, seed: int) -> VecEnv:
        """
        :param n_envs: how many
        :param seed: of the first
        :return: an SB3 vector of environments
        """
        return GymnasiumVecEnv(self.vector(n_envs)) if self.is_two_rooms else make_vec_env(self.make, n_envs, seed)

    @cached_property
    def space(self) -> spaces.Space[Any]:
        """Of observations."""
        env = self.make()
        env.close()
        return env.observation_space

    @property
    def is_seen(self) -> bool:
        """Whether observations are pictures."""
        return is_image_space(self.space)

    @cached_property
    def tables(self) -> Tables:
        """
        The world written out, without its limit of time: from a model that it has itself, else explored by copies.

        :raises NotEnumerable: if that cannot be
        """
        env = self.make()
        assert isinstance(env.action_space, spaces.Discrete)
        world: Any = env.unwrapped
        if not hasattr(world, "P"):
            return _explore_by_copies(env)
        first, model = (getattr(world, "initial_state_distrib", None), world.P)
        if self.is_two_rooms:
            first, shown = np.full(len(model), 1.0 / len(model)), world.mdp.render
        elif isinstance(env.observation_space, spaces.Discrete) and first is not None:
            shown = np.asarray
        else:
            raise NotEnumerable("its model does not say with which states it begins, or how they look")

        def outcomes(state: Any, action: int) -> Outcomes:
            return [(chance, after, bool(ended)) for chance, after, _, ended in model[state][action]]

        starts: dict[Hashable, float] = {int(state): float(first[state]) for state in np.flatnonzero(first)}
        states, tables = _explore(starts, int(env.action_space.n), outcomes)
        return tables(env.observation_space, shown(np.array(states, dtype=np.int64)))


class WholeGrid(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """
    A MiniGrid world of one layout, as a picture of all of it: a pixel for each cell, with its object, colour and state, or
    the agent and where it looks; and a last row of pixels that is what the agent carries.

    :param env: the world; it is reset with the same seed each time
    """

    SCALE = np.array([25, 51, 85], dtype=np.uint8)
    """Of MiniGrid's numbers of objects, up to 10, colours, up to 5, and states, up to 3: they fill the range of a pixel."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        grid: Any = env.unwrapped
        self.observation_space = spaces.Box(0, 255, (grid.width + 1, grid.height, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the world's, but for the seed."""
        return super().reset(seed=LAYOUT_SEED, options=options)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """
        :param observation: not used: what the agent sees
        :return: the picture
        """
        world: Any = self.unwrapped
        cells = np.zeros(self.observation_space.shape or (), dtype=np.uint8)
        cells[:-1] = world.grid.encode()
        cells[tuple(world.agent_pos)] = (10, 0, world.agent_dir)
        if world.carrying is not None:
            cells[-1] = world.carrying.encode()
        return cells * self.SCALE


@dataclass(frozen=True)
class Tables:
    """
    A world of S states and A actions, each state with an observation of its own.

    :ivar space: of observations
    :ivar observations: of the states, (S, *space.shape)
    :ivar starts: probability that an episode begins in a state, (S,)
    :ivar n_actions: A
    :ivar first: outcomes of an action in a state are those from ``first[state * A + action]`` up to the next, (S * A + 1,)
    :ivar next_states: of outcomes
    :ivar chances: of outcomes
    :ivar ended: whether the episode ends with an outcome
    """

    space: spaces.Space[Any]
    observations: NDArray[Any]
    starts: NDArray[np.float64]
    n_actions: int
    first: NDArray[np.int64]
    next_states: NDArray[np.int64]
    chances: NDArray[np.float64]
    ended: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if len(self._known) != len(self):
            raise NotEnumerable("it has states that look the same")

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _known(self) -> GoalBuffer:
        known = GoalBuffer(self.space, len(self))
        known.add(self.observations)
        return known

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: (n, *space.shape)
        :return: their states, -1 for what no state looks like, (n,)
        """
        return self._known.ids(observations)

    def ceiling(self, horizon: int) -> Ceiling:
        """
        :param horizon: steps allowed
        :return: a function of starts and goals, observations, that gives the probabilities, (n,), with which the best policy
            reaches each goal from its start in time
        """

        def ceiling(starts: NDArray[Any], goals: NDArray[Any]) -> NDArray[np.float64]:
            states = self.states_of(starts)
            wanted, rows = np.unique(self.states_of(goals), return_inverse=True)
            best = np.empty(len(states))
            for low in range(0, len(wanted), CHUNK):
                here = (rows >= low) & (rows < low + CHUNK)
                best[here] = self._reached(wanted[low : low + CHUNK], horizon)[states[here], rows[here] - low]
            return best

        return ceiling

    def _reached(self, goals: NDArray[np.int64], horizon: int) -> NDArray[np.float32]:
        """By backward induction: the best probability to reach each goal from each state, (S, G)."""
        from scipy.sparse import csr_array

        columns, shape = np.arange(len(goals)), (len(self.first) - 1, len(self))
        # An end elsewhere than in the goal is worth nothing.
        there = csr_array((self.chances, self.next_states, self.first), shape=shape)[:, goals].toarray().astype(np.float32)
        onward = csr_array((self.chances * ~self.ended, self.next_states, self.first), shape=shape, dtype=np.float32)
        there -= onward[:, goals].toarray()
        reached = np.zeros((len(self), len(goals)), dtype=np.float32)
        reached[goals, columns] = 1.0
        for _ in range(horizon):
            before = reached
            options = onward @ before
            options += there
            reached = options.reshape(len(self), self.n_actions, len(goals)).max(axis=1)
            np.minimum(reached, 1.0, out=reached)
            reached[goals, columns] = 1.0
            if np.abs(reached - before).max() <= SETTLED:
                break
        return reached


class TabularVectorEnv(gym.vector.VectorEnv[NDArray[Any], NDArray[np.int64], NDArray[Any]]):
    """
    N copies of a world that is written out: a step of all is a few look-ups. Rewards are 0.

    :param tables: the world
    :param num_envs: N
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - VectorEnv declares it so

    def __init__(self, tables: Tables, num_envs: int) -> None:
        self.tables, self.num_envs = tables, num_envs
        self.single_observation_space, self.single_action_space = tables.space, spaces.Discrete(tables.n_actions)
        self.observation_space = batch_space(tables.space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._over: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self._sums = np.concatenate([[0.0], np.cumsum(tables.chances)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """
        :param seed: of the generator that all share, or None to go on with it
        :param options: not used
        :return: observations, and no infos
        """
        super().reset(seed=seed, options=options)
        self.states, self._over[:] = self._begin(self.num_envs), False
        return self.tables.observations[self.states], {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """
        :param actions: (N,)
        :return: observations, rewards, whether episodes ended, that none was cut short, and no infos
        """
        table, over = self.tables, self._over
        rows = self.states * table.n_actions + actions
        low, high = table.first[rows], table.first[rows + 1]
        # Outcomes lie in a row by their chances: one number from the action's part of it picks one.
        drawn = self._sums[low] + self.np_random.random(self.num_envs) * (self._sums[high] - self._sums[low])
        picked = np.clip(np.searchsorted(self._sums, drawn, side="right") - 1, low, np.maximum(high - 1, low))
        picked[over] = 0  # of a state that was the end there are none
        self.states = table.next_states[picked]
        self._over = table.ended[picked] & ~over
        self.states[over] = self._begin(int(over.sum()))
        nothing = np.zeros(self.num_envs, dtype=np.bool_)
        return table.observations[self.states], np.zeros(self.num_envs), self._over.copy(), nothing, {}

    def _begin(self, n: int) -> NDArray[np.int64]:
        return np.asarray(self.np_random.choice(len(self.tables), size=n, p=self.tables.starts), dtype=np.int64)


def _explore(
    starts: dict[Hashable, float], n_actions: int, outcomes: Callable[[Any, int], Outcomes]
) -> tuple[list[Hashable], Callable[[spaces.Space[Any], NDArray[Any]], Tables]]:
    """
    Breadth first.

    :param starts: states, and how likely an episode begins with each
    :param n_actions: of the world
    :param outcomes: of an action in a state
    :return: all states, and the tables, which still want to know how states look
    """
    numbers = {state: number for number, state in enumerate(starts)}
    left: dict[Hashable, list[dict[tuple[int, bool], float]]] = {state: [] for state in starts}
    began = time.monotonic()
    waiting = list(starts)
    for state in waiting:  # which grows
        for action in range(n_actions):
            merged: dict[tuple[int, bool], float] = {}
            for chance, after, ended in outcomes(state, action):
                if chance > 0.0:
                    key = numbers.setdefault(after, len(numbers)), ended
                    merged[key] = merged.get(key, 0.0) + chance
                    if not ended and after not in left:
                        left[after] = []
                        waiting.append(after)
            left[state].append(merged)
        if len(numbers) > MOST_STATES or time.monotonic() - began > MOST_SECONDS:
            raise NotEnumerable(
                f"{len(numbers)} observations were met in {time.monotonic() - began:.0f} s, and there are more"
            )
    # From where an episode only ends nothing follows.
    rows = [merged for state in numbers for merged in left.get(state) or [{}] * n_actions]
    pairs = [key for merged in rows for key in sorted(merged)]

    def tables(space: spaces.Space[Any], observations: NDArray[Any]) -> Tables:
        return Tables(
            space,
            observations,
            np.array([starts.get(state, 0.0) for state in numbers]),
            n_actions,
            np.concatenate([[0], np.cumsum([len(merged) for merged in rows])]),
            np.array([after for after, _ in pairs], dtype=np.int64),
            np.array([merged[key] for merged in rows for key in sorted(merged)]),
            np.array([ended for _, ended in pairs], dtype=np.bool_),
        )

    return list(numbers), tables


def _explore_by_copies(env: gym.Env[Any, Any]) -> Tables:
    """Every action in a copy of the world at every observation; what looks the same is taken to be the same."""
    assert isinstance(env.action_space, spaces.Discrete)
    begun = [np.asarray(env.reset(seed=seed)[0]) for seed in range(5)]
    if not all(np.array_equal(begun[0], other) for other in begun):
        raise NotEnumerable("it begins at random, and has no model in P")
    n_actions, start = int(env.action_space.n), begun[0].tobytes()
    shown = {start: begun[0]}
    worlds: dict[bytes, gym.Env[Any, Any]] = {start: env}
    expanded: set[bytes] = set()

    def outcomes(state: bytes, action: int) -> Outcomes:
        try:
            world = copy.deepcopy(worlds[state])
        except Exception as error:  # whatever the classes of others raise
            raise NotEnumerable(f"it has no model in P, and cannot be copied: {error!r}") from error
        before = pickle.dumps(world.unwrapped.np_random.bit_generator.state)
        observation, _, ended, _, _ = world.step(action)
        if pickle.dumps(world.unwrapped.np_random.bit_generator.state) != before:
            raise NotEnumerable("its steps are left to chance, and it has no model in P")
        after = np.asarray(observation).tobytes()
        if after not in shown or not (ended or after in worlds or after in expanded):
            shown[after], worlds[after] = np.asarray(observation), world
        if action == n_actions - 1:  # all have been tried
            del worlds[state]
            expanded.add(state)
        return [(1.0, after, bool(ended))]

    states, tables = _explore({start: 1.0}, n_actions, outcomes)
    return tables(env.observation_space, np.stack([shown[state] for state in states]))  # type: ignore[index]
