"""Log files that go on where a checkpoint was written."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import CSVOutputFormat, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard import SummaryWriter


class CurveLog:
    """
    A small CSV file, a row a measurement.

    :param path: the file; one already there is replaced as soon as there is something to write
    :param columns: names of its columns
    """

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path = path
        self._text = ",".join(columns) + "\n"

    def add(self, row: list[Any]) -> None:
        """:param row: a value for each column"""
        self._text += ",".join(map(str, row)) + "\n"
        self._write()

    def get_checkpoint_state(self) -> str:
        """:return: what is in the file"""
        return self._text

    def set_checkpoint_state(self, state: str) -> None:
        """:param state: of :meth:`get_checkpoint_state`; rows written after it are dropped"""
        self._text = state
        self._write()

    def _write(self) -> None:
        staged = self.path.with_name(self.path.name + ".tmp")
        staged.write_text(self._text, encoding="utf-8")
        staged.replace(self.path)


class CSVLog(CSVOutputFormat):
    """
    ``progress.csv`` as SB3 writes it.

    :param path: the file; one already there is replaced as soon as there is something to write
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys, self.separator, self.quotechar = [], ",", '"'

    @cached_property
    def file(self) -> io.TextIOWrapper:  # type: ignore[override]
        """Only now, as opening empties it: a run that cannot be resumed keeps what it has."""
        return self.path.open("w+", encoding="utf-8")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: what is in the file"""
        self.file.seek(0)
        return {"keys": self.keys, "text": self.file.read()}  # reading to the end, where writing goes on

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`; rows written after it are dropped"""
        self.keys = state["keys"]
        self.file.seek(0)
        self.file.truncate()
        self.file.write(state["text"])
        self.file.flush()


def logger(folder: Path, table: CSVLog, step: int) -> Logger:
    """
    :param folder: of a run, new or going on
    :param table: its ``progress.csv``
    :param step: from which it goes on; TensorBoard drops what it was told of later ones
    :return: a logger to both
    """
    events = TensorBoardOutputFormat(str(folder))
    if step > 0:
        events.writer.close()
        events.writer = SummaryWriter(str(folder), purge_step=step + 1)  # the first step that is dropped
    return Logger(str(folder), [table, events])
