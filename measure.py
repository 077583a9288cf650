"""PPO's twenty agents of `tasks-study --part scratch` measured once more from their last checkpoints: python measure.py ROOT OUTPUT.csv"""

import csv
import sys
from pathlib import Path

import torch as th

import sb3_manygoals.checkpoint.folder as folder
from benchmarks.tasks import TasksConfig, TaskWorld, evaluate, make, policy_of
from benchmarks.told_tasks import TASKS, WORLD
from sb3_manygoals.checkpoint import CheckpointError, read_newest
from sb3_manygoals.checkpoint.envs import set_env_state
from sb3_manygoals.checkpoint.learner import set_algorithm_state

th.set_num_threads(1)
root, output = map(Path, sys.argv[1:])
rows = []
for number, task in enumerate(TASKS, 1):
    (run,) = root.glob(f"ppo-{number}-*/*/run")
    world = TaskWorld(WORLD, None, task)
    model = make(TasksConfig(env_id=WORLD, task=task, agent="ppo"), world)
    for folder.FORMAT in ("sb3-manygoals checkpoint 4", "sb3-manygoals checkpoint 5"):  # PPO's are alike in both
        try:
            _, state = read_newest(run / "checkpoints")
            break
        except CheckpointError:
            pass
    set_algorithm_state(model, state["learner"]["algorithm"])
    set_env_state(model.env, state["env"])
    training = [float(row["rollout/ep_rew_mean"] or 0) for row in csv.DictReader((run / "progress.csv").open())]
    (summary,) = csv.DictReader((run / "summary.csv").open())
    greedy, sampled = (evaluate(policy_of(model), world, 100, 10_000, 0.99, one)[0] for one in (True, False))
    row = {"task": task, "steps": model.num_timesteps, "first_reward": summary["first_reward"]}
    row |= {"greedy_solved": summary["greedy_solved"], "best_training": max(training)}
    rows.append(row | {"greedy_final": greedy, "sampled_final": sampled})
with output.open("w", newline="") as file:
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
