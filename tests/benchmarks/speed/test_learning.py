from unittest.mock import Mock

import pandas as pd
import pytest

from benchmarks.speed import learning
from benchmarks.speed.learning import LearningConfig
from benchmarks.worlds import SettingError
from sb3_manygoals import GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from tests.benchmarks.command_line import command, printed


def test_training_is_timed_beside_the_world_alone(tmp_path):
    options = ("--env-id=TwoRoomsSwitchSmall-v0", "--total-steps=2000", "--most-goals=20")
    printed("speed-learning", *options, "--seeds", "0", "1", f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    rows = pd.read_csv(folder / "learning.csv")
    assert rows["seed"].tolist() == [0, 1]
    assert (rows["seconds"] > rows["seconds_alone"]).all()
    assert (rows["seconds_alone"] >= 0).all()
    assert (rows["updates"] > 0).all()
    assert rows["greedy"].between(0, 1).all()


def test_the_world_alone_notes_no_goals(tmp_path, monkeypatch):
    """What the agent's wrapper does at each step is a part of its training."""

    def note(self, *args):
        raise AssertionError("the wrapper stepped")

    monkeypatch.setattr(GoalBufferWrapper, "step", note)
    monkeypatch.setattr(VecGoalBufferWrapper, "step_wait", note)
    monkeypatch.setattr(ManyGoalsDQN, "learn", lambda self, steps: self)
    monkeypatch.setattr(learning, "evaluate_mastery", lambda *args, **kwargs: Mock(rate=0.5))
    for env_id in ("FrozenLake-v1", "TwoRoomsSwitchSmall-v0"):
        LearningConfig(env_id=env_id, total_steps=50, seeds=(0,), output=tmp_path).run()
    assert len(list(tmp_path.glob("*/learning.csv"))) == 2


def test_a_world_without_tables_is_refused_before_it_is_trained(tmp_path):
    said = command("speed-learning", "--env-id", "CartPole-v1", "--output", str(tmp_path))
    assert "CartPole-v1 cannot be written out: " in said.stderr
    assert "Use the command mastery" in said.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--seed", "--resume", "--checkpoint-minutes"])
def test_options_without_a_meaning_are_refused(option):
    said = command("speed-learning", option, "5")
    assert said.returncode != 0
    assert "Unrecognized" in said.stderr


def test_a_table_is_refused_before_it_is_trained(tmp_path):
    with pytest.raises(SettingError, match="agent table observes numbers of states"):
        LearningConfig(agent="table", output=tmp_path).run()
    assert not list(tmp_path.iterdir())
