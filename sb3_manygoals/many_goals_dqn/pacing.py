"""When updates are made, how often, and how the learning rate of steady updates falls."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sb3_manygoals.validation import check_number

LONGEST_RHYTHM = 64
"""Most vector steps between two updates, if ``updates_per_step`` allows it."""

# The first cycle has so many updates for each state, and at least so many.
_UPDATES_PER_STATE = 0.7
_SHORTEST_CYCLE = 300
# If fewer updates are left than this many cycles take, one cycle takes all of them.
_LAST_CYCLES = 3
# A cycle after a rest has this share of the updates of the first one.
_SHARE_AFTER_REST = 0.25
# Updates rest if the network reaches as many goals as the plan, but for at most this share. If the
# next cycle has more updates than this, they rest at a share that is greater by the same factor.
_TOLERATED_FAILURES = 0.001
_TOLERATED_UNTIL = 10_000
# Twice as many updates in a cycle divide failures by about this number.
_FAILURES_HALVING = 3.3
# A cycle has at most so many times the updates of the one before.
_GREATEST_GROWTH = 8
# Sums of fractions of updates are right up to this number.
_ROUNDING = 1e-6


class UpdatePacer:
    """
    Decides how many of the updates that are due are made, and with which step size.

    Updates **wait** until the plan is worth learning. Those that waited are made later, evenly
    until the end of training. Then updates are made in **cycles**. In each cycle the step size
    falls linearly to 0. After a cycle, the network is compared with the plan. If it fails to reach
    more than 0.1% of the goals that the plan reaches, the next cycle is two, four or eight times as
    long, the longer, the more it fails. Otherwise updates **rest**, and those that are due
    meanwhile are never made. They also rest if a cycle of more than 10,000 updates would be needed
    to mend few failures: 0.2% for 20,000 updates, and so on. When a comparison with a new plan
    shows failures, a short cycle begins, with as small a step size as the longest cycle had when as
    many updates were left.
    """

    def __init__(self) -> None:
        self.is_waiting = True
        """Whether updates wait."""
        self.is_resting = False
        """Whether updates rest."""
        self.n_rested = 0
        """The number of updates that were due and were left out, as nothing was to be learned."""
        self.failures = math.nan
        """The share of goals that the network failed to reach when last compared with the plan."""
        # Updates that waited, and updates that are to be made now. Both may be fractions.
        self._owed = 0.0
        self._now = 0.0
        # Updates that will be due until the end of training.
        self._to_come = 0.0
        # The number of updates of the first, of the last, and of the longest cycle, and how many of
        # the present one are left. 0 before the first cycle.
        self._first_length = 0
        self._last_length = 0
        self._longest = 0
        self._left = 0
        # Whether the present cycle takes all updates that are left.
        self._is_last = False

    @property
    def step_size(self) -> float:
        """The step size of the next update, as a share of the largest one."""
        return self._left / max(self._longest, 1)

    def restart(self) -> None:
        """Go on in another training. Updates begin with a comparison, unless they still wait."""
        self.is_resting = False
        self._owed = 0.0
        self._now = 0.0
        self._left = 0
        self._is_last = False
        self._last_length = 0

    def wait(self) -> None:
        """Let updates wait again, because there is no plan, as where states are learned anew."""
        self.restart()
        self.is_waiting = True

    def add_due(self, n: int, to_come: float) -> None:
        """
        Take note that updates are due.

        :param n: number of updates that are due now
        :param to_come: number of updates that will be due until the end of training
        """
        self._owed += n
        self._to_come = max(to_come, 0.0)

    def begin(self, n_states: int) -> None:
        """
        Begin with the updates that have waited.

        :param n_states: number of states to learn about
        """
        self.is_waiting = False
        self._first_length = max(_SHORTEST_CYCLE, round(_UPDATES_PER_STATE * n_states))
        self._begin_cycle(self._first_length)

    def compare(self, failures: float) -> None:
        """
        Go on after a comparison of the network with a new plan, while updates rest.

        :param failures: the share of goals that the plan reaches and the network does not
        """
        self.failures = failures
        if failures > _TOLERATED_FAILURES:
            self.is_resting = False
            self._begin_cycle(max(1, round(_SHARE_AFTER_REST * self._first_length)))

    def release(self, n: int) -> None:
        """
        Make updates ready for :meth:`take`, or leave them out while updates rest.

        :param n: number of updates that became due last
        """
        if self.is_waiting:
            return
        if self.is_resting:
            self._rest()
            return
        # Those that have waited are spread evenly over all that are to come. At the end of
        # training, all of them are made.
        share = n / (n + self._to_come) if self._to_come > 0.0 else 1.0
        ready = n + max(self._owed - n, 0.0) * share
        self._owed -= ready
        self._now += ready

    def _rest(self) -> None:
        """Leave out all updates that are due."""
        self.n_rested += math.floor(self._now + self._owed + _ROUNDING)
        self._now = 0.0
        self._owed = 0.0

    def _begin_cycle(self, length: int) -> None:
        """Begin a cycle of so many updates, or of all that are left if these are not many more."""
        available = math.floor(self._now + self._owed + self._to_come + _ROUNDING)
        self._is_last = available < _LAST_CYCLES * length
        if self._is_last:
            length = max(available, 1)
        self._left = length
        self._last_length = length
        self._longest = max(self._longest, length)

    @property
    def _next_length(self) -> int:
        """The number of updates of a cycle after the last one, from how many failures are left."""
        if self._last_length == 0:
            return self._first_length
        growth = 2
        failures = self.failures / _FAILURES_HALVING
        while failures > _TOLERATED_FAILURES and growth < _GREATEST_GROWTH:
            failures /= _FAILURES_HALVING
            growth *= 2
        return growth * self._last_length

    def take(self, compare: Callable[[], float]) -> bool:
        """
        Return whether an update is to be made now. If so, it counts as made.

        :param compare: returns the share of goals that the plan reaches and the network does not
        :return: whether to make an update, with ``step_size``
        """
        if self.is_waiting or self.is_resting or self._now < 1.0 - _ROUNDING:
            return False
        if self._left == 0:
            if self._is_last:
                # Only the steps by which the last rollout is too long have made more updates due.
                return False
            self.failures = compare()
            next_length = self._next_length
            if self.failures <= _TOLERATED_FAILURES * max(1.0, next_length / _TOLERATED_UNTIL):
                self.is_resting = True
                self._rest()
                return False
            self._begin_cycle(next_length)
        self._now -= 1.0
        return True

    def note_update(self) -> None:
        """Take note that an update was made."""
        self._left -= 1

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return dict(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        vars(self).update(state)


class LateLinearSchedule:
    """
    A learning rate that is constant at first, and then falls linearly to 0.

    :param initial: the learning rate at first
    """

    def __init__(self, initial: float) -> None:
        self.initial = initial
        self.falling_share = 1.0
        """The share of training, at its end, in which it falls. It stays constant if this is 0."""

    def __call__(self, progress_remaining: float) -> float:
        """
        Return the learning rate.

        :param progress_remaining: share of training that is left, from 1 to 0
        :return: the learning rate
        """
        return self.initial * min(progress_remaining / max(self.falling_share, 1e-9), 1.0)


def update_rhythm(updates_per_step: float, n_envs: int) -> tuple[int, int]:
    """
    Convert a number of updates for each environment step to SB3's two arguments.

    :param updates_per_step: number of updates for each environment step, of all environments
        together, from 1e-6 to 1000
    :param n_envs: number of environments
    :return: ``train_freq``, in steps of the VecEnv, and ``gradient_steps``, so that
        ``gradient_steps / train_freq`` is nearly ``updates_per_step * n_envs``. If this is at least
        1 / 64, ``train_freq`` is at most 64. Otherwise ``gradient_steps`` is 1
    :raises ValueError: if ``updates_per_step`` is out of its range
    """
    check_number("updates_per_step", updates_per_step, at_least=1e-6, at_most=1000)
    per_vector_step = Fraction(updates_per_step).limit_denominator(10**6) * n_envs
    if per_vector_step < Fraction(1, LONGEST_RHYTHM):
        return max(1, round(1 / per_vector_step)), 1
    rhythm = per_vector_step.limit_denominator(LONGEST_RHYTHM)
    return rhythm.denominator, rhythm.numerator
