import csv

import pytest
import torch as th

from benchmarks import floor, updates
from benchmarks.mastery import PRESETS
from benchmarks.throughput import SCALED_GOALS, ThroughputConfig, scaling
from benchmarks.updates import tiled_losses


def test_tiled_and_pairwise_are_the_same_loss_and_gradient():
    paper = PRESETS["paper"]
    model = paper.agent.make("TwoRoomsSwitchSmall-v0", 100, seed=0, device="cpu")
    model.learn(40)
    with th.no_grad():
        model.q_net_target.head.bias.add_(th.randn(5))
    batch = model.replay_buffer.sample(8)
    goals, goal_ids, _ = model._sample_goals(batch)
    gradients = []
    for way in (model.goal_losses, lambda *arguments: tiled_losses(model, *arguments)):
        losses = way(batch, goals, goal_ids)
        model.q_net.zero_grad()
        losses.mean().backward()
        gradients.append((losses.detach(), *(parameter.grad.clone() for parameter in model.q_net.parameters())))
    for pairwise, tiled in zip(*gradients, strict=True):
        th.testing.assert_close(pairwise, tiled, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def paper():
    return updates.learner(32, 16)


def test_the_floor_counts_what_an_update_multiplies(paper):
    found = floor.work(paper, 32, 16)
    assert (48 * 25, 12, 16) in found.products  # first convolution: 25 windows of 2 x 2 x 3
    assert (48 * 9, 64, 32) in found.products  # second: 9 windows, as the 5 x 5 is padded
    assert (48, 288, 512) in found.products
    assert (32, 512, 1024) in found.products
    assert (32, 1024, 16 * 5) in found.products  # all actions of the next states, of the target network
    forward = 48 * (25 * 12 * 16 + 9 * 64 * 32 + 288 * 512) + 48 * 512 * 1024
    backward = 2 * (forward + 32 * 1024 * 16) - 48 * 25 * 12 * 16  # no gradient of pictures
    assert found.operations == 2 * (2 * forward + 32 * 1024 * 16 * (1 + 5) + backward)
    assert found.moved == 24 * sum(parameter.numel() for parameter in paper.q_net.parameters())
    shared = floor.work(paper, 128, 128, n_shared=128)
    assert (128, 288, 512) in shared.products
    assert floor.seconds(found, repeats=1) > 0


def test_peers_learn_what_they_should(paper):
    head = updates.AllGoalsHead(paper)
    assert head.n_goals == 5_728
    before = [parameter.clone() for parameter in head.net.parameters()]
    head.update()
    assert not all(th.equal(a, b) for a, b in zip(before, head.net.parameters(), strict=True))
    for relabel in (False, True):
        update = updates.sb3_dqn(16, relabel)
        assert update.pairs == 16
        assert update.speed(0.0) > 0
    product = updates.sb3_learner(16, relabel=False).q_net.features_extractor
    ours, theirs = (sum(p.numel() for p in module.parameters()) for module in (paper.q_net, product))
    assert theirs == ours - paper.q_net.head.weight.numel() - 5  # the same network, up to the head


def test_growth_is_written_and_drawn(tmp_path, capsys):
    scaling(ThroughputConfig(rounds=1, seconds=0.0), tmp_path)
    with (tmp_path / "scaling.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["goals"]) for row in rows] == list(SCALED_GOALS)
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    assert (tmp_path / "scaling.png").stat().st_size > 1_000
    assert capsys.readouterr().out.count("off a line in S + G") == 1
