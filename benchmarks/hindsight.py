"""
A row to compare with: SB3's own DQN with HerReplayBuffer, in the same world, with the same network. Its settings are the best
of the few that were tried on the small map of TwoRoomsSwitch, ``docs/results/hindsight-search.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch as th
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.peers import GoalProduct
from benchmarks.relabelling import HindsightDQN, KnownGoalsHerReplayBuffer
from sb3_manygoals import VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn.goal_dqn import update_rhythm

UPDATES_PER_STEP = 0.25
"""As many with any number of environments."""


def make(worlds: Any, pursuit: Mapping[str, Any], seed: int, device: str, given: Mapping[str, Any]) -> HindsightDQN:
    """
    :param worlds: an SB3 vector of environments without goals
    :param pursuit: of the goal wrapper
    :param seed: of everything
    :param device: for the network
    :param given: arguments of the learner instead of those here, ``max_episode_steps`` of the goal wrapper among them
    :return: an untrained agent
    :raises ValueError: if the replay memory cannot hold an episode, or learning would start before one has ended
    """
    given = dict(given)
    steps = given.pop("max_episode_steps", 50)
    longest = worlds.num_envs * steps
    train_freq, gradient_steps = update_rhythm(UPDATES_PER_STEP, worlds.num_envs)
    settings: dict[str, Any] = {
        "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
        "buffer_size": 50_000,
        "learning_starts": max(1_000, longest + 1),
        "batch_size": 128,
        "gamma": 0.99,
        "tau": 0.05,
        "target_update_interval": 8,
        "train_freq": train_freq,
        "gradient_steps": gradient_steps,
        "exploration_fraction": 0.3,
        "exploration_final_eps": 0.1,
        "replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        "policy_kwargs": {
            "features_extractor_class": GoalProduct,
            "features_extractor_kwargs": {"features_dim": 256, "trunk_dim": 256, "layer_norm": True, "standardize": True},
            "net_arch": [],
            "optimizer_class": th.optim.Adam,
            "optimizer_kwargs": {"fused": True},
        },
        **given,
    }
    for name in ("buffer_size", "learning_starts"):
        if settings[name] <= longest:
            raise ValueError(
                f"{name} must be more than n_envs x max_episode_steps = {longest}, as only whole episodes are relabelled, "
                f"got {settings[name]}"
            )
    return HindsightDQN(
        "MultiInputPolicy",
        VecGoalBufferWrapper(worlds, **{"max_episode_steps": steps, "reset_worlds": True, **pursuit}),
        replay_buffer_class=KnownGoalsHerReplayBuffer,
        seed=seed,
        device=device,
        **settings,
    )
