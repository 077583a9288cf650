"""
Memory: arrays that cannot fit are refused when they are made (NumPy's zeros take memory only as they are filled, hours later),
and what an update frees is kept for the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

_LARGEST_THRESHOLD = 32 * 2**20
"""Bytes up to which glibc adapts its threshold by itself (DEFAULT_MMAP_THRESHOLD_MAX, on machines of 64 bits)."""


def check_memory(what: str, needed: Mapping[str, int], advice: str) -> None:
    """
    :param what: needs the memory
    :param needed: bytes still to be taken, by what they are for
    :param advice: what to do if it does not fit
    :raises MemoryError: if it does not fit into what is available now, as it would be raised by NumPy, were it to ask for the
        memory at once
    """
    total, available = sum(needed.values()), available_memory()
    if total > available:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in needed.items())
        raise MemoryError(f"{what} would take {readable(total)} ({parts}), {readable(available)} are available: {advice}")


def keep_freed_memory() -> None:
    """
    Let the process keep memory that was freed, up to some 64 MiB, for the next time it is wanted. An update frees gradients as
    large as the weights, and the next wants as much again. Under glibc that would go to the operating system and come back by
    hundreds of page faults an update.

    glibc adapts: it takes blocks from memory that it keeps up to the size of the largest block that was freed, and gives back
    only what is beyond twice that (M_MMAP_THRESHOLD in mallopt(3)). So one such block is asked for, and freed untouched. Under
    other allocators this does nothing.
    """
    np.empty(_LARGEST_THRESHOLD - 2**16, np.uint8)


def available_memory(root: Path = Path("/")) -> int:
    """
    Swap is not counted: a replay memory is read at random.

    :param root: folder that has ``proc`` and ``sys``
    :return: bytes that this process can still take, of the machine's and of its control groups'
    """
    of_machine: int = psutil.virtual_memory().available
    return max(0, min([of_machine, *_left_by_control_groups(root)]))


def readable(size: int) -> str:
    """
    :param size: bytes
    :return: in a unit that makes it a small number
    """
    number, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"


def _left_by_control_groups(root: Path) -> list[int]:
    """What each group that this process is in leaves of its limit, version 2 or 1; psutil knows the machine only."""
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit_file, usage_file, prefix = root / "sys/fs/cgroup", "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            mount, limit_file, usage_file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            prefix = "total_"  # with what is below, as the usage is
        else:
            continue
        folder = mount / path.lstrip("/")
        # a group is bound by those above it too; in a container its path may be the host's, and only the mount be there
        for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))):
            limit, usage = _text(group / limit_file).strip(), _text(group / usage_file).strip()
            if limit.isdigit() and usage.isdigit():  # "max": none
                stat = dict(entry.split(" ", 1) for entry in _text(group / "memory.stat").splitlines())
                # files that were read count as used, until the memory is wanted for something else
                cache = sum(int(stat.get(f"{prefix}{name}", 0)) for name in ("inactive_file", "active_file"))
                left.append(int(limit) - int(usage) + cache)
    return left


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
