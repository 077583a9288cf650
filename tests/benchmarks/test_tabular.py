import csv
import dataclasses
import json

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.utils import LinearSchedule

import gym_twoRooms  # noqa: F401
from benchmarks.tabular import ByPictures, StateNumbers, TabularConfig, saved_config
from sb3_manygoals.tabular import TabularAllGoals
from tests.benchmarks.command_line import command

SMALL = "TwoRoomsSwitchSmall-v0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = TabularConfig(
        env_id=SMALL,
        total_steps=16_000,
        eval_freq=8_000,
        final_episodes=1,
        exploration_steps=8_000,
        max_episode_steps=20,
        output=tmp_path_factory.mktemp("runs"),
        progress_bar=False,
    )
    return config.run()


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_run_folder_has_what_one_of_mastery_has(folder):
    files = {path.name for path in folder.iterdir()}
    names = ["config.json", "progress.csv", "mastery.csv", "goals.csv", "model.zip", "curve.png", "reaching.gif"]
    assert files >= {*names, "report.html", "checkpoints"}
    curve = rows(folder / "mastery.csv")
    assert [int(row["step"]) for row in curve] == [0, 8_000, 16_000]
    assert float(curve[0]["greedy"]) < 0.1
    assert float(curve[2]["greedy"]) > float(curve[0]["greedy"])
    goals = rows(folder / "goals.csv")
    assert len(goals) == 220
    assert {row["updates"] for row in goals} == {"16000"}
    rate = np.mean([float(row["greedy_reached"]) for row in goals])
    assert f"{rate:.4f}" in (folder / "report.html").read_text()


def test_a_run_can_be_resumed_on_the_command_line(folder):
    before = (folder / "goals.csv").read_text()
    config = saved_config(folder)
    assert (config.env_id, config.resume) == (SMALL, folder)
    done = command("tabular", "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stdout
    assert (folder / "goals.csv").read_text() == before
    assert len(json.loads((folder / "config.json").read_text())["resumed"]) == 1
    wrong = command("mastery", "--resume", str(folder))
    assert wrong.returncode != 0
    assert "is not the folder of a run" in wrong.stderr


def test_the_saved_table_acts_on_pictures_as_on_states(folder):
    model = TabularAllGoals.load(folder / "model.zip")
    mdp = gym.make(SMALL).unwrapped.mdp
    states, goals = np.arange(220), np.arange(220)[::-1].copy()
    on_pictures, _ = ByPictures(model, mdp).predict(
        {"observation": mdp.observations[states], "desired_goal": mdp.observations[goals]}, deterministic=True
    )
    on_states, _ = model.predict({"observation": states, "desired_goal": goals}, deterministic=True)
    np.testing.assert_array_equal(on_pictures, on_states)
    assert len(np.unique(on_states)) > 1


def test_numbers_of_states_are_those_of_the_world():
    plain, numbered = (gym.make_vec(SMALL, num_envs=3, autoreset_mode="Disabled") for _ in range(2))
    numbered = StateNumbers(numbered)
    assert numbered.observation_space.contains(numbered.reset(seed=1)[0])
    pictures, _ = plain.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(50):
        actions = rng.integers(5, size=3)
        pictures, numbers = plain.step(actions)[0], numbered.step(actions)[0]
        np.testing.assert_array_equal(numbers, plain.unwrapped.mdp.states_of(pictures))
    states, _ = numbered.reset(options={"reset_mask": np.array([True, False, False])})
    np.testing.assert_array_equal(states[1:], numbers[1:])


def test_settings_reach_the_table():
    config = TabularConfig(env_id=SMALL, n_envs=3, learning_rate=0.4, decay=True, gamma=0.9, max_episode_steps=7)
    model = config.make()
    assert (model.n_envs, model.gamma, model.lr_schedule(0.5)) == (3, 0.9, 0.2)
    assert isinstance(model.learning_rate, LinearSchedule)
    assert model.env.goal_episodes.max_episode_steps == 7
    assert dataclasses.replace(config, decay=False).make().lr_schedule(0.5) == 0.4
