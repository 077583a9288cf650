"""A run as a value, the folder it lies in, and its result."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any


class SuiteError(ValueError):
    """Raised when a spec, a result or an option is wrong. The message says what to do."""


@dataclass(frozen=True, eq=False)
class Spec:
    """
    One run. Equal specs are the same run: they have the same name and the same folder.

    :param carry_out: import path ``package.module:function``. ``function(spec, folder)`` goes on
        from what it left in ``folder``, writes below ``folder`` only, and returns a mapping of
        plain JSON. It may be killed at any moment and is then called again. It must not start
        programs, which would outlive it
    :param agent: name of the agent that learns; times are estimated for each agent
    :param game: a game, or the id of an environment
    :param seed: seed of everything random
    :param steps: environment steps
    :param settings: all else that the function needs, as plain JSON
    :raises SuiteError: if a field is invalid
    """

    carry_out: str
    agent: str
    game: str
    seed: int
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.carry_out):
            raise SuiteError(f"carry_out must be package.module:function, got {self.carry_out!r}")
        for name in ("agent", "game"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise SuiteError(f"{name} must be a name, got {getattr(self, name)!r}")
        for name, least in (("seed", 0), ("steps", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SuiteError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )
        try:
            copy = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise SuiteError(
                f"settings must be plain JSON, got {self.settings!r}: {error}"
            ) from error
        if copy != dict(self.settings):  # A tuple would come back as a list.
            raise SuiteError(
                f"settings must be plain JSON, got {self.settings!r}, which comes back as {copy!r}"
            )
        object.__setattr__(self, "settings", copy)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same run. Names tell 1 from 1.0, which fields would not."""
        return self.name == other.name if isinstance(other, Spec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """Name of the folder: readable, and unique by a hash of all fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        agent = readable(self.agent)
        game = readable(self.game)
        return f"{agent}-{game}-{self.steps}-seed{self.seed}-{digest}"

    def folder(self, root: Path) -> Path:
        """
        Return the folder of this run.

        :param root: the folder of all runs
        :return: a folder below it, which need not be there
        """
        return root / self.name

    def write(self, root: Path) -> None:
        """
        Make the folder of this run, with ``spec.json`` in it.

        :param root: the folder of all runs
        """
        folder = self.folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "spec.json").exists():
            write_whole(folder / "spec.json", json.dumps(asdict(self), indent=2) + "\n")


def readable(words: str) -> str:
    """
    Return words as a part of a name of a folder.

    :param words: any words
    :return: their letters and digits of ASCII, of which there may be none
    """
    return re.sub(r"[^A-Za-z0-9-]+", "_", words)[:60].strip("_-")


@dataclass(frozen=True)
class Result:
    """The result of a finished run."""

    spec: Spec
    """The run."""
    values: Mapping[str, Any]
    """What the run's function returned."""
    seconds: float
    """Seconds of the last attempt."""
    attempts: int
    """Number of all attempts."""

    def write(self, folder: Path) -> None:
        """
        Write ``result.json`` atomically.

        :param folder: the folder of the run
        :raises SuiteError: if the values are no plain JSON
        """
        try:
            text = json.dumps(asdict(self), indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SuiteError(
                f"{self.spec.carry_out} must return plain JSON, got {self.values!r}: {error}"
            ) from error
        write_whole(folder / "result.json", text + "\n")


def read_result(folder: Path) -> Result:
    """
    Read the result of a run.

    :param folder: the folder of the run
    :return: the result
    :raises FileNotFoundError: if the run has not finished
    :raises SuiteError: if the result is damaged, or of another run
    """
    path = folder / "result.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        values = dict(record["values"].items())
        spec = Spec(**record["spec"])
        result = Result(spec, values, float(record["seconds"]), int(record["attempts"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SuiteError(
            f"{path} is damaged: {error!r}. Remove it, and the run finishes once more"
        ) from error
    if result.spec.name != folder.name:
        raise SuiteError(
            f"{path} is of another run, {result.spec.name}. "
            "Remove it, and the run finishes once more"
        )
    return result


def results(specs: Iterable[Spec], root: Path) -> dict[Spec, Result]:
    """
    Read the results of all runs that have finished.

    :param specs: the runs
    :param root: the folder of all runs
    :return: results, in the order of ``specs``
    :raises SuiteError: if a result is damaged
    """
    folders = {spec: spec.folder(root) for spec in specs}
    return {
        spec: read_result(folder)
        for spec, folder in folders.items()
        if (folder / "result.json").exists()
    }


def check_known(what: str, chosen: Iterable[str], known: Iterable[str]) -> None:
    """
    Refuse names that are not known.

    :param what: what is chosen, for the message
    :param chosen: the names
    :param known: the names that may be chosen
    :raises SuiteError: if one of them may not
    """
    names = list(known)
    unknown = [each for each in chosen if each not in names]
    if unknown:
        raise SuiteError(f"{what} must be of {', '.join(names)}, got {' '.join(unknown)}")


def write_whole(path: Path, content: str | bytes) -> None:
    """
    Write a file atomically and durably: after a power failure it is the old one or the new one.

    :param path: the file
    :param content: its content; text is written as UTF-8, and its line ends as they are
    """
    # Processes on two machines may have the same number.
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with staged.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    if os.name == "nt":  # Folders cannot be opened on Windows.
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        # This makes the new name durable.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
