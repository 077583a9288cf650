"""One folder a run: what was run, with which versions, and what came out."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch as th

PACKAGES = ("sb3-manygoals", "stable-baselines3", "gymnasium", "torch", "numpy", "scipy")


def create(root: Path, name: str) -> Path:
    """
    :param root: folder of all runs
    :param name: what is run
    :return: a new folder ``root/name-<date>-<time>``; never one that exists
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 1_000):
        folder = root / (f"{name}-{stamp}" if attempt == 1 else f"{name}-{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{root} already has a thousand runs of {name} from this second")


def write_config(folder: Path, config: Any, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """
    Write ``config.json``: every setting, the versions, the machine, and the git revision.

    :param folder: of the run
    :param config: a dataclass
    :param packages: those whose versions matter
    :return: what was written
    """
    record = {"settings": dataclasses.asdict(config), **provenance(packages)}
    _write(folder, record)
    return record


def carry_out(config: Any, folder: Path, packages: Sequence[str] = PACKAGES) -> None:
    """
    Do a run in a folder that is known before, as suites do, or go on with it there.

    :param config: a dataclass with ``output``, ``resume`` and ``run``, as that of each command that makes one run
    :param folder: of the run
    :param packages: those whose versions matter
    """
    config = dataclasses.replace(config, output=folder.parent)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config, packages)
    dataclasses.replace(config, resume=folder).run()


def note_resumption(folder: Path) -> None:
    """
    Add to ``config.json`` that the run goes on, when, where and with which versions.

    :param folder: of the run
    """
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    record.setdefault("resumed", []).append(provenance())
    _write(folder, record)


def _write(folder: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: a run may be killed at any moment."""
    staged = folder / "config.json.tmp"
    staged.write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
    staged.replace(folder / "config.json")


def provenance(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """
    :param packages: those whose versions matter
    :return: command, date, versions, machine and git revision
    """
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": machine(),
        "git_revision": git_revision(),
    }


def machine() -> dict[str, Any]:
    """:return: processor, core count, torch threads, and the GPU if there is one"""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = f"{names[0]}, {len(names)} cores" if names else processor
    gpu = th.cuda.get_device_name() if th.cuda.is_available() else "none"
    return {"processor": processor, "system": platform.platform(), "torch_threads": th.get_num_threads(), "gpu": gpu}


def git_revision() -> str:
    """:return: the commit of the code that runs, marked if there are uncommitted changes; "unknown" outside of git"""
    here = Path(__file__).parent
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=here, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"
