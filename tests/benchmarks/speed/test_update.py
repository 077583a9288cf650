import mmap
import os
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch as th

from benchmarks.speed import memory, roofline, update
from benchmarks.speed.baselines import tiled_losses
from benchmarks.speed.roofline import Convolution, Product, Work
from benchmarks.speed.scenarios import Scenario
from benchmarks.speed.update import RATIOS, SCENARIOS, UpdateConfig

SMALL = "TwoRoomsSwitchSmall-v0"


def tells():
    """Whether this machine tells the peak of resident memory."""
    try:
        return bool(memory.reset_peak())
    except (OSError, KeyError):
        return False


needs_proc = pytest.mark.skipif(not tells(), reason="the machine does not tell the peak of resident memory")


def test_tiled_and_pairwise_are_the_same_loss_and_gradient():
    model = Scenario("pairwise", 8, 5, world=SMALL).learner()
    with th.no_grad():
        model.q_net_target.head.bias.add_(th.randn(5))
    draw = model.targets.draw(8, 5, model.rng)
    gradients = []
    for losses in (model.targets.losses(draw), tiled_losses(model, draw.batch, draw.goals, draw.goal_ids)):
        model.q_net.zero_grad()
        losses.mean().backward()
        gradients.append((losses.detach(), *(parameter.grad.clone() for parameter in model.q_net.parameters())))
    for pairwise, tiled in zip(*gradients, strict=True):
        th.testing.assert_close(pairwise, tiled, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def paper():
    return Scenario("pairwise", 32, 16).learner()


def test_the_roofline_counts_what_an_update_multiplies(paper):
    found = roofline.work(paper, 32, 16)
    shapes = [product.shape for product in found.products]
    assert (48 * 25, 12, 16) in shapes  # first convolution: 25 windows of 2 x 2 x 3
    assert (48 * 9, 64, 32) in shapes  # second: 9 windows, as the 5 x 5 is padded
    assert (32, 1024, 16 * 5) in shapes  # all actions of the next states, of the target network
    forward = 48 * (25 * 12 * 16 + 9 * 64 * 32 + 288 * 512) + 48 * 512 * 1024
    backward = 2 * (forward + 32 * 1024 * 16) - 48 * 25 * 12 * 16  # no gradient of pictures
    assert found.operations == 2 * (2 * forward + 32 * 1024 * 16 * (1 + 5) + backward)
    assert found.moved == 24 * sum(parameter.numel() for parameter in paper.q_net.parameters())
    # the target network sees goals that are next observations once
    assert (128, 288, 512) in [product.shape for product in roofline.work(paper, 128, 128, n_shared=128).products]
    assert found.speed(repeats=1) > 0


def test_the_roofline_convolves_where_that_is_faster(paper, monkeypatch):
    second = Convolution(48, (16, 6, 6), (32, 16, 2, 2), (2, 2))  # the 5 x 5, padded
    products = roofline.work(paper, 32, 16).products
    assert products.count(Product((48 * 9, 64, 32), second)) == 2  # both networks
    assert Product((48 * 9, 32, 64), second, "to inputs") in products
    assert Product((64, 48 * 9, 32), second, "to weights") in products
    shapes = {way: second.compute(way)() for way in ("outputs", "to weights", "to inputs")}
    assert shapes["outputs"].shape == (48, 32, 3, 3)
    assert [None if tensor is None else tensor.shape for tensor in shapes["to weights"]] == [None, (32, 16, 2, 2), None]
    assert [None if tensor is None else tensor.shape for tensor in shapes["to inputs"]] == [(48, 16, 6, 6), None, None]
    times = {"mm": 3.0, "linear": 2.0, "conv2d": 1.0, "copy": 0.5}
    monkeypatch.setattr(Product, "candidates", lambda self: ["mm", "linear"] + ["conv2d"] * (self.convolution is not None))
    monkeypatch.setattr(roofline, "_seconds", lambda what, repeats: times.get(what, 0.5) if isinstance(what, str) else 0.5)
    assert Work((Product((2, 2, 2), second), Product((5, 6, 7))), 0).speed() == 1 / (1.0 + 2.0 + 0.5)


def test_atari_has_ataris_shapes():
    scenario = Scenario("pairwise", 80, 16, "batch", world="frames")
    model = scenario.learner()
    batch, goals, ids, _ = model.targets.draw(80, 16, model.rng)
    assert batch.observations.shape == (80, 4, 84, 84)
    assert set(ids.tolist()) <= set(batch.next_ids.tolist())  # goals are met in the batch, as the roofline takes it
    assert (goals == th.as_tensor(model.goal_buffer[ids.numpy()])).all()
    shapes = [product.shape for product in roofline.work(model, 80, 16, 16).products]
    for shape in ((96 * 400, 256, 32), (80 * 400, 256, 32), (96 * 81, 512, 64), (96, 3136, 512), (80, 1024, 16 * 18)):
        assert shape in shapes


KINDS = {"pairwise": 5, "tiled": 5, "head": 220, "SB3 DQN": 1, "SB3 DQN + HER": 1}


@pytest.mark.parametrize(("kind", "goals"), KINDS.items())
def test_every_kind_of_update_learns(kind, goals):
    found = Scenario(kind, 4, goals, world=SMALL).update()
    network = found.model.q_net
    before = [parameter.clone() for parameter in network.parameters()]
    assert found.speed(0.0) > 0
    changed = [not th.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
    assert all(changed) or kind == "head"
    assert any(changed)
    if kind == "head":
        assert found.model.targets.pairs_taught == 4 * 220


def test_sb3_has_the_same_network_up_to_the_head(paper):
    product = Scenario("SB3 DQN", 16).update().model.q_net.features_extractor
    ours, theirs = (sum(parameter.numel() for parameter in module.parameters()) for module in (paper.q_net, product))
    assert theirs == ours - paper.q_net.head.weight.numel() - 5


def test_scenarios_are_named_apart_and_every_ratio_is_about_some():
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    names += [scenario.roofline_name for scenario in SCENARIOS if scenario.roofline_name]
    measured = pd.DataFrame(columns=list(dict.fromkeys(names)))
    assert [ratio.title for ratio in RATIOS if not ratio.is_measured(measured)] == []
    on_gpu = Scenario("pairwise", 32, 16, device="cuda")
    assert (on_gpu.name, on_gpu.roofline_name, on_gpu.pairs) == ("pairwise 32 x 16, cuda", None, 512)
    assert Scenario("tiled", 80, 16, world="frames").roofline_name == "roofline 80 x 16, Atari"


def test_the_table_is_made_of_medians():
    ours, sb3 = Scenario("pairwise", 32, 16), Scenario("SB3 DQN", 32)
    roofline = {"roofline 32 x 16": [200.0, 250.0, 100.0]}
    measured = pd.DataFrame({ours.name: [100.0, 200.0, 150.0], sb3.name: [10.0, 10.0, 30.0]} | roofline)
    first, second = update.table([ours, sb3], measured, {ours.name: 33.25}, 2).to_dict("records")
    assert (first["threads"], first["updates_per_second"], first["goal_updates_per_second"]) == (2, 150.0, 150.0 * 512)
    assert (first["peak_megabytes"], first["share_of_roofline"]) == (33.25, 0.8)
    assert (second["goal_updates_per_second"], np.isnan(second["share_of_roofline"])) == (320.0, True)


def test_the_whole_run(tmp_path, capsys, monkeypatch):
    scenarios = (*(Scenario("pairwise", 32, goals, world=SMALL) for goals in (16, 64)), Scenario("tiled", 32, 16, world=SMALL))
    monkeypatch.setattr(update, "SCENARIOS", scenarios)
    monkeypatch.setattr(memory, "of_updates", lambda each, threads: {"pairwise 32 x 16": 12.5, "pairwise 32 x 64": 20.0})
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    folder = UpdateConfig(rounds=1, seconds=0.01, threads=(1,), output=tmp_path).run()
    rows = pd.read_csv(folder / "update-table.csv").set_index("update")
    raw = pd.read_csv(folder / "update-1-threads.csv").set_index("contender")["value"]
    for scenario in scenarios:
        assert rows.loc[scenario.name, "updates_per_second"] == pytest.approx(raw[scenario.name], rel=0.01)
        expected = raw[scenario.name] / raw[scenario.roofline_name]
        assert rows.loc[scenario.name, "share_of_roofline"] == pytest.approx(expected, rel=0.01)
    assert rows["peak_megabytes"].fillna(0).tolist() == [12.5, 20.0, 0]
    assert (folder / "goals.png").stat().st_size > 1_000
    printed = capsys.readouterr().out
    assert "CUDA is not measured" in printed
    assert "peak_megabytes of pairwise 32 x 16 to 64: 0% off a line at most" in printed


@needs_proc
def test_a_peak_is_told_after_the_memory_is_given_back():
    memory.reset_peak()
    with mmap.mmap(-1, 160_000_000) as big:  # of the kernel, as an allocator may have as much left over
        np.frombuffer(big, np.uint8)[:] = 1
    assert 155e6 < memory.status("VmHWM") - memory.status("VmRSS") < 170e6
    peak, resident = memory.reset_peak()
    assert peak - resident < 4e6


@needs_proc
def test_an_update_needs_its_gradients_at_least():
    parameters = 12 * 16 + 16 + 64 * 32 + 32 + 288 * 512 + 512 + 2 * (512 * 1024 + 1024) + 1024 * 5 + 5
    # Beside them 48 + 48 rows of a few thousand numbers, the work space of convolutions, pages half used.
    (megabytes,) = memory.of_updates([Scenario("pairwise", 32, 16, world=SMALL)], threads=1).values()
    assert 4 * parameters / 1e6 < megabytes < 25


@dataclass(frozen=True)
class Killed(Scenario):
    def update(self):
        os._exit(9)


@dataclass(frozen=True)
class Hungry(Scenario):
    def update(self):
        raise MemoryError("this takes too much")


def test_what_cannot_be_measured_is_left_out_with_the_reason(capsys):
    assert memory.of_updates([Killed("pairwise", 2, 2), Hungry("tiled", 2, 2)], threads=1) == {}
    printed = capsys.readouterr().out
    assert "memory of pairwise 2 x 2 is not measured: its process was ended" in printed
    assert "memory of tiled 2 x 2 is not measured: MemoryError('this takes too much')" in printed


def test_machines_that_do_not_tell_are_recognized(tmp_path):
    def process(**status):
        (tmp_path / "status").write_text("".join(f"{name}:\t{value}\n" for name, value in status.items()))
        return tmp_path

    with pytest.raises(OSError, match="nowhere"):
        memory.reset_peak(tmp_path / "nowhere")
    with pytest.raises(KeyError, match="VmHWM"):
        memory.reset_peak(process(VmRSS="200000 kB"))
    with pytest.raises(OSError, match="does not reset the peak"):
        memory.reset_peak(process(VmHWM="500000 kB", VmRSS="200000 kB"))
    assert memory.reset_peak(process(VmHWM="200004 kB", VmRSS="200000 kB")) == (204_804_096, 204_800_000)
