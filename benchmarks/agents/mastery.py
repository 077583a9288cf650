"""Agents that learn to reach goals: ManyGoalsDQN in several settings, and its rivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.vector import TransformObservation
from numpy.typing import NDArray

from benchmarks.agents import heads, hindsight
from benchmarks.agents.arguments import hint, read_arguments
from benchmarks.recording import RunConfig
from benchmarks.tables import Tables
from benchmarks.worlds import World, building
from sb3_manygoals import (
    PAPER,
    GoalBuffer,
    GymnasiumVecEnv,
    ManyGoalsDQN,
    TabularAllGoals,
    TDTargets,
)
from sb3_manygoals.goals import GoalSelector, LearningProgressSelector, UniformSelector

Agent = Literal["default", "td", "paper", "table", "hindsight", "heads"]
Selection = Literal["uniform", "learning_progress"]

SELECTORS: dict[Selection, type[GoalSelector]] = {
    "uniform": UniformSelector,
    "learning_progress": LearningProgressSelector,
}
"""Classes that select behavior goals, by their names on the command line."""

N_ENVS = {"paper": 1, "hindsight": 8}
"""Number of environments of some agents in TwoRoomsSwitch; others have 64."""

DEFAULT_GOALS = 100_000
"""Goals that a goal buffer keeps by default."""


@dataclass(frozen=True)
class AgentConfig(RunConfig):
    """The options of the agent."""

    agent: Agent = "default"
    """ManyGoalsDQN as it is; with the targets of a target network; with the paper's settings; a
    lookup table; SB3's DQN with HerReplayBuffer; or a network with outputs for each goal."""
    selection: Selection = "uniform"
    """How behavior goals are selected."""
    agent_kwargs: str = "{}"
    """Further arguments of the agent's class, as JSON. Objects are merged with the agent's own.
    {"class": "torch.nn:ReLU"} is that class, and {"function": "my_module:key"} that function, for
    instance a state_key in "goal_wrapper_kwargs"."""
    total_steps: int = 250_000
    """Environment steps to train for."""
    n_envs: int | None = None
    """Environments side by side; by default 64 in TwoRoomsSwitch, but 1 for paper and 8 for
    hindsight, and elsewhere 1."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""


def make(
    config: AgentConfig,
    world: World,
    tables: Tables | None,
    held_out: NDArray[np.bool_] | None = None,
) -> tuple[Any, bool]:
    """
    Make an untrained agent.

    :param config: options of the agent
    :param world: world in which it learns
    :param tables: tables of the world, if there are any
    :param held_out: which states are never goals, shape (S,); by default all may be
    :return: the agent, and whether it observes state numbers
    :raises SettingError: if the options do not fit the agent or the world
    """
    n_envs = number_of_envs(config, world)
    given = read_arguments(config.agent_kwargs)
    never = None if held_out is None or tables is None else tables.observations[held_out]
    what = f"{config.agent} in {world.id} with agent_kwargs {config.agent_kwargs}"
    with building(what + hint(config.agent_kwargs)):
        if config.agent in ("table", "hindsight", "heads") and never is not None:
            raise ValueError("it learns of every goal that it meets: held_out is for others")
        if config.agent == "table":
            if tables is None:
                raise ValueError(
                    "there are no tables of the world, so that its states have no numbers"
                )
            if config.selection != "uniform":
                raise ValueError("a table pursues no goals: selection is for others")
            numbers = spaces.Discrete(len(tables))
            env: Any = TransformObservation(
                world.vector(n_envs), tables.states_of, single_observation_space=numbers
            )
            algorithm = TabularAllGoals(
                "TablePolicy", GymnasiumVecEnv(env), seed=config.seed, **given
            )
            return algorithm, True
        pursuit: dict[str, Any] = {}
        if config.selection != "uniform":
            pursuit["selector_class"] = SELECTORS[config.selection]
        many = tables is not None and len(tables) > DEFAULT_GOALS
        if config.agent in ("hindsight", "heads") or never is not None or many:
            pursuit["goal_buffer"] = GoalBuffer(
                world.space, 10_000 if tables is None else len(tables), never
            )
        device = given.pop("device", config.device)
        if config.agent == "hindsight":
            worlds = world.make_many(n_envs, config.seed)
            return hindsight.make(worlds, pursuit, config.seed, device, given), False
        own: dict[str, Any] = {
            "td": {"target_class": TDTargets},
            "paper": PAPER,
            "heads": heads.SETTINGS,
        }.get(config.agent, {})
        if config.agent == "paper" and not world.is_seen:
            # Convolutions are for pictures only.
            convolutions = ("features_extractor_class", "net_arch")
            policy_kwargs = {
                name: value
                for name, value in own["policy_kwargs"].items()
                if name not in convolutions
            }
            own = own | {"policy_kwargs": policy_kwargs}
        own = merged(own, {"goal_wrapper_kwargs": pursuit} if pursuit else {})
        env = world.make() if n_envs == 1 else world.make_many(n_envs, config.seed)
        own = merged(own, given)
        policy = own.pop("policy", "CnnPolicy" if world.is_seen else "MlpPolicy")
        if config.agent == "heads":
            return heads.HeadsDQN(policy, env, seed=config.seed, device=device, **own), False
        return ManyGoalsDQN(policy, env, seed=config.seed, device=device, **own), False


def number_of_envs(config: AgentConfig, world: World) -> int:
    """
    Return in how many environments an agent acts side by side.

    :param config: options of the agent
    :param world: world in which it learns
    :return: the number of the options, or that of the agent in this world
    """
    if config.n_envs is not None:
        return config.n_envs
    return N_ENVS.get(config.agent, 64) if world.is_two_rooms else 1


def merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Merge arguments. Dictionaries in both are merged likewise.

    :param own: the agent's own arguments
    :param given: further arguments, which take the place of own ones
    :return: all arguments
    """
    both = [key for key in given if isinstance(own.get(key), dict) and isinstance(given[key], dict)]
    return {**own, **given, **{key: merged(own[key], given[key]) for key in both}}
