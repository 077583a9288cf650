"""
The folder of a run.

It holds settings and versions, logs that go on from a checkpoint, and the checkpoints themselves:
training can be killed at any moment.
"""

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
from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint.callback import Checkpointable
from sb3_manygoals.checkpoint.lock import Lock

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
"""Packages of which ``config.json`` has the versions, if they are installed."""

Config = TypeVar("Config", bound="RunConfig")


CHANGEABLE = frozenset(
    {
        *("output", "resume", "progress_bar", "checkpoint_minutes", "threads", "device"),
        *("total_steps", "steps", "patience"),
        *("eval_freq", "eval_episodes", "final_episodes", "eval_goals"),
        *("learning_rate", "pretraining_learning_rate", "ent_coef", "weight"),
        *("batch_size", "goal_batch_size", "agent_kwargs", "map"),
    }
)
"""
Options whose values may change when a run goes on.

The files of a map and of goals may have other paths, and some arguments in ``agent_kwargs`` may
change. The checkpoint refuses others, and another map. The run refuses other goals. Of all other
options, the checkpoint brings back what they were. New values would have no effect, or only on a
part of the measurements.
"""

NAMES = {"env_id": "world"}
"""Names of options on the command line that differ from those of the settings."""


@dataclasses.dataclass(frozen=True)
class RunConfig(ABC):
    """The options of every run."""

    seed: int = 0
    """Seed of everything random."""
    threads: int = 1
    """Torch threads; the last bits of the results depend on them. Two are little faster with small
    networks, and many times slower on cores that others use: OpenMP's threads wait by spinning,
    unless OMP_WAIT_POLICY is passive."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    progress_bar: bool = True
    """Show a progress bar while training."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or
    Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint or the start. Options are by
    default those of that run. Its length, how often it is measured and its rates of learning may
    change, but not what a checkpoint brings back, such as the world and the agent."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise SettingError(f"seed must be in [0, 2**32), got {self.seed}")
        if not self.checkpoint_minutes > 0:
            raise SettingError(f"checkpoint_minutes must be above 0, got {self.checkpoint_minutes}")

    @classmethod
    def saved(cls: type[Config], folder: Path) -> Config:
        """
        Read the settings of the run in a folder, to go on with it.

        :param folder: the folder of the run
        :return: its settings, with ``resume`` set
        :raises OSError: if there is no ``config.json``
        :raises ValueError: if that is no JSON
        :raises KeyError: if it has no settings
        :raises TypeError: if it has settings of another kind of run
        """
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        return cls(**settings | {"output": Path(settings["output"]), "resume": folder})

    def check_counts(self, *names: str) -> None:
        """
        Check that options are numbers of at least 1, or None.

        :param names: names of options
        :raises SettingError: if one is smaller
        """
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1, got {value}")

    @abstractmethod
    def run(self) -> Path:
        """
        Carry out the run, or go on with it.

        :return: the folder of the run
        """


def create(root: Path, name: str) -> Path:
    """
    Make a new folder ``root/name-<date>-<time>-<microseconds>``.

    :param root: folder in which it is made
    :param name: beginning of its name
    :return: the new folder
    """
    folder = root / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder.mkdir(parents=True)
    return folder


def open_folder(config: RunConfig, name: str) -> Path:
    """
    Return the folder of a run, and print it.

    :param config: settings; their ``resume`` is the folder of a run that goes on
    :param name: beginning of the name of a new folder
    :return: a new folder with ``config.json``, or that of the run that goes on
    :raises SettingError: see :func:`check_resumption`
    """
    check_resumption(config)
    folder = config.resume or create(config.output, name)
    if config.resume is None:
        write_config(folder, config)
    print(f"writing to {folder}")
    return folder


def check_resumption(config: RunConfig) -> None:
    """
    Check that a run that goes on has the options with which it was begun.

    :param config: settings; their ``resume`` is the folder of a run that goes on, None of a new one
    :raises SettingError: if the run was begun with another value of an option that is not one of
        :data:`CHANGEABLE`, or with goals of its own and not of a file, or the reverse
    """
    if config.resume is None:
        return
    for name, value in _fixed_at_begin(config, config.resume).items():
        raise SettingError(
            f"{NAMES.get(name, name)} must be {value}, as the run in {config.resume} was begun "
            f"with it, got {getattr(config, name)}"
        )


def _fixed_at_begin(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the options that must stay what they were when a run began, and differ now."""
    begun = config.saved(folder)
    fixed = {}
    for field in dataclasses.fields(config):
        now = getattr(config, field.name)
        before = getattr(begun, field.name)
        # A run measures goals of a file from the beginning, or never.
        is_begun_or_ended = field.name == "eval_goals" and None in (now, before)
        if now != before and (field.name not in CHANGEABLE or is_begun_or_ended):
            fixed[field.name] = before
    return fixed


def write_config(folder: Path, config: Any) -> dict[str, Any]:
    """
    Write ``config.json``: every setting, the versions, the machine, and the git revision.

    :param folder: the folder of the run
    :param config: settings, a dataclass
    :return: what was written
    """
    record = {"settings": dataclasses.asdict(config), **_provenance()}
    _write_json(folder / "config.json", record)
    return record


def _write_json(path: Path, record: dict[str, Any]) -> None:
    write_whole(path, json.dumps(record, indent=2, default=str) + "\n")


def carry_out(config: RunConfig, folder: Path) -> None:
    """
    Do a run of a suite in its folder, or go on with it.

    A default may have changed since the run began. Then the run goes on with the old value.

    :param config: settings of the run
    :param folder: the folder of the run, which need not be there yet
    """
    config = dataclasses.replace(config, output=folder.parent)
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_config(folder, config)
    fixed = _fixed_at_begin(config, folder)
    for name, value in fixed.items():
        print(f"goes on with {name} {value}, as it was begun, and not {getattr(config, name)}")
    dataclasses.replace(config, **fixed, resume=folder).run()


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
    Train a new model up to a number of steps, and close its environment.

    It goes on from the newest checkpoint, if there is one. ``checkpoints/``, ``progress.csv``,
    TensorBoard events and ``model.zip`` are written, by one process at a time.

    :param config: settings of the run
    :param model: the untrained model
    :param steps: environment steps after which training ends, those before the checkpoint included
    :param folder: the folder of the run
    :param callbacks: further callbacks of training
    :param extras: further objects whose states checkpoints keep, by name
    :param log_interval: SB3's number of episodes or rollouts between rows of ``progress.csv``
    :param part: folder below ``folder`` for the files; by default they are written to ``folder``
    :raises CheckpointError: if another process trains in the folder. Then nothing has changed there
    """
    place = folder / part
    # Files are emptied and replaced from here on, also those of the whole run.
    with Lock(folder / "checkpoints"), Lock(place / "checkpoints"):
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
            # A run that had ended earlier now goes on: these files would be out of date.
            for name in ("summary.csv", "goals.csv", "score.json"):
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


def save_goals(model: Any, folder: Path) -> None:
    """
    Write the goals that an agent knows: ``world.npz`` of ManyGoalsDQN, which has all that it knows
    of the world, ``goals.npz`` of another agent with a goal buffer, nothing of others.

    :param model: the trained agent
    :param folder: the folder of the run
    """
    if isinstance(model, ManyGoalsDQN):
        model.save_world(folder / "world.npz")
    elif hasattr(model, "goal_buffer"):
        model.goal_buffer.save(folder / "goals.npz")


def _note_resumption(folder: Path, config: RunConfig, resumed: bool) -> None:
    """Note the settings that hold from now on, and when, where and with what the run went on."""
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    record["settings"] = dataclasses.asdict(dataclasses.replace(config, resume=None))
    if resumed:
        record.setdefault("resumed", []).append(_provenance())
    _write_json(folder / "config.json", record)


def _provenance() -> dict[str, Any]:
    """Return what results depend on beside the settings: command, versions, machine, revision."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
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
    """
    Return the commit of the code that runs.

    :return: a short hash, marked if there are uncommitted changes; "unknown" outside of git
    """
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    answer = subprocess.run(
        git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else "unknown"


class CurveLog:
    """
    A small CSV file, a row a measurement. An old file is replaced with the first row.

    :param path: the file
    :param columns: names of the columns
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._text = ",".join(columns) + "\n"

    def add(self, row: Sequence[Any]) -> None:
        """
        Add a row, and write the file.

        :param row: a value for each column
        """
        self._text += ",".join(map(str, row)) + "\n"
        write_whole(self.path, self._text)

    def get_checkpoint_state(self) -> str:
        """
        Return the state that a checkpoint keeps.

        :return: the text of the file
        """
        return self._text

    def set_checkpoint_state(self, state: str) -> None:
        """
        Go on from a checkpoint: the file has what it had then.

        :param state: the text of the file
        """
        self._text = state
        write_whole(self.path, self._text)


class CSVLog(CSVOutputFormat):
    """
    ``progress.csv`` as SB3 writes it. An old file is replaced with the first row.

    :param path: the file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys = []
        self.separator = ","
        self.quotechar = '"'

    @cached_property
    def file(self) -> io.TextIOWrapper:  # type: ignore[override]
        """The file. Opening it empties it: that is done late, for runs that cannot be resumed."""
        return self.path.open("w+", encoding="utf-8")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: the names of the columns, and the text of the file
        """
        self.file.seek(0)
        # Reading to the end leaves the file where writing goes on.
        return {"keys": self.keys, "text": self.file.read()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint: the file has what it had then.

        :param state: the names of the columns, and the text of the file
        """
        self.keys = state["keys"]
        # The file is empty, as it is opened just now.
        self.file.write(state["text"])
        self.file.flush()


def logger(folder: Path, table: CSVLog, step: int) -> Logger:
    """
    Make a logger to ``progress.csv`` and to TensorBoard.

    :param folder: folder to which TensorBoard's events are written
    :param table: ``progress.csv``
    :param step: step from which the run goes on, 0 for a new run; later events are dropped
    :return: SB3's logger
    """
    events = TensorBoardOutputFormat(str(folder))
    if step > 0:
        events.writer.close()
        # SummaryWriter takes the first step that is dropped.
        events.writer = SummaryWriter(str(folder), purge_step=step + 1)
    return Logger(str(folder), [table, events])


class Clock(BaseCallback):
    """Measures the time of training; pauses do not count."""

    def __init__(self) -> None:
        super().__init__()
        self._began = 0.0
        self._before = 0.0

    @property
    def training_seconds(self) -> float:
        """Seconds of training until now, or until training ended."""
        return self._before + (time.perf_counter() - self._began if self._began else 0.0)

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._before = self.training_seconds
        self._began = 0.0

    def get_checkpoint_state(self) -> Any:
        """
        Return the state that a checkpoint keeps.

        :return: seconds of training
        """
        return self.training_seconds

    def set_checkpoint_state(self, state: Any) -> None:
        """
        Go on from a checkpoint.

        :param state: seconds of training before it
        """
        self._before = state
