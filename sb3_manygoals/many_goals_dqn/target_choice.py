"""The choice of targets: values are planned while observations recur, and else bootstrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.world import UNKNOWN, ExactStates

# If less than this share of the observations was met before, planned targets are given up.
_GIVE_UP_PLANS = 0.05
# If at least this share was met before, learning begins with planned targets.
_BEGIN_WITH_PLANS = 0.1
# If at least this share was met before, bootstrapped targets are given up. Between these shares
# targets stay as they are, so that they do not alternate.
_GO_OVER_TO_PLANS = 0.2
# If at least this share was met before, the world is not too large for plans, whatever else is
# seen. In a sliding puzzle, half of the observations of an episode were met in it before.
_SURELY_RECURS = 0.9
# If less than this share was met before, no observation recurs. Else observations that do not recur
# are new states. With 40 bits that are flipped, one action of 40 takes back the last one.
_HARDLY_RECURS = 0.01
# Plans are given up if the actions of all states that there seem to be are more than so many times
# the steps of training, and taken up again if they are half as many. With more of them, a plan
# knows few ways, and bootstrapping generalizes.
_MOST_ACTIONS_PER_STEP = 2.0
# If episodes have no state in common, it counts as half a state.
_NONE_IN_COMMON = 0.5
# The number of states is estimated from so many episodes, and not from fewer.
_FEWEST_EPISODES = 8
# Copies of an environment may show equal observations in the same step, because they begin together
# or because their clocks tick together. Before each has made so many steps, nobody can tell which.
_FEWEST_STEPS_OF_COPIES = 100
# With fewer observations nothing can be told, as after loading.
_FEWEST_OBSERVATIONS = 20


class Choice(NamedTuple):
    """What a review has found."""

    plan: bool
    """Whether values should be planned."""
    share: float
    """The share of observations since the last review that were met before."""
    is_first: bool
    """Whether it was the first review."""
    is_too_large: bool = False
    """Whether values should not be planned because the world has too many states."""

    @property
    def is_noisy(self) -> bool:
        """Whether hardly any observation recurs, so that states may look different each time."""
        return self.share < _HARDLY_RECURS


class TargetChoice:
    """
    Chooses between planned and bootstrapped targets by the share of observations that were met
    before, and by how many states the world seems to have. It looks when learning starts, and again
    whenever steps have doubled.

    Observations recur also in a world of a million states, where an action takes back the last one.
    But there, episodes hardly ever meet a state of another episode. See :func:`estimate_states`.
    """

    def __init__(self) -> None:
        self.num_timesteps = 0
        """Steps at the last review."""
        self.n_added = 0
        """Observations at the last review."""
        self.n_recurred = 0
        """How many of them had been met before, or by another environment in the same step."""
        self.n_shared = 0
        """How many of these were only met by another environment in the same step."""

    def review(
        self,
        num_timesteps: int,
        learning_starts: int,
        states: ExactStates,
        is_planned: bool,
        actions_per_step: Callable[[], float | None] = lambda: None,
        n_envs: int = 1,
    ) -> Choice | None:
        """
        Choose targets, if it is time to.

        :param num_timesteps: steps so far, of all environments together
        :param learning_starts: steps before the first update
        :param states: the states met so far
        :param is_planned: whether values are planned now
        :param actions_per_step: estimates the number of actions of all states of the world, divided
            by the steps of training; None if it cannot be told
        :param n_envs: number of environments
        :return: None if it is not time to, or too few observations were made to tell, or too many
            had no room
        """
        if self.num_timesteps <= num_timesteps < 2 * self.num_timesteps:
            return None
        n_new = states.n_added - self.n_added
        if n_new < max(learning_starts, _FEWEST_OBSERVATIONS):
            return None
        n_recurred = states.n_recurred - self.n_recurred
        share = (n_recurred - (states.n_shared - self.n_shared)) / max(n_new, 1)
        is_first = self.num_timesteps == 0
        if is_first:
            least = _BEGIN_WITH_PLANS
        else:
            least = _GIVE_UP_PLANS if is_planned else _GO_OVER_TO_PLANS
        steps_of_each = (num_timesteps - self.num_timesteps) / n_envs
        if share < least <= n_recurred / max(n_new, 1) and steps_of_each < _FEWEST_STEPS_OF_COPIES:
            return None
        self.num_timesteps = num_timesteps
        self.n_added = states.n_added
        self.n_recurred = states.n_recurred
        self.n_shared = states.n_shared
        if states.is_full and not is_first and share < _SURELY_RECURS:
            # What there was no room for counts as new. It may recur: nobody can tell.
            return None
        if share < least or share >= _SURELY_RECURS:
            return Choice(plan=share >= least, share=share, is_first=is_first)
        ratio = actions_per_step()
        most = _MOST_ACTIONS_PER_STEP if is_planned else _MOST_ACTIONS_PER_STEP / 2
        is_too_large = ratio is not None and ratio > most
        return Choice(not is_too_large, share, is_first, is_too_large)

    def count_anew(self) -> None:
        """Go on with states that were loaded, which count observations from 0."""
        self.n_added = 0
        self.n_recurred = 0
        self.n_shared = 0

    def get_checkpoint_state(self) -> tuple[int, ...]:
        """Return steps and observations at the last review."""
        return self.num_timesteps, self.n_added, self.n_recurred, self.n_shared

    def set_checkpoint_state(self, state: tuple[int, ...]) -> None:
        """
        Restore what :meth:`get_checkpoint_state` returned.

        :param state: what it returned
        """
        self.num_timesteps, self.n_added, self.n_recurred, *rest = state
        # Checkpoints of earlier versions do not have it.
        self.n_shared = rest[0] if rest else 0


def estimate_states(
    state_ids: NDArray[np.integer[Any]], next_state_ids: NDArray[np.integer[Any]]
) -> float | None:
    """
    Estimate how many states a world has, from how often episodes met a state of another episode.

    Episodes of k and l distinct states, at random places among N states, have k l / N states in
    common on average. So N follows from how many they have in common, as the number of days from
    that of equal birthdays, or the size of a population from the animals that are caught again
    (Schnabel 1938, "The Estimation of the Total Fish Population of a Lake"). It does not matter
    that states of one episode are near each other. Places that all episodes visit count as most of
    the world.

    :param state_ids: the states in which actions were taken, oldest first, one column for each
        environment, shape (T, n_envs). ``UNKNOWN`` for states without an id
    :param next_state_ids: the states that they led to, likewise. An episode goes on as long as the
        next action is taken there, or both have no id. Each of those without an id counts as a
        state of its own
    :return: the number of states, at least that of the states that were met. None if there are too
        few episodes to tell
    """
    goes_on = np.zeros(state_ids.shape, np.bool_)
    goes_on[1:] = state_ids[1:] == next_state_ids[:-1]
    # Environments one after the other.
    episodes = np.cumsum(~goes_on.T).reshape(goes_on.T.shape)
    n_episodes = int(episodes.max(initial=0))
    if n_episodes < _FEWEST_EPISODES:
        return None
    visits = np.concatenate(
        [
            np.stack([episodes.reshape(-1), ids.T.reshape(-1)], axis=1)
            for ids in (state_ids, next_state_ids)
        ]
    ).astype(np.int64)
    # Each state without an id gets one of its own, where a step led to it.
    is_first = np.arange(len(visits)) < episodes.size
    is_unknown = visits[:, 1] == UNKNOWN
    visits = visits[~(is_unknown & is_first)]
    is_unknown = visits[:, 1] == UNKNOWN
    visits[is_unknown, 1] = -2 - np.arange(np.count_nonzero(is_unknown))
    visits = np.unique(visits, axis=0)
    lengths = np.bincount(visits[:, 0]).astype(np.float64)
    _, visitors = np.unique(visits[:, 1], return_counts=True)
    n_pairs = float(lengths.sum() ** 2 - np.square(lengths).sum()) / 2.0
    n_in_common = float((visitors * (visitors - 1) / 2.0).sum())
    return max(float(len(visitors)), n_pairs / max(n_in_common, _NONE_IN_COMMON))
