"""Files of results with one row for each run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.suite.spec import write_whole


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    """
    Add a row to a CSV file, which is made if it does not exist.

    The row may have columns that the file lacks, and the other way round: these cells are empty.
    Cells of earlier rows stay as they are written, to the last digit.

    :param file: the file
    :param row: values by the names of their columns
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    added = pd.DataFrame([row])
    if not file.exists():
        added.to_csv(file, mode="a", index=False)
        return
    # Only text is read back as it was written.
    rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    if added.columns.isin(rows.columns).all():
        # Appending leaves rows alone that another process adds meanwhile.
        added.reindex(columns=rows.columns).to_csv(file, mode="a", header=False, index=False)
        return
    write_whole(file, pd.concat([rows, added]).to_csv(index=False))
