"""Section 3 of the paper, in any world: how many of its observations does an agent learn to reach?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch as th
import tyro
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from benchmarks import film, recording
from benchmarks.agents.mastery import AgentConfig, make
from benchmarks.demo import page as demo
from benchmarks.recording import Clock, CurveLog
from benchmarks.tables import NotEnumerable, Tables, TabularVectorEnv
from benchmarks.worlds import SettingError, World
from sb3_manygoals import (
    ManyGoalsDQN,
    MasteryCallback,
    MasteryResult,
    PlannedTargets,
    evaluate_mastery,
)
from sb3_manygoals.evaluation import MasteryPoint
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.wrapping import goal_trackers

MOST_KNOWN = 1_000
"""Goals that are measured at most in a world without tables, whose steps take time."""

CURVE = [
    "step",
    "training_seconds",
    "greedy",
    "greedy_low",
    "greedy_high",
    "epsilon",
    "epsilon_low",
    "epsilon_high",
]
"""Columns of ``mastery.csv``: mastery of all goals. Those of the held-out goals follow, if there are any."""

MEASURES = ("greedy", "epsilon", "plan", "held_out_greedy", "held_out_epsilon", "held_out_plan")
"""Of mastery after training, in ``summary.csv``: by the greedy policy, with random actions, by the plan itself."""


@dataclass(frozen=True)
class MasteryConfig(AgentConfig):
    """Train an agent in a world, measure how many of its observations it masters, write a report."""

    env_id: Annotated[str, tyro.conf.arg(name="world")] = "TwoRoomsSwitch-v0"
    """The world: the id of a Gymnasium environment, TwoRoomsSwitch, FrozenLake8x8-v1, MiniGrid-DoorKey-6x6-v0 or another. An
    own one is module:Id-v0, where the module registers it and is found on PYTHONPATH."""
    map: str | None = None
    """Layout of TwoRoomsSwitch: paper, small, locks, warehouse, mansion, or a file with a map."""
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
    scenarios: int | None = None
    """
    Of a world that accepts few seeds: it is trained and measured with those from 0 to one less than this; by default with
    any.
    """

    @property
    def world(self) -> World:
        return World(self.env_id, self.map, scenarios=self.scenarios)

    def run(self) -> Path:
        """
        Train, or go on, measure, and write ``config.json``, ``checkpoints/``, ``progress.csv``, ``mastery.csv``,
        ``goals.csv``, ``summary.csv``, ``model.zip``, ``goals.npz`` (not for tables), ``report.html`` with
        ``report-data/``, TensorBoard events; ``reaching.gif`` where the world renders; in TwoRoomsSwitch, of ManyGoalsDQN,
        ``demo.html``.
        """
        self.check_counts("total_steps", "n_envs", "eval_freq", "eval_steps", "threads")
        self.check_counts("final_episodes", "most_goals", "curve_goals", "scenarios")
        if not 0.0 <= self.eval_epsilon <= 1.0:
            raise SettingError(f"eval_epsilon must be in [0, 1], got {self.eval_epsilon}")
        th.set_num_threads(self.threads)
        evaluated = _evaluated(self)
        config = replace(self, eval_freq=self.eval_freq or max(1, self.total_steps // 5))
        name = evaluated.world.name
        folder = recording.open_folder(config, f"mastery-{self.agent}-{name}-seed{self.seed}")
        if evaluated.tables is not None:
            print(f"{len(evaluated.tables)} observations can be reached")
        seconds = _train(config, folder, evaluated)
        _conclude(config, folder, evaluated, seconds)
        pages = [page for name in ("report.html", "demo.html") if (page := folder / name).exists()]
        print(f"open {' and '.join(map(str, pages))}")
        return folder


@dataclass(frozen=True)
class EvaluatedAgent:
    """An agent, and how it is measured."""

    model: Any
    """The algorithm, with its environment and a ``predict`` towards goals."""
    numbered: bool
    """Whether it observes state numbers."""
    world: World
    tables: Tables | None
    """Of the world, as the model observes it, if there are any."""
    held_out: NDArray[np.bool_]
    """Which of the measured goals are held out, shape (n_goals,)."""
    states: NDArray[np.int64]
    """State numbers of the measured goals, shape (n_goals,); none without tables."""


def _evaluated(config: MasteryConfig) -> EvaluatedAgent:
    world, tables = config.world, None
    world.make().close()
    try:
        tables = world.tables
    except NotEnumerable as error:
        print(
            f"{world.id} cannot be written out: {error}. The goals that are measured are those known in the end"
        )
        if config.held_out:
            raise SettingError(
                f"held_out must be 0 where the goals are not known before, got {config.held_out}"
            ) from error
    n_states = 0 if tables is None else len(tables)
    held_out = choose_held_out(n_states, config.held_out, config.seed)
    model, numbered = make(config, world, tables, held_out if held_out.any() else None)
    states = np.sort(np.random.default_rng(0).permutation(n_states)[: config.most_goals])
    if tables is not None and numbered:
        tables = replace(tables, space=spaces.Discrete(n_states), observations=np.arange(n_states))
    return EvaluatedAgent(model, numbered, world, tables, held_out[states], states)


def choose_held_out(n_goals: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which of all goals are held out, drawn at random, shape (n_goals,)."""
    if not 0.0 <= share < 1.0:
        raise SettingError(f"held_out must be in [0, 1), got {share}")
    held_out = np.zeros(n_goals, dtype=np.bool_)
    rng = np.random.default_rng((seed, 5))  # tagged: worlds draw with default_rng(seed)
    held_out[rng.permutation(n_goals)[: round(share * n_goals)]] = True
    return held_out


def _train(config: MasteryConfig, folder: Path, evaluated: EvaluatedAgent) -> float:
    """Train, and measure meanwhile where goals are known; returns the seconds of training."""
    tables, held_out, states = evaluated.tables, evaluated.held_out, evaluated.states
    curve = CurveLog(
        folder / "mastery.csv", CURVE + [f"held_out_{name}" for name in CURVE[2:] if held_out.any()]
    )
    callback: MasteryCallback | Clock = Clock()
    if tables is not None:
        some = np.sort(np.random.default_rng(1).permutation(len(states))[: config.curve_goals])
        if held_out.any() and not held_out[some].any():  # of few held-out goals
            some = np.arange(len(states))

        def note(point: MasteryPoint) -> None:
            results = [point.greedy, point.epsilon]
            if held_out.any():
                results += [result.subset(held_out[some]) for result in results]
            values = [value for result in results for value in (result.rate, *result.interval)]
            curve.add(
                [point.step, f"{point.training_seconds:.1f}", *(f"{value:.4f}" for value in values)]
            )

        assert config.eval_freq is not None
        worlds, goals = TabularVectorEnv(tables, len(some)), tables.observations[states[some]]
        callback = MasteryCallback(
            worlds,
            goals,
            config.eval_freq,
            config.eval_steps,
            config.eval_epsilon,
            note,
            seed=config.seed,
            verbose=1,
        )
    extras = {"mastery": callback, "mastery.csv": curve}
    recording.train(
        config, evaluated.model, config.total_steps, folder, [callback], extras, log_interval=200
    )
    if hasattr(evaluated.model, "goal_buffer") and not evaluated.numbered:
        evaluated.model.goal_buffer.save(folder / "goals.npz")
    return callback.training_seconds


def _conclude(
    config: MasteryConfig, folder: Path, evaluated: EvaluatedAgent, training_seconds: float
) -> None:
    """Measure, and write and print what came out."""
    import pandas as pd  # here, as it and matplotlib take seconds to import

    from benchmarks.report import study

    results = _measure(config, evaluated)
    pd.DataFrame(_goals(evaluated, results)).to_csv(folder / "goals.csv", index=False)
    summary = _summary(config, evaluated, results, training_seconds)
    pd.DataFrame([summary]).to_csv(folder / "summary.csv", index=False)
    if evaluated.world.is_two_rooms:
        path, greedy, states = folder / "reaching.gif", results["greedy"], evaluated.states
        model, world, numbered = evaluated.model, evaluated.world, evaluated.numbered
        film.reaching(
            model, world, greedy, states, path, config.seed, config.eval_epsilon, numbered
        )
        if config.agent in demo.AGENTS:
            try:
                demo.write(folder)
            except SettingError as error:
                print(f"no demo.html: {error}")
    else:
        _film(config, evaluated, results["greedy"], folder / "reaching.gif")
    study.write([folder], folder / "report.html", f"Mastery of {evaluated.world.name}")
    _say(summary)


def _film(
    config: MasteryConfig, evaluated: EvaluatedAgent, result: MasteryResult, path: Path
) -> None:
    """A film in another world than TwoRoomsSwitch; what goes wrong in its ``render`` costs the film alone."""
    world = evaluated.world
    options: dict[str, Any] = {}
    if evaluated.numbered:
        options["observe"] = lambda seen: world.tables.states_of(np.asarray(seen)[None])[0]
    goals = _measured_goals(config, evaluated)
    try:
        film.reaching_anywhere(
            evaluated.model,
            world,
            result,
            goals,
            path,
            config.seed,
            config.eval_epsilon,
            **options,
        )
    except Exception as error:  # it is somebody else's code that draws
        print(f"no {path.name}: {error}")


class ByPlan:
    """Acts by the plan of PlannedTargets, not by the network that learns it; at random where the plan has no action."""

    def __init__(self, model: ManyGoalsDQN, seed: int) -> None:
        assert isinstance(model.targets, PlannedTargets)
        self.model, self.plan = model, model.targets.plan
        self.rng = np.random.default_rng(seed)

    def predict(
        self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        states, goals = self.model.replay_buffer.states, self.model.goal_buffer
        assert states is not None
        assert goals is not None
        actions = self.plan.best_actions(
            states.ids(observation["observation"]), goals.ids(observation["desired_goal"])
        )
        any_action = self.rng.integers(int(self.model.action_space.n), size=len(actions))
        return np.where(actions < 0, any_action, actions), None


def _measured_goals(config: MasteryConfig, evaluated: EvaluatedAgent) -> NDArray[Any]:
    """The goals that are measured, as the model observes them."""
    if evaluated.tables is not None:
        return evaluated.tables.observations[evaluated.states]
    known: NDArray[Any] = evaluated.model.goal_buffer.observations
    rows = np.random.default_rng(0).permutation(len(known))[: min(MOST_KNOWN, config.most_goals)]
    return known[np.sort(rows)]


def _measure(config: MasteryConfig, evaluated: EvaluatedAgent) -> dict[str, MasteryResult]:
    """Mastery after training, from other starts than before."""
    model, tables = evaluated.model, evaluated.tables
    env: VectorEnv[Any, Any, Any]
    goals, ceiling = _measured_goals(config, evaluated), None
    if tables is None:
        env = SyncVectorEnv([evaluated.world.make] * min(len(goals), 64))
        seeds = None if config.scenarios is None else range(config.scenarios)
    else:
        ceiling = tables.ceiling(config.eval_steps)
        env = TabularVectorEnv(tables, len(goals))
        seeds = None
    episodes = config.final_episodes or (2 if len(goals) > 2_000 else 10)
    task: dict[str, Any] = {"env": env, "goals": goals, "max_steps": config.eval_steps}
    task |= {"episodes_per_goal": episodes, "seed": config.seed + 1_000, "env_seeds": seeds}
    results = {"greedy": evaluate_mastery(model, ceiling=ceiling, **task)}
    results["epsilon"] = evaluate_mastery(model, epsilon=config.eval_epsilon, **task)
    if isinstance(getattr(model, "targets", None), PlannedTargets):
        results["plan"] = evaluate_mastery(ByPlan(model, config.seed), **task)
    if evaluated.held_out.any():
        results |= {
            f"held_out_{name}": result.subset(evaluated.held_out)
            for name, result in results.items()
        }
    return results


def _summary(
    config: MasteryConfig,
    evaluated: EvaluatedAgent,
    results: dict[str, MasteryResult],
    training_seconds: float,
) -> dict[str, Any]:
    """The row of ``summary.csv``; what is unknown or has no meaning is empty."""
    model, greedy = evaluated.model, results["greedy"]
    row: dict[str, Any] = {
        "world": evaluated.world.name,
        "agent": config.agent,
        "seed": config.seed,
        "known": len(goal_trackers(model.get_env())[0].goal_buffer),
        "reachable": "" if evaluated.tables is None else len(evaluated.tables),
        "measured": len(greedy.reached),
    }
    for name in MEASURES:
        result = results.get(name)
        values = (
            [""] * 3
            if result is None
            else [round(value, 4) for value in (result.rate, *result.interval)]
        )
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    return row | {
        "ceiling": "" if greedy.ceiling is None else round(float(greedy.ceiling.mean()), 4),
        "training_seconds": round(training_seconds, 1),
        "steps": model.num_timesteps,
        "updates": "" if evaluated.numbered else model._n_updates,
        "targets": type(model.targets).__name__ if hasattr(model, "targets") else "",
    }


def _say(summary: dict[str, Any]) -> None:
    """Print the summary in words."""
    reachable = summary["reachable"]
    of = (
        f"of {reachable} reachable observations"
        if reachable
        else "observations; how many can be reached is not known"
    )
    print(f"known: {summary['known']} {of}")
    for name in MEASURES:
        rate, low, high = (summary[f"{name}{end}"] for end in ("", "_low", "_high"))
        if rate != "":
            print(f"mastered: {rate:.4f} [{low:.4f}, {high:.4f}] {name.replace('_', ' ')}")
    if summary["ceiling"] != "":
        print(f"the best possible policy, from the same starts: {summary['ceiling']:.4f}")
    updates = f", {summary['updates']} updates" if summary["updates"] else ""
    print(f"{summary['training_seconds']:.0f} s of training, {summary['steps']} steps{updates}")


def _goals(evaluated: EvaluatedAgent, results: dict[str, MasteryResult]) -> dict[str, Any]:
    """Columns about each goal: its state, whether it is held out, in how many updates it was, and how the agent fared."""
    model, tables, states = evaluated.model, evaluated.tables, evaluated.states
    table: dict[str, Any] = {
        "state": np.arange(len(results["greedy"].reached)),
        "held_out": 0,
        "updates": 0,
    }
    if tables is not None:
        table |= {
            "state": states,
            "held_out": evaluated.held_out.astype(int),
            "updates": "",
        }  # unknown of SB3's agents
        if evaluated.numbered:  # a table, where each transition is an update of every goal
            table["updates"] = model.num_timesteps
        elif hasattr(model, "goal_updates"):
            ids = model.goal_buffer.ids(tables.observations[states])
            table["updates"] = np.where(ids == UNKNOWN, 0, model.goal_updates[ids])
    for name in ("greedy", "epsilon"):
        reached, steps = results[name].reached, results[name].steps
        table[f"{name}_reached"] = reached.mean(axis=1).round(4)
        table[f"{name}_mean_steps"] = (
            np.ma.masked_array(steps, ~reached).mean(axis=1).round(1).filled(np.nan)
        )
    return table
