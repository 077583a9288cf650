"""The study of auxiliary tasks as a suite."""

import json

import pytest

from benchmarks.auxiliary import WORLDS
from benchmarks.auxiliary_study import AGENTS, AuxiliaryStudyConfig, carry_out, configuration, specs
from benchmarks.report.runs import read
from benchmarks.suite import results
from benchmarks.suite.run import SuiteConfig
from tests.sb3_manygoals.checkpoint.conftest import no_sync

__all__ = ["no_sync"]


def test_who_is_compared_with_whom():
    suite = specs("two-rooms", 10)
    assert len(suite) == len(set(suite)) == 40
    assert [spec.agent for spec in suite[:4]] == [f"two-rooms-{agent}" for agent in AGENTS]
    assert [spec.seed for spec in suite] == [seed for seed in range(10) for _ in range(4)]
    assert {(spec.game, spec.steps) for spec in suite} == {(WORLDS["two_rooms"].game, WORLDS["two_rooms"].steps)}
    assert set(AGENTS) == {"many_goals", "a2c", "pixel_control", "reward_prediction"}


def test_games_seeds_and_agents_can_be_chosen():
    suite = specs("minigrid", 2, 1_000_000, ("MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0"), ("a2c", "many_goals"))
    chosen = [(spec.seed, spec.game, spec.settings["agent"]) for spec in suite]
    assert chosen == [
        (seed, game, agent)
        for seed in (0, 1)
        for game in ("MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0")
        for agent in ("many_goals", "a2c")
    ]
    assert {spec.steps for spec in suite} == {1_000_000}
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        specs("minigrid", 0)
    with pytest.raises(ValueError, match=r"only must name agents of many_goals, .*, got ppo"):
        specs("minigrid", 1, only=("ppo",))


def test_all_agents_have_the_same_settings():
    for part in ("two-rooms", "minigrid"):
        found = [configuration(spec) for spec in specs(part, 1)]
        assert [config.agent for config in found] == list(AGENTS)
        assert len({(c.world, c.game, c.steps, c.learning_rate, c.ent_coef, c.eval_freq, c.weight) for c in found}) == 1
        assert found[0].world == part.replace("-", "_")
        assert found[0].eval_freq == found[0].steps // 40
        assert found[0].capacity == 2000


@pytest.mark.usefixtures("no_sync")
def test_a_part_of_it(tmp_path, capsys):
    config = AuxiliaryStudyConfig(SuiteConfig(root=tmp_path), seeds=2, steps=960, only=("a2c", "many_goals"))
    outcome = config.run()
    assert outcome.complete
    suite = specs("two-rooms", 2, 960, only=("a2c", "many_goals"))
    found = results(suite, tmp_path)
    assert len(found) == 4
    for spec, result in found.items():
        folder = spec.folder(tmp_path)
        assert result.values == json.loads(next(folder.rglob("score.json")).read_text())
        assert result.values["step"] == 960
        again = carry_out(spec, folder)  # nothing is left to do
        assert all(again[name] == value for name, value in result.values.items() if name != "training_seconds")
    known = read([tmp_path])[["agent", "seed", "status"]].values.tolist()
    assert known == [[f"two-rooms-{a}", s, "finished"] for a in ("a2c", "many_goals") for s in (0, 1)]
    config.run()
    assert "4 runs, 4 have finished" in capsys.readouterr().out
