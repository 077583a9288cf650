"""
Learn one task from nothing where its reward is rare.

When is the reward first met, and when is the task solved?
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
import tyro
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import recording
from benchmarks.agents import hindsight, rivals
from benchmarks.agents.arguments import hint, read_arguments
from benchmarks.recording import CurveLog, RunConfig
from benchmarks.told_tasks import TASKS, rewarded_states
from benchmarks.told_tasks import WORLD as TOLD_WORLD
from benchmarks.worlds import RewardedStates, SettingError, World, building
from sb3_manygoals import GoalBuffer, ManyGoalsDQN, PlannedTargets

Agent = Literal["many_goals", "ppo", "a2c", "dqn", "hindsight"]

POLICIES = ("greedy", "sampled", "planned")
"""
Ways to act.

They are greedily; as while the agent learns, or with some random actions; and, for ManyGoalsDQN, by
its plan.
"""

CURVE = ("step", "first_reward", *POLICIES)
"""
Columns of ``curve.csv``.

They are steps, the step of the first reward, and for each way to act the share of episodes with a
reward.
"""

SOLVED = 0.95
"""Share of episodes with a reward from which a task counts as solved."""

_EPSILON = 0.05
"""Share of random actions, in measurements of sampled actions, of agents without random policy."""

MOST_STEPS = 10_000
"""Steps after which an episode of a measurement ends at the latest."""

_TASK_STEPS = 200
"""Steps of an episode of a task in TwoRoomsSwitch, as in the measurement of mastery."""


@dataclass(frozen=True)
class TasksConfig(RunConfig):
    """Learn the task of a world from nothing, and measure its policy on the way."""

    env_id: Annotated[str, tyro.conf.arg(name="world")] = "MiniGrid-DoorKey-8x8-v0"
    """The world: the id of a Gymnasium environment. Those of MiniGrid have one layout, all of which
    is seen. An own one is module:Id-v0, where the module registers it and is found on
    PYTHONPATH."""
    task: str | None = None
    """Task of a TwoRoomsSwitch world, one of those of told-tasks, as "agent above, door shut"."""
    agent: Agent = "many_goals"
    """ManyGoalsDQN's task_policy(); SB3's PPO, A2C or DQN; or SB3's DQN with HerReplayBuffer, which
    pursues what was rewarded."""
    agent_kwargs: str = "{}"
    """Further arguments of the agent's class, as JSON. {"class": "torch.nn:ReLU"} is that class."""
    total_steps: int = 500_000
    """Environment steps to train for."""
    n_envs: int | None = None
    """Environments side by side; by default 1, but 8 for ppo and a2c."""
    eval_freq: int = 10_000
    """Environment steps between measurements."""
    eval_episodes: int = 100
    """Episodes of a measurement, which do not count as steps. Of greedy actions in one layout it
    has only 1, as all are alike."""
    patience: int = 0
    """End early, once the task was solved at so many measurements in a row. 0 never ends early."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""

    def run(self) -> Path:
        """
        Train, or go on with it, and write the files of the run.

        These are ``config.json``, ``curve.csv``, ``summary.csv``, ``model.zip``, ``world.npz`` (of
        many_goals) or ``goals.npz`` (of hindsight), logs and checkpoints.

        :return: the folder of the run
        :raises SettingError: if an option is out of range, or does not fit the world
        """
        self.check_counts("total_steps", "eval_freq", "eval_episodes", "n_envs", "threads")
        th.set_num_threads(self.threads)
        world = TaskWorld(self.env_id, None, self.task)
        what = f"{self.agent} in {world.id} with agent_kwargs {self.agent_kwargs}"
        with building(what + hint(self.agent_kwargs)):
            model = make(self, world)
        folder = recording.open_folder(self, f"tasks-{self.agent}-{world.name}-seed{self.seed}")
        curve = CurveLog(folder / "curve.csv", CURVE)
        measure = Measure(self, world, curve)
        recording.train(
            self,
            model,
            self.total_steps,
            folder,
            [measure],
            {"measure": measure, "curve.csv": curve},
        )
        recording.save_goals(model, folder)
        targets = type(model.targets).__name__ if hasattr(model, "targets") else ""
        about = {"world": world.name, "agent": self.agent, "seed": self.seed, "targets": targets}
        score = about | {"steps": model.num_timesteps} | scores(measure)
        score = {name: "" if value is None else value for name, value in score.items()}
        CurveLog(folder / "summary.csv", list(score)).add(list(score.values()))
        print(", ".join(f"{name} {value}" for name, value in score.items() if value != ""))
        return folder


@dataclass(frozen=True)
class TaskWorld(World):
    """A world. States that fulfil a task of TwoRoomsSwitch are rewarded and end the episode."""

    task: str | None = None
    """One of :data:`benchmarks.told_tasks.TASKS`; None for other worlds than TwoRoomsSwitch."""

    def __post_init__(self) -> None:
        is_told = self.id == TOLD_WORLD and self.task in TASKS
        is_plain = not self.is_two_rooms and self.task is None
        if not (is_told or is_plain):
            raise SettingError(
                f"task must be one of {'; '.join(TASKS)} in {TOLD_WORLD}, none elsewhere, "
                f"got {self.task!r}"
            )

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        """
        Make an environment.

        :param options: arguments of ``gymnasium.make``
        :return: the world with the rewards of the task
        :raises SettingError: if agents cannot learn goals in it
        """
        env = super().make(**options)
        if self.task is None:
            return env
        rewarded = rewarded_states(env.unwrapped.mdp, self.task)  # type: ignore[attr-defined]
        return TimeLimit(RewardedStates(env, rewarded, ~rewarded), _TASK_STEPS)

    def make_many(self, n_envs: int, seed: int) -> VecEnv:
        """
        Make an SB3 vector of environments.

        :param n_envs: number of environments
        :param seed: seed of the first
        :return: the environments, with Monitors
        """
        return make_vec_env(self.make, n_envs, seed)


def make(config: TasksConfig, world: World) -> Any:
    """
    Make an untrained agent.

    :param config: settings of the run
    :param world: world in which it learns
    :return: an algorithm of SB3 or ours, with its environments
    :raises SettingError: if ``agent_kwargs`` are no arguments
    """
    given = read_arguments(config.agent_kwargs)
    device = given.pop("device", config.device)
    if config.agent in rivals.CLASSES:
        given |= {} if config.n_envs is None else {"n_envs": config.n_envs}
        return rivals.make(config.agent, world.make, config.seed, device, given)
    n_envs = config.n_envs or 1
    if config.agent == "hindsight":
        pursuit = {
            "goal_buffer": GoalBuffer(world.space),
            "selector_class": hindsight.Rewarded,
            "reset_worlds": "auto",
        }
        worlds = world.make_many(n_envs, config.seed)
        return hindsight.make(worlds, pursuit, config.seed, device, given)
    env = world.make() if n_envs == 1 else world.make_many(n_envs, config.seed)
    policy = "CnnPolicy" if world.is_seen else "MlpPolicy"
    return ManyGoalsDQN(policy, env, seed=config.seed, device=device, **given)


def policy_of(model: Any, planned: bool = False) -> Any:
    """
    Return the policy with which an agent solves its task, as far as it knows.

    :param model: an agent of :func:`make`
    :param planned: whether ManyGoalsDQN acts by its plan; by default its network acts
    :return: object with ``predict(observations, deterministic)``; None while the agent knows no
        reward
    """
    if not hasattr(model, "goal_buffer"):
        return rivals.RivalPolicy(model)
    if not (model.goal_rewards > 0.0).any():
        return None
    if isinstance(model, ManyGoalsDQN):
        return model.task_policy(planned=planned)
    return rivals.HindsightPolicy(model)


def evaluate(
    policy: Any, world: World, episodes: int, seed: int, greedy: bool, epsilon: float = 0.0
) -> float:
    """
    Measure a policy.

    :param policy: object with ``predict(observations, deterministic)``
    :param world: world in which it acts
    :param episodes: number of episodes
    :param seed: seed of the first episode; each of the others has the next number
    :param greedy: whether ``predict`` is deterministic
    :param epsilon: share of random actions; none by default
    :return: the share of episodes with a positive sum of rewards. An episode ends after
        :data:`MOST_STEPS` steps at the latest
    """
    # Worlds draw with default_rng(seed): the tag keeps the two streams apart.
    rng = np.random.default_rng((seed, 7))
    worlds = [world.make() for _ in range(episodes)]
    seen = np.stack([env.reset(seed=seed + row)[0] for row, env in enumerate(worlds)])
    n_actions = int(worlds[0].action_space.n)  # type: ignore[attr-defined]
    sums = np.zeros(episodes)
    left = np.arange(episodes)
    for _ in range(MOST_STEPS):
        if len(left) == 0:
            break
        actions = np.array(policy.predict(seen[left], deterministic=greedy)[0])
        random = rng.random(len(left)) < epsilon
        actions[random] = rng.integers(n_actions, size=random.sum())
        steps = [
            worlds[row].step(action) for row, action in zip(left.tolist(), actions, strict=True)
        ]
        for row, (observation, reward, *_) in zip(left.tolist(), steps, strict=True):
            seen[row] = observation
            sums[row] += float(reward)
        left = left[[not (ended or truncated) for _, _, ended, truncated, _ in steps]]
    return float(np.mean(sums > 0.0))


class Measure(BaseCallback):
    """
    Notes the first reward, and measures the policy every so many steps.

    :param config: settings of the run
    :param world: world in which the policy is measured
    :param curve: file to which a row is added at each measurement
    """

    def __init__(self, config: TasksConfig, world: World, curve: CurveLog) -> None:
        super().__init__()
        self.config = config
        self.world = world
        self.curve = curve
        self.first_reward: int | None = None
        self.rows: list[list[Any]] = []

    def _on_step(self) -> bool:
        """Measure, if it is time, and end training once the task is solved often enough."""
        normalized = self.model.get_vec_normalize_env()
        infos = self.locals["infos"]
        rewards = (
            [info["env_reward"] for info in infos]
            if normalized is None
            else normalized.get_original_reward()
        )
        if self.first_reward is None and max(rewards) > 0.0:
            self.first_reward = self.num_timesteps
        # A run may go on with another frequency.
        last_step = self.rows[-1][0] if self.rows else 0
        every = self.config.eval_freq
        if self.num_timesteps // every > last_step // every:
            self._measure()
        return not self.is_settled()

    def is_settled(self) -> bool:
        """
        Return whether one of the policies has solved the task often enough to end the run.

        :return: False, if the run has no patience
        """
        last = self.rows[-self.config.patience :]
        columns = [CURVE.index(name) for name in POLICIES]
        enough = 0 < self.config.patience <= len(self.rows)
        return enough and any(all(_is_solved(row[column]) for row in last) for column in columns)

    def _measure(self) -> None:
        """Measure each way to act, and add a row to the curve."""
        config = self.config
        planned = isinstance(getattr(self.model, "targets", None), PlannedTargets)
        first_reward = "" if self.first_reward is None else self.first_reward
        row: list[Any] = [self.num_timesteps, first_reward]
        for name in POLICIES if planned else POLICIES[:2]:
            greedy = name != "sampled"
            policy = policy_of(self.model, name == "planned")
            # Greedy episodes in one layout are all alike.
            is_one_layout = config.env_id.startswith("MiniGrid-")
            episodes = 1 if greedy and is_one_layout else config.eval_episodes
            epsilon = 0.0 if greedy or config.agent in ("ppo", "a2c") else _EPSILON
            seed = 10_000 * (config.seed + 1)
            found = 0.0
            if policy is not None:
                deterministic = greedy or epsilon > 0.0
                found = evaluate(policy, self.world, episodes, seed, deterministic, epsilon)
            row.append(f"{found:.4f}")
        row += [""] * (len(CURVE) - len(row))
        self.rows.append(row)
        self.curve.add(row)

    def get_checkpoint_state(self) -> Any:
        """
        Return the state that a checkpoint keeps.

        :return: the step of the first reward, and all rows of the curve
        """
        return {"first_reward": self.first_reward, "rows": self.rows}

    def set_checkpoint_state(self, state: Any) -> None:
        """
        Go on from a checkpoint.

        :param state: the step of the first reward, and all rows of the curve
        """
        self.first_reward = state["first_reward"]
        self.rows = state["rows"]


def _is_solved(success: str) -> bool:
    return success != "" and float(success) >= SOLVED


def scores(measure: Measure) -> dict[str, Any]:
    """
    Sum up all measurements of a run.

    :param measure: the callback that made them
    :return: ``first_reward``, and for each way to act the step of the first measurement at which
        the task is solved, the share of the measurements from then on at which it is solved, and
        the last measurement; None for what has not happened
    """
    score: dict[str, Any] = {"first_reward": measure.first_reward}
    for column in POLICIES:
        place = CURVE.index(column)
        solved = [_is_solved(row[place]) for row in measure.rows]
        first = solved.index(True) if any(solved) else None
        score[f"{column}_solved"] = None if first is None else measure.rows[first][0]
        kept = None if first is None else round(float(np.mean(solved[first:])), 3)
        score[f"{column}_kept"] = kept
        score[f"{column}_final"] = measure.rows[-1][place] if measure.rows else None
    return score
