"""Can every state be reached from every other?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stranded_state(acted: NDArray[np.integer[Any]], settled: NDArray[np.integer[Any]]) -> tuple[int, bool] | None:
    """
    Look for a state outside the largest set of states that can all reach each other. A step has two phases: an action, and
    what the world does by itself after it.

    :param acted: The states to which actions may lead from each state, (S, A) int; repetitions are fine
    :param settled: The states in which the world may settle after an action has led to each state, (S, K) int, likewise
    :return: None if there is no such state, else the first one, and whether the others can reach it (so that it has no way
        back to them)
    """
    from scipy.sparse import bmat, csr_array  # here because importing scipy takes longer than compiling a layout
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    n_states = len(acted)

    def edges(targets: NDArray[np.integer[Any]]) -> csr_array:
        row_starts = np.arange(n_states + 1) * targets.shape[1]
        matrix = csr_array((np.ones(targets.size, dtype=np.int8), targets.flatten(), row_starts), shape=(n_states, n_states))
        matrix.sum_duplicates()  # connected_components may never return on a graph that lists an edge twice
        return matrix

    # Nodes are the states before a step and, apart from them, the states that actions lead to: fewer edges than all
    # combinations of an action and of what follows.
    graph = bmat([[None, edges(acted)], [edges(settled), None]], format="csr")
    _, labels = connected_components(graph, directed=True, connection="strong")
    labels = labels[:n_states]
    largest = labels == np.bincount(labels).argmax()
    if largest.all():
        return None
    state = int(np.flatnonzero(~largest)[0])
    reached = breadth_first_order(graph, int(largest.argmax()), return_predecessors=False)
    return state, state in reached
