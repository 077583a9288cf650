"""
``rl_zoo3.enjoy`` with ManyGoalsDQN among its algorithms.

It shows what :mod:`benchmarks.zoo.train` has trained, for instance::

    python -m benchmarks.zoo.enjoy --algo many_goals_dqn --env TwoRoomsSwitchSmall-v0 \\
        --gym-packages gym_twoRooms --folder logs
"""

from rl_zoo3.enjoy import ALGOS, enjoy

from sb3_manygoals import ManyGoalsDQN

ALGOS["many_goals_dqn"] = ManyGoalsDQN

if __name__ == "__main__":
    enjoy()
