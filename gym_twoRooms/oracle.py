"""Exact planning on the tables: how well can goals be reached at all?"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.mdp import TwoRoomsMDP

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def transition_matrices(mdp: TwoRoomsMDP) -> list["csr_array"]:
    """
    The dynamics as matrices.

    :param mdp: The world
    :return: For each action, the probabilities of each state's successors, a sparse (S, S) float64 matrix
    """
    from scipy.sparse import csr_array, diags_array, eye_array  # importing scipy takes longer than compiling a layout

    states = np.arange(mdp.n_states)
    one = np.ones(mdp.n_states)

    def moves_to(targets: NDArray[np.integer[Any]]) -> Any:
        return csr_array((one, (states, targets)), shape=(mdp.n_states, mdp.n_states))

    # columns of closing: where a state is once the door had its chance to close
    close = mdp.close_probability
    closing = (1.0 - close) * eye_array(mdp.n_states, format="csr") + close * moves_to(mdp.closed_state)
    arrivals = [moves_to(mdp.next_state[:, action]) for action in range(mdp.n_actions)]
    slipping = diags_array(mdp.slip_probability * mdp.slips, format="csr")
    staying = eye_array(mdp.n_states, format="csr") - slipping
    random_move = sum(arrivals[1:4], arrivals[0]) * 0.25
    return [csr_array((staying @ arrival + slipping @ random_move) @ closing) for arrival in arrivals]


def reach_probabilities(mdp: TwoRoomsMDP, goals: ArrayLike, horizon: int) -> NDArray[np.float64]:
    """
    The ceiling of mastery: the probability that the best policy reaches a goal in time, by backward induction.

    :param mdp: The world
    :param goals: State numbers, (G,)
    :param horizon: Steps allowed
    :return: For each start and goal, (S, G) float64; 1 where the start is the goal
    :raises TypeError: If goals are not integers
    :raises ValueError: If there is no such state, or ``horizon`` is negative
    """
    goals = mdp.check_states(goals)
    if horizon < 0:
        raise ValueError(f"horizon must not be negative, got {horizon}.")
    matrices = transition_matrices(mdp)
    columns = np.arange(len(goals))
    reached = np.zeros((mdp.n_states, len(goals)))
    reached[goals, columns] = 1.0
    for _ in range(horizon):
        before = reached
        reached = np.maximum.reduce([matrix @ before for matrix in matrices])
        reached[goals, columns] = 1.0
        if np.array_equal(reached, before):  # then it stays so
            break
    return reached
