"""
How many states codes find in random steps, where states recur and where things move smoothly.

States are told apart by codes alone, also where looks would be used. In the root of the repository,
with PYTHONPATH=., for sensors of Gymnasium, or for the pictures of a world and what spoils them:

    python docs/results/learned-states/recurrence.py CartPole-v1 3750
    python docs/results/learned-states/recurrence.py paper brightness 37504
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import torch as th

from benchmarks.disturbances import Spoiled
from benchmarks.learned_states import LearnedStatesConfig, _world
from sb3_manygoals.validation import check_action_space
from sb3_manygoals.world import LearnedStates, learned_states


def of_sensors(name: str, n_steps: int) -> LearnedStates:
    """Return states that are learned from random steps in a world of sensors."""
    env = gym.make(name)
    n_actions = check_action_space(env.action_space)
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=0)[0]]
    steps = []
    while len(steps) < n_steps:
        action = int(rng.integers(n_actions))
        observation, _, ended, cut, _ = env.step(action)
        seen.append(observation)
        steps.append((len(seen) - 2, action, len(seen) - 1))
        if ended or cut:
            seen.append(env.reset()[0])
    places, actions, next_places = np.array(steps).T
    states = LearnedStates(env.observation_space, n_steps, seed=0)
    states.learn(np.stack(seen), places, actions, next_places, n_actions, 1)
    return states


def of_pictures(name: str, disturbance: str, n_steps: int) -> LearnedStates:
    """Return states that are learned from random steps in a world of spoiled pictures."""
    config = LearnedStatesConfig(
        name, disturbance, total_steps=n_steps, n_envs=64, states_only=True
    )
    world, _ = _world(config.world, config.n_envs)
    return config._learn_states(Spoiled(world, config._spoiler(0)))


def main() -> None:
    """Learn states, and print how many there are."""
    th.set_num_threads(1)
    # Looks are never found, so codes decide everywhere.
    learned_states.find_looks = lambda *_: None
    *world, steps = sys.argv[1:]
    n_steps = int(steps)
    states = of_sensors(world[0], n_steps) if len(world) == 1 else of_pictures(*world, n_steps)
    print(f"{' '.join(world)},{n_steps},{len(states)},{n_steps / len(states):.2f}")


if __name__ == "__main__":
    main()
