"""Tests of the checks of numbers that users give."""

import math
import re

import numpy as np
import pytest

from sb3_manygoals.validation import batch_shape, check_number, writable


@pytest.mark.parametrize(
    ("bounds", "allowed", "refused", "interval"),
    [
        ({}, (-1e9, 0, np.float32(2.5)), (math.inf, -math.inf, math.nan), "(-inf, inf)"),
        ({"at_least": 0}, (0, 1e9), (-1, math.inf, math.nan), "[0, inf)"),
        ({"above": 0}, (1e-9,), (0, -1, math.inf), "(0, inf)"),
        ({"at_most": 1}, (1, -1e9), (1.5, -math.inf), "(-inf, 1]"),
        ({"below": 1}, (0.5, -1e9), (1, -math.inf, math.nan), "(-inf, 1)"),
        ({"at_least": 0, "below": 1}, (0, np.float64(0.5)), (1, -0.5), "[0, 1)"),
        ({"above": 0, "at_most": math.inf}, (1, math.inf), (0, math.nan), "(0, inf]"),
    ],
)
def test_numbers_within_their_bounds_are_returned_and_others_refused(
    bounds, allowed, refused, interval
):
    for value in allowed:
        number = check_number("size", value, **bounds)
        assert number == value
        assert type(number) is float
    for value in (*refused, None, "0.5", True):
        message = f"size must be a number in {interval}, got {value!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_number("size", value, **bounds)


def test_arrays_that_may_not_be_written_to_are_copied():
    array = np.arange(3)
    assert writable(array) is array
    array.flags.writeable = False
    copied = writable(array)
    copied[0] = 7
    assert array.tolist() == [0, 1, 2]
    assert writable([1, 2]).tolist() == [1, 2]


def test_shapes_of_batches_in_words():
    assert [batch_shape(shape) for shape in ((), (3,), (4, 5))] == ["(n,)", "(n, 3)", "(n, 4, 5)"]
