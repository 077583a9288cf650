"""What is known of the world: which observations are one state, and where actions led."""

from sb3_manygoals.world.keyed_states import KeyedStates, StateKey
from sb3_manygoals.world.learned_states import LearnedStates
from sb3_manygoals.world.model import Outcomes, WorldModel
from sb3_manygoals.world.states import UNKNOWN, ExactStates

__all__ = [
    "UNKNOWN",
    "ExactStates",
    "KeyedStates",
    "LearnedStates",
    "Outcomes",
    "StateKey",
    "WorldModel",
]
