"""Arrays as the bytes of .npy files: small ones whole, large ones cut into blocks."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.kinds import plain_dtype

SMALL = 1 << 20
"""The most bytes of an array that is stored beside others in one file."""

BLOCK = 16 << 20
"""The most bytes of a file with a block of a larger array."""

# The only form of version 1.0 that is written here. numpy.load would evaluate the header, if only as a literal.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n", re.DOTALL
)


def npy_bytes(array: NDArray[Any]) -> bytes:
    """
    :param array: a small array
    :return: the .npy file of it
    """
    return _header(array) + array.tobytes()


def cut(array: NDArray[Any]) -> Iterator[tuple[bytes, memoryview]]:
    """
    Cut an array along its first axis, and along the next ones where a single row is too large.

    :param array: an array with elements
    :return: an iterator of .npy files of at most ``BLOCK`` bytes (more only if one element is larger), in the order of the
        elements, each as its header and its data; the data is not copied if the array is contiguous
    """
    for part in _parts(array, BLOCK - len(_header(array))):
        block = np.ascontiguousarray(part)
        yield _header(block), block.reshape(-1).view(np.uint8).data


def parse_npy(data: bytes) -> NDArray[Any]:
    """
    Read a .npy file of this module; nothing else is accepted, in particular no objects.

    :param data: the bytes of the file
    :return: the array, a read-only view of the bytes
    :raises ValueError: if it is no such file
    """
    length = 10 + int.from_bytes(data[8:10], "little")
    match = _HEADER.fullmatch(data[:length])
    if match is None:
        raise ValueError("not the header of an array of plain numbers")
    dtype = plain_dtype(match[1].decode("ascii", "replace"))
    shape = tuple(int(size) for size in match[2].split(b",") if size.strip())
    if math.prod(shape) * dtype.itemsize != len(data) - length:
        raise ValueError(f"{len(data) - length} bytes for an array of {dtype} of shape {shape}")
    return np.ndarray(shape, dtype, data, length)


def _header(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape})
    return stream.getvalue()


def _parts(array: NDArray[Any], room: int) -> Iterator[NDArray[Any]]:
    row = math.prod(array.shape[1:]) * array.itemsize
    if array.ndim > 1 and row > room:
        for part in array:
            yield from _parts(part, room)
    else:
        rows = max(1, room // row)
        for start in range(0, len(array), rows):
            yield array[start : start + rows]
