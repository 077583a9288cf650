"""Settings with which Sphinx makes the site of these pages: ``make docs``."""

from __future__ import annotations

import functools
import gc
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

from docutils.nodes import Node, TextElement
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

sys.path.insert(0, str(Path(__file__).parents[1]))

import sb3_manygoals

# A full search for garbage visits every object, and nearly all of them stay. By default such
# searches would take a quarter of a build's time.
gc.freeze()
gc.set_threshold(10_000, 10, 50)

OURS = {"gym_twoRooms", "sb3_manygoals"}
"""Packages that the site documents."""

project = "sb3-manygoals"
release = version = sb3_manygoals.__version__

# myst_nb is myst_parser with notebooks. They are shown with their outputs, and not run.
extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_copyright = False

# The anchors that GitHub gives to headings, so that a link works there and here.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
# Types stand beside what :param: says of them, and only there: signatures stay short.
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"

nitpicky = True
autodoc_mock_imports = ["huggingface_sb3"]
# Types of other packages have their pages elsewhere. To link there, each build would need the
# network. Type variables have no pages, and the exceptions are Gymnasium's.
nitpick_ignore_regex = [
    ("py:class", r"(?!sb3_manygoals\.|gym_twoRooms\.).*"),
    ("py:.*", r".*\.Self\w+"),
    ("py:exc", r"DependencyNotInstalled|InvalidAction|ResetNeeded"),
]


def without_the_page(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """
    Leave only the arguments of a class docstring that is a page in Markdown.

    Gymnasium's environments have such docstrings. The page itself is ``two_rooms_switch.md``.

    :param app: the application that makes the site
    :param what: kind of the object
    :param name: full name of the object
    :param thing: the object
    :param options: options of autodoc's directive
    :param lines: lines of the docstring, which are changed in place
    """
    if any(line.startswith("## ") for line in lines):
        first = next(row for row, line in enumerate(lines) if line.startswith(":param"))
        last = next(
            (row for row in range(first, len(lines)) if lines[row].startswith("## ")), len(lines)
        )
        lines[:] = ["The world; its page says all of it.", "", *lines[first:last]]


def without_others_methods(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """
    Leave out inherited methods that are not ours.

    The methods of an SB3 algorithm or a torch module have pages elsewhere.

    :param app: the application that makes the site
    :param what: kind of the object to which the member belongs
    :param name: name of the member
    :param thing: the member
    :param skip: whether autodoc would leave it out
    :param options: options of autodoc's directive
    :return: True to leave the member out, None to do as autodoc would
    """
    # The function of a property is its fget, that of a class method its __func__.
    method = getattr(thing, "fget", getattr(thing, "__func__", thing))
    if isinstance(method, FunctionType) and method.__module__.split(".")[0] not in OURS:
        return True
    return None


def without_emphasis(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """
    Let the star of a shape such as (n, *shape) be a star, outside of literals.

    :param app: the application that makes the site
    :param what: kind of the object
    :param name: full name of the object
    :param thing: the object
    :param options: options of autodoc's directive
    :param lines: lines of the docstring, which are changed in place
    """
    for row, line in enumerate(lines):
        texts = line.split("``")
        texts[::2] = [re.sub(r"(?<![\w*])\*(?=\w)(?![\w ]*\*)", r"\*", text) for text in texts[::2]]
        lines[row] = "``".join(texts)


@functools.cache
def objects_by_last_name(env: BuildEnvironment) -> dict[str, list[tuple[str, str, str, str]]]:
    """
    Return the name, kind, page and anchor of all that is documented, by the last part of its name.

    References are resolved after all pages were read. Thousands of them lead nowhere at first, so
    looking through all objects for each would take seconds.

    :param env: environment with all that is documented
    """
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    for name, _, kind, page, anchor, _ in env.get_domain("py").get_objects():
        found.setdefault(name.rpartition(".")[2], []).append((name, kind, page, anchor))
    return found


def by_last_names(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: TextElement
) -> Node | None:
    """
    Resolve a reference by the last parts of its name.

    Docstrings name objects by where they are defined, or as their own module does. They are
    documented where users import them. If one documented name alone ends with the last parts, it is
    the one that is meant.

    :param app: the application that makes the site
    :param env: environment with all that is documented
    :param node: a reference that leads nowhere
    :param contents: what the reference shows
    :return: a reference that leads somewhere, or None
    """
    domain = env.get_domain("py")
    names = node.get("reftarget", "").split(".") if node.get("refdomain") == "py" else []
    if len(names) > 2 and names[0] not in OURS:
        return None
    kinds = domain.objtypes_for_role(node.get("reftype"), [])
    documented = objects_by_last_name(env).get(names[-1] if names else "", [])
    for start in range(len(names)):
        last = "." + ".".join(names[start:])
        places = {
            (page, anchor)
            for name, kind, page, anchor in documented
            if kind in kinds and name.endswith(last)
        }
        if len(places) == 1:
            page, anchor = places.pop()
            return make_refnode(app.builder, node["refdoc"], page, anchor, contents)
    return None


def setup(app: Sphinx) -> None:
    """
    Connect the functions above with Sphinx.

    :param app: the application that makes the site
    """
    app.connect("autodoc-process-docstring", without_the_page)
    app.connect("autodoc-skip-member", without_others_methods)
    app.connect("autodoc-process-docstring", without_emphasis)
    app.connect("missing-reference", by_last_names)
