"""Rules of style that ruff does not know. CONTRIBUTING.md says them in words."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = ("gym_twoRooms", "sb3_manygoals")
SOURCES = (*LIBRARY, "benchmarks")
MOST_PARALLEL_ASSIGNMENTS = 10


def modules(folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def tree_of(path):
    """Return the syntax tree of a module, which is parsed once for all tests."""
    return ast.parse(path.read_text("utf-8"))


def arguments(function):
    spec = function.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    every = [*named, *filter(None, (spec.vararg, spec.kwarg))]
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def is_public_function(node):
    is_overload = any("overload" in ast.unparse(each) for each in node.decorator_list)
    is_private = node.name.startswith("_") and node.name != "__call__"
    return not is_private and not is_overload


def public_callables(tree):
    """Yield name, arguments and docstring of the public functions, classes and methods."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and is_public_function(node):
            yield node.name, arguments(node), ast.get_docstring(node) or ""
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for method in node.body:
            if not isinstance(method, ast.FunctionDef):
                continue
            is_setter = any(ast.unparse(each).endswith("setter") for each in method.decorator_list)
            if method.name == "__init__":
                yield node.name, arguments(method), ast.get_docstring(node) or ""
            elif is_public_function(method) and not is_setter:
                name = f"{node.name}.{method.name}"
                yield name, arguments(method), ast.get_docstring(method) or ""


@pytest.mark.parametrize("path", modules(SOURCES), ids=lambda path: path.relative_to(ROOT))
def test_every_argument_of_public_callables_is_documented_where_it_stands(path):
    missing = [
        f"{name}: {argument}"
        for name, names, docstring in public_callables(tree_of(path))
        for argument in names
        if not re.search(rf":param {argument}:", docstring)
    ]
    assert not missing


def is_class_of_fields(node):
    """Return whether the fields of a class are the arguments of its constructor."""
    is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    return is_dataclass or any(ast.unparse(base) == "NamedTuple" for base in node.bases)


def undocumented_fields(node):
    """Yield the fields of a class that neither its docstring nor a string below them documents."""
    docstring = ast.get_docstring(node) or ""
    for field, below in itertools.pairwise([*node.body, None]):
        if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
            continue
        is_string = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if not is_string and f":param {field.target.id}:" not in docstring:
            yield field.target.id


@pytest.mark.parametrize("path", modules(LIBRARY), ids=lambda path: path.relative_to(ROOT))
def test_every_field_of_public_classes_of_fields_is_documented(path):
    missing = [
        f"{node.name}: {field}"
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if is_class_of_fields(node)
        for field in undocumented_fields(node)
    ]
    assert not missing


def test_unlike_values_are_not_assigned_in_one_statement():
    found = []
    for path in modules(SOURCES):
        for node in ast.walk(tree_of(path)):
            is_assignment = isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            if is_assignment and isinstance(node.targets[0], ast.Tuple):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(found) <= MOST_PARALLEL_ASSIGNMENTS, found


def test_packages_import_in_one_direction():
    """No package inside of sb3_manygoals imports from one that imports from it."""
    imports = {}
    for path in modules(["sb3_manygoals"]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("sb3_manygoals."):
                imports.setdefault(parts[1], set()).add(node.module.split(".")[1])
    reached = {name: set(found) - {name} for name, found in imports.items() if name != "__init__"}
    for _ in reached:
        for found in reached.values():
            found |= set().union(*(reached.get(name, set()) for name in found))
    assert not [name for name, found in reached.items() if name in found]
