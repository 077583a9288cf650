"""
Exact checkpoints.

A checkpoint is a tree of plain values and arrays as one file, written whole or not at all, and
verified when it is read.
"""

from sb3_manygoals.checkpoint.folder import (
    checkpoints,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from sb3_manygoals.checkpoint.tree import CheckpointError, copy_tree

__all__ = [
    "CheckpointError",
    "checkpoints",
    "copy_tree",
    "read_checkpoint",
    "read_newest",
    "write_checkpoint",
]
