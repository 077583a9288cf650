"""
Captured updates. Where there is no CUDA device, a graph is imitated: what it records does not happen while it is recorded, and
a replay does it with the settings and the step sizes' tensors of then, and leaves alone what Python counts.
"""

import contextlib
import copy
import inspect
import itertools
import shutil

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import polyak_update

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples, PlannedTargets, TDTargets, captured
from sb3_manygoals.many_goals_dqn.captured import WARM_UPS, CapturedUpdate, CaptureError, Graph
from sb3_manygoals.many_goals_dqn.device_memory import DeviceMemory
from sb3_manygoals.many_goals_dqn.targets import Draw
from sb3_manygoals.optim import FusedRMSprop
from tests.sb3_manygoals.checkpoint.test_resume import Stop, build, same
from tests.sb3_manygoals.many_goals_dqn.models import td_model
from tests.sb3_manygoals.worlds import Corridor

RMSPROP = {"optimizer_class": FusedRMSprop}
EAGER = {"cuda_graph": False}
ADAM = {"optimizer_class": th.optim.Adam, "optimizer_kwargs": {}}


def make_model(env=None, targets=None, policy_kwargs=RMSPROP, **kwargs):
    settings = {"batch_size": 8, "learning_rate": 1e-4, **kwargs}
    return td_model(env, policy_kwargs=policy_kwargs, targets={"cuda_graph": True, **(targets or {})}, **settings)


def parameters(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.q_net.parameters()])


class Recording:
    def __init__(self, function):
        # CapturedUpdate hands over a lambda around the model, or a method of its targets
        self.targets = getattr(function, "__self__", None)
        model = None if self.targets else inspect.getclosurevars(function).nonlocals["model"]
        self.targets = self.targets or model.targets
        policy = self.targets.learner.policy
        self.function, self.optimizer = function, policy.optimizer
        self.objects = [(self.targets, captured._SETTINGS_OF_TARGETS), *([(model, captured._SETTINGS)] if model else [])]
        self.settings = self._settings()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        tensors = [*policy.state_dict().values()]
        tensors += [value for state in self.optimizer.state.values() for value in state.values() if th.is_tensor(value)]
        tensors += [model._captured._counts] if model else []
        before, numbers = [tensor.clone() for tensor in tensors], th.get_rng_state()
        function()
        for tensor, value in zip(tensors, before, strict=True):
            tensor.data.copy_(value)
        th.set_rng_state(numbers)

    def _settings(self):
        return [{name: getattr(owner, name) for name in names} for owner, names in self.objects]

    def _set(self, settings):
        for (owner, _), values in zip(self.objects, settings, strict=True):
            vars(owner).update(values)

    def replay(self):
        groups, counters = self.optimizer.param_groups, self.optimizer.state.values()
        rates, counts = [group["lr"] for group in groups], [state.get("step") for state in counters]
        settings = self._settings()
        self._set(self.settings)
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate
        self.function()
        self._set(settings)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        for state, count in zip(counters, counts, strict=True):
            if isinstance(count, int):
                state["step"] = count


class Imitation(Graph):
    def _warm_up(self, function):
        self._warm_ups += 1
        function()

    def _capture(self, function):
        return Recording(function)


@pytest.fixture
def imitated(monkeypatch):
    """Models on the CPU capture their updates."""

    def update(model, batch_size):
        if not model.targets.cuda_graph:
            return model._update_eagerly(batch_size)
        if model._captured is None or not model._captured.fits(model, batch_size):
            model._drop_captured()
            model._captured = CapturedUpdate(model, batch_size)
        return model._captured.update(model)

    monkeypatch.setattr(ManyGoalsDQN, "_update", update)
    monkeypatch.setattr(CapturedUpdate, "_make_graphs", staticmethod(lambda _: (Imitation(None), Imitation(None))))


# --- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_kwargs", [RMSPROP, ADAM], ids=["RMSprop", "Adam"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"goal_sampling": "batch", "tau": 0.3}, {"goal_sampling": "behavior"}],
    ids=["paper", "batch goals", "pursued goals"],
)
def test_the_numbers_are_those_of_updates_by_hand(policy_kwargs, settings, imitated, monkeypatch):
    """From the same draws, taken out of the host's own arrays."""

    def prepare():
        env = make_vec_env(lambda: Corridor(deadly=True), 3)
        return make_model(env, settings, policy_kwargs, learning_starts=90).learn(90)

    model, reference = prepare(), prepare()
    assert th.equal(parameters(model), parameters(reference))
    np.testing.assert_array_equal(model.replay_buffer.next_ids, reference.replay_buffer.next_ids)
    rows, ids = [], []
    gather, goals_of = DeviceMemory.gather, DeviceMemory.goals
    monkeypatch.setattr(DeviceMemory, "gather", lambda self, drawn: rows.append(drawn) or gather(self, drawn))
    monkeypatch.setattr(DeviceMemory, "goals", lambda self, drawn: ids.append(drawn) or goals_of(self, drawn))
    moves = (1, 3, 4, 5, 8)
    losses = []
    for update in range(10):
        model.train(1, 8)
        losses.append(model._loss.item())
        if update in moves:
            model._captured.move_target(model)
    assert len(rows) == len(ids) == 11
    assert th.equal(rows[WARM_UPS], rows[WARM_UPS + 1])  # recorded, then done
    del rows[WARM_UPS], ids[WARM_UPS]

    memory = reference.replay_buffer
    optimizer = reference.policy.optimizer
    for update in range(10):
        drawn = np.divmod(rows[update].numpy(), 3)
        batch = ManyGoalsSamples(
            th.tensor(memory.observations[drawn]),
            th.tensor(memory.actions[drawn][:, 0]),
            th.tensor(memory.next_observations[drawn]),
            th.tensor(memory.next_ids[drawn]),
            th.tensor(memory.dones[drawn].astype(bool)),
        )
        if reference.targets.goal_sampling == "behavior":
            np.testing.assert_array_equal(ids[update], memory.behavior_goal_ids[drawn])
        elif reference.targets.goal_sampling == "batch":
            met = set(batch.next_ids.tolist())
            assert set(ids[update][: len(met)].tolist()) == met
        goals = th.tensor(reference.goal_buffer.observations[ids[update].numpy()])
        loss = reference.targets.losses(Draw(batch, goals, ids[update])).mean()
        assert loss.item() == pytest.approx(losses[update], rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update in moves:
            polyak_update(reference.q_net.parameters(), reference.q_net_target.parameters(), reference.targets.tau)
    th.testing.assert_close(parameters(model), parameters(reference), rtol=1e-4, atol=1e-6)
    assert model._n_updates == 10
    for ours, theirs in zip(model.policy.optimizer.state.values(), optimizer.state.values(), strict=True):
        assert ours["step"] == theirs["step"] == 10


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize(("tau", "updates_per_step"), [(1.0, 1.0), (0.2, 2 / 3)])
def test_the_target_network_moves_at_the_same_steps(n_envs, tau, updates_per_step, imitated):
    def moves(cuda_graph):
        targets = {"update_interval": 10, "tau": tau, "cuda_graph": cuda_graph}
        model = make_model(make_vec_env(Corridor, n_envs), targets, updates_per_step=updates_per_step)
        weights = []

        def look(*_):
            weights.append((model.num_timesteps, model.q_net_target.head.weight.detach().clone()))
            return True

        model.learn(200, look)
        assert (model._captured is not None) == cuda_graph
        return [step for (_, before), (step, after) in itertools.pairwise(weights) if not th.equal(before, after)]

    assert moves(True) == moves(False)
    assert len(moves(True)) > 15


def test_step_sizes_follow_their_schedule(imitated):
    model = make_model(learning_rate=lambda progress: 1e-3 if progress > 0.5 else 0.0)
    weights = []
    model.learn(100, lambda *_: weights.append(parameters(model)) or True)
    changed = [not th.equal(before, after) for before, after in itertools.pairwise(weights)]
    # weights are looked at before the step's own update
    assert changed[21:48] == [True] * 27
    assert changed[51:] == [False] * len(changed[51:])


@pytest.mark.parametrize("name", ["one environment", "several", "native, masks"])
def test_going_on_from_a_checkpoint_is_exact(name, imitated, tmp_path):
    def learn(folder, stop=None):
        model = build(name, targets={"cuda_graph": True})
        callback = ExactCheckpointCallback(folder, every_steps=20, keep=2)
        resumed = callback.resume(model)
        with contextlib.suppress(KeyboardInterrupt):
            steps = 260 - model.num_timesteps
            model.learn(steps, [callback, *([Stop(stop)] if stop else [])], reset_num_timesteps=not resumed)
        assert model._captured._update_graph.captured
        return resumed

    assert not learn(tmp_path / "whole")
    assert not learn(tmp_path / "stopped", 170)
    th.rand(3)  # the generator is elsewhere than it was
    assert learn(tmp_path / "stopped")
    same(*(read_checkpoint(checkpoints(tmp_path / run)[0]) for run in ("whole", "stopped")))


def test_what_is_restored_within_a_process_is_captured_anew(imitated, tmp_path):
    model = build("several", targets={"cuda_graph": True})
    model.learn(300, ExactCheckpointCallback(tmp_path / "all", every_steps=40, keep=99))
    last, *_, early = [path for path in checkpoints(tmp_path / "all") if int(path.name.split("step")[1]) > 150]
    first = model._captured
    shutil.copytree(early, tmp_path / "early" / early.name)
    callback = ExactCheckpointCallback(tmp_path / "early", every_steps=40)
    callback.resume(model)
    model.learn(300 - model.num_timesteps, callback, reset_num_timesteps=False)
    assert model._captured is not first
    same(read_checkpoint(last), read_checkpoint(checkpoints(tmp_path / "early")[0]))


# --- what a graph was captured with ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "gamma", 0.5),
        lambda model: setattr(model.targets, "tau", 0.5),
        lambda model: setattr(model, "goal_batch_size", 5),
        lambda model: setattr(model.targets, "goal_sampling", "batch"),
        lambda model: model._make_targets(TDTargets),
        lambda model: setattr(model, "step_reward", -1.0),
        lambda model: setattr(model, "goal_reward", 1.0),
        lambda model: setattr(model, "goal_buffer", copy.deepcopy(model.goal_buffer)),
        lambda model: setattr(model, "replay_buffer", copy.deepcopy(model.replay_buffer)),
        lambda model: model.policy.optimizer.load_state_dict(model.policy.optimizer.state_dict()),
        lambda model: model.set_parameters(model.get_parameters()),
        lambda model: model.set_checkpoint_state(copy.deepcopy(model.get_checkpoint_state())),
    ],
)
def test_another_setting_or_tensor_is_noticed(change, imitated):
    model = make_model(targets={"update_interval": 10}).learn(70)
    first = model._captured
    assert first._target_graph.captured
    model.train(2, 8)
    assert model._captured is first
    change(model)
    model.num_timesteps = 80
    model._on_step()  # the old graph is not asked
    assert th.equal(model.q_net.head.weight, model.q_net_target.head.weight) == (model.targets.tau == 1.0)
    model.train(1, 8)
    assert model._captured is not first
    second = model._captured
    model.train(WARM_UPS + 1, 8)
    assert model._captured is second
    model.train(1, 9)
    assert model._captured is not second


def test_the_optimizer_is_saved_as_it_is_without_graphs(imitated, tmp_path):
    model = make_model(policy_kwargs=ADAM)
    for steps in (22, 2, 36):  # while it is warmed up, captured, and replayed
        model.learn(steps, reset_num_timesteps=False)
        (group,) = model.policy.optimizer.state_dict()["param_groups"]
        assert (type(group["lr"]), group["lr"], group["capturable"]) == (float, 1e-4, False)
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(), target_kwargs={})
    assert loaded._captured is None
    assert th.equal(parameters(loaded), parameters(model))
    loaded.learn(60)
    assert ManyGoalsDQN.load(tmp_path / "model", env=Corridor()).targets.cuda_graph is True


def test_copies_capture_anew(imitated):
    model = make_model().learn(60)
    twin = copy.deepcopy(model)
    assert model._captured is not None
    assert twin._captured is None
    twin.learn(30, reset_num_timesteps=False)
    assert twin._captured._update_graph.captured


def test_nothing_is_captured_on_a_cpu():
    assert make_model().learn(60)._captured is None


# --- falling back ----------------------------------------------------------------------------------------------------


def fails(reason):
    return pytest.warns(RuntimeWarning, match=f"not captured as a CUDA graph, each operation is started by itself: {reason}")


@pytest.mark.parametrize(
    ("policy_kwargs", "reason"),
    [
        ({"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}, "the optimizer SGD has no option capturable"),
        (
            {**RMSPROP, "optimizer_kwargs": {"momentum": 0.9}},
            "FusedRMSprop with momentum, weight decay or centered",
        ),
    ],
)
def test_an_optimizer_that_cannot_be_captured_is_named(policy_kwargs, reason, imitated):
    with fails(reason) as warned:
        model = make_model(policy_kwargs=policy_kwargs).learn(60)
    assert len(warned) == 1
    # not one number is another
    assert th.equal(parameters(model), parameters(make_model(policy_kwargs=policy_kwargs, targets=EAGER).learn(60)))


def test_memories_that_do_not_fit_are_named(imitated, monkeypatch):
    def full(*_):
        raise th.OutOfMemoryError("CUDA out of memory. Tried to allocate 99 GiB.\nMore.")

    monkeypatch.setattr(DeviceMemory, "__init__", full)
    with fails(r"replay memory and goals do not fit on the device: OutOfMemoryError: CUDA out .* 99 GiB\.$"):
        model = make_model().learn(60)
    assert th.equal(parameters(model), parameters(make_model(targets=EAGER).learn(60)))


@pytest.mark.parametrize("which", ["update", "target"])
def test_a_capture_that_fails_is_named_and_training_goes_on(which, imitated, monkeypatch):
    def capture(graph, function):
        if (function.__name__ == "move") == (which == "target"):
            raise CaptureError("RuntimeError: operation not permitted")
        return Recording(function)

    monkeypatch.setattr(Imitation, "_capture", capture)
    model = make_model(targets={"update_interval": 10}, policy_kwargs=ADAM)
    with fails("RuntimeError: operation not permitted") as warned:
        model.learn(70)
    assert len(warned) == 1
    assert model._n_updates == 50
    for state in model.policy.optimizer.state.values():
        assert state["step"] == 50
    before = parameters(model)
    model.num_timesteps = 80
    model._on_step()
    assert th.equal(model.q_net.head.weight, model.q_net_target.head.weight)
    model.train(3, 8)
    assert not th.equal(before, parameters(model))


def test_planned_targets_are_not_captured(imitated):
    model = make_model(targets=EAGER)
    model._make_targets(
        type(
            "Captured",
            (PlannedTargets,),
            {"cuda_graph": True, "__init__": lambda self, learner, **_: PlannedTargets.__init__(self, learner)},
        )
    )
    with fails("Captured are made on the host"):
        model.learn(60)


def test_updates_about_goals_in_the_replay_memory_are_not_captured(imitated):
    model = make_model(goals_in_replay=True)
    with fails("with goals_in_replay goals are looked up on the host"):
        model.learn(60)
    assert model._n_updates > 0


def test_updates_of_each_goal_are_counted_whether_captured_or_not(imitated):
    model = make_model()
    model.learn(60)
    assert model._captured._update_graph.captured
    assert model.goal_updates.sum() == model._n_updates * model.goal_batch_size
    model.learn(20, reset_num_timesteps=False)
    model.goal_batch_size = 3  # to be captured anew
    before = model._n_updates
    model.learn(20, reset_num_timesteps=False)
    assert model.goal_updates.sum() == before * 16 + (model._n_updates - before) * 3
