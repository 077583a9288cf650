"""Turn an environment, or SB3's vector of environments, into one that pursues goals."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_manygoals import errors
from sb3_manygoals.action_masks import own_action_mask
from sb3_manygoals.checkpoint.tree import plain_part
from sb3_manygoals.goals.achievement import GoalFunction, Reached
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector
from sb3_manygoals.goals.sources import (
    CallEnv,
    EnvReached,
    GoalsFrom,
    ObservationSource,
    caller_of,
    env_sets_goals,
)
from sb3_manygoals.goals.spaces import check_goal_space
from sb3_manygoals.goals.tracker import GoalTracker, ResetWorlds
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_chosen, check_kwargs, one_action
from sb3_manygoals.vec_env import can_reset_single_envs, current_reset_infos
from sb3_manygoals.world import StateKey

GoalObs = dict[str, NDArray[Any]]
# Steps of a goal episode by default, the paper's T.
_EPISODE_STEPS = 50
DEFAULTS_OF_EPISODES: dict[str, Any] = {
    "selector_class": None,
    "selector_kwargs": None,
    "max_episode_steps": None,
    "goal_reward": 0.0,
    "step_reward": -0.1,
    "reset_worlds": "auto",
    "goals_from": "auto",
}
"""
The defaults of those arguments of goal wrappers that say how episodes are, and nothing of the kind
of goals.
"""


def goal_observation_space(
    observation_space: spaces.Space[Any], goal_space: spaces.Space[Any] | None = None
) -> spaces.Dict:
    """
    Return the space of goal observations, as Gymnasium-Robotics' GoalEnv has it.

    :param observation_space: space of the environment's observations
    :param goal_space: space of the goals. None: that of the observations
    :return: a Dict of observation, achieved_goal and desired_goal
    :raises TypeError: if the observations cannot be goals
    """
    check_goal_space(observation_space)
    goal_space = observation_space if goal_space is None else goal_space
    return spaces.Dict(
        {
            "observation": observation_space,
            "achieved_goal": goal_space,
            "desired_goal": goal_space,
        }
    )


class _GoingOn(NamedTuple):
    """Where an environment stands that goes on with another goal, without a reset."""

    observation: NDArray[Any]
    info: dict[str, Any]
    goal_id: int


class GoalBufferWrapper(
    gym.Wrapper[GoalObs, Any, NDArray[Any], Any], gym.utils.RecordConstructorArgs
):
    """
    Pursues goals drawn from the observations met so far.

    The observation becomes ``{"observation", "achieved_goal", "desired_goal"}``, as
    Gymnasium-Robotics' GoalEnv has it. An episode terminates when the goal is reached, and is
    truncated after ``max_episode_steps``. The environment's own ends end it too.
    ``reset(options={"goal": observation})`` sets the goal. Other options go to the environment.

    ``info`` has these keys besides the environment's own:

    - ``env_reward``, ``env_terminated`` and ``env_truncated``: what the environment returned. If a
      GoalEnv terminates because its own goal is reached, this is a truncation, because other goals
      could still be reached;
    - ``is_success``: whether the goal was reached, and ``goal_steps``: steps of the episode so far;
    - ``achieved_goal_id`` and ``desired_goal_id``: ids in the goal buffer, -1 for none; and
      ``desired_goal_is_known``: whether this is the id of the goal itself, and not of one that
      stands for it;
    - ``state_id`` and ``next_state_id``: the states before and after the step, -1 for unknown ones;
    - ``episode``: return and length of the goal episode at its end, if there is a Monitor around
      the environment, whose own entry becomes ``env_episode``.

    If the environment terminates, the goal episode terminates too, after one ``step_reward``.
    ManyGoalsDQN counts that as a failure for ever. To another learner, such as SB3's DQN with
    HerReplayBuffer, it is the shortest way to stop paying.

    ``reset`` raises a ValueError if the goal is no observation, or if none can be found. ``step``
    raises one if the observation does not have the shape and kind of dtype of its space, if it or
    the reward is not finite, if the reward is not one number (None counts as 0), and if there is no
    such action.

    :param env: an environment whose observation is one array, a Dict of arrays, or that of a
        GoalEnv
    :param goal_buffer: the known goals, which environments may share. None: a new goal buffer. To
        evaluate, give that of training: in a new one, the only goals are those met since
    :param selector_class: rule that chooses goals, a subclass of
        :class:`~sb3_manygoals.goals.GoalSelector`. None:
        :class:`~sb3_manygoals.goals.UniformSelector`. Where the environment sets the goals, no
        other one can be given
    :param selector_kwargs: arguments of the selector's constructor
    :param max_episode_steps: steps after which a goal episode is truncated, the paper's T. None:
        50, or no limit but the environment's own where that sets the goals
    :param goal_reward: reward of a step that reaches the goal
    :param step_reward: reward of every other step
    :param reset_worlds: whether the end of a goal episode resets the environment. "auto": if its
        starts are broad, and else only after 20 ``max_episode_steps``; always if ``training`` is
        False. A call of ``reset`` with a seed or options always resets it
    :param training: whether observations become goals. False to evaluate
    :param state_key: a function of an observation. Observations for which it returns equal numbers
        are one state. This and the following arguments are those of
        :class:`~sb3_manygoals.GoalBuffer`; they are for a new goal buffer
    :param goal: a function of an observation that returns what it achieves. None: itself
    :param goal_space: space of what ``goal`` returns. None: it is found by calling ``goal``
    :param reached: greatest distance at which an achievement reaches a goal, or a function that
        says whether it does. None: they must be equal, or a GoalEnv says it. If observations have
        several parts, it needs ``goal``, unless the environment is a GoalEnv
    :param goal_list: the only goals, shape ``(m, *goal_space.shape)``, or a sequence of m things
        that ``goal`` may return. None: all that is achieved becomes a goal
    :param goals_from: "env" to pursue the goals that a GoalEnv sets, "achieved" to pursue goals
        that were achieved. "auto": "env" where the environment is a GoalEnv
    :raises TypeError: if the observations cannot be goals, ``goal_buffer`` is no GoalBuffer, or
        ``selector_class`` no class of selectors
    :raises ValueError: if ``goal_buffer`` is for another space, or another argument is out of range
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        goal_buffer: GoalBuffer | None = None,
        selector_class: type[GoalSelector] | None = None,
        selector_kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = None,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
        training: bool = True,
        state_key: StateKey | None = None,
        goal: GoalFunction | None = None,
        goal_space: spaces.Space[Any] | None = None,
        reached: float | Reached | None = None,
        goal_list: NDArray[Any] | None = None,
        goals_from: GoalsFrom = "auto",
    ) -> None:
        kinds: dict[str, Any] = {
            "state_key": state_key,
            "goal": goal,
            "goal_space": goal_space,
            "reached": reached,
            "goal_list": goal_list,
        }
        selector_kwargs = _own_kwargs(selector_kwargs)
        settings: dict[str, Any] = {
            "goal_buffer": goal_buffer,
            "selector_class": selector_class,
            "selector_kwargs": selector_kwargs,
            "max_episode_steps": max_episode_steps,
            "goal_reward": goal_reward,
            "step_reward": step_reward,
            "reset_worlds": reset_worlds,
            "training": training,
        }
        asked = _asked({**settings, "goals_from": goals_from})
        # No deep copy, because environments are meant to share the goal buffer.
        gym.utils.RecordConstructorArgs.__init__(
            self, **settings, **kinds, goals_from=goals_from, _disable_deepcopy=True
        )
        super().__init__(env)
        self._source = ObservationSource(env.observation_space)
        self._env_sets_goals = _pursues_own_goals(goals_from, self._source, selector_class)
        settings["goal_buffer"] = _goal_buffer(
            self._source, goal_buffer, kinds, caller_of(env), training
        )
        settings.update(_episode_settings(max_episode_steps, reset_worlds, self._env_sets_goals))
        self.goal_tracker = GoalTracker(self._source.space, 1, **settings)
        self.goal_tracker.env_sets_goals = self._env_sets_goals
        self.goal_tracker.asked = asked
        self.observation_space = goal_observation_space(  # type: ignore[assignment]
            self._source.space, self.goal_tracker.goal_buffer.goal_space
        )
        # The goal that the environment has set, if it sets goals.
        self._env_goal: NDArray[Any] | None = None
        self._going_on: _GoingOn | None = None
        # With a Monitor, SB3 waits for the returns of episodes.
        self._is_monitored = is_wrapped(env, Monitor)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _bind_again(self.goal_buffer, self.env)

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObs, dict[str, Any]]:
        """
        Begin a goal episode. The environment is reset as ``reset_worlds`` says, and always with a
        seed or options.

        :param seed: seed of the environment, of its action space, and of the choice of goals
        :param options: ``"goal"`` sets the goal, an array of the space of goals, or a dict of the
            parts of a packed one. Other options go to the environment
        :return: the first goal observation, and its info
        :raises ValueError: if the goal is no observation, or none can be found
        """
        going_on = self._going_on
        self._going_on = None
        if going_on is not None and seed is None and not options:
            observation, info, goal_id = going_on
            goal = self._env_goal if self._env_sets_goals else None
            self.goal_tracker.go_on(observation[None], np.array([goal_id]), goal)
        else:
            observation, info = self._reset_world(seed, dict(options or {}))
        info = {**info, "desired_goal_id": int(self.goal_tracker.desired_ids[0])}
        tracker = self.goal_tracker
        return _goal_obs(observation, tracker.achieved_goals[0], tracker.desired_goals[0]), info

    def _reset_world(
        self, seed: int | None, options: dict[str, Any]
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset the environment and begin a goal episode in it."""
        tracker = self.goal_tracker
        goal = tracker.take_goal(options)
        if seed is not None:
            tracker.seed(seed)
            self.action_space.seed(seed)
        with errors.stepping(tracker):
            first_values = self.env.reset(seed=seed, options=options or None)
        world_obs, info = errors.own_reset(first_values, tracker)

        def move() -> NDArray[Any]:
            nonlocal info
            with errors.stepping(tracker):
                action = _random_action(self.action_space, info)
                stepped = self.env.step(action)
            world_obs, _, terminated, truncated, info = errors.own_step(stepped, tracker)
            if terminated or truncated:
                with errors.stepping(tracker):
                    first_values = self.env.reset()
                world_obs, info = errors.own_reset(first_values, tracker)
            observation = self._own(world_obs, "an observation")[None]
            self._env_goal = self._desired(world_obs, "an observation")
            return observation

        first = self._own(world_obs, "a first observation")
        self._env_goal = self._desired(world_obs, "a first observation")
        if goal is None and self._env_sets_goals:
            goal = self._env_goal
        (observation,) = tracker.reset(first[None], [goal], move, self._env_sets_goals)
        return observation, info

    def _own(self, world_obs: Any, what: str) -> NDArray[Any]:
        """Return what is kept of an observation, after a check."""
        if self._source.packed is not None:
            with errors.naming(what, self.goal_tracker):
                world_obs = self._source.array(world_obs)
        return self.goal_tracker.own(world_obs, what)

    def _desired(self, world_obs: Any, what: str) -> NDArray[Any] | None:
        """Return the goal that the environment has set, after a check. None if it sets none."""
        with errors.naming(what, self.goal_tracker):
            return self._source.desired(world_obs)

    def step(self, action: Any) -> tuple[GoalObs, float, bool, bool, dict[str, Any]]:
        """
        Make a step of the environment.

        :param action: an action of the environment
        :return: the goal observation, the reward of the goal episode, whether that has terminated,
            whether it was truncated, and the info
        :raises ValueError: if the environment returns what it must not, or there is no such action
        """
        tracker = self.goal_tracker
        if isinstance(self.action_space, spaces.Discrete):
            check_chosen(action, self.action_space)
            # A number of Python, because environments use actions as keys.
            action = one_action(action, self.action_space)
        with errors.stepping(tracker):
            stepped = self.env.step(action)
        world_obs, env_reward, *env_ends, world_info = errors.own_step(stepped, tracker)
        what = "a terminal observation" if any(env_ends) else "an observation"
        observation = self._own(world_obs, what)
        info = dict(world_info)
        env_terminated, env_truncated = np.array(env_ends, np.bool_)
        if self._source.is_goal_env:
            if env_terminated and self._own_goal_is_reached(observation):
                # This is the end of the environment's own goal. Other goals could still be reached.
                env_terminated = np.False_
                env_truncated = np.True_
            self._env_goal = self._desired(world_obs, what)
        outcome = tracker.step(
            observation[None], [env_reward], env_terminated[None], env_truncated[None], [info]
        )
        reward = float(outcome.rewards[0])
        terminated = bool(outcome.terminated[0])
        truncated = bool(outcome.truncated[0])
        is_over = terminated or truncated
        self._going_on = None
        if is_over and not any(env_ends) and not outcome.resets[0]:
            self._going_on = _GoingOn(
                observation.copy(), dict(world_info), info["achieved_goal_id"]
            )
        if "episode" in info:
            info["env_episode"] = info.pop("episode")
        if is_over and self._is_monitored:
            return_before = (info["goal_steps"] - 1) * tracker.step_reward
            info["episode"] = {"r": return_before + reward, "l": info["goal_steps"]}
        goal_obs = _goal_obs(observation, outcome.achieved[0], tracker.desired_goals[0])
        return goal_obs, reward, terminated, truncated, info

    def _own_goal_is_reached(self, observation: NDArray[Any]) -> bool:
        """Return whether the goal that the environment has set is reached."""
        assert self._env_goal is not None
        goals = self.goal_tracker.goal_buffer
        reached = goals.is_reached(goals.achieved(observation[None]), self._env_goal[None])
        return bool(reached[0])

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any
    ) -> Any:
        """
        Return the reward of a step that leads to ``achieved_goal``, as GoalEnv has it.

        :param achieved_goal: one goal or a batch, shape ``(*batch, *goal_space.shape)``
        :param desired_goal: the same shape
        :param info: not used
        :return: a float for one goal, else float32 of shape ``batch``
        :raises ValueError: if the goals do not fit the space, or have different shapes
        """
        return self.goal_tracker.compute_reward(achieved_goal, desired_goal, info)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the goal episode, without the environment's state and the goal buffer."""
        going_on = None
        if self._going_on is not None:
            observation, info, goal_id = self._going_on
            going_on = copy.deepcopy([observation, plain_part(info), goal_id])
        return {
            "goal_tracker": self.goal_tracker.get_checkpoint_state(),
            "going_on": going_on,
            "env_goal": copy.deepcopy(self._env_goal),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on with a goal episode.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of goal episodes with other settings
        """
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        self._env_goal = copy.deepcopy(state["env_goal"])
        going_on = state["going_on"]
        self._going_on = None if going_on is None else _GoingOn(*copy.deepcopy(going_on))


class VecGoalBufferWrapper(VecEnvWrapper):
    """
    :class:`~sb3_manygoals.GoalBufferWrapper` for an SB3 VecEnv. All its environments share one goal
    buffer and one selector.

    Environments are reset exactly as a ``GoalBufferWrapper`` around each of them would do it. Where
    a VecEnv cannot reset one environment, or has wrappers that would not notice (frame stacking,
    say), "auto" means False, with a warning if the environments set the goals, or if ``training``
    is False. See :func:`~sb3_manygoals.vec_env.can_reset_single_envs`.

    ``infos`` have the keys of ``GoalBufferWrapper``. At the end of an episode they have
    ``terminal_observation``, ``TimeLimit.truncated`` and ``episode`` (return and length) of the
    goal episode. A Monitor's entry becomes ``env_episode``. ``set_options({"goal": observation})``,
    or a list of such a dict for each environment, sets the goals of the next reset.

    A step raises a RuntimeError if a worker of a SubprocVecEnv has died. SB3's DummyVecEnv turns a
    reward of None into NaN, which is refused.

    :param venv: vectorized environment whose observation is one array, a Dict of arrays, or that of
        a GoalEnv. Where environments are reset, a Monitor around one must allow early resets, as it
        does by default
    :param goal_buffer: the known goals. None: a new goal buffer. To evaluate, give that of
        training: in a new one, the only goals are those met since
    :param selector_class: rule that chooses goals, a subclass of
        :class:`~sb3_manygoals.goals.GoalSelector`. None:
        :class:`~sb3_manygoals.goals.UniformSelector`. Where the environment sets the goals, no
        other one can be given
    :param selector_kwargs: arguments of the selector's constructor
    :param max_episode_steps: steps after which a goal episode is truncated, the paper's T. None:
        50, or no limit but the environment's own where that sets the goals
    :param goal_reward: reward of a step that reaches the goal
    :param step_reward: reward of every other step
    :param reset_worlds: whether the end of a goal episode resets the environment. "auto": if its
        starts are broad, and else only after 20 ``max_episode_steps``; always if ``training`` is
        False. In a VecEnv that cannot reset one environment: never
    :param training: whether observations become goals. False to evaluate
    :param state_key: a function of an observation. Observations for which it returns equal numbers
        are one state. This and the following arguments are those of
        :class:`~sb3_manygoals.GoalBuffer`; they are for a new goal buffer
    :param goal: a function of an observation that returns what it achieves. None: itself
    :param goal_space: space of what ``goal`` returns. None: it is found by calling ``goal``
    :param reached: greatest distance at which an achievement reaches a goal, or a function that
        says whether it does. None: they must be equal, or a GoalEnv says it. If observations have
        several parts, it needs ``goal``, unless the environment is a GoalEnv
    :param goal_list: the only goals, shape ``(m, *goal_space.shape)``, or a sequence of m things
        that ``goal`` may return. None: all that is achieved becomes a goal
    :param goals_from: "env" to pursue the goals that a GoalEnv sets, "achieved" to pursue goals
        that were achieved. "auto": "env" where the environment is a GoalEnv
    :raises TypeError: if the observations cannot be goals, ``goal_buffer`` is no GoalBuffer, or
        ``selector_class`` no class of selectors
    :raises ValueError: if ``reset_worlds=True`` is asked of a VecEnv that cannot reset one
        environment, ``goal_buffer`` is for another space, or another argument is out of range
    """

    def __init__(
        self,
        venv: VecEnv,
        goal_buffer: GoalBuffer | None = None,
        selector_class: type[GoalSelector] | None = None,
        selector_kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = None,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
        training: bool = True,
        state_key: StateKey | None = None,
        goal: GoalFunction | None = None,
        goal_space: spaces.Space[Any] | None = None,
        reached: float | Reached | None = None,
        goal_list: NDArray[Any] | None = None,
        goals_from: GoalsFrom = "auto",
    ) -> None:
        if not isinstance(venv, VecEnv):
            raise TypeError(
                f"venv must be a VecEnv of SB3, got {venv!r}: put GoalBufferWrapper around a "
                "single environment, and GymnasiumVecEnv around a vector environment of Gymnasium"
            )
        selector_kwargs = _own_kwargs(selector_kwargs)
        asked = _asked(
            {
                "selector_class": selector_class,
                "selector_kwargs": selector_kwargs,
                "max_episode_steps": max_episode_steps,
                "goal_reward": goal_reward,
                "step_reward": step_reward,
                "reset_worlds": reset_worlds,
                "goals_from": goals_from,
            }
        )
        was_auto = reset_worlds == "auto"
        if not can_reset_single_envs(venv):
            if reset_worlds is True:
                raise ValueError(
                    "reset_worlds=True needs a DummyVecEnv or SubprocVecEnv, got "
                    f"{type(venv).__name__}, in which single environments cannot be reset: pass "
                    "reset_worlds=False, put VecGoalBufferWrapper innermost, or make the "
                    "environments of a GymnasiumVecEnv with AutoresetMode.DISABLED"
                )
            if reset_worlds == "auto":
                reset_worlds = False
        kinds: dict[str, Any] = {
            "state_key": state_key,
            "goal": goal,
            "goal_space": goal_space,
            "reached": reached,
            "goal_list": goal_list,
        }
        self._source = ObservationSource(venv.observation_space)
        self._env_sets_goals = _pursues_own_goals(goals_from, self._source, selector_class)
        if self._env_sets_goals and was_auto and reset_worlds is False:
            warnings.warn(
                "the environments set the goals, but a single one cannot be reset in a "
                f"{type(venv).__name__}: if it goes on after its goal was reached, its next "
                "episode begins at that goal. Put VecGoalBufferWrapper innermost, or make the "
                "environments of a GymnasiumVecEnv with AutoresetMode.DISABLED",
                stacklevel=2,
            )
        elif not training and was_auto and reset_worlds is False:
            warnings.warn(
                f"in a {type(venv).__name__}, episodes of an evaluation begin where the last goal "
                "led, since a single environment cannot be reset: goals may be impossible from "
                "there. Put VecGoalBufferWrapper innermost, or make the environments of a "
                "GymnasiumVecEnv with AutoresetMode.DISABLED. With reset_worlds=False, this "
                "warning is not shown",
                stacklevel=2,
            )
        self.goal_tracker = GoalTracker(
            self._source.space,
            venv.num_envs,
            goal_buffer=_goal_buffer(self._source, goal_buffer, kinds, caller_of(venv), training),
            selector_class=selector_class,
            selector_kwargs=selector_kwargs,
            goal_reward=goal_reward,
            step_reward=step_reward,
            training=training,
            **_episode_settings(max_episode_steps, reset_worlds, self._env_sets_goals),
        )
        self.goal_tracker.env_sets_goals = self._env_sets_goals
        self.goal_tracker.asked = asked
        # The goals that the environments have set, if they set goals.
        self._env_goals: NDArray[Any] | None = None
        found_space = self.goal_tracker.goal_buffer.goal_space
        super().__init__(
            venv, observation_space=goal_observation_space(self._source.space, found_space)
        )
        self._returns = np.zeros(venv.num_envs)
        self._terminal_watch = TerminalWatch()

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def seed(self, seed: int | None = None) -> Any:
        """
        Seed the environments, their action space, and the choice of goals.

        :param seed: None for other random numbers in every run
        :return: what the environments return
        """
        self.goal_tracker.seed(seed)
        self.action_space.seed(seed)
        return self.venv.seed(seed)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """
        Set the options of the next reset.

        :param options: one dict for all environments, or a list of one for each. ``"goal"`` is the
            goal of the next episode. Other options go to the environments
        :raises ValueError: if a goal is no observation of the space. The options are then as before
        """
        for option in [options] if isinstance(options, dict) else options or []:
            self.goal_tracker.take_goal(dict(option))
        VecEnv.set_options(self, options)

    def reset(self) -> GoalObs:
        """
        Reset all environments and begin their goal episodes.

        :return: their first goal observations
        :raises ValueError: if no goal can be found, or an environment shows what it must not
        """
        tracker = self.goal_tracker
        options = [dict(option) for option in self._options]
        # Options that are refused must not make the next reset fail, too.
        self._options = [{} for _ in range(self.num_envs)]
        goals = [tracker.take_goal(option) for option in options]
        self.venv.set_options(options)
        with errors.workers(self.venv):
            with errors.stepping(tracker):
                venv_obs = self.venv.reset()
            observations = self._checked(venv_obs, "a first observation")
        if self._env_sets_goals:
            assert self._env_goals is not None
            goals = [
                self._env_goals[row] if goal is None else goal for row, goal in enumerate(goals)
            ]
        self.reset_infos = list(current_reset_infos(self.venv))
        for row, info in enumerate(self.reset_infos):
            errors.check_info(info, "reset", tracker, row)

        def move() -> NDArray[Any]:
            actions = [_random_action(self.action_space, info) for info in self.reset_infos]
            with errors.stepping(tracker):
                venv_obs, _, dones, infos = self.venv.step(np.array(actions))
            starts = current_reset_infos(self.venv)
            self.reset_infos = [
                starts[row] if dones[row] else info for row, info in enumerate(infos)
            ]
            for row, info in enumerate(self.reset_infos):
                errors.check_info(info, "reset", tracker, row)
            return self._checked(venv_obs, "an observation")

        observations = tracker.reset(observations, goals, move, self._env_sets_goals)
        self._returns[:] = 0.0
        return _goal_obs(observations, tracker.achieved_goals, tracker.desired_goals)

    def step_async(self, actions: NDArray[Any]) -> None:
        """
        Begin a step in all environments.

        :param actions: an action for each environment
        :raises ValueError: if there is no such action
        """
        if np.shape(actions)[:1] != (self.num_envs,):
            raise ValueError(
                f"actions must have one action for each of {self.num_envs} environments, got "
                f"{actions!r}"
            )
        check_chosen(actions, self.action_space)
        with errors.workers(self.venv):
            self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """
        End a step in all environments. Those whose episodes have ended begin new ones.

        :return: goal observations, rewards, ends and infos
        :raises ValueError: if an environment returns what it must not
        :raises RuntimeError: if a worker of a SubprocVecEnv has died
        """
        tracker = self.goal_tracker
        with errors.workers(self.venv, answering=True):
            with errors.stepping(tracker):
                venv_obs, env_rewards, env_dones, infos = self.venv.step_wait()
            goals_before = self._env_goals
            observations = self._checked(venv_obs, "an observation")
        if self._source.packed is None:
            self._terminal_watch.look(self.venv, observations, env_dones, infos)
        arrived, env_truncated = self._arrivals(observations, env_dones, infos)
        if self._source.is_goal_env and env_dones.any():
            # This is the end of the environment's own goal. Other goals could still be reached.
            assert goals_before is not None
            achieved = self.goal_buffer.achieved(arrived[env_dones])
            env_truncated[env_dones] |= self.goal_buffer.is_reached(
                achieved, goals_before[env_dones]
            )
        outcome = tracker.step(
            arrived, env_rewards, env_dones & ~env_truncated, env_truncated, infos
        )
        rewards = outcome.rewards.astype(np.float32)
        self._returns += rewards
        dones = outcome.terminated | outcome.truncated
        world_was_reset = env_dones | outcome.resets
        ended = np.flatnonzero(dones)
        for row in ended.tolist():
            info = infos[row]
            if not world_was_reset[row]:
                # The next episode starts where this one ends.
                self.reset_infos[row] = dict(info)
            is_truncated = outcome.truncated[row] and not outcome.terminated[row]
            info["TimeLimit.truncated"] = bool(is_truncated)
            info["terminal_observation"] = _goal_obs(
                arrived[row].copy(), outcome.achieved[row], tracker.desired_goals[row]
            )
            if "episode" in info:
                info["env_episode"] = info["episode"]
            info["episode"] = {"r": float(self._returns[row]), "l": info["goal_steps"]}
        if len(ended):
            self._reset_worlds(outcome.resets, observations)
            goal_ids = np.array([infos[row]["achieved_goal_id"] for row in ended])
            own_goals = self._env_goals if self._env_sets_goals else None
            tracker.restart(ended, observations, goal_ids, world_was_reset, own_goals)
            self._returns[ended] = 0.0
        goal_obs = _goal_obs(observations, tracker.achieved_goals, tracker.desired_goals)
        return goal_obs, rewards, dones, infos

    def _arrivals(
        self,
        observations: NDArray[Any],
        env_dones: NDArray[np.bool_],
        infos: list[dict[str, Any]],
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return where the step led, and which environments were truncated by it."""
        env_truncated = np.zeros(self.num_envs, dtype=np.bool_)
        if not env_dones.any():
            return observations, env_truncated
        arrived = observations.copy()
        starts = current_reset_infos(self.venv)
        for row in np.flatnonzero(env_dones).tolist():
            info = infos[row]
            arrived[row] = self._own(info["terminal_observation"], "a terminal observation", row)
            errors.check_info(starts[row], "reset", self.goal_tracker, row)
            self.reset_infos[row] = starts[row]
            # A lost life of an Atari game only cuts the episode: play goes on, and every goal can
            # still be reached.
            env_truncated[row] = bool(info.get("TimeLimit.truncated") or info.get("life_lost"))
        return arrived, env_truncated

    def _reset_worlds(self, resets: NDArray[np.bool_], observations: NDArray[Any]) -> None:
        """Reset some environments, and write their first observations among the others."""
        rows = np.flatnonzero(resets).tolist()
        if not rows:
            return
        # All at once, because a vector environment then looks once at its states.
        with errors.workers(self.venv), errors.stepping(self.goal_tracker):
            restarted = self.venv.env_method("reset", indices=rows)
        for row, values in zip(rows, restarted, strict=True):
            first, info = errors.own_reset(values, self.goal_tracker, row)
            self.reset_infos[row] = info
            observations[row] = self._own(first, "a first observation", row)
            if self._env_goals is not None:
                with errors.naming("a first observation", self.goal_tracker, row):
                    self._env_goals[row] = self._source.desired(first)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """
        Call a method of the environments. ``compute_reward``, which HerReplayBuffer calls, is
        answered here.

        :param method_name: name of the method
        :param method_args: its positional arguments
        :param indices: which environments. None: all
        :param method_kwargs: its keyword arguments
        :return: what each environment returned
        """
        if method_name == "compute_reward":
            answer = self.goal_tracker.compute_reward(*method_args, **method_kwargs)
            return [answer for _ in self._get_indices(indices)]
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # Members of a class cannot be pickled. SB3 keeps them here.
        return {name: value for name, value in vars(self).items() if name != "class_attributes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.class_attributes = dict(inspect.getmembers(type(self)))
        _bind_again(self.goal_buffer, self.venv)

    def __deepcopy__(self, memo: dict[int, Any]) -> VecEnv:
        return copy_vec_env(self, memo)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the goal episodes, and what comes with the last and the next reset, without the
        environments' states and the goal buffer.
        """
        return {
            "goal_tracker": self.goal_tracker.get_checkpoint_state(),
            "returns": self._returns.copy(),
            "reset_infos": copy.deepcopy([plain_part(info) for info in self.reset_infos]),
            "options": copy.deepcopy(self._options),
            "env_goals": copy.deepcopy(self._env_goals),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on with goal episodes.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of goal episodes with other settings
        """
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        self._returns = state["returns"].copy()
        self.reset_infos = copy.deepcopy(state["reset_infos"])
        self._options = copy.deepcopy(state["options"])
        self._env_goals = copy.deepcopy(state["env_goals"])

    def _own(self, world_obs: Any, what: str, row: int) -> NDArray[Any]:
        """Return what is kept of one environment's observation, after a check."""
        if self._source.packed is not None:
            with errors.naming(what, self.goal_tracker, row):
                world_obs = self._source.array(world_obs)
        return self.goal_tracker.own(world_obs, what, row)

    def _checked(self, venv_obs: Any, what: str) -> NDArray[Any]:
        """
        Return observations as an array, after a check of their shape, dtype and numbers. Note the
        goals that the environments have set.
        """
        try:
            arrays = self._source.array(venv_obs)
            self._env_goals = self._source.desired(venv_obs)
        except ValueError:
            # Look for the environment whose observation it is.
            for row in range(self.num_envs):
                one = {name: part[row] for name, part in venv_obs.items()}
                self._own(one, what, row)
                with errors.naming(what, self.goal_tracker, row):
                    self._source.desired(one)
            raise
        observations = self.goal_buffer.check(np.array(arrays), "observations")
        errors.check_finite(observations, what, self.goal_tracker)
        return observations


def _goal_buffer(
    source: ObservationSource,
    given: GoalBuffer | None,
    kinds: dict[str, Any],
    call_env: CallEnv,
    is_training: bool,
) -> GoalBuffer:
    """Return the goal buffer of a wrapper: the one that is given, or a new one."""
    names = [name for name, value in kinds.items() if value is not None]
    if given is None:
        return GoalBuffer(source.space, **source.kinds_of_goals(kinds, call_env))
    if names:
        raise ValueError(
            f"{' and '.join(names)} given together with goal_buffer: give them to "
            "GoalBuffer(observation_space, ...)"
        )
    if source.is_goal_env and isinstance(given, GoalBuffer):
        _bind(given, source, call_env, is_training)
    return given


def _bind(
    given: GoalBuffer, source: ObservationSource, call_env: CallEnv, is_training: bool
) -> None:
    """Let a GoalEnv say which goals of a goal buffer are reached, if it is to be asked."""
    assert isinstance(source.observation_space, spaces.Dict)
    if given.goals_are_observations:
        raise ValueError(
            "goal_buffer has observations as goals, but the environment is a GoalEnv: give one "
            "with the arguments of GoalBufferWrapper(env).goal_buffer.config"
        )
    # An environment to evaluate in may be closed while the training goes on.
    if given.achievement.asks_env and (is_training or not given.achievement.is_bound):
        given.achievement.ask(EnvReached(source.observation_space["achieved_goal"], call_env))


def _pursues_own_goals(
    goals_from: GoalsFrom, source: ObservationSource, selector_class: type[GoalSelector] | None
) -> bool:
    """Return whether environments set their goals. A ValueError if a selector would be ignored."""
    sets_goals = env_sets_goals(goals_from, source)
    if sets_goals and selector_class not in (None, UniformSelector):
        raise ValueError(
            f"selector_class {selector_class!r} given, but the environment sets the goals: pass "
            'goals_from="achieved" to pursue goals that were achieved before'
        )
    return sets_goals


def _bind_again(goal_buffer: GoalBuffer, env: gym.Env[Any, Any] | VecEnv) -> None:
    """Let an environment say which goals are reached, if it was pickled apart from the goals."""
    reached = goal_buffer.achievement.reached
    if isinstance(reached, EnvReached) and not reached.is_bound:
        reached.bind(caller_of(env))


def _own_kwargs(selector_kwargs: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a copy of a selector's arguments: the user may change theirs for another wrapper."""
    if selector_kwargs is None:
        return None
    return copy.deepcopy(check_kwargs("selector_kwargs", selector_kwargs))


def _asked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a goal wrapper's arguments that another environment can be wrapped with."""
    return {
        name: arguments[name]
        for name, default in DEFAULTS_OF_EPISODES.items()
        # A class or an array may have an equality of its own.
        if type(arguments[name]) is not type(default) or arguments[name] != default
    }


def _episode_settings(
    max_episode_steps: int | None, reset_worlds: ResetWorlds, env_sets_goals: bool
) -> dict[str, Any]:
    """Return the settings of goal episodes, with their defaults."""
    if max_episode_steps is None and not env_sets_goals:
        max_episode_steps = _EPISODE_STEPS
    if env_sets_goals and reset_worlds == "auto":
        # Only a reset makes the environment set another goal.
        reset_worlds = True
    return {"max_episode_steps": max_episode_steps, "reset_worlds": reset_worlds}


def copy_vec_env(env: VecEnv, memo: dict[int, Any]) -> VecEnv:
    """
    Return a deep copy of a VecEnv. SB3's VecEnvWrappers cannot be copied otherwise: they keep
    members of their class in an attribute that ``copy`` cannot take, and look for attributes before
    they have any.

    :param env: a VecEnv, wrapped or not
    :param memo: what was copied so far, as ``__deepcopy__`` has it
    :raises TypeError: if its environments cannot be copied, as those in other processes
    """
    if id(env) in memo:
        return memo[id(env)]  # type: ignore[no-any-return]
    if not isinstance(env, VecEnvWrapper):
        return _copy_innermost(env, memo)
    inner = copy_vec_env(env.venv, memo)
    copied = type(env).__new__(type(env))
    memo[id(env)] = copied
    attributes = vars(copied)
    attributes["venv"] = inner
    attributes["class_attributes"] = env.class_attributes
    for name, value in vars(env).items():
        if name not in ("venv", "class_attributes"):
            attributes[name] = copy.deepcopy(value, memo)
    return copied


def _copy_innermost(env: VecEnv, memo: dict[int, Any]) -> VecEnv:
    """Return a deep copy of a VecEnv that is no wrapper."""
    vector_env = getattr(getattr(env, "vector_env", None), "unwrapped", None)
    try:
        if isinstance(env, SubprocVecEnv) or isinstance(vector_env, AsyncVectorEnv):
            # Copies of pipes would close those of the original when they are thrown away.
            raise TypeError("they are in other processes")
        return copy.deepcopy(env, memo)
    except Exception as error:
        raise TypeError(
            f"the environments of {env} cannot be copied: {error}; save the model, and load it "
            "with environments that are made anew"
        ) from error


def _random_action(space: spaces.Space[Any], info: dict[str, Any]) -> Any:
    """Return a random action among those that the environment allows, if it says which."""
    mask = own_action_mask(info, space)
    return space.sample(None if mask is None else mask.astype(np.int8))


def _goal_obs(observation: NDArray[Any], achieved: NDArray[Any], desired: NDArray[Any]) -> GoalObs:
    """Return a goal observation, with copies of the goals."""
    # Of a Discrete space an empty index gives a number, not an array without axes.
    return {
        "observation": observation[()],
        "achieved_goal": achieved[()].copy(),
        "desired_goal": desired[()].copy(),
    }
