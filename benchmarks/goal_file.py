"""Goals in a file, by which agents are measured where observations cannot be listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.worlds import SettingError, World
from sb3_manygoals import GoalBufferWrapper
from sb3_manygoals.goals.spaces import converted

GOALS_FILE = "eval_goals.npy"
"""The copy of a file of goals, in the folder of a run."""


def given_goals(given: Path, begun: Path | None, world: World) -> NDArray[Any]:
    """
    Return the goals of a file, or those that a run has kept if it goes on.

    :param given: the file of the user, which may be gone if the run goes on
    :param begun: the folder of a run that goes on; None: it begins
    :param world: the world of the run
    :return: observations of the world, shape (n, ...)
    :raises SettingError: if a file does not have observations of the world, or the user's has other
        goals than the run
    """
    if begun is None or not (begun / GOALS_FILE).exists():
        return read_goals(given, world)
    kept = read_goals(begun / GOALS_FILE, world)
    if given.exists() and not np.array_equal(read_goals(given, world), kept):
        raise SettingError(
            f"eval_goals has other goals than when the run was begun, got {given}. Begin another "
            f"run, or write the goals of {begun / GOALS_FILE} into it"
        )
    return kept


def keep_goals(goals: NDArray[Any], folder: Path) -> None:
    """
    Write goals into the folder of a run, whole or not at all, unless they are there.

    :param goals: observations, shape (n, ...)
    :param folder: the folder
    """
    if (folder / GOALS_FILE).exists():
        return
    staged = folder / f"{GOALS_FILE}.tmp"
    with staged.open("wb") as file:
        np.save(file, goals)
    staged.replace(folder / GOALS_FILE)


def read_goals(path: Path, world: World) -> NDArray[Any]:
    """
    Read observations of a world from a file.

    :param path: a file that ``numpy.save`` wrote
    :param world: the world
    :return: the observations, shape (n, ...), with the dtype of the world's
    :raises SettingError: if there is no such file, or it does not have observations of the world
    """
    env = GoalBufferWrapper(world.make())
    try:
        goals = converted(np.load(path, allow_pickle=False), env.goal_buffer.goal_space)
        found: NDArray[Any] = env.goal_buffer.check_goals(goals, "eval_goals")
    except (OSError, ValueError, EOFError) as error:
        raise SettingError(
            f"eval_goals must be a file of observations of {world.id}, got {path}: {error}"
        ) from error
    finally:
        env.close()
    if not len(found):
        raise SettingError(f"eval_goals must have at least one observation, got none in {path}")
    return found
