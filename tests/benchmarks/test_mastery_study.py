from typing import get_args

import gymnasium as gym
import pytest

from benchmarks.mastery import SELECTORS, Agent, MasteryConfig, make
from benchmarks.mastery_study import PARTS, carry_out, configuration, specs
from benchmarks.suite import Spec
from sb3_manygoals import PAPER, PlannedTargets

HERE = {"progress_bar": False}


def found(part, **options):
    return {spec.agent.removeprefix(f"{part}-"): configuration(spec) for spec in specs(part, seeds=1, **options)}


def built(config):
    world = config.world
    return make(config, world, world.tables)[0]


@pytest.mark.parametrize("part", PARTS)
def test_specs_are_told_apart_and_are_of_worlds_that_there_are(part):
    six = specs(part, seeds=6)
    assert len({spec.name for spec in six}) == len(six) == 6 * len(found(part))
    assert [spec.seed for spec in six] == sorted(spec.seed for spec in six)
    assert all(configuration(spec).world.id in gym.registry or spec.game.startswith("MiniGrid") for spec in six)
    assert {spec.steps for spec in specs(part, 1, steps=7)} == {7}
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        specs(part, 0)


def test_all_agents_and_rules_are_on_the_small_map():
    configs = found("agents")
    assert configs.keys() == {*get_args(Agent), *(name.replace("_", "-") for name in SELECTORS)} - {"uniform"}
    assert {config.env_id for config in configs.values()} == {"TwoRoomsSwitchSmall-v0"}
    assert configs["default"] == MasteryConfig(
        env_id="TwoRoomsSwitchSmall-v0", total_steps=120_000, eval_freq=10_000, progress_bar=False
    )


def test_the_papers_experiments_are_its_recipe():
    first, second = found("paper"), found("generalization")
    assert {config.total_steps for config in first.values()} == {3_000_000}
    assert {config.env_id for config in first.values()} == {"TwoRoomsSwitch-v0"}
    del first["table"]  # which generalizes to nothing, by construction
    for name, config in first.items():
        assert second[name] == MasteryConfig(**vars(config) | {"held_out": 0.2})
    on_policy = built(first["on-policy"])
    assert (on_policy.targets.goal_sampling, on_policy.batch_size, on_policy.n_envs) == ("behavior", 16, 1)
    assert on_policy.buffer_size == PAPER["buffer_size"]
    assert first["learning-progress"].selection == "learning_progress"


def test_each_ablation_changes_the_default_otherwise():
    models = {
        name: built(MasteryConfig(**vars(config) | {"env_id": "TwoRoomsSwitchSmall-v0", "n_envs": 2}))
        for name, config in found("ablations").items()
    }
    assert isinstance(models["default"].targets, PlannedTargets)

    def looks(model):
        return str(model.policy), str(vars(model.targets)), model.policy.ema_decay, model.env.goal_tracker.reset_worlds

    seen = [tuple(part for part in looks(model)) for model in models.values()]
    assert len(set(seen)) == len(models) == 10
    assert models["no-best-action-loss"].targets.best_weight == 0.0
    assert models["no-near-weights"].targets.near_decay == 1.0
    assert models["worlds-reset"].env.goal_tracker.reset_worlds is True
    assert models["worlds-not-reset"].env.goal_tracker.reset_worlds is False


def test_worlds_have_their_own_steps_and_maps():
    configs = found("worlds")
    assert (configs["small"].total_steps, configs["locks"].total_steps, configs["taxi"].total_steps) == (
        50_000,
        500_000,
        200_000,
    )
    assert configs["locks"].map == "locks"
    assert configs["door-key"].env_id == "MiniGrid-DoorKey-6x6-v0"


def test_a_run_gives_the_numbers_of_its_summary(tmp_path):
    settings = {"agent": "table", "n_envs": 4, "eval_steps": 30, "final_episodes": 1}
    spec = Spec("benchmarks.mastery_study:carry_out", "agents-table", "TwoRoomsSwitchSmall-v0", 0, 400, settings)
    values = carry_out(spec, tmp_path)
    assert (tmp_path / "agents-table" / "run" / "report.html").is_file()
    assert values.keys() >= {"greedy", "epsilon", "ceiling", "known", "reachable", "training_seconds", "steps"}
    assert (values["steps"], values["reachable"]) == (400, 220)
    assert 0 <= values["greedy"] <= values["greedy_high"]
