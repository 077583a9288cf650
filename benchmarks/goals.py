"""Success in worlds whose states and goals are what the user says, beside DQN with HER and PPO."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from benchmarks import recording
from benchmarks.agents import rivals
from benchmarks.goal_worlds import GoalWorld, record, worlds
from benchmarks.rows import add_row
from benchmarks.worlds import SettingError
from sb3_manygoals import GoalBuffer, ManyGoalsDQN, TDTargets, VecGoalBufferWrapper
from sb3_manygoals.goals.wrapping import goal_trackers, wrap_goal_env
from sb3_manygoals.validation import check_action_space

# At most so many goals are measured at a time.
_GOALS_AT_A_TIME = 500
# Settings of SAC with HER, those of SB3's own example for the bits where it names them. There is an
# update for 8 steps. SB3's default is one for each step.
_SAC: dict[str, Any] = {
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "batch_size": 256,
    "learning_starts": 1_000,
    "train_freq": 8,
    "gradient_steps": 1,
}
# Settings of DQN with HER.
_HER: dict[str, Any] = {
    **_SAC,
    "target_update_interval": 500,
    "exploration_fraction": 0.5,
    "policy_kwargs": {"net_arch": [256, 256, 256]},
}


@dataclass(frozen=True)
class GoalsConfig:
    """Train in a world whose states and goals are what the user says, and measure success."""

    world: str = "agent-cell"
    """The world: bits-8, bits-10, clock, noise, recorded, agent-cell, agent-cell-keyed,
    agent-cell-and-doors-keyed, near-cell-keyed, sets, maze-umaze, maze-medium, maze-large,
    car, room-.05, room-.05-keyed, room-.1, near-pole, near-acrobot, near-car, near-lander,
    random-bits-15, random-bits-20, random-bits-30, random-bits-40, wired-bits-12, wired-bits-20,
    puzzle-8, puzzle-15, layouts-four-rooms, layouts-two-rooms, pictures-four-rooms or
    pictures-two-rooms."""
    agent: Literal["default", "td", "her", "sac", "ppo", "random"] = "default"
    """ManyGoalsDQN as it is, the same with TDTargets, SB3's DQN with HerReplayBuffer, SB3's SAC
    with it, which takes continuous actions, in mazes, SB3's PPO, which is told the goal, in
    GoalEnvs, or random actions there."""
    seed: int = 0
    """Seed of everything random."""
    total_steps: int | None = None
    """Actions to train for; by default those of the world. SAC takes more of them in a world that
    holds each action of the others, so that the environment makes as many steps."""
    output: Path = Path("runs/goals.csv")
    """The file to which a row is added."""

    def run(self) -> dict[str, Any]:
        """
        Train, measure, and add a row to the file.

        :return: the row
        :raises SettingError: if there is no such world, or the agent cannot learn in it
        """
        th.set_num_threads(1)
        known = worlds()
        if self.world not in known:
            raise SettingError(f"there is no world {self.world!r}, one of {', '.join(known)}")
        world = known[self.world]()
        if self.agent == "her" and world.policy == "CnnPolicy":
            raise SettingError(
                f"the agent 'her' cannot learn in the world {self.world!r}, whose pictures are too "
                "small for the network of SB3's DQN"
            )
        steps = world.steps if self.total_steps is None else self.total_steps
        if self.agent in ("ppo", "random") and world.goal_env is None:
            raise SettingError(f"{self.agent} is measured in GoalEnvs, {self.world} is none")
        if self.agent == "sac":
            if world.continuous is None:
                raise SettingError(f"sac needs continuous actions, {self.world} has none")
            steps *= world.steps_of_action
            world = replace(world, make=world.continuous, goal_env=world.continuous)
        began = time.perf_counter()
        model = self._train(world, steps)
        seconds = time.perf_counter() - began
        if world.measure is not None:
            reached = world.measure(model)
        elif world.goal_env is None:
            reached = _reach_known(model, world)
        else:
            reached = _reach_own(model, world)
        n_updates = model._n_updates
        if isinstance(model, PPO):
            # PPO makes whole rollouts. Its own number of updates is that of passes over a rollout.
            steps = model.num_timesteps
            n_updates *= model.n_steps * model.n_envs // model.batch_size
        row = {
            "commit": recording.git_revision(),
            "world": self.world,
            "agent": self.agent,
            "seed": self.seed,
            "steps": steps,
            "success": round(float(reached.mean()), 4),
            "measured": len(reached),
            "seconds": round(seconds, 1),
            "states": _n_states(model),
            "updates": n_updates,
        }
        for number, kind in enumerate(world.kinds):
            row[kind] = round(float(reached[number :: len(world.kinds)].mean()), 4)
        if self.agent == "ppo":
            # PPO's policy is a random one, so its most probable actions may not be what it learned.
            row["sampled"] = round(float(_reach_own(model, world, deterministic=False).mean()), 4)
        add_row(self.output, row)
        print(row)
        return row

    def _train(self, world: GoalWorld, steps: int) -> Any:
        """Return a trained agent."""
        target_class = TDTargets if self.agent == "td" else None
        if self.agent in ("default", "td") and world.is_recorded:
            transitions, spaces_of_world = record(steps, self.seed)
            learner = ManyGoalsDQN(
                world.policy, spaces_of_world, seed=self.seed, target_class=target_class
            )
            return learner.learn_from(transitions)
        if self.agent in ("default", "td"):
            model = ManyGoalsDQN(
                world.policy,
                world.make(),
                seed=self.seed,
                goal_wrapper_kwargs=dict(world.goals),
                target_class=target_class,
            )
            return model.learn(steps)
        if self.agent == "random":
            return RandomAgent(world.make().action_space, self.seed)
        if self.agent == "ppo":
            assert world.goal_env is not None
            settings = {**rivals.SETTINGS["ppo"], "policy_kwargs": _HER["policy_kwargs"]}
            if "policy_kwargs" in world.her:
                settings["policy_kwargs"] = world.her["policy_kwargs"]
            envs = make_vec_env(world.goal_env, rivals.N_ENVS["ppo"], self.seed)
            # Rewards are normalized, as in rl_zoo3. Observations are not, as those of HER.
            rewards_normalized = VecNormalize(envs, norm_obs=False)
            agent = PPO("MultiInputPolicy", rewards_normalized, seed=self.seed, **settings)
            return agent.learn(steps)
        env: GymEnv = world.make() if world.goal_env is None else world.goal_env()
        if world.goal_env is None:
            env = wrap_goal_env(env, dict(world.goals))
        hindsight: dict[str, Any] = {
            "replay_buffer_class": HerReplayBuffer,
            "replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
            "seed": self.seed,
        }
        if self.agent == "sac":
            return SAC("MultiInputPolicy", env, **hindsight, **_SAC).learn(steps)
        return DQN("MultiInputPolicy", env, **hindsight, **{**_HER, **world.her}).learn(steps)


class RandomAgent:
    """
    Acts at random.

    :param action_space: the actions
    :param seed: seed of the actions
    """

    # It makes no updates.
    _n_updates = 0

    def __init__(self, action_space: Any, seed: int) -> None:
        self.n_actions = check_action_space(action_space)
        self._rng = np.random.default_rng(seed)

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, Any]:
        """
        Draw an action.

        :param observation: not used
        :param deterministic: not used
        :return: an action, and None
        """
        return int(self._rng.integers(self.n_actions)), None


def _n_states(model: Any) -> int:
    """Return the number of states that an agent has met, 0 for one without goals of its own."""
    if isinstance(model, ManyGoalsDQN):
        assert model.goal_buffer is not None
        return len(model.goal_buffer.states)
    return 0


def _reach_known(model: Any, world: GoalWorld) -> NDArray[np.bool_]:
    """Pursue each goal of the world from a start; return which were reached."""
    known = goal_trackers(model.get_env())[0].goal_buffer
    goals = known.observations if world.to_reach is None else world.to_reach()
    found = [
        _reach(model, world, known, goals[first : first + _GOALS_AT_A_TIME])
        for first in range(0, len(goals), _GOALS_AT_A_TIME)
    ]
    return np.concatenate(found)


def _reach(
    model: Any, world: GoalWorld, known: GoalBuffer, goals: NDArray[Any]
) -> NDArray[np.bool_]:
    """Pursue goals, a few at a time; return which were reached."""
    env = wrap_goal_env(
        _as_vec_env(world.make()),
        {
            "goal_buffer": known,
            "training": False,
            "max_episode_steps": world.max_steps,
            "reset_worlds": False,
        },
    )
    assert isinstance(env, VecGoalBufferWrapper)
    reached = np.zeros(len(goals), dtype=np.bool_)
    for first in range(0, len(goals), env.num_envs):
        rows = np.arange(first, min(first + env.num_envs, len(goals)))
        padded = np.resize(rows, env.num_envs)
        env.seed(int(rows[0]))
        env.set_options([{"goal": goals[row]} for row in padded])
        observations: Any = env.reset()
        is_over = np.zeros(env.num_envs, dtype=np.bool_)
        while not is_over.all():
            actions, _ = model.predict(observations, deterministic=True)
            observations, _, dones, infos = env.step(actions)
            for place in np.flatnonzero(dones & ~is_over).tolist():
                if place < len(rows):
                    reached[rows[place]] = infos[place]["is_success"]
            is_over |= dones
    return reached


def _as_vec_env(env: GymEnv) -> VecEnv:
    """Return an environment as a VecEnv."""
    if isinstance(env, VecEnv):
        return env
    return DummyVecEnv([lambda: env])


def _reach_own(model: Any, world: GoalWorld, deterministic: bool = True) -> NDArray[np.bool_]:
    """Let an agent pursue the goals that a GoalEnv sets; return which were reached."""
    assert world.goal_env is not None
    env = world.goal_env()
    reached = np.zeros(world.episodes, dtype=np.bool_)
    for episode in range(world.episodes):
        options = {"goal": episode} if world.is_near or world.kinds else None
        observation, _ = env.reset(seed=10_000 + episode, options=options)
        achieved = observation["achieved_goal"]
        reached[episode] = np.array_equal(achieved, observation["desired_goal"])
        is_over = bool(reached[episode])
        while not is_over:
            action, _ = model.predict(observation, deterministic=deterministic)
            observation, _, terminated, truncated, info = env.step(action)
            success = info.get("is_success", info.get("success", False))
            reached[episode] = bool(success)
            is_over = bool(success) or terminated or truncated
    return reached
