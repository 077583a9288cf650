"""Attributes that subclasses add, as :mod:`sb3_manygoals.checkpoint.added` finds them."""

import numpy as np
import pytest
from torch import nn

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN, TDTargets
from tests.sb3_manygoals.worlds import Corridor


class WithParts(TDTargets):
    """Targets with attributes of all kinds."""

    def __init__(self, context):
        super().__init__(context)
        self.counts = {"updates": np.zeros(2)}
        self.names = ["some"]
        # These have no state, or have it elsewhere.
        self.loss = nn.functional.mse_loss
        self.kind = dict
        self.method = self.counts.get
        self.memory = context.replay_buffer
        self.network = context.policy.q_net


class WithNetwork(WithParts):
    """Targets with a network of their own."""

    def __init__(self, context):
        super().__init__(context)
        self.critic = nn.Linear(2, 1)


class Whole(WithNetwork):
    """Targets that save their network themselves."""

    def get_checkpoint_state(self):
        return {**super().get_checkpoint_state(), "critic": self.critic.state_dict()}

    def set_checkpoint_state(self, state):
        super().set_checkpoint_state(state)
        self.critic.load_state_dict(state["critic"])


def added(kind):
    """Return the names of attributes that a checkpoint has of targets."""
    model = ManyGoalsDQN("MlpPolicy", Corridor(), target_class=kind)
    return set(model.get_checkpoint_state()["added_to_targets"])


def test_plain_attributes_are_saved_and_others_that_may_change_are_named():
    assert added(WithParts) == {"counts", "names"}
    message = "attribute critic of WithNetwork.*Linear.*write the methods get_checkpoint_state"
    with pytest.warns(UserWarning, match=message):
        assert added(WithNetwork) == {"counts", "names"}


def test_targets_that_save_their_state_are_left_alone(tmp_path):
    assert added(Whole) == set()
    settings = {"target_class": Whole, "learning_starts": 10, "batch_size": 8, "device": "cpu"}
    model = ManyGoalsDQN("MlpPolicy", Corridor(), **settings)
    model.learn(20, ExactCheckpointCallback(tmp_path))
    again = ManyGoalsDQN("MlpPolicy", Corridor(), **settings)
    assert ExactCheckpointCallback(tmp_path).resume(again)
    weight = again.targets.critic.weight
    assert weight.equal(model.targets.critic.weight)
