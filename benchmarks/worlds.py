"""Worlds to learn in, by their ids: for mastery, and with a rare reward for A2C."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit, TransformObservation
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv

import gym_twoRooms  # noqa: F401 - registers its worlds
from benchmarks.tables import NotEnumerable, Outcomes, Tables, explore, explore_by_copies
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout, LayoutError
from sb3_manygoals import GymnasiumVecEnv
from sb3_manygoals.goals.spaces import check_goal_space

_EMPTY = (1, 0, 0)
"""MiniGrid's code of an empty cell."""

TILE = 4
"""Pixels a side of a cell in MiniGrid's pictures for A2C, and of a cell of pixel control there."""

OWN_WORLD = (
    "An own world is given as module:Id-v0, where the module registers Id-v0. Run from the folder "
    "of this project, with the folder of your module on the path: "
    "PYTHONPATH=/your/folder python -m benchmarks mastery --world module:Id-v0"
)
"""How to name a world that no package registers, for messages."""


class SettingError(ValueError):
    """Raised when there is no such world, or an agent cannot learn in it with these settings."""


@contextmanager
def building(what: str) -> Iterator[None]:
    """
    Turn errors while something is built from a user's settings into SettingErrors.

    :param what: name of the object that is built, for messages
    :raises SettingError: in place of errors of this project, SB3, Gymnasium and PyTorch
    """
    try:
        yield
    except (SettingError, LayoutError):
        raise
    except (TypeError, ValueError, RuntimeError, ImportError, gym.error.Error) as error:
        raise SettingError(f"{what} cannot be built: {error}") from error


def layout_of(name: str) -> Layout:
    """
    Return a layout.

    :param name: name of a layout that comes with the package, or of a file with an ASCII map
    :return: the layout
    :raises LayoutError: if there is none of this name, or the file is no valid map
    """
    if name in NAMED_LAYOUTS:
        return NAMED_LAYOUTS[name]
    if not Path(name).is_file():
        raise LayoutError(f"map must be one of {', '.join(NAMED_LAYOUTS)}, or a file, got {name!r}")
    return Layout.read(name)


def _made(name: str, **options: Any) -> gym.Env[Any, Any]:
    """Make an environment. If it is not found, the error says how an own world is given."""
    try:
        return gym.make(name, **options)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        raise gym.error.Error(f"{error} {OWN_WORLD}") from error


class FewSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """
    A world that accepts few seeds. Any other seed is taken modulo their number.

    :param env: the world
    :param n: the number of its scenarios, which have the seeds from 0 to n - 1
    """

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        super().__init__(env)
        self.n = n

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Begin an episode.

        :param seed: any whole number, or None
        :param options: options of the world
        :return: first observation and info
        """
        return self.env.reset(seed=None if seed is None else seed % self.n, options=options)


@dataclass(frozen=True)
class World:
    """
    A world without goals.

    Those of MiniGrid have one layout, and are seen as :class:`WholeGrid` shows them.
    """

    id: str
    """Id of a Gymnasium environment; ``module:Id-v0``, if a module has to register it."""
    map: str | None = None
    """Layout of a TwoRoomsSwitch world, see :func:`layout_of`; None for its own."""
    scenarios: int | None = field(default=None, kw_only=True)
    """Number of seeds that the world accepts, from 0 to one less; others are taken modulo it. None
    for a world that accepts any."""

    @property
    def is_two_rooms(self) -> bool:
        """Whether it is a TwoRoomsSwitch world."""
        return self._bare_id.startswith("TwoRoomsSwitch")

    @property
    def _bare_id(self) -> str:
        """The id without the module that registers it."""
        return self.id.rpartition(":")[2]

    @property
    def name(self) -> str:
        """Name for folders."""
        name = re.sub("[/:]", "-", self.id).removesuffix("-v0")
        return name if self.map is None else f"{name}-{Path(self.map).stem}"

    @property
    def _options(self) -> dict[str, Any]:
        """Options of ``gymnasium.make`` for the map."""
        if self.map is None:
            return {}
        if not self.is_two_rooms:
            raise SettingError(
                f"map is for TwoRoomsSwitch worlds only, got {self.map!r} for {self.id!r}"
            )
        return {"layout": layout_of(self.map)}

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        """
        Make an environment.

        :param options: further options of ``gymnasium.make``
        :return: the environment
        :raises SettingError: if there is none of this id, or agents cannot learn goals in it
        """
        env: gym.Env[Any, Any]
        with building(f"a world with goals to learn of {self.id!r}"):
            if self._bare_id.startswith(("MiniGrid-", "BabyAI-")):
                import minigrid  # noqa: F401 - it registers its worlds

                # WholeGrid does not show the agent's partial view, which takes half of a step.
                env = WholeGrid(
                    gym.make(
                        self.id, **self._options, agent_view_size=3, highlight=False, **options
                    )
                )
            else:
                env = _made(self.id, **self._options, **options)
            if self.scenarios is not None:
                env = FewSeeds(env, self.scenarios)
            if isinstance(env.observation_space, spaces.Dict):
                raise TypeError(
                    "its observations are Dicts, which the command line does not take. "
                    "ManyGoalsDQN itself takes Dicts of arrays, and GoalEnvs: call it in Python"
                )
            check_goal_space(env.observation_space)
        if not isinstance(env.action_space, spaces.Discrete) or env.action_space.start != 0:
            raise SettingError(
                f"world must have discrete actions that start at 0, got {self.id!r} "
                f"with {env.action_space}"
            )
        return env

    def vector(self, n_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """
        Make several environments in one: the world's own vector environment, if it has one.

        :param n_envs: number of environments
        :return: a vector environment that does not reset itself when episodes end
        """
        if self.is_two_rooms:
            return gym.make_vec(
                self.id, n_envs, "vector_entry_point", autoreset_mode="Disabled", **self._options
            )
        if self._own_tables is not None:
            return gym.make_vec(self.id, n_envs, "vector_entry_point")
        return gym.vector.SyncVectorEnv([self.make] * n_envs, autoreset_mode=AutoresetMode.DISABLED)

    def make_many(self, n_envs: int, seed: int) -> VecEnv:
        """
        Make an SB3 vector of environments.

        :param n_envs: number of environments
        :param seed: seed of the first
        :return: the environments
        """
        if self.is_two_rooms or self._own_tables is not None:
            return GymnasiumVecEnv(self.vector(n_envs))
        return make_vec_env(self.make, n_envs, seed)

    @cached_property
    def space(self) -> spaces.Space[Any]:
        """Space of observations."""
        env = self.make()
        env.close()
        return env.observation_space

    @property
    def is_seen(self) -> bool:
        """Whether observations are pictures."""
        return is_image_space(self.space)

    @cached_property
    def _own_tables(self) -> Tables | None:
        """The tables that the world itself has, with a vector environment; None without any."""
        env = self.make()
        tables = getattr(env.unwrapped, "tables", None)
        env.close()
        return tables if isinstance(tables, Tables) else None

    @cached_property
    def tables(self) -> Tables:
        """
        The world as tables, without its time limit.

        They are its own, if it has ``tables``; or they come from its own model in ``P``, if it has
        one; else it is explored by copies.
        """
        if self._own_tables is not None:
            return self._own_tables
        env = self.make()
        world: Any = env.unwrapped
        if not hasattr(world, "P"):
            return explore_by_copies(env)
        first = getattr(world, "initial_state_distrib", None)
        model = world.P
        if self.is_two_rooms:
            first = np.full(len(model), 1.0 / len(model))
            shown = world.mdp.render
        elif isinstance(env.observation_space, spaces.Discrete) and first is not None:
            shown = np.asarray
        else:
            raise NotEnumerable(
                "its model does not say with which states it begins, or how they look"
            )

        def outcomes(state: Any, action: int) -> Outcomes:
            return [
                (chance, after, bool(ended)) for chance, after, _, ended in model[state][action]
            ]

        starts: dict[Hashable, float] = {
            int(state): float(first[state]) for state in np.flatnonzero(first)
        }
        return explore(
            env, starts, outcomes, lambda states: shown(np.array(states, dtype=np.int64))
        )


class WholeGrid(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """
    A MiniGrid world of one layout, as a picture of all of it.

    It has a pixel for each cell, with its object, colour and state, or the agent and its direction.
    A last row of pixels shows what the agent carries, which MiniGrid's FullyObsWrapper does not.

    :param env: a MiniGrid environment
    """

    SCALE = np.array([25, 51, 85], dtype=np.uint8)
    """
    Factors that scale MiniGrid's codes to the range of a pixel.

    Codes of objects go up to 10, those of colours up to 5, and those of states up to 3.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        grid: Any = env.unwrapped
        self.observation_space = spaces.Box(0, 255, (grid.width + 1, grid.height, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Begin an episode in the one layout.

        :param seed: has no effect
        :param options: options of the world
        :return: first observation and info
        """
        return super().reset(seed=0, options=options)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """
        Return the picture of the world.

        :param observation: MiniGrid's own, which is not used
        :return: shape (width + 1, height, 3), uint8
        """
        world: Any = self.unwrapped
        cells = np.zeros(self.observation_space.shape or (), dtype=np.uint8)
        # These are the codes of Grid.encode(), found faster.
        codes = [_EMPTY if cell is None else cell.encode() for cell in world.grid.grid]
        rows = np.array(codes, dtype=np.uint8).reshape(world.height, world.width, 3)
        cells[:-1] = rows.swapaxes(0, 1)
        cells[tuple(world.agent_pos)] = (10, 0, world.agent_dir)
        if world.carrying is not None:
            cells[-1] = world.carrying.encode()
        return cells * self.SCALE

    @classmethod
    def one_hot(cls, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        """
        Turn pictures into vectors of zeros and ones.

        :param observations: pictures, shape (B, W, H, 3), uint8
        :return: shape (B, W * H * 21), float32
        """
        numbers = (observations // cls.SCALE).reshape(-1, 3)
        parts = [np.eye(n, dtype=np.float32)[numbers[:, axis]] for axis, n in enumerate((11, 6, 4))]
        return np.concatenate(parts, axis=1).reshape(len(observations), -1)


class RewardedStates(gym.Wrapper[Any, Any, Any, Any]):
    """
    TwoRoomsSwitch with a reward of 1 for some states, which end the episode.

    :param env: a TwoRoomsSwitch world
    :param rewarded: which states are rewarded, shape (S,)
    :param starts: which states an episode may begin with, shape (S,); rewarded ones are left out
    """

    def __init__(
        self, env: gym.Env[Any, Any], rewarded: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> None:
        super().__init__(env)
        self.rewarded = rewarded
        self.starts = np.flatnonzero(starts & ~rewarded)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Begin an episode.

        :param seed: seed of the world; by default its generator goes on
        :param options: options of the world; by default the start is drawn
        :return: first observation and info
        """
        if seed is not None:
            self.env.reset(seed=seed)
        return self.env.reset(options=options or {"state": int(self.np_random.choice(self.starts))})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        Take a step.

        :param action: action of the world
        :return: observation, reward of 0 or 1, whether a rewarded state ended the episode, whether
            it was cut short, and info
        """
        observation, _, _, truncated, info = self.env.step(action)
        reached = bool(self.rewarded[info["state"]])
        return observation, float(reached), reached, truncated, info


def two_rooms(game: str, goal: int, max_episode_steps: int) -> gym.Env[Any, Any]:
    """
    Make a TwoRoomsSwitch world with one rewarded state.

    Episodes begin with the blocks where they stand in that state: otherwise A2C would hardly ever
    reach it. Black pixels at the right and below make pictures square, as pixel control needs them.

    :param game: id of the environment
    :param goal: number of the rewarded state
    :param max_episode_steps: steps after which an episode is cut short
    :return: the world
    :raises SettingError: if there is no such state
    """
    env: gym.Env[Any, Any] = gym.make(game)
    mdp = env.unwrapped.mdp  # type: ignore[attr-defined]
    if not 0 <= goal < mdp.n_states:
        raise SettingError(f"goal must be in [0, {mdp.n_states}), got {goal}")
    env = RewardedStates(
        env, np.arange(mdp.n_states) == goal, (mdp.blocks == mdp.blocks[goal]).all(axis=1)
    )
    height, width, channels = env.observation_space.shape  # type: ignore[misc]
    side = max(height, width)
    margins = ((0, side - height), (0, side - width), (0, 0))
    space = spaces.Box(0, 255, (side, side, channels), np.uint8)
    env = TransformObservation(env, partial(np.pad, pad_width=margins), space)
    return TimeLimit(env, max_episode_steps)


def minigrid(game: str, max_episode_steps: int) -> gym.Env[Any, Any]:
    """
    Make a MiniGrid world that is seen whole, in pictures of 4 x 4 pixels a cell.

    :param game: id of the environment
    :param max_episode_steps: steps after which an episode is cut short; its reward depends on them
    :return: the world
    """
    # The command line works without minigrid, so it is imported here.
    from minigrid.wrappers import ImgObsWrapper, RGBImgObsWrapper

    # The agent's partial view would take more time than all else.
    env = gym.make(game, max_steps=max_episode_steps, highlight=False, agent_view_size=3)
    env = RGBImgObsWrapper(env, tile_size=TILE)  # type: ignore[no-untyped-call]
    pictures: gym.Env[Any, Any] = ImgObsWrapper(env)  # type: ignore[no-untyped-call]
    return pictures


class PartialView(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """
    What the agent of MiniGrid sees, in pictures of 4 x 4 pixels a cell.

    They are those of MiniGrid's RGBImgPartialObsWrapper, which draws every picture anew. Here each
    kind of cell is drawn once, and a step takes a third of the time.

    :param game: id of the environment
    :param max_episode_steps: steps after which an episode is cut short; its reward depends on them
    """

    def __init__(self, game: str, max_episode_steps: int) -> None:
        from minigrid.core.grid import Grid
        from minigrid.core.world_object import WorldObj

        super().__init__(gym.make(game, max_steps=max_episode_steps))
        n: int = self.unwrapped.agent_view_size  # type: ignore[attr-defined]
        self.observation_space = spaces.Box(0, 255, (n * TILE, n * TILE, 3), np.uint8)
        self._agent = np.zeros((n, n), dtype=np.int64)
        # The agent looks up from the middle of the last row.
        self._agent[n // 2, -1] = 1
        self._tiles = np.zeros((11, 6, 4, 2, TILE, TILE, 3), dtype=np.uint8)
        self._is_drawn = np.zeros(self._tiles.shape[:4], dtype=np.bool_)
        self._decode = WorldObj.decode
        self._draw = Grid.render_tile

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """
        Return the picture of what the agent sees.

        :param observation: MiniGrid's own, with "image" of shape (n, n, 3)
        :return: shape (4 * n, 4 * n, 3), uint8
        """
        cells = (*np.moveaxis(observation["image"], 2, 0), self._agent)
        for cell in np.stack(cells)[:, ~self._is_drawn[cells]].T.tolist():
            kind, colour, state, agent = cell
            seen = self._decode(kind, colour, state)
            self._tiles[tuple(cell)] = self._draw(
                seen, 3 if agent else None, highlight=kind > 0, tile_size=TILE
            )
            self._is_drawn[tuple(cell)] = True
        picture = self._tiles[cells].transpose(1, 2, 0, 3, 4)
        return np.asarray(picture.reshape(self.observation_space.shape or ()))
