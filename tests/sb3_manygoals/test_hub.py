"""The Hub, without a network: a folder stands for it."""

import inspect
import shutil
import sys
import types
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

from gym_twoRooms import agent_cell
from sb3_manygoals import ManyGoalsDQN

WORLD = "TwoRoomsSwitchSmall-v0"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """
    The module, whose uploads go to a folder.

    A stand-in with the signatures of huggingface_sb3 takes its place, installed or not.
    """

    def push_to_hub(repo_id, filename, commit_message=None, token=None):
        (tmp_path / repo_id).mkdir(parents=True, exist_ok=True)
        shutil.copy(filename, tmp_path / repo_id / Path(filename).name)
        return f"hub/{repo_id}"

    def load_from_hub(repo_id, filename):
        return str(tmp_path / repo_id / filename)

    fake = types.SimpleNamespace(push_to_hub=push_to_hub, load_from_hub=load_from_hub)
    monkeypatch.setitem(sys.modules, "huggingface_sb3", fake)
    monkeypatch.delitem(sys.modules, "sb3_manygoals.hub", raising=False)
    import sb3_manygoals.hub as module

    yield module
    sys.modules.pop("sb3_manygoals.hub")


@pytest.fixture(scope="module")
def model():
    return ManyGoalsDQN(
        "CnnPolicy", gym.make(WORLD), seed=0, device="cpu", learning_starts=30
    ).learn(60)


def test_an_agent_comes_back_with_its_goals(hub, model, tmp_path):
    assert hub.push_to_hub(model, "somebody/agent", WORLD, {"mastery": 0.5}) == "hub/somebody/agent"
    loaded = hub.load_from_hub("somebody/agent", gym.make(WORLD), device="cpu")
    goals = model.goal_buffer.observations
    np.testing.assert_array_equal(loaded.goal_buffer.observations, goals)
    pairs = {"observation": goals, "achieved_goal": goals, "desired_goal": goals[::-1]}
    np.testing.assert_array_equal(
        loaded.predict(pairs, deterministic=True)[0], model.predict(pairs, deterministic=True)[0]
    )
    alone = hub.load_from_hub("somebody/agent", device="cpu")
    assert alone.env is None
    np.testing.assert_array_equal(alone.world.visit_counts, model.world.visit_counts)


def test_the_card_has_metadata_results_and_a_program(hub, model, tmp_path):
    hub.push_to_hub(model, "somebody/agent", WORLD, {"mastery": 0.5})
    _, metadata, text = (tmp_path / "somebody/agent/README.md").read_text().split("---\n", 2)
    read = yaml.safe_load(metadata)
    assert read["library_name"] == "stable-baselines3"
    assert {WORLD, "reinforcement-learning"} <= set(read["tags"])
    (result,) = read["model-index"][0]["results"]
    assert result["dataset"]["name"] == WORLD
    assert result["metrics"] == [{"type": "mastery", "name": "mastery", "value": 0.5}]
    assert f"{len(model.goal_buffer)} goals" in text
    program = text.split("```python\n")[1].split("```")[0]
    exec(compile(program, "card", "exec"), {})


def test_the_program_of_the_card_runs_for_goals_of_the_users_own_kind(hub, tmp_path):
    model = ManyGoalsDQN(
        "CnnPolicy",
        gym.make(WORLD),
        goal_wrapper_kwargs={"goal": agent_cell},
        seed=0,
        learning_starts=100,
    ).learn(60)
    hub.push_to_hub(model, "somebody/agent", WORLD)
    _, text = (tmp_path / "somebody/agent/README.md").read_text().split("```python\n")
    found = {}
    exec(compile(text.split("```")[0], "card", "exec"), found)
    assert found["env"].goal_buffer is found["model"].goal_buffer


def test_bad_input_is_refused_before_anything_is_uploaded(hub, model, tmp_path):
    with pytest.raises(ValueError, match="repo_id must be"):
        hub.push_to_hub(model, "agent", WORLD)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="must know goals"):
        hub.push_to_hub(ManyGoalsDQN.load(tmp_path / "model"), "somebody/agent", WORLD)
    assert not (tmp_path / "somebody").exists()


def test_without_the_integration_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_sb3", None)
    monkeypatch.delitem(sys.modules, "sb3_manygoals.hub", raising=False)
    with pytest.raises(ImportError, match="pip install"):
        import sb3_manygoals.hub  # noqa: F401


@pytest.mark.extras
def test_the_stand_in_takes_what_the_package_of_the_hub_takes(hub):
    """The real package can be called as the module calls it."""
    stand_in = sys.modules.pop("huggingface_sb3")
    real = pytest.importorskip("huggingface_sb3")
    for name in ("push_to_hub", "load_from_hub"):
        ours = inspect.signature(getattr(stand_in, name)).parameters
        theirs = inspect.signature(getattr(real, name)).parameters
        assert list(ours) == list(theirs)[: len(ours)]
        required = [key for key, one in theirs.items() if one.default is one.empty]
        assert set(required) <= set(ours)
