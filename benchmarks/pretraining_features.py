"""What A2C begins with, pre-trained and not: how much its features tell observations of random play apart."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C

from benchmarks.past_runs import PastRunError, find
from benchmarks.pretraining import make_a2c, saved_config
from sb3_manygoals import ManyGoalsDQN, RewardPredictor
from sb3_manygoals.pretraining import transfer_trunk

LEARNERS: dict[str, type[ManyGoalsDQN] | type[RewardPredictor]] = {
    "many_goals": ManyGoalsDQN,
    "reward_prediction": RewardPredictor,
}

COLUMNS = ["game", "agent", "seed", "observations", "silent", "rank", "norm", "varying"]
"""Of the table; the last four are those of :func:`measure`."""


@dataclass(frozen=True)
class PretrainingFeaturesConfig:
    """Measure the features that A2C began with in runs of pretraining, over observations of random play."""

    runs: tuple[Path, ...]
    """Folders of finished runs, or folders below which they are."""
    output: Path
    """The CSV file to write."""
    steps: int = 100
    """Steps of random play in each copy of the world."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def run(self) -> Path:
        """
        :return: the file written
        :raises PastRunError: if there is no such run, or one of another kind
        """
        rows = [of_run(folder, self.steps) for folder in find(self.runs) if (folder / "model.zip").is_file()]
        if not rows:
            raise PastRunError(f"no finished run of pretraining below {', '.join(map(str, self.runs)) or 'nothing'}")
        rows.sort(key=lambda row: (row["game"], row["agent"], row["seed"]))
        with self.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        for agent in dict.fromkeys(row["agent"] for row in rows):
            ours = [row for row in rows if row["agent"] == agent]
            said = (f"{name} {np.median([row[name] for row in ours]):.3g}" for name in COLUMNS[4:])
            print(f"{agent}: {', '.join(said)}; medians of {len(ours)}")
        return self.output


def of_run(folder: Path, steps: int) -> dict[str, Any]:
    """
    :param folder: of a finished run
    :param steps: of random play in each copy of its world
    :return: a row of the table
    :raises PastRunError: if it is a run of something else
    """
    try:
        config = saved_config(folder)
    except TypeError as error:
        raise PastRunError(f"{folder} is not the folder of a run of pretraining: {error}") from error
    model = make_a2c(config)
    if config.agent != "none":
        transfer_trunk(LEARNERS[config.agent].load(folder / "pretraining" / "model.zip", device="cpu"), model)
    seen = observations(model, steps)
    with th.no_grad():
        features = model.policy.extract_features(model.policy.obs_to_tensor(seen)[0])
    assert isinstance(features, th.Tensor)
    assert model.env is not None
    model.env.close()
    own = {"game": config.game, "agent": config.agent, "seed": config.seed, "observations": len(seen)}
    return own | {name: round(value, 4) for name, value in measure(features).items()}


def observations(model: A2C, steps: int) -> np.ndarray[Any, Any]:
    """
    :param model: with copies of a world, of discrete actions
    :param steps: to take in each of them, at random
    :return: what was seen, one below the other
    """
    env, rng = model.env, np.random.default_rng(0)
    assert env is not None
    assert isinstance(env.action_space, spaces.Discrete)
    seen = [env.reset()]
    for _ in range(steps):
        seen.append(env.step(rng.integers(env.action_space.n, size=env.num_envs))[0])
    return np.concatenate(seen)  # type: ignore[arg-type]


def measure(features: th.Tensor) -> dict[str, float]:
    """
    :param features: of observations, behind a ReLU, shape (B, features_dim)
    :return: "silent", the share of features that are 0 for all of them (dormant, Sokar et al. 2023, with a threshold of 0);
        "rank", the number of singular values that sum up to 99% of all (Kumar et al. 2021); "norm", the mean length of the
        vectors of features; "varying", by how much they differ from their mean, relative to their length (root mean squares)
    """
    found = features.double()
    values = th.linalg.svdvals(found)
    shares = values.cumsum(0) / values.sum().clamp(min=1e-12)
    spread = (found - found.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    return {
        "silent": float((found == 0).all(dim=0).double().mean()),
        "rank": float((shares < 0.99).sum() + 1),
        "norm": float(found.norm(dim=1).mean()),
        "varying": float(spread / found.square().sum(dim=1).mean().sqrt().clamp(min=1e-12)),
    }
