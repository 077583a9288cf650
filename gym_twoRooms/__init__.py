"""A finite visual world of two rooms for agents that learn to reach any goal."""

import gymnasium as gym

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.goals import agent_cell, agent_cell_and_doors, agent_surroundings
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout, LayoutError
from gym_twoRooms.mdp import Action, TwoRoomsMDP, compile_layout
from gym_twoRooms.vector_env import TwoRoomsSwitchVectorEnv

__all__ = [
    "NAMED_LAYOUTS",
    "Action",
    "Layout",
    "LayoutError",
    "TwoRoomsMDP",
    "TwoRoomsSwitchEnv",
    "TwoRoomsSwitchVectorEnv",
    "agent_cell",
    "agent_cell_and_doors",
    "agent_surroundings",
    "compile_layout",
]

for _id, _arguments in (("TwoRoomsSwitch-v0", {}), ("TwoRoomsSwitchSmall-v0", {"layout": "small"})):
    gym.register(
        _id,
        entry_point="gym_twoRooms.env:TwoRoomsSwitchEnv",
        vector_entry_point="gym_twoRooms.vector_env:TwoRoomsSwitchVectorEnv",
        kwargs=_arguments,
    )
