"""Arguments of an agent, given as JSON on the command line or in a study."""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

from benchmarks.worlds import SettingError, building

FORMS = {"class": '{"class": "module:Name"}', "function": '{"function": "module:name"}'}
"""Forms in which classes and functions are given in JSON, for messages."""


def read_arguments(text: str) -> dict[str, Any]:
    """
    Read arguments from JSON.

    :param text: a JSON object, in which ``{"class": "torch.nn:ReLU"}`` is that class,
        ``{"function": "module:name"}`` is that function, and a string is always a string
    :return: the arguments by name
    :raises SettingError: if it is no JSON object, or names a class or a function that is not there
    """
    with building(f"agent_kwargs of {text!r}"):
        given = json.loads(text)
        if not isinstance(given, dict):
            raise TypeError("they must be a JSON object")
    return {key: _with_objects(value) for key, value in given.items()}


def hint(text: str) -> str:
    """
    Explain how a class or a function is given, if arguments look as if they named one as a string.

    :param text: the arguments as they were given
    :return: what to add to a message that an agent cannot be built; empty if nothing is to be said
    """
    named = re.search(r'"(?!(?:class|function)")\w+": *"([A-Za-z_][\w.]*:([A-Za-z_])\w*)"', text)
    if named is None:
        return ""
    # Classes have names that begin with a capital.
    kind = "class" if named[2].isupper() else "function"
    return f' (if "{named[1]}" is to be a {kind}, write {{"{kind}": "{named[1]}"}})'


def _with_objects(value: Any) -> Any:
    """Return a value of JSON with classes and functions in place of their names."""
    if isinstance(value, list):
        return [_with_objects(one) for one in value]
    if not isinstance(value, dict):
        return value
    for kind in FORMS:
        if value.keys() == {kind}:
            return _named(kind, value[kind])
    return {key: _with_objects(one) for key, one in value.items()}


def _named(kind: str, path: Any) -> Any:
    """Return the class or the function that ``module:name`` names."""
    match = None
    if isinstance(path, str):
        match = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", path)
    if match is None:
        raise SettingError(f"agent_kwargs must name a {kind} as {FORMS[kind]}, got {path!r}")
    module, name = match.groups()
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"agent_kwargs name {path!r} as a {kind}: {error}") from error
    fits = isinstance(found, type) if kind == "class" else callable(found)
    if not fits:
        raise SettingError(f"agent_kwargs name {path!r} as a {kind}, and it is {found!r}")
    return found
