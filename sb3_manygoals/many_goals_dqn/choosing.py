"""How a ManyGoalsDQN chooses targets, and gives them up, by how its observations recur."""

from __future__ import annotations

import warnings

from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.state_learning import FEWEST_STEPS, predictability_of
from sb3_manygoals.many_goals_dqn.target_choice import Choice, TargetChoice, estimate_states
from sb3_manygoals.many_goals_dqn.targets import Targets, TDTargets
from sb3_manygoals.packing import are_floats
from sb3_manygoals.world import ExactStates

# How many states the world has is estimated from so many of the newest steps.
_STEPS_TO_ESTIMATE_FROM = 100_000


class ChoosingMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that chooses targets if the user did not:
    planned values, planned values of states that are learned, or bootstrapped values.
    """

    _target_choice: TargetChoice
    """The rule of the choice."""
    _gave_up_states: bool
    """Whether learned states were given up, because they do not recur."""

    def _choose_targets(self, has_learned_states: bool) -> None:
        """
        Choose targets, if the user did not, by the share of observations that recur.

        :param has_learned_states: whether states were just learned
        """
        model = self._model
        if model.target_class is not None or model.goals_in_replay or model._awaits_states:
            return
        assert model.world is not None
        if has_learned_states and model.state_class is None and not model._are_states_useful():
            self._give_up_states()
        if model._learns_states:
            return
        is_planned = isinstance(model.targets, PlannedTargets)
        choice = self._target_choice.review(
            model.num_timesteps,
            model.learning_starts,
            model.world.identity,
            is_planned,
            self._actions_per_step,
            model.n_envs,
        )
        if choice is None or (choice.plan == is_planned and not choice.is_first):
            return
        if choice.is_noisy and is_planned and self._begin_to_learn_states(choice.share):
            return
        if choice.plan != is_planned:
            self._go_over_to(PlannedTargets if choice.plan else TDTargets)
        self._announce(choice)

    def _go_over_to(self, target_class: type[Targets]) -> None:
        """Replace the targets, and begin with their initial value if nothing was learned yet."""
        model = self._model
        last_value = model.targets.initial_value
        model._make_targets(target_class)
        # set_parameters may have given weights that another model has trained, and its optimizer.
        was_trained = model.policy.is_fitted or len(model.policy.optimizer.state) > 0
        if model._n_updates == 0 and not was_trained:
            model.policy.shift_values(model.targets.initial_value - last_value)

    def _announce(self, choice: Choice) -> None:
        """Log which targets were chosen and why. Warn if the user can do something about it."""
        model = self._model
        assert model.goal_buffer is not None
        how = "bootstrapped by a target network (TDTargets)"
        if choice.plan:
            how = "planned in a model of the world (PlannedTargets)"
        reason = f"{choice.share:.0%} of the observations were met before"
        if choice.is_too_large:
            n_states = self._estimate_states()
            reason += f", but the world seems to have some {n_states:,.0f} states"
        model.logger.info(f"{reason}: values are {how}")
        if choice.plan or choice.is_too_large or self._are_goals_places:
            return
        advice = (
            '. Say which are one state, goal_wrapper_kwargs={"state_key": ...}: see "Which '
            'observations are one state" in the guide'
        )
        if choice.is_noisy and model._may_learn_states and not self._gave_up_states:
            advice += f". In {FEWEST_STEPS} steps or more, the default learns states"
        what = "goals that are never met again are not reached"
        if not model.goal_buffer.goals_are_observations:
            what = "ways to goals cannot be planned, so learning takes longer"
        warnings.warn(f"only {reason}: {what}{advice}", stacklevel=4)

    def _actions_per_step(self) -> float | None:
        """
        Estimate the number of actions of all states of the world, divided by the steps of training.

        :return: None if it cannot be told
        """
        n_states = self._estimate_states()
        if n_states is None:
            return None
        return n_states * int(self._model.action_space.n) / self._model._total_timesteps

    def _estimate_states(self) -> float | None:
        """Estimate the number of states of the world. None if it cannot be told."""
        model = self._model
        assert model.world is not None
        newest = model.replay_buffer.newest_states(_STEPS_TO_ESTIMATE_FROM, model.world.identity)
        return estimate_states(*newest)

    def _begin_to_learn_states(self, share: float) -> bool:
        """
        Tell states apart by what will be learned, if they may be learned.

        :param share: share of observations that were met before
        :return: whether they will be learned
        """
        if not self._may_try_to_learn_states:
            return False
        try:
            self._model._use_learned_states()
        except MemoryError as error:
            self._gave_up_states = True
            warnings.warn(f"states are not learned: {error}", stacklevel=4)
            return False
        self._model.logger.info(
            f"{share:.0%} of the observations were met before: which of them are one state will be "
            "learned from transitions (LearnedStates)"
        )
        return True

    @property
    def _may_try_to_learn_states(self) -> bool:
        """Whether states may be learned in place of giving up plans."""
        model = self._model
        assert model.goal_buffer is not None
        is_long = model._is_learning and model._total_timesteps >= FEWEST_STEPS
        has_key = model.goal_buffer.state_key is not None
        wanted = model.state_class is None and model._may_learn_states
        wanted &= not self._are_goals_places
        return wanted and is_long and not has_key and not self._gave_up_states

    @property
    def _are_goals_places(self) -> bool:
        """
        Whether goals are places, and observations are floats, too.

        Then values can be bootstrapped without states, and states that are learned mislead: beside
        a wall, what noise shows on the other side counts as a way through.
        """
        goals = self._model.goal_buffer
        assert goals is not None
        return goals.goals_are_places and are_floats(goals.observation_space)

    def _give_up_states(self) -> None:
        """Tell states apart by their bytes again, and bootstrap, because learned ones are none."""
        model = self._model
        assert model.goal_buffer is not None
        assert model.world is not None
        n_states = len(model.world.identity)
        n_made = model.world.n_counted
        share = predictability_of(model.world)
        self._gave_up_states = True
        model.goal_buffer.use_states(ExactStates)
        model._adopt_goals(model.goal_buffer)
        # What was met before is in memory.
        model.replay_buffer.record_in(model.world)
        model._begin_anew_with_states()
        self._go_over_to(TDTargets)
        self._target_choice.count_anew()
        warnings.warn(
            f"states were learned, but they do not recur: {n_states} of them from {n_made} "
            f"transitions, and two equal actions in one state lead to one state with probability "
            f"{share:.2f}. Values are bootstrapped by a target network (TDTargets): goals that are "
            "never met again are not reached, see the guide",
            stacklevel=3,
        )
