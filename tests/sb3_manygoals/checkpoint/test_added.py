"""Attributes that subclasses add, as :mod:`sb3_manygoals.checkpoint.added` finds them."""

import enum
import math
import warnings
from collections import deque, namedtuple
from functools import lru_cache, partial

import numpy as np
import pytest
import torch as th
from torch import nn

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN, TDTargets
from sb3_manygoals.checkpoint.added import restore_added
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from tests.sb3_manygoals.many_goals_dqn.models import parameters
from tests.sb3_manygoals.worlds import Corridor

SETTINGS = {"learning_starts": 1, "batch_size": 8, "updates_per_step": 1.0, "device": "cpu"}


Limits = namedtuple("Limits", "low high")


class WithParts(TDTargets):
    """Targets with attributes of all kinds."""

    def __init__(self, context):
        self.early = context
        super().__init__(context)
        self.counts = {"updates": np.zeros(2)}
        self.names = ["some"]
        # These have no state, or have it elsewhere.
        scale = 2.0
        network = context.policy.q_net
        self.loss = nn.functional.mse_loss
        self.scaled_loss = lambda values: self.loss(values, network(values)) * scale
        self.kind = dict
        self.limits = Limits(0.0, 1.0)
        self.shape = th.ones(2).shape
        self.mean = np.mean
        self.space = context.policy.action_space
        self.method = self.after_update
        self.memory = context.replay_buffer
        self.actions = context.replay_buffer.actions[:2]
        self.network = network
        self.networks = [network, context.policy.q_net_target]
        self.by_name = {"weights": dict(network.named_parameters())}
        self.weights = list(network.parameters())
        self.weight = self.weights[0].detach()
        self.statistics = list(network.buffers())
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


class Unsaved(TDTargets):
    """Targets with attributes that checkpoints cannot have."""

    def __init__(self, context):
        super().__init__(context)
        counts = {"updates": 0}
        self.get = counts.get
        self.draw = np.random.default_rng(0).random
        self.count = lambda: counts.update(updates=1)
        self.log_scale = th.zeros(1, requires_grad=True)
        self.pair = (0, [self.log_scale])
        weight = next(context.policy.q_net.parameters()).detach()
        self.mixed = {"weight": weight, "own": th.zeros(1)}
        # A resumed world has other arrays.
        self.visits = context.world.visit_counts
        self.sparse = th.zeros(2).to_sparse()
        self.array = np.zeros(3, np.float32)
        self.tensor = th.from_numpy(self.array)


class Mode(enum.Flag):
    """Two ways, and both of them."""

    A = 1
    B = 2


class Statistics:
    """An object that has nothing of its own at first."""

    count = 0


class Replacing(TDTargets):
    """Targets that replace in training what has no state."""

    def __init__(self, context):
        super().__init__(context)
        self.mode = self.warm
        self.weigh = partial(max, 1.0)
        self.best = None
        self.recent = deque([context.policy.q_net], maxlen=2)
        self.dtype = th.float32
        self.flags = Mode.A
        self.statistics = Statistics()
        self.by_distance = {"near": th.relu}
        self.counted = partial(max, 1.0)
        self.kept = lru_cache(math.sqrt)
        self.groups = [[max, min], [abs]]
        self.latest = deque([max], maxlen=2)
        self.pair = [[max], [max]]

    def warm(self):
        """Nothing."""

    def after_update(self):
        super().after_update()
        network = self.context.policy.q_net
        self.mode = self.after_update
        self.weigh = partial(max, 0.5)
        self.best = network.state_dict()
        self.recent.append(network)
        self.dtype = th.float16
        self.flags = Mode.A | Mode.B
        self.statistics.count += 1
        self.by_distance = {"far": th.relu}
        self.counted.calls = 1
        self.kept.calls = 1
        # The same functions in the same order are something else in other containers.
        self.groups = [[max], [min, abs]]
        self.latest = deque([max], maxlen=3)
        self.pair[1] = self.pair[0]


class Changing(TDTargets):
    """Targets whose attributes change in ways that are easy to miss."""

    __slots__ = ("n_slots",)

    def __init__(self, context):
        self.early = 0
        super().__init__(context)
        self.n_updates = 0
        self.n_slots = 0
        self.cache = np.ones(2)
        self.latest = None
        self.scale = th.zeros(1)
        self.view = self.scale[:]
        # These two are one tensor at first, and the next ones are the network's.
        self.first = self.second = th.zeros(1)
        weight = next(context.policy.q_net.parameters())
        self.anchor = weight
        self.weight = weight.detach()
        # A container that has itself as a part.
        self.tree = {"children": deque()}
        self.tree["children"].append(({"parent": self.tree}, self.scale))

    def after_update(self):
        super().after_update()
        self.early += 1
        self.n_updates += 1
        self.n_slots += 1
        # As the seed of the context is.
        self.cache = None
        self.latest = self.scale
        self.scale += 1.0
        self.second = th.ones(1)
        self.anchor = th.zeros_like(self.anchor)


class WithFunction(ManyGoalsReplayBuffer):
    """A replay memory with a function that cannot be pickled."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.priority = lambda: len(self)

    def __getstate__(self):
        state = super().__getstate__()
        del state["attributes"]["priority"]
        return state


class MarkedBuffer(ManyGoalsReplayBuffer):
    """A replay memory with an array of its own, beside one of the package's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        both = np.zeros((2, *self.dones.shape), self.dones.dtype)
        self.dones = both[0]
        self.beside = both[1]
        self.marks = np.zeros(3)


class SavedBuffer(MarkedBuffer):
    """A replay memory that saves its array itself."""

    def get_checkpoint_state(self):
        return {**super().get_checkpoint_state(), "marks": self.marks}

    def set_checkpoint_state(self, state):
        super().set_checkpoint_state(state)
        self.marks[:] = state["marks"]


class Marking(TDTargets):
    """Targets that write into an array of the replay memory."""

    def __init__(self, context):
        super().__init__(context)
        self.marks = context.replay_buffer.marks[1:]
        self.beside = context.replay_buffer.beside

    def after_update(self):
        super().after_update()
        self.marks += 1.0
        self.beside[0] = True


def added(kind):
    """Return the names of attributes that a checkpoint has of targets."""
    model = ManyGoalsDQN("MlpPolicy", Corridor(), target_class=kind)
    return set(model.get_checkpoint_state()["added_to_targets"])


def trained_and_resumed(folder, **settings):
    """Return a model after ten steps, and one that was resumed from its last checkpoint."""
    models = [ManyGoalsDQN("MlpPolicy", Corridor(), seed=9, **SETTINGS, **settings) for _ in "ab"]
    models[0].learn(10, ExactCheckpointCallback(folder))
    assert ExactCheckpointCallback(folder).resume(models[1])
    return models


def test_plain_attributes_are_saved_and_others_that_may_change_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert added(WithParts) == {"counts", "names"}
    message = "attribute critic of WithNetwork.*Linear.*write the methods get_checkpoint_state"
    with pytest.warns(UserWarning, match=message):
        assert added(WithNetwork) == {"counts", "names"}


def test_each_attribute_that_cannot_be_saved_is_named_with_the_reason():
    with pytest.warns(UserWarning, match="left out of checkpoints") as caught:
        assert added(Unsaved) == {"array"}
    messages = [str(one.message) for one in caught]
    reasons = {
        "get": "is a method of plain data, a dict",
        "draw": "is a method of plain data, a Generator",
        "count": "is a function that refers to what can change",
        "log_scale": "is or has a tensor that requires a gradient",
        "pair": "is or has a tensor that requires a gradient",
        "mixed": "shares memory with a part of the model",
        "visits": "shares memory with a part of the model",
        "sparse": "is a torch.Tensor, which cannot be saved",
        "tensor": "shares memory with an array or tensor of another kind",
    }
    assert len(messages) == len(reasons)
    for message, (name, reason) in zip(messages, reasons.items(), strict=True):
        assert f"the attribute {name} of Unsaved {reason}" in message


def test_targets_that_save_their_state_are_left_alone(tmp_path):
    assert added(Whole) == set()
    model, again = trained_and_resumed(tmp_path, target_class=Whole)
    assert again.targets.critic.weight.equal(model.targets.critic.weight)


def test_all_that_changes_comes_back(tmp_path):
    model, again = trained_and_resumed(tmp_path, target_class=Changing)
    targets = again.targets
    # A number that is the seed, too, is a number like others.
    assert model.targets.n_updates == 9
    counts = (targets.early, targets.n_updates, targets.n_slots)
    assert counts == (9, 9, 9)
    assert targets.cache is None
    assert (targets.first.item(), targets.second.item()) == (0.0, 1.0)
    assert not targets.anchor.any()
    for restored, saved in zip(parameters(again), parameters(model), strict=True):
        assert th.equal(restored, saved)


def test_what_was_one_object_or_one_memory_is_one_again(tmp_path):
    targets = trained_and_resumed(tmp_path, target_class=Changing)[1].targets
    assert targets.latest is targets.scale
    assert targets.view.data_ptr() == targets.scale.data_ptr()
    assert targets.scale.item() == 9.0
    ((child, scale),) = targets.tree["children"]
    assert child["parent"] is targets.tree
    assert scale is targets.scale
    # The constructor took this from the network, which has it still.
    weight = next(targets.context.policy.q_net.parameters())
    assert targets.weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("kind", [MarkedBuffer, SavedBuffer])
def test_an_array_of_the_replay_memory_may_be_used_by_the_targets(kind, tmp_path):
    again = trained_and_resumed(tmp_path, target_class=Marking, replay_buffer_class=kind)[1]
    again.targets.marks += 1.0
    assert again.replay_buffer.marks.tolist() == [0.0, 10.0, 10.0]
    assert again.targets.beside.any() == (kind is MarkedBuffer)


def test_what_a_replay_memory_leaves_out_of_pickles_stays_out(tmp_path):
    kinds = {"replay_buffer_class": WithFunction}
    model = ManyGoalsDQN("MlpPolicy", Corridor(), **kinds, **SETTINGS)
    model.save_replay_buffer(tmp_path / "memory.pkl")
    assert "priority" in vars(model.replay_buffer)


def test_what_replaces_a_thing_without_a_state_is_named():
    model = ManyGoalsDQN("MlpPolicy", Corridor(), target_class=Replacing, **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.get_checkpoint_state()["added_to_targets"] == {"best": None, "flags": Mode.A}
    model.learn(3)
    with pytest.warns(UserWarning, match="left out of checkpoints") as caught:
        assert model.get_checkpoint_state()["added_to_targets"] == {}
    named = [str(one.message).split("attribute ")[1].split()[0] for one in caught]
    assert named == [
        *("mode", "weigh", "best", "recent", "dtype", "flags"),
        *("statistics", "by_distance", "counted", "kept", "groups", "latest", "pair"),
    ]


def test_tensors_come_back_on_the_device_of_those_in_their_place_or_of_the_model():
    owner = Unsaved.__new__(Unsaved)
    owner.here = th.zeros(1)
    owner.there = th.zeros(1, device="meta")
    owner.later = None
    one = th.ones(1)
    pair = th.ones(2)
    saved = {
        "here": th.ones(1),
        "there": th.ones(1),
        "later": [one, (one, {"more": one})],
        "pair": pair,
        "second": pair[1:],
    }
    restore_added([(owner, saved)], "meta")
    assert owner.here.tolist() == [1.0]
    assert owner.there.is_meta
    first, (second, third) = owner.later
    assert first.is_meta
    assert first is second
    assert third["more"] is first
    assert owner.second._base is owner.pair._base
    assert (owner.second.shape, owner.second.storage_offset()) == ((1,), 1)
