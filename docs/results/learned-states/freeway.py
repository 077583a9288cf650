"""
A look at the states that are learned in Freeway, a game of Atari, from 24,000 random steps.

In the root of the repository, with PYTHONPATH=.:

    python docs/results/learned-states/freeway.py
"""

from __future__ import annotations

import ale_py
import gymnasium as gym
import numpy as np
from stable_baselines3.common.atari_wrappers import AtariWrapper

from benchmarks.learned_states import purity
from sb3_manygoals.world import LearnedStates
from sb3_manygoals.world.predictability import gain_of_states

N_STEPS = 24_000
N_ENVS = 8
# An action is taken again with this probability. Otherwise the chicken would stay at the bottom.
HOLD = 0.9
# This byte of the game's memory is the height of the chicken. States of one height have four.
HEIGHT = 14
HEIGHTS_OF_STATE = 4


def main() -> None:
    """Make random steps, learn states, and print what they have in common."""
    gym.register_envs(ale_py)
    envs = [
        AtariWrapper(gym.make("ALE/Freeway-v5", frameskip=1, repeat_action_probability=0.0))
        for _ in range(N_ENVS)
    ]
    rng = np.random.default_rng(0)
    seen = []
    heights = []

    def show(env: gym.Env, picture: np.ndarray) -> int:
        """Remember a picture, and return its place."""
        seen.append(picture)
        heights.append(int(env.unwrapped.ale.getRAM()[HEIGHT]) // HEIGHTS_OF_STATE)
        return len(seen) - 1

    here = [show(env, env.reset(seed=seed)[0]) for seed, env in enumerate(envs)]
    chosen = rng.integers(3, size=N_ENVS)
    steps = []
    for _ in range(N_STEPS // N_ENVS):
        chosen = np.where(rng.random(N_ENVS) < HOLD, chosen, rng.integers(3, size=N_ENVS))
        for place, (env, action) in enumerate(zip(envs, chosen.tolist(), strict=True)):
            picture, _, ended, cut, _ = env.step(action)
            there = show(env, picture)
            steps.append((here[place], action, there))
            here[place] = show(env, env.reset()[0]) if ended or cut else there
    pictures = np.stack(seen)
    places, actions, next_places = np.array(steps).T
    states = LearnedStates(envs[0].observation_space, 20_000)
    ids = states.learn(pictures, places, actions, next_places, 3, N_ENVS)
    n_distinct = len(np.unique(pictures.reshape(len(pictures), -1), axis=0))
    labels = np.array(heights)
    print(f"{n_distinct:,} of {len(pictures):,} pictures are distinct")
    print(f"{len(states):,} states by {'codes' if states.looks is None else 'looks'}")
    print(f"gain over chance {gain_of_states(ids[places], actions, ids[next_places]):.3f}")
    print(f"purity by height {purity(ids, labels):.3f}")
    print(f"commonest height {np.bincount(labels).max() / len(labels):.3f}")
    print(f"{states.seconds:.0f} s")


if __name__ == "__main__":
    main()
