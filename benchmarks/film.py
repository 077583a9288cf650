"""Films of an agent on its way from goal to goal: of one just trained, and of the exact policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.tables import Tables
from benchmarks.worlds import SettingError, World, layout_of
from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.oracle import OraclePolicy
from sb3_manygoals import MasteryResult, record_goals
from sb3_manygoals.evaluation import GoalReacher

GOALS = 6
"""Number of goals in the film of an agent."""
MOST_STEPS = 100
"""Steps after which an agent gives a goal up."""
MOST_STEPS_OF_ALL = 5_000
"""Steps after which the exact policy gives a goal up. On the maps that come with the package, its
ways have some hundred steps at most."""
FPS = 25 / 3
"""Pictures in a second."""
CELL_SIZE = 24
"""Pixels a side of a cell of TwoRoomsSwitch."""


@dataclass(frozen=True)
class FilmConfig:
    """Film the exact policy of a map, one goal after another, each shown beside the world."""

    map: str = "paper"
    """The name of a map that comes with the package, or a file with an ASCII map."""
    seed: int = 0
    """Seed of the goals, the start and the world."""
    goals: int = 4
    """Number of goals, drawn from all states."""
    output: Path = Path("runs/film.gif")
    """The GIF to write."""
    cell_size: int = CELL_SIZE
    """Pixels a side of a cell."""

    def run(self) -> Path:
        """
        Write a GIF of the policy that takes the fewest steps on average. No step is left out.

        :return: the GIF
        :raises LayoutError: if there is no such map
        :raises SettingError: if there are not so many goals, or the output is no GIF
        """
        env = TwoRoomsSwitchEnv(
            layout_of(self.map), render_mode="rgb_array", cell_size=self.cell_size
        )
        if self.output.suffix != ".gif":
            raise SettingError(f"output must end in .gif, got {self.output}")
        if not 1 <= self.goals <= env.mdp.n_states:
            raise SettingError(f"goals must be in [1, {env.mdp.n_states}], got {self.goals}.")
        goals = np.random.default_rng(self.seed).choice(env.mdp.n_states, self.goals, replace=False)
        filmed = record_goals(
            OraclePolicy(env.mdp, goals),
            GoesOn(env),
            env.mdp.observe(goals),
            self.output,
            MOST_STEPS_OF_ALL,
            FPS,
            seed=self.seed,
        )
        steps = filmed.steps[filmed.reached].sum()
        print(f"{filmed.reached.sum()} goals reached in {steps} steps; written to {self.output}")
        return self.output


class GoesOn(gym.Wrapper[Any, Any, Any, Any]):
    """
    A TwoRoomsSwitch world that is reset once. All later episodes begin where the last one ended.

    :param env: the world
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._has_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Begin an episode.

        :param seed: seed of the world, without effect after the first episode
        :param options: options of the world, without effect after the first episode
        :return: first observation and info
        """
        if self._has_begun:
            return self.env.reset(options={"state": self.get_wrapper_attr("state")})
        self._has_begun = True
        return self.env.reset(seed=seed, options=options)


class Numbered(gym.ObservationWrapper[Any, Any, Any]):
    """
    A world whose observations are the numbers of its states.

    :param env: the world
    :param tables: tables of the world, which have the numbers
    """

    def __init__(self, env: gym.Env[Any, Any], tables: Tables) -> None:
        super().__init__(env)
        self.observation_space = spaces.Discrete(len(tables))
        self._tables = tables
        if env.has_wrapper_attr("render_observation"):
            draw = env.get_wrapper_attr("render_observation")
            self.render_observation = lambda state: draw(tables.observations[state])

    def observation(self, observation: Any) -> Any:
        """
        Return the number of a state.

        :param observation: what the world shows
        """
        return self._tables.states_of(np.asarray(observation)[None])[0]


def reaching(
    model: GoalReacher,
    world: World,
    result: MasteryResult,
    goals: NDArray[Any],
    path: Path,
    seed: int,
    epsilon: float,
    numbered: bool = False,
) -> None:
    """
    Write a GIF of the agent on its way to six goals, in any world that renders ``rgb_array``.

    They are drawn from the goals that it reached in every episode; from all goals, if those are too
    few. Some actions are random: a greedy policy stands still for ever where it is wrong. In
    TwoRoomsSwitch the agent goes on from goal to goal.

    :param model: a policy that acts towards goals
    :param world: any world; nothing is written if it does not render
    :param result: result of the measurement, with goals in the order of ``goals``
    :param goals: as the model observes them, shape (G, ...)
    :param path: the GIF
    :param seed: seed of the choice, the starts, the world and the random actions
    :param epsilon: share of random actions
    :param numbered: whether the agent observes state numbers of ``world.tables``; by default it
        sees what the world shows
    """
    env = world.make()
    renders = "rgb_array" in env.metadata.get("render_modes", [])
    env.close()
    if not renders or len(goals) == 0:
        return
    size = {"cell_size": CELL_SIZE} if world.is_two_rooms else {}
    env = world.make(render_mode="rgb_array", **size)
    if world.is_two_rooms:
        env = GoesOn(env)
    if numbered:
        env = Numbered(env, world.tables)
    chosen = goals[_chosen(result, len(goals), seed)]
    record_goals(model, env, chosen, path, MOST_STEPS, FPS, epsilon=epsilon, seed=seed)
    env.close()


def _chosen(result: MasteryResult, n_goals: int, seed: int) -> NDArray[np.int64]:
    """Choose among the goals that were reached in every episode, or among all, if too few were."""
    mastered = np.flatnonzero(result.reached.all(axis=1))
    candidates = mastered if len(mastered) >= GOALS else np.arange(n_goals)
    rng = np.random.default_rng(seed)
    return rng.choice(candidates, min(GOALS, len(candidates)), replace=False)
