"""
Tell, for runs of ``mastery`` on the small map, how far the learned values of each goal are from
exact ones. Write a file with a row for each goal of each run.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/mastery/value_errors.py
    runs/value-errors.csv runs/mastery-td-TwoRoomsSwitch-small-seed0-... [more runs]
"""

import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th

import gym_twoRooms  # noqa: F401 - registers its worlds
from gym_twoRooms.oracle import expected_steps
from sb3_manygoals import ManyGoalsDQN


def value_errors(run: Path) -> pd.DataFrame:
    """
    Return a row for each goal: by how much its learned values differ from the best policy's, on
    average over all states.

    :param run: the run's folder
    """
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    model = ManyGoalsDQN.load(run / "model.zip", device="cpu")
    goals = np.arange(mdp.n_states)
    steps = expected_steps(mdp, goals)
    never = model.step_reward / (1.0 - model.gamma)
    # The value of the best policy if it took its mean number of steps each time.
    exact = never * (1.0 - model.gamma ** np.maximum(steps - 1.0, 0.0))
    pictures = th.as_tensor(mdp.observations.copy())
    # Greedy actions are by this network.
    net = model.policy.q_net_ema
    with th.no_grad():
        learned = net.pairwise_best(*net.embed(pictures, pictures)).numpy()
    error = learned - exact
    # In a goal itself, the value is of reaching it again.
    np.fill_diagonal(error, np.nan)
    return pd.DataFrame({"goal": goals, "error": np.nanmean(error, axis=0)})


if __name__ == "__main__":
    th.set_num_threads(1)
    file, *folders = sys.argv[1:]
    tables = []
    for folder in map(Path, folders):
        settings = json.loads((folder / "config.json").read_text())["settings"]
        sampling = json.loads(settings["agent_kwargs"]).get("target_kwargs", {})
        found = value_errors(folder)
        found.insert(0, "goal_sampling", sampling.get("goal_sampling", "segments"))
        found.insert(1, "seed", settings["seed"])
        tables.append(found)
        low = (found["error"] < -0.5).sum()
        print(folder.name, f"{low} goals are too low by more than .5", found["error"].min())
    pd.concat(tables).round(3).to_csv(file, index=False)
