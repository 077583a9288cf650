import multiprocessing
import os

import pytest
import torch as th
from hypothesis import settings

# The suite runs in several processes on few cores: more threads than cores make torch many times slower.
th.set_num_threads(1)

# What starts the workers of a SubprocVecEnv imports torch once for all of them, which else takes each of them seconds.
multiprocessing.set_forkserver_preload(["sb3_manygoals"])

# How long an example takes says nothing on a machine that is busy otherwise.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture
def no_sync(monkeypatch):
    """Not to wait for the disk hundreds of times, where it does not matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
