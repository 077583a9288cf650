"""State that a subclass of the user's adds to a class of this package."""

from __future__ import annotations

import types
import warnings
from collections.abc import Collection
from typing import Any

from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree

_PACKAGE = __name__.partition(".")[0]
_WITHOUT_STATE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def note_attributes(owner: Any) -> None:
    """
    Note the attributes that an object has now. Those that come later are a subclass's.

    :param owner: an object of which a constructor of this package has just set all attributes
    """
    owner._names_of_package = frozenset({*vars(owner), "_names_of_package"})


def added_attributes(owner: Any, elsewhere: Collection[Any] = ()) -> dict[str, Any]:
    """
    Return the attributes that a subclass of the user's has added, unless it saves its state by a
    ``get_checkpoint_state`` of its own. A warning names each one that cannot be saved.

    :param owner: an object of which :func:`note_attributes` was told
    :param elsewhere: objects that others save and restore. They are left out
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
        if name in names or id(value) in others or isinstance(value, _WITHOUT_STATE):
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
