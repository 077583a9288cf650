"""Files of results with one row for each run."""

from benchmarks.rows import add_row


def test_rows_of_different_columns_are_in_one_file(tmp_path):
    file = tmp_path / "runs" / "rows.csv"
    add_row(file, {"world": "bits", "success": 0.1 + 0.2})
    add_row(file, {"world": "puzzle", "success": 1.0, "near": 0.5})
    add_row(file, {"near": 0.25, "world": "lines, two", "success": None})
    assert file.read_text().splitlines() == [
        "world,success,near",
        # Numbers that are there stay as they were written.
        "bits,0.30000000000000004,",
        "puzzle,1.0,0.5",
        '"lines, two",,0.25',
    ]
    assert list(file.parent.iterdir()) == [file]
