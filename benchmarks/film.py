"""Films of an agent on its way from goal to goal: of one just trained, and of the exact policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.worlds import SettingError, World, layout_of
from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.mdp import Action
from gym_twoRooms.oracle import OraclePolicy
from sb3_manygoals import MasteryResult
from sb3_manygoals.evaluation import GoalReacher

GOALS = 6
"""Number of goals in the film of an agent."""
SUCCESS = (46, 160, 67)
"""Colour of the frame around a picture in which the goal is reached."""
UNDER_WAY = (238, 238, 238)
"""Colour of the frame around all other pictures."""
MOST_STEPS = 100
"""Steps after which an agent gives a goal up."""
MOST_PIXELS = 200
"""Longer sides of a picture are made smaller, in worlds other than TwoRoomsSwitch."""
PAUSE = 6
"""Frames for which the last picture of a goal stands still."""


@dataclass(frozen=True)
class FilmConfig:
    """Film the exact policy of a map, one goal after another, each shown beside the world."""

    layout: str = "paper"
    """The name of a layout that comes with the package, or a file with an ASCII map."""
    seed: int = 0
    """Seed of the goals, the start and the world."""
    goals: int = 4
    """Number of goals, drawn from all states."""
    output: Path = Path("runs/film.gif")
    """The GIF to write."""
    cell_size: int = 24
    """Pixels a side of a cell."""

    def run(self) -> Path:
        """
        Write a GIF of the policy that takes the fewest steps on average. No step is left out.

        :return: the GIF
        :raises SettingError: if there are not so many goals
        """
        env = TwoRoomsSwitchEnv(
            layout_of(self.layout, "layout"), render_mode="rgb_array", cell_size=self.cell_size
        )
        if not 1 <= self.goals <= env.mdp.n_states:
            raise SettingError(f"goals must be in [1, {env.mdp.n_states}], got {self.goals}.")
        goals = np.random.default_rng(self.seed).choice(env.mdp.n_states, self.goals, replace=False)
        self.output.parent.mkdir(parents=True, exist_ok=True)
        steps = _write(OraclePolicy(env.mdp, goals), env, goals, self.output, self.seed)
        print(f"{self.goals} goals reached in {steps} steps; written to {self.output}")
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
    Write a GIF of the agent in a TwoRoomsSwitch world on its way to six goals.

    They are drawn from the goals that it reached in every episode; from all goals, if those are too
    few. Some actions are random: a greedy policy stands still for ever where it is wrong.

    :param model: a policy that acts towards goals
    :param world: a TwoRoomsSwitch world
    :param result: result of the measurement, with goals in the order of ``states``
    :param states: numbers of the goal states, shape (G,)
    :param path: the GIF
    :param seed: seed of the choice, the start, the world and the random actions
    :param epsilon: share of random actions
    :param numbered: whether the agent observes state numbers; by default it sees pictures
    """
    chosen = _chosen(result, len(states), seed)
    env = cast("TwoRoomsSwitchEnv", world.make(render_mode="rgb_array", cell_size=24).unwrapped)
    _write(model, env, states[chosen], path, seed, epsilon, MOST_STEPS, numbered)


def reaching_anywhere(
    model: GoalReacher,
    world: World,
    result: MasteryResult,
    goals: NDArray[Any],
    path: Path,
    seed: int,
    epsilon: float,
    observe: Callable[[Any], Any] = np.asarray,
) -> None:
    """
    Write a GIF of the agent on its way to goals in any world that renders ``rgb_array``.

    Goals are chosen as in :func:`reaching`. The picture of a goal is known only after it was
    reached: if it never was, its place is grey.

    :param model: a policy that acts towards goals
    :param world: any world; nothing is written if it does not render
    :param result: result of the measurement, with goals in the order of ``goals``
    :param goals: as the model observes them, shape (G, ...)
    :param path: the GIF
    :param seed: seed of the choice, the starts, the world and the random actions
    :param epsilon: share of random actions
    :param observe: turns an observation of the world into one of the model; by default both agree
    """
    env = world.make()
    renders = "rgb_array" in env.metadata.get("render_modes", [])
    env.close()
    if not renders:
        return
    env = world.make(render_mode="rgb_array")
    rng = np.random.default_rng((seed, 1))
    pictures: list[NDArray[np.uint8]] = []
    for number, row in enumerate(_chosen(result, len(goals), seed)):
        frames, reached = _walk(model, env, goals[row], seed + number, rng, epsilon, observe)
        goal = frames[-1] if reached else np.full_like(frames[0], UNDER_WAY)
        shown = [_beside(frame, goal, False) for frame in frames]
        shown[-1] = _beside(frames[-1], goal, reached)
        pictures += shown + shown[-1:] * PAUSE
    env.close()
    if pictures:
        _save(pictures, path)


def _walk(
    model: GoalReacher,
    env: gym.Env[Any, Any],
    goal: Any,
    seed: int,
    rng: np.random.Generator,
    epsilon: float,
    observe: Callable[[Any], Any],
) -> tuple[list[NDArray[np.uint8]], bool]:
    """Return the pictures of an episode that ends at a goal, and whether it was reached."""
    seen, _ = env.reset(seed=seed)
    frames = [_small(env.render())]
    for _ in range(MOST_STEPS):
        here = np.asarray(observe(seen))
        if np.array_equal(here, goal):
            return frames, True
        observation = {"observation": here, "achieved_goal": here, "desired_goal": goal}
        batch = {name: np.asarray(part)[None] for name, part in observation.items()}
        action, _ = model.predict(batch, deterministic=True)
        chosen = env.action_space.sample() if rng.random() < epsilon else action[0]
        seen, _, terminated, truncated, _ = env.step(chosen)
        frames.append(_small(env.render()))
        if terminated or truncated:
            break
    return frames, bool(np.array_equal(np.asarray(observe(seen)), goal))


def _small(picture: Any) -> NDArray[np.uint8]:
    """Return a picture with at most about 200 pixels a side: a film has hundreds of them."""
    array = np.asarray(picture, dtype=np.uint8)
    stride = 1 + max(array.shape[:2]) // MOST_PIXELS
    return array[::stride, ::stride]


def _chosen(result: MasteryResult, n_goals: int, seed: int) -> NDArray[np.int64]:
    """Choose among the goals that were reached in every episode, or among all, if too few were."""
    mastered = np.flatnonzero(result.reached.all(axis=1))
    candidates = mastered if len(mastered) >= GOALS else np.arange(n_goals)
    rng = np.random.default_rng(seed)
    return rng.choice(candidates, min(GOALS, len(candidates)), replace=False)


def _write(
    model: GoalReacher,
    env: TwoRoomsSwitchEnv,
    goals: Iterable[int],
    path: Path,
    seed: int,
    epsilon: float = 0.0,
    max_steps: int | None = None,
    numbered: bool = False,
) -> int:
    """
    Film each goal until it is reached or given up. Reached goals end with a green frame.

    :return: the number of steps taken
    """
    env.reset(seed=seed)
    rng = np.random.default_rng((seed, 1))
    observe = np.asarray if numbered else env.observation_of
    pictures: list[NDArray[np.uint8]] = []
    total = 0
    for goal in goals:
        goal_picture = env.render_observation(env.observation_of(goal))
        steps = 0
        while True:
            pictures.append(_beside(np.asarray(env.render()), goal_picture, env.state == goal))
            if env.state == goal or steps == max_steps:
                break
            here = observe(env.state)[None]
            there = observe(goal)[None]
            observation = {"observation": here, "achieved_goal": here, "desired_goal": there}
            action, _ = model.predict(observation, deterministic=True)
            env.step(rng.integers(len(Action)) if rng.random() < epsilon else action[0])
            steps += 1
        pictures += [pictures[-1]] * PAUSE
        total += steps
    env.close()
    _save(pictures, path)
    return total


def _save(pictures: list[NDArray[np.uint8]], path: Path) -> None:
    """Write pictures of one size as a GIF."""
    # One palette for all frames prevents flicker.
    numbers = [
        np.unique(picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32))
        for picture in pictures
    ]
    colours = np.unique(np.concatenate(numbers))[:, None] >> np.array([16, 8, 0], np.uint32) & 255
    palette = Image.fromarray(colours.astype(np.uint8)[None]).quantize(256)
    frames = [
        Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE)
        for picture in pictures
    ]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=120, loop=0, optimize=True
    )


def _beside(world: NDArray[np.uint8], goal: NDArray[np.uint8], there: bool) -> NDArray[np.uint8]:
    """Return one picture: the world on the left, the goal on the right, a frame around both."""
    height, width, _ = world.shape
    gap = max(height // 16, 4)
    picture = np.full(
        (height + 2 * gap, 2 * width + 3 * gap, 3), SUCCESS if there else UNDER_WAY, np.uint8
    )
    picture[gap : gap + height, gap : gap + width] = world
    picture[gap : gap + height, 2 * gap + width : 2 * gap + 2 * width] = goal
    return picture
