"""The memory of models to which nothing refers any more."""

import gc
import weakref

import pytest
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from sb3_manygoals import TabularAllGoals
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import NumberedCorridor


class Idle(BaseCallback):
    """A callback that does nothing."""

    def _on_step(self):
        return True


@pytest.mark.parametrize(
    "make_callback",
    [lambda: None, Idle, lambda: [Idle(), CallbackList([Idle()])]],
    ids=["no callback", "a callback", "a list in a list"],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: make_model(learning_rate=None),
        make_model,
        lambda: TabularAllGoals("TablePolicy", NumberedCorridor(), seed=0),
    ],
    ids=["network", "network with a learning rate", "table"],
)
def test_a_trained_model_is_gone_without_the_garbage_collector(make, make_callback):
    model = make()
    model.learn(40, make_callback())
    model.learn(20, make_callback(), reset_num_timesteps=False)
    deleted = weakref.ref(model)
    # Imports at the first use leave circles of their own.
    gc.collect()
    gc.disable()
    try:
        del model
        assert deleted() is None
    finally:
        gc.enable()
