"""The world in a window: ``python -m gym_twoRooms.play``."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import Action
from gym_twoRooms.rendering import draw
from gym_twoRooms.states import flat

FPS = 30
"""Frames a second."""
FRAMES_PER_STEP = 4
"""Number of frames that a step of the trained agent takes."""
REACHED_COLOUR = (46, 160, 67)
"""RGB colour of the frames around the pictures while the goal is reached."""
PURSUED_COLOUR = (238, 238, 238)
"""RGB colour of these frames otherwise."""
INVISIBLE_DRIVERS = ("offscreen", "dummy")
"""Video drivers that show nothing. Without a display, SDL chooses one of them by itself."""
KEYS = {
    Action.UP: "up w",
    Action.DOWN: "down s",
    Action.LEFT: "left a",
    Action.RIGHT: "right d",
    Action.TOGGLE: "space",
}
"""pygame's names of the keys for each action."""
Agent = Callable[[NDArray[np.uint8], NDArray[np.uint8]], int]
"""A function that returns the action for an observation and a goal, (H, W, 3) uint8 each."""


class Game:
    """
    A world, with a goal beside it if asked for. A goal is a state.

    When the goal is reached, the frames turn green and a message is printed. The player's next key
    then brings the next goal; a trained agent keeps its goal until the mouse sets another.

    :param world: The environment; it is reset
    :param goals: Whether to draw a random goal; an agent is given one in any case
    :param agent: Function that returns the agent's action for an observation and a goal; None if
        only the player acts
    :param seed: Seed of the world and of the goals; None for a random one
    :ivar world: The environment
    :ivar agent: The agent, or None
    :ivar goal: The number of the goal, -1 without one
    """

    def __init__(
        self,
        world: TwoRoomsSwitchEnv,
        goals: bool,
        agent: Agent | None = None,
        seed: int | None = None,
    ) -> None:
        self.world = world
        self.agent = agent
        self.goal = -1
        self._rng = np.random.default_rng(seed)
        self._steps = 0
        self._border = world.cell_size // 4 + 1
        world.reset(seed=seed)
        if goals or agent is not None:
            self._next_goal()

    @property
    def reached(self) -> bool:
        """Whether the world is in the goal."""
        return self.world.state == self.goal

    def press(self, action: int) -> None:
        """
        Act for the player. If a goal is reached and there is no agent, choose the next goal first.

        :param action: The action, in [0, 5)
        """
        if self.reached and self.agent is None:
            self._next_goal()
        self._step(action)

    def follow(self) -> None:
        """Let the agent act, if there is one and its goal is not reached."""
        if self.agent is not None and not self.reached:
            self._step(self.agent(*self.world.mdp.observe(np.array([self.world.state, self.goal]))))

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """
        Set a goal with the mouse: the picture under it with one change.

        A block moves along with the mouse. A door that is clicked opens or shuts. From any other
        cell the mouse takes the agent along. If no state is like that, print why and keep the goal.

        :param start: Pixel (x, y) where the mouse was pressed
        :param end: Pixel (x, y) where the mouse was released
        """
        picture, pressed = self._locate(start)
        _, released = self._locate(end)
        mdp = self.world.mdp
        state = self.goal if picture else self.world.state
        agent = int(mdp.agent[state])
        blocks = mdp.blocks[state]
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
            self.goal = int(mdp.encode(agent, blocks, mdp.doors_open[state] ^ clicked))
        except ValueError as error:
            print(error, flush=True)
        else:
            self._steps = 0

    def render(self) -> NDArray[np.uint8]:
        """
        Draw the world and, beside it, the goal if there is one, each in a frame.

        :return: The picture, (height, width, 3) uint8
        """
        states = [self.world.state]
        if self.goal >= 0:
            states.append(self.goal)
        border = self._border
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
        """Draw any state but the current one."""
        goal = int(self._rng.integers(self.world.mdp.n_states - 1))
        self.goal = goal + (goal >= self.world.state)
        self._steps = 0

    def _locate(self, position: tuple[int, int]) -> tuple[int, int]:
        """Return the picture under a pixel, 0 world or 1 goal, and the nearest cell of it."""
        layout = self.world.mdp.layout
        size = self.world.cell_size
        x, y = position
        picture_width = layout.width * size + 2 * self._border
        picture = min(max(x // picture_width, 0), 1)
        row = (y - self._border) // size
        column = (x - picture * picture_width - self._border) // size
        row = min(max(row, 0), layout.height - 1)
        column = min(max(column, 0), layout.width - 1)
        return picture, row * layout.width + column


def trained_agent() -> Agent:
    """
    Return the agent that comes with ``sb3_manygoals``. Nothing else here needs that package.

    :return: A function that returns the action for an observation and a goal
    :raises SystemExit: If the package is not installed
    """
    try:
        pretrained = importlib.import_module("sb3_manygoals.pretrained")
        model = pretrained.load_pretrained("TwoRoomsSwitch-v0")
    except ImportError as error:
        sys.exit(
            "--agent needs sb3_manygoals, stable-baselines3 and torch: run "
            f"`pip install sb3-manygoals` ({error})."
        )

    def act(observation: NDArray[np.uint8], goal: NDArray[np.uint8]) -> int:
        pair = {"observation": observation, "achieved_goal": observation, "desired_goal": goal}
        return int(model.predict(pair, deterministic=True)[0])

    return act


def _make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gym_twoRooms.play",
        description="Arrow keys or W, A, S, D move, the space bar flips the door when the agent is "
        "on a switch, Escape ends.",
    )
    maps = parser.add_mutually_exclusive_group()
    maps.add_argument(
        "--map",
        default="paper",
        metavar="NAME|FILE",
        help=f"one of {', '.join(NAMED_LAYOUTS)}, or a file with an ASCII map "
        "(default: %(default)s)",
    )
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
    return parser


def _layout_of(name: str) -> Layout:
    """Return the map of a name or a file. A file with the name of a map is read as ./name."""
    if name in NAMED_LAYOUTS:
        return NAMED_LAYOUTS[name]
    return Layout.read(name)


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Play until the window is closed or Escape is pressed.

    :param arguments: Arguments of the command line; None takes those of the program
    :raises SystemExit: If the arguments are wrong, a package is missing, or there is no display
    """
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.seed is not None and options.seed < 0:
        parser.error(f"argument --seed: must be at least 0, got {options.seed}")
    try:
        layout = _layout_of(options.map)
        world = TwoRoomsSwitchEnv(layout, cell_size=options.cell_size)
    except OSError as error:
        parser.error(
            f"argument --map: must be one of {', '.join(NAMED_LAYOUTS)}, or a file with a map, got "
            f"{options.map}, which cannot be read: {error.strerror}"
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        import pygame
    except ImportError:
        sys.exit(
            'Playing needs pygame: run `pip install "sb3-manygoals[render]"` or '
            "`pip install pygame-ce`."
        )
    game = Game(world, options.goal, trained_agent() if options.agent else None, options.seed)

    pygame.display.init()
    is_invisible = pygame.display.get_driver() in INVISIBLE_DRIVERS
    if is_invisible and not os.environ.get("SDL_VIDEODRIVER"):
        # Else it would run for ever, and nobody could press Escape.
        pygame.quit()
        sys.exit(
            "Playing needs a display, and there is none: run it on a machine with a screen, or "
            'over `ssh -X`. Without a display, TwoRoomsSwitchEnv(render_mode="ansi") shows the '
            'world as text, and render_mode="rgb_array" as pictures.'
        )
    pygame.display.set_caption(f"TwoRoomsSwitch: {layout.name}")
    height, width, _ = game.render().shape
    # With SCALED, pygame gives the mouse's position in pixels of the picture.
    screen = pygame.display.set_mode((width, height), pygame.SCALED | pygame.RESIZABLE)
    keys = {
        pygame.key.key_code(key): action for action, names in KEYS.items() for key in names.split()
    }
    clock = pygame.time.Clock()
    pressed = (0, 0)
    for frame in count():
        for event in pygame.event.get():
            if event.type == pygame.QUIT or (
                event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE
            ):
                return pygame.quit()
            if event.type == pygame.KEYDOWN and event.key in keys:
                game.press(keys[event.key])
            # The wheel has buttons, too.
            is_left = getattr(event, "button", None) == pygame.BUTTON_LEFT
            if event.type == pygame.MOUSEBUTTONDOWN and is_left:
                pressed = event.pos
            elif event.type == pygame.MOUSEBUTTONUP and is_left and options.agent:
                game.drag(pressed, event.pos)
        if frame % FRAMES_PER_STEP == 0:
            game.follow()
        pygame.surfarray.blit_array(screen, game.render().swapaxes(0, 1))
        pygame.display.flip()
        clock.tick(FPS)


if __name__ == "__main__":
    main()
