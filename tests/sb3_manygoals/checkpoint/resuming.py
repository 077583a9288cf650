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

NOT_COMPARED = {
    "time/fps",
    "time/time_elapsed",
    "time/iterations",
}  # SB3 counts iterations anew in each call of learn


class Stop(BaseCallback):
    """Ends training as if the power failed."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise KeyboardInterrupt
        return True


def same(left, right):
    """Equal to the last bit, but for wall-clock times and the generators of spaces, which nobody has seeded."""
    assert_same(left, right, ignore={*TIMES, "_np_random"})


def assert_the_end_is_the_same(make, root, stops=(75, 185), steps=240, every_steps=20):
    """
    Compare the last checkpoints, and the logs from where training went on. ``make`` gives a model and its callbacks that have
    a state. Returns the last checkpoint, and the callbacks of the run that was not stopped at any of the ``stops``.
    """

    def learn(run, stop=None):
        (model, extras), folder = make(), root / run
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
        at = int(last.name.split("-")[1][4:])
        assert not resumed
        assert stop - 2 * every_steps < at <= stop
        np.random.rand(5), th.rand(3)  # noqa: NPY002 - the generators are elsewhere than they were
        resumed, log, _, last = learn(f"stopped-{stop}")
        assert resumed
        same(whole, read_checkpoint(last))
        assert log == [row for row in rows if int(row["time/total_timesteps"]) > at]
        assert log
    return whole, extras
