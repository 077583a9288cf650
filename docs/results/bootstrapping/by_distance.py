"""
Tell, for a run of ``mastery`` on the paper's map, which goals are reached by how far they are, and
how its values differ from exact ones. Write a file with a row for each distance.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/by_distance.py
    runs/mastery-td-TwoRoomsSwitch-paper-seed0-... runs/by-distance.csv
"""

import sys
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th

import gym_twoRooms  # noqa: F401 - registers its worlds
from gym_twoRooms.oracle import expected_steps
from sb3_manygoals import ManyGoalsDQN

# Steps that the best policy takes on average, from the first number to the one before the next.
EDGES = (1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 60)
N_GOALS = 700
N_STATES = 1_500
N_STARTS = 400


def by_distance(run: Path) -> pd.DataFrame:
    """
    Return a row for each distance.

    :param run: the run's folder
    :return: the rows, with the share of goals that are reached, and values of pairs of a state and
        a goal: the best policy's, the learned ones, and the standard deviation of the difference
    """
    mdp = gym.make("TwoRoomsSwitch-v0").unwrapped.mdp
    model = ManyGoalsDQN.load(run / "model.zip", device="cpu")
    measured = pd.read_csv(run / "goals.csv")
    rng = np.random.default_rng(0)
    goals = np.sort(rng.permutation(mdp.n_states)[:N_GOALS])
    states = np.sort(rng.permutation(mdp.n_states)[:N_STATES])
    steps = expected_steps(mdp, goals)
    # The numbers from 0 to 1 that draw an initial state: each of these has an equal share.
    starts = mdp.initial_states(np.arange(N_STARTS) / N_STARTS)
    of_goals = steps[starts].mean(axis=0)
    of_pairs = steps[states]
    never = model.step_reward / (1.0 - model.gamma)
    # The value of the best policy if it took its mean number of steps each time.
    exact = never * (1.0 - model.gamma ** np.maximum(of_pairs - 1.0, 0.0))
    pictures = th.as_tensor(mdp.observations.copy())
    # Greedy actions are by this network.
    net = model.policy.q_net_ema
    with th.no_grad():
        learned = net.pairwise_best(*net.embed(pictures[states], pictures[goals])).numpy()
    rows = []
    for first, end in pairwise(EDGES):
        here = (of_goals >= first) & (of_goals < end)
        pairs = (of_pairs >= first) & (of_pairs < end)
        reached = measured.iloc[goals[here]]
        rows.append(
            {
                "from_steps": first,
                "below_steps": end,
                "goals": int(here.sum()),
                "greedy": reached["greedy_reached"].mean(),
                "epsilon": reached["epsilon_reached"].mean(),
                "exact_value": exact[pairs].mean(),
                "learned_value": learned[pairs].mean(),
                "deviation": (learned[pairs] - exact[pairs]).std(),
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    th.set_num_threads(1)
    folder, file = sys.argv[1:]
    table = by_distance(Path(folder)).round(3)
    print(table.to_string(index=False))
    table.to_csv(file, index=False)
