"""Trees of plain values as JSON and named arrays, and back, exactly; nothing but data, so reading one executes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from sb3_manygoals.checkpoint.decoder import Decoder
from sb3_manygoals.checkpoint.encoder import Encoder
from sb3_manygoals.checkpoint.kinds import CheckpointError

__all__ = ["CheckpointError", "decode", "encode"]


def encode(tree: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """
    Take a tree apart into what JSON can hold and its arrays.

    A tree is None, bool, int, float, str, bytes, a NumPy array or scalar, a torch tensor, a ``numpy.random.Generator`` (of
    PCG64, MT19937, Philox or SFC64) or ``RandomState`` (of MT19937), or a list, tuple, dict, OrderedDict, set, frozenset or
    deque of trees. Keys of dicts and elements of sets are None, bool, int, float, str, bytes, NumPy scalars, and tuples and
    frozensets of these. ``decode`` gives back equal values of the same types, with the same bits, in arrays and dense tensors
    in the same order of memory too. Not kept are: that two parts of the tree are the same object or share memory; the order of
    sets; attributes set on an OrderedDict; the device of a tensor (it comes back on the CPU) and its graph (``requires_grad``
    is kept). Only these very types are taken: a subclass, such as an IntEnum, a defaultdict, a named tuple or a
    torch Parameter, is refused, as what it adds could not be restored without running code.

    :param tree: the tree; it is not changed
    :return: the skeleton, for ``json.dumps``, and the arrays by name, which is their path in the tree, such as
        "replay/observations"; these are views of the tree's wherever possible, not copies
    :raises CheckpointError: if a part is of another type, names its path and type; or if the tree has more than 100 levels
    """
    encoder = Encoder()
    return encoder.encode(tree, ()), encoder.arrays


def decode(skeleton: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """
    Put together what ``encode`` took apart.

    :param skeleton: the skeleton, as it was or after JSON
    :param arrays: the arrays by name; the tree consists of these, not of copies
    :return: the tree
    :raises CheckpointError: if the skeleton is not of ``encode``, or an array is missing, left over, or of another dtype or
        shape than it was
    """
    decoder = Decoder(arrays)
    tree = decoder.decode(skeleton, ())
    if decoder.unused:
        raise CheckpointError(f"arrays that belong to nothing in the tree: {', '.join(sorted(decoder.unused))}")
    return tree
