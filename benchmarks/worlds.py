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
from sb3_manygoals.goals.buffer import check_goal_space

_EMPTY = (1, 0, 0)  # MiniGrid's code of an empty cell

TILE = 4
"""Pixels a side of a cell in MiniGrid's pictures for A2C, as of a cell of pixel control."""


OWN_WORLD = (
    "An own world is given as module:Id-v0, where the module registers Id-v0. Run from the folder of this project, with the "
    "folder of your module on the path: PYTHONPATH=/your/folder python -m benchmarks mastery --world module:Id-v0"
)
"""How to name a world that no package registers, for messages."""


class SettingError(ValueError):
    """There is no such world, or an agent cannot learn in it with these settings."""


@contextmanager
def building(what: str) -> Iterator[None]:
    """Errors of ours, SB3, Gymnasium and PyTorch while ``what`` is built of somebody's settings become a SettingError."""
    try:
        yield
    except (SettingError, LayoutError):
        raise
    except (TypeError, ValueError, RuntimeError, ImportError, gym.error.Error) as error:
        raise SettingError(f"{what} cannot be built: {error}") from error


def layout_of(name: str, setting: str = "map") -> Layout:
    """A layout by its name or by a file with an ASCII map; ``setting`` is what gives it, for messages."""
    if name in NAMED_LAYOUTS:
        return NAMED_LAYOUTS[name]
    if not Path(name).is_file():
        raise LayoutError(
            f"{setting} must be one of {', '.join(NAMED_LAYOUTS)}, or a file, got {name!r}"
        )
    return Layout.read(name)


def _made(name: str, **options: Any) -> gym.Env[Any, Any]:
    """``gymnasium.make``; where it finds nothing, the error says how an own world is given."""
    try:
        return gym.make(name, **options)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        raise gym.error.Error(f"{error} {OWN_WORLD}") from error


class FewSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """
    A world that accepts few seeds, for those who give it any.

    :param env: the world
    :param n: the number of its scenarios, of seeds from 0 to n - 1
    """

    def __init__(self, env: gym.Env[Any, Any], n: int) -> None:
        super().__init__(env)
        self.n = n

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        As the world's.

        :param seed: any whole number, or None
        :param options: for the world
        :return: its first observation, and info
        """
        return self.env.reset(seed=None if seed is None else seed % self.n, options=options)


@dataclass(frozen=True)
class World:
    """A world without goals. Those of MiniGrid have one layout, and are seen as :class:`WholeGrid` shows them."""

    id: str
    """Of a Gymnasium environment; of one that a module registers, ``module:Id-v0``."""
    map: str | None = None
    """Layout of a TwoRoomsSwitch world, see :func:`layout_of`; None: its own."""
    scenarios: int | None = field(default=None, kw_only=True)
    """Of a world that accepts the seeds below this number only; others are taken modulo it."""

    @property
    def is_two_rooms(self) -> bool:
        return self._bare_id.startswith("TwoRoomsSwitch")

    @property
    def _bare_id(self) -> str:
        """The id without the module that registers it."""
        return self.id.rpartition(":")[2]

    @property
    def name(self) -> str:
        """For folders."""
        return re.sub("[/:]", "-", self.id).removesuffix("-v0") + (
            "" if self.map is None else f"-{Path(self.map).stem}"
        )

    @property
    def _options(self) -> dict[str, Any]:
        if self.map is None:
            return {}
        if not self.is_two_rooms:
            raise SettingError(
                f"map is for TwoRoomsSwitch worlds only, got {self.map!r} for {self.id!r}"
            )
        return {"layout": layout_of(self.map)}

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        """An environment, by ``gymnasium.make`` with these options; an error if agents cannot learn goals in it."""
        env: gym.Env[Any, Any]
        with building(f"a world with goals to learn of {self.id!r}"):
            if self._bare_id.startswith(("MiniGrid-", "BabyAI-")):
                import minigrid  # noqa: F401 - registers its worlds

                # WholeGrid does without the agent's partial view, which takes half of a step.
                env = WholeGrid(
                    gym.make(
                        self.id, **self._options, agent_view_size=3, highlight=False, **options
                    )
                )
            else:
                env = _made(self.id, **self._options, **options)
            if self.scenarios is not None:
                env = FewSeeds(env, self.scenarios)
            check_goal_space(env.observation_space)
        if not isinstance(env.action_space, spaces.Discrete) or env.action_space.start != 0:
            raise SettingError(
                f"world must have discrete actions that start at 0, got {self.id!r} with {env.action_space}"
            )
        return env

    def vector(self, n_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """Environments in one, the native one if there is one, which must be reset by their user."""
        if self.is_two_rooms:
            return gym.make_vec(
                self.id, n_envs, "vector_entry_point", autoreset_mode="Disabled", **self._options
            )
        return gym.vector.SyncVectorEnv([self.make] * n_envs, autoreset_mode=AutoresetMode.DISABLED)

    def make_many(self, n_envs: int, seed: int) -> VecEnv:
        """An SB3 vector of environments; the seed is of the first."""
        return (
            GymnasiumVecEnv(self.vector(n_envs))
            if self.is_two_rooms
            else make_vec_env(self.make, n_envs, seed)
        )

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
        """The world without its time limit: from its own model in ``P``, else explored by copies."""
        env = self.make()
        world: Any = env.unwrapped
        if not hasattr(world, "P"):
            return explore_by_copies(env)
        first, model = getattr(world, "initial_state_distrib", None), world.P
        if self.is_two_rooms:
            first, shown = np.full(len(model), 1.0 / len(model)), world.mdp.render
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
    A MiniGrid world of one layout, as a picture of all of it: a pixel for each cell, with its object, colour and state, or
    the agent and its direction; a last row of pixels shows what the agent carries, which MiniGrid's FullyObsWrapper does not.
    """

    SCALE = np.array([25, 51, 85], dtype=np.uint8)
    """Scales MiniGrid's numbers of objects, up to 10, colours, up to 5, and states, up to 3, to the range of a pixel."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        grid: Any = env.unwrapped
        self.observation_space = spaces.Box(0, 255, (grid.width + 1, grid.height, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=0, options=options)  # one layout

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        world: Any = self.unwrapped
        cells = np.zeros(self.observation_space.shape or (), dtype=np.uint8)
        found = [
            _EMPTY if cell is None else cell.encode() for cell in world.grid.grid
        ]  # as Grid.encode(), faster
        cells[:-1] = (
            np.array(found, dtype=np.uint8).reshape(world.height, world.width, 3).swapaxes(0, 1)
        )
        cells[tuple(world.agent_pos)] = (10, 0, world.agent_dir)
        if world.carrying is not None:
            cells[-1] = world.carrying.encode()
        return cells * self.SCALE

    @classmethod
    def one_hot(cls, observations: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pictures, shape (B, W, H, 3), as vectors of zeros and ones, shape (B, W * H * 21), float32."""
        numbers = (observations // cls.SCALE).reshape(-1, 3)
        parts = [np.eye(n, dtype=np.float32)[numbers[:, axis]] for axis, n in enumerate((11, 6, 4))]
        return np.concatenate(parts, axis=1).reshape(len(observations), -1)


class RewardedStates(gym.Wrapper[Any, Any, Any, Any]):
    """TwoRoomsSwitch with a reward of 1 for some states, which end the episode. It begins in any of ``starts``."""

    def __init__(
        self, env: gym.Env[Any, Any], rewarded: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> None:
        super().__init__(env)
        self.rewarded, self.starts = rewarded, np.flatnonzero(starts & ~rewarded)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.env.reset(seed=seed)
        return self.env.reset(options=options or {"state": int(self.np_random.choice(self.starts))})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, _, truncated, info = self.env.step(action)
        reached = bool(self.rewarded[info["state"]])
        return observation, float(reached), reached, truncated, info


def two_rooms(game: str, goal: int, max_episode_steps: int) -> gym.Env[Any, Any]:
    """
    A TwoRoomsSwitch world with one rewarded state. Episodes begin where the blocks stand as there: otherwise A2C would hardly
    ever reach it. Pictures are made square by black pixels at the right and below, as pixel control looks at a square.
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
    """A MiniGrid world, seen whole, in pictures of 4 x 4 pixels a cell. Its reward depends on ``max_episode_steps``, too."""
    from minigrid.wrappers import (
        ImgObsWrapper,
        RGBImgObsWrapper,
    )  # here, as the command line works without it

    # Without the agent's partial view, which takes more time than all else.
    env = gym.make(game, max_steps=max_episode_steps, highlight=False, agent_view_size=3)
    pictures: gym.Env[Any, Any] = ImgObsWrapper(RGBImgObsWrapper(env, tile_size=TILE))  # type: ignore[no-untyped-call]
    return pictures


class PartialView(gym.ObservationWrapper[NDArray[np.uint8], Any, Any]):
    """
    What the agent of MiniGrid sees, in pictures of 4 x 4 pixels a cell: as MiniGrid's RGBImgPartialObsWrapper shows it, which
    draws every picture anew. Here each kind of cell is drawn once, and a step takes a third of the time.
    """

    def __init__(self, game: str, max_episode_steps: int) -> None:
        from minigrid.core.grid import Grid
        from minigrid.core.world_object import WorldObj

        super().__init__(gym.make(game, max_steps=max_episode_steps))
        n: int = self.unwrapped.agent_view_size  # type: ignore[attr-defined]
        self.observation_space = spaces.Box(0, 255, (n * TILE, n * TILE, 3), np.uint8)
        self._agent = np.zeros((n, n), dtype=np.int64)
        self._agent[n // 2, -1] = 1  # looks up from the middle of the last row
        self._tiles = np.zeros((11, 6, 4, 2, TILE, TILE, 3), dtype=np.uint8)
        self._is_drawn = np.zeros(self._tiles.shape[:4], dtype=np.bool_)
        self._decode, self._draw = WorldObj.decode, Grid.render_tile

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        cells = (*np.moveaxis(observation["image"], 2, 0), self._agent)
        for cell in np.stack(cells)[:, ~self._is_drawn[cells]].T.tolist():
            kind, colour, state, agent = cell
            seen = self._decode(kind, colour, state)
            self._tiles[tuple(cell)] = self._draw(
                seen, 3 if agent else None, highlight=kind > 0, tile_size=TILE
            )
            self._is_drawn[tuple(cell)] = True
        return np.asarray(
            self._tiles[cells].transpose(1, 2, 0, 3, 4).reshape(self.observation_space.shape or ())
        )
