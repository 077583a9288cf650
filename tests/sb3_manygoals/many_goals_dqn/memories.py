import numpy as np
from gymnasium import spaces

from sb3_manygoals.goals import UNKNOWN, GoalBuffer, ObservationTable
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

CELLS = spaces.Discrete(100)
GOAL_SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def add(buffer, here, action, there, ended=False, goal_id=UNKNOWN):
    """A transition of each environment, of which each may do the same."""
    here, there = (
        np.broadcast_to(each, (buffer.n_envs, *buffer.observation_space.shape))
        for each in (here, there)
    )
    action, ended, ids = (np.broadcast_to(each, buffer.n_envs) for each in (action, ended, goal_id))
    infos = [
        {"achieved_goal_id": number, "env_terminated": end}
        for number, end in zip(ids, ended, strict=True)
    ]
    buffer.add(
        {"observation": here},
        {"observation": there},
        action,
        np.zeros(len(ids)),
        np.zeros(len(ids), bool),
        infos,
    )


def filled(transitions, max_states=100, n_actions=5, buffer_size=None):
    """A memory of (cell, action, next cell, ended), by default with room for all."""
    buffer = ManyGoalsReplayBuffer(
        buffer_size or len(transitions), GOAL_SPACE, spaces.Discrete(n_actions), "cpu"
    )
    buffer.keep_states(ObservationTable(CELLS, max_states))
    for transition in transitions:
        add(buffer, *transition)
    return buffer


def goals_of(observations, space=CELLS, **kwargs):
    """A goal buffer that knows them."""
    goals = GoalBuffer(space, **kwargs)
    goals.add(np.asarray(observations))
    return goals


def kept(memory):
    """The observations and the next ones, each of shape (time, n_envs, *shape), however they are kept."""
    n, shape = memory.size(), memory.observation_space.shape
    if memory.whole:
        return [
            array[:n].reshape(n, memory.n_envs, *shape)
            for array in (memory.observations, memory.next_observations)
        ]
    return [memory.states[memory.numbers[:n, :, which]] for which in (0, 1)]


def shares_of(ends):
    """The share of each of an action's ends, as a plan takes it: all but the most frequent count one less than were seen."""
    counts = {end: ends.count(end) for end in dict.fromkeys(ends)}
    most = max(counts.values())
    believed = {end: n if n == most else n - 1 for end, n in counts.items()}
    return {end: n / sum(believed.values()) for end, n in believed.items() if n}
