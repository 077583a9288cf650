"""Goals are observations: a buffer that knows them, rules that choose among them, wrappers that pursue them."""

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.episodes import GoalEpisodes
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector
from sb3_manygoals.goals.wrappers import GoalBufferWrapper, VecGoalBufferWrapper, current_reset_infos

__all__ = [
    "UNKNOWN",
    "GoalBuffer",
    "GoalBufferWrapper",
    "GoalEpisodes",
    "GoalSelector",
    "UniformSelector",
    "VecGoalBufferWrapper",
    "current_reset_infos",
]
