"""
Limits on memory.

Arrays that do not fit into memory are refused when they are made. NumPy itself would not notice:
its zeros take memory only as they are filled, which may be hours later.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class _Controller(NamedTuple):
    """Where Linux shows the memory of control groups, in one version of them."""

    folder: str
    limit_file: str
    usage_file: str
    # A group's memory.stat gives the sums over its descendants under names with this prefix.
    stat_prefix: str


# By the controller's name in /proc/self/cgroup: version 2 has no names, version 1 has.
_CONTROLLERS = {
    "": _Controller("sys/fs/cgroup", "memory.max", "memory.current", ""),
    "memory": _Controller(
        "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    ),
}


def check_memory(what: str, needed: Mapping[str, int], advice: str) -> None:
    """
    Raise an error if something does not fit into the memory that is available now.

    :param what: what needs the memory, for the error message
    :param needed: the bytes that are still to be taken, by what they are for
    :param advice: what the user can do, for the error message
    :raises MemoryError: if the sum of ``needed`` exceeds the available memory
    """
    total = sum(needed.values())
    available = available_memory()
    if total > available:
        parts = ", ".join(f"{name} {readable(size)}" for name, size in needed.items())
        raise MemoryError(
            f"{what} would take {readable(total)} ({parts}), {readable(available)} are available:"
            f" {advice}"
        )


def share_of_memory(share: float) -> int:
    """
    Return a share of the memory that is available now.

    :param share: a number from 0 to 1
    :return: bytes
    """
    return int(share * available_memory())


def available_memory(root: Path = Path("/")) -> int:
    """
    Return how much memory this process can still take, without swap.

    The machine and the process's control groups limit it.

    :param root: folder of the machine's file system; tests use another one
    :return: bytes
    """
    return max(0, min([int(psutil.virtual_memory().available), *_left_by_control_groups(root)]))


def readable(size: int) -> str:
    """
    Return a number of bytes as a text in the unit that makes the number small.

    :param size: bytes
    :return: for example "1.5 GiB"
    """
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    if power == 0:
        return f"{size} B"
    return f"{size / 1024**power:.1f} {_UNITS[power]}"


def _left_by_control_groups(root: Path) -> list[int]:
    """Return the bytes that each control group of this process leaves below its limit."""
    left: list[int] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in _CONTROLLERS:
                left += _left_on_a_path(root, _CONTROLLERS[name], path)
    return left


def _left_on_a_path(root: Path, controller: _Controller, path: str) -> Iterator[int]:
    """
    Yield the bytes that a control group and the groups above it leave below their limits.

    In a container, the path may be the host's. Then only the topmost group exists here.
    """
    mount = root / controller.folder
    group = mount / path.lstrip("/")
    for bound in (group, *group.parents):
        if not bound.is_relative_to(mount):
            return
        limit = _text(bound / controller.limit_file).strip()
        usage = _text(bound / controller.usage_file).strip()
        # The limit is "max" if there is none.
        if limit.isdigit() and usage.isdigit():
            lines = _text(bound / "memory.stat").splitlines()
            stat = dict(line.split(" ", 1) for line in lines)
            # Files that were read count as used, but Linux frees them when memory is needed.
            inactive = int(stat.get(f"{controller.stat_prefix}inactive_file", 0))
            active = int(stat.get(f"{controller.stat_prefix}active_file", 0))
            yield int(limit) - int(usage) + inactive + active


def _text(path: Path) -> str:
    """Return the text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
