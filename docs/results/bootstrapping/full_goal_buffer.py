"""
Train the default where the goal buffer has room for few goals, and add a row to a file.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/full_goal_buffer.py random-bits-20
    10000 1000 0 runs/full-goal-buffer.csv

The arguments are a world, training steps, the capacity of the goal buffer, a seed and a file.
"""

import sys
from pathlib import Path

import torch as th
from recipes import success, train

import sb3_manygoals.goals.buffer as buffer_module
from benchmarks import recording
from benchmarks.rows import add_row

if __name__ == "__main__":
    th.set_num_threads(1)
    name, steps, capacity, seed, file = sys.argv[1:]
    buffer_module._DEFAULT_CAPACITY = int(capacity)
    learner = train(name, int(steps), {"seed": int(seed)})
    assert learner.goal_buffer is not None
    row = {
        "commit": recording.git_revision(),
        "world": name,
        "capacity": int(capacity),
        "goals": len(learner.goal_buffer),
        "seed": int(seed),
        "steps": int(steps),
        **success(learner, name),
    }
    print(row)
    add_row(Path(file), row)
