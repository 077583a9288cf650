"""
The memory of NumPy arrays, as tensors that ``torch.save`` writes without a copy.

Arrays that overlap come back as arrays that overlap. So each group of overlapping arrays becomes
one tensor of bytes, and each array of the group a view of it.
"""

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

ArrayMemory = tuple[th.Tensor, int, str, tuple[int, ...], tuple[int, ...]]
"""An array: a tensor of bytes, the offset in it, the dtype, the shape and the strides in bytes."""


def array_memories(arrays: Iterable[NDArray[Any]]) -> dict[int, ArrayMemory]:
    """
    Return the memories of arrays. They are the arrays' own memory, not copies.

    An array with gaps is copied, if it overlaps with no other one: its gaps are not worth writing.

    :param arrays: any plain arrays. They must live as long as the result is used
    :return: by the ``id`` of each array, its memory. Arrays without elements have none
    """
    memories = {}
    for start, end, members in _overlapping_groups(arrays):
        if len(members) == 1 and end - start != members[0].nbytes:
            memories[id(members[0])] = copied_memory(members[0])
            continue
        address = (ctypes.c_uint8 * (end - start)).from_address(start)
        memory = th.from_numpy(np.ctypeslib.as_array(address))
        for array in members:
            offset = array.ctypes.data - start
            memories[id(array)] = (memory, offset, array.dtype.str, array.shape, array.strides)
    return memories


def copied_memory(array: NDArray[Any]) -> ArrayMemory:
    """
    Return the memory of a copy of an array.

    :param array: any plain array
    :return: the memory of the copy, which has no gaps and is in C order
    """
    copy = np.array(array, order="C")
    memory = th.from_numpy(copy.reshape(-1).view(np.uint8))
    return memory, 0, copy.dtype.str, copy.shape, copy.strides


def _overlapping_groups(
    arrays: Iterable[NDArray[Any]],
) -> list[tuple[int, int, list[NDArray[Any]]]]:
    """Return the first address, the last one plus one, and the arrays of each overlapping group."""
    spans = [(*address_range(array), array) for array in arrays if array.size]
    spans.sort(key=lambda span: span[:2])
    groups: list[tuple[int, int, list[NDArray[Any]]]] = []
    for low, high, array in spans:
        if groups and low < groups[-1][1]:
            start, end, members = groups.pop()
            groups.append((start, max(end, high), [*members, array]))
        else:
            groups.append((low, high, [array]))
    return groups


def address_range(array: NDArray[Any]) -> tuple[int, int]:
    """
    Return where the elements of an array are.

    :param array: any array with elements
    :return: the first address of its elements, and the last one plus one
    """
    low = array.ctypes.data
    high = array.ctypes.data + array.itemsize
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low += min(reach, 0)
        high += max(reach, 0)
    return low, high
