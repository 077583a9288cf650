"""The folder of a run: settings and versions, logs that go on from a checkpoint, training that can be killed at any moment."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import platform
import shlex
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter

from benchmarks.suite.spec import write_whole
from benchmarks.worlds import SettingError
from sb3_manygoals import ExactCheckpointCallback
from sb3_manygoals.checkpoint.callback import Checkpointable

PACKAGES = (
    "sb3-manygoals",
    "stable-baselines3",
    "gymnasium",
    "torch",
    "numpy",
    "scipy",
    "ale-py",
    "minatar",
    "minigrid",
)
"""Those whose versions matter, if they are installed."""

Config = TypeVar("Config", bound="RunConfig")


@dataclasses.dataclass(frozen=True)
class RunConfig(ABC):
    """The options of every run."""

    seed: int = 0
    """Of everything random."""
    threads: int = 1
    """Torch threads; the last bits of the results depend on them. Two are little faster with small networks, and many times
    slower on cores that others use: OpenMP's threads wait by spinning, unless OMP_WAIT_POLICY is passive."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    progress_bar: bool = True
    """Show one while training."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint or the start. Options are by default those of that run."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed must be in [0, 2**32), got {self.seed}")

    @classmethod
    def saved(cls: type[Config], folder: Path) -> Config:
        """The settings of the run in a folder, to go on with it; an error if that is not the folder of such a run."""
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        return cls(**settings | {"output": Path(settings["output"]), "resume": folder})

    def check_counts(self, *names: str) -> None:
        """SettingError, if an option is a number below 1."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")

    @abstractmethod
    def run(self) -> Path:
        """Carry out the run, or go on with it; returns its folder."""


def create(root: Path, name: str) -> Path:
    """A new folder ``root/name-<date>-<time>-<microseconds>``."""
    folder = root / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    return folder


def open_folder(config: RunConfig, name: str) -> Path:
    """A new folder with ``config.json``, or that of the run that goes on; it is printed."""
    folder = config.resume or create(config.output, name)
    if config.resume is None:
        write_config(folder, config)
    elif config.seed != (begun := config.saved(folder)).seed:
        raise SettingError(
            f"seed must be {begun.seed}, as the run in {folder} was begun with it, got {config.seed}"
        )
    print(f"writing to {folder}")
    return folder


def write_config(folder: Path, config: Any) -> dict[str, Any]:
    """Write ``config.json``: every setting, the versions, the machine, and the git revision. Returns what was written."""
    record = {"settings": dataclasses.asdict(config), **_provenance()}
    _write_json(folder / "config.json", record)
    return record


def _write_json(path: Path, record: dict[str, Any]) -> None:
    write_whole(path, json.dumps(record, indent=2, default=str) + "\n")


def carry_out(config: RunConfig, folder: Path) -> None:
    """Do a run of a suite in its folder, or go on with it."""
    config = dataclasses.replace(config, output=folder.parent)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config)
    dataclasses.replace(config, resume=folder).run()


def train(
    config: RunConfig,
    model: BaseAlgorithm,
    steps: int,
    folder: Path,
    callbacks: Sequence[BaseCallback] = (),
    extras: Mapping[str, Checkpointable] | None = None,
    log_interval: int = 100,
    part: str = "",
) -> None:
    """
    Train a new model up to a number of steps, from the newest checkpoint if there is one, and close its environment. Writes
    ``checkpoints/``, ``progress.csv``, TensorBoard events and ``model.zip``, into the folder ``part`` of the run's.
    """
    place = folder / part
    table = CSVLog(place / "progress.csv")
    saving = ExactCheckpointCallback(
        place / "checkpoints",
        every_seconds=60 * config.checkpoint_minutes,
        keep=2,
        extras={**(extras or {}), "progress.csv": table},
        verbose=1,
    )
    resumed = saving.resume(model, fallback=True)
    if config.resume is not None:
        _note_resumption(folder, config, resumed)
    model.set_logger(logger(place, table, model.num_timesteps))
    if model.num_timesteps < steps:
        for name in (
            "summary.csv",
            "goals.csv",
            "score.json",
        ):  # of a run that had ended earlier, and is now to go on
            (folder / name).unlink(missing_ok=True)
        model.learn(
            steps - model.num_timesteps,
            [*callbacks, saving],
            log_interval=log_interval,
            reset_num_timesteps=not resumed and model.num_timesteps == 0,
            progress_bar=config.progress_bar,
        )
    model.logger.close()
    model.save(place / "model.zip")
    assert model.env is not None
    model.env.close()


def _note_resumption(folder: Path, config: RunConfig, resumed: bool) -> None:
    """The settings that hold from now on; and that it went on, when, where and with which versions."""
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    record["settings"] = dataclasses.asdict(dataclasses.replace(config, resume=None))
    if resumed:
        record.setdefault("resumed", []).append(_provenance())
    _write_json(folder / "config.json", record)


def _provenance() -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    processor, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        processor = f"{names[0]}, {len(names)} cores" if names else processor
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions,
        "machine": {
            "processor": processor,
            "system": platform.platform(),
            "torch_threads": th.get_num_threads(),
            "gpu": th.cuda.get_device_name() if th.cuda.is_available() else "none",
        },
        "git_revision": git_revision(),
    }


def git_revision() -> str:
    """The commit of the code that runs, marked if there are uncommitted changes; "unknown" outside of git."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    answer = subprocess.run(
        git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"


class CurveLog:
    """A small CSV file, a row a measurement. An old file is replaced with the first row."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._text = ",".join(columns) + "\n"

    def add(self, row: Sequence[Any]) -> None:
        self._text += ",".join(map(str, row)) + "\n"
        write_whole(self.path, self._text)

    def get_checkpoint_state(self) -> str:
        return self._text

    def set_checkpoint_state(self, state: str) -> None:
        self._text = state
        write_whole(self.path, self._text)


class CSVLog(CSVOutputFormat):
    """``progress.csv`` as SB3 writes it. An old file is replaced with the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys, self.separator, self.quotechar = [], ",", '"'

    @cached_property
    def file(self) -> io.TextIOWrapper:  # type: ignore[override]
        """Opened late, as that empties it: a run that cannot be resumed keeps what it has."""
        return self.path.open("w+", encoding="utf-8")

    def get_checkpoint_state(self) -> dict[str, Any]:
        self.file.seek(0)
        return {
            "keys": self.keys,
            "text": self.file.read(),
        }  # reading to the end, where writing goes on

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        self.keys = state["keys"]
        self.file.write(state["text"])  # into an empty file, as it was opened just now
        self.file.flush()


def logger(folder: Path, table: CSVLog, step: int) -> Logger:
    """A logger to ``progress.csv`` and to TensorBoard, which drops what is later than the step from which a run goes on."""
    events = TensorBoardOutputFormat(str(folder))
    if step > 0:
        events.writer.close()
        events.writer = SummaryWriter(
            str(folder), purge_step=step + 1
        )  # the first step that is dropped
    return Logger(str(folder), [table, events])


class Clock(BaseCallback):
    """Measures the time of training; pauses do not count."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._before = 0.0, 0.0

    @property
    def training_seconds(self) -> float:
        """Until now, or until training ended."""
        return self._before + (time.perf_counter() - self._began if self._began else 0.0)

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._before, self._began = self.training_seconds, 0.0

    def get_checkpoint_state(self) -> Any:
        return self.training_seconds

    def set_checkpoint_state(self, state: Any) -> None:
        self._before = state
