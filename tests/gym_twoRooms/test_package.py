import subprocess
import sys

import gymnasium as gym

import gym_twoRooms


def test_names_and_registration():
    assert all(hasattr(gym_twoRooms, name) for name in gym_twoRooms.__all__)
    assert gym.make("TwoRoomsSwitch-v0").unwrapped.mdp.layout.name == "paper"
    assert gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp.layout.name == "small"


def test_importing_is_light():
    heavy = "scipy", "torch", "stable_baselines3", "pygame", "matplotlib"
    code = f"import sys, gym_twoRooms; assert not set({heavy}) & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
