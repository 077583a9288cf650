"""Goals in a file, by which agents are measured where observations cannot be listed."""

from __future__ import annotations

import io
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.suite.spec import write_whole
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
    :raises SettingError: if a file does not have observations of the world, the user's has other
        goals than the run, or the run has lost its copy
    """
    if begun is None:
        return read_goals(given, world)
    copy = begun / GOALS_FILE
    if not copy.exists():
        # The copy is written before training begins.
        if any([*begun.glob("checkpoints/*.pt"), *begun.glob("mastery.csv")]):
            raise SettingError(
                f"eval_goals must be what the run was begun with, but its copy {copy} is missing. "
                "Put it back, or copy the file to it that the run was begun with"
            )
        return read_goals(given, world)
    kept = read_goals(copy, world)
    if given.exists() and not np.array_equal(read_goals(given, world), kept):
        raise SettingError(
            f"eval_goals has other goals than when the run was begun, got {given}. Begin another "
            f"run, or give {copy}, with which this one goes on. In a study, copy that file to the "
            "one that you gave"
        )
    return kept


def keep_goals(goals: NDArray[Any], folder: Path) -> None:
    """
    Write goals into the folder of a run, whole and durably, unless they are there.

    :param goals: observations, shape (n, ...)
    :param folder: the folder
    """
    if (folder / GOALS_FILE).exists():
        return
    content = io.BytesIO()
    np.save(content, goals)
    write_whole(folder / GOALS_FILE, content.getvalue())


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
        with path.open("rb") as file:
            # Unlike numpy.load, this says of other kinds of files what is wrong with them.
            array = np.lib.format.read_array(file, allow_pickle=False)
        goals = converted(array, env.goal_buffer.goal_space)
        found: NDArray[Any] = env.goal_buffer.check_goals(goals, "eval_goals")
    except (OSError, ValueError, SyntaxError, TokenError) as error:
        raise SettingError(
            f"eval_goals must be a file by numpy.save of observations of {world.id}, got {path}: "
            f"{error}"
        ) from error
    finally:
        env.close()
    if not len(found):
        raise SettingError(f"eval_goals must have at least one observation, got none in {path}")
    # Equal goals are equal files.
    return np.ascontiguousarray(found)
