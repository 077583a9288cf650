"""Log files that go on where a checkpoint was written."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks import recording as logs


def test_tensorboard_keeps_the_step_of_the_checkpoint_and_drops_later_ones(tmp_path):
    for start, steps in ((0, [3, 5, 8]), (5, [9])):  # stopped after a checkpoint at step 5, and gone on from there
        logger = logs.logger(tmp_path, logs.CSVLog(tmp_path / "progress.csv"), start)
        for step in steps:
            logger.record("value", step)
            logger.dump(step)
        logger.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("value")] == [3, 5, 9]


@pytest.mark.parametrize("kind", ["progress", "curve"])
def test_files_are_emptied_only_when_there_is_something_to_write(kind, tmp_path):
    path = tmp_path / "log.csv"

    made = []

    def make():
        made.append(logs.CSVLog(path) if kind == "progress" else logs.CurveLog(path, ["step", "value"]))
        return made[-1]

    def add(log, step):
        if kind == "progress":
            log.write({"step": step}, {"step": ()})
        else:
            log.add([step, 1])

    first = make()
    add(first, 1)
    state, text = first.get_checkpoint_state(), path.read_text()
    add(first, 2)
    longer = path.read_text()
    assert longer.startswith(text)
    second = make()
    assert path.read_text() == longer  # were the run not to be resumed, nothing would be lost
    second.set_checkpoint_state(state)
    assert path.read_text() == text
    add(second, 2)
    assert path.read_text() == longer
    add(make(), 1)
    assert path.read_text() == text
    if kind == "progress":
        for log in made:
            log.close()
