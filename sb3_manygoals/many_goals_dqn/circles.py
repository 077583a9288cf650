"""Where an agent has come back to a state on the way to its goal."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.world import WorldModel


class Circles:
    """
    Tells where an agent goes in circles: where it is back in a state in which it has already acted
    on the way to the same goal. The way that it took from there has not led to the goal.

    In a world with chance, the same way may lead to the goal the next time. So an agent that comes
    back need not go in circles. :meth:`are_certain` tells whether it does.

    Where states get other ids, or environments begin anew, make a new object.

    :param n_envs: number of environments, n
    """

    def __init__(self, n_envs: int) -> None:
        self._has_chance = False
        # How many transitions were known when the model of the world was looked at last.
        self._n_counted_at_review = 0
        self._acted_in: list[set[int]] = [set() for _ in range(n_envs)]

    def are_certain(self, world: WorldModel) -> bool:
        """
        Return whether an agent that comes back to a state goes in circles, because actions have led
        to the same state each time.

        The model of the world is looked at when this is asked first, and again whenever twice as
        many transitions are known, until chance was seen in it.

        :param world: the model of the world
        :return: False if an action has led from one state to different states
        """
        least = max(2 * self._n_counted_at_review, 1)
        if not self._has_chance and world.n_counted >= least:
            self._has_chance = world.has_chance()
            self._n_counted_at_review = world.n_counted
        return not self._has_chance

    def visit(
        self, state_ids: NDArray[np.int64], contents: NDArray[Any] | None = None
    ) -> NDArray[np.bool_]:
        """
        Note the states in which the agent acts next.

        :param state_ids: the state of each environment, -1 for unknown ones, shape (n,)
        :param contents: what tells unknown states apart: their observations, or the keys of these,
            shape (n, ...). None: nothing does
        :return: in which environments the agent is back in a state, bool, shape (n,). False for
            unknown states that nothing tells apart
        """
        is_back = np.zeros(len(state_ids), np.bool_)
        for env, state in enumerate(state_ids.tolist()):
            if state == UNKNOWN:
                if contents is None:
                    continue
                state = _number_of(contents[env])
            acted_in = self._acted_in[env]
            is_back[env] = state in acted_in
            acted_in.add(state)
        return is_back

    def begin_anew(self, is_over: NDArray[np.bool_]) -> None:
        """
        Forget the states of environments whose goal is no longer pursued.

        :param is_over: which environments, bool, shape (n,)
        """
        for env in np.flatnonzero(is_over).tolist():
            self._acted_in[env].clear()

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return what was noted, as plain data and arrays."""
        return {
            "acted_in": [np.array(sorted(states), np.int64) for states in self._acted_in],
            "has_chance": self._has_chance,
            "n_counted_at_review": self._n_counted_at_review,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore what was noted.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self._acted_in = [set(states.tolist()) for states in state["acted_in"]]
        # Checkpoints of an earlier version do not have it.
        self._has_chance = state.get("has_chance", False)
        self._n_counted_at_review = state.get("n_counted_at_review", 0)


def _number_of(content: NDArray[Any]) -> int:
    """Return a number below -1 for an unknown state, the same one in each process."""
    digest = hashlib.blake2b(np.ascontiguousarray(content).tobytes(), digest_size=7).digest()
    return -2 - int.from_bytes(digest, "little")
