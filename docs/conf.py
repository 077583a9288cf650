"""How Sphinx makes the site of these pages: ``make docs``."""

from __future__ import annotations

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

OURS = {"gym_twoRooms", "sb3_manygoals"}

project = "sb3-manygoals"
release = version = sb3_manygoals.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
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
# Types of others have their pages elsewhere: to link there, each build would need the network. Type variables have none.
nitpick_ignore_regex = [
    ("py:class", r"(?!sb3_manygoals\.|gym_twoRooms\.).*"),
    ("py:.*", r".*\.Self\w+"),
    ("py:exc", r"DependencyNotInstalled|InvalidAction|ResetNeeded"),  # Gymnasium's
]


def without_the_page(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """
    Leave of a class docstring that is a page in Markdown, as Gymnasium's environments have them, its arguments only: the page
    is ``two_rooms_switch.md``.
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
    """Of what is inherited, leave what is ours: the methods of an SB3 algorithm or a torch module have pages elsewhere."""
    method = getattr(
        thing, "fget", getattr(thing, "__func__", thing)
    )  # of a property, of a class method
    if isinstance(method, FunctionType) and method.__module__.split(".")[0] not in OURS:
        return True
    return None


def without_emphasis(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Let the star of a shape such as (n, *shape) be a star, outside of literals."""
    for row, line in enumerate(lines):
        texts = line.split("``")
        texts[::2] = [re.sub(r"(?<![\w*])\*(?=\w)(?![\w ]*\*)", r"\*", text) for text in texts[::2]]
        lines[row] = "``".join(texts)


def by_last_names(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: TextElement
) -> Node | None:
    """
    Docstrings name things by where they are defined, or as their own module does; they are documented where users import them.
    What is documented once only, by its last names, is what is meant.

    :param app: that makes the site
    :param env: what it knows
    :param node: a reference that leads nowhere
    :param contents: what it shows
    :return: one that leads somewhere, or None
    """
    domain = env.get_domain("py")
    names = node.get("reftarget", "").split(".") if node.get("refdomain") == "py" else []
    if len(names) > 2 and names[0] not in OURS:
        return None
    kinds = domain.objtypes_for_role(node.get("reftype"), [])
    documented = [entry for entry in domain.get_objects() if entry[2] in kinds]
    for start in range(len(names)):
        last = "." + ".".join(names[start:])
        places = {
            (page, anchor) for name, _, _, page, anchor, _ in documented if name.endswith(last)
        }
        if len(places) == 1:
            page, anchor = places.pop()
            return make_refnode(app.builder, node["refdoc"], page, anchor, contents)
    return None


def setup(app: Sphinx) -> None:
    """:param app: that makes the site"""
    app.connect("autodoc-process-docstring", without_the_page)
    app.connect("autodoc-skip-member", without_others_methods)
    app.connect("autodoc-process-docstring", without_emphasis)
    app.connect("missing-reference", by_last_names)
