"""
``rl_zoo3.train`` with ManyGoalsDQN among its algorithms, for instance::

    python -m benchmarks.zoo.train --algo many_goals_dqn --env TwoRoomsSwitchSmall-v0 \\
        --gym-packages gym_twoRooms --conf-file benchmarks/zoo/many_goals_dqn.yml
"""

from rl_zoo3.train import ALGOS, train

from sb3_manygoals import ManyGoalsDQN

ALGOS["many_goals_dqn"] = ManyGoalsDQN

if __name__ == "__main__":
    train()
