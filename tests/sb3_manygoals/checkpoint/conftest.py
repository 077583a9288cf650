import os

import pytest

from sb3_manygoals.checkpoint import files


@pytest.fixture
def small_pieces(monkeypatch):
    """Arrays from 512 bytes on are cut into pieces of at most 768 bytes."""
    monkeypatch.setattr(files, "SMALL", 512)
    monkeypatch.setattr(files, "PIECE", 768)


@pytest.fixture
def no_sync(monkeypatch):
    """Not to wait for the disk hundreds of times, where it does not matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
