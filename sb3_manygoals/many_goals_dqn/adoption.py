"""How a ManyGoalsDQN takes over environments, their goals and the rule that chooses goals."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.checkpoint.functions import UnsavedFunction, identity_of
from sb3_manygoals.goals import GoalBuffer, GoalSelector
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapping import goal_trackers, is_goal_wrapped, wrap_goal_env
from sb3_manygoals.many_goals_dqn.memory_needs import check_memory_needs, shrink_replay_memory
from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals, replay_goals
from sb3_manygoals.world import WorldModel


class AdoptionMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that takes over environments. The model uses
    the goals of their goal wrappers, or lets the wrappers use its own.
    """

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Go on in another environment. The goals that are known so far stay known.

        :param env: an environment or a VecEnv, with a goal wrapper or without, of as many
            environments as before
        :param force_reset: whether to reset the environment before training goes on
        :raises ValueError: if the environment comes with another goal buffer that is not empty, if
            its states are learned, and not of the model's ``state_class``, or if the model is
            trained and the environment's goal wrapper gives other rewards
        :raises MemoryError: if replay memory and goals, once full, do not fit into the memory that
            is available
        """
        model = self._model
        if not is_goal_wrapped(env):
            env = wrap_goal_env(env, self._wrapper_settings())
        env = model._wrap_env(env)
        tracker = goal_trackers(env)[0]
        if model._is_trained:
            model._check_rewards(tracker)
        # All raise an error before anything has changed.
        model._check_class_of(self._choose_goal_buffer(tracker.goal_buffer).states)
        check_memory_needs(model, env)
        super().set_env(env, force_reset)
        self._adopt_env(env)
        model._use_chosen_states()

    def _wrapper_settings(self) -> dict[str, Any]:
        """Return the arguments of the goal wrapper to put around another environment."""
        model = self._model
        settings = model._kwargs_of_wrapper()
        if model._is_trained:
            settings = model._keep_rewards(settings)
        settings["goal_buffer"] = self._known_goals()
        return settings

    def _choose_goal_buffer(self, theirs: GoalBuffer) -> GoalBuffer:
        """
        Return the goals to go on with, in an environment that comes with goals.

        :param theirs: the goals of the environment's wrapper
        :raises ValueError: if the model has other goals, another kind of goals, or other held-out
            observations
        """
        model = self._model
        ours = model.goal_buffer
        if theirs is ours or model.goals_in_replay:
            return theirs
        is_filled = len(theirs) > 0 or theirs.has_held_out
        self._take_unsaved_functions(theirs)
        if ours is not None or model.goal_config is not None:
            self._check_kind(theirs, is_filled)
        if ours is not None:
            if is_filled:
                raise ValueError(
                    "env has a goal buffer of its own, with goals or held-out observations, but "
                    "the model goes on with the one it has: give env's goal wrapper "
                    "goal_buffer=model.goal_buffer"
                )
            return ours
        if model.goal_config is None:
            return theirs
        # The model was loaded.
        if is_filled:
            theirs.check_held_out(model.goal_config["held_out"])
            return theirs
        return self._known_goals(theirs.capacity)

    def _take_unsaved_functions(self, theirs: GoalBuffer) -> None:
        """Take functions that could not be saved with the model from an environment's goals."""
        config = self._model.goal_config
        if config is None:
            return
        for name, value in theirs.config.items():
            saved = config[name]
            if isinstance(saved, UnsavedFunction) and callable(value):
                if identity_of(value, variables=True) == saved.identity:
                    config[name] = value

    def _check_kind(self, theirs: GoalBuffer, is_filled: bool) -> None:
        """
        Raise a ValueError if an environment's goals are of another kind than the model's.

        :param theirs: the goals of the environment's wrapper
        :param is_filled: whether it has goals, or holds some out. If not, and if it says nothing of
            their kind, the model's goals take its place
        """
        wanted = self._known_goals().identity
        found = theirs.identity
        differing = [name for name in wanted if wanted[name] != found[name]]
        says_nothing = not is_filled and all(value is None for value in found.values())
        if differing and not says_nothing:
            raise ValueError(
                f"env's goal wrapper has another {' and another '.join(differing)} than the model: "
                "give it the same, or goal_buffer=model.goal_buffer"
            )

    def _known_goals(self, capacity: int = 0) -> GoalBuffer:
        """
        Return the known goals. If there are none, make a goal buffer like the one that the model
        was saved with.

        :param capacity: capacity of the new buffer, if it is greater
        """
        model = self._model
        if model.goal_buffer is not None:
            return model.goal_buffer
        space = model.observation_space["observation"]
        if model.goals_in_replay:
            return ReplayGoals(space)
        if model.goal_config is None:
            return GoalBuffer(space)
        capacity = max(model.goal_config["capacity"], capacity)
        return GoalBuffer(space, **{**model.goal_config, "capacity": capacity})

    def _adopt_env(self, env: VecEnv) -> None:
        """Take over goals, rewards and the rule that chooses goals from the goal wrappers."""
        model = self._model
        model._trackers = goal_trackers(env)
        first = model._trackers[0]
        if model.goals_in_replay:
            goal_buffer: GoalBuffer = replay_goals(
                model._trackers, model.goal_buffer, model.replay_buffer
            )
        else:
            goal_buffer = self._choose_goal_buffer(first.goal_buffer)
            # The goals may ask an environment that is gone, or none, which of them are reached.
            goal_buffer.achievement.ask(first.goal_buffer.achievement.reached)
        self._adopt_selector(first)
        self._adopt_goals(goal_buffer)
        self._give_goals_to_trackers()
        model._note_wrapper()
        model.goal_reward = first.goal_reward
        model.step_reward = first.step_reward
        model._n_moves = None
        model._make_targets(type(model.targets) if hasattr(model, "targets") else None)
        shrink_replay_memory(model)

    def _give_goals_to_trackers(self) -> bool:
        """
        Let all goal wrappers use the model's goals and its selector.

        :return: whether they had other goals
        """
        model = self._model
        assert model.goal_buffer is not None
        had_others = False
        for tracker in model._trackers:
            if tracker.goal_buffer is not model.goal_buffer:
                had_others = True
                tracker.goal_buffer = model.goal_buffer
            tracker.selector = cast(GoalSelector, model.selector)
        return had_others

    def _adopt_selector(self, tracker: GoalTracker) -> None:
        """
        Make a selector with the class and arguments of the goal wrappers. What a selector learns is
        about the goals of one model, so a model does not take the wrapper's own selector.
        """
        model = self._model
        asked = (tracker.selector_class, tracker.selector_kwargs)
        # Arguments of selectors may be arrays.
        is_same = data_equivalence(model._selector_settings, asked, exact=True)
        if model.selector is None or not is_same:
            model.selector = tracker.make_selector()
            model._selector_settings = asked

    def _adopt_goals(self, goal_buffer: GoalBuffer) -> None:
        """Use this goal buffer from now on, and a model of the world with its states."""
        model = self._model
        model.goal_buffer = goal_buffer
        model.goal_config = goal_buffer.config
        if model.world is None or model.world.identity is not goal_buffer.states:
            model.world = WorldModel(goal_buffer.states, int(model.action_space.n))
            # If goals are in the replay memory, there are no states, and it stores observations.
            # Where states have several observations, each transition has its own.
            has_ids = not model.goals_in_replay and goal_buffer.states.is_exact
            states = goal_buffer.states if has_ids else None
            model.replay_buffer.move_to(goal_buffer, states)
        if len(model.goal_updates) != goal_buffer.capacity:
            model.goal_updates = np.zeros(goal_buffer.capacity, dtype=np.int64)

    @property
    def _moves(self) -> int:
        """The number of steps and starts of the goal wrappers so far."""
        model = self._model
        model._require_env()
        return sum(tracker.n_moves for tracker in model._trackers)
