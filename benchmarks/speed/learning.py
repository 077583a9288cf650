"""How long training takes beside the world alone, and what it reaches."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch as th
import tyro
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import recording
from benchmarks.agents.mastery import AgentConfig, make, number_of_envs
from benchmarks.suite.spec import write_whole
from benchmarks.tables import NotEnumerable, Tables, TabularVectorEnv
from benchmarks.worlds import SettingError, World
from sb3_manygoals import evaluate_mastery


@dataclass(frozen=True)
class LearningConfig(AgentConfig):
    """
    Time training, and as many random steps in the world alone, in turn, for some seeds.

    After training, mastery is measured, which is not timed. Each goal is tried from two starts.
    """

    env_id: str = "TwoRoomsSwitch-v0"
    """The world, as for the command mastery."""
    map: str | None = None
    """Layout of TwoRoomsSwitch, as for the command mastery."""
    total_steps: int = 100_000
    """Environment steps to train for."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs."""
    most_goals: int = 10_000
    """Most goals that are measured, drawn at random."""
    # These have no meaning here: runs have all seeds, nothing is shown, and nothing can be resumed.
    seed: Annotated[int, tyro.conf.Suppress] = 0
    progress_bar: Annotated[bool, tyro.conf.Suppress] = False
    checkpoint_minutes: Annotated[float, tyro.conf.Suppress] = 5.0
    resume: Annotated[Path | None, tyro.conf.Suppress] = None

    def run(self) -> Path:
        """
        Measure, print, and write ``config.json`` and a row for each seed to ``learning.csv``.

        :return: the folder of the run
        :raises SettingError: if options do not fit the agent or the world
        """
        self.check_counts("total_steps", "n_envs", "threads", "most_goals")
        if self.agent == "table":
            raise SettingError(
                "agent table observes numbers of states, which speed-learning does not measure: "
                "use the command mastery, which tells its seconds of training"
            )
        if not self.seeds:
            raise SettingError("seeds must have at least one seed, got none")
        th.set_num_threads(self.threads)
        world = World(self.env_id, self.map)
        world.make().close()
        try:
            tables = world.tables
        except NotEnumerable as error:
            raise SettingError(
                f"speed-learning measures all states as goals, but {world.id} cannot be written "
                f"out: {error}. Use the command mastery, which tells its seconds of training"
            ) from error
        folder = recording.create(self.output, f"speed-learning-{world.name}")
        recording.write_config(folder, self)
        rows = []
        for seed in self.seeds:
            rows.append(self._row(world, tables, seed))
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            write_whole(folder / "learning.csv", pd.DataFrame(rows).to_csv(index=False))
        print(f"written to {folder}")
        return folder

    def _row(self, world: World, tables: Tables, seed: int) -> dict[str, Any]:
        """Measure one seed."""
        config = replace(self, seed=seed)
        # The agent's own environments note goals at each step, which is a part of its training.
        envs = world.make_many(number_of_envs(config, world), seed)
        alone = _seconds_alone(envs, self.total_steps, seed)
        envs.close()
        # What is left of earlier models would slow down the next one.
        gc.collect()
        model, _ = make(config, world, tables)
        begin = time.perf_counter()
        model.learn(self.total_steps)
        seconds = time.perf_counter() - begin
        states = np.random.default_rng(0).permutation(len(tables))[: self.most_goals]
        task: dict[str, Any] = {
            "env": TabularVectorEnv(tables, len(states)),
            "goals": tables.observations[np.sort(states)],
            "max_steps": 200,
            "episodes_per_goal": 2,
            "seed": seed + 1_000,
        }
        row = {
            "world": world.name,
            "agent": self.agent,
            "seed": seed,
            "threads": self.threads,
            "steps": model.num_timesteps,
            "seconds": round(seconds, 1),
            "seconds_alone": round(alone, 1),
            "updates": getattr(model, "_n_updates", ""),
            "greedy": round(evaluate_mastery(model, **task).rate, 4),
            "epsilon": round(evaluate_mastery(model, epsilon=0.1, **task).rate, 4),
        }
        del model
        gc.collect()
        return row


def _seconds_alone(envs: VecEnv, n_steps: int, seed: int) -> float:
    """Return how long so many random steps take in a vector of environments."""
    assert isinstance(envs.action_space, spaces.Discrete)
    rng = np.random.default_rng(seed)
    envs.reset()
    begin = time.perf_counter()
    for _ in range(0, n_steps, envs.num_envs):
        envs.step(rng.integers(envs.action_space.n, size=envs.num_envs))
    return time.perf_counter() - begin
