"""The one command line: ``python -m benchmarks mastery|throughput|film --help``."""

from __future__ import annotations

import argparse
import sys
from typing import Annotated

import tyro

from benchmarks.film import FilmConfig
from benchmarks.mastery import PRESETS, MasteryConfig
from benchmarks.throughput import ThroughputConfig
from gym_twoRooms.layout import LayoutError


def main() -> None:
    """Read the command line and run the experiment it names."""
    # The preset gives the defaults of all other options, and so must be known before they are read and shown by --help.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=list(PRESETS), default="small")
    preset = first.parse_known_args()[0].preset
    mastery = tyro.conf.subcommand(
        "mastery", default=PRESETS[preset], description="Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, report."
    )
    throughput = tyro.conf.subcommand("throughput", description="Time one update against the same loss tiled.")
    film = tyro.conf.subcommand("film", description="Film the exact policy of a map pursuing goals.")
    config: MasteryConfig | ThroughputConfig | FilmConfig = tyro.cli(
        Annotated[MasteryConfig, mastery] | Annotated[ThroughputConfig, throughput] | Annotated[FilmConfig, film],
        prog="python -m benchmarks",
        description=__doc__,
    )
    try:
        config.run()
    except LayoutError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
