"""The command line of the benchmarks, and its tables."""

import csv
import io
import subprocess
import warnings
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from benchmarks.__main__ import main


def command(*arguments):
    """``python -m benchmarks`` with them, in this process, as a new one imports torch for seconds; other errors are raised."""
    code, out, err = 0, io.StringIO(), io.StringIO()
    argv = mock.patch("sys.argv", ["benchmarks", *arguments])
    with argv, redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no errors, as they are in tests
        try:
            main()
        except SystemExit as end:  # as the interpreter has it
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                err.write(end.code)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def printed(*arguments):
    """What a command prints, which must succeed."""
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(path, without=()):
    """The rows of a CSV file, some columns left out."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: row[name] for name in sorted(row) if name not in without}
            for row in csv.DictReader(file)
        ]
