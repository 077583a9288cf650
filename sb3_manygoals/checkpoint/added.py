"""State that a subclass of the user's adds to a class of this package."""

from __future__ import annotations

import types
import warnings
from collections.abc import Collection
from typing import Any

import numpy as np
import torch as th

from sb3_manygoals.checkpoint.tree import CheckpointError, attributes, check_tree, set_attributes

_PACKAGE = __name__.partition(".")[0]
_WITHOUT_STATE = (
    type,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    th.device,
    th.dtype,
    np.dtype,
)


def begin_attributes(owner: Any) -> None:
    """
    Note the attributes that a subclass has set before the first constructor of this package began.

    :param owner: the object that is constructed
    """
    owner._names_added_early = frozenset(vars(owner))


def note_attributes(owner: Any) -> None:
    """
    Note the attributes that an object has now. Those that come later are a subclass's.

    :param owner: an object of which a constructor of this package has just set all attributes
    """
    early: frozenset[str] = getattr(owner, "_names_added_early", frozenset())
    owner._names_of_package = frozenset({*vars(owner), "_names_of_package"}) - early


def added_attributes(owner: Any, elsewhere: Collection[Any] = ()) -> dict[str, Any]:
    """
    Return the attributes that a subclass of the user's has added, unless it saves its state by a
    ``get_checkpoint_state`` of its own. A warning names each one that cannot be saved. Functions,
    methods and classes are left out: they have no state.

    :param owner: an object of which :func:`note_attributes` was told
    :param elsewhere: objects that others save and restore. They, and lists of them, are left out
    :return: the attributes by name. The values are the object's own
    """
    kind = type(owner)
    if kind.get_checkpoint_state.__module__.partition(".")[0] != _PACKAGE:
        return {}
    # Objects that an earlier version pickled have no such note.
    names = getattr(owner, "_names_of_package", vars(owner))
    others = {id(one) for one in elsewhere}
    found = {}
    for name, value in vars(owner).items():
        parts = value if isinstance(value, (list, tuple)) and value else [value]
        if name in names or isinstance(value, _WITHOUT_STATE):
            continue
        if all(id(part) in others for part in parts):
            continue
        try:
            check_tree(value, f"the attribute {name} of {kind.__name__}")
        except CheckpointError as error:
            warnings.warn(
                f"left out of checkpoints: {error}. If it changes in training, write the methods "
                f"get_checkpoint_state and set_checkpoint_state of {kind.__name__}",
                stacklevel=2,
            )
            continue
        found[name] = value
    return found


def restore_added(owner: Any, saved: dict[str, Any], elsewhere: Collection[Any] = ()) -> None:
    """
    Restore what :func:`added_attributes` returned.

    Tensors that are trained stay where they are, because an optimizer may have them. Others are
    replaced: they may share memory with something else.

    :param owner: an object of the same class
    :param saved: the attributes, with tensors on the CPU
    :param elsewhere: objects that others restore. Nothing is written into them
    """
    own = attributes(owner)
    taken = {id(one) for one in elsewhere}
    written: dict[int, th.Tensor] = {}
    set_attributes(
        owner,
        {name: _placed(value, own.get(name), taken, written) for name, value in saved.items()},
    )


def _placed(saved: Any, own: Any, taken: set[int], written: dict[int, th.Tensor]) -> Any:
    """
    Return a saved value. Trained tensors in it are written into those that there are, if they fit.

    :param saved: the value
    :param own: what the owner has in its place
    :param taken: ids of objects that may not be written into. Those that were written are added
    :param written: what saved tensors were written into, by the ids of the former
    """
    if id(saved) in written:
        return written[id(saved)]
    if isinstance(saved, th.Tensor) and isinstance(own, th.Tensor):
        fits = saved.shape == own.shape and saved.dtype == own.dtype
        if fits and own.requires_grad and own.is_leaf and id(own) not in taken:
            taken.add(id(own))
            written[id(saved)] = own
            with th.no_grad():
                return own.copy_(saved)
        return saved.to(own.device)
    if isinstance(saved, dict) and isinstance(own, dict):
        for key, value in saved.items():
            saved[key] = _placed(value, own.get(key), taken, written)
    if isinstance(saved, list) and isinstance(own, list):
        pairs = zip(saved, own, strict=False)
        saved[: len(own)] = [_placed(one, other, taken, written) for one, other in pairs]
    return saved
