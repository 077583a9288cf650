"""Attributes that subclasses add, as :mod:`sb3_manygoals.checkpoint.added` finds them."""

import numpy as np
import pytest
import torch as th
from torch import nn

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import parameters
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
        self.networks = [context.policy.q_net, context.policy.q_net_target]
        self.weights = list(context.policy.q_net.parameters())
        self.optimizer = context.policy.optimizer
        self.where = context.policy.device


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


class Changing(TDTargets):
    """Targets whose attributes change in ways that are easy to miss."""

    def __init__(self, context):
        self.early = 0
        super().__init__(context)
        self.n_updates = 0
        self.cache = np.ones(2)
        self.log_scale = th.zeros(1, requires_grad=True)
        self.parts = {"scales": [self.log_scale]}
        # These two are one tensor at first, and the next one is the network's.
        self.first = self.second = th.zeros(1, requires_grad=True)
        self.anchor = next(context.policy.q_net.parameters())

    def after_update(self):
        super().after_update()
        self.early += 1
        self.n_updates += 1
        # As the seed of the context is.
        self.cache = None
        with th.no_grad():
            self.log_scale += 1.0
        self.second = th.ones(1)
        self.anchor = th.zeros_like(self.anchor)


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


def test_all_that_changes_comes_back_and_tensors_stay_where_they_are(tmp_path):
    settings = {"target_class": Changing, "learning_starts": 1, "batch_size": 8, "device": "cpu"}
    settings |= {"updates_per_step": 1.0, "seed": 9}
    model = ManyGoalsDQN("MlpPolicy", Corridor(), **settings)
    model.learn(10, ExactCheckpointCallback(tmp_path))
    # A number that is the seed, too, is a number like others.
    assert model.targets.n_updates == 9
    again = ManyGoalsDQN("MlpPolicy", Corridor(), **settings)
    targets = again.targets
    scale = targets.log_scale
    assert ExactCheckpointCallback(tmp_path).resume(again)
    assert again.targets is targets
    assert (targets.early, targets.n_updates, targets.cache) == (9, 9, None)
    # An optimizer may have this tensor.
    assert targets.log_scale is scale
    assert targets.parts["scales"][0] is scale
    assert scale.item() == 9.0
    assert (targets.first.item(), targets.second.item()) == (0.0, 1.0)
    assert not targets.anchor.any()
    for restored, saved in zip(parameters(again), parameters(model), strict=True):
        assert th.equal(restored, saved)
    assert scale.requires_grad
