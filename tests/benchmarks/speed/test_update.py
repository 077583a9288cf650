from types import SimpleNamespace

import gymnasium as gym
import pandas as pd
import pytest
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks.speed import update
from benchmarks.speed.scenarios import WORLD, Scenario, sb3_dqn, tiled_losses
from benchmarks.speed.update import RATIOS, SCENARIOS, UpdateConfig
from sb3_manygoals import PAPER, ManyGoalsDQN

SMALL = "TwoRoomsSwitchSmall-v0"


@pytest.mark.parametrize("goal_sampling", ["uniform", "segments"])
def test_tiled_and_pairwise_are_the_same_loss_and_gradient(goal_sampling):
    model = Scenario("pairwise", 8, 5, goal_sampling, world=SMALL).learner()
    with th.no_grad():
        model.q_net_target.head.bias.add_(th.randn(5))
    batch = model.targets.sample(8, 5, model.rng)
    gradients = []
    for losses in (
        model.targets.losses(batch, model.targets.target_values(batch)),
        tiled_losses(model, batch),
    ):
        model.q_net.zero_grad()
        losses.mean().backward()
        gradients.append(
            (losses.detach(), *(parameter.grad.clone() for parameter in model.q_net.parameters()))
        )
    for pairwise, tiled in zip(*gradients, strict=True):
        th.testing.assert_close(pairwise, tiled, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "goals"), {"pairwise": 5, "tiled": 5, "SB3 DQN": 1, "SB3 DQN + HER": 1}.items()
)
def test_every_kind_of_update_learns(kind, goals):
    model, make = Scenario(kind, 4, goals, world=SMALL).update()
    before = [parameter.clone() for parameter in model.q_net.parameters()]
    sizes = []
    step = model.policy.optimizer.step
    model.policy.optimizer.step = lambda: sizes.append(0) or step()
    make()
    # The optimizer has taken one step.
    assert len(sizes) == 1
    assert not any(th.equal(a, b) for a, b in zip(before, model.q_net.parameters(), strict=True))
    if not kind.startswith("SB3"):
        assert (len(model.goal_buffer), model.goal_batch_size, model.batch_size) == (220, goals, 4)


def test_each_update_counts_once(monkeypatch):
    speed = Scenario("pairwise", 4, 5, world=SMALL).speed(seconds=3.0)
    updates = []
    step = RMSpropTFLike.step
    monkeypatch.setattr(RMSpropTFLike, "step", lambda self: updates.append(0) or step(self))
    # An update takes a second of this clock.
    monkeypatch.setattr("time.perf_counter", lambda: float(len(updates)))
    assert (speed(), len(updates)) == (1.0, 3)


def test_the_work_of_a_gpu_is_waited_for(monkeypatch):
    waited = []
    learner = SimpleNamespace(device=th.device("cuda"))
    monkeypatch.setattr(Scenario, "update", lambda self: (learner, lambda: None))
    monkeypatch.setattr(th.cuda, "synchronize", waited.append)
    Scenario("pairwise", 4, 5, world=SMALL, device="cuda").speed(seconds=0.0)()
    assert waited == [th.device("cuda")]


def test_sb3_has_the_same_network_up_to_the_head():
    ours = ManyGoalsDQN("CnnPolicy", gym.make(WORLD), **PAPER).q_net
    theirs = sb3_dqn(WORLD, 16, relabel=False).q_net.features_extractor
    sizes = [
        sum(parameter.numel() for parameter in module.parameters())
        for module in (ours, theirs, ours.head)
    ]
    assert sizes[1] == sizes[0] - sizes[2]


def test_scenarios_are_named_apart_and_every_ratio_is_about_some():
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    assert [
        ratio.title for ratio in RATIOS if not ratio.is_measured(pd.DataFrame(columns=names))
    ] == []
    assert Scenario("pairwise", 32, 16, device="cuda").name == "pairwise 32 x 16, cuda"
    atari = Scenario("pairwise", 80, 16, "segments", world="frames").learner()
    batch = atari.targets.sample(80, 16, atari.rng)
    assert (batch.observations.shape, atari.action_space.n) == ((80, 4, 84, 84), 18)
    # All goals are met in the batch.
    assert set(batch.goal_ids.tolist()) <= set(batch.samples.next_goal_ids.tolist())


def test_the_whole_run(tmp_path, capsys, monkeypatch):
    scenarios = (Scenario("pairwise", 32, 16, world=SMALL), Scenario("tiled", 32, 16, world=SMALL))
    monkeypatch.setattr(update, "SCENARIOS", scenarios)
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    folder = UpdateConfig(rounds=3, seconds=0.01, threads=(1,), output=tmp_path).run()
    raw = pd.read_csv(folder / "update-1-threads.csv")
    assert raw["contender"].tolist() == ["pairwise 32 x 16", "tiled 32 x 16"] * 3
    printed = capsys.readouterr().out
    assert "CUDA is not measured" in printed
    assert "updates/s: pairwise / tiled, 32 x 16" in printed
