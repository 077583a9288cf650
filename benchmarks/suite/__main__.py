"""Any suite: ``python -m benchmarks.suite package.module:specs --help``."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from benchmarks.suite.run import SuiteConfig
from benchmarks.suite.spec import SuiteError


@dataclass(frozen=True)
class _Command:
    specs: tyro.conf.Positional[str]
    """Import path of a function that takes nothing and returns the specs of a suite."""
    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")]


def main() -> None:
    """Read the command line, carry out the suite; exit status 0 if all of it has finished."""
    try:
        command = tyro.cli(_Command, prog="python -m benchmarks.suite", description=SuiteConfig.__doc__)
        module, _, name = command.specs.partition(":")
        outcome = command.suite.run(getattr(importlib.import_module(module), name)())
    except (SuiteError, ValueError, ImportError, AttributeError) as error:
        sys.exit(f"error: {error}")
    if outcome is not None and not outcome.complete:
        sys.exit(1)


if __name__ == "__main__":
    main()
