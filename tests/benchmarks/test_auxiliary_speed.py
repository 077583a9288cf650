"""What auxiliary tasks cost: that it is measured at all, and of a full buffer."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("lz4")

from benchmarks import auxiliary, auxiliary_speed
from benchmarks.auxiliary import AuxiliaryConfig
from benchmarks.auxiliary_speed import FIGURES, AuxiliarySpeedConfig, fill, show_buffers
from sb3_manygoals.atari import make_atari_vec_env
from sb3_manygoals.auxiliary import EpisodeBuffer
from sb3_manygoals.auxiliary.frame_store import FrameStore


def test_the_bar_is_a_ratio_of_times():
    values = FIGURES[0].values({"a2c": [300.0, 400.0], "many_goals": [150.0, 100.0]})
    np.testing.assert_allclose(values, [2.0, 4.0])
    assert FIGURES[0].verdict(np.array([1.9, 1.9])) == "yes"
    assert FIGURES[0].verdict(np.array([2.1, 2.1])) == "no"


def test_a_buffer_is_filled_with_whole_games():
    env = make_atari_vec_env("Breakout", 2, seed=0)
    shape = env.observation_space.shape
    compressed = EpisodeBuffer(env.observation_space, 3, n_stack=4, frame_store=FrameStore((1, *shape[1:])))
    plain = EpisodeBuffer(env.observation_space, 3, n_stack=4)
    scores = []
    for episodes in (compressed, plain):
        env.seed(0)
        fill(episodes, env)
        assert len(episodes) == 3
        scores.append(episodes.returns.tolist())
    env.close()
    assert scores[0] == scores[1]
    one, other = (episodes.sample(4, 5, np.random.default_rng(1)) for episodes in (compressed, plain))
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert compressed.nbytes < plain.nbytes / 5


def test_everything_is_measured(tmp_path, capsys):
    config = AuxiliarySpeedConfig(
        rounds=1, games=("Breakout",), episodes=2, training_steps=20, n_envs=4, draws=2, threads=(1,), output=tmp_path
    )
    folder = config.run()
    with (folder / "auxiliary-1-threads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    contenders = ["a2c", "many_goals", "pixel_control", "reward_prediction", "draw, 16 of 5", "draw, 4 of 20"]
    assert [row["contender"] for row in rows] == [*contenders, "draw, 80 rewards"]
    assert len(rows) == 7
    assert all(float(row["value"]) > 0 for row in rows)
    with (folder / "buffer.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["game"], row["episodes"]) == ("Breakout", "2")
    assert int(row["bytes"]) == pytest.approx(float(row["bytes_per_frame"]) * int(row["frames"]), rel=0.01)
    assert float(row["times_smaller"]) == pytest.approx(84 * 84 / float(row["bytes_per_frame"]), rel=0.01)
    assert json.loads((folder / "config.json").read_text())["versions"].keys() >= {"ale-py", "lz4"}
    text = capsys.readouterr().out
    assert "time of a step: A2C + many goals / A2C" in text
    assert "<= 2" in text


def test_the_auxiliary_losses_are_computed_in_it():
    """Each of them, at every step of the optimizer but none before: a full buffer is there from the beginning."""
    config = AuxiliarySpeedConfig(games=("Pong",), training_steps=20, n_envs=2)
    episodes, _ = auxiliary_speed.filled("Breakout", 1, 2)
    for agent in ("many_goals", "pixel_control", "reward_prediction"):
        model, tasks = auxiliary.make(AuxiliaryConfig(agent=agent, game="Breakout", n_envs=2))
        found = auxiliary_speed.contenders(config, {agent: (model, tasks)}, episodes)
        assert found[0].measure() > 0
        assert found[0].measure() > 0
        assert tasks[agent].n_updates == 4
        assert model.num_timesteps == 40
        model.env.close()


def test_too_large_is_said(capsys):
    row = {"game": "Pong", "episodes": 1, "frames": 10, "bytes": 3 * 2**30, "bytes_per_frame": 1.0, "times_smaller": 1.0}
    show_buffers([row])
    assert "no" in capsys.readouterr().out
    show_buffers([row | {"bytes": 2**30}])
    assert "yes" in capsys.readouterr().out


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="games must name at least one game"):
        AuxiliarySpeedConfig(games=())
    with pytest.raises(ValueError, match="draws must be at least 1, got 0"):
        AuxiliarySpeedConfig(draws=0)
