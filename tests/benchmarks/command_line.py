"""The command line of the benchmarks, and its tables."""

import csv
import io
import subprocess
import warnings
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from benchmarks.__main__ import main


def command(*arguments):
    """
    Do what ``python -m benchmarks`` does, in this process.

    A new process would import torch for seconds.

    Errors that the command does not catch are raised.
    """
    code = 0
    out = io.StringIO()
    err = io.StringIO()
    argv = mock.patch("sys.argv", ["benchmarks", *arguments])
    with argv, redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        # Tests make errors of warnings; the command line does not.
        warnings.simplefilter("ignore")
        try:
            main()
        except SystemExit as end:  # The interpreter treats its code in this way.
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                err.write(end.code)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def printed(*arguments):
    """Return what a command prints, and check that it succeeds."""
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(path, without=()):
    """Return the rows of a CSV file without some of its columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: row[name] for name in sorted(row) if name not in without}
            for row in csv.DictReader(file)
        ]
