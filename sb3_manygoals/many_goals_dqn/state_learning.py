"""How a ManyGoalsDQN learns which observations are one state, where none recurs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.circles import Circles
from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, RecordedSteps
from sb3_manygoals.memory_limits import share_of_memory
from sb3_manygoals.world import UNKNOWN, LearnedStates, Outcomes, WorldModel
from sb3_manygoals.world.find_looks import MOST_STATES
from sb3_manygoals.world.predictability import LEAST_GAIN, gain_over_chance, predictability

# States are learned at these shares of training, the first time not before learning starts.
_LEARN_AT = (0.125, 0.25, 0.5)
# They are learned again only if there are so many times as many transitions.
_GROWTH = 1.5
# Transitions are copied to learn from them. Their observations are there so many times for a
# moment, and may take this share of the memory that is available.
_COPIES = 3
_SHARE_OF_MEMORY = 0.5
# States by codes do not recur if there are more of them than this share of transitions. Sensors of
# things that move smoothly have no states. Their codes fall into more and more pieces, a third to
# half as many as transitions. Noisy pictures of the paper's map had a fifth at most.
_MOST_STATES_BY_CODES = 0.25
# In a shorter training, states are learned only if the user says so.
FEWEST_STEPS = 20_000


class StateLearningMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that learns states
    (:class:`~sb3_manygoals.world.LearnedStates`) from the transitions in the replay memory.
    """

    _learned_at_stage: int
    """How many of the shares of training, at which states are learned, have passed."""
    _learned_from: int
    """From how many transitions states were learned last. 0 before that."""

    def _use_learned_states(self) -> None:
        """Tell states apart by what will be learned from now on."""
        model = self._model
        assert model.goal_buffer is not None
        state_class = model.state_class or LearnedStates
        model.goal_buffer.use_states(state_class, self._kwargs_of_learned_states)
        model._adopt_goals(model.goal_buffer)
        self._begin_anew_with_states()
        self._learned_at_stage = 0

    @property
    def _kwargs_of_learned_states(self) -> dict[str, Any]:
        """Arguments of the states that will be learned: the user's, and the model's seed."""
        kwargs = dict(self._model.state_kwargs or {})
        if self._model.seed is not None:
            kwargs.setdefault("seed", self._model.seed)
        return kwargs

    @property
    def _learns_states(self) -> bool:
        """Whether states are, or will be, learned."""
        world = self._model.world
        return world is not None and isinstance(world.identity, LearnedStates)

    @property
    def _awaits_states(self) -> bool:
        """Whether nothing can be planned yet, because no states were learned."""
        world = self._model.world
        return world is not None and not world.identity.is_known

    def _learn_states_if_due(self) -> bool:
        """
        Learn states at an eighth, a quarter and a half of training, from all transitions that are
        in memory.

        :return: whether states were learned
        """
        model = self._model
        if not self._learns_states or model.num_timesteps < model.learning_starts:
            return False
        assert model.world is not None
        states = model.world.identity
        assert isinstance(states, LearnedStates)
        progress = 1.0 - model._current_progress_remaining
        stage = sum(progress >= share for share in _LEARN_AT)
        if stage <= self._learned_at_stage:
            return False
        self._learned_at_stage = stage
        n_now = model.replay_buffer.size() * model.n_envs
        if model.replay_buffer.full:
            # Memory does not grow any more, but what is known of the world does.
            # The steps of earlier trainings count, too.
            n_now = max(n_now, model.num_timesteps, model.world.n_counted)
        has_grown = n_now >= _GROWTH * self._learned_from
        # A model that was loaded without its world has learned states, and knows none.
        if n_now == 0 or (states.is_known and not has_grown):
            return False
        self._learned_from = n_now
        self._learn_states(states)
        return True

    def _learn_states_now(self) -> bool:
        """
        Learn states from all transitions that are in memory, and not again in this training.

        :return: whether states were learned
        """
        model = self._model
        n_now = model.replay_buffer.size() * model.n_envs
        if not self._learns_states or n_now == 0:
            return False
        assert model.world is not None
        states = model.world.identity
        assert isinstance(states, LearnedStates)
        self._learned_at_stage = len(_LEARN_AT)
        self._learned_from = n_now
        self._learn_states(states)
        return True

    def _learn_states(self, states: LearnedStates) -> None:
        """Learn states, and count all transitions anew."""
        model = self._model
        assert model.world is not None
        assert model.goal_buffer is not None
        replay = model.replay_buffer
        room = share_of_memory(_SHARE_OF_MEMORY) // (_COPIES * replay.size_of_observation)
        n_times = min(replay.size(), max(room // model.n_envs, 1))
        if n_times < replay.size():
            warnings.warn(
                f"states are learned from the newest {n_times * model.n_envs} of "
                f"{replay.size() * model.n_envs} transitions: there is no memory for a copy of "
                "all. A smaller buffer_size leaves more memory",
                stacklevel=5,
            )
        model.logger.info(f"learning states from {n_times * model.n_envs:,} transitions")
        newest = replay.size() - n_times
        steps = replay.recorded(slice(newest, None))
        forgotten = None
        examples = None
        # Transitions may have been overwritten, or loaded without the replay memory.
        knows_more = model.world.n_counted > replay.size() * model.n_envs
        if states.is_known and (replay.full or knows_more):
            forgotten = _forgotten(model.world, replay, n_times)
            examples = states.observations.copy()
        ids = states.learn(
            steps.observations,
            steps.places,
            steps.actions,
            steps.next_places,
            int(model.action_space.n),
            model.n_envs,
        )
        model.world.forget()
        _record(model.world, steps, ids)
        # Those that were not learned from count, too.
        for first in range(0, newest, n_times):
            part = replay.recorded(slice(first, min(first + n_times, newest)))
            _record(model.world, part, states.add(part.observations))
        if forgotten is not None and examples is not None:
            # Of old states, those examples that were nearest to their centers say what they are.
            moved = states.add(examples)
            model.world.add_outcomes(
                forgotten._replace(
                    state_ids=moved[forgotten.state_ids],
                    next_state_ids=moved[forgotten.next_state_ids],
                )
            )
        model.goal_buffer.begin_anew()
        if model.targets.uses_replay_buffer:
            model.replay_buffer.move_to(model.goal_buffer, None)
        self._begin_anew_with_states()
        way = "codes" if states.looks is None else "looks"
        model.logger.info(
            f"{len(states):,} states were learned from {len(steps.actions):,} transitions in "
            f"{states.seconds:.0f} s, by {way}. Two equal actions in one state lead to one state "
            f"with probability {predictability_of(model.world):.2f}"
        )
        if states.autonomous_gain > 0.0:
            model.logger.info(
                "something in the observations goes on by itself over resets of the world, such as "
                "a clock: states leave it out"
            )
        elif np.isnan(states.autonomous_gain):
            model.logger.info(
                "there were too few resets of the world to tell whether something goes on by "
                "itself, such as a clock, which states should leave out"
            )

    def _are_states_useful(self) -> bool:
        """Whether the states that were learned recur, and actions lead from one to another."""
        world = self._model.world
        assert world is not None
        states = world.identity
        assert isinstance(states, LearnedStates)
        n_counted = max(world.n_counted, 1)
        most = _MOST_STATES_BY_CODES if states.looks is None else MOST_STATES
        few = len(states) <= most * n_counted
        arrivals = world.arrivals[: len(states)]
        return few and gain_over_chance(predictability_of(world), arrivals) >= LEAST_GAIN

    def _begin_anew_with_states(self) -> None:
        """Forget what refers to goals and states that have other ids now."""
        model = self._model
        assert model.goal_buffer is not None
        assert model.selector is not None
        model.goal_updates = np.zeros(model.goal_buffer.capacity, dtype=np.int64)
        model.selector.forget()
        model._circles = Circles(model.n_envs)
        shown = np.full(model.n_envs, UNKNOWN)
        if model._last_obs is not None:
            assert isinstance(model._last_obs, dict)
            shown = model.goal_buffer.states.ids(model._last_obs["observation"])
        row = 0
        for tracker in model._trackers:
            tracker.forget_ids()
            # The next transitions begin in the states that environments show now.
            tracker.state_ids[:] = shown[row : row + tracker.n_envs]
            row += tracker.n_envs
        if hasattr(model, "targets"):
            last = model.targets
            del model.targets
            model._make_targets(type(last))
            if isinstance(last, PlannedTargets) and isinstance(model.targets, PlannedTargets):
                model.targets.go_on_after(last)


def predictability_of(world: WorldModel) -> float:
    """
    Return with which probability two transitions from one state by one action lead to one state.

    :param world: the model of the world
    :return: from 0 to 1, the mean over all transitions of actions that were tried twice. 0 if there
        are none
    """
    outcomes = world.outcomes()
    return predictability(outcomes.state_ids * world.n_actions + outcomes.actions, outcomes.counts)


def _record(world: WorldModel, steps: RecordedSteps, ids: NDArray[np.int64]) -> None:
    """Count transitions whose observations have these ids."""
    world.record(
        ids[steps.places],
        steps.actions,
        ids[steps.next_places],
        steps.rewards,
        steps.terminated,
    )


def _forgotten(world: WorldModel, replay: ManyGoalsReplayBuffer, n_times: int) -> Outcomes:
    """
    Return the outcomes of transitions that are not in memory any more. Those that are remembered
    are told apart by the states that there are now. Where a state was found after they were
    recorded, this may be another one, so a few of them are returned too.

    :param world: what is known of the world
    :param replay: the replay memory
    :param n_times: number of steps to read from it at a time
    """
    remembered = WorldModel(world.identity, world.n_actions)
    for first in range(0, replay.size(), n_times):
        steps = replay.recorded(slice(first, first + n_times))
        _record(remembered, steps, world.identity.ids(steps.observations))
    known = world.outcomes()
    found = {outcome[:4]: outcome[4:] for outcome in _rows(remembered.outcomes())}
    counts = known.counts.copy()
    reward_sums = known.reward_sums.copy()
    for row, outcome in enumerate(_rows(known)):
        n_remembered, rewards = found.get(outcome[:4], (0, 0.0))
        counts[row] -= n_remembered
        reward_sums[row] -= rewards
    left = known._replace(counts=counts, reward_sums=reward_sums)
    return Outcomes(*(column[counts > 0] for column in left))  # type: ignore[arg-type]


def _rows(outcomes: Outcomes) -> list[tuple[Any, ...]]:
    """Return each outcome as a tuple."""
    return list(zip(*(column.tolist() for column in outcomes), strict=True))
