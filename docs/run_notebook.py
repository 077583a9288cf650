"""
Runs ``first_steps.ipynb`` and writes it with what its cells show: ``make notebook``.

The notebook is committed with these outputs, so that it can be read where nothing can be run. With
them goes a digest of the code that made them: a test compares it with the code that is there now.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parent / "first_steps.ipynb"
"""The notebook that is run."""
PARAMETERS = "parameters"
"""Tag of the cell whose values ``--set`` replaces, as papermill has it."""
DIGEST = "code_sha256"
"""Entry of the notebook's metadata with the digest of the code that made the outputs."""


def code_digest(notebook: NotebookNode) -> str:
    """
    Return a digest of all code of a notebook.

    :param notebook: the notebook, of version 4 of the format
    :return: sha256 of the sources of its code cells in their order, 64 hexadecimal digits
    """
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def with_parameters(notebook: NotebookNode, parameters: list[str]) -> NotebookNode:
    """
    Return a copy of a notebook with other values of its parameters.

    :param notebook: the notebook, which stays as it is
    :param parameters: assignments in Python, such as ``steps = 600``
    :return: the copy, whose cell of parameters has the assignments as its last lines
    :raises ValueError: if not exactly one cell has the tag ``parameters``, or an assignment is to a
        name that this cell does not assign
    """
    notebook = nbformat.from_dict(notebook)
    tagged = [cell for cell in notebook.cells if PARAMETERS in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"one cell must have the tag {PARAMETERS!r}, got {len(tagged)}")
    (cell,) = tagged
    known = {line.partition("=")[0].strip() for line in cell.source.splitlines()}
    for parameter in parameters:
        name = parameter.partition("=")[0].strip()
        if name not in known:
            raise ValueError(
                f"--set must name one of {', '.join(sorted(known))}, got {parameter!r}"
            )
    cell.source = "\n".join([cell.source, *parameters])
    return notebook


def run(notebook: NotebookNode) -> None:
    """
    Run all cells of a notebook in an empty folder, which is removed afterwards.

    :param notebook: the notebook; it gets the outputs and the digest of its code
    :raises nbclient.exceptions.CellExecutionError: if a cell raises an error
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=None,
            # Times would make each run another change in git.
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    # The version of Python would change with each machine.
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata[DIGEST] = code_digest(notebook)


def main() -> None:
    """Run the notebook, and write it only if all of its cells ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the notebook, such as steps=600; may be given several times",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=NOTEBOOK,
        help="the notebook to write; by default the one that is run",
    )
    options = parser.parse_args()
    if options.set and options.output == NOTEBOOK:
        parser.error(
            "--set needs an --output of its own: the notebook has the outputs of a whole run"
        )
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if options.set:
        notebook = with_parameters(notebook, options.set)
    run(notebook)
    part = options.output.with_name(options.output.name + ".part")
    nbformat.write(notebook, part)
    os.replace(part, options.output)


if __name__ == "__main__":
    main()
