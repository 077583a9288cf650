"""GoalEnvs whose states hardly ever recur: bits, wires and layouts drawn anew, a puzzle."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.envs import BitFlippingEnv


class RandomGoalBits(BitFlippingEnv):
    """
    SB3's BitFlippingEnv with a random goal in each episode. Its own goal is always all ones.

    :param n_bits: number of bits, and of steps of an episode
    """

    def __init__(self, n_bits: int) -> None:
        super().__init__(n_bits=n_bits, continuous=False, max_steps=n_bits)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Begin an episode with a random goal.

        :param seed: seed of state and goal
        :param options: not used
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.desired_goal = self._rng.integers(0, 2, len(self.desired_goal)).astype(np.int8)
        return super().reset(seed=seed)


class EqualGoalEnv(gym.Env[Any, Any]):
    """A GoalEnv in which a goal is reached if what is achieved equals it."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """
        Return 0 where the goal is reached, and else -1.

        :param achieved_goal: goals, shape (*batch, size)
        :param desired_goal: goals, the same shape
        :param info: not used
        """
        differs = np.not_equal(achieved_goal, desired_goal).any(axis=-1)
        return -np.asarray(differs, np.float64)


class WiredBits(EqualGoalEnv):
    """
    A ring of bits whose wires are drawn anew for each episode, as a GoalEnv. Action i flips bit i
    and, if bit i has a wire, the bit after it, too.

    An observation and a goal say which bits have wires, and what the bits are. So a goal is out of
    reach from all states with other wires. Not all bits have a wire. Then all bits can be reached.

    :param n_bits: number of bits, and of steps of an episode
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits = n_bits
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(
            {name: spaces.MultiBinary(2 * n_bits) for name in names}
        )
        self.action_space = spaces.Discrete(n_bits)
        self._wires = np.zeros(n_bits, np.int8)
        self._bits = np.zeros(n_bits, np.int8)
        self._goal = np.zeros(2 * n_bits, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Begin an episode with other wires, anywhere, with a goal anywhere.

        :param seed: seed of everything random
        :param options: not used
        """
        super().reset(seed=seed)
        drawn = self.np_random.integers(2, size=(3, self.n_bits), dtype=np.int8)
        self._wires, self._bits, goal = drawn
        if self._wires.all():
            self._wires[self.np_random.integers(self.n_bits)] = 0
        self._goal = np.concatenate([self._wires, goal])
        self._n_steps = 0
        return self._seen(), {"is_success": False}

    def _seen(self) -> dict[str, NDArray[np.int8]]:
        """Return wires and bits, and the goal."""
        achieved = np.concatenate([self._wires, self._bits])
        return {
            "observation": achieved,
            "achieved_goal": achieved.copy(),
            "desired_goal": self._goal.copy(),
        }

    def step(self, action: Any) -> Any:
        """
        Flip a bit, and the one after it if a wire leads there.

        :param action: number of the bit
        """
        number = int(action)
        self._bits[number] ^= 1
        self._bits[(number + 1) % self.n_bits] ^= self._wires[number]
        self._n_steps += 1
        seen = self._seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        truncated = self._n_steps >= self.n_bits
        return seen, reward, reward == 0.0, truncated, {"is_success": reward == 0.0}


class SlidingPuzzle(EqualGoalEnv):
    """
    A square of numbered tiles and one gap, as a GoalEnv. Four actions move the gap: up, down, left,
    right. An action that would move it out of the square does nothing.

    Episodes begin anywhere. Goals are where random moves lead from there, or anywhere.

    :param side: number of tiles on a side of the square, with the gap
    :param walks: numbers of random moves, one of which is drawn for each goal; 0 for goals anywhere
    :param n_steps: steps of an episode
    """

    _MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def __init__(self, side: int, walks: tuple[int, ...], n_steps: int = 100) -> None:
        self.side = side
        self.walks = walks
        self.n_steps = n_steps
        n_cells = side**2
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(
            {name: spaces.MultiDiscrete([n_cells] * n_cells) for name in names}
        )
        self.action_space = spaces.Discrete(len(self._MOVES))
        self._tiles = np.arange(n_cells)
        self._goal = self._tiles

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Begin an episode anywhere, with a goal.

        :param seed: seed of everything random
        :param options: may have "goal", a number: the goal is of the walk with this number, counted
            from 0, and again from the first one after the last
        """
        super().reset(seed=seed)
        self._tiles = self._anywhere()
        number = (options or {}).get("goal", self.np_random.integers(len(self.walks)))
        n_moves = self.walks[number % len(self.walks)]
        self._goal = self._walked(self._tiles, n_moves) if n_moves else self._anywhere()
        self._n_steps = 0
        return self._seen(), {"is_success": False}

    def _anywhere(self) -> NDArray[np.int64]:
        """Return a random order of the tiles that moves can reach."""
        tiles: NDArray[np.int64] = self.np_random.permutation(self.side**2)
        # Each move swaps the gap with a tile, and moves it by one cell. So orders can be reached in
        # which the number of swaps is even or odd as the distance of the gap from its corner is.
        n_inversions = int(sum((tiles[place] > tiles[place:]).sum() for place in range(len(tiles))))
        gap = int(np.flatnonzero(tiles == 0)[0])
        if (n_inversions + gap // self.side + gap % self.side) % 2:
            others = np.flatnonzero(tiles != 0)[:2]
            tiles[others] = tiles[others[::-1]]
        return tiles

    def _walked(self, tiles: NDArray[np.int64], n_moves: int) -> NDArray[np.int64]:
        """Return where random moves lead that do not take back the one before."""
        last = None
        for _ in range(n_moves):
            after = [self._moved(tiles, action) for action in range(len(self._MOVES))]
            others = [
                one
                for one in after
                if not np.array_equal(one, tiles)
                and (last is None or not np.array_equal(one, last))
            ]
            last = tiles
            tiles = others[self.np_random.integers(len(others))]
        return tiles

    def _moved(self, tiles: NDArray[np.int64], action: int) -> NDArray[np.int64]:
        """Return the tiles after an action."""
        gap = int(np.flatnonzero(tiles == 0)[0])
        row = gap // self.side + self._MOVES[action][0]
        column = gap % self.side + self._MOVES[action][1]
        moved = tiles.copy()
        if 0 <= row < self.side and 0 <= column < self.side:
            other = row * self.side + column
            moved[[gap, other]] = moved[[other, gap]]
        return moved

    def _seen(self) -> dict[str, NDArray[np.int64]]:
        """Return the tiles and the goal."""
        return {
            "observation": self._tiles.copy(),
            "achieved_goal": self._tiles.copy(),
            "desired_goal": self._goal.copy(),
        }

    def step(self, action: Any) -> Any:
        """
        Move the gap.

        :param action: one of four directions
        """
        self._tiles = self._moved(self._tiles, int(action))
        self._n_steps += 1
        reward = float(self.compute_reward(self._tiles, self._goal, {}))
        info = {"is_success": reward == 0.0}
        return self._seen(), reward, reward == 0.0, self._n_steps >= self.n_steps, info


class NewLayouts(EqualGoalEnv):
    """
    A world of MiniGrid whose layout is drawn anew for each episode, as a GoalEnv. It shows the
    whole grid: where walls, closed doors and the agent are, and where the agent looks. A goal is
    the agent in another cell of the same layout. Actions are to turn left, to turn right, to go
    forward, and to open or close a door.

    :param name: id of the world
    """

    _ACTIONS = (0, 1, 2, 5)
    _env: Any

    def __init__(self, name: str) -> None:
        import minigrid  # noqa: F401 - it registers its worlds

        self._env = gym.make(name, disable_env_checker=True).unwrapped
        self._n_cells: int = self._env.width * self._env.height
        goals = spaces.MultiBinary(2 * self._n_cells)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.MultiBinary(3 * self._n_cells + 4),
                "achieved_goal": goals,
                "desired_goal": goals,
            }
        )
        self.action_space = spaces.Discrete(len(self._ACTIONS))
        self._goal = np.zeros(2 * self._n_cells, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Begin an episode in a new layout, with a goal in it.

        :param seed: seed of everything random
        :param options: not used
        """
        super().reset(seed=seed)
        self._env.reset(seed=int(self.np_random.integers(2**31)))
        # MiniGrid's own goal would end episodes.
        is_goal = [item is not None and item.type == "goal" for item in self._env.grid.grid]
        self._env.grid.grid[is_goal.index(True)] = None
        cells = [
            number
            for number, item in enumerate(self._env.grid.grid)
            if item is None and self._is_inside(number) and number != self._place
        ]
        place = cells[self.np_random.integers(len(cells))]
        self._goal = self._achieved(place)
        return self._seen(), {"is_success": False}

    def _is_inside(self, number: int) -> bool:
        """Return whether a cell is in a room, not outside of all rooms."""
        rows, columns = divmod(number, self._env.width)
        walls = self._walls().reshape(self._env.height, self._env.width)
        beside = (walls[rows, :columns], walls[rows, columns:], walls[:rows, columns])
        return all(part.any() for part in (*beside, walls[rows:, columns]))

    def _walls(self) -> NDArray[np.bool_]:
        """Return which cells are walls, row by row."""
        items = self._env.grid.grid
        return np.array([item is not None and item.type == "wall" for item in items])

    @property
    def _place(self) -> int:
        """The cell of the agent."""
        column, row = self._env.agent_pos
        return int(row * self._env.width + column)

    def _achieved(self, place: int) -> NDArray[np.int8]:
        """Return the goal that the agent achieves in a cell."""
        goal = np.zeros(2 * self._n_cells, np.int8)
        goal[: self._n_cells] = self._walls()
        goal[self._n_cells + place] = 1
        return goal

    def _seen(self) -> dict[str, NDArray[np.int8]]:
        """Return the whole grid and the goal."""
        achieved = self._achieved(self._place)
        is_closed = [
            item is not None and item.type == "door" and not item.is_open
            for item in self._env.grid.grid
        ]
        direction = np.arange(4) == self._env.agent_dir
        parts = [achieved, np.array(is_closed, np.int8), direction.astype(np.int8)]
        return {
            "observation": np.concatenate(parts),
            "achieved_goal": achieved,
            "desired_goal": self._goal.copy(),
        }

    def step(self, action: Any) -> Any:
        """
        Act.

        :param action: 0 to turn left, 1 to turn right, 2 to go forward, 3 to open or close a door
        """
        truncated = bool(self._env.step(self._ACTIONS[int(action)])[3])
        seen = self._seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        return seen, reward, reward == 0.0, truncated, {"is_success": reward == 0.0}


class LayoutPictures(gym.ObservationWrapper[Any, Any, Any]):
    """
    The same world as pictures with a pixel for each cell. A channel is 255 where something is: a
    wall, a closed door, or the agent that looks in one of four directions. Goals have two channels:
    walls, and the agent's cell.

    :param name: id of the world
    """

    _DIRECTIONS = 4

    def __init__(self, name: str) -> None:
        layouts = NewLayouts(name)
        super().__init__(layouts)
        self._shape = (layouts._env.height, layouts._env.width)
        goals = spaces.Box(0, 255, (*self._shape, 2), np.uint8)
        n_channels = 2 + self._DIRECTIONS
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(0, 255, (*self._shape, n_channels), np.uint8),
                "achieved_goal": goals,
                "desired_goal": goals,
            }
        )

    def observation(self, observation: dict[str, NDArray[np.int8]]) -> dict[str, NDArray[np.uint8]]:
        """
        Return an observation as pictures.

        :param observation: as NewLayouts shows it
        """
        bits = observation["observation"]
        channels = self._channels(bits[: -self._DIRECTIONS])
        walls, agent, doors = np.moveaxis(channels, 2, 0)
        directions = agent[..., None] * bits[-self._DIRECTIONS :].astype(np.uint8)
        return {
            "observation": np.concatenate([np.stack([walls, doors], axis=2), directions], axis=2),
            "achieved_goal": self._channels(observation["achieved_goal"]),
            "desired_goal": self._channels(observation["desired_goal"]),
        }

    def _channels(self, bits: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Return a picture of which each channel is a part of these bits, a bit for each cell."""
        channels = np.moveaxis(bits.reshape(-1, *self._shape), 0, 2)
        return channels.astype(np.uint8) * np.uint8(255)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """
        Return 0 where the goal is reached, and else -1.

        :param achieved_goal: pictures, shape (*batch, H, W, 2)
        :param desired_goal: pictures, the same shape
        :param info: not used
        """
        differs = np.not_equal(achieved_goal, desired_goal).any(axis=(-3, -2, -1))
        return -np.asarray(differs, np.float64)
