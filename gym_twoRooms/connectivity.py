"""Can every state be reached from every other?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stranded_state(targets: NDArray[np.integer[Any]]) -> tuple[int, bool] | None:
    """
    Look for a state outside the largest set of states that can all reach each other.

    :param targets: The states to which one step may lead from each state, (S, K) int; repetitions are fine
    :return: None if there is no such state, else the first one, and whether the others can reach it (so that it has no way
        back to them)
    """
    from scipy.sparse import csr_array  # here because importing scipy takes longer than compiling a layout
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    n_states, n_targets = targets.shape
    row_starts = np.arange(n_states + 1) * n_targets
    graph = csr_array((np.ones(targets.size), targets.ravel(), row_starts), shape=(n_states, n_states))
    graph.sum_duplicates()  # connected_components may never return on a graph that lists an edge twice
    n_components, labels = connected_components(graph, directed=True, connection="strong")
    if n_components == 1:
        return None
    largest = labels == np.bincount(labels).argmax()
    state = int(np.flatnonzero(~largest)[0])
    reached = breadth_first_order(graph, int(largest.argmax()), return_predecessors=False)
    return state, state in reached
