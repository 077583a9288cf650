"""Replay memories, models of worlds and goal buffers that are filled by hand."""

import numpy as np
from gymnasium import spaces

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.world import ExactStates, WorldModel

CELLS = spaces.Discrete(100)
GOAL_SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def add(buffer, here, action, there, ended=False, goal_id=UNKNOWN, reward=0.0):
    """
    Add a transition of each environment to a replay memory.

    A single value holds for all environments. Observations get ids of states if the memory has
    states. ``goal_id`` is the id of the next observation as a goal.
    """
    shape = (buffer.n_envs, *buffer.observation_space.shape)
    here = np.broadcast_to(here, shape)
    there = np.broadcast_to(there, shape)
    state_ids = np.full(buffer.n_envs, UNKNOWN)
    next_state_ids = np.full(buffer.n_envs, UNKNOWN)
    if buffer.states is not None:
        state_ids = buffer.states.add(here)
        next_state_ids = buffer.states.add(there)
    columns = {
        "achieved_goal_id": np.broadcast_to(goal_id, buffer.n_envs),
        "env_terminated": np.broadcast_to(ended, buffer.n_envs),
        "env_reward": np.broadcast_to(reward, buffer.n_envs),
        "state_id": state_ids,
        "next_state_id": next_state_ids,
    }
    infos = [
        {name: column[env] for name, column in columns.items()} for env in range(buffer.n_envs)
    ]
    actions = np.broadcast_to(action, buffer.n_envs)
    rewards = np.zeros(buffer.n_envs)
    dones = np.zeros(buffer.n_envs, dtype=bool)
    buffer.add({"observation": here}, {"observation": there}, actions, rewards, dones, infos)


def memory_of_states(buffer_size, n_envs=1, max_states=100, n_actions=3):
    """Return an empty replay memory that keeps the ids of at most so many states."""
    buffer = ManyGoalsReplayBuffer(
        buffer_size, GOAL_SPACE, spaces.Discrete(n_actions), "cpu", n_envs
    )
    buffer.move_to(GoalBuffer(CELLS, 100), ExactStates(CELLS, max_states))
    return buffer


def goals_of(observations, space=CELLS, **kwargs):
    """Return a goal buffer that knows these observations."""
    goals = GoalBuffer(space, **kwargs)
    goals.add(np.asarray(observations))
    return goals


def cells_of(transitions):
    """Return the cells that occur in transitions (cell, action, next cell, ended), in order."""
    return sorted({cell for here, _, there, _ in transitions for cell in (here, there)})


def world_of(transitions, goals=None, n_actions=5):
    """
    Return a model of the world in which transitions (cell, action, next cell, ended) were made.

    Its states are those of the goal buffer. Without one, there is a state for each cell.
    """
    states = ExactStates(CELLS, 100) if goals is None else goals.states
    world = WorldModel(states, n_actions)
    record(world, transitions)
    return world


def record(world, transitions):
    """Record transitions (cell, action, next cell, ended) in a model of the world."""
    for here, action, there, ended in transitions:
        world.record(
            world.identity.add(np.array([here])),
            np.array([action]),
            world.identity.add(np.array([there])),
            np.zeros(1),
            np.array([ended]),
        )


def kept(memory):
    """Return observations and next ones, both of shape (time, n_envs, *shape)."""
    return list(memory.observations_at(slice(0, memory.size())))


def shares_of(ends):
    """
    Return the share of each of an action's outcomes, as a plan takes it.

    All outcomes but the most frequent ones count one less than they were seen.
    """
    counts = {end: ends.count(end) for end in dict.fromkeys(ends)}
    most = max(counts.values())
    believed = {end: n if n == most else n - 1 for end, n in counts.items()}
    total = sum(believed.values())
    return {end: n / total for end, n in believed.items() if n}
