"""Training that was stopped, gone on with, and compared with training that was not."""

import contextlib
import csv

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, Logger

from sb3_manygoals import ExactCheckpointCallback
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from tests.sb3_manygoals.checkpoint.trees import TIMES, assert_same

# Wall-clock times, and the iterations, which SB3 counts anew in each call of learn().
NOT_COMPARED = {"time/fps", "time/time_elapsed", "time/iterations"}


class Stop(BaseCallback):
    """
    Ends training as if the power failed.

    :param step: number of environment steps after which training ends
    """

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise KeyboardInterrupt
        return True


def same(left, right):
    """
    Assert that two states are equal to the last bit.

    Wall-clock times are not compared, nor the generators of spaces, which nobody has seeded.

    :param left: a checkpoint state
    :param right: another one
    """
    assert_same(left, right, ignore={*TIMES, "_np_random"})


def step_of(path):
    """
    Return the number of environment steps in the name of a checkpoint.

    :param path: of the checkpoint
    :return: an int
    """
    return int(path.name.split("-")[1].removeprefix("step"))


def assert_the_end_is_the_same(make, root, stops=(75, 185), steps=240, every_steps=40):
    """
    Compare training that was stopped with training that was not.

    The last checkpoints must be the same, and the logs from where training went on.

    :param make: a function that returns a model and, by name, its callbacks that have a state
    :param root: a folder for checkpoints and logs
    :param stops: for each further training, the step at which it is stopped; default: 75 and 185
    :param steps: number of environment steps of the whole training; default: 240
    :param every_steps: number of environment steps between two checkpoints; default: 40
    :return: the last checkpoint, and the callbacks of the training that was not stopped
    """

    def learn(run, stop=None):
        model, extras = make()
        folder = root / run
        log = root / f"{run}-{stop}.csv"
        root.mkdir(exist_ok=True)
        model.set_logger(Logger(str(root), [CSVOutputFormat(str(log))]))
        callback = ExactCheckpointCallback(folder, every_steps=every_steps, keep=2, extras=extras)
        resumed = callback.resume(model)
        callbacks = [*extras.values(), callback, *([Stop(stop)] if stop else [])]
        with contextlib.suppress(KeyboardInterrupt):
            model.learn(
                steps - model.num_timesteps,
                callbacks,
                log_interval=1,
                reset_num_timesteps=not resumed,
            )
        model.logger.close()
        with log.open() as file:
            rows = [
                {key: row[key] for key in row if row[key] and key not in NOT_COMPARED}
                for row in csv.DictReader(file)
            ]
        return resumed, rows, extras, checkpoints(folder)[0]

    resumed, rows, extras, last = learn("whole")
    whole = read_checkpoint(last)
    assert not resumed
    assert whole["learner"]["algorithm"]["counters"]["num_timesteps"] >= steps
    for stop in stops:
        resumed, *_, last = learn(f"stopped-{stop}", stop)
        saved_step = step_of(last)
        assert not resumed
        assert stop - 2 * every_steps < saved_step <= stop
        # The generators are elsewhere now than they were.
        np.random.rand(5)  # noqa: NPY002
        th.rand(3)
        resumed, log, _, last = learn(f"stopped-{stop}")
        assert resumed
        same(whole, read_checkpoint(last))
        assert log == [row for row in rows if int(row["time/total_timesteps"]) > saved_step]
        assert log
    return whole, extras
