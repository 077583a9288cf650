"""The one command line: ``python -m benchmarks mastery|throughput|throughput --world --help``."""

from __future__ import annotations

import argparse
import sys
from typing import Annotated

import tyro

from benchmarks.mastery import PRESETS, MasteryConfig
from benchmarks.throughput import ThroughputConfig
from benchmarks.world_speed import WorldSpeedConfig


def main() -> None:
    """Read the command line and run the experiment it names."""
    if sys.argv[1:2] == ["throughput"] and "--world" in sys.argv:
        # Taken out first, as it decides which settings there are: none of an update's has a meaning for the world.
        settings = [argument for argument in sys.argv[2:] if argument != "--world"]
        tyro.cli(WorldSpeedConfig, prog="python -m benchmarks throughput --world", args=settings).run()
        return
    # The preset gives the defaults of all other options, and so must be known before they are read and shown by --help.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=list(PRESETS), default="small")
    preset = first.parse_known_args()[0].preset
    mastery = tyro.conf.subcommand(
        "mastery", default=PRESETS[preset], description="Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, report."
    )
    throughput = tyro.conf.subcommand(
        "throughput",
        description="Time one update against the same loss tiled; with --world, time the world against its peers instead "
        "(settings: throughput --world --help).",
    )
    config: MasteryConfig | ThroughputConfig = tyro.cli(
        Annotated[MasteryConfig, mastery] | Annotated[ThroughputConfig, throughput],
        prog="python -m benchmarks",
        description=__doc__,
    )
    config.run()


if __name__ == "__main__":
    main()
