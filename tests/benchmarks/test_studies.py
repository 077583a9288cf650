"""The studies as suites: their runs, and the results of a few."""

import dataclasses
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import A2C

from benchmarks.agents.mastery import make
from benchmarks.auxiliary import AuxiliaryConfig, paper_score
from benchmarks.mastery import MasteryConfig
from benchmarks.pretraining import PretrainingConfig
from benchmarks.report.runs import read
from benchmarks.scores import normalized, read_table
from benchmarks.studies import auxiliary, games, mastery, minatar, study, tasks
from benchmarks.studies.games import BetaStudyConfig, GamesStudyConfig
from benchmarks.studies.mastery import MasteryStudyConfig
from benchmarks.studies.minatar import MinAtarStudyConfig
from benchmarks.studies.pretraining import PretrainingStudyConfig
from benchmarks.studies.study import carry_out, configuration, mean_return, steps_to_half
from benchmarks.suite import Result, Spec, results
from benchmarks.tasks import TasksConfig
from benchmarks.worlds import World
from tests.benchmarks.command_line import command, printed, rows_of
from tests.sb3_manygoals.checkpoint.resuming import same


def found(part, **options):
    """Return the settings of the first runs of a part of the study of mastery, by agent."""
    return {
        spec.agent.removeprefix(f"{part}-"): configuration(spec)
        for spec in mastery.PARTS[part].specs(1, **options)
    }


PARTS = {
    **{f"mastery, {name}": part.specs for name, part in mastery.PARTS.items()},
    **{f"auxiliary, {name}": part.specs for name, part in auxiliary.PARTS.items()},
    "pretraining": PretrainingStudyConfig().study.specs,
    "pretraining, torch's weights": PretrainingStudyConfig(
        pretrain_steps=100, ortho_init=False
    ).study.specs,
    **{f"tasks, {name}": part.specs for name, part in tasks.PARTS.items()},
    **{f"minatar, {name}": part.specs for name, part in minatar.PARTS.items()},
    "games": GamesStudyConfig().study.specs,
    "games, beta": BetaStudyConfig().study.specs,
}
"""Functions from a number of seeds to the specs of every part."""


@pytest.mark.parametrize("part", PARTS)
def test_the_runs_of_every_part_are_valid_and_told_apart(part):
    one = PARTS[part](1)
    two = PARTS[part](2)
    assert len({spec.name for spec in two}) == len(two) == 2 * len(one)
    assert [spec.seed for spec in two] == [0] * len(one) + [1] * len(one)
    for spec in one:
        config = configuration(spec)
        is_mastery = isinstance(config, MasteryConfig | TasksConfig)
        world = config.env_id if is_mastery else config.game
        steps = config.total_steps if is_mastery else config.steps
        is_game = world in (*games.GAMES, *minatar.GAMES)
        assert world in gym.registry or world.startswith("MiniGrid") or is_game
        assert (steps, config.seed) == (spec.steps, 0)
        assert spec.carry_out == f"benchmarks.studies.{part.partition(',')[0]}:carry_out"


def test_every_agent_of_mastery_can_be_made_and_each_ablation_differs():
    small = World("TwoRoomsSwitchSmall-v0")
    for part in ("agents", "paper", "ablations"):
        models = [
            make(replace(config, env_id=small.id, n_envs=2), small, small.tables)[0]
            for config in found(part).values()
        ]
    seen = {
        (
            str(model.policy),
            str(vars(model.targets)),
            model.policy.ema_decay,
            model.env.goal_tracker.reset_worlds,
        )
        for model in models
    }
    assert len(seen) == len(models) == 10


def test_the_papers_experiments_are_its_recipe():
    first = found("paper")
    second = found("generalization")
    assert {(config.total_steps, config.env_id) for config in first.values()} == {
        (3_000_000, "TwoRoomsSwitch-v0")
    }
    # A table generalizes to nothing.
    del first["table"]
    assert second == {name: replace(config, held_out=0.2) for name, config in first.items()}
    # Agents in games have the paper's settings, and the names of its tables.
    columns = {
        column
        for study in ("auxiliary", "pretraining")
        for column in read_table(f"paper_{study}_scores")
    }
    suite = GamesStudyConfig(seeds=1, games=("Qbert",)).specs()
    assert {spec.agent.replace("-", "_") for spec in suite} == columns
    for spec in suite:
        paper = PretrainingConfig() if spec.agent.endswith("-pretraining") else AuxiliaryConfig()
        agent = spec.agent.removesuffix("-pretraining").replace("-", "_")
        assert configuration(spec) == replace(paper, agent=agent, game="Qbert", progress_bar=False)
    assert len(GamesStudyConfig().specs()) == 6 * 49 * 3
    assert len(BetaStudyConfig().specs()) == 8 * 7 * 3
    one = configuration(BetaStudyConfig(only=("beta-0.02",)).specs()[0])
    assert one == AuxiliaryConfig(game="Atlantis", weight=0.02, progress_bar=False)


def test_the_control_of_the_games_is_run_only_if_it_is_asked_for():
    games = {"seeds": 1, "games": ("Pong",)}
    assert len(GamesStudyConfig(**games).specs()) == 6
    (asked,) = GamesStudyConfig(**games, only=("shuffled-goals",)).specs()
    config = configuration(asked)
    assert (asked.agent, config.agent, config.weight) == ("shuffled-goals", "shuffled_goals", None)
    assert paper_score(config) is None
    assert GamesStudyConfig(**games).study.has(asked)


def test_games_agents_and_steps_can_be_chosen():
    chosen = auxiliary.PARTS["minigrid"].specs(2, 1_000, ("X-v0", "Y-v0"), ("a2c", "many_goals"))
    expected = [
        (seed, game, agent, 1_000)
        for seed in (0, 1)
        for game in ("X-v0", "Y-v0")
        for agent in ("many_goals", "a2c")
    ]
    assert [
        (spec.seed, spec.game, spec.settings["agent"], spec.steps) for spec in chosen
    ] == expected
    for steps, before, starts in ((20_000, 2_000, 1_000), (1_000, 100, 50)):
        config = configuration(
            GamesStudyConfig(seeds=1, steps=steps, only=("many-goals-pretraining",)).specs()[0]
        )
        assert config.steps == steps
        assert config.pretrain_steps == before
        assert config.learning_starts == starts
    # Each part of the study of mastery takes worlds of the user's.
    own = MasteryStudyConfig(seeds=2, games=("own:Own-v0",), only=("default",), steps=600)
    assert [(spec.game, spec.seed) for spec in own.specs()] == [
        ("own:Own-v0", 0),
        ("own:Own-v0", 1),
    ]
    assert all(own.study.has(spec, 600) for spec in own.specs())
    assert configuration(own.specs()[0]).env_id == "own:Own-v0"
    # Goals in a file are those of all agents, wherever their runs are.
    own = dataclasses.replace(own, eval_goals=Path("goals.npy"))
    assert all(own.study.has(spec, 600) for spec in own.specs())
    assert {spec.settings["eval_goals"] for spec in own.specs()} == {str(Path.cwd() / "goals.npy")}
    # The baseline is not run again for other pre-training.
    scratch, other = (
        set(PretrainingStudyConfig(pretrain_steps=n, steps=1_000, seeds=1).specs())
        for n in (100, 200)
    )
    assert {spec.settings["agent"] for spec in scratch & other} == {"none"}


def test_agents_are_compared_where_they_and_the_base_have_the_same_seeds():
    runs = MinAtarStudyConfig().specs()
    search = MinAtarStudyConfig(part="search", seeds=1).specs()
    assert len(runs) == 7 * 5 * 5
    assert {spec.game for spec in search} == {"asterix", "breakout"}
    assert len(search) == 13 * 2
    assert {configuration(spec).learning_rate for spec in (*runs, *search)} == {8e-3}
    assert {configuration(spec).kind.cell for spec in runs} == {1}
    finished = []
    for spec in MinAtarStudyConfig(
        seeds=3, games=("freeway", "asterix"), only=("a2c", "many-goals")
    ).specs():
        ours = spec.agent == "many-goals"
        if (ours, spec.game, spec.seed) == (True, "freeway", 2):
            # This run has not finished: its seed does not count in any game.
            continue
        known = {"asterix": 0.57 + 18.43 * (0.5 + 0.25 * ours), "freeway": 0.37 + 46.63 * 0.5}
        score = known[spec.game]
        finished.append(Result(spec, {"score": score, "mean_return": score}, 1, 1.0))
    first, second = MinAtarStudyConfig().compare(finished).to_dict("records")
    assert first["agent"] == "many-goals"
    assert first["games"] == 2
    assert first["seeds"] == 2
    assert second["agent"] == "a2c"
    assert (first["score"], second["score"]) == (pytest.approx(0.625), pytest.approx(0.5))
    # Many goals are always better in one game, and the other is a tie.
    assert first["score_better"] == pytest.approx(0.75)
    assert first["mean_return_freeway"] == pytest.approx(0.37 + 46.63 * 0.5)
    assert MinAtarStudyConfig().compare([]).empty
    assert MinAtarStudyConfig().compare(finished[:1])[
        ["agent", "games", "seeds"]
    ].values.tolist() == [["a2c", 1, 1]]


@pytest.mark.parametrize(
    ("make_specs", "message"),
    [
        (lambda: mastery.PARTS["paper"].specs(0), "seeds must be at least 1, got 0"),
        (
            lambda: mastery.PARTS["paper"].specs(1, only=("table", "dqn")),
            "only must be of uniform, .*, table, got dqn",
        ),
        (
            GamesStudyConfig(steps=9).specs,
            "steps must be at least 10, of which one is pre-training's, got 9",
        ),
        (GamesStudyConfig(games=("Hero",)).specs, "games must be of Alien, .*, got Hero"),
    ],
)
def test_what_makes_no_sense_is_refused(make_specs, message):
    with pytest.raises(ValueError, match=message):
        make_specs()


def test_settings_are_checked_before_the_first_run(tmp_path):
    """The agent without pre-training could have these, and would be run for hours before."""
    for options, said in (
        (("minatar-study", "--steps", "100000"), "steps must be more than pretrain_steps, 100000"),
        (("pretraining-study", "--steps", "1000"), "cannot be run: steps must be more than"),
        (("pretraining-study", "--pretrain-steps", "0"), "cannot be run: learning_starts must be"),
    ):
        for dry in ((), ("--dry-run",)):
            done = command(*options, *dry, "--root", str(tmp_path / "runs"))
            assert said in done.stderr
            assert not list(tmp_path.iterdir())
    # Without the agents of pre-training, there may be fewer steps than it takes.
    few = ("minatar-study", "--only", "a2c", "--steps", "50000", "--seeds", "1")
    assert "would run a2c-" in printed(*few, "--dry-run", "--root", str(tmp_path / "runs"))


def write(root, spec, score, **values):
    """Write the result of a finished run."""
    spec.write(root)
    Result(spec, {"score": score, "mean_return": score, **values}, 1.0, 1).write(spec.folder(root))


def test_rates_are_of_agents_of_the_study_by_their_short_or_long_names(tmp_path):
    def dry(*options):
        return command(*options, "--dry-run", "--seeds", "1", "--root", str(tmp_path))

    study = ("mastery-study", "--only", "default", "td", "--steps-per-second")
    # A rate of an agent that is not run is no mistake.
    done = dry(*study, "default", "500", "agents-td", "200", "paper", "7")
    assert "agents-default: 1 runs, 120,000 steps, 500 steps/s, " in done.stdout
    assert "agents-td: 1 runs, 120,000 steps, 200 steps/s, " in done.stdout
    assert "no estimate" not in done.stdout
    for name in ("TD", "agents-TD"):
        done = dry(*study, name, "200")
        assert done.returncode == 1
        assert done.stderr.startswith("error: agents of steps_per_second must be of default, ")
        assert done.stderr.endswith(f", got {name}")
    done = dry("games-study", "--games", "Pong", "--steps-per-second", "A2C", "723")
    known = "a2c, pixel-control, reward-prediction, many-goals, reward-prediction-pretraining, "
    assert f"must be of {known}many-goals-pretraining, shuffled-goals, got A2C" in done.stderr


def test_a_short_run_gives_a_long_one_its_rate(tmp_path):
    # Settings of this agent depend on the steps.
    options = {"seeds": 1, "games": ("Pong",), "only": ("many-goals-pretraining",)}
    for spec in GamesStudyConfig(steps=2_000, **options).specs():
        write(tmp_path, spec, 5.0)
    study = ("games-study", "--games", "Pong", "--only", *options["only"], "--steps", "3000")
    output = printed(*study, "--seeds", "2", "--dry-run", "--root", str(tmp_path))
    assert "2 runs, 6,000 steps, 2e+03 steps/s in other runs, of 2,000 steps, " in output
    assert "done after " in output


def test_a_narrower_call_compares_all_that_has_finished(tmp_path):
    options = {"only": ("a2c",), "games": ("asterix", "breakout")}
    for part in ("agents", "search"):
        for spec in MinAtarStudyConfig(part=part, seeds=2, **options).specs():
            write(tmp_path, spec, 5.0 + spec.seed)
    for part, name in (("agents", "comparison.csv"), ("search", "search-comparison.csv")):
        one = {"seeds": 1, "games": ("breakout",), "only": ("a2c",)}
        MinAtarStudyConfig(tmp_path, part=part, **one).run()
        (row,) = rows_of(tmp_path / name)
        assert (row["games"], row["seeds"]) == ("2", "2")
    assert "score_low" in rows_of(tmp_path / "comparison.csv")[0]


def test_a_game_with_few_seeds_leaves_those_of_others_in_the_comparison():
    def finished(**seeds):
        specs = MinAtarStudyConfig(seeds=4, only=("a2c",), games=tuple(seeds)).specs()
        known = {"score": 5.0, "mean_return": 5.0}
        runs = [Result(spec, known, 1, 1.0) for spec in specs if spec.seed < seeds[spec.game]]
        (row,) = MinAtarStudyConfig().compare(runs).to_dict("records")
        return row["games"], row["seeds"]

    assert finished(asterix=4, breakout=1) == (1, 4)
    assert finished(asterix=4, breakout=2) == (2, 2)
    assert finished(asterix=4, breakout=3, freeway=1) == (2, 3)
    assert finished(asterix=2, breakout=2, freeway=2) == (3, 2)


def test_a_folder_that_is_no_run_stops_nothing(tmp_path, capsys):
    config = MinAtarStudyConfig(tmp_path, seeds=1, only=("a2c",), games=("asterix",))
    (spec,) = config.specs()
    write(tmp_path, spec, 5.0)
    shutil.copytree(spec.folder(tmp_path), tmp_path / "backup")
    config.run()
    assert "left out: " in capsys.readouterr().out
    assert len(rows_of(tmp_path / "runs.csv")) == 1
    assert len(rows_of(tmp_path / "comparison.csv")) == 1


def test_a_run_writes_below_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.recording.carry_out", lambda config, own: seen.append(own))
    for agent, where in (
        ("ann", "ann"),
        ("A2C + MG", "A2C + MG"),
        ("é", "é"),
        ("../../ann", "ann"),
        ("a/b", "a_b"),
        ("a\\b", "a_b"),
        ("/", "agent"),
        ("..", "agent"),
    ):
        seen = []
        spec = Spec("a:b", agent, "Pong", 0, 10, {"command": "auxiliary"})
        # It has no files of results.
        with pytest.raises(FileNotFoundError):
            carry_out(spec, tmp_path)
        assert seen == [tmp_path / where / "run"]


@pytest.mark.usefixtures("no_sync")
def test_each_engine_gives_the_same_results_which_are_compared(tmp_path, capsys):
    pytest.importorskip("minigrid")
    models = []
    agents = ("many_goals", "none")
    games = ("MiniGrid-Empty-5x5-v0",)
    # Each process imports torch for seconds, so there is only one.
    for engine, chosen in (("processes", agents[:1]), ("in-process", agents)):
        root = tmp_path / engine
        options = {"seeds": 1, "steps": 240, "only": chosen, "games": games, "pretrain_steps": 80}
        config = PretrainingStudyConfig(root, engine, 1, **options)
        config.run()
        finished = results(config.specs(), root)
        runs = [spec.folder(root) / spec.agent / "run" for spec in finished]
        for run, result in zip(runs, finished.values(), strict=True):
            record = json.loads((run / "score.json").read_text())
            measured = {"mean_return": mean_return(run / "curve.csv"), "steps_to_half": None}
            assert result.values == record | measured
        models.append(A2C.load(runs[0] / "model.zip").policy.state_dict())
        compared = {(row["agent"], row["seeds"]) for row in rows_of(root / "comparison.csv")}
        assert compared == {(f"pretraining-{agent}", "1") for agent in chosen}
        known = read([root])[["agent", "seed", "status"]].values.tolist()
        assert known == [[f"pretraining-{agent}", 0, "finished"] for agent in chosen]
    same(*models)
    config.run()
    assert "2 runs, 2 have finished" in capsys.readouterr().out
    table = (root / "comparison.csv").read_text()
    dataclasses.replace(config, only=("none",)).run()
    dataclasses.replace(config, seeds=2, only=("none",), dry_run=True).run()
    # The comparison is of all runs that have finished, and not only of the chosen agent.
    assert (root / "comparison.csv").read_text() == table


def test_many_goals_in_two_steps_have_few_seeds_with_the_papers_beta():
    specs = MinAtarStudyConfig(part="two-steps", seeds=10).specs()
    counts = Counter(spec.agent for spec in specs)
    two_steps = "many-goals-two-steps-0.02", "many-goals-two-steps-0.1"
    assert counts == {"a2c": 50, two_steps[0]: 25, two_steps[1]: 50}
    assert specs[:75] == MinAtarStudyConfig(part="two-steps", seeds=5).specs()
    found = {(one.agent, one.update, one.weight) for one in map(configuration, specs)}
    assert found == {
        ("a2c", None, None),
        ("many_goals", "two_steps", 0.02),
        ("many_goals", "two_steps", 0.1),
    }
    assert {one.update for one in map(configuration, MinAtarStudyConfig().specs()[1:5])} == {
        "joint"
    }


@pytest.mark.usefixtures("no_sync")
def test_rows_are_written_as_runs_finish_and_no_run_has_two(tmp_path):
    for module in ("minatar", "lz4"):
        pytest.importorskip(module)
    options = {"steps": 6_400, "games": ("breakout",), "part": "two-steps", "root": tmp_path}
    seen = []

    class Watched(MinAtarStudyConfig):
        def note_finished(self):
            super().note_finished()
            seen.append(rows_of(tmp_path / "runs.csv"))

    only = ("a2c", "many-goals-two-steps-0.1")
    Watched(seeds=1, only=only, **options).run()
    assert [[row["agent"] for row in rows] for rows in seen] == [["a2c"], list(only)]
    alone, many = seen[-1]
    assert alone["share"] == alone["cosine"] == ""
    assert float(many["share"]) > 0.0
    assert -1.0 <= float(many["cosine"]) <= 1.0
    assert 0 < int(many["steps_to_half"]) <= 6_400
    assert many["attempts"] == "1"
    Watched(seeds=1, only=only, **options).run()
    assert seen[-1] == seen[-2]


def test_the_last_to_write_knows_the_runs_of_all_processes(tmp_path, monkeypatch):
    config = GamesStudyConfig(seeds=3, steps=10, root=tmp_path, only=("a2c",), games=("Pong",))
    first, second, third = config.specs()
    write = study.write_whole

    def finish(spec):
        spec.write(tmp_path)
        Result(spec, {"score": 1.0}, 1.0, 1).write(spec.folder(tmp_path))

    def beside(file, content):
        """Another process finishes a run, and writes before this one does."""
        if not results([third], tmp_path):
            finish(third)
            config.note_finished()
        write(file, content)

    finish(first)
    finish(second)
    monkeypatch.setattr(study, "write_whole", beside)
    config.note_finished()
    assert [row["seed"] for row in rows_of(tmp_path / "runs.csv")] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "options", ["games-study --only foo", "minatar-study --steps 5", "film --goals 0"]
)
def test_bad_settings_end_in_a_sentence(options):
    assert command(*options.split()).stderr.startswith("error: ")


def test_a_run_of_mastery_gives_the_numbers_of_its_summary(tmp_path):
    settings = {
        "command": "mastery",
        "agent": "table",
        "n_envs": 4,
        "eval_steps": 30,
        "final_episodes": 1,
    }
    spec = Spec(
        "benchmarks.studies.mastery:carry_out",
        "agents-table",
        "TwoRoomsSwitchSmall-v0",
        0,
        400,
        settings,
    )
    values = carry_out(spec, tmp_path)
    assert (tmp_path / "agents-table" / "run" / "report.html").is_file()
    assert values.keys() >= {"greedy", "epsilon", "ceiling", "known", "training_seconds"}
    assert (values["steps"], values["reachable"]) == (400, 220)


def test_the_mean_return_counts_what_was_before_the_first_row_as_nothing(tmp_path):
    path = tmp_path / "curve.csv"
    assert mean_return(path) == 0.0
    path.write_text("step,episode_return\n100,5.0\n150,1.0\n250,2.0\n")
    assert mean_return(path) == (50 * 1.0 + 100 * 2.0) / 250


def test_a_run_without_an_episode_counts_as_random_play():
    """In Double Dunk, random play has -18.6 and a human -15.5: a score of 0 would be superb."""
    config = BetaStudyConfig(seeds=1, games=("DoubleDunk",), only=("beta-0.02", "beta-0.1"))
    finished = [
        Result(spec, {"score": score, "mean_return": mean}, 1.0, 1)
        for spec, score, mean in zip(config.specs(), (-17.0, None), (-18.0, 0.0), strict=True)
    ]
    rows = {row["agent"]: row for row in config.compare(finished).to_dict("records")}
    assert rows["beta-0.1"]["score"] == pytest.approx(0.0)
    assert rows["beta-0.1"]["mean_return"] == pytest.approx(0.0)
    assert rows["beta-0.1"]["score_better"] == 0.0


def test_half_of_a_score_is_told_where_scores_are_above_0(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("step,episode_return\n100,1.0\n200,6.0\n300,9.0\n")
    assert steps_to_half(path, 10.0) == 200
    assert steps_to_half(path, 40.0) is None
    # A return that improves from -21 to -16 has half of -16 nowhere on its way.
    for score in (-16.0, 0.0, None):
        assert steps_to_half(path, score) is None


def test_means_of_pretraining_are_compared_with_mastery():
    scores = {"many_goals": [0.5, 0.7, 0.9], "none": [None, 0.5, 0.8], "reward_prediction": [0.3]}
    finished = [
        Result(
            spec,
            {
                "score": scores[agent][spec.seed],
                "mean_return": (scores[agent][spec.seed] or 0.0) / 2,
            },
            1.0,
            1,
        )
        for agent in scores
        for spec in PretrainingStudyConfig(seeds=len(scores[agent]), only=(agent,)).specs()
    ]
    many, none, predicted = PretrainingStudyConfig().compare(finished).to_dict("records")
    assert (many["score"], many["mean_return"]) == (pytest.approx(0.7), pytest.approx(0.35))
    assert many["score_low"] < 0.7 < many["score_high"]
    # Without pre-training, 0.5 ties once with 0.5, 0.7 and 0.9; 0.8 wins twice, and None never.
    assert none["score_better"] == pytest.approx((0.5 + 2) / 9)
    assert none["score"] == pytest.approx(1.3 / 3)
    assert predicted["agent"] == "pretraining-reward_prediction"
    assert predicted["seeds"] == 1
    assert predicted["score"] == 0.3


def test_betas_are_compared_by_the_median_of_games():
    values = {"Boxing": (1.0, 7.0), "Qbert": (200.0, 9000.0), "UpNDown": (600.0, 900.0)}
    config = BetaStudyConfig(
        seeds=2, steps=100, games=tuple(values), only=("beta-0.01", "beta-0.02")
    )
    done = []
    for spec in config.specs():
        score = values[spec.game][spec.settings["weight"] == 0.02] + spec.seed
        done.append(Result(spec, {"score": score, "mean_return": 0.0}, 1.0, 1))
    rows = config.compare(done).to_dict("records")
    assert [(row["agent"], row["games"], row["seeds"]) for row in rows] == [
        ("beta-0.02", 3, 2),
        ("beta-0.01", 3, 2),
    ]
    for column, row in zip((1, 0), rows, strict=True):
        raw = [[values[game][column] + seed for game in values] for seed in (0, 1)]
        assert row["score"] == pytest.approx(np.median(normalized(raw, list(values)).mean(axis=0)))
        assert row["score_low"] <= row["score"] <= row["score_high"]
