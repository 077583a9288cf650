"""The world in a window: ``python -m gym_twoRooms.play``."""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import Action
from gym_twoRooms.rendering import draw
from gym_twoRooms.states import flat

FPS, FRAMES_PER_STEP = 30, 4
"""Frames a second, and how many of them a step of the trained agent takes."""
REACHED_COLOUR, PURSUED_COLOUR = (46, 160, 67), (238, 238, 238)
KEYS = {
    Action.UP: "up w",
    Action.DOWN: "down s",
    Action.LEFT: "left a",
    Action.RIGHT: "right d",
    Action.TOGGLE: "space",
}
Agent = Callable[[NDArray[np.uint8], NDArray[np.uint8]], int]
"""Gives the action for an observation and a goal."""


class Game:
    """
    A world, with a goal beside it if asked for. A goal is a state. When it is reached, the frames turn green and a message is
    printed. The player's next key then brings the next goal; a trained agent keeps its goal until the mouse sets another.
    """

    def __init__(
        self,
        world: TwoRoomsSwitchEnv,
        goals: bool,
        agent: Agent | None = None,
        seed: int | None = None,
    ) -> None:
        self.world, self.agent, self.goal = world, agent, -1
        self._rng, self._steps, self._border = (
            np.random.default_rng(seed),
            0,
            world.cell_size // 4 + 1,
        )
        world.reset(seed=seed)
        if goals or agent is not None:
            self._next_goal()

    @property
    def reached(self) -> bool:
        return self.world.state == self.goal

    def press(self, action: int) -> None:
        """Act for the player."""
        if self.reached and self.agent is None:
            self._next_goal()
        self._step(action)

    def follow(self) -> None:
        """Let the agent act, if there is one and its goal is not reached."""
        if self.agent is not None and not self.reached:
            self._step(self.agent(*self.world.mdp.observe(np.array([self.world.state, self.goal]))))

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """
        Set a goal with the mouse, pressed and released at these pixels (x, y): the picture under it with one change. A block
        moves along, a door that is clicked opens or shuts, and from any other cell the mouse takes the agent along.
        """
        (picture, pressed), (_, released) = self._locate(start), self._locate(end)
        mdp, state = self.world.mdp, (self.world.state, self.goal)[picture]
        agent, blocks, doors = int(mdp.agent[state]), mdp.blocks[state], mdp.doors_open[state]
        clicked = np.array(
            [
                pressed == released and pressed in flat(mdp.layout, door)
                for door in mdp.layout.doors
            ],
            np.bool_,
        )
        if pressed in blocks:
            blocks = np.where(blocks == pressed, released, blocks)
        elif not clicked.any():
            agent = released
        try:
            self.goal, self._steps = int(mdp.encode(agent, blocks, doors ^ clicked)), 0
        except ValueError as error:
            print(error, flush=True)

    def render(self) -> NDArray[np.uint8]:
        """The world and, beside it, the goal if there is one, each in a frame: (height, width, 3) uint8."""
        states, border = [self.world.state, self.goal][: 1 + (self.goal >= 0)], self._border
        pictures = np.stack([draw(self.world.mdp, state, self.world.cell_size) for state in states])
        framed = np.pad(pictures, ((0, 0), (border, border), (border, border), (0, 0)))
        framed[:] = REACHED_COLOUR if self.reached else PURSUED_COLOUR
        framed[:, border:-border, border:-border] = pictures
        return np.hstack(list(framed))

    def _step(self, action: int) -> None:
        self.world.step(action)
        self._steps += 1
        if self.reached:
            print(f"Goal reached in {self._steps} step{'s' * (self._steps != 1)}.", flush=True)
            self._steps = 0

    def _next_goal(self) -> None:
        # any state but the current one
        state = int(self._rng.integers(self.world.mdp.n_states - 1))
        self.goal, self._steps = state + (state >= self.world.state), 0

    def _locate(self, position: tuple[int, int]) -> tuple[int, int]:
        """The picture (0 world, 1 goal) and the nearest cell of it."""
        size, layout = self.world.cell_size, self.world.mdp.layout
        picture = min(max(position[0] // (span := layout.width * size + 2 * self._border), 0), 1)
        row, column = (
            (along - self._border) // size for along in (position[1], position[0] - picture * span)
        )
        return picture, min(max(row, 0), layout.height - 1) * layout.width + min(
            max(column, 0), layout.width - 1
        )


def trained_agent() -> Agent:
    """The agent that comes with ``sb3_manygoals``, which this package does without otherwise."""
    try:
        model = importlib.import_module("sb3_manygoals.pretrained").load_pretrained(
            "TwoRoomsSwitch-v0"
        )
    except ImportError as error:
        sys.exit(
            f"--agent needs sb3_manygoals, stable-baselines3 and torch: run `pip install sb3-manygoals` ({error})."
        )

    def act(observation: NDArray[np.uint8], goal: NDArray[np.uint8]) -> int:
        pair = {"observation": observation, "achieved_goal": observation, "desired_goal": goal}
        return int(model.predict(pair, deterministic=True)[0])

    return act


def main(arguments: Sequence[str] | None = None) -> None:
    """Play until the window is closed or Escape is pressed."""
    parser = argparse.ArgumentParser(
        prog="python -m gym_twoRooms.play",
        description="Arrow keys or W, A, S, D move, the space bar flips the door when the agent is on a switch, Escape ends.",
    )
    maps = parser.add_mutually_exclusive_group()
    maps.add_argument(
        "--layout", choices=NAMED_LAYOUTS, default="paper", help="a map that comes with the package"
    )
    maps.add_argument("--map", type=Path, metavar="FILE", help="a file with an ASCII map")
    maps.add_argument(
        "--agent",
        action="store_true",
        help="a trained agent walks to the goal that clicks and drags set",
    )
    parser.add_argument(
        "--goal",
        action="store_true",
        help="show a random goal beside the world, and say when it is reached",
    )
    parser.add_argument("--seed", type=int, help="of the world and the goals")
    parser.add_argument(
        "--cell-size",
        type=int,
        default=48,
        metavar="N",
        help="pixels per cell (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        layout = NAMED_LAYOUTS[options.layout] if options.map is None else Layout.read(options.map)
        world = TwoRoomsSwitchEnv(layout, cell_size=options.cell_size)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        import pygame
    except ImportError:
        sys.exit(
            'Playing needs pygame: run `pip install "sb3-manygoals[render]"` or `pip install pygame-ce`.'
        )
    game = Game(world, options.goal, trained_agent() if options.agent else None, options.seed)

    pygame.display.init()
    pygame.display.set_caption(f"TwoRoomsSwitch: {layout.name}")
    height, width, _ = game.render().shape
    screen = pygame.display.set_mode(
        (width, height), pygame.SCALED | pygame.RESIZABLE
    )  # the mouse is scaled back
    keys = {
        pygame.key.key_code(key): action for action, names in KEYS.items() for key in names.split()
    }
    clock, pressed = pygame.time.Clock(), (0, 0)
    for frame in count():
        for event in pygame.event.get():
            if event.type == pygame.QUIT or (
                event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE
            ):
                return pygame.quit()
            if event.type == pygame.KEYDOWN and event.key in keys:
                game.press(keys[event.key])
            elif event.type == pygame.MOUSEBUTTONDOWN:
                pressed = event.pos
            elif event.type == pygame.MOUSEBUTTONUP and options.agent:
                game.drag(pressed, event.pos)
        if frame % FRAMES_PER_STEP == 0:
            game.follow()
        pygame.surfarray.blit_array(screen, game.render().swapaxes(0, 1))
        pygame.display.flip()
        clock.tick(FPS)


if __name__ == "__main__":
    main()
