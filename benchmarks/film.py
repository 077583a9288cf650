"""A film of the agent on its way to goals."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gym_twoRooms.mdp import Action
from sb3_manygoals import MasteryResult
from sb3_manygoals.evaluation import GoalReacher

COLUMNS = 3
SUCCESS, UNDER_WAY = (46, 160, 67), (238, 238, 238)
"""Colours of a panel's frame."""
PAUSE = 6
"""Frames for which the last picture stands still."""


def reaching(
    model: GoalReacher,
    env_id: str,
    result: MasteryResult,
    path: Path,
    seed: int,
    epsilon: float = 0.1,
    n_goals: int = 6,
    max_steps: int = 100,
    cell_size: int = 24,
) -> None:
    """
    Write a GIF of the agent pursuing ``n_goals`` goals at once, each beside a picture of its goal.

    The goals are drawn from those the agent reached in every episode of ``result`` (from all, if those are too few), the
    starts from the world's resets; nothing else is selected, so a failure to get there would be seen.

    :param model: acts towards goals
    :param env_id: of a TwoRoomsSwitch world
    :param result: a measurement of the same model
    :param path: the GIF to write
    :param seed: of the goals and the starts
    :param epsilon: probability of a random action: a greedy policy stands still for ever where it is wrong
    :param n_goals: number of panels
    :param max_steps: steps after which the film ends
    :param cell_size: pixels a cell
    """
    rng = np.random.default_rng(seed)
    mastered = np.flatnonzero(result.reached.all(axis=1))
    candidates = mastered if len(mastered) >= n_goals else np.arange(len(result.reached))
    envs = [gym.make(env_id, render_mode="rgb_array", cell_size=cell_size) for _ in range(n_goals)]
    panels = [
        _panel(model, env, int(goal), seed + row, epsilon, max_steps)
        for row, (env, goal) in enumerate(zip(envs, rng.choice(candidates, n_goals, replace=False), strict=True))
    ]
    for env in envs:
        env.close()
    length = max(len(panel) for panel in panels) + PAUSE
    frames = [Image.fromarray(_tile([panel[min(time, len(panel) - 1)] for panel in panels])) for time in range(length)]
    # one palette for all frames, so that nothing flickers: of the first and the last, and the colour of success
    green = np.full_like(np.asarray(frames[0]), SUCCESS)
    palette = Image.fromarray(np.concatenate([np.asarray(frames[0]), np.asarray(frames[-1]), green])).quantize(256)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=120, loop=0, optimize=True)


def _panel(
    model: GoalReacher, env: gym.Env[NDArray[np.uint8], np.int64], goal_state: int, seed: int, epsilon: float, max_steps: int
) -> list[NDArray[np.uint8]]:
    """One goal's frames: the world on the left, the goal on the right, a green frame once they are the same."""
    observation, _ = env.reset(seed=seed, options={"state": goal_state})
    goal, goal_picture = observation, np.asarray(env.render())
    observation, _ = env.reset()
    rng = np.random.default_rng((seed, 1))
    frames = []
    for _ in range(max_steps + 1):
        there = bool((observation == goal).all())
        frames.append(_beside(np.asarray(env.render()), goal_picture, there))
        if there:
            break
        action, _ = model.predict(
            {"observation": observation[None], "achieved_goal": observation[None], "desired_goal": goal[None]},
            deterministic=True,
        )
        observation = env.step(rng.integers(len(Action)) if rng.random() < epsilon else action[0])[0]
    return frames


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
