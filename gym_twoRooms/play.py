"""The world on the keyboard: ``python -m gym_twoRooms.play``."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import Action

FPS = 30
WAIT = len(Action)
"""The action of a player who presses no key, or several at once."""
REACHED_COLOUR, PURSUED_COLOUR = (46, 160, 67), (238, 238, 238)


class Player(gym.Wrapper[NDArray[np.uint8], np.int64, NDArray[np.uint8], np.int64]):
    """
    A world for the keyboard, with one more action, to wait, in which no time passes. A key acts once each time it is pressed.

    A goal is the observation of a random state, shown beside the world. When it is reached, its frame turns green, a message
    is printed, and the next key brings the next goal.
    """

    def __init__(self, env: TwoRoomsSwitchEnv, goals: bool) -> None:
        super().__init__(env)
        self.world = env
        self.action_space = spaces.Discrete(WAIT + 1)
        self.goals = goals
        self.goal: NDArray[np.uint8] | None = None
        self._rng = np.random.default_rng()
        self.reached, self._pressed, self._steps = False, WAIT, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        observation, info = self.world.reset(seed=seed, options=options)
        self._pressed = WAIT
        if self.goals:
            self._next_goal()
        return observation, info

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        held, self._pressed = action == self._pressed, int(action)
        if action == WAIT or held:
            return self.world.observation_of(self.world.state), 0.0, False, False, {}
        if self.reached:
            self._next_goal()
        result = self.world.step(action)
        self._steps += 1
        if self.goal is not None and np.array_equal(result[0], self.goal):
            self.reached = True
            print(f"Goal reached in {self._steps} step{'s' * (self._steps != 1)}.", flush=True)
        return result

    def render(self) -> Any:
        world = self.world.render()
        if self.goal is None:
            return world
        border = self.world.cell_size // 4 + 1
        pictures = np.stack([np.asarray(world), self.world.render_observation(self.goal)])
        framed = np.pad(pictures, ((0, 0), (border, border), (border, border), (0, 0)))
        framed[:] = REACHED_COLOUR if self.reached else PURSUED_COLOUR
        framed[:, border:-border, border:-border] = pictures
        return np.hstack(list(framed))

    def _next_goal(self) -> None:
        # any state but the current one
        state = int(self._rng.integers(self.world.mdp.n_states - 1))
        self.goal = self.world.observation_of(state + (state >= self.world.state))
        self.reached, self._steps = False, 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Play until the window is closed or Escape is pressed."""
    parser = argparse.ArgumentParser(
        prog="python -m gym_twoRooms.play",
        description="Arrow keys or W, A, S, D move, the space bar flips the door when the agent is on a switch, Escape ends.",
    )
    maps = parser.add_mutually_exclusive_group()
    maps.add_argument("--layout", choices=NAMED_LAYOUTS, default="paper", help="a map that comes with the package")
    maps.add_argument("--map", type=Path, metavar="FILE", help="a file with an ASCII map")
    parser.add_argument("--goal", action="store_true", help="show a random goal beside the world, and say when it is reached")
    parser.add_argument("--seed", type=int, help="of the world and the goals")
    parser.add_argument("--cell-size", type=int, default=48, metavar="N", help="pixels per cell (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        layout = Layout.named(options.layout) if options.map is None else Layout.read(options.map)
        world = TwoRoomsSwitchEnv(layout, render_mode="rgb_array", cell_size=options.cell_size)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        import pygame
    except ImportError:
        sys.exit('Playing needs pygame: run `pip install "sb3-manygoals[render]"` or `pip install pygame-ce`.')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot plot without matplotlib
        from gymnasium.utils.play import play

    pygame.display.init()
    pygame.display.set_caption(f"TwoRoomsSwitch: {layout.name}")
    names = {Action.UP: "up w", Action.DOWN: "down s", Action.LEFT: "left a", Action.RIGHT: "right d", Action.TOGGLE: "space"}
    keys = {(pygame.key.key_code(key),): np.int64(action) for action, pair in names.items() for key in pair.split()}
    play(Player(world, options.goal), fps=FPS, keys_to_action=keys, seed=options.seed, noop=WAIT)


if __name__ == "__main__":
    main()
