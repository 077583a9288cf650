import os

import pytest


@pytest.fixture
def no_sync(monkeypatch):
    """Not to wait for the disk hundreds of times, where it does not matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
