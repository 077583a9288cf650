import os

import pytest

from sb3_manygoals.checkpoint import blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Arrays above 512 bytes are large, blocks have at most 768 bytes."""
    monkeypatch.setattr(blocks, "SMALL", 512)
    monkeypatch.setattr(blocks, "BLOCK", 768)


@pytest.fixture
def no_sync(monkeypatch):
    """Not to wait for the disk hundreds of times, where it does not matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
