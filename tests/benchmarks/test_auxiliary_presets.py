import inspect

import numpy as np
import torch as th
from stable_baselines3 import A2C

from benchmarks.auxiliary_presets import A2C_SETTINGS, HEADS, K_BEST_EPISODES, N_ENVS, OPTIMIZER, TASKS
from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.optim import FusedRMSprop
from tests.sb3_manygoals.auxiliary.story import stories

CALLBACKS = {
    "many_goals": ManyGoalsCallback,
    "pixel_control": PixelControlCallback,
    "reward_prediction": RewardPredictionCallback,
}


def test_what_is_built_of_them():
    heads = HEADS | {"crop": 20}  # of smaller pictures
    policy_kwargs = dict(OPTIMIZER) | heads | {"tasks": tuple(TASKS)}
    model = A2C(
        AuxiliaryActorCriticPolicy, stories(N_ENVS, limit=9), policy_kwargs=policy_kwargs, device="cpu", **A2C_SETTINGS
    )
    episodes = EpisodeBuffer(model.observation_space, K_BEST_EPISODES)
    callbacks = [CALLBACKS[name](episodes=episodes, **settings) for name, settings in TASKS.items()]
    model.learn(3 * 80, callbacks)
    assert model.n_envs * model.n_steps == 80
    assert type(model.policy.optimizer) is FusedRMSprop
    assert model.policy.optimizer.defaults["lr"] == 7e-4
    assert model.policy.optimizer.defaults["eps"] == 1e-5
    assert [callback.n_updates for callback in callbacks] == [2, 2, 2]


def test_the_papers_value_loss():
    """0.5 of half the squared error."""
    returns, values = th.randn(2, 9)
    theirs = 0.5 * (0.5 * (returns - values).square()).mean()
    th.testing.assert_close(A2C_SETTINGS["vf_coef"] * th.nn.functional.mse_loss(returns, values), theirs)


def test_the_callbacks_defaults_are_the_same():
    for name, settings in TASKS.items():
        defaults = inspect.signature(CALLBACKS[name]).parameters
        assert {argument: defaults[argument].default for argument in settings} == settings
    policy = inspect.signature(AuxiliaryActorCriticPolicy).parameters
    assert {argument: policy[argument].default for argument in HEADS} == HEADS
    assert inspect.signature(EpisodeBuffer).parameters["capacity"].default == K_BEST_EPISODES
    assert all(settings.get("batch_size") == 80 for settings in TASKS.values())
    assert np.isclose(TASKS["pixel_control"]["weight"], np.sqrt(1e-4 * 1e-2))
