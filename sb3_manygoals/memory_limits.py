"""
Memory: arrays that cannot fit are refused when they are made, since NumPy's zeros take memory only as they are filled, hours
later. Memory that an update frees is kept for the next one.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil

_LARGEST_THRESHOLD = 32 * 2**20  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX on machines of 64 bits

# by the controller's name, of version 2 and 1: a folder, files, and a prefix of names in memory.stat
_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", ""),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


def check_memory(what: str, needed: Mapping[str, int], advice: str) -> None:
    """
    :param what: needs the memory
    :param needed: bytes still to be taken, by what they are for
    :param advice: what to do if it does not fit
    :raises MemoryError: if it does not fit into what is available now
    """
    total, available = sum(needed.values()), available_memory()
    if total > available:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in needed.items())
        raise MemoryError(
            f"{what} would take {readable(total)} ({parts}), {readable(available)} are available: {advice}"
        )


def share_of_memory(share: float) -> int:
    """
    :param share: a number from 0 to 1
    :return: bytes, this share of what is available now
    """
    return int(share * available_memory())


def keep_freed_memory() -> None:
    """
    Let the process keep up to some 64 MiB of freed memory for the next update. Otherwise glibc returns it, and each update
    fetches it again by hundreds of page faults. glibc keeps up to twice the largest block that was freed so far
    (M_MMAP_THRESHOLD in mallopt(3)): so a large one is asked for, and freed untouched. Other allocators do not mind.
    """
    np.empty(_LARGEST_THRESHOLD - 2**16, np.uint8)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can still take of the machine's and its control groups' memory, without swap."""
    return max(0, min([int(psutil.virtual_memory().available), *_left_by_control_groups(root)]))


def readable(size: int) -> str:
    """:return: a number of bytes in a unit that makes it small"""
    power = min(max(size.bit_length() - 1, 0) // 10, 5)
    return (
        f"{size / 1024**power:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
        if power
        else f"{size} B"
    )


def _left_by_control_groups(root: Path) -> list[int]:
    """What each group that this process is in leaves of its limit; psutil knows the machine only."""
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for folder, limit_file, usage_file, prefix in (
            _GROUPS[name] for name in controllers.split(",") if name in _GROUPS
        ):
            mount = root / folder
            group = mount / path.lstrip("/")
            # a group is bound by those above it too; in a container its path may be the host's, and only the mount be there
            for bound in (
                group,
                *(parent for parent in group.parents if parent.is_relative_to(mount)),
            ):
                limit, usage = _text(bound / limit_file).strip(), _text(bound / usage_file).strip()
                if limit.isdigit() and usage.isdigit():  # "max": none
                    stat = dict(
                        entry.split(" ", 1) for entry in _text(bound / "memory.stat").splitlines()
                    )
                    # files that were read count as used, until the memory is wanted for something else
                    cache = sum(
                        int(stat.get(f"{prefix}{name}", 0))
                        for name in ("inactive_file", "active_file")
                    )
                    left.append(int(limit) - int(usage) + cache)
    return left


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
