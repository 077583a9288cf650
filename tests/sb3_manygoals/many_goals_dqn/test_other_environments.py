"""ManyGoalsDQN knows nothing of TwoRooms: other people's environments work as they are."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from sb3_manygoals import ManyGoalsDQN, evaluate_mastery


def _minigrid():
    pytest.importorskip("minigrid")  # from Python 3.11
    from minigrid.wrappers import ImgObsWrapper, RGBImgObsWrapper

    return ImgObsWrapper(RGBImgObsWrapper(gym.make("MiniGrid-Empty-5x5-v0")))


@pytest.mark.parametrize(
    ("policy", "make_env"),
    [
        ("CnnPolicy", _minigrid),
        ("MlpPolicy", lambda: gym.make("CartPole-v1")),
        ("MlpPolicy", lambda: gym.make("FrozenLake-v1")),
    ],
    ids=["MiniGrid", "CartPole", "FrozenLake"],
)
def test_trains_saves_loads_and_predicts(policy, make_env, tmp_path):
    model = ManyGoalsDQN(policy, make_env(), updates_per_step=0.25, seed=0, policy_kwargs={"embedding_dim": 64})
    model.learn(1_400)
    assert model._n_updates == 100
    assert np.isfinite(model._loss.item())
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=make_env())
    obs = model.get_env().reset()
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    loaded.learn(50)
    venv = SyncVectorEnv([make_env] * 4)
    result = evaluate_mastery(loaded, venv, model.goal_buffer.observations[:6], max_steps=10)
    assert result.steps.shape == (6, 1)
    venv.close()
