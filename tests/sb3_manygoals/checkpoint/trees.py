"""Trees to store, and what it means that two are the same."""

from __future__ import annotations

import collections
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch as th


def same(left: Any, right: Any) -> bool:
    """Whether two trees are the same to the bit, types and orders included (but for the order of sets)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and type(left) is float:
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, (list, tuple, collections.deque)):
        if isinstance(left, collections.deque) and left.maxlen != right.maxlen:
            return False
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, (set, frozenset)):
        return sorted(map(_described, left)) == sorted(map(_described, right))
    if isinstance(left, (np.str_, np.bytes_)):
        return left[:] == right[:]
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, th.Tensor):
        if left.dtype != right.dtype or left.requires_grad != right.requires_grad or left.shape != right.shape:
            return False
        bits = [tensor.detach().resolve_conj().contiguous() for tensor in (left, right)]
        return same(*(tensor.view(th.int16 if tensor.dtype == th.bfloat16 else tensor.dtype).numpy() for tensor in bits))
    if isinstance(left, np.random.Generator):
        return same(left.bit_generator.state, right.bit_generator.state)
    if isinstance(left, np.random.RandomState):
        return same(left.get_state(legacy=False), right.get_state(legacy=False))
    return bool(left == right)


def _described(key: Any) -> str:
    """As repr, but the same for equal sets, however deep: repr gives them in the order in which they were filled."""
    inner = list(map(_described, key)) if isinstance(key, (tuple, frozenset)) else repr(key)
    return f"{type(key)} {sorted(inner) if isinstance(key, frozenset) else inner}"


def sample(seed: int = 0) -> dict[str, Any]:
    """A small tree with something of everything; of other seeds, one with other numbers but of the same sizes."""
    rng = np.random.default_rng(seed)
    generators = [np.random.Generator(kind(seed)) for kind in (np.random.PCG64, np.random.Philox, np.random.SFC64)]
    return {
        "plain": [
            None,
            True,
            7 + seed,
            2**127 + seed,
            0.1,
            float("inf"),
            float("nan"),
            -0.0,
            "text",
            "\ud83d\ude00",
            b"\x00\xff",
        ],
        "tuple": ((), (1, (2,))),
        1: {b"key": frozenset({1, "a", (2, b"b")}), ("a", 1): set()},
        "deque": collections.deque([seed, 2], maxlen=5),
        "ordered": collections.OrderedDict(b=1, a=2),
        "numpy": [np.float32(0.1), np.bool_(True), np.int8(-3), np.datetime64("2020-01-01"), np.str_("a")],
        "arrays": {
            "bytes": rng.integers(256, size=(5, 40), dtype=np.uint8),
            "big-endian": rng.integers(9, size=3).astype(">i4"),
            "fortran": np.asfortranarray(rng.random((2, 3))),
            "empty": np.zeros((0, 3), np.float16),
            "large": rng.random((40, 5)),
            "large-strided": rng.integers(256, size=(30, 60), dtype=np.uint8)[:, ::2],
        },
        "tensor": th.from_numpy(rng.random((3, 4))).to(th.bfloat16),
        "random": generators,
    }


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
