"""Parts of goals that stay the same in an episode and differ between episodes, such as walls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

# A review looks at so many transitions. At most so many are compared with each other.
_MOST_TRANSITIONS = 2_000
# If a smaller share of pairs of transitions has the same fixed parts, nearly all goals are out of
# reach from nearly all states.
_FEW = 1 / 8


class FixedParts:
    """
    Tells whether the goals of other episodes are out of reach, because some parts of goals never
    change in an episode. If each episode has other walls, for instance, a goal with the walls of
    one episode is not reached in another one.

    A part is an element of a goal. It counts as fixed until a transition that was looked at changes
    it. So a door that was not opened yet is fixed.

    The replay memory is looked at when this is asked first, and again whenever it was asked twice
    as often. No random numbers are drawn.
    """

    def __init__(self) -> None:
        self.n_asked = 0
        """How often it was asked."""
        self.asked_at_review = 0
        """How often it had been asked when the memory was looked at last."""
        self.differ = False
        """Whether fixed parts differed between nearly all episodes then."""
        self.changed: NDArray[np.bool_] | None = None
        """Which elements of goals some transition changed, flat. None: nothing was looked at."""

    def differ_between_episodes(
        self, replay_buffer: ManyGoalsReplayBuffer, goal_buffer: GoalBuffer
    ) -> bool:
        """
        Return whether fixed parts differ between nearly all episodes.

        :param replay_buffer: the transitions
        :param goal_buffer: tells which goals observations achieve
        :return: whether fewer than an eighth of all pairs of transitions have the same fixed parts.
            False if there are no transitions
        """
        if replay_buffer.size() == 0:
            return False
        self.n_asked += 1
        if self.n_asked >= 2 * self.asked_at_review:
            self._review(replay_buffer, goal_buffer)
            self.asked_at_review = self.n_asked
        return self.differ

    def _review(self, replay_buffer: ManyGoalsReplayBuffer, goal_buffer: GoalBuffer) -> None:
        """Look at transitions that are evenly spread over the memory."""
        n_transitions = replay_buffer.size() * replay_buffer.n_envs
        n = min(n_transitions, _MOST_TRANSITIONS)
        times, envs = np.divmod(np.arange(n) * n_transitions // n, replay_buffer.n_envs)
        observations, next_observations = replay_buffer.observations_at(times, envs)
        before = goal_buffer.achieved(observations).reshape(n, -1)
        after = goal_buffer.achieved(next_observations).reshape(n, -1)
        changed = (before != after).any(axis=0)
        self.changed = changed if self.changed is None else self.changed | changed
        fixed = after[:, ~self.changed]
        self.differ = fixed.shape[1] > 0 and _share_of_equal_pairs(fixed) < _FEW

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return what was found, as plain data and an array."""
        return dict(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore what was found.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        vars(self).update(state)


def _share_of_equal_pairs(rows: NDArray[Any]) -> float:
    """Return the share of pairs of rows that are equal, those of a row with itself too."""
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return float(np.square(counts / len(rows)).sum())
