"""Goals are observations: a buffer that knows them, rules that choose among them, wrappers that pursue them."""

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.disagreement import ValueDisagreementSelector
from sb3_manygoals.goals.experience import IntermediateDifficultySelector, LeastVisitedSelector
from sb3_manygoals.goals.learning_progress import LearningProgressSelector, SmoothedProgressSelector
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector, WeightedSelector
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.vec_wrapper import VecGoalBufferWrapper, current_reset_infos
from sb3_manygoals.goals.wrappers import GoalBufferWrapper

__all__ = [
    "UNKNOWN",
    "GoalBuffer",
    "GoalBufferWrapper",
    "GoalSelector",
    "GoalTracker",
    "IntermediateDifficultySelector",
    "LearningProgressSelector",
    "LeastVisitedSelector",
    "SmoothedProgressSelector",
    "UniformSelector",
    "ValueDisagreementSelector",
    "VecGoalBufferWrapper",
    "WeightedSelector",
    "current_reset_infos",
]
