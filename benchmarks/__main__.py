"""The command line: ``python -m benchmarks COMMAND --help``, and ``python -m benchmarks --help`` for all commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from benchmarks import auxiliary, hindsight, mastery, pretraining, tabular
from benchmarks.atari_speed import AtariSpeedConfig
from benchmarks.auxiliary_speed import AuxiliarySpeedConfig
from benchmarks.auxiliary_study import AuxiliaryStudyConfig
from benchmarks.auxiliary_summary import AuxiliarySummaryConfig
from benchmarks.changes import ChangesConfig
from benchmarks.curves import CurvesConfig
from benchmarks.faults import FaultsConfig
from benchmarks.film import FilmConfig
from benchmarks.mastery_study import MasteryStudyConfig
from benchmarks.past_runs import PastRunError
from benchmarks.pretraining_study import PretrainingStudyConfig
from benchmarks.study_report import ReportConfig
from benchmarks.suite import SuiteError
from benchmarks.summary import SummaryConfig
from benchmarks.throughput import ThroughputConfig
from benchmarks.time_profile import ProfileConfig
from benchmarks.world_speed import WorldSpeedConfig
from gym_twoRooms.layout import LayoutError
from sb3_manygoals.checkpoint import CheckpointError

THROUGHPUT: dict[str, type[Any]] = {
    "--world": WorldSpeedConfig,
    "--curves": CurvesConfig,
    "--profile": ProfileConfig,
    "--changes": ChangesConfig,
    "--atari": AtariSpeedConfig,
    "--auxiliary": AuxiliarySpeedConfig,
}
"""What else ``throughput`` does, each with settings of its own."""

STUDIES: dict[str, tuple[type[Any], str]] = {
    "mastery": (
        mastery.MasteryConfig,
        "Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, report.",
    ),
    "tabular": (
        tabular.TabularConfig,
        "Train a lookup table on TwoRoomsSwitch, measure its mastery, report.",
    ),
    "hindsight": (
        hindsight.HindsightConfig,
        "Train SB3's DQN with HerReplayBuffer on TwoRoomsSwitch, measure its mastery, report.",
    ),
    "auxiliary": (
        auxiliary.AuxiliaryConfig,
        "Train A2C with an auxiliary task, or without, in an Atari game or a small world with a rare reward.",
    ),
    "pretraining": (
        pretraining.PretrainingConfig,
        "Train A2C in an Atari game or in MiniGrid, from scratch or with a trunk that was pre-trained.",
    ),
}
"""Commands that make one run, with settings and description. They have a default for all settings at once."""

SAVED: dict[str, Callable[[Path], Any]] = {
    "mastery": mastery.saved_config,
    "tabular": tabular.saved_config,
    "hindsight": hindsight.saved_config,
    "auxiliary": auxiliary.saved_config,
    "pretraining": pretraining.saved_config,
}
"""How the settings of a run that goes on are read."""

OTHERS: dict[str, tuple[type[Any], str]] = {
    "mastery-study": (
        MasteryStudyConfig,
        "Many runs of mastery, tabular and hindsight: carry out what has not finished of them.",
    ),
    "auxiliary-study": (AuxiliaryStudyConfig, "Many runs of auxiliary: carry out what has not finished of them."),
    "pretraining-study": (
        PretrainingStudyConfig,
        "Many runs of pretraining: carry out what has not finished of them, and compare.",
    ),
    "summary": (
        SummaryConfig,
        "Sum up runs of mastery, tabular and hindsight over their seeds: tables, figures, failing goals, values.",
    ),
    "auxiliary-summary": (
        AuxiliarySummaryConfig,
        "Sum up runs of auxiliary over their seeds: returns against steps, a table, a figure.",
    ),
    "report": (ReportConfig, "Write one page about many runs and suites, finished or not, that opens without a network."),
    "throughput": (
        ThroughputConfig,
        "Time updates, ours and others, and their memory; instead with --world the world against its peers, with --curves how "
        "soon goal embeddings and a head for each goal come to mastery, with --profile where the time of an update goes, with "
        "--changes what each change for speed gave, with --atari games beside SB3's set-ups, with --auxiliary what auxiliary "
        "tasks cost (settings: throughput --world --help, and so on).",
    ),
    "film": (FilmConfig, "Film the exact policy of a map pursuing goals."),
    "faults": (FaultsConfig, "Kill, damage and starve training runs, and count what comes of it."),
}
"""All other commands."""


def main() -> None:
    """Read the command line and run the experiment it names."""
    # Looked for first, as it decides which settings there are: none of the table's has a meaning for the world, say.
    others = [argument for argument in sys.argv[2:] if argument in THROUGHPUT] if sys.argv[1:2] == ["throughput"] else []
    if len(set(others)) > 1:
        sys.exit(f"error: throughput does one of {', '.join(THROUGHPUT)} at a time, got {' '.join(others)}")
    if others:
        other = others[0]
        settings = [argument for argument in sys.argv[2:] if argument != other]
        tyro.cli(THROUGHPUT[other], prog=f"python -m benchmarks throughput {other}", args=settings).run()
        return
    defaults = _defaults()
    commands = [
        Annotated[kind, tyro.conf.subcommand(name, default=defaults[name], description=text)]
        for name, (kind, text) in STUDIES.items()
    ] + [Annotated[kind, tyro.conf.subcommand(name, description=text)] for name, (kind, text) in OTHERS.items()]
    one_of: Any = Union[tuple(commands)]  # noqa: UP007 - put together only now
    config = tyro.cli(one_of, prog="python -m benchmarks", description=__doc__)
    try:
        config.run()
    except (LayoutError, CheckpointError, PastRunError, SuiteError) as error:
        sys.exit(f"error: {error}")


def _defaults() -> dict[str, Any]:
    """
    Of all settings of a run. A preset, a world, or a run to go on with, gives them, and so must be known before they are read
    and shown by --help.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=list(mastery.PRESETS), default="small")
    first.add_argument("--world", choices=list(auxiliary.WORLDS | pretraining.WORLDS), default="atari")
    first.add_argument("--resume", type=Path)
    given = first.parse_known_args()[0]
    defaults: dict[str, Any] = {
        "mastery": mastery.PRESETS[given.preset],
        "tabular": tabular.TabularConfig(),
        "hindsight": hindsight.HindsightConfig(),
        # a world that a command does not have is refused by its own settings
        "auxiliary": auxiliary.WORLDS.get(given.world, auxiliary.AuxiliaryConfig()),
        "pretraining": pretraining.WORLDS.get(given.world, pretraining.PretrainingConfig()),
    }
    study = next(iter(sys.argv[1:2]), "")
    if given.resume is not None and study in SAVED:
        try:
            defaults[study] = SAVED[study](given.resume)
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"error: --resume: {given.resume} is not the folder of a run: {error!r}")
    return defaults


if __name__ == "__main__":
    main()
