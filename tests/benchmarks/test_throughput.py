import csv

import pytest
import torch as th

from benchmarks.mastery import PRESETS
from benchmarks.throughput import ThroughputConfig, tiled_losses


def test_tiled_and_pairwise_are_the_same_loss_and_gradient():
    paper = PRESETS["paper"]
    model = paper.agent.make("TwoRoomsSwitchSmall-v0", 100, seed=0, device="cpu")
    model.learn(40)
    with th.no_grad():
        model.q_net_target.head.bias.add_(th.randn(5))
    batch = model.replay_buffer.sample(8)
    goals, goal_ids = model._sample_goals(batch)
    gradients = []
    for way in (model.goal_losses, tiled_losses.__get__(model)):
        losses = way(batch, goals, goal_ids)
        model.q_net.zero_grad()
        losses.mean().backward()
        gradients.append((losses.detach(), *(parameter.grad.clone() for parameter in model.q_net.parameters())))
    for pairwise, tiled in zip(*gradients, strict=True):
        th.testing.assert_close(pairwise, tiled, rtol=1e-3, atol=1e-5)


def test_the_command_measures_and_writes(tmp_path, capsys):
    folder = ThroughputConfig(rounds=3, updates=2, output=tmp_path).run()
    with (folder / "throughput.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        assert float(row["ratio"]) == pytest.approx(float(row["tiled_ms"]) / float(row["pairwise_ms"]), rel=0.01)
    # far below what is measured on an idle machine, far above what noise could make of equal costs
    assert all(float(row["ratio"]) > 2 for row in rows)
    assert "tiled / pairwise" in capsys.readouterr().out
