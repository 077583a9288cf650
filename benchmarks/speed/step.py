"""What a step and an action cost, beside those of SB3's DQN, when nothing is learned from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig, rate
from benchmarks.speed.training import training
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN

WORLDS = ("CartPole-v1", "MiniGrid-Empty-8x8-v0")
"""Worlds in which observations never recur, and in which they do."""

N_ENVS = (1, 8)
"""Numbers of environments in a DummyVecEnv."""

AGENTS = ("ours", "SB3's DQN")
"""Agents that are compared, ours first."""

SETTINGS: dict[str, Any] = {
    # Updates would begin after the end.
    "learning_starts": 10**9,
    "buffer_size": 100_000,
    "seed": 0,
    "device": "cpu",
}
"""Arguments of both agents."""


def name_of(agent: str, world: str, n_envs: int | None) -> str:
    """
    Return the name of a contender.

    :param agent: one of :data:`AGENTS`
    :param world: one of :data:`WORLDS`
    :param n_envs: number of environments whose steps are measured. None: ``predict`` is measured
    :return: the name
    """
    what = "predict" if n_envs is None else f"steps of {n_envs}"
    return f"{agent}, {world}, {what}"


RATIOS = tuple(
    Ratio(
        f"{'calls/s' if n_envs is None else 'steps/s'}, ours / SB3's DQN: "
        f"{world}, {'predict' if n_envs is None else f'{n_envs} environment(s)'}",
        *(name_of(agent, world, n_envs) for agent in AGENTS),
    )
    for n_envs in (*N_ENVS, None)
    for world in WORLDS
)
"""Ratios that are printed."""


@dataclass(frozen=True)
class StepConfig(SpeedConfig):
    """
    Time random steps without updates, and greedy actions for one observation, of both agents.

    Environments are the same, and both networks have two layers of 512 units. Ours has another
    layer for the embeddings of state and goal.
    """

    what = "step"
    unit = "steps or calls/s"
    ratios = RATIOS

    rounds: int = 5
    steps: int = 4_000
    """Steps in each measurement, of all environments together."""
    seconds: float = 0.5
    """Seconds for which each measurement of ``predict`` goes on at least."""

    def contenders(self) -> Contenders:
        """
        Make what takes turns.

        :return: for each name a function that measures steps or calls a second
        """
        found: dict[str, Callable[[], float]] = {}
        for world in WORLDS:
            for n_envs in N_ENVS:
                for agent in AGENTS:
                    model = make(agent, world, n_envs)
                    name = name_of(agent, world, n_envs)
                    found[name] = partial(_quietly, training(model, self.steps, []))
            for agent in AGENTS:
                call = one_prediction(make(agent, world, 1))
                found[name_of(agent, world, None)] = partial(rate, call, self.seconds)
        return found


def make(agent: str, world: str, n_envs: int) -> BaseAlgorithm:
    """
    Make an agent whose updates would begin after the end.

    :param agent: one of :data:`AGENTS`
    :param world: id of an environment
    :param n_envs: number of environments in its DummyVecEnv
    :return: the agent
    """
    made = World(world)
    env = made.make_many(n_envs, seed=0)
    if agent == AGENTS[0]:
        return ManyGoalsDQN("CnnPolicy" if made.is_seen else "MlpPolicy", env, **SETTINGS)
    # SB3's CnnPolicy refuses pictures as small as MiniGrid's. Its MlpPolicy takes them as vectors.
    return DQN("MlpPolicy", env, policy_kwargs={"net_arch": [512, 512]}, **SETTINGS)


def one_prediction(model: BaseAlgorithm) -> Callable[[], Any]:
    """
    Return a function that chooses a greedy action for one observation.

    :param model: the agent. Ours gets a goal that it has met
    :return: the function
    """
    assert model.env is not None
    _quietly(lambda: model.learn(200))
    shown: Any = model.env.reset()
    observation = shown[0].copy() if not isinstance(shown, dict) else None
    if observation is None:
        goal = model.goal_buffer[7]  # type: ignore[attr-defined]
        observation = {"observation": shown["observation"][0].copy(), "desired_goal": goal.copy()}
    return lambda: model.predict(observation, deterministic=True)


def _quietly(measure: Callable[[], Any]) -> Any:
    """Measure without the warning that nothing is learned, and of goals that never recur."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return measure()
