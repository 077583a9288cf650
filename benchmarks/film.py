"""Films of an agent on its way to goals: of one just trained, and of the exact policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.worlds import World, layout_of
from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.mdp import Action
from gym_twoRooms.oracle import OraclePolicy
from sb3_manygoals import MasteryResult
from sb3_manygoals.evaluation import GoalReacher

PANELS, COLUMNS = 6, 3
SUCCESS, UNDER_WAY = (46, 160, 67), (238, 238, 238)
"""Colours of a panel's frame."""
MOST_STEPS = 100
"""After which the film of an agent ends."""
PAUSE = 6
"""Frames for which the last picture stands still."""


@dataclass(frozen=True)
class FilmConfig:
    """Film the exact policy of a map, one goal after another, each shown beside the world."""

    layout: str = "paper"
    """The name of a layout that comes with the package, or a file with an ASCII map."""
    seed: int = 0
    """Of the goals, the start and the world."""
    goals: int = 4
    """Number of goals, drawn from all states."""
    output: Path = Path("runs/film.gif")
    """The GIF to write."""
    cell_size: int = 24
    """Pixels a cell."""

    def run(self) -> Path:
        """
        Write a GIF of the policy that takes the fewest steps on average. It starts anywhere, and goes on from each goal to the
        next; nothing is selected or left out.
        """
        env = TwoRoomsSwitchEnv(layout_of(self.layout, "layout"), render_mode="rgb_array", cell_size=self.cell_size)
        if not 1 <= self.goals <= env.mdp.n_states:
            raise ValueError(f"goals must be in [1, {env.mdp.n_states}], got {self.goals}.")
        goals = np.random.default_rng(self.seed).choice(env.mdp.n_states, self.goals, replace=False)
        oracle = OraclePolicy(env.mdp, goals)
        env.reset(seed=self.seed)
        frames = []
        for goal in goals.tolist():
            frames += _pursue(oracle, env, goal)
            frames += [frames[-1]] * PAUSE
        self.output.parent.mkdir(parents=True, exist_ok=True)
        _write(frames, self.output)
        print(f"{self.goals} goals reached in {len(frames) - self.goals * (PAUSE + 1)} steps; written to {self.output}")
        return self.output


def reaching(
    model: GoalReacher,
    world: World,
    result: MasteryResult,
    states: NDArray[np.int64],
    path: Path,
    seed: int,
    epsilon: float,
    numbered: bool = False,
) -> None:
    """
    Write a GIF of the agent in a TwoRoomsSwitch world on its way to six goals, in a panel each.

    Goals are drawn from ``states``, those of the goals of ``result``, that the agent reached in every episode (from all, if
    those are too few). Nothing else is selected: failures are seen. Some actions are random: a greedy policy stands still for
    ever where it is wrong. An agent that is ``numbered`` observes state numbers, others pictures.
    """
    mastered = np.flatnonzero(result.reached.all(axis=1))
    candidates = mastered if len(mastered) >= PANELS else np.arange(len(states))
    chosen = np.random.default_rng(seed).choice(candidates, min(PANELS, len(candidates)), replace=False)
    panels = []
    for row, goal in enumerate(states[chosen].tolist(), start=seed):
        env = cast("TwoRoomsSwitchEnv", world.make(render_mode="rgb_array", cell_size=24).unwrapped)
        env.reset(seed=row)
        panels.append(_pursue(model, env, goal, epsilon, row, MOST_STEPS, numbered))
        env.close()
    length = max(len(panel) for panel in panels) + PAUSE
    _write([_tile([panel[min(time, len(panel) - 1)] for panel in panels]) for time in range(length)], path)


def _pursue(
    model: GoalReacher,
    env: TwoRoomsSwitchEnv,
    goal: int,
    epsilon: float = 0.0,
    seed: int = 0,
    max_steps: int | None = None,
    numbered: bool = False,
) -> list[NDArray[np.uint8]]:
    """Act until the goal is reached. Pictures have the world on the left, the goal on the right, a green frame at the end."""
    observe = np.asarray if numbered else env.observation_of
    goal_picture = env.render_observation(env.observation_of(goal))
    rng = np.random.default_rng((seed, 1))
    frames: list[NDArray[np.uint8]] = []
    while True:
        frames.append(_beside(np.asarray(env.render()), goal_picture, env.state == goal))
        if env.state == goal or len(frames) - 1 == max_steps:
            return frames
        here, there = observe(env.state)[None], observe(goal)[None]
        observation = {"observation": here, "achieved_goal": here, "desired_goal": there}
        action, _ = model.predict(observation, deterministic=True)
        env.step(rng.integers(len(Action)) if rng.random() < epsilon else action[0])


def _write(pictures: list[NDArray[np.uint8]], path: Path) -> None:
    """Write an animation, with one palette for all frames, so that nothing flickers."""
    numbers = [np.unique(picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)) for picture in pictures]
    colours = np.unique(np.concatenate(numbers))[:, None] >> np.array([16, 8, 0], np.uint32) & 255
    palette = Image.fromarray(colours.astype(np.uint8)[None]).quantize(256)
    frames = [Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=120, loop=0, optimize=True)


def _beside(world: NDArray[np.uint8], goal: NDArray[np.uint8], there: bool) -> NDArray[np.uint8]:
    height, width, _ = world.shape
    gap = max(height // 16, 4)
    picture = np.full((height + 2 * gap, 2 * width + 3 * gap, 3), SUCCESS if there else UNDER_WAY, np.uint8)
    picture[gap : gap + height, gap : gap + width] = world
    picture[gap : gap + height, 2 * gap + width : 2 * gap + 2 * width] = goal
    return picture


def _tile(pictures: list[NDArray[np.uint8]], gap: int = 10) -> NDArray[np.uint8]:
    height, width, _ = pictures[0].shape
    rows = -(-len(pictures) // COLUMNS)
    tiled = np.full((rows * (height + gap) + gap, COLUMNS * (width + gap) + gap, 3), 255, np.uint8)
    for index, picture in enumerate(pictures):
        top = gap + index // COLUMNS * (height + gap)
        left = gap + index % COLUMNS * (width + gap)
        tiled[top : top + height, left : left + width] = picture
    return tiled
