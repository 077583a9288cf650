"""Arguments of an agent's class, given as JSON on the command line or in a study."""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

from benchmarks.worlds import SettingError, building

FORM = '{"class": "module:Name"}'
"""Form in which a class is given in JSON, for messages."""


def read_arguments(text: str) -> dict[str, Any]:
    """
    Read arguments from JSON.

    :param text: a JSON object, in which ``{"class": "torch.nn:ReLU"}`` is that class, and a string
        is always a string
    :return: the arguments by name
    :raises SettingError: if it is no JSON object, or names a class that is not there
    """
    with building(f"agent_kwargs of {text!r}"):
        given = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError("they must be a JSON object")
    return {key: _with_classes(value) for key, value in given.items()}


def hint(text: str) -> str:
    """
    Explain how a class is given, if arguments look as if they named one as a string.

    :param text: the arguments as they were given
    :return: what to add to a message that an agent cannot be built; empty if nothing is to be said
    """
    named = re.search(r'"(?!class")\w+": *"([A-Za-z_][\w.]*:[A-Za-z_]\w*)"', text)
    if named is None:
        return ""
    return f' (if "{named[1]}" is to be a class, write {FORM.replace("module:Name", named[1])})'


def _with_classes(value: Any) -> Any:
    """Return a value of JSON with classes in place of their names."""
    if isinstance(value, list):
        return [_with_classes(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"class"}:
        return {key: _with_classes(one) for key, one in value.items()}
    return _class(value["class"])


def _class(path: Any) -> type:
    """Return the class that ``module:Name`` names."""
    match = None
    if isinstance(path, str):
        match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", path)
    if match is None:
        raise SettingError(f"agent_kwargs must name a class as {FORM}, got {path!r}")
    module, name = match.groups()
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"agent_kwargs name {path!r} as a class: {error}") from error
    if not isinstance(found, type):
        raise SettingError(f"agent_kwargs name {path!r} as a class, and it is {found!r}")
    return found
