"""The reader of runs: what folders of runs and suites hold, as data frames."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.goal_file import GOALS_FILE
from benchmarks.report import PastRunError
from benchmarks.scores import random_score
from benchmarks.suite import Spec, SuiteError, read_result

KEY = ["study", "agent", "game", "seed", "steps"]
"""Columns that say which run it is."""
NUMBERS = ["step", "attempts", "training_seconds", "wall_seconds", "score"]
"""Columns with measurements."""
COMPARABLE = ("env_id", "map", "eval_steps", "eval_epsilon", "total_steps", "held_out")
"""
Settings that make mastery comparable: runs that differ in one, or in the goals of a file, are
summed up apart.
"""
INCIDENTAL = {"seed", "output", "resume", "progress_bar", "checkpoint_minutes", "eval_goals"}
"""
Settings in which runs of one agent may differ. Files of goals may differ in their paths only. This
is seen by their content once a run has begun.
"""
NOT_SHOWN = ("lock", "spec.json", "report.html")
"""Files in the folder of a run that are not for readers."""


def read(folders: Iterable[Path]) -> pd.DataFrame:
    """
    Read all runs and suites in or below some folders.

    Runs of one agent are told apart by their settings.

    The columns are :data:`KEY` ("study" is empty for single runs), "status" ("finished",
    "unfinished", "not begun"), "step" of the newest measurement, "attempts", "training_seconds",
    "wall_seconds" of the last attempt, "score" (that of random play, or 0 where none is known, if
    the run has finished and no episode has ended), "has_ended" (whether one has), "group" (of runs
    of mastery that can be compared), "goals" (the first letters of a SHA-256 of the run's copy of a
    file of goals), "path" of the run's folder, "own" folder with its files, "asked", the settings
    in the spec of a run of a suite, "settings", and "record" of ``config.json``.

    :param folders: the folders
    :return: a row a run
    :raises PastRunError: if a folder is not there, there are no runs, two are the same, or a file
        of a run is damaged
    :raises SuiteError: if a file of a suite is damaged
    """
    folders = list(map(Path, folders))
    for folder in folders:
        if not folder.is_dir():
            raise PastRunError(f"runs must be folders, got {folder}")
    suites = _folders_with("spec.json", folders)
    singles = [
        each
        for each in _folders_with("config.json", folders)
        if not {each, *each.parents} & suites.keys()
    ]
    rows = [*map(_of_suite, suites), *filter(None, map(_single, singles))]
    if not rows:
        raise PastRunError(
            "runs must have at least one folder with spec.json, or config.json and measurements, "
            "got none"
        )
    columns = [*KEY, "status", *NUMBERS, "has_ended", "group", "goals"]
    columns += ["path", "own", "asked", "settings", "record"]
    runs = pd.DataFrame(rows).reindex(columns=columns)
    runs = runs.astype(dict.fromkeys(NUMBERS, float)).astype({"group": object, "goals": object})
    _tell_apart(runs)
    for _, same in runs.groupby([*KEY, "group"], dropna=False):
        if len(same) > 1:
            _, agent, game, seed, steps = same.iloc[0][KEY]
            where = " and ".join(map(str, same["path"][:2]))
            raise PastRunError(
                f"two runs of {agent} in {game}, seed {seed}, {steps} steps, in {where}: "
                "report on them apart"
            )
    return runs.sort_values(["study", "agent", "steps", "game", "seed"], ignore_index=True)


def gather(runs: pd.DataFrame, file: str) -> pd.DataFrame:
    """
    Gather the rows of a CSV file from the folders of all runs that have it.

    :param runs: runs as :func:`read` returns them
    :param file: name of the file
    :return: all rows, with "agent", "game" and "seed" of the run as first columns
    """
    key = ["agent", "game", "seed"]
    having = [run for run in runs.itertuples() if (run.own / file).is_file()]
    found = [
        _table(run.own / file).assign(**{name: getattr(run, name) for name in key})
        for run in having
    ]
    table = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=key)
    return table[[*key, *table.columns.difference(key, sort=False)]]


def settled(runs: pd.DataFrame) -> pd.DataFrame:
    """
    Return finished runs; of an agent that has none in a game, those that have begun.

    Runs are compared at steps that all of them have. One that has just begun would cut the others
    short.

    :param runs: runs as :func:`read` returns them
    :return: those rows
    """
    finished = runs["status"] == "finished"
    has_finished = finished.groupby([runs["agent"], runs["game"]]).transform("any")
    return runs[finished | ~has_finished]


def files(path: Path) -> list[Path]:
    """
    List the files of a run that can be looked at: no checkpoints, and no report.

    :param path: the folder of the run
    :return: files, sorted
    """
    found = []
    for each in sorted(path.rglob("*")):
        is_inner = {"checkpoints", "report-data"} & {*each.relative_to(path).parts}
        if each.is_file() and each.name not in NOT_SHOWN and not is_inner:
            found.append(each)
    return found


def _folders_with(name: str, folders: list[Path]) -> dict[Path, None]:
    """Return the folders below some others that have a file, each once and in order."""
    return {
        Path(os.path.abspath(path.parent)): None
        for each in folders
        for path in sorted(each.rglob(name))
    }


def _of_suite(folder: Path) -> dict[str, Any]:
    """Return the row of a run of a suite."""
    try:
        spec = Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SuiteError(f"{folder / 'spec.json'} is damaged: {error!r}") from error
    log = folder / "attempts.jsonl"
    own = next((path.parent for path in sorted(folder.rglob("config.json"))), None)
    attempts = len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0
    row: dict[str, Any] = {
        "study": spec.carry_out,
        "agent": spec.agent,
        "game": spec.game,
        "seed": spec.seed,
        "steps": spec.steps,
        "asked": dict(spec.settings),
    }
    row |= {
        "path": folder,
        "own": own or folder,
        "attempts": attempts,
        "status": "unfinished" if attempts else "not begun",
    }
    if (folder / "result.json").exists():
        result = read_result(folder)
        if "training_seconds" in result.values:
            row["training_seconds"] = result.values["training_seconds"]
        if "score" in result.values:
            row |= _scored(result.values["score"], spec.game)
        row |= {"status": "finished", "step": spec.steps, "wall_seconds": result.seconds}
    return row | (_measured(own) if own is not None else {})


def _single(folder: Path) -> dict[str, Any] | None:
    """Return the row of a single run; None, if it has measured nothing yet."""
    row = _measured(folder)
    if "step" not in row:
        print(f"left out: {folder}, which has no measurement in mastery.csv or curve.csv")
        return None
    settings = row["settings"]
    score = folder / "score.json"
    try:
        row |= {"agent": settings["agent"], "seed": int(settings["seed"])}
        if "env_id" not in settings:
            row["agent"] = _name_in_studies(settings)
        if "env_id" in settings:
            row |= {"game": settings["env_id"], "steps": int(settings["total_steps"])}
        else:
            row |= {"game": settings["game"], "steps": int(settings["steps"])}
        if score.is_file():
            value = json.loads(score.read_text(encoding="utf-8"))["score"]
            row |= _scored(value, row["game"])
    except (KeyError, ValueError, TypeError) as error:
        raise PastRunError(f"{folder} is not the folder of a run: {error!r}") from error
    done = score.is_file() or (folder / "summary.csv").is_file()
    return row | {
        "study": "",
        "path": folder,
        "own": folder,
        "status": "finished" if done else "unfinished",
    }


def _scored(score: float | None, game: str) -> dict[str, Any]:
    """Return the score of a finished run. One in which no episode ended counts as random play."""
    has_ended = score is not None
    return {"score": score if has_ended else random_score(game), "has_ended": has_ended}


def _name_in_studies(settings: dict[str, Any]) -> str:
    """Return what studies of games call the agent of a single run, as the paper's tables do."""
    agent = str(settings["agent"]).replace("_", "-")
    if "pretrain_steps" not in settings:
        return agent
    return "a2c" if agent == "none" else f"{agent}-pretraining"


def _measured(own: Path) -> dict[str, Any]:
    """Return what a run's own folder says of it: its record, and how far it has come."""
    file = own / "config.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        settings = dict(record.get("settings", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise PastRunError(f"{file} is damaged: {error!r}") from error
    found: dict[str, Any] = {"record": record, "settings": settings, "group": None}
    if "eval_steps" in settings:
        group = [settings.get(each) for each in COMPARABLE]
        if settings.get("eval_goals") is not None:
            copy = own / GOALS_FILE
            if copy.is_file():
                found["goals"] = hashlib.sha256(copy.read_bytes()).hexdigest()[:12]
            # What a run without its copy measures cannot be compared with anything.
            group.append(found.get("goals", str(own)))
        found["group"] = str(group)
    for name, column in (("summary.csv", "steps"), ("mastery.csv", "step"), ("curve.csv", "step")):
        table = _table(own / name) if (own / name).is_file() else pd.DataFrame()
        if len(table) and column in table:
            last = table.iloc[-1]
            found["step"] = last[column]
            if "training_seconds" in last:
                found["training_seconds"] = last["training_seconds"]
            break
    if "step" not in found and "goals" not in found and settings.get("eval_goals") is not None:
        # The run has just begun, and has kept no copy yet.
        found["group"] = None
    return found


def _table(file: Path) -> pd.DataFrame:
    """Read a CSV file of a run. Raise a PastRunError if it cannot be read."""
    try:
        return pd.read_csv(file)
    except ValueError as error:
        raise PastRunError(f"{file} is damaged: {error}") from error


def _files_of_goals(runs: pd.DataFrame) -> list[str | None]:
    """
    Return what tells the goals of each run of a suite from others: the hash of a run that has begun
    with the same path; the path, if there is none; None without a file of goals.
    """
    paths = [asked.get("eval_goals") for asked in runs["asked"]]
    pairs = zip(paths, runs["goals"], strict=True)
    hashes = {path: goals for path, goals in pairs if isinstance(goals, str)}
    return [hashes.get(path, path) for path in paths]


def _tell_apart(runs: pd.DataFrame) -> None:
    """
    Append the settings in which runs of one agent differ to its name.

    Of runs of a suite, these are settings in their specs.
    """
    # A run of a suite that has not begun is in no group, but its spec says what it will be.
    group = runs["group"].where(runs["study"] == "", None)
    same = ["study", "agent", "game", "steps", group]
    for (study, *_), alike in runs.groupby(same, dropna=False):
        texts = [
            {key: str(value) for key, value in each.items() if key not in INCIDENTAL}
            for each in alike["asked" if study else "settings"]
        ]
        settings = pd.DataFrame(texts, index=alike.index)
        if study:
            settings["eval_goals"] = _files_of_goals(alike)
        if study:
            # What a spec does not say has its default.
            settings = settings.fillna("default")
        for row, values in settings.loc[:, settings.nunique() > 1].iterrows():
            # A run that lacks a setting is older than the setting: that is no difference.
            said = [f"{key}={value}" for key, value in values.dropna().items()]
            runs.loc[row, "agent"] = ", ".join([runs.loc[row, "agent"], *said])
