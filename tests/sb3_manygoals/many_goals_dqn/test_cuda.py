"""Captured updates as they are on a CUDA device."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from sb3_manygoals.many_goals_dqn import captured
from sb3_manygoals.optim import FusedRMSprop
from tests.sb3_manygoals.checkpoint.test_resume import BUILDS, Stop, build, same
from tests.sb3_manygoals.many_goals_dqn.models import td_model
from tests.sb3_manygoals.worlds import Corridor

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
RANDOM = {"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0}
"""What is met does not depend on the weights."""


def make_model(targets=None, policy_kwargs=None, **kwargs):
    policy_kwargs = {"optimizer_class": FusedRMSprop, **(policy_kwargs or {})}
    settings = {"device": "cuda", "batch_size": 8, "learning_rate": 1e-4, **kwargs}
    return td_model(policy_kwargs=policy_kwargs, targets={"cuda_graph": True, **(targets or {})}, **settings)


GRAPH = {"cuda_graph": True}
CAPTURED = [name for name in BUILDS if not {"planned", "chosen"} & set(name.replace(",", "").split())]
DISTANCE = {"embedding_dim": 8, "ema_decay": 0.9, "head": "distance"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in CAPTURED),
        ("several", {"policy_kwargs": DISTANCE}),
    ],
)
def test_a_graph_does_what_its_operations_do(name, settings, monkeypatch):
    def learn(warm_ups):
        monkeypatch.setattr(captured, "WARM_UPS", warm_ups)
        model = build(name, GRAPH, device="cuda", **settings, **RANDOM)
        losses = []
        model.learn(400, lambda *_: losses.append(model._loss.item()) or True)
        return model, losses, th.cuda.get_rng_state()

    (graphs, losses, numbers), (operations, expected, expected_numbers) = learn(3), learn(10**9)
    assert graphs._captured._update_graph.captured
    assert graphs._captured._target_graph.captured
    assert not operations._captured._update_graph.captured
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert th.equal(numbers, expected_numbers)
    weights, expected_weights = (dict(model.policy.state_dict()) for model in (graphs, operations))
    th.testing.assert_close(weights, expected_weights, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(graphs.goal_updates, operations.goal_updates)
    for ours, theirs in zip(graphs.policy.optimizer.state.values(), operations.policy.optimizer.state.values(), strict=True):
        assert float(ours["step"]) == float(theirs["step"]) == graphs._n_updates


def test_updates_wait_for_nothing():
    model = make_model({"goal_sampling": "batch", "update_interval": 10}).learn(100)
    memory = model.replay_buffer
    before = model.q_net.head.weight.detach().clone(), model.q_net_target.head.weight.clone()
    th.cuda.synchronize()
    th.cuda.set_sync_debug_mode("error")
    try:
        for time in range(20):  # with transitions that are new each time
            infos = [{"achieved_goal_id": memory.next_ids[time, 0], "env_terminated": False}]
            obs, next_obs = ({"observation": rows[time]} for rows in (memory.observations, memory.next_observations))
            none = np.zeros(1)
            memory.add(obs, next_obs, memory.actions[time, 0], none, none.astype(bool), infos)
            model.train(1, 8)
        model.num_timesteps = 110
        model._on_step()
    finally:
        th.cuda.set_sync_debug_mode("default")
    assert not th.equal(before[0], model.q_net.head.weight)
    assert th.equal(model.q_net.head.weight, model.q_net_target.head.weight)
    assert model._captured._memory.gather(th.tensor([119], device="cuda")).actions.item() == memory.actions[19, 0, 0]


@pytest.mark.parametrize("policy_kwargs", [{}, {"optimizer_class": th.optim.Adam}], ids=["RMSprop", "Adam"])
def test_step_sizes_follow_their_schedule(policy_kwargs):
    model = make_model(learning_rate=lambda progress: 1e-3 if progress > 0.5 else 0.0, policy_kwargs=policy_kwargs)
    weights = []
    model.learn(100, lambda *_: weights.append(model.q_net.head.weight.detach().clone()) or True)
    assert not th.equal(weights[40], weights[49])
    assert th.equal(weights[52], weights[-1])


@pytest.mark.parametrize("name", CAPTURED)
def test_going_on_from_a_checkpoint_is_exact(name, tmp_path):
    def learn(folder, stop=None):
        model = build(name, GRAPH, device="cuda")
        callback = ExactCheckpointCallback(folder, every_steps=20, keep=2)
        resumed = callback.resume(model)
        with contextlib.suppress(KeyboardInterrupt):
            steps = 400 - model.num_timesteps
            model.learn(steps, [callback, *([Stop(stop)] if stop else [])], reset_num_timesteps=not resumed)
        return resumed

    assert not learn(tmp_path / "whole")
    assert not learn(tmp_path / "stopped", 230)
    th.rand(3, device="cuda")  # the generator is elsewhere than it was
    assert learn(tmp_path / "stopped")
    same(*(read_checkpoint(checkpoints(tmp_path / run)[0]) for run in ("whole", "stopped")))


def test_it_is_loaded_where_there_is_no_such_device(tmp_path):
    model = make_model(policy_kwargs={"optimizer_class": th.optim.Adam}).learn(60)
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(), device="cpu")
    assert th.equal(loaded.q_net.head.weight, model.q_net.head.weight.cpu())
    loaded.learn(60)
    assert loaded._captured is None


class Waiting(FlattenExtractor):
    def forward(self, observations):
        return super().forward(observations) + 0.0 * observations.sum().item()


class Raising(FlattenExtractor):
    def forward(self, observations):
        if th.cuda.is_current_stream_capturing():
            raise ValueError("not in a capture")
        return super().forward(observations)


class WaitingUnseen(FlattenExtractor):
    def forward(self, observations):
        if th.cuda.is_current_stream_capturing():
            observations.sum().item()
        return super().forward(observations)


@pytest.mark.parametrize(
    ("extractor", "reason"),
    [
        (Waiting, r"it waits for the device at .*test_cuda\.py:\d+$"),
        (Raising, "ValueError: not in a capture$"),
    ],
)
@pytest.mark.parametrize("optimizer_class", [captured.ForeachRMSprop, th.optim.Adam])
def test_what_cannot_be_captured_is_named_and_training_goes_on(extractor, reason, optimizer_class):
    model = make_model(policy_kwargs={"features_extractor_class": extractor, "optimizer_class": optimizer_class})
    with pytest.warns(RuntimeWarning, match=f"not captured as a CUDA graph, .*: {reason}") as warned:
        model.learn(60)
    assert len(warned) == 1
    assert model._n_updates == 40
    before = model.q_net.head.weight.detach().clone()
    model.train(5, 8)
    assert not th.equal(before, model.q_net.head.weight)
    assert th.cuda.current_stream() == th.cuda.default_stream()


def run(code):
    """In a process of its own, since it may leave the device unusable."""
    code = "import torch as th, warnings\nfrom tests.sb3_manygoals.many_goals_dqn.test_cuda import *\n" + code
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_capture_that_cuda_ends_leaves_all_usable():
    done = run(
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    model = make_model(policy_kwargs={'features_extractor_class': WaitingUnseen}).learn(60)\n"
        "assert ['not captured' in str(warning.message) for warning in seen].count(True) == 1\n"
        "assert model._n_updates == 40\n"
        "assert th.cuda.current_stream() == th.cuda.default_stream()\n"
        "model.train(5, 8); model._loss.item(); th.rand(2, device='cuda').tolist()\n"
        "other = make_model().learn(60); assert other._captured._update_graph.captured; other._loss.item()\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_loss_that_is_not_finite_stops_the_device():
    done = run(
        "model = make_model().learn(60); assert model._captured._update_graph.captured\n"
        "model.q_net.head.bias.data.fill_(float('nan')); model.train(1, 8); print(model._loss.item())\n"
    )
    assert done.returncode != 0
    assert "or of a later one is not finite" in done.stderr
