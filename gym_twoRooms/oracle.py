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

    # columns of closing: where a state is once the doors had their chance to close
    closing = sum(
        (chance * moves_to(closed) for chance, closed in zip(mdp.closing_probability, mdp.closed_state.T, strict=True)),
        start=csr_array((mdp.n_states, mdp.n_states)),
    )
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
    goals = _check_goals(mdp, goals)
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


def expected_steps(mdp: TwoRoomsMDP, goals: ArrayLike, tolerance: float = 1e-6) -> NDArray[np.float64]:
    """
    The steps that the best policy without a deadline takes to a goal on average, by value iteration.

    :param mdp: The world
    :param goals: State numbers, (G,)
    :param tolerance: Iteration ends when no value changes by more, in steps
    :return: For each start and goal, (S, G) float64; 0 where the start is the goal
    :raises TypeError: If goals are not integers
    :raises ValueError: If there is no such state, or ``tolerance`` is not positive
    """
    return _fewest_steps(mdp, _check_goals(mdp, goals), tolerance)[0]


class OraclePolicy:
    """
    The policy that takes the fewest steps on average, in the form of an agent: :meth:`predict` acts on goal observations.

    :param mdp: The world
    :param goals: State numbers that will be asked for, (G,)
    :raises TypeError: If goals are not integers
    :raises ValueError: If there is no such state
    """

    def __init__(self, mdp: TwoRoomsMDP, goals: ArrayLike) -> None:
        self.mdp = mdp
        self.goals = _check_goals(mdp, goals)
        self.actions = _fewest_steps(mdp, self.goals, tolerance=1e-6)[1]
        self._columns = {int(goal): column for column, goal in enumerate(self.goals)}

    def predict(
        self, observation: dict[str, NDArray[np.uint8]], *, deterministic: bool = True
    ) -> tuple[NDArray[np.int64], None]:
        """
        :param observation: "observation" and "desired_goal", (N, H, W, 3) uint8 each
        :param deterministic: Without effect: there is nothing random in it
        :return: Actions, (N,) int64, and None
        :raises ValueError: If an observation shows no state, or a goal was not planned for
        """
        states = [self.mdp.state_of(picture) for picture in observation["observation"]]
        wanted = [self.mdp.state_of(picture) for picture in observation["desired_goal"]]
        unknown = sorted(set(wanted) - self._columns.keys())
        if unknown:
            raise ValueError(f"The goals {unknown} were not planned for.")
        return self.actions[states, [self._columns[goal] for goal in wanted]], None


def _fewest_steps(
    mdp: TwoRoomsMDP, goals: NDArray[np.int64], tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Expected steps and best actions, (S, G) each."""
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}.")
    matrices = transition_matrices(mdp)
    columns = np.arange(len(goals))
    # From below, so that states from which nothing is known yet look near: the values rise until they are right. All states
    # can reach each other, hence they do.
    steps = np.zeros((mdp.n_states, len(goals)))
    while True:
        options = np.stack([matrix @ steps for matrix in matrices])
        better = 1.0 + options.min(axis=0)
        better[goals, columns] = 0.0
        change = np.abs(better - steps).max()
        steps = better
        if change <= tolerance:
            return steps, options.argmin(axis=0)


def _check_goals(mdp: TwoRoomsMDP, goals: ArrayLike) -> NDArray[np.int64]:
    states = mdp.check_states(goals)
    if states.ndim != 1 or len(states) == 0:
        raise ValueError(f"goals must be a sequence of at least one state number, got shape {states.shape}.")
    return states
