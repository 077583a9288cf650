"""
Steps a second of whole training.

Measured are the goal loop, A2C in Atari games with auxiliary tasks and without, and pre-training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.utils import ConstantSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack

from benchmarks import auxiliary, pretraining
from benchmarks.agents import a2c
from benchmarks.speed.scenarios import WARM_UP, WORLD, Scenario, sb3_dqn
from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.auxiliary import EpisodeBuffer
from sb3_manygoals.pretraining import RewardPredictor

Part = Literal["goals", "atari", "auxiliary", "pretraining"]

SB3_BACKENDS: dict[str, Any] = {
    f"A2C, SB3's {kind.__name__}": kind for kind in (DummyVecEnv, SubprocVecEnv)
}
"""Classes that step SB3's own games, by the names of whole set-ups of SB3's."""

_SB3 = dict.fromkeys(SB3_BACKENDS, 1.0)
"""Both set-ups of SB3's, for a ratio to the faster of them."""

RATIOS = (
    Ratio("steps/s: goal loop / SB3's DQN of one goal", "goal loop", "SB3's DQN"),
    Ratio("steps/s of A2C: ours / the faster of SB3's", "A2C", _SB3),
    Ratio(
        "steps/s of A2C: our games with SB3's network / the faster of SB3's",
        "A2C, SB3's network",
        _SB3,
    ),
    Ratio("time of a step: A2C + many goals / A2C", "A2C", "A2C + many_goals"),
    Ratio("time of a step: A2C + pixel control / A2C", "A2C", "A2C + pixel_control"),
    Ratio("time of a step: A2C + reward prediction / A2C", "A2C", "A2C + reward_prediction"),
    Ratio("time of a step: pre-training by many goals / A2C", "A2C", "pre-training by many_goals"),
    Ratio(
        "time of a step: pre-training by reward prediction / A2C",
        "A2C",
        "pre-training by reward_prediction",
    ),
)
"""Ratios that are printed."""


@dataclass(frozen=True)
class TrainingConfig(SpeedConfig):
    """Time whole training, ours and others', in turn in every round."""

    what = "training"
    ratios = RATIOS

    parts: tuple[Part, ...] = get_args(Part)
    """The goal loop in the paper's world; A2C in a game beside SB3's set-ups; A2C with auxiliary
    tasks; pre-training."""
    game: str = "Breakout"
    """Game of all parts but the first."""
    goal_steps: int = 300
    """Steps in each measurement of the goal loop, each with an update."""
    a2c_steps: int = 4_000
    """Steps in each measurement of A2C, of all copies together."""
    pretraining_steps: int = 200
    """Steps in each measurement of pre-training, each with an update."""
    n_envs: int = auxiliary.AuxiliaryConfig.n_envs
    """Copies of the game in which A2C acts at once."""
    episodes: int = auxiliary.AuxiliaryConfig.capacity
    """Episodes of random play in the buffer of auxiliary tasks."""
    transitions: int = pretraining.PretrainingConfig.buffer_size
    """Transitions in the replay memory of pre-training, which is full when anything is measured."""

    def contenders(self) -> Contenders:
        """
        Make what takes turns.

        :return: for each name a function that measures steps a second
        """
        return {
            name: training(model, steps, callbacks)
            for name, model, steps, callbacks in learners(self)
        }


def training(
    model: BaseAlgorithm, steps: int, callbacks: list[BaseCallback]
) -> Callable[[], float]:
    """
    Return a function that measures steps a second of ``learn``, of all environments together.

    :param model: the learner, which goes on from measurement to measurement
    :param steps: steps in each measurement
    :param callbacks: callbacks of ``learn``
    :return: the function
    """

    def measure() -> float:
        before = model.num_timesteps
        begin = time.perf_counter()
        model.learn(steps, callbacks, reset_num_timesteps=False)
        return (model.num_timesteps - before) / (time.perf_counter() - begin)

    return measure


def learners(
    config: TrainingConfig,
) -> Iterator[tuple[str, BaseAlgorithm, int, list[BaseCallback]]]:
    """
    Make what is trained.

    :param config: settings
    :return: for each learner its name, itself, steps in each measurement, and callbacks
    """
    if "goals" in config.parts:
        ours = Scenario("pairwise", 32, 16).learner(n_envs=1)
        theirs = sb3_dqn(WORLD, 32, relabel=False)
        theirs.learn(WARM_UP)
        for name, model in (("goal loop", ours), ("SB3's DQN", theirs)):
            model.learning_starts = 0
            yield name, model, config.goal_steps, []
    base = auxiliary.AuxiliaryConfig(
        agent="a2c", game=config.game, n_envs=config.n_envs, capacity=config.episodes
    )
    if set(config.parts) - {"goals"}:
        yield "A2C", auxiliary.make(base)[0], config.a2c_steps, []
    if "atari" in config.parts:
        # The command line works without ale-py, so this is imported here.
        from sb3_manygoals.atari import AtariVecEnv, rom_id

        # The id names the module, as worker processes have not imported it.
        game_id = f"ale_py:{rom_id(config.game).title().replace('_', '')}NoFrameskip-v4"
        envs: dict[str, VecEnv] = {"A2C, SB3's network": AtariVecEnv(config.game, config.n_envs, 0)}
        for name, kind in SB3_BACKENDS.items():
            games = make_atari_env(game_id, config.n_envs, 0, vec_env_cls=kind)
            envs[name] = VecFrameStack(games, 4)
        # These arguments of the policy leave SB3's own network.
        settings = a2c.settings(base) | {"policy_kwargs": a2c.OPTIMIZER}
        for name, env in envs.items():
            yield name, A2C("CnnPolicy", env, device="cpu", **settings), config.a2c_steps, []
    if "auxiliary" in config.parts:
        episodes: EpisodeBuffer | None = None
        for task in auxiliary.CALLBACKS:
            learner, callbacks = auxiliary.make(replace(base, agent=task))  # type: ignore[arg-type]
            if episodes is None:
                episodes = callbacks[task].episodes
                assert episodes is not None
                assert learner.env is not None
                play(episodes, learner.env)
            callbacks[task].episodes = episodes
            yield f"A2C + {task}", learner, config.a2c_steps, list(callbacks.values())
    if "pretraining" in config.parts:
        for agent in get_args(pretraining.Agent)[:2]:
            name = f"pre-training by {agent}"
            yield name, pretrained(config, agent), config.pretraining_steps, []


def play(episodes: EpisodeBuffer, env: VecEnv) -> None:
    """
    Play games at random until a buffer is full.

    :param episodes: the buffer
    :param env: the games
    """
    assert isinstance(env.action_space, spaces.Discrete)
    rng = np.random.default_rng(0)
    observations: Any = env.reset()
    episodes.start(observations)
    episodes.monitored = True
    while len(episodes) < episodes.capacity:
        actions = rng.integers(env.action_space.n, size=env.num_envs)
        observations, rewards, dones, infos = env.step(actions)
        episodes.add(actions, rewards, dones, observations, infos)


def pretrained(config: TrainingConfig, agent: pretraining.Agent) -> ManyGoalsDQN | RewardPredictor:
    """
    Make a learner whose replay memory is full, without an update so far.

    It explores as half way through its training.

    :param config: settings
    :param agent: way of pre-training, not "none"
    :return: the learner
    """
    full = config.transitions
    steps: dict[str, Any] = {
        "buffer_size": full,
        "learning_starts": full,
        "pretrain_steps": 2 * full,
        "steps": 4 * full,
    }
    learner = pretraining.make_learner(
        pretraining.PretrainingConfig(agent=agent, game=config.game, **steps)
    )
    if isinstance(learner, ManyGoalsDQN):
        half_way = (learner.exploration_initial_eps + learner.exploration_final_eps) / 2
        learner.exploration_schedule = ConstantSchedule(half_way)
    learner.learn(full)
    return learner
