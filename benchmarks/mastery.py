"""
Section 3 of the paper, in any world.

How many of a world's observations does an agent learn to reach?
"""

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
from benchmarks.goal_file import given_goals, keep_goals
from benchmarks.recording import Clock, CurveLog
from benchmarks.suite.spec import write_whole
from benchmarks.tables import NotEnumerable, Tables, TabularVectorEnv
from benchmarks.worlds import SettingError, World
from sb3_manygoals import (
    ManyGoalsDQN,
    MasteryCallback,
    MasteryResult,
    PlannedTargets,
    evaluate_mastery,
)
from sb3_manygoals.checkpoint.lock import Lock
from sb3_manygoals.evaluation import MasteryPoint
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.wrapping import goal_trackers

MOST_KNOWN = 1_000
"""Most goals that are measured in a world without tables, whose steps take time."""

# Most copies of a world without tables in which goals are pursued at once.
_MOST_COPIES = 64

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
"""Columns of ``mastery.csv``: mastery of all goals. Those of held-out goals follow, if any are."""

MEASURES = ("greedy", "epsilon", "plan", "held_out_greedy", "held_out_epsilon", "held_out_plan")
"""
Measures of mastery after training, in ``summary.csv``.

They are of the greedy policy, of the same with random actions, and of the plan itself.
"""


@dataclass(frozen=True)
class MasteryConfig(AgentConfig):
    """Train an agent in a world, measure how many of its observations it masters, report."""

    env_id: Annotated[str, tyro.conf.arg(name="world")] = "TwoRoomsSwitch-v0"
    """The world: the id of a Gymnasium environment, as TwoRoomsSwitch, FrozenLake8x8-v1 or
    MiniGrid-DoorKey-6x6-v0. An own one is module:Id-v0, where the module registers it and is found
    on PYTHONPATH."""
    map: str | None = None
    """Layout of TwoRoomsSwitch: paper, small, locks, warehouse, mansion, or a file with a map."""
    held_out: float = 0.0
    """Share of all goals, drawn at random, that are neither pursued nor taught (the paper: 0.2);
    they are measured on their own."""
    eval_freq: int | None = None
    """Environment steps between measurements of mastery; by default a fifth of total_steps."""
    eval_epsilon: float = 0.1
    """Mastery is measured greedily, and with this share of random actions."""
    eval_steps: int = 200
    """Steps within which a goal must be reached."""
    final_episodes: int | None = None
    """Starts for each goal in the measurement after training; by default 2 if there are more than
    2,000 goals, else 10."""
    most_goals: int = 10_000
    """Most goals that are measured after training, drawn at random."""
    curve_goals: int = 1_000
    """Most goals that are measured while it trains: measuring all goals of a large world takes as
    long as some ten thousand steps."""
    eval_goals: str | None = None
    """File of NumPy (.npy) with the observations that are measured, for a world whose observations
    cannot be listed. The run keeps a copy. By default, they are observations that the agent has
    met."""
    scenarios: int | None = None
    """Number of scenarios of a world that accepts few seeds, from 0 to one less than this: it is
    trained and measured with those. By default a world accepts any seed."""

    @property
    def world(self) -> World:
        """The world that the options describe."""
        return World(self.env_id, self.map, scenarios=self.scenarios)

    def run(self) -> Path:
        """
        Train, or go on with it, measure, and write the files of the run.

        These are ``config.json``, ``eval_goals.npy`` if goals were given, ``checkpoints/``,
        ``progress.csv``, ``mastery.csv``, ``goals.csv``, ``summary.csv``, ``model.zip``,
        ``world.npz`` (of ManyGoalsDQN) or ``goals.npz`` (of hindsight), ``report.html`` with
        ``report-data/``, and TensorBoard events. A world that renders has ``reaching.gif``, too; a
        run of ManyGoalsDQN in TwoRoomsSwitch has ``demo.html``.

        :return: the folder of the run
        :raises SettingError: if an option is out of range, or does not fit the world
        :raises CheckpointError: if another process carries out the run
        """
        self.check_counts("total_steps", "n_envs", "eval_freq", "eval_steps", "threads")
        self.check_counts("final_episodes", "most_goals", "curve_goals", "scenarios")
        if not 0.0 <= self.eval_epsilon <= 1.0:
            raise SettingError(f"eval_epsilon must be in [0, 1], got {self.eval_epsilon}")
        recording.check_resumption(self)
        th.set_num_threads(self.threads)
        evaluated = _evaluated(self)
        config = replace(self, eval_freq=self.eval_freq or max(1, self.total_steps // 5))
        name = evaluated.world.name
        folder = recording.open_folder(config, f"mastery-{self.agent}-{name}-seed{self.seed}")
        # Another process could train on while this one measures.
        with Lock(folder / "checkpoints"):
            if evaluated.tables is not None:
                print(f"{len(evaluated.tables)} observations can be reached")
            elif evaluated.goals is not None:
                keep_goals(evaluated.goals, folder)
            seconds = _train(config, folder, evaluated)
            conclude(config, folder, evaluated, seconds)
        pages = [folder / name for name in ("report.html", "demo.html")]
        print(f"open {' and '.join(str(page) for page in pages if page.exists())}")
        return folder


@dataclass(frozen=True)
class EvaluatedAgent:
    """An agent, and how it is measured."""

    model: Any
    """The algorithm, with its environment and a ``predict`` towards goals."""
    numbered: bool
    """Whether it observes state numbers; else it sees what the world shows."""
    world: World
    """The world in which it learns."""
    tables: Tables | None
    """Tables of the world, as the model observes it, if there are any."""
    held_out: NDArray[np.bool_]
    """Which of the measured goals are held out, shape (n_goals,)."""
    states: NDArray[np.int64]
    """
    State numbers of the measured goals, or their rows in a file of goals, shape (n_goals,); none
    without tables and without a file.
    """
    goals: NDArray[Any] | None
    """
    Those of which the measured goals have the numbers ``states``, as the model observes them. None:
    what is measured are goals that it knows in the end.
    """


def _evaluated(config: MasteryConfig) -> EvaluatedAgent:
    """Make the agent of a run, and choose the goals that are held out and measured."""
    world = config.world
    tables = None
    world.make().close()
    try:
        tables = world.tables
    except NotEnumerable as error:
        measured = (
            "The goals that are measured are those known in the end. They are measured only then, "
            "so there are no learning curves, and eval_freq and curve_goals have no effect"
        )
        if config.eval_goals is not None:
            measured = f"The goals that are measured are those in {config.eval_goals}"
        print(f"{world.id} cannot be written out: {error}. {measured}")
        if config.held_out:
            raise SettingError(
                f"held_out must be 0 where not all goals are known before, got {config.held_out}"
            ) from error
    goals = None if tables is None else tables.observations
    if config.eval_goals is not None:
        if tables is not None:
            raise SettingError(
                "eval_goals is for worlds whose observations cannot be listed, got "
                f"{config.eval_goals}. All {len(tables)} observations of {world.id} are known"
            )
        goals = given_goals(Path(config.eval_goals), config.resume, world)
    n_states = 0 if goals is None else len(goals)
    held_out = choose_held_out(n_states, config.held_out, config.seed)
    model, numbered = make(config, world, tables, held_out if held_out.any() else None)
    if getattr(model, "goals_in_replay", False):
        model.get_env().close()
        raise SettingError(
            "goals_in_replay must be False here, got True: a run writes what the agent knows to "
            "world.npz, and this agent has its goals in its replay memory only"
        )
    states = np.sort(np.random.default_rng(0).permutation(n_states)[: config.most_goals])
    if tables is not None and numbered:
        goals = np.arange(n_states)
        tables = replace(tables, space=spaces.Discrete(n_states), observations=goals)
    if config.eval_goals is not None:
        known = goal_trackers(model.get_env())[0].goal_buffer
        if not known.goals_are_observations:
            model.get_env().close()
            raise SettingError(
                "eval_goals must not be given for an agent whose goals are no observations, got "
                f"{config.eval_goals}"
            )
    return EvaluatedAgent(model, numbered, world, tables, held_out[states], states, goals)


def choose_held_out(n_goals: int, share: float, seed: int) -> NDArray[np.bool_]:
    """
    Draw the goals that are held out.

    :param n_goals: number of all goals
    :param share: share of goals that are held out, at least 0 and less than 1
    :param seed: seed of the draw
    :return: which of all goals are held out, shape (n_goals,)
    :raises SettingError: if the share is out of range
    """
    if not 0.0 <= share < 1.0:
        raise SettingError(f"held_out must be in [0, 1), got {share}")
    held_out = np.zeros(n_goals, dtype=np.bool_)
    # Worlds draw with default_rng(seed): the tag keeps the two streams apart.
    rng = np.random.default_rng((seed, 5))
    held_out[rng.permutation(n_goals)[: round(share * n_goals)]] = True
    return held_out


def _train(config: MasteryConfig, folder: Path, evaluated: EvaluatedAgent) -> float:
    """Train, and measure meanwhile where goals are known. Return the seconds of training."""
    held_out = evaluated.held_out
    states = evaluated.states
    columns = [f"held_out_{name}" for name in CURVE[2:] if held_out.any()]
    curve = CurveLog(folder / "mastery.csv", CURVE + columns)
    callback: MasteryCallback | Clock = Clock()
    if evaluated.goals is not None:
        some = np.sort(np.random.default_rng(1).permutation(len(states))[: config.curve_goals])
        # Of few held-out goals, none may be among those drawn: then all goals are measured.
        if held_out.any() and not held_out[some].any():
            some = np.arange(len(states))

        def note(point: MasteryPoint) -> None:
            """Add a measurement to the curve."""
            results = [point.greedy, point.epsilon]
            if held_out.any():
                results += [result.subset(held_out[some]) for result in results]
            values = [value for result in results for value in (result.rate, *result.interval)]
            curve.add(
                [point.step, f"{point.training_seconds:.1f}", *(f"{value:.4f}" for value in values)]
            )

        assert config.eval_freq is not None
        callback = MasteryCallback(
            _worlds(evaluated, len(some)),
            evaluated.goals[states[some]],
            config.eval_freq,
            config.eval_steps,
            config.eval_epsilon,
            note,
            seed=config.seed,
            verbose=1,
            env_seeds=_world_seeds(config, evaluated),
        )
    extras = {"mastery": callback, "mastery.csv": curve}
    recording.train(
        config, evaluated.model, config.total_steps, folder, [callback], extras, log_interval=200
    )
    if not evaluated.numbered:
        recording.save_goals(evaluated.model, folder)
    return callback.training_seconds


def conclude(
    config: MasteryConfig, folder: Path, evaluated: EvaluatedAgent, training_seconds: float
) -> None:
    """
    Measure the trained agent, print the results, and write them, the film and the pages.

    :param config: settings of the run
    :param folder: the folder of the run
    :param evaluated: the agent, and how it is measured
    :param training_seconds: seconds of training so far
    """
    # pandas and matplotlib take seconds to import, so the command line starts without them.
    import pandas as pd

    from benchmarks.report import study

    print("measuring which goals are reached", flush=True)
    results = _measure(config, evaluated)
    goals = pd.DataFrame(_goals(evaluated, _measured_goals(config, evaluated), results))
    summary = _summary(config, evaluated, results, training_seconds)
    # Without a summary, a run has not finished: it is never beside goals of another measurement.
    (folder / "summary.csv").unlink(missing_ok=True)
    write_whole(folder / "goals.csv", goals.to_csv(index=False))
    write_whole(folder / "summary.csv", pd.DataFrame([summary]).to_csv(index=False))
    _film(config, evaluated, results["greedy"], folder / "reaching.gif")
    if evaluated.world.is_two_rooms and config.agent in demo.AGENTS:
        try:
            demo.write(folder)
        except SettingError as error:
            print(f"no demo.html: {error}")
    study.write([folder], folder / "report.html", f"Mastery of {evaluated.world.name}")
    _say(summary)


def _film(
    config: MasteryConfig, evaluated: EvaluatedAgent, result: MasteryResult, path: Path
) -> None:
    """Film the agent. An error of the world's ``render`` costs the film alone."""
    try:
        film.reaching(
            evaluated.model,
            evaluated.world,
            result,
            _measured_goals(config, evaluated),
            path,
            config.seed,
            config.eval_epsilon,
            evaluated.numbered,
        )
    except Exception as error:  # The code that draws is somebody else's.
        print(f"no {path.name}: {error}")


class ByPlan:
    """
    Acts by the plan of PlannedTargets, not by the network that learns it.

    Where the plan has no action, it draws one at random.

    :param model: a learner with PlannedTargets
    :param seed: seed of the random actions
    """

    def __init__(self, model: ManyGoalsDQN, seed: int) -> None:
        assert isinstance(model.targets, PlannedTargets)
        self.model = model
        self.plan = model.targets.plan
        self.rng = np.random.default_rng(seed)

    def predict(
        self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        """
        Choose an action for each of a batch of observations.

        :param observation: "observation" and "desired_goal", each of shape (n, ...)
        :param deterministic: has no effect, as the plan has one action for each pair
        :return: actions, shape (n,); None in place of a recurrent state
        """
        world = self.model.world
        goals = self.model.goal_buffer
        assert world is not None
        assert goals is not None
        actions = self.plan.best_actions(
            world.identity.ids(observation["observation"]), goals.ids(observation["desired_goal"])
        )
        any_action = self.rng.integers(int(self.model.action_space.n), size=len(actions))
        return np.where(actions < 0, any_action, actions), None


def _measured_goals(config: MasteryConfig, evaluated: EvaluatedAgent) -> NDArray[Any]:
    """Return the goals that are measured, as the model observes them."""
    if evaluated.goals is not None:
        return evaluated.goals[evaluated.states]
    known: NDArray[Any] = evaluated.model.goal_buffer.observations
    rows = np.random.default_rng(0).permutation(len(known))[: min(MOST_KNOWN, config.most_goals)]
    return known[np.sort(rows)]


def _worlds(evaluated: EvaluatedAgent, n_goals: int) -> VectorEnv[Any, Any, Any]:
    """Return copies of the world in which so many goals are measured."""
    if evaluated.tables is not None:
        return TabularVectorEnv(evaluated.tables, n_goals)
    return SyncVectorEnv([evaluated.world.make] * min(n_goals, _MOST_COPIES))


def _world_seeds(config: MasteryConfig, evaluated: EvaluatedAgent) -> range | None:
    """Return the seeds that these copies accept. None: any."""
    if evaluated.tables is not None or config.scenarios is None:
        return None
    return range(config.scenarios)


def _measure(config: MasteryConfig, evaluated: EvaluatedAgent) -> dict[str, MasteryResult]:
    """Measure mastery after training, from other starts than before."""
    model = evaluated.model
    tables = evaluated.tables
    goals = _measured_goals(config, evaluated)
    env = _worlds(evaluated, len(goals))
    seeds = _world_seeds(config, evaluated)
    ceiling = None if tables is None else tables.ceiling(config.eval_steps)
    episodes = config.final_episodes or (2 if len(goals) > 2_000 else 10)
    task: dict[str, Any] = {"env": env, "goals": goals, "max_steps": config.eval_steps}
    task |= {"episodes_per_goal": episodes, "seed": config.seed + 1_000, "env_seeds": seeds}
    results = {"greedy": evaluate_mastery(model, ceiling=ceiling, **task)}
    results["epsilon"] = evaluate_mastery(model, epsilon=config.eval_epsilon, **task)
    if isinstance(getattr(model, "targets", None), PlannedTargets):
        # What is reached is judged as for the network, also if states were learned.
        known = model.goal_buffer
        results["plan"] = evaluate_mastery(
            ByPlan(model, config.seed), goal_buffer=known, warn=False, **task
        )
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
    """Return the row of ``summary.csv``. What is unknown or has no meaning is empty."""
    model = evaluated.model
    greedy = results["greedy"]
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
        values: list[Any] = ["", "", ""]
        if result is not None:
            values = [round(value, 4) for value in (result.rate, *result.interval)]
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
    if reachable:
        known = f"{summary['known']} of {reachable} reachable observations"
    else:
        known = f"{summary['known']} observations; how many can be reached is not known"
    print(f"known: {known}")
    for name in MEASURES:
        rate, low, high = (summary[f"{name}{end}"] for end in ("", "_low", "_high"))
        if rate != "":
            print(f"mastered: {rate:.4f} [{low:.4f}, {high:.4f}] {name.replace('_', ' ')}")
    if summary["ceiling"] != "":
        print(f"the best possible policy, from the same starts: {summary['ceiling']:.4f}")
    updates = f", {summary['updates']} updates" if summary["updates"] else ""
    print(f"{summary['training_seconds']:.0f} s of training, {summary['steps']} steps{updates}")


def _goals(
    evaluated: EvaluatedAgent, goals: NDArray[Any], results: dict[str, MasteryResult]
) -> dict[str, Any]:
    """
    Return the columns of ``goals.csv``, a row for each of the goals that were measured.

    They say which state it is, or which row of ``eval_goals``, whether it is held out, in how many
    updates it was, and how the agent fared. Goals that the agent has met itself have no number:
    each run knows others.
    """
    model = evaluated.model
    table: dict[str, Any] = {
        "state": [""] * len(results["greedy"].reached),
        "held_out": 0,
        # How often SB3's agents learned about a goal is unknown: their column stays empty.
        "updates": "",
    }
    if evaluated.goals is not None:
        table["state"] = evaluated.states
        table["held_out"] = evaluated.held_out.astype(int)
    if evaluated.numbered:
        # In a table, each transition updates every goal.
        table["updates"] = model.num_timesteps
    elif hasattr(model, "goal_updates"):
        ids = model.goal_buffer.ids(goals)
        table["updates"] = np.where(ids == UNKNOWN, 0, model.goal_updates[ids])
    for name in ("greedy", "epsilon"):
        reached = results[name].reached
        steps = results[name].steps
        table[f"{name}_reached"] = reached.mean(axis=1).round(4)
        table[f"{name}_mean_steps"] = (
            np.ma.masked_array(steps, ~reached).mean(axis=1).round(1).filled(np.nan)
        )
    return table
