"""Settings that a checkpoint and the model that goes on must share."""

import pytest

from sb3_manygoals import ManyGoalsDQN, PlannedTargets, TDTargets
from sb3_manygoals.checkpoint import CheckpointError
from tests.sb3_manygoals.worlds import Paid


def made(**settings):
    """Make a model in a corridor."""
    return ManyGoalsDQN("MlpPolicy", Paid({}, ()), device="cpu", **settings)


@pytest.mark.parametrize("setting", ["tau", "target_update_interval"])
def test_updates_of_the_target_network_are_compared(setting):
    given = {"tau": 0.5, "target_update_interval": 20}
    saved = made(target_class=TDTargets, **given).get_checkpoint_state()
    made(target_class=TDTargets, **given).set_checkpoint_state(saved)
    other = made(target_class=TDTargets, **{**given, setting: 1.0})
    with pytest.raises(CheckpointError, match=f"a learner with {setting} .*, got 1"):
        other.set_checkpoint_state(saved)


def test_a_schedule_may_be_a_function_though_another_process_has_another_one():
    def made_with_a_function():
        kwargs = {"exploring_episodes": lambda progress_remaining: progress_remaining}
        return made(target_class=PlannedTargets, target_kwargs=kwargs)

    made_with_a_function().set_checkpoint_state(made_with_a_function().get_checkpoint_state())
