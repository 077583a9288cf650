"""Section 3 of the paper, in any world: how many of its observations does an agent learn to reach?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc import locate
from typing import Annotated, Any, Literal

import numpy as np
import torch as th
import tyro
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks import hindsight, leo, tabular
from benchmarks.study import Subject, carry_out, choose_held_out, open_folder, saved_settings
from benchmarks.worlds import NotEnumerable, SettingError, Tables, World
from sb3_manygoals import PAPER, GoalBuffer, ManyGoalsDQN, TDTargets
from sb3_manygoals.goals import (
    GoalSelector,
    IntermediateDifficultySelector,
    LearningProgressSelector,
    LeastVisitedSelector,
    SmoothedProgressSelector,
    UniformSelector,
    ValueDisagreementSelector,
)

Agent = Literal["default", "td", "paper", "table", "hindsight", "head-per-goal"]

SELECTORS: dict[str, type[GoalSelector]] = {
    "uniform": UniformSelector,
    "learning_progress": LearningProgressSelector,
    "smoothed_progress": SmoothedProgressSelector,
    "intermediate_difficulty": IntermediateDifficultySelector,
    "least_visited": LeastVisitedSelector,
    "value_disagreement": ValueDisagreementSelector,
}
"""Rules by the names they have in the settings."""

N_ENVS = {"paper": 1, "hindsight": 8}
"""How many environments the settings of some agents are for; in TwoRoomsSwitch others have 64."""


@dataclass(frozen=True)
class MasteryConfig:
    """Train an agent in a world, measure how many of its observations it masters, write a report."""

    env_id: Annotated[str, tyro.conf.arg(name="world")] = "TwoRoomsSwitch-v0"
    """The world: the id of a Gymnasium environment, TwoRoomsSwitch, FrozenLake8x8-v1, MiniGrid-DoorKey-6x6-v0 or another."""
    map: str | None = None
    """Layout of TwoRoomsSwitch: paper, small, locks, warehouse, mansion, or a file with a map."""
    agent: Agent = "default"
    """ManyGoalsDQN as it is; with the targets of a target network; with the paper's settings; a lookup table; SB3's DQN with
    HerReplayBuffer; ManyGoalsDQN with outputs for each goal."""
    selection: Literal[
        "uniform",
        "learning_progress",
        "smoothed_progress",
        "intermediate_difficulty",
        "least_visited",
        "value_disagreement",
    ] = "uniform"
    """How the goals that are pursued are chosen."""
    agent_kwargs: str = "{}"
    """Further arguments of the agent's class, as JSON, into the agent's own where these are objects; "torch.nn:ReLU" is that
    class."""
    total_steps: int = 500_000
    """Environment steps to train for."""
    seed: int = 0
    """Of everything random."""
    n_envs: int | None = None
    """Environments that run side by side; by default 64 in TwoRoomsSwitch, but 1 for paper and 8 for hindsight, and elsewhere
    1."""
    held_out: float = 0.0
    """Share of all goals, drawn at random, that are neither pursued nor taught (the paper: 0.2), and measured on their own."""
    eval_freq: int | None = None
    """Environment steps between measurements of mastery; by default a fifth of all."""
    eval_epsilon: float = 0.1
    """Mastery is measured greedily, and with this share of random actions."""
    eval_steps: int = 200
    """Steps within which a goal must be reached."""
    final_episodes: int | None = None
    """Starts for each goal in the measurement after training; by default 2 if there are more than 2,000 goals, else 10."""
    most_goals: int = 10_000
    """Goals that are measured at most, drawn at random."""
    curve_goals: int = 1_000
    """The same while it trains: measuring all of a large world takes as long as some ten thousand steps."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    progress_bar: bool = True
    """Show one while training."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint, or from the start if it has none. The defaults of all other
    options are then that run's."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""
    threads: int = 1
    """Torch threads. Two are little faster with networks of this size, and on cores that others use too many times slower:
    OpenMP's threads wait by spinning, unless OMP_WAIT_POLICY is passive."""

    @property
    def world(self) -> World:
        """Where it learns."""
        return World(self.env_id, self.map)

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


def saved_config(folder: Path) -> MasteryConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    return MasteryConfig(**saved_settings(folder))


def make(
    config: MasteryConfig, world: World, tables: Tables | None, held_out: NDArray[np.bool_] | None = None
) -> tuple[Any, bool]:
    """
    :param config: of the run
    :param world: to learn in
    :param tables: it written out, if it can be
    :param held_out: which of its states must never be goals, or None
    :return: an untrained agent, and whether it sees the numbers of states instead of observations
    :raises SettingError: if it cannot be made so
    """
    n_envs = config.n_envs or (N_ENVS.get(config.agent, 64) if world.is_two_rooms else 1)
    given = _arguments(config)
    never = None if held_out is None or tables is None else tables.observations[held_out]
    try:
        if config.agent == "table":
            if tables is None:
                raise ValueError("there are no tables of the world, so that its states have no numbers")
            if never is not None or config.selection != "uniform":
                raise ValueError("a table knows of a goal what it was taught of it: held_out and selection are for others")
            return tabular.make(world, tables, n_envs, config.total_steps, config.seed, given), True
        pursuit: dict[str, Any] = {}
        if config.selection != "uniform":
            pursuit["selector"] = SELECTORS[config.selection]()
        if config.agent in ("hindsight", "head-per-goal") or never is not None:
            pursuit["goal_buffer"] = GoalBuffer(world.space, 10_000 if tables is None else len(tables), never)
        if config.agent == "hindsight":
            return hindsight.make(world.make_many(n_envs, config.seed), pursuit, config.seed, config.device, given), False
        own: dict[str, Any] = {"td": {"target_class": TDTargets}, "paper": PAPER}.get(config.agent, {})
        if config.agent == "paper" and not world.is_seen:  # its convolutions have no meaning there
            layers = ("features_extractor_class", "net_arch")
            own = own | {
                "policy_kwargs": {key: own["policy_kwargs"][key] for key in own["policy_kwargs"] if key not in layers}
            }
        own = merged(own, {"goal_wrapper_kwargs": pursuit} if pursuit else {})
        algorithm = leo.AllGoalsDQN if config.agent == "head-per-goal" else ManyGoalsDQN
        env = world.make() if n_envs == 1 else world.make_many(n_envs, config.seed)
        policy = "CnnPolicy" if world.is_seen else "MlpPolicy"
        return algorithm(policy, env, seed=config.seed, device=config.device, **merged(own, given)), False
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"{config.agent} cannot learn in {config.env_id} with agent_kwargs {config.agent_kwargs}: {error}"
        ) from error


def merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param own: arguments
    :param given: others, which count where both have them
    :return: all of them; dictionaries are merged likewise
    """
    nested = {
        key: merged(own[key], given[key]) for key in given if isinstance(own.get(key), dict) and isinstance(given[key], dict)
    }
    return {**own, **given, **nested}


def _arguments(config: MasteryConfig) -> dict[str, Any]:
    try:
        given = json.loads(config.agent_kwargs)
    except json.JSONDecodeError as error:
        raise SettingError(f"agent_kwargs must be JSON, got {config.agent_kwargs!r}: {error}") from error
    if not isinstance(given, dict):
        raise SettingError(f"agent_kwargs must be a JSON object, got {config.agent_kwargs!r}")
    return {key: _named(value) for key, value in given.items()}


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(each) for key, each in value.items()}
    if not isinstance(value, str) or ":" not in value:
        return value
    found = locate(value.replace(":", "."))
    if found is None:
        raise SettingError(f"agent_kwargs must name classes as torch.nn:ReLU is, there is no {value!r}")
    return found


def run(config: MasteryConfig) -> Path:
    """
    Carry out the study, see :func:`~benchmarks.study.carry_out`, and write ``config.json`` besides.

    :param config: what to run
    :return: the folder
    :raises SettingError: if settings do not go together
    """
    for name in ("total_steps", "n_envs", "eval_freq", "eval_steps", "final_episodes", "most_goals", "curve_goals", "threads"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise SettingError(f"{name} must be at least 1, got {value}")
    if not 0.0 <= config.eval_epsilon <= 1.0:
        raise SettingError(f"eval_epsilon must be in [0, 1], got {config.eval_epsilon}")
    th.set_num_threads(config.threads)
    world, tables = config.world, None
    world.make().close()
    try:
        tables = world.tables
        states = np.sort(np.random.default_rng(0).permutation(len(tables))[: config.most_goals])
    except NotEnumerable as error:
        print(f"{world.id} cannot be written out: {error}. The goals that are measured are those known in the end")
        if config.held_out:
            raise SettingError(f"held_out must be 0 where the goals are not known before, got {config.held_out}") from error
    held_out = choose_held_out(0 if tables is None else len(tables), config.held_out, config.seed)
    model, numbered = make(config, world, tables, held_out if held_out.any() else None)
    config = replace(config, eval_freq=config.eval_freq or max(1, config.total_steps // 5))
    folder = open_folder(config, f"mastery-{config.agent}-{world.name}-seed{config.seed}")
    if tables is None:
        subject = Subject(model, world, None, held_out, model)
    else:
        by_pictures = tabular.ByNumbers(model, tables) if numbered else model
        if numbered:
            tables = replace(tables, space=spaces.Discrete(len(tables)), observations=np.arange(len(tables)))
        subject = Subject(model, world, tables, held_out[states], by_pictures, states)
    carry_out(config, folder, subject)
    return folder
