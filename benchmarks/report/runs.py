"""The reader of runs: what folders of runs and suites hold, as data frames."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.report import PastRunError
from benchmarks.suite import Spec, SuiteError, read_result

MASTERY_STUDY = "benchmarks.studies.mastery:carry_out"
INCIDENTAL = {"seed", "output", "resume", "preset", "progress_bar", "checkpoint_minutes"}
"""Settings in which runs of the same kind may differ."""
COMPARABLE = ("env_id", "map", "eval_steps", "eval_epsilon", "total_steps", "held_out")
"""Settings that make mastery comparable: runs that differ in one are summed up apart."""
KEY = ["study", "agent", "game", "seed", "steps"]
"""Columns that say which run it is."""
RETURNS = {"curve.csv": ("step", "episode_return"), "progress.csv": ("time/total_timesteps", "rollout/ep_rew_mean")}
"""Files in which returns of episodes are looked for, and their columns of steps and returns: ours, and Stable-Baselines3's."""
BINS = 50
"""Points that a curve of Stable-Baselines3's is reduced to, each the mean of what was logged since the point before."""


def read(folders: Iterable[Path]) -> pd.DataFrame:
    """
    Read runs: of suites, and single ones that have ``mastery.csv`` or ``curve.csv``. A run of mastery is labelled by the
    folder it lies in and, if runs in folders of that name differ in settings, by those settings. Of single runs of mastery
    with one label and seed the one that came furthest counts, of equals the newest; what is left out is printed.

    :param folders: of runs or suites, or folders somewhere below which they are
    :return: a row a run, also of those that a complete study has and that were not begun: :data:`KEY` ("study" is the import
        path of what carries it out, empty for single runs), "status" ("finished", "unfinished" or "not begun"), "step" of the
        newest measurement, "attempts", "training_seconds", "wall_seconds" of the last attempt, "score", "label", "group"
        (runs of mastery that can be compared have the same), "path" of its folder, "own" folder with its files, its
        "settings", those of the agent as ``agent.name``, and its "record" in ``config.json``. What is not known is None or NaN
    :raises PastRunError: if a folder does not exist, no run is in any, or two are the same
    :raises SuiteError: if a spec or a result is damaged
    """
    configured: dict[Path, Path] = {}
    suites: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise PastRunError(f"runs must be folders, got {folder}")
        for name, found in (("config.json", configured), ("spec.json", suites)):
            here = [folder / name] if (folder / name).is_file() else sorted(folder.rglob(name))
            found.update((parent := Path(os.path.abspath(path.parent)), parent) for path in here)  # type: ignore[misc]
    rows = []
    for folder in suites:
        own = next((path for path in configured if folder == path or folder in path.parents), None)
        configured.pop(own, None)  # type: ignore[arg-type]
        rows.append(_of_suite(folder, own))
    for folder in configured:
        if (row := _single(folder)) is not None:
            rows.append(row)
    if not rows:
        raise PastRunError(
            "runs must have at least one folder with spec.json, or config.json and mastery.csv or curve.csv, got none"
        )
    columns = [*KEY, "status", "step", "attempts", "training_seconds", "wall_seconds", "score", "label", "group"]
    runs = pd.DataFrame(rows).reindex(columns=[*columns, "path", "own", "settings", "record"])
    numbers = ["step", "attempts", "training_seconds", "wall_seconds", "score"]
    runs = _labelled(runs.astype(dict.fromkeys(numbers, float)))
    for _, same in runs[(runs["study"] != "") | runs["group"].isna()].groupby(KEY):
        if len(same) > 1:
            agent, game, seed, steps = same.iloc[0][KEY[1:]]
            where = " and ".join(map(str, same["path"][:2]))
            raise PastRunError(f"two runs of {agent} in {game}, seed {seed}, {steps} steps, in {where}: report on them apart")
    runs = pd.concat([runs, _missing(runs)], ignore_index=True)
    return runs.sort_values(["study", "agent", "steps", "game", "seed"], ignore_index=True)


def settings_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    :param folder: of a run
    :return: what its ``config.json`` says, and the settings in it by names as ``agent.name``
    """
    record = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    return record, flatten(record.get("settings", {}))


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    :param settings: may have others within
    :param prefix: of names
    :return: settings by names as ``agent.name``
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _measured(own: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    """What the newest row of ``mastery.csv`` or ``curve.csv`` says."""
    for name in ("mastery.csv", "curve.csv"):
        if own is not None and (own / name).is_file():
            curve = pd.read_csv(own / name)
            if len(curve):
                last = curve.iloc[-1]
                found = {"step": last["step"], "training_seconds": last.get("training_seconds")}
                if name == "mastery.csv":
                    found |= {"label": own.parent.name, "group": str([settings.get(each) for each in COMPARABLE])}
                return found
    return {}


def _of_suite(folder: Path, own: Path | None) -> dict[str, Any]:
    try:
        spec = Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SuiteError(f"{folder / 'spec.json'} is damaged: {error!r}") from error
    result = read_result(folder) if (folder / "result.json").exists() else None
    log = folder / "attempts.jsonl"
    record, settings = ({}, {}) if own is None else settings_of(own)
    row: dict[str, Any] = dict(zip(KEY, (spec.carry_out, spec.agent, spec.game, spec.seed, spec.steps), strict=True))
    row |= {"path": folder, "own": own or folder, "settings": settings, "record": record, "status": "unfinished"}
    row |= {"attempts": len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0}
    if result is not None:
        score = result.values.get("score")
        row |= {"status": "finished", "step": spec.steps, "wall_seconds": result.seconds}
        row |= {"training_seconds": result.values.get("training_seconds")}
        row |= {"score": score if isinstance(score, int | float) else None}
    return row | {key: value for key, value in _measured(own, settings).items() if not pd.isna(value)}


def _single(folder: Path) -> dict[str, Any] | None:
    record, settings = settings_of(folder)
    row = _measured(folder, settings)
    if not row:
        print(f"left out: {folder}, which has no measurement in mastery.csv or curve.csv")
        return None
    row |= {"study": "", "path": folder, "own": folder, "settings": settings, "record": record}
    try:
        row["seed"] = int(settings["seed"])
        if "label" in row:
            row |= {"agent": row["label"], "game": settings["env_id"], "steps": int(settings["total_steps"])}
            done = row["step"] >= row["steps"] and (folder / "goals.csv").is_file()
        else:
            row |= {"agent": settings["agent"], "game": settings["game"], "steps": int(settings.get("steps", row["step"]))}
            done = (folder / "score.json").is_file()
            if done:
                row["score"] = json.loads((folder / "score.json").read_text(encoding="utf-8"))["score"]
    except (KeyError, ValueError, TypeError) as error:
        raise PastRunError(f"{folder} is not the folder of a run: {error!r}") from error
    return row | {"status": "finished" if done else "unfinished"}


def _labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Labels told apart by settings, and of single runs of mastery with one label and seed only one."""
    dropped = []
    for (_, name), alike in runs.dropna(subset=["group"]).groupby(["group", "label"]):
        settings = pd.DataFrame(
            [{key: str(value) for key, value in each.items() if key not in INCIDENTAL} for each in alike["settings"]],
            index=alike.index,
        )
        # A setting that a run does not have is one that there was not yet: no difference.
        for row, values in settings.loc[:, settings.nunique() > 1].iterrows():
            said = [f"{key.removeprefix('agent.')}={value}" for key, value in values.dropna().items()]
            runs.loc[row, "label"] = ", ".join([name, *said])
            if runs.loc[row, "study"] == "":
                runs.loc[row, "agent"] = runs.loc[row, "label"]
    single = runs[(runs["study"] == "") & runs["group"].notna()]
    for _, same in single.groupby(["group", "label", "seed"]):
        order = sorted(same.index, key=lambda row: (runs.status[row] == "finished", runs.step[row], runs.path[row].name))
        for row in order[:-1]:
            print(f"left out: {runs.path[row]}, seed {runs.seed[row]} of {runs.label[row]} like {runs.path[order[-1]]}")
        dropped += order[:-1]
    return runs.drop(index=dropped)


def _missing(runs: pd.DataFrame) -> pd.DataFrame:
    """
    What a complete study has besides: of the study of mastery all agents of a part with the seeds that any has, of others of
    each agent all games and seeds that any other has.
    """
    from benchmarks.studies import mastery as mastery_study  # here, as studies may well use this package

    wanted: dict[tuple[Any, ...], None] = {}
    for (study, steps), alike in runs[runs["study"] != ""].groupby(["study", "steps"]):
        if study == MASTERY_STUDY:
            for part in mastery_study.PARTS:
                seeds = alike["seed"][alike["agent"].str.startswith(f"{part}-")]
                if len(seeds):
                    planned = mastery_study.PARTS[part].specs(int(seeds.max()) + 1)
                    planned = [spec for spec in planned if spec.steps == steps] or planned
                    wanted |= dict.fromkeys((study, spec.agent, spec.game, spec.seed, steps) for spec in planned)
        else:
            columns = [alike[column].unique().tolist() for column in ("agent", "game", "seed")]
            every = pd.MultiIndex.from_product([[study], *columns, [steps]])
            wanted |= dict.fromkeys(every)
    for key in runs[KEY].itertuples(index=False, name=None):
        wanted.pop(key, None)
    return pd.DataFrame(list(wanted), columns=KEY).assign(status="not begun").astype({"seed": int, "steps": int})


def files(path: Path | None) -> list[Path]:
    """
    :param path: of a run's folder; None of one that was not begun
    :return: what it left that can be looked at; not its checkpoints
    """
    found = [] if path is None else [each for each in path.rglob("*") if each.is_file()]
    shown = [each for each in found if each.name not in ("lock", "spec.json")]
    return sorted(each for each in shown if "checkpoints" not in each.relative_to(path).parts)  # type: ignore[arg-type]


def gather(runs: pd.DataFrame, file: str) -> pd.DataFrame:
    """
    :param runs: those with that file
    :param file: name of a CSV file in their folders, or of several runs the same columns
    :return: the rows of all, with columns "label" and "seed" before theirs
    """
    found = []
    for run in runs.itertuples():
        table = pd.read_csv(run.own / file)
        table.insert(0, "label", run.label)
        table.insert(1, "seed", run.seed)
        found.append(table)
    return pd.concat(found, ignore_index=True)


def returns(runs: pd.DataFrame) -> pd.DataFrame:
    """
    :param runs: of games and the like
    :return: "agent", "game", "seed", "step" and "episode_return" of those that logged any
    """
    columns = ["agent", "game", "seed", "step", "episode_return"]
    found = [pd.DataFrame(columns=columns)]
    for run in runs.itertuples():
        for file, names in RETURNS.items():
            path = next(iter(sorted(run.path.rglob(file))), None)
            curve = None if path is None else pd.read_csv(path)
            if curve is None or not set(names) <= set(curve.columns):
                continue
            curve = curve[list(names)].dropna().set_axis(["step", "episode_return"], axis=1)
            if file == "progress.csv":
                curve = binned(curve, run.steps)
            found.append(curve.assign(agent=run.agent, game=run.game, seed=run.seed)[columns])
            break
    return pd.concat(found[1:] or found, ignore_index=True)


def binned(curve: pd.DataFrame, steps: int) -> pd.DataFrame:
    """
    :param curve: "step" and "episode_return"
    :param steps: of the whole run
    :return: the same at the ends of :data:`BINS` bins of equal width: means of what was logged in each. No empty ones
    """
    width = steps / BINS
    number = (-(-curve["step"] // width)).clip(1, BINS)
    means = curve.groupby(number)["episode_return"].mean()
    return pd.DataFrame({"step": (means.index * width).to_numpy().round().astype(int), "episode_return": means.to_numpy()})
