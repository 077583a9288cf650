"""The choice of targets: values are planned while observations recur, and else bootstrapped."""

from __future__ import annotations

from typing import NamedTuple

from sb3_manygoals.world import ExactStates

# If less than this share of the observations was met before, planned targets are given up.
_GIVE_UP_PLANS = 0.05
# If at least this share was met before, learning begins with planned targets.
_BEGIN_WITH_PLANS = 0.1
# If at least this share was met before, bootstrapped targets are given up. Between these shares
# targets stay as they are, so that they do not alternate.
_GO_OVER_TO_PLANS = 0.2
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


class TargetChoice:
    """
    Chooses between planned and bootstrapped targets by the share of observations that were met
    before. It looks when learning starts, and again whenever steps have doubled.
    """

    def __init__(self) -> None:
        self.num_timesteps = 0
        """Steps at the last review."""
        self.n_added = 0
        """Observations at the last review."""
        self.n_recurred = 0
        """How many of them had been met before."""

    def review(
        self, num_timesteps: int, learning_starts: int, states: ExactStates, is_planned: bool
    ) -> Choice | None:
        """
        Choose targets, if it is time to.

        :param num_timesteps: steps so far, of all environments together
        :param learning_starts: steps before the first update
        :param states: the states met so far
        :param is_planned: whether values are planned now
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
        return Choice(plan=share >= least, share=share, is_first=is_first)

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
