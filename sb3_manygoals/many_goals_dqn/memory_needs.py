"""How much memory a ManyGoalsDQN will need once replay memory, goals and plan are full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.goals.wrapping import goal_trackers
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.memory_limits import check_memory, share_of_memory
from sb3_manygoals.validation import check_count

if TYPE_CHECKING:
    from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN

# The share of the available memory that the observations in a replay memory may take.
_SHARE_OF_MEMORY = 0.9
# A plan takes so many bytes a pair of state and goal.
_BYTES_OF_PAIR = 5


def check_memory_needs(model: ManyGoalsDQN, env: VecEnv) -> None:
    """
    Raise an error if a model will not fit into memory. Observations in the replay memory are not
    counted, because it shrinks if they do not fit.

    :param model: the model
    :param env: environments that it is to learn in
    :raises MemoryError: if replay memory, goals and plan, once full, do not fit
    """
    needed, _ = _memory_to_come(model, env)
    advice = (
        f"choose a smaller buffer_size than {model.buffer_size}, a goal buffer of smaller "
        "capacity, or fewer max_plan_bytes"
    )
    check_memory("the replay memory and the goals", needed, advice)


def shrink_replay_memory(model: ManyGoalsDQN) -> None:
    """
    Shrink the replay memory, with a warning, if it stores observations from the beginning and they
    would not fit. Where it stores ids of states first, it shrinks by itself if it must.

    :param model: the model
    :raises MemoryError: if so few transitions fit that nothing could be learned from them
    """
    replay = model.replay_buffer
    if replay.states is not None and not replay.stores_observations:
        return
    assert model.env is not None
    needed, of_observations = _memory_to_come(model, model.env)
    available = max(share_of_memory(_SHARE_OF_MEMORY) - sum(needed.values()), 0)
    if of_observations > available:
        filled = replay.size() * model.n_envs
        room = replay.buffer_size * model.n_envs - filled
        replay.shrink(filled + room * available // of_observations)


def _memory_to_come(model: ManyGoalsDQN, env: VecEnv) -> tuple[dict[str, int], int]:
    """
    Return how many bytes replay memory, goals and plan will use once they are full, besides those
    that they use now.

    :return: bytes by what they are for, without observations in the replay memory; and the bytes of
        these
    """
    goal_buffer = model.goal_buffer
    if goal_buffer is None:
        goal_buffer = goal_trackers(env)[0].goal_buffer
    needed = {}
    of_observations = 0
    if model._stores_transitions:
        needed = _replay_memory_to_come(model)
        names = [name for name in needed if name.endswith(("observations", "frames"))]
        of_observations = sum(needed.pop(name) for name in names)
    needed.update(goal_buffer.memory_to_come)
    # By default, a plan takes no more than the machine has.
    kwargs = model.target_kwargs or {}
    if kwargs.get("max_plan_bytes") is not None:
        max_plan_bytes = check_count("max_plan_bytes", kwargs["max_plan_bytes"], floats=True)
        most = min(max_plan_bytes, _BYTES_OF_PAIR * goal_buffer.capacity**2)
        targets = getattr(model, "targets", None)
        used = targets.plan.nbytes if isinstance(targets, PlannedTargets) else 0
        needed["the plan"] = max(most - used, 0)
    return needed, of_observations


def _replay_memory_to_come(model: ManyGoalsDQN) -> dict[str, int]:
    """Return how many bytes the part of the replay memory will use that is not filled yet."""
    replay = model.replay_buffer
    buffer_size = model.buffer_size if replay is None else replay.buffer_size * model.n_envs
    rows = max(buffer_size // model.n_envs, 1)
    free_rows = rows if replay is None else rows - replay.size()
    assert model.replay_buffer_class is not None
    needed: dict[str, int] = model.replay_buffer_class.memory_needed(  # type: ignore[attr-defined]
        buffer_size,
        model.observation_space,
        model.action_space,
        model.n_envs,
        **model.replay_buffer_kwargs,
    )
    return {name: n_bytes // rows * free_rows for name, n_bytes in needed.items()}
