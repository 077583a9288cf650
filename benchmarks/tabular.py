"""The paper's tabular baseline: all-goals learning in a lookup table, on the true states of the world."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.study import StudyConfig, Subject, carry_out, open_folder, saved_settings
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import GymnasiumVecEnv
from sb3_manygoals.evaluation import GoalReacher
from sb3_manygoals.tabular import TabularAllGoals


@dataclass(frozen=True)
class TabularConfig(StudyConfig):
    """Train the lookup table on TwoRoomsSwitch, measure its mastery, write a report."""

    n_envs: int = 16
    """Worlds that run side by side; the table learns from each in turn."""
    learning_rate: float = 0.3
    """Step size."""
    decay: bool = False
    """Let the step size fall linearly to zero over the run."""
    gamma: float = 0.99
    """Discount factor."""
    exploration_steps: int = 1_000_000
    """Environment steps over which epsilon falls from 1."""
    exploration_final_eps: float = 0.1
    """Epsilon after that."""
    max_episode_steps: int = 50
    """Steps an episode may take to its goal."""

    def make(self) -> TabularAllGoals:
        """:return: an untrained table"""
        return TabularAllGoals(
            "TablePolicy",
            GymnasiumVecEnv(StateNumbers(gym.make_vec(self.env_id, num_envs=self.n_envs, autoreset_mode="Disabled"))),
            learning_rate=LinearSchedule(self.learning_rate, 0.0, 1.0) if self.decay else self.learning_rate,
            gamma=self.gamma,
            exploration_steps=self.exploration_steps,
            exploration_final_eps=self.exploration_final_eps,
            goal_wrapper_kwargs={"max_episode_steps": self.max_episode_steps},
            seed=self.seed,
        )

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


class StateNumbers(gym.vector.VectorWrapper[Any, Any, Any]):
    """
    TwoRoomsSwitch worlds that show the numbers of their states, for tables.

    :param env: the native vector environment, with the autoreset mode NEXT_STEP or DISABLED
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = spaces.Discrete(int(env.unwrapped.mdp.n_states))  # type: ignore[attr-defined]
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        _, infos = self.env.reset(seed=seed, options=options)
        return self.unwrapped.states, infos  # type: ignore[attr-defined]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environment's."""
        _, rewards, terminated, truncated, infos = self.env.step(actions)
        return self.unwrapped.states, rewards, terminated, truncated, infos  # type: ignore[attr-defined]


class ByPictures:
    """
    A table that acts on pictures: it recognises the states.

    :param table: acts on the numbers of states
    :param mdp: the world
    """

    def __init__(self, table: GoalReacher, mdp: TwoRoomsMDP) -> None:
        self.table = table
        self.mdp = mdp

    def predict(self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False) -> tuple[NDArray[Any], Any]:
        """
        :param observation: "observation" and "desired_goal", pictures of n worlds and goals
        :param deterministic: True for the greedy actions
        :return: actions, shape (n,), and None
        """
        states = {key: self.mdp.states_of(observation[key]) for key in ("observation", "desired_goal")}
        return self.table.predict(states, deterministic=deterministic)


def saved_config(folder: Path) -> TabularConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    return TabularConfig(**saved_settings(folder))


def run(config: TabularConfig) -> Path:
    """
    Carry out the study, see :func:`~benchmarks.study.carry_out`, and write ``config.json`` besides. No goals are held out: a
    table knows nothing of a goal but what it was taught of that very goal.

    :param config: what to run
    :return: the folder
    """
    folder = open_folder(config, f"tabular-seed{config.seed}")
    model = config.make()
    n_states = model.table.n_states
    eval_env = StateNumbers(gym.make_vec(config.env_id, num_envs=n_states, vectorization_mode="vector_entry_point"))
    mdp: TwoRoomsMDP = eval_env.unwrapped.mdp  # type: ignore[attr-defined]
    best = mastery_ceiling(mdp, config.eval_steps)
    subject = Subject(
        model,
        eval_env,
        goals=np.arange(n_states),
        held_out=np.zeros(n_states, dtype=np.bool_),
        ceiling=lambda starts, goals: best(mdp.observe(starts), mdp.observe(goals)),
        by_pictures=ByPictures(model, mdp),
    )
    carry_out(config, folder, subject)
    return folder
