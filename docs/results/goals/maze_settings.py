"""
Train the default in the medium maze with other cells and other lengths of a force.

The arguments are the steps of a force, the side of a cell, and the width of a cell of velocity.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/goals/maze_settings.py 10 0.5 4.0 --seed 0
    --output runs/maze-settings.csv
"""

import sys

import numpy as np
from numpy.typing import NDArray

import benchmarks.__main__ as command
import benchmarks.goal_worlds as goal_worlds

PLACE = float(sys.argv[2])
SPEED = float(sys.argv[3])


def in_maze(observation: NDArray[np.float64]) -> NDArray[np.int16]:
    """Return the cell of place and velocity of a point in a maze."""
    sides = np.array([PLACE, PLACE, SPEED, SPEED])
    shift = np.array([0.0, 0.0, SPEED / 2, SPEED / 2])
    return goal_worlds.grid_cell(sides, observation + shift)


if __name__ == "__main__":
    goal_worlds._STEPS_OF_FORCE = int(sys.argv[1])
    goal_worlds._in_maze = in_maze
    sys.argv = ["benchmarks", "goals", "--world", "maze-medium", *sys.argv[4:]]
    command.main()
