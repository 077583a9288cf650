"""Goals are observations: a buffer that knows them, rules that choose among them, wrappers that pursue them."""

from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector, LearningProgressSelector, UniformSelector
from sb3_manygoals.goals.table import UNKNOWN, ObservationTable
from sb3_manygoals.goals.wrapper import GoalBufferWrapper, VecGoalBufferWrapper

__all__ = [
    "UNKNOWN",
    "GoalBuffer",
    "GoalBufferWrapper",
    "GoalSelector",
    "LearningProgressSelector",
    "ObservationTable",
    "UniformSelector",
    "VecGoalBufferWrapper",
]
