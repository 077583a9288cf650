"""sb3-contrib's MaskablePPO, as it is, on the world as it is."""

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env

from gym_twoRooms import Action
from sb3_manygoals import GymnasiumVecEnv

ID = "TwoRoomsSwitchSmall-v0"


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_vec_env(lambda: gym.make(ID, max_episode_steps=9), n_envs=6, seed=0),
        lambda: GymnasiumVecEnv(
            gym.make_vec(ID, num_envs=6, autoreset_mode="SameStep", max_episode_steps=9)
        ),
    ],
)
def test_it_never_takes_a_masked_action(make):
    model = MaskablePPO(
        "MlpPolicy", make(), n_steps=16, batch_size=32, n_epochs=1, seed=0, device="cpu"
    )
    seen = []

    def look(local, _):
        masks = local["action_masks"]
        assert masks.shape == (6, 5)
        assert masks[np.arange(6), local["actions"]].all()
        seen.extend(masks[:, Action.TOGGLE])
        return True

    model.learn(200, callback=look)
    assert set(seen) == {True, False}
