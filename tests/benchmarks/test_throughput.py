import csv
import sys
from dataclasses import replace

import pytest
import torch as th

from benchmarks import floor, peak_memory, peers, scaling, table, throughput, updates
from benchmarks.__main__ import main
from benchmarks.cases import Case
from benchmarks.rounds import Best, Figure
from benchmarks.throughput import ThroughputConfig
from benchmarks.updates import tiled_losses


def read(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_tiled_and_pairwise_are_the_same_loss_and_gradient():
    model = updates.learner(8, 5, world="TwoRoomsSwitchSmall-v0")
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


def test_the_floor_convolves_where_that_is_faster(paper, monkeypatch):
    found = floor.work(paper, 32, 16)
    first = floor.Convolution(48, (3, 10, 10), (16, 3, 2, 2), (2, 2))
    second = floor.Convolution(48, (16, 6, 6), (32, 16, 2, 2), (2, 2))  # the 5 x 5, padded
    assert found.convolutions[48 * 25, 12, 16] == first
    assert found.convolutions[12, 48 * 25, 16] == replace(first, way="to weights")
    assert found.convolutions[48 * 9, 64, 32] == second
    assert found.convolutions[48 * 9, 32, 64] == replace(second, way="to inputs")
    assert (48 * 25, 16, 12) not in found.products  # nor is that of the first asked for
    results = []
    monkeypatch.setattr(floor, "_timed", lambda function: results.append(function()) or 1.0)
    for way in ("outputs", "to weights", "to inputs"):
        assert replace(second, way=way).seconds(1) == 1.0
    outputs, to_weights, to_inputs = results
    assert outputs.shape == (48, 32, 3, 3)
    assert [None if tensor is None else tensor.shape for tensor in to_weights] == [None, (32, 16, 2, 2), None]
    assert [None if tensor is None else tensor.shape for tensor in to_inputs] == [(48, 16, 6, 6), None, None]
    least = floor.Work(((48 * 9, 64, 32), (5, 6, 7)), 0, {(48 * 9, 64, 32): second})
    for convolution, expected in ((0.25, 0.25 + 1 + 1), (9.0, 1 + 1 + 1)):  # a product, and a copy of nothing
        monkeypatch.setattr(floor.Convolution, "seconds", lambda self, repeats, answer=convolution: answer)
        assert floor.seconds(least) == expected


@pytest.fixture(scope="module")
def atari():
    return Case("pairwise", 80, 16, "batch", world="frames")


def test_atari_has_ataris_shapes(atari):
    model = atari.learner()
    assert model.replay_buffer.buffer_size * 8 == 200
    batch, goals, ids, _ = model.targets.draw(80, 16, model.rng)
    assert batch.observations.shape == (80, 4, 84, 84)
    assert set(ids.tolist()) <= set(batch.next_ids.tolist())  # the goals are met in the batch, as the floor takes it
    assert (goals == th.as_tensor(model.goal_buffer[ids.numpy()])).all()
    update = updates.ours(model)
    assert (update.transitions, update.goals) == (80, 16)
    least = atari.floor()
    for shape in ((96 * 400, 256, 32), (80 * 400, 256, 32), (96 * 81, 512, 64), (96 * 49, 576, 64), (96, 3136, 512)):
        assert shape in least.products
    assert (80, 1024, 16 * 18) in least.products
    before = [parameter.clone() for parameter in model.q_net.parameters()]
    update.make(3, 2)
    assert model.goal_batch_size == 2
    assert not any(th.equal(a, b) for a, b in zip(before, model.q_net.parameters(), strict=True))


def test_cases_are_named_apart_and_have_their_floors(atari):
    assert len({case.name for case in throughput.CASES}) == len(throughput.CASES)
    assert atari.name == "pairwise 80 x 16, Atari"
    assert Case("tiled", 80, 16, "batch", world="frames").floor_name == atari.floor_name == "floor 80 x 16, Atari"
    assert Case("pairwise", 32, 16, device="cuda").name == "pairwise 32 x 16, cuda"
    assert Case("pairwise", 32, 16, device="cuda").floor_name is None
    assert Case("SB3 DQN + HER", 512).floor_name is None
    assert Case("head", 32, 5_728).pairs == 32 * 5_728


def test_every_figure_is_about_something_that_is_measured():
    names = {case.name for case in throughput.CASES} | set(throughput.TRAINING.values())
    names |= {case.floor_name for case in throughput.CASES}
    assert set(throughput.TRAINING) <= names
    for figure in throughput.FIGURES:
        assert figure.is_measured({name: [1.0] for name in names}), figure.title
    pairs = {case.name: case.pairs for case in throughput.CASES}
    for batches in (throughput.OUR_BATCHES, throughput.HER_BATCHES):
        assert all(pairs[name] == weight for name, weight in batches.weights.items())


def test_the_best_of_several_is_found_in_each_round():
    measured = {"a": [10.0, 30.0], "b": [2.0, 3.0], "c": [100.0, 50.0]}
    figure = Figure("", Best({"a": 1, "b": 10}), "c")
    assert figure.values(measured).tolist() == [20.0 / 100.0, 30.0 / 50.0]
    assert Figure("", "c", Best({"a": 1, "b": 10})).values(measured).tolist() == [5.0, 50.0 / 30.0]
    assert figure.is_measured(measured)
    assert not figure.is_measured({"a": [1.0], "c": [1.0]})
    assert not Figure("", "a", Best({"c": 1, "d": 1})).is_measured(measured)


def test_peers_learn_what_they_should(paper):
    head = Case("head", 2, 5_728).learner()
    assert head.q_net.head.out_features == 5_728 * 5
    assert len(head.goal_buffer) == 5_728
    before = [parameter.clone() for parameter in head.q_net.parameters()]
    head.train(1, 2)
    assert head.targets.pairs_taught == 2 * 5_728
    assert not all(th.equal(a, b) for a, b in zip(before, head.q_net.parameters(), strict=True))
    for relabel in (False, True):
        update = peers.sb3_dqn(16, relabel)
        assert (update.transitions, update.goals) == (16, 1)
        assert update.speed(0.0) > 0
    product = peers.sb3_learner(16, relabel=False).q_net.features_extractor
    ours, theirs = (sum(p.numel() for p in module.parameters()) for module in (paper.q_net, product))
    assert theirs == ours - paper.q_net.head.weight.numel() - 5  # the same network, up to the head


def test_growth_is_written_and_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(scaling, "GOALS", (8, 16))
    monkeypatch.setattr(scaling, "TILED_GOALS", (8,))
    memory = {"pairwise": 20.0, "tiled": 300.0}
    monkeypatch.setattr(peak_memory, "of_updates", lambda cases, threads: {case: memory[case.kind] for case in cases})
    scaling.run(tmp_path, 1, 0.0)
    rows = read(tmp_path / "scaling.csv")
    assert [(row["update"], int(row["goals"])) for row in rows] == [("pairwise", 8), ("pairwise", 16), ("tiled", 8)]
    assert all(float(row["milliseconds"]) > 0 for row in rows)
    assert [row["megabytes"] for row in rows] == ["20.0", "20.0", "300.0"]
    assert (tmp_path / "scaling.png").stat().st_size > 1_000
    printed = capsys.readouterr().out
    assert "time of pairwise 64 x 8 to 16 goals: at most" in printed
    assert "memory of pairwise 64 x 8 to 16 goals: at most 0% off a line in S + G" in printed
    # nothing of memory where it is not measured
    monkeypatch.setattr(peak_memory, "of_updates", lambda cases, threads: {})
    scaling.run(tmp_path, 1, 0.0)
    assert {row["megabytes"] for row in read(tmp_path / "scaling.csv")} == {""}
    assert "memory" not in capsys.readouterr().out


def test_how_far_from_a_line():
    assert scaling._off_a_line([1, 2, 3], [5.0, 7.0, 9.0]) == pytest.approx(0)
    # nearest to (0, 0), (1, 3), (2, 0) is y = 1: the least is off by all of it, the greatest by twice
    assert scaling._off_a_line([0, 1, 2], [0.0, 3.0, 0.0]) == pytest.approx(2)


def test_the_table_is_made_of_the_medians():
    ours, tiled = Case("pairwise", 32, 16), Case("tiled", 32, 16)
    measured = {
        ours.name: [100.0, 200.0, 150.0],
        tiled.name: [10.0, 10.0, 30.0],
        "floor 32 x 16": [200.0, 250.0, 100.0],
        "training, ours": [90.0, 80.0, 70.0],
    }
    first, second = table.rows([ours, tiled], measured, {tiled: 33.25}, {ours.name: "training, ours"}, threads=2)
    assert first == table.Row(2, "pairwise 32 x 16", 512, 150.0, 150.0 * 512, 80.0, None, 0.8)
    assert second == table.Row(2, "tiled 32 x 16", 512, 10.0, 5120.0, None, 33.25, 0.05)
    assert table.cells(first) == ["2", "pairwise 32 x 16", "512", "150", "76,800", "80.0", "", "0.800"]
    assert table.cells(second, "")[3:] == ["10.0", "5120", "", "33.2", "0.0500"]


def test_the_whole_run_writes_one_table(tmp_path, capsys, monkeypatch):
    cases = (Case("pairwise", 32, 16), Case("tiled", 32, 16), Case("SB3 DQN", 32), Case("pairwise", 16, 5, world="frames"))
    monkeypatch.setattr(throughput, "CASES", cases)
    monkeypatch.setattr(scaling, "GOALS", (8,))
    monkeypatch.setattr(scaling, "TILED_GOALS", ())
    monkeypatch.setattr(peak_memory, "of_update", lambda case, threads: 12.5)
    monkeypatch.setattr(peak_memory, "why_not", lambda: None)
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    config = ThroughputConfig(rounds=1, seconds=0.01, training_steps=3, threads=(1,), output=tmp_path)
    folder = config.run()
    rows = {row["update"]: row for row in read(folder / "throughput-table.csv")}
    assert list(rows) == [case.name for case in cases]
    raw = {row["contender"]: float(row["value"]) for row in read(folder / "throughput-1-threads.csv")}
    for case in cases:
        row = rows[case.name]
        assert float(row["updates_per_second"]) == pytest.approx(raw[case.name], rel=0.01)
        assert float(row["goal_updates_per_second"]) == pytest.approx(raw[case.name] * case.pairs, rel=0.01)
        assert (int(row["threads"]), float(row["peak_megabytes"])) == (1, 12.5)
    assert float(rows["tiled 32 x 16"]["share_of_floor"]) == pytest.approx(
        raw["tiled 32 x 16"] / raw["floor 32 x 16"], rel=0.01
    )
    assert float(rows["pairwise 16 x 5, Atari"]["share_of_floor"]) > 0
    assert rows["SB3 DQN, one goal, 32"]["share_of_floor"] == ""
    steps = {name: row["env_steps_per_second"] for name, row in rows.items() if row["env_steps_per_second"]}
    assert {name: pytest.approx(float(value), rel=0.01) for name, value in steps.items()} == {
        name: raw[training] for name, training in throughput.TRAINING.items()
    }
    assert (folder / "throughput.png").stat().st_size > 10_000
    assert "CUDA is not measured" in capsys.readouterr().out


def test_one_thing_at_a_time(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "throughput", "--atari", "--world"])
    known = "--world, --atari, --auxiliary, --pretraining"
    with pytest.raises(SystemExit, match=f"one of {known} at a time, got --atari --world"):
        main()
