import gc
import multiprocessing
import os

# The suite runs in several processes on few cores. More threads than cores would make torch many
# times slower. NumPy and PyTorch read the variable when they are imported, here and in the
# processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import settings

# The process that starts the workers of a SubprocVecEnv imports torch once for all of them. Else
# each worker would import it for seconds.
multiprocessing.set_forkserver_preload(["sb3_manygoals"])

# How long an example takes says nothing on a machine that is busy otherwise.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


def pytest_collection_finish(session):
    """
    Leave the objects that were imported out of the search for garbage.

    They stay until the end. There are half a million, and each full search would visit them again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_sync(monkeypatch):
    """Do not wait for the disk hundreds of times, where it does not matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
