"""Where an agent has come back to a state on the way to its goal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals import UNKNOWN


class Circles:
    """
    Tells where an agent goes in circles: where it is back in a state in which it has already acted
    on the way to the same goal. The way that it took from there has not led to the goal.

    Where states get other ids, make a new object.

    :param n_envs: number of environments, n
    """

    def __init__(self, n_envs: int) -> None:
        self._acted_in: list[set[int]] = [set() for _ in range(n_envs)]

    def visit(self, state_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """
        Note the states in which the agent acts next.

        :param state_ids: the state of each environment, -1 for unknown ones, shape (n,)
        :return: in which environments the agent is back in a state, bool, shape (n,). False for
            unknown states
        """
        is_back = np.zeros(len(state_ids), np.bool_)
        for env, state in enumerate(state_ids.tolist()):
            if state == UNKNOWN:
                continue
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
        """Return the states in which the agent acted, as plain data and arrays."""
        return {"acted_in": [np.array(sorted(states), np.int64) for states in self._acted_in]}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the states in which the agent acted.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self._acted_in = [set(states.tolist()) for states in state["acted_in"]]
