"""Log files that go on where a checkpoint was written."""

import dataclasses
import threading

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.mastery import MasteryConfig
from benchmarks.recording import CSVLog, CurveLog, carry_out, create, logger, open_folder
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.lock import Lock


def test_tensorboard_keeps_the_step_of_the_checkpoint_and_drops_later_ones(tmp_path):
    # The run is stopped after a checkpoint at step 5, and goes on from there.
    for start, steps in ((0, [3, 5, 8]), (5, [9])):
        log = logger(tmp_path, CSVLog(tmp_path / "progress.csv"), start)
        for step in steps:
            log.record("value", step)
            log.dump(step)
        log.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("value")
    assert [event.step for event in events] == [3, 5, 9]


def add(log, step):
    """Add a row with a step to a log of either kind."""
    if isinstance(log, CSVLog):
        log.write({"step": step}, {"step": ()})
    else:
        log.add([step])


@pytest.mark.parametrize(
    "make", [CSVLog, lambda path: CurveLog(path, ["step"])], ids=["progress", "curve"]
)
def test_files_are_emptied_only_when_there_is_something_to_write(make, tmp_path):
    path = tmp_path / "log.csv"
    first = make(path)
    second = make(path)
    third = make(path)
    add(first, 1)
    state = first.get_checkpoint_state()
    text = path.read_text()
    add(first, 2)
    # The second log has not written: if the run were not resumed, nothing would be lost.
    assert path.read_text() == "step\n1\n2\n"
    second.set_checkpoint_state(state)
    assert path.read_text() == text == "step\n1\n"
    add(second, 2)
    assert path.read_text() == "step\n1\n2\n"
    add(third, 1)
    assert path.read_text() == text
    for log in (first, second, third) if make is CSVLog else ():
        log.close()


def test_runs_that_begin_at_once_have_their_own_folders(tmp_path):
    assert len({create(tmp_path, "name") for _ in range(5)}) == 5


def test_a_run_of_a_study_goes_on_with_what_it_was_begun_with(tmp_path, monkeypatch, capsys):
    """A default may have changed since. Some options may change in a run that goes on."""
    seen = []
    monkeypatch.setattr(MasteryConfig, "run", lambda config: seen.append(config))
    run = tmp_path / "run"
    carry_out(MasteryConfig(eval_steps=100, final_episodes=7), run)
    carry_out(MasteryConfig(eval_steps=200, final_episodes=8), run)
    assert [(one.eval_steps, one.final_episodes) for one in seen] == [(100, 7), (100, 8)]
    assert "goes on with eval_steps 100, as it was begun, and not 200" in capsys.readouterr().out


def test_a_second_process_changes_nothing_in_the_folder_of_a_run(tmp_path):
    """It is refused before it empties a file or notes its settings."""
    settings = {"env_id": "TwoRoomsSwitchSmall-v0", "agent": "td", "total_steps": 128, "n_envs": 4}
    settings |= {"eval_steps": 10, "most_goals": 5, "progress_bar": False, "output": tmp_path}
    folder = MasteryConfig(**settings).run()
    second = MasteryConfig.saved(folder)
    second = dataclasses.replace(second, total_steps=256)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    taken = threading.Event()
    over = threading.Event()

    def first():
        with Lock(folder / "checkpoints"):
            taken.set()
            over.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert taken.wait(60)
        before |= {path: path.read_bytes() for path in (folder / "checkpoints").glob(".lock*")}
        with pytest.raises(CheckpointError, match="another thread of this process writes"):
            second.run()
    finally:
        over.set()
        thread.join()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_file_of_a_map_may_have_been_moved(tmp_path):
    run = open_folder(MasteryConfig(map="maps/own.txt", output=tmp_path), "run")
    moved = MasteryConfig(map="other/own.txt", output=tmp_path, resume=run)
    assert open_folder(moved, "run") == run
