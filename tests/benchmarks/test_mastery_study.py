from dataclasses import replace

import pytest

from benchmarks.mastery import PRESETS
from benchmarks.mastery_study import configuration, specs
from benchmarks.tabular import TabularConfig

HERE = {"progress_bar": False, "eval_freq": 250_000}  # what every run of the study has of its own


def test_the_papers_first_experiment_is_that_of_its_presets_for_six_seeds():
    found = {(spec.agent, spec.seed): configuration(spec) for spec in specs("paper", seeds=6)}
    assert len(found) == 4 * 6
    for seed in range(6):
        assert found["paper-table", seed] == replace(TabularConfig(), seed=seed, **HERE)
        for agent, preset in (
            ("uniform", "paper"),
            ("learning-progress", "paper-learning-progress"),
            ("on-policy", "paper-on-policy"),
        ):
            assert found[f"paper-{agent}", seed] == replace(PRESETS[preset], seed=seed, **HERE)


def test_the_papers_second_experiment_holds_a_fifth_of_the_goals_out_of_the_same_agents():
    first = {spec.agent.removeprefix("paper-"): configuration(spec) for spec in specs("paper", seeds=1)}
    second = {spec.agent.removeprefix("generalization-"): configuration(spec) for spec in specs("generalization", seeds=1)}
    del first["table"]  # which generalizes to nothing, by construction
    assert second == {agent: replace(config, held_out=0.2) for agent, config in first.items()}


def test_the_fast_preset_is_measured_in_both_experiments():
    everything, held_out = (configuration(spec) for spec in specs("fast", seeds=1))
    assert everything == replace(PRESETS["fast"], progress_bar=False)
    assert held_out == replace(everything, held_out=0.2)
    assert everything.total_steps == 500_000


def test_the_ablations_of_the_fast_preset_change_its_agent_alone_each_otherwise():
    fast = replace(PRESETS["fast"], progress_bar=False)
    changed = [configuration(spec) for spec in specs("fast-ablations", seeds=1)]
    assert [replace(config, agent=fast.agent) for config in changed] == [fast] * len(changed)
    agents = [fast.agent, *(config.agent for config in changed)]
    assert len({repr(agent) for agent in agents}) == 1 + len(changed) == 6
    for config in changed:
        config.agent.make(config.env_id, config.total_steps, 0, "cpu")  # whose settings go together


@pytest.mark.parametrize("part", ["agents", "held-out", "ablations"])
def test_the_other_parts_are_on_the_small_map(part):
    configs = [configuration(spec) for spec in specs(part, seeds=1)]
    assert {config.env_id for config in configs} == {"TwoRoomsSwitchSmall-v0"}
    assert max(config.total_steps for config in configs) <= 120_000
