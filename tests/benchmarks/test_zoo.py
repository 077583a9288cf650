"""The command line of rl_zoo3, where it is installed (the extra "zoo")."""

import re
import subprocess
import sys

import pytest

from tests import ROOT

WORLD = "TwoRoomsSwitchSmall-v0"


def zoo(command, folder, *arguments):
    """Return what a command of the zoo prints; it must succeed."""
    run = [sys.executable, "-m", f"benchmarks.zoo.{command}", "--algo", "many_goals_dqn"]
    run += ["--env", WORLD, "--device", "cpu", "--gym-packages", "gym_twoRooms"]
    run += ["-f", str(folder), *arguments]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.extras
def test_the_zoo_trains_evaluates_and_shows_an_agent(tmp_path):
    pytest.importorskip("rl_zoo3")
    settings = ["--conf-file", "benchmarks/zoo/many_goals_dqn.yml"]
    settings += ["--n-timesteps", "1200", "--seed", "0"]
    # By default the first lines come after 100 episodes.
    settings += ["--log-interval", "4"]
    said = zoo("train", tmp_path, *settings, "--eval-freq", "1200", "--eval-episodes", "2")
    lengths = [float(length) for length in re.findall(r"ep_len_mean +\| ([\d.]+)", said)]
    # These are lengths of goal episodes, of which the longest has 50 steps.
    assert lengths
    assert max(lengths) <= 50.0
    assert re.search(r"eval/ .*\n.*mean_ep_length", said)
    assert (tmp_path / "many_goals_dqn" / f"{WORLD}_1" / f"{WORLD}.zip").is_file()
    assert "Mean episode length" in zoo("enjoy", tmp_path, "--no-render", "-n", "120")
