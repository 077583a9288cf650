import pandas as pd
import pytest

from benchmarks.speed.learning import LearningConfig
from benchmarks.worlds import SettingError
from tests.benchmarks.command_line import command, printed


def test_training_is_timed_beside_the_world_alone(tmp_path):
    options = ("--env-id=TwoRoomsSwitchSmall-v0", "--total-steps=1000", "--most-goals=20")
    printed("speed-learning", *options, "--seeds", "0", "1", f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    rows = pd.read_csv(folder / "learning.csv")
    assert rows["seed"].tolist() == [0, 1]
    assert (rows["seconds"] > rows["seconds_alone"]).all()
    assert (rows["seconds_alone"] >= 0).all()
    assert (rows["updates"] > 0).all()
    assert rows["greedy"].between(0, 1).all()


@pytest.mark.parametrize("option", ["--seed", "--resume", "--checkpoint-minutes"])
def test_options_without_a_meaning_are_refused(option):
    said = command("speed-learning", option, "5")
    assert said.returncode != 0
    assert "Unrecognized" in said.stderr


def test_a_table_is_refused_before_it_is_trained(tmp_path):
    with pytest.raises(SettingError, match="agent table observes numbers of states"):
        LearningConfig(agent="table", output=tmp_path).run()
    assert not list(tmp_path.iterdir())
