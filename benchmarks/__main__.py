"""The command line: ``python -m benchmarks mastery|pretraining|... --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks import hindsight, mastery, pretraining, tabular
from benchmarks.atari_speed import AtariSpeedConfig
from benchmarks.changes import ChangesConfig
from benchmarks.curves import CurvesConfig
from benchmarks.faults import FaultsConfig
from benchmarks.film import FilmConfig
from benchmarks.hindsight import HindsightConfig
from benchmarks.mastery import PRESETS, MasteryConfig
from benchmarks.mastery_study import MasteryStudyConfig
from benchmarks.past_runs import PastRunError
from benchmarks.pretraining import WORLDS, PretrainingConfig
from benchmarks.pretraining_study import PretrainingStudyConfig
from benchmarks.study import StudyConfig
from benchmarks.suite import SuiteError
from benchmarks.summary import SummaryConfig
from benchmarks.tabular import TabularConfig
from benchmarks.throughput import ThroughputConfig
from benchmarks.time_profile import ProfileConfig
from benchmarks.world_speed import WorldSpeedConfig
from gym_twoRooms.layout import LayoutError
from sb3_manygoals.checkpoint import CheckpointError

THROUGHPUT: dict[str, type[WorldSpeedConfig | CurvesConfig | ProfileConfig | ChangesConfig | AtariSpeedConfig]] = {
    "--world": WorldSpeedConfig,
    "--curves": CurvesConfig,
    "--profile": ProfileConfig,
    "--changes": ChangesConfig,
    "--atari": AtariSpeedConfig,
}
"""What else ``throughput`` does, each with settings of its own."""

SAVED: dict[str, Callable[[Path], StudyConfig | PretrainingConfig]] = {
    "mastery": mastery.saved_config,
    "tabular": tabular.saved_config,
    "hindsight": hindsight.saved_config,
    "pretraining": pretraining.saved_config,
}
"""Studies whose runs can be gone on with, and how their settings are read."""


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
    mastery_command = tyro.conf.subcommand(
        "mastery",
        default=defaults["mastery"],
        description="Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, report.",
    )
    tabular_command = tyro.conf.subcommand(
        "tabular",
        default=defaults["tabular"],
        description="Train a lookup table on TwoRoomsSwitch, measure its mastery, report.",
    )
    hindsight_command = tyro.conf.subcommand(
        "hindsight",
        default=defaults["hindsight"],
        description="Train SB3's DQN with HerReplayBuffer on TwoRoomsSwitch, measure its mastery, report.",
    )
    pretraining_command = tyro.conf.subcommand(
        "pretraining",
        default=defaults["pretraining"],
        description="Train A2C in an Atari game or in MiniGrid, from scratch or with a trunk that was pre-trained.",
    )
    pretraining_study = tyro.conf.subcommand(
        "pretraining-study", description="Many runs of pretraining: carry out what has not finished of them, and compare."
    )
    mastery_study = tyro.conf.subcommand(
        "mastery-study", description="Many runs of mastery, tabular and hindsight: carry out what has not finished of them."
    )
    summary = tyro.conf.subcommand(
        "summary",
        description="Sum up runs of mastery, tabular and hindsight over their seeds: tables, figures, failing goals, values.",
    )
    throughput = tyro.conf.subcommand(
        "throughput",
        description="Time updates, ours and others, and their memory; instead with --world the world against its peers, with "
        "--curves how soon goal embeddings and a head for each goal come to mastery, with --profile where the time of an "
        "update goes, with --changes what each change for speed gave, with --atari Atari games against SB3's own set-up "
        "(settings: throughput --world --help, and so on).",
    )
    film = tyro.conf.subcommand("film", description="Film the exact policy of a map pursuing goals.")
    faults = tyro.conf.subcommand("faults", description="Kill, damage and starve training runs, and count what comes of it.")
    config: (
        MasteryConfig
        | TabularConfig
        | HindsightConfig
        | PretrainingConfig
        | PretrainingStudyConfig
        | MasteryStudyConfig
        | SummaryConfig
        | ThroughputConfig
        | FaultsConfig
        | FilmConfig
    ) = tyro.cli(
        Annotated[MasteryConfig, mastery_command]
        | Annotated[TabularConfig, tabular_command]
        | Annotated[HindsightConfig, hindsight_command]
        | Annotated[PretrainingConfig, pretraining_command]
        | Annotated[PretrainingStudyConfig, pretraining_study]
        | Annotated[MasteryStudyConfig, mastery_study]
        | Annotated[SummaryConfig, summary]
        | Annotated[ThroughputConfig, throughput]
        | Annotated[FaultsConfig, faults]
        | Annotated[FilmConfig, film],
        prog="python -m benchmarks",
        description=__doc__,
    )
    try:
        config.run()
    except (LayoutError, CheckpointError, PastRunError, SuiteError) as error:
        sys.exit(f"error: {error}")


def _defaults() -> dict[str, StudyConfig | PretrainingConfig]:
    """
    Of all options of the studies. A preset, a world, or a run to go on with, gives them, and so must be known before they are
    read and shown by --help.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=list(PRESETS), default="small")
    first.add_argument("--world", choices=list(WORLDS), default="atari")
    first.add_argument("--resume", type=Path)
    given = first.parse_known_args()[0]
    defaults: dict[str, StudyConfig | PretrainingConfig] = {
        "mastery": PRESETS[given.preset],
        "tabular": TabularConfig(),
        "hindsight": HindsightConfig(),
        "pretraining": WORLDS[given.world],
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
