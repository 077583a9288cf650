"""When checkpoints are written, and what signals, other callbacks and mistakes do to that."""

import errno
import os
import signal
import sys
import textwrap
from subprocess import PIPE, Popen
from threading import Thread

import gymnasium as gym
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps

from sb3_manygoals import ExactCheckpointCallback, GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError, checkpoints, folder, read_checkpoint
from sb3_manygoals.checkpoint.envs import StatefulEnv
from sb3_manygoals.checkpoint.lock import Lock
from tests.sb3_manygoals.checkpoint import kinds
from tests.sb3_manygoals.checkpoint.resuming import Stop, same, step_of
from tests.sb3_manygoals.checkpoint.test_resume import SMALL, build

pytestmark = pytest.mark.usefixtures("no_sync")


class Told(Exception):
    """Raised by the test's own handler of signals, which stands for the program's."""


class Do(BaseCallback):
    """
    Does something at a step.

    :param step: number of environment steps after which it is done
    :param do: a function that does it; default: do nothing
    :param go_on: whether training goes on then; default: True
    """

    def __init__(self, step, do=lambda: None, go_on=True):
        super().__init__()
        self.step = step
        self.do = do
        self.go_on = go_on

    def _on_step(self):
        if self.num_timesteps == self.step:
            self.do()
            return self.go_on
        return True


@pytest.fixture
def told():
    """A function that sends SIGTERM to this process, where signals raise Told."""

    def tell(number, frame):
        raise Told

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda: signal.raise_signal(signal.SIGTERM)
    for number, handler in before.items():
        signal.signal(number, handler)


def steps(root):
    """
    Return the steps at which checkpoints were written.

    :param root: the folder of the checkpoints
    :return: a list of numbers of environment steps, the oldest first
    """
    return [step_of(path) for path in reversed(checkpoints(root))]


def test_the_same_callback_in_a_second_call_of_learn(tmp_path):
    model = build("one environment")
    callback = ExactCheckpointCallback(tmp_path, every_steps=20, keep=None)
    model.learn(50, callback)
    model.learn(45, callback)
    assert steps(tmp_path) == [20, 40, 50, 20, 40, 45]
    model.learn(15, callback, reset_num_timesteps=False)
    assert steps(tmp_path)[6:] == [60]


def test_where_a_callback_ends_training_within_a_rollout_none_is_written(tmp_path):
    def learn(folder, *others):
        model = build("one environment", updates_per_step=0.25)
        callback = ExactCheckpointCallback(folder, every_steps=20)
        resumed = callback.resume(model)
        model.learn(100 - model.num_timesteps, [callback, *others], reset_num_timesteps=not resumed)

    learn(tmp_path / "whole")
    with pytest.warns(
        UserWarning,
        match="no checkpoint at step 50: a callback has ended training within a rollout",
    ):
        learn(tmp_path / "stopped", Do(50, go_on=False))
    assert steps(tmp_path / "stopped") == [20, 40]
    learn(tmp_path / "stopped")
    same(*[read_checkpoint(checkpoints(tmp_path / run)[0]) for run in ("whole", "stopped")])


def test_what_cannot_be_saved_is_refused_before_the_first_step(tmp_path):
    model = build("vectors")
    model.env.venv.envs[0].unwrapped.thing = object()
    with pytest.raises(CheckpointError, match=r"CartPoleEnv.thing is a builtins.object"):
        model.learn(50, ExactCheckpointCallback(tmp_path))
    assert model.num_timesteps == 0


def test_two_trainings_in_one_folder_are_refused_before_the_first_step(tmp_path):
    """The second one is of another thread. Tests of Lock have another process."""
    second = alone()
    refused = []

    def learn():
        with pytest.raises(CheckpointError) as error:
            second.learn(20, ExactCheckpointCallback(tmp_path))
        refused.append(str(error.value))

    def start():
        thread = Thread(target=learn)
        thread.start()
        thread.join()

    alone().learn(5, [ExactCheckpointCallback(tmp_path), Do(3, start)])
    (message,) = refused
    assert "writes its checkpoints here" in message
    assert second.num_timesteps == 0
    assert steps(tmp_path) == [5]
    # The first training has ended.
    alone().learn(20, ExactCheckpointCallback(tmp_path))


class Disk:
    """
    Stands before the writing of checkpoints as a disk that is full for some steps.

    :param monkeypatch: puts it there
    :param model: the model whose steps count
    :param full_from: the first step at which the disk is full
    :param full_until: the step from which on it is not full any more
    """

    def __init__(self, monkeypatch, model, full_from, full_until):
        self.model = model
        self.full = range(full_from, full_until)
        self.save = folder.save_tree
        monkeypatch.setattr(folder, "save_tree", self)

    def __call__(self, tree, file):
        if self.model.num_timesteps in self.full:
            raise OSError(errno.ENOSPC, "the disk is full")
        self.save(tree, file)


def test_a_checkpoint_that_cannot_be_written_does_not_end_training(tmp_path, monkeypatch):
    kept = []
    model = alone()
    callback = ExactCheckpointCallback(tmp_path, every_steps=10, keep=2)
    Disk(monkeypatch, model, 30, 50)
    with pytest.warns(
        UserWarning, match=r"no checkpoint at step [34]0: .*the 2 older ones stay"
    ) as said:
        model.learn(60, [callback, Do(45, lambda: kept.append(steps(tmp_path)))])
    assert sum("no checkpoint at step" in str(one.message) for one in said) == 2
    assert kept.pop() == [10, 20]
    assert steps(tmp_path) == [50, 60]


def test_if_the_last_one_cannot_be_written_training_ends_with_the_error(tmp_path, monkeypatch):
    model = alone()
    callback = ExactCheckpointCallback(tmp_path, every_steps=10)
    Disk(monkeypatch, model, 30, 99)
    with (
        pytest.warns(UserWarning, match="no checkpoint at step 30"),
        pytest.raises(OSError, match="the disk is full"),
    ):
        model.learn(35, callback)
    assert (model.num_timesteps, steps(tmp_path)) == (35, [10, 20])
    # The folder is free again.
    with Lock(tmp_path):
        pass


def test_a_failed_write_is_remembered_where_no_other_one_follows(tmp_path, monkeypatch):
    model = build("one environment", updates_per_step=0.25)
    callback = ExactCheckpointCallback(tmp_path, every_steps=20)
    Disk(monkeypatch, model, 40, 41)
    with (
        pytest.warns(UserWarning, match="no checkpoint at step"),
        pytest.raises(OSError, match="the disk is full"),
    ):
        model.learn(100, [callback, Do(50, go_on=False)])


@pytest.fixture
def left(tmp_path):
    """A model and its callback after a training that was left by an exception."""
    model = build("one environment")
    callback = ExactCheckpointCallback(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        model.learn(20, [callback, Stop(5)])
    return model, callback


def test_a_signal_after_a_training_that_was_left_by_an_exception_does_not_wait(told, left):
    with pytest.raises(Told):
        told()


def test_a_signal_in_another_training_of_the_model_does_not_wait(tmp_path, told, left):
    """Test a training without the callback, whose handlers are still there."""
    model, _ = left
    with pytest.raises(Told):
        model.learn(20, Do(7, told))
    assert steps(tmp_path) == []


@pytest.mark.parametrize("has_other_callback", [False, True])
def test_signals_in_the_training_after_one_that_was_left_wait(
    has_other_callback, tmp_path, told, left
):
    model, callback = left
    if has_other_callback:
        callback = ExactCheckpointCallback(tmp_path)
    with pytest.raises(Told):
        model.learn(20, [callback, Do(7, told)])
    assert steps(tmp_path) == [7]


def test_a_second_signal_does_not_wait(tmp_path, told):
    def tell_twice():
        told()
        told()

    with pytest.raises(Told):
        build("one environment").learn(20, [ExactCheckpointCallback(tmp_path), Do(7, tell_twice)])
    assert steps(tmp_path) == []


def test_signals_that_do_not_end_it(tmp_path, told):
    # A shell starts programs in the background so that they ignore SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    noted = []
    signal.signal(signal.SIGTERM, lambda number, frame: noted.append(number))
    interrupt = Do(3, lambda: signal.raise_signal(signal.SIGINT))
    build("one environment").learn(
        12, [ExactCheckpointCallback(tmp_path), interrupt, Do(5, told), Do(8, told)]
    )
    assert steps(tmp_path) == [5, 8, 12]
    assert noted == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_mistakes_are_noticed(tmp_path):
    model = build("one environment")
    callback = ExactCheckpointCallback(tmp_path)
    with pytest.raises(
        ValueError,
        match="is inside of EveryNTimesteps, which does not tell it where rollouts start",
    ):
        model.learn(20, EveryNTimesteps(10, callback))
    callback = ExactCheckpointCallback(tmp_path)
    with pytest.raises(RuntimeError, match=r"save\(\) must be called after learn\(\) has begun"):
        callback.save()
    build("one environment").learn(20, callback)
    callback.save()
    model = build("one environment")
    assert callback.resume(model)
    with pytest.raises(RuntimeError, match=r"save\(\) must be called after learn\(\) has begun"):
        callback.save()
    with pytest.raises(ValueError, match="pass reset_num_timesteps=False"):
        model.learn(20, callback)


class Log:
    """
    A log that needs an entry of its state.

    :param key: the name of the entry; a saved state has only "key"
    """

    def __init__(self, key):
        self.key = key

    def get_checkpoint_state(self):
        return {"key": 1}

    def set_checkpoint_state(self, state):
        state[self.key]


class Counting(BaseCallback):
    """Counts steps, and has a state that belongs to a run."""

    def _on_step(self):
        return True

    def get_checkpoint_state(self):
        return self.n_calls

    def set_checkpoint_state(self, state):
        self.n_calls = state


def test_callbacks_that_are_not_saved_or_come_too_late_are_named(tmp_path):
    counting = Counting()
    forgetful = ExactCheckpointCallback(tmp_path / "one")
    with pytest.warns(UserWarning, match="do not have the state of Counting.*: give it in extras"):
        build("one environment").learn(20, [counting, forgetful])
    saving = ExactCheckpointCallback(tmp_path / "two", extras={"counting": counting})
    with pytest.warns(UserWarning, match="Counting comes after ExactCheckpointCallback in the"):
        build("one environment").learn(20, [saving, counting])
    # No warning.
    saving = ExactCheckpointCallback(tmp_path / "three", extras={"counting": counting})
    build("one environment").learn(20, [counting, saving])


def test_what_does_not_fit_is_one_kind_of_error(tmp_path):
    def both(capacity=100, **extras):
        buffer = GoalBuffer(gym.make(SMALL).observation_space, capacity)
        model = build("one environment", goal_wrapper_kwargs={"goal_buffer": buffer})
        return model, ExactCheckpointCallback(tmp_path, extras=extras)

    model, callback = both(log=Log("key"))
    model.learn(20, callback)
    for kwargs, message in (
        ({"capacity": 200, "log": Log("key")}, "capacity=100, not 200"),
        ({"log": Log("other")}, r"fit extras\['log'\]: KeyError"),
        ({"logs": Log("key")}, r"has the extras \['log'\], this run has \['logs'\]"),
    ):
        model, callback = both(**kwargs)
        with pytest.raises(CheckpointError, match=message):
            callback.resume(model)


def test_another_number_of_threads_is_a_warning(tmp_path):
    build("one environment").learn(20, ExactCheckpointCallback(tmp_path))
    before = th.get_num_threads()
    th.set_num_threads(before + 1)
    try:
        with pytest.warns(
            UserWarning,
            match=f"written with {before} threads of torch, this process has {before + 1}",
        ):
            assert ExactCheckpointCallback(tmp_path).resume(build("one environment"))
    finally:
        th.set_num_threads(before)


def test_an_unreadable_checkpoint_does_not_push_out_a_readable_one(tmp_path):
    build("one environment").learn(50, ExactCheckpointCallback(tmp_path, every_steps=20, keep=2))
    assert steps(tmp_path) == [40, 50]
    checkpoints(tmp_path)[0].write_text("damaged")
    model = build("one environment")
    callback = ExactCheckpointCallback(tmp_path, every_steps=20, keep=2)
    with pytest.warns(UserWarning, match="skipped a checkpoint that cannot be read"):
        assert callback.resume(model, fallback=True)
    model.learn(60 - model.num_timesteps, callback, reset_num_timesteps=False)
    assert steps(tmp_path) == [40, 50, 60]


def alone():
    return build("one environment")


def forked():
    return build("one environment", env=kinds.forked(lambda: StatefulEnv(gym.make(SMALL))))


SCRIPT = """
    import signal, sys
    # A shell starts programs in the background so that they ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:0] = {path!r}
    import torch
    # The tests have one thread.
    torch.set_num_threads(1)
    from tests.sb3_manygoals.checkpoint import test_callback
    ready = test_callback.Do(70, lambda: print("ready", flush=True))
    checkpoints = test_callback.ExactCheckpointCallback({root!r})
    try:
        test_callback.{make}().learn(10**9, [ready, checkpoints])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "make", "end"),
    [(signal.SIGINT, forked, ("interrupted\n", 0)), (signal.SIGTERM, alone, ("", -signal.SIGTERM))],
)
def test_told_to_end_it_saves_first(number, make, end, tmp_path):
    script = textwrap.dedent(SCRIPT.format(path=sys.path, root=str(tmp_path), make=make.__name__))
    with Popen(
        [sys.executable, "-c", script], stdout=PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        # A terminal, too, sends its signals to the workers.
        os.killpg(process.pid, number)
        try:
            rest, _ = process.communicate(timeout=60)
        finally:
            # If it has not ended, the test must end it.
            process.kill()
    assert (rest, process.returncode) == end
    model = make()
    assert ExactCheckpointCallback(tmp_path).resume(model)
    assert steps(tmp_path) == [model.num_timesteps]
    assert model.num_timesteps >= 70
    model.env.close()
