"""Goals are states: a buffer that knows them, rules that choose them, wrappers that pursue them."""

from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector, LearningProgressSelector, UniformSelector
from sb3_manygoals.goals.wrapper import GoalBufferWrapper, VecGoalBufferWrapper
from sb3_manygoals.world.states import UNKNOWN

__all__ = [
    "UNKNOWN",
    "GoalBuffer",
    "GoalBufferWrapper",
    "GoalSelector",
    "LearningProgressSelector",
    "UniformSelector",
    "VecGoalBufferWrapper",
]
