import pytest
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks import changes
from benchmarks.cases import Case
from benchmarks.changes import AS_IT_IS, UNDONE, ChangesConfig
from sb3_manygoals import ManyGoalsDQN, linear
from sb3_manygoals.many_goals_dqn import many_goals_dqn
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.optim import ForeachRMSprop

TINY = Case("pairwise", 4, 3, "batch", world="TwoRoomsSwitchSmall-v0")


@pytest.fixture
def undo(monkeypatch):
    """Undoes a change until the end of the test."""
    for owner, name in (
        (many_goals_dqn, "keep_freed_memory"),
        (linear, "BY_ONEDNN"),
        (ManyGoalsDQN, "goal_losses"),
        (ForeachRMSprop, "step"),
        (PaddedCNN, "forward"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return lambda name: UNDONE[name]()


def test_each_change_is_undone(undo):
    model = TINY.learner()
    batch = model.replay_buffer.sample(4)
    goals, ids, met = model._sample_goals(batch)
    assert met is not None
    rows = []
    model.q_net_target.trunk.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    before = model.goal_losses(batch, goals, ids, met)
    assert rows == [4 + 3 - len(met)]
    undo("no shared passes")
    th.testing.assert_close(model.goal_losses(batch, goals, ids, met), before)
    assert rows[1:] == [4 + 3]

    linear.BY_ONEDNN = True
    undo("products by MKL")
    assert not linear.BY_ONEDNN
    undo("RMSProp as SB3's")
    assert ForeachRMSprop.step is RMSpropTFLike.step
    layouts = []
    cnn = model.q_net.trunk[1]
    cnn.net[0].register_forward_hook(lambda _, inputs, __: layouts.append(inputs[0].stride()))
    stacks = th.rand(2, *model.policy.q_net.trunk[0].space.shape)
    found = cnn(stacks)
    undo("pictures in their own layout")
    th.testing.assert_close(cnn(stacks), found)
    assert layouts[0][1] == 1
    assert layouts[1] == stacks.stride()
    kept = many_goals_dqn.keep_freed_memory
    undo("freed memory given back")
    assert many_goals_dqn.keep_freed_memory is not kept
    many_goals_dqn.keep_freed_memory()


def test_all_are_measured_in_processes_of_their_own(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(changes, "CASES", (TINY,))
    monkeypatch.setattr(changes, "UNDONE", {"products by MKL": changes.multiply_by_mkl})
    folder = ChangesConfig(rounds=1, seconds=0.01, output=tmp_path).run()
    lines = (folder / "changes.csv").read_text().splitlines()
    assert [line.split(",")[1:-2] for line in lines[1:]] == [
        ['"pairwise 4 x 3', ' as it is"'],
        ['"pairwise 4 x 3', ' products by MKL"'],
    ]
    assert f"products by MKL / {AS_IT_IS}" in capsys.readouterr().out
    assert linear.mkl_is_slow() == linear.BY_ONEDNN
