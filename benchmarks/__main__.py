"""
The command line.

``python -m benchmarks --help`` lists all commands, ``python -m benchmarks COMMAND --help`` explains
one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import tyro

from benchmarks.report import PastRunError
from benchmarks.suite import SuiteError
from benchmarks.suite.attempt import Stopped
from benchmarks.worlds import SettingError
from gym_twoRooms.layout import LayoutError
from sb3_manygoals.checkpoint import CheckpointError

RUNS = {
    "mastery": ("mastery:MasteryConfig", "Train an agent in a world, measure its mastery, report."),
    "auxiliary": (
        "auxiliary:AuxiliaryConfig",
        "Train A2C with an auxiliary task, or without, in a game or a small world.",
    ),
    "pretraining": (
        "pretraining:PretrainingConfig",
        "Train A2C in a game or in MiniGrid, its trunk pre-trained or not.",
    ),
    "tasks": (
        "tasks:TasksConfig",
        "Learn the task of a world from nothing; when is its rare reward met, when is it solved?",
    ),
}
"""
Commands that make one run: where their settings are, and what they do.

Each of them can go on with a run that was begun: ``--resume FOLDER``.
"""

OTHERS = {
    "mastery-study": (
        "studies.mastery:MasteryStudyConfig",
        "Many runs of mastery: carry out what has not finished.",
    ),
    "auxiliary-study": (
        "studies.auxiliary:AuxiliaryStudyConfig",
        "Many runs of auxiliary: carry out what has not finished.",
    ),
    "pretraining-study": (
        "studies.pretraining:PretrainingStudyConfig",
        "Many runs of pretraining: carry out, and compare.",
    ),
    "games-study": (
        "studies.games:GamesStudyConfig",
        "Six agents in 49 Atari games: carry out what has not finished.",
    ),
    "minatar-study": (
        "studies.minatar:MinAtarStudyConfig",
        "Seven agents in MinAtar's five games: carry out, and compare.",
    ),
    "beta-study": (
        "studies.games:BetaStudyConfig",
        "The search for beta on seven games: carry it out, and compare.",
    ),
    "tasks-study": (
        "studies.tasks:TasksStudyConfig",
        "Many runs of tasks: carry out what has not finished, and compare.",
    ),
    "told-tasks": (
        "told_tasks:ToldTasksConfig",
        "Tell a trained agent twenty tasks, and compare it with the best policies.",
    ),
    "report": (
        "report.study:ReportConfig",
        "Sum up many runs and suites, finished or not, on one page.",
    ),
    "speed-update": (
        "speed.update:UpdateConfig",
        "Time updates, ours and others, against the number of goals.",
    ),
    "speed-world": ("speed.world:WorldConfig", "Time the world against its peers."),
    "speed-training": ("speed.training:TrainingConfig", "Time whole training, ours and SB3's."),
    "speed-planned": (
        "speed.planned:PlannedConfig",
        "Time updates from a plan beside the least they could cost.",
    ),
    "speed-step": (
        "speed.step:StepConfig",
        "Time steps and actions without updates, ours and those of SB3's DQN.",
    ),
    "speed-learning": (
        "speed.learning:LearningConfig",
        "Time training beside random steps in the world alone, and measure mastery.",
    ),
    "goals": (
        "goals:GoalsConfig",
        "Success in worlds whose states and goals are what the user says, beside DQN with HER.",
    ),
    "learned-states": (
        "learned_states:LearnedStatesConfig",
        "Mastery where no picture is ever seen twice, and how good learned states are.",
    ),
    "gpu": (
        "gpu:GPUConfig",
        "What a GPU is worth: tests, speed, mastery, the paper's recipe, within some minutes.",
    ),
    "faults": (
        "faults:FaultsConfig",
        "Kill runs, damage checkpoints, fill the disk; what survives, beside SB3's DQN.",
    ),
    "film": ("film:FilmConfig", "Film the exact policy of a map pursuing goals."),
    "demo": (
        "demo.page:DemoConfig",
        "Write a page on which a visitor sets goals for the agent of a run of mastery.",
    ),
}
"""All other commands."""


def main() -> None:
    """Read the command line and run the experiment it names."""
    prog = "python -m benchmarks"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, (_, text) in (RUNS | OTHERS).items():
        commands.add_parser(command, help=text, add_help=False)
    command = parser.parse_args(sys.argv[1:2]).command
    arguments = sys.argv[2:]
    path, text = (RUNS | OTHERS)[command]
    options: dict[str, Any] = {"default": defaults(path, arguments)} if command in RUNS else {}
    try:
        config = tyro.cli(
            load(path), prog=f"{prog} {command}", description=text, args=arguments, **options
        )
        config.run()
    except (LayoutError, CheckpointError, PastRunError, SettingError, SuiteError) as error:
        sys.exit(f"error: {error}")
    except (KeyboardInterrupt, Stopped) as end:
        print(
            "stopped: a run that writes checkpoints goes on with --resume and its folder, "
            "a study with the same command; anything else begins anew",
            file=sys.stderr,
        )
        sys.exit(end.code if isinstance(end, Stopped) else 1)


def load(path: str) -> Any:
    """
    Import what a path names. Only its module, and what that needs, is imported.

    :param path: "module:name", the module below this package
    :return: the object of that name
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"benchmarks.{module}"), name)


def defaults(path: str, arguments: list[str]) -> Any:
    """
    Return the defaults of a command of :data:`RUNS`.

    They depend on the run to go on with, or on the kind of world. These two options are therefore
    read before all others.

    :param path: path of the command's settings, as :func:`load` takes it
    :param arguments: those of the command line after the command
    :return: settings, an object of the command's class
    """
    config = load(path)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--resume", type=Path)
    first.add_argument("--world")
    found, _ = first.parse_known_args(arguments)
    if found.resume is not None:
        try:
            return config.saved(found.resume)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"error: --resume: {found.resume} is not the folder of a run: {error!r}")
    # An unknown world gets the general defaults here, and is refused when all options are read.
    worlds = getattr(sys.modules[config.__module__], "WORLDS", {})
    return worlds.get(found.world) or config()


if __name__ == "__main__":
    main()
