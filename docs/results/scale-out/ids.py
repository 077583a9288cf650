"""
Measure what ids of states take in memory beside the observations.

Run it in the folder of the project:
PYTHONPATH=. python docs/results/scale-out/ids.py > docs/results/scale-out/ids.csv
"""

import numpy as np
import psutil
from gymnasium.spaces import Box

from sb3_manygoals.world import ExactStates

SIZES = (1_000_000, 2_000_000, 4_000_000)
BYTES = 8
AT_A_TIME = 64


def main() -> None:
    """Print a row for each number of states."""
    process = psutil.Process()
    print("states,bytes_of_ids")
    for size in SIZES:
        rows = np.zeros((size, BYTES), dtype=np.uint8)
        rows.view(np.int64)[:, 0] = np.random.default_rng(0).permutation(size)
        before = process.memory_info().rss
        states = ExactStates(Box(0, 255, (BYTES,), np.uint8), size)
        for first in range(0, size, AT_A_TIME):
            states.observe(rows[first : first + AT_A_TIME])
        grown = process.memory_info().rss - before
        print(f"{size},{grown / size - BYTES:.0f}", flush=True)
        del states


if __name__ == "__main__":
    main()
