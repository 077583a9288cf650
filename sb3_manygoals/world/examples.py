"""States of which several observations are kept."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.validation import check_count
from sb3_manygoals.world.states import UNKNOWN, ExactStates

EXAMPLES_PER_STATE = 32
"""Of each state, so many of its observations are kept."""


class ExampleStates(ExactStates):
    """
    States that look different from time to time. Of each state, some of its observations are kept,
    as examples of how it looks: the first one, and a random sample of all others.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: greatest number of states. Memory is used only as states come in
    :param examples_per_state: greatest number of observations that are kept of a state
    :raises ValueError: if it is below 1
    """

    is_exact: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int,
        examples_per_state: int = EXAMPLES_PER_STATE,
    ) -> None:
        self.examples_per_state = check_count("examples_per_state", examples_per_state)
        self._rng = np.random.default_rng(0)
        super().__init__(observation_space, capacity)

    def _make_room_for_examples(self) -> None:
        """Allocate memory for the examples of ``capacity`` states."""
        shape = (self.capacity, self.examples_per_state, *(self.observation_space.shape or ()))
        # Pages of zeros take no memory before something is written to them.
        self._examples: NDArray[Any] = np.zeros(shape, dtype=self.observation_space.dtype)
        self._n_seen: NDArray[np.int64] = np.zeros(self.capacity, dtype=np.int64)

    @property
    def observations(self) -> NDArray[Any]:
        """The first observation of each state in the order of their ids, as a read-only view."""
        view = self._examples[: len(self), 0]
        view.flags.writeable = False
        return view

    def sample(self, ids: NDArray[np.integer[Any]], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return an observation of each of n states, drawn among those that are kept.

        :param ids: ids of states, int64, shape ``(n,)``. ``UNKNOWN`` gives any observation
        :param rng: random generator
        :return: shape ``(n, *observation_space.shape)``
        """
        n_kept = np.minimum(self._n_seen[ids], self.examples_per_state)
        examples: NDArray[Any] = self._examples[ids, rng.integers(np.maximum(n_kept, 1))]
        return examples

    def _keep_examples(self, ids: NDArray[np.int64], observations: NDArray[Any]) -> None:
        """Keep these observations, or some of them in place of earlier ones."""
        for state_id, observation in zip(ids.tolist(), observations, strict=True):
            if state_id == UNKNOWN:
                continue
            place = int(self._n_seen[state_id])
            if place >= self.examples_per_state:
                # Reservoir sampling, but the first example stays.
                place = 1 + int(self._rng.integers(place))
            if place < self.examples_per_state:
                self._examples[state_id, place] = observation
            self._n_seen[state_id] += 1
