"""The choice of targets: values are planned while observations recur, and else bootstrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from sb3_manygoals.world import ExactStates, WorldModel

# If less than this share of the observations was met before, planned targets are given up.
_GIVE_UP_PLANS = 0.05
# If at least this share was met before, learning begins with planned targets.
_BEGIN_WITH_PLANS = 0.1
# If at least this share was met before, bootstrapped targets are given up. Between these shares
# targets stay as they are, so that they do not alternate.
_GO_OVER_TO_PLANS = 0.2
# If at least this share was met before, the world is not too large for plans, whatever else is
# seen.
_SURELY_RECURS = 0.5
# If less than this share was met before, no observation recurs. Else observations that do not recur
# are new states.
_HARDLY_RECURS = 0.02
# Plans are given up if the actions of all states that there seem to be are more than so many times
# the steps of training, and taken up again if they are half as many. With more of them, a plan
# knows few ways, and bootstrapping generalizes.
_MOST_ACTIONS_PER_STEP = 2.0
# If there are fewer components than this share of episodes, no more can be told.
_LEAST_SHARE = 1e-6
# The number of states is estimated from so many episodes, and not from fewer.
_FEWEST_EPISODES = 8
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
        """How many of them had been met before."""

    def review(
        self,
        num_timesteps: int,
        learning_starts: int,
        states: ExactStates,
        is_planned: bool,
        actions_per_step: Callable[[], float | None] = lambda: None,
    ) -> Choice | None:
        """
        Choose targets, if it is time to.

        :param num_timesteps: steps so far, of all environments together
        :param learning_starts: steps before the first update
        :param states: the states met so far
        :param is_planned: whether values are planned now
        :param actions_per_step: estimates the number of actions of all states of the world, divided
            by the steps of training; None if it cannot be told
        :return: None if it is not time to, or too few observations were made to tell
        """
        if self.num_timesteps <= num_timesteps < 2 * self.num_timesteps:
            return None
        n_new = states.n_added - self.n_added
        if n_new < max(learning_starts, _FEWEST_OBSERVATIONS):
            return None
        share = (states.n_recurred - self.n_recurred) / max(n_new, 1)
        is_first = self.num_timesteps == 0
        if is_first:
            least = _BEGIN_WITH_PLANS
        else:
            least = _GIVE_UP_PLANS if is_planned else _GO_OVER_TO_PLANS
        self.num_timesteps = num_timesteps
        self.n_added = states.n_added
        self.n_recurred = states.n_recurred
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

    def get_checkpoint_state(self) -> tuple[int, int, int]:
        """Return steps and observations at the last review."""
        return self.num_timesteps, self.n_added, self.n_recurred

    def set_checkpoint_state(self, state: tuple[int, int, int]) -> None:
        """
        Restore what :meth:`get_checkpoint_state` returned.

        :param state: what it returned
        """
        self.num_timesteps, self.n_added, self.n_recurred = state


def estimate_states(world: WorldModel) -> float | None:
    """
    Estimate how many states a world has, from how often episodes met a state of another episode.

    If K of N states are known from E episodes, an episode has some K / E of them. Two episodes that
    are at random places have a state in common with probability (K / E)^2 / N. So episodes are
    connected as in a random graph, in which each has K^2 / (E N) neighbors on average. How many
    components such a graph has is known (Erdos and Renyi 1960, "On the Evolution of Random
    Graphs"), so N follows from the number of components.

    Transitions tell how many episodes there were: an episode leaves its first state once more often
    than it comes to it, if its first and its last state are not the same.

    :param world: what is known of the world
    :return: the number of states, at least K. None if there are too few episodes to tell, or if all
        of them are connected, as where all begin in one state
    """
    outcomes = world.outcomes()
    n_states = len(world.identity)
    left = np.bincount(outcomes.state_ids, weights=outcomes.counts, minlength=n_states)
    arrived = np.bincount(outcomes.next_state_ids, weights=outcomes.counts, minlength=n_states)
    n_episodes = float(np.maximum(left - arrived, 0.0).sum())
    if n_episodes < _FEWEST_EPISODES:
        return None
    graph = csr_array(
        (np.ones(len(outcomes.counts)), (outcomes.state_ids, outcomes.next_state_ids)),
        shape=(n_states, n_states),
    )
    _, labels = connected_components(graph, directed=False)
    # A state without transitions, as the last one of an environment, is no episode.
    has_transitions = (left + arrived) > 0
    n_components = len(np.unique(labels[has_transitions]))
    if n_components == 1:
        return None
    n_known = int(has_transitions.sum())
    # Half a connection stands for none.
    share = max(min(n_components, n_episodes - 0.5) / n_episodes, _LEAST_SHARE)
    return max(float(n_known), n_known**2 / (_mean_degree(share) * n_episodes))


def _mean_degree(share: float) -> float:
    """
    Return how many neighbors the nodes of a random graph have on average.

    :param share: the number of components, divided by that of nodes, from 0 to 1
    """

    if share >= 0.5:
        # All components are trees: each connection leaves one component less.
        return 2.0 * (1.0 - share)

    def degree_of(giant: float) -> float:
        """Return the degree at which a giant component has this share of all nodes."""
        return float(-np.log1p(-giant) / giant)

    def excess(giant: float) -> float:
        """Return by how much the share of components is greater with this giant component."""
        degree = degree_of(giant)
        # The others are as in a graph of a smaller degree, which has no giant component.
        small = degree * (1.0 - giant)
        return float((small - small**2 / 2.0) / degree - share)

    return degree_of(brentq(excess, 1e-9, 1.0 - 1e-12))
