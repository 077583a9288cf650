"""How a ManyGoalsDQN standardizes inputs by the states and goals that it knows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import get_flattened_obs_dim

from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.networks import count_distinct
from sb3_manygoals.packing import PackedSpace

# Inputs are standardized by at most so many goals, and so many numbers.
_MOST_GOALS_TO_FIT = 10_000
_MOST_NUMBERS_TO_FIT = 2**26


class StandardizationMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that standardizes the inputs of the network,
    and looks whether the network can tell goals apart.
    """

    _n_standardized_by: int
    """How many states were known when inputs were standardized. 0: they were not."""
    _warned_of_alike_goals: bool
    """Whether the user knows that goals look alike to the network."""

    def _standardize(self) -> None:
        """Standardize inputs by the states and goals that are known, or in the replay memory."""
        model = self._model
        if self._standardizes_by_transitions and not model.goals_in_replay:
            assert model.goal_buffer is not None
            most = _most_to_fit(model.goal_buffer.observation_space)
            met = model.replay_buffer.evenly_chosen(most)
            observations = th.as_tensor(met, device=model.device)
            goals = th.as_tensor(model.goal_buffer.achieved(met), device=model.device)
        else:
            observations = self._some_observations()
            goals = self._some_goals()
        model.policy.fit_standardization(observations, goals)
        self._note_standardization()

    def _note_standardization(self) -> None:
        """Note that inputs are standardized from now on."""
        self._n_standardized_by = self._n_to_standardize_by

    @property
    def _standardization_is_due(self) -> bool:
        """
        Whether inputs are to be standardized anew: twice as many states or transitions are known as
        last time, and targets allow it.
        """
        if self._n_standardized_by == 0 or not self._model.targets.restandardizes:
            return False
        return self._n_to_standardize_by >= 2 * self._n_standardized_by

    @property
    def _n_to_standardize_by(self) -> int:
        """How many states are known, or transitions if inputs are standardized by these."""
        model = self._model
        assert model.goal_buffer is not None
        n_states = len(model.goal_buffer.states)
        if self._standardizes_by_transitions:
            return max(model.replay_buffer.size() * model.n_envs, n_states)
        return n_states

    @property
    def _standardizes_by_transitions(self) -> bool:
        """
        Whether inputs are standardized by what is in the replay memory, because goals are there, or
        because the goal buffer is full and does not know what was met last.
        """
        model = self._model
        assert model.goal_buffer is not None
        if model.goals_in_replay:
            return True
        states = model.goal_buffer.states
        is_full = states.is_full and model.goal_buffer.takes_all_goals
        return is_full and model.replay_buffer.size() > 0

    def _some_goals(self) -> th.Tensor:
        """Return known goals, evenly chosen if there are too many, shape (n, *shape)."""
        model = self._model
        goals = model.goal_buffer
        assert goals is not None
        if isinstance(goals, ReplayGoals):
            # All observations at once might not fit into memory.
            found = goals.evenly_chosen(_most_to_fit(goals.goal_space))
        else:
            found = _evenly_chosen(goals.observations, goals.goal_space)
        return th.as_tensor(found, device=model.device)

    def _some_observations(self) -> th.Tensor:
        """Return observations of known states, chosen likewise, shape (n, *shape)."""
        model = self._model
        goals = model.goal_buffer
        assert goals is not None
        if goals.goals_are_observations:
            return self._some_goals()
        chosen = _evenly_chosen(goals.states.observations, goals.observation_space)
        return th.as_tensor(chosen, device=model.device)

    def _warn_of_alike_goals(self) -> None:
        """
        Warn once if different goals are the same numbers for the network. This happens if float32
        has fewer digits than the observations.
        """
        model = self._model
        if self._warned_of_alike_goals or not model.policy.may_confuse_observations:
            return
        assert model.goal_buffer is not None
        goals = self._some_observations()
        # Goals in a replay memory may occur more than once.
        n_goals = count_distinct(goals.cpu().numpy())
        n_alike = n_goals - model.policy.count_distinct(goals)
        if n_alike > 0:
            self._warned_of_alike_goals = True
            space = model.goal_buffer.observation_space
            parts = space.parts.values() if isinstance(space, PackedSpace) else [space]
            dtypes = sorted({str(part.dtype) for part in parts})
            warnings.warn(
                f"{n_alike} of {n_goals} known goals look to the network like another one: it "
                f"computes in float32, observations are {' and '.join(dtypes)}. If they differ by "
                "errors of rounding only, round them in a wrapper. Else subtract a constant, or "
                "choose a larger unit",
                stacklevel=3,
            )


def _most_to_fit(space: spaces.Space[Any]) -> int:
    """Return by how many observations of a space inputs are standardized at most."""
    parts = space.parts.values() if isinstance(space, PackedSpace) else [space]
    # Whole numbers of a Discrete space become one number for each of its elements.
    n_numbers = sum(get_flattened_obs_dim(part) for part in parts)
    return min(_MOST_GOALS_TO_FIT, max(1, _MOST_NUMBERS_TO_FIT // n_numbers))


def _evenly_chosen(observations: NDArray[Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """Return a copy of observations or goals of a space, evenly chosen if there are too many."""
    most = _most_to_fit(space)
    if len(observations) > most:
        places = np.linspace(0, len(observations) - 1, most, dtype=np.int64)
        observations = observations[places]
    return observations.copy()
