"""Parts of goals that stay the same in an episode and differ between episodes, such as walls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

# A review looks at so many transitions.
_MOST_TRANSITIONS = 2_000
# If fixed parts allow a smaller share of pairs of a state and a goal, nearly all goals are out of
# reach from nearly all states.
_FEW = 1 / 8


class FixedParts:
    """
    Tells whether the goals of other episodes are out of reach, because some parts of goals never
    change in an episode. If each episode has other walls, for instance, a goal with the walls of
    one episode is not reached in another one.

    A part is an element of a goal. It is fixed if no transition that was looked at changes it. So
    the door of a room counts as fixed until it is opened.

    The replay memory is looked at when this is asked first, and again whenever it was asked twice
    as often. The learner's random numbers are not used.
    """

    def __init__(self) -> None:
        self.n_asked = 0
        """How often it was asked."""
        self.asked_at_review = 0
        """How often it had been asked when the memory was looked at last."""
        self.part_episodes = False
        """Whether fixed parts kept nearly all goals out of reach then."""
        self.changed: NDArray[np.bool_] | None = None
        """Which elements of goals some transition changed, flat. None: nothing was looked at."""

    def are_in_the_way(self, replay_buffer: ManyGoalsReplayBuffer, goal_buffer: GoalBuffer) -> bool:
        """
        Return whether fixed parts keep nearly all goals of other episodes out of reach.

        :param replay_buffer: the transitions
        :param goal_buffer: tells which goals observations achieve, and which goals these reach
        :return: whether fewer than an eighth of all pairs of a state and a goal are alike in fixed
            parts, or differ there so little that goals are reached. False if there are no
            transitions, or goals are told by the states of a key or by learned states
        """
        if replay_buffer.size() == 0:
            return False
        if goal_buffer.goals_are_observations and not goal_buffer.states.is_exact:
            return False
        self.n_asked += 1
        if self.n_asked >= 2 * self.asked_at_review:
            self._review(replay_buffer, goal_buffer)
            self.asked_at_review = self.n_asked
        return self.part_episodes

    def _review(self, replay_buffer: ManyGoalsReplayBuffer, goal_buffer: GoalBuffer) -> None:
        """Look at random transitions, the same ones wherever this is asked as often."""
        rng = np.random.default_rng(self.n_asked)
        n_envs = replay_buffer.n_envs
        n_transitions = replay_buffer.size() * n_envs
        places = np.arange(n_transitions)
        if n_transitions > _MOST_TRANSITIONS:
            places = rng.integers(n_transitions, size=_MOST_TRANSITIONS)
        times, envs = np.divmod(places, n_envs)
        observations, next_observations = replay_buffer.observations_at(times, envs)
        before = goal_buffer.achieved(observations).reshape(len(places), -1)
        after = goal_buffer.achieved(next_observations).reshape(len(places), -1)
        changed = (before != after).any(axis=0)
        self.changed = changed if self.changed is None else self.changed | changed
        # Goals with the fixed parts of others. Only these parts decide whether they are reached.
        mixed = np.where(self.changed, after, after[rng.permutation(len(places))])
        shape = (len(places), *goal_buffer.shape)
        after = after.reshape(shape)
        reached = goal_buffer.is_reached(after, mixed.reshape(shape))
        # Some functions never say that a goal is reached, whatever it is.
        at_most = goal_buffer.is_reached(after, after).mean()
        self.part_episodes = bool(reached.mean() < _FEW * at_most)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return what was found, as plain data and an array."""
        return dict(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore what was found.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        vars(self).update(state)
