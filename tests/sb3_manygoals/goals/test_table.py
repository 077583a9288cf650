import builtins
import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import UNKNOWN, ObservationTable, table

PAIRS = spaces.MultiDiscrete([3, 3])
batches = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8), max_size=5
)


@pytest.mark.parametrize("few", [0, 8])
@pytest.mark.parametrize("hash_of", [builtins.hash, lambda row: row[0] % 2, lambda row: 7])
@given(batches, st.integers(1, 9), st.data())
def test_numbers_are_those_of_a_dict_of_bytes_whatever_the_hash_and_the_guess(
    few, hash_of, additions, capacity, data
):
    known, found = ObservationTable(PAIRS, capacity), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "hash", hash_of, raising=False)
        patch.setattr(table, "_FEW", few)
        for pairs in additions:
            batch = np.array(pairs, dtype=PAIRS.dtype).reshape(-1, 2)
            np.testing.assert_array_equal(
                known.ids(batch), [found.get(pair, UNKNOWN) for pair in pairs]
            )
            guess = np.array([data.draw(st.integers(-1, 9)) for _ in pairs], dtype=np.int64)
            numbers = known.add(batch, guess if data.draw(st.booleans()) else None)
            for pair in pairs:
                if len(found) < capacity:
                    found.setdefault(pair, len(found))
            np.testing.assert_array_equal(numbers, [found.get(pair, UNKNOWN) for pair in pairs])
        assert known.observations.tolist() == [list(pair) for pair in found]
        for other in (copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
            np.testing.assert_array_equal(other.ids(known.observations), np.arange(len(known)))
            assert (len(other), other.capacity) == (len(known), capacity)
