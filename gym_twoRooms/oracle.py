"""Exact planning on the tables: how well can goals be reached at all?"""

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.mdp import TwoRoomsMDP

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CHUNK = 256
"""Most goals that :func:`mastery_ceiling` plans for at a time: about 32 bytes a state and goal."""
_MOST_PAIRS = 2**26
"""Most pairs of a state and a goal that it plans for at a time."""
Goal = Callable[[NDArray[np.uint8]], ArrayLike]
"""A function of one picture, (H, W, 3) uint8. It returns what that achieves, of a fixed shape."""
IsReached = Callable[[NDArray[Any], NDArray[Any]], ArrayLike]
"""
A function of n achievements and n goals, ``(n, *shape of a goal)`` each. It returns for each pair
whether the goal is reached, (n,) bool.
"""
TransitionModel = dict[int, dict[int, list[tuple[float, int, float, bool]]]]
"""``{state: {action: [(probability, next_state, reward, terminated), ...]}}``"""


def transition_matrices(mdp: TwoRoomsMDP) -> list["csr_array"]:
    """
    Return the dynamics as matrices.

    :param mdp: The compiled world
    :return: For each action, the probabilities of each state's successors: a sparse (S, S) float64
        matrix, its columns in ascending order
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP
    """
    _check_mdp(mdp)
    # Importing scipy takes longer than compiling a layout.
    from scipy.sparse import csr_array, diags_array, eye_array

    def moves_to(targets: NDArray[np.integer[Any]]) -> Any:
        return csr_array(
            (np.ones(len(targets)), (np.arange(len(targets)), targets)),
            shape=(mdp.n_states, mdp.n_states),
        )

    closed = [
        chance * moves_to(to)
        for chance, to in zip(mdp.closing_probability, mdp.closed_state.T, strict=True)
    ]
    closing = sum(closed[1:], closed[0])
    arrivals = [moves_to(mdp.next_state[:, action]) for action in range(mdp.n_actions)]
    slipping = diags_array(mdp.slip_probability * mdp.slips, format="csr")
    staying = eye_array(mdp.n_states, format="csr") - slipping
    random_move = sum(arrivals[1:4], arrivals[0]) * 0.25
    matrices = [
        csr_array((staying @ arrival + slipping @ random_move) @ closing) for arrival in arrivals
    ]
    for matrix in matrices:
        matrix.eliminate_zeros()
        matrix.sort_indices()
    return matrices


def transition_model(mdp: TwoRoomsMDP) -> TransitionModel:
    """
    Return the dynamics in the form of ``P`` of Gymnasium's toy_text environments.

    It takes about 2 kB a state; :func:`transition_matrices` takes less.

    :param mdp: The compiled world
    :return: For each state and action, what may follow: each next state once, in ascending order,
        with a positive probability; rewards are 0.0 and nothing terminates
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP
    """
    _check_mdp(mdp)
    model: TransitionModel = {state: {} for state in range(mdp.n_states)}
    for action, matrix in enumerate(transition_matrices(mdp)):
        chances = matrix.data.tolist()
        followers = matrix.indices.tolist()
        starts = matrix.indptr.tolist()
        outcomes = [
            (chance, follower, 0.0, False)
            for chance, follower in zip(chances, followers, strict=True)
        ]
        for state in range(mdp.n_states):
            model[state][action] = outcomes[starts[state] : starts[state + 1]]
    return model


def reach_probabilities(mdp: TwoRoomsMDP, goals: ArrayLike, horizon: int) -> NDArray[np.float64]:
    """
    Return the ceiling of mastery: the probability that the best policy reaches a goal in time.

    It is found by backward induction.

    :param mdp: The compiled world
    :param goals: State numbers, (G,)
    :param horizon: Steps allowed, at least 0
    :return: For each start and goal, (S, G) float64; 1 where the start is the goal
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP, or goals are not integers
    :raises ValueError: If there is no such state, or ``horizon`` is no number of steps
    """
    _check_horizon(horizon)
    goals, columns, matrices = _problem(mdp, goals)
    return _reach_sets(matrices, (goals, columns), (mdp.n_states, len(goals)), horizon)


def _reach_sets(
    matrices: list["csr_array"],
    achieving: tuple[NDArray[np.integer[Any]], ...],
    shape: tuple[int, int],
    horizon: int,
) -> NDArray[np.float64]:
    """
    Return the probability that the best policy reaches goals that are sets of states in time.

    :param matrices: The dynamics, from :func:`transition_matrices`
    :param achieving: Pairs of a state and the column of a goal that it achieves
    :param shape: The numbers of states and goals, (S, G)
    :param horizon: Steps allowed, at least 0
    :return: For each start and goal, (S, G) float64
    """
    reached = np.zeros(shape)
    reached[achieving] = 1.0
    for _ in range(horizon):
        before = reached
        reached = matrices[0] @ before
        for matrix in matrices[1:]:
            np.maximum(reached, matrix @ before, out=reached)
        reached[achieving] = 1.0
        # Once a step changes nothing, no later step does.
        if np.array_equal(reached, before):
            break
    return reached


def mastery_ceiling(
    mdp: TwoRoomsMDP,
    horizon: int,
    goal: Goal | None = None,
    reached: float | IsReached | None = None,
) -> Callable[[NDArray[np.uint8], NDArray[Any]], NDArray[np.float64]]:
    """
    Return the ceiling of mastery as :func:`~sb3_manygoals.evaluation.evaluate_mastery` takes it.

    With ``goal`` or ``reached``, a goal is the set of all states that reach it.

    :param mdp: The compiled world
    :param horizon: Steps allowed, at least 0
    :param goal: What a picture achieves, such as :func:`~gym_twoRooms.goals.agent_cell`. None: the
        picture itself
    :param reached: Greatest Euclidean distance at which an achievement reaches a goal, or a
        function that says whether it does. None: they must be equal
    :return: A function of starts, observations (N, H, W, 3) uint8, and goals, achievements
        (N, ...), where an achievement that is one number may have an axis. It returns the
        probabilities, (N,) float64, with which the best policy reaches each goal from its start in
        time. It plans for at most :data:`CHUNK` goals at a time, to bound its memory. Its
        attribute ``horizon`` says how many steps are allowed
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP, ``goal`` is no function, or ``reached`` neither
        a number nor a function
    :raises ValueError: If ``horizon`` is no number of steps, or ``reached`` is negative or NaN
    """
    _check_mdp(mdp)
    _check_horizon(horizon)
    _check_kind(goal, reached)
    if goal is not None or reached is not None:
        of_sets = _ceiling_of_sets(mdp, horizon, goal, reached)
        of_sets.horizon = horizon  # type: ignore[attr-defined]
        return of_sets

    def ceiling(starts: NDArray[np.uint8], goals: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Plan for the different goals, some at a time, and look each pair up."""
        start_states = mdp.states_of(starts)
        goal_states = mdp.states_of(goals)
        if len(goal_states) != len(start_states):
            raise ValueError(
                f"goals must be {len(start_states)} pictures, one for each start, got "
                f"{len(goal_states)}."
            )
        wanted, rows = np.unique(goal_states, return_inverse=True)
        best = np.empty(len(start_states))
        chunk = _goals_at_a_time(mdp)
        for first in range(0, len(wanted), chunk):
            here = rows // chunk == first // chunk
            chances = reach_probabilities(mdp, wanted[first : first + chunk], horizon)
            best[here] = chances[start_states[here], rows[here] - first]
        return best

    ceiling.horizon = horizon  # type: ignore[attr-defined]
    return ceiling


def _ceiling_of_sets(
    mdp: TwoRoomsMDP, horizon: int, goal: Goal | None, reached: float | IsReached | None
) -> Callable[[NDArray[np.uint8], NDArray[Any]], NDArray[np.float64]]:
    """Return the function of :func:`mastery_ceiling` for goals that are sets of states."""

    def ceiling(starts: NDArray[np.uint8], goals: NDArray[Any]) -> NDArray[np.float64]:
        """Plan for the different goals, some at a time, and look each pair up."""
        start_states = mdp.states_of(starts)
        achieved = _achievements(mdp, goal)
        goals = np.asarray(goals)
        if goals.dtype.kind == "f":
            # Goals may have been rounded to the dtype of their space.
            achieved = achieved.astype(goals.dtype)
        if achieved.ndim == 1 and goals.ndim == 2:
            # A space of single numbers may have an axis for them.
            achieved = achieved[:, np.newaxis]
        if goals.shape != (len(starts), *achieved.shape[1:]):
            raise ValueError(
                f"goals must be of shape {(len(starts), *achieved.shape[1:])}, one for each "
                f"start, got {goals.shape}."
            )
        matrices = transition_matrices(mdp)
        wanted, rows = np.unique(goals, axis=0, return_inverse=True)
        rows = rows.reshape(-1)
        best = np.empty(len(start_states))
        chunk = _goals_at_a_time(mdp)
        for first in range(0, len(wanted), chunk):
            here = rows // chunk == first // chunk
            some = wanted[first : first + chunk]
            sets = np.stack([_reach(achieved, one, reached) for one in some], axis=1)
            chances = _reach_sets(matrices, np.nonzero(sets), sets.shape, horizon)
            best[here] = chances[start_states[here], rows[here] - first]
        return best

    return ceiling


def _goals_at_a_time(mdp: TwoRoomsMDP) -> int:
    """Return for how many goals there is memory to plan at a time."""
    return max(1, min(CHUNK, _MOST_PAIRS // mdp.n_states))


def _achievements(mdp: TwoRoomsMDP, goal: Goal | None) -> NDArray[Any]:
    """Return what each state achieves, (S, ...)."""
    if goal is None:
        return mdp.observe(np.arange(mdp.n_states))
    return np.array([goal(mdp.observe(state)) for state in range(mdp.n_states)])


def _reach(
    achieved: NDArray[Any], goal: NDArray[Any], reached: float | IsReached | None
) -> NDArray[np.bool_]:
    """Return which achievements reach a goal, (S,) bool."""
    n_states = len(achieved)
    if callable(reached):
        found = np.asarray(reached(achieved, np.repeat(goal[np.newaxis], n_states, axis=0)))
        if found.shape != (n_states,):
            raise ValueError(f"reached must return shape {(n_states,)}, got {found.shape}.")
        return found.astype(np.bool_)
    if reached is None:
        return np.asarray((achieved == goal).reshape(n_states, -1).all(axis=1))
    differences = np.subtract(achieved, goal, dtype=np.float64).reshape(n_states, -1)
    return np.asarray(np.linalg.norm(differences, axis=1) <= reached)


def expected_steps(mdp: TwoRoomsMDP, goals: ArrayLike) -> NDArray[np.float64]:
    """
    Return the steps that the best policy without a deadline takes to a goal on average.

    They are found by value iteration, which stops when no sweep changes one by more than 1e-6. The
    error, and the number of sweeps, grow with the number of steps: where doors nearly always shut
    again, such as with a ``close_probability`` of .95, ways take thousands of steps, and errors are
    about .01.

    :param mdp: The compiled world
    :param goals: State numbers, (G,)
    :return: For each start and goal, (S, G) float64; 0 where the start is the goal
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP, or goals are not integers
    :raises ValueError: If there is no such state
    """
    return _plan(mdp, goals)[1]


class OraclePolicy:
    """
    The policy that takes the fewest steps on average. :meth:`predict` acts on goal observations, as
    an agent's does.

    :param mdp: The compiled world
    :param goals: State numbers that will be asked for, (G,)
    :raises TypeError: If ``mdp`` is no TwoRoomsMDP, or goals are not integers
    :raises ValueError: If there is no such state
    :ivar mdp: The compiled world
    :ivar goals: The state numbers, (G,) int64
    :ivar actions: The best action in each state for each goal, (S, G) int64
    """

    def __init__(self, mdp: TwoRoomsMDP, goals: ArrayLike) -> None:
        self.mdp = mdp
        self.actions = _plan(mdp, goals)[0].argmin(axis=0)
        self.goals = mdp.check_states(goals)
        self._columns = np.full(mdp.n_states, -1)
        self._columns[self.goals] = np.arange(len(self.goals))

    def predict(
        self, observation: dict[str, NDArray[np.uint8]], *, deterministic: bool = True
    ) -> tuple[NDArray[np.int64], None]:
        """
        Choose actions towards goals.

        :param observation: ``"observation"`` and ``"desired_goal"``, (N, H, W, 3) uint8 each
        :param deterministic: Has no effect, because the policy is never random
        :return: Actions, (N,) int64, and None
        :raises ValueError: If an observation shows no state, or a goal was not planned for
        """
        states = self.mdp.states_of(observation["observation"])
        wanted = self.mdp.states_of(observation["desired_goal"])
        columns = self._columns[wanted]
        if (columns < 0).any():
            raise ValueError(
                f"The goals {np.unique(wanted[columns < 0]).tolist()} were not planned for."
            )
        return self.actions[states, columns], None


def _plan(mdp: TwoRoomsMDP, goals: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps left after each action, (A, S, G), and from each state on, (S, G)."""
    goals, columns, matrices = _problem(mdp, goals)
    steps = np.zeros((mdp.n_states, len(goals)))
    while True:
        before = steps
        after = np.stack([matrix @ before for matrix in matrices])
        steps = 1.0 + after.min(axis=0)
        steps[goals, columns] = 0.0
        if np.abs(steps - before).max() <= 1e-6:
            return after, steps


def _problem(
    mdp: TwoRoomsMDP, goals: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.intp], list["csr_array"]]:
    """Return the goals, checked, with the numbers of their columns, and the dynamics."""
    _check_mdp(mdp)
    # An empty list is an array of floats.
    states = np.asarray(goals) if np.size(goals) == 0 else mdp.check_states(goals)
    if states.ndim != 1 or len(states) == 0:
        raise ValueError(
            f"goals must be a sequence of at least one state number, got shape {states.shape}."
        )
    return states, np.arange(len(states)), transition_matrices(mdp)


def _check_mdp(mdp: Any) -> None:
    """Raise an error if this is no compiled world."""
    if not isinstance(mdp, TwoRoomsMDP):
        raise TypeError(
            f"mdp must be a TwoRoomsMDP, such as env.unwrapped.mdp, got {type(mdp).__name__}"
        )


def _check_kind(goal: Any, reached: Any) -> None:
    """Raise an error if these do not say what is achieved and reached."""
    if goal is not None and not callable(goal):
        raise TypeError(f"goal must be a function, got {goal!r}.")
    if reached is None or callable(reached):
        return
    if isinstance(reached, bool) or not isinstance(reached, Real):
        raise TypeError(f"reached must be a number or a function, got {reached!r}.")
    if not float(reached) >= 0.0:
        raise ValueError(f"reached must be at least 0, got {reached!r}.")


def _check_horizon(horizon: int) -> None:
    """Raise a ValueError if this is no number of steps."""
    if not isinstance(horizon, (int, np.integer)) or horizon < 0:
        raise ValueError(f"horizon must be an integer of at least 0, got {horizon!r}.")
