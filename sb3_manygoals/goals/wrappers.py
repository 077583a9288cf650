"""Turn a Gymnasium environment into one that pursues goals."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals import guards
from sb3_manygoals.goals.buffer import GoalBuffer, check_goal_space
from sb3_manygoals.goals.picture import beside, goal_picture
from sb3_manygoals.goals.selection import GoalSelector
from sb3_manygoals.goals.tracker import GoalTracker, Info, ResetWorlds

GoalObs = dict[str, NDArray[Any]]

MAX_WANDERING = 1_000
"""Random steps after which a world that shows no observation that may be a goal is given up."""


def goal_observation_space(observation_space: spaces.Space[Any]) -> spaces.Dict:
    """
    :param observation_space: of an environment without goals
    :return: the GoalEnv space: the same three times, as observation, achieved_goal and desired_goal
    :raises TypeError: if its observations cannot be goals
    """
    check_goal_space(observation_space)
    return spaces.Dict({key: observation_space for key in ("observation", "achieved_goal", "desired_goal")})


class GoalBufferWrapper(gym.Wrapper[GoalObs, Any, NDArray[Any], Any], gym.utils.RecordConstructorArgs):
    """
    Pursue goals drawn from the observations met so far.

    The observation becomes ``{"observation", "achieved_goal", "desired_goal"}``, as Gymnasium-Robotics' GoalEnv has it. An
    episode terminates when the goal is reached and is truncated after ``max_episode_steps``; the environment's own
    termination and truncation end it too. ``reset(options={"goal": observation})`` sets the goal, all other options go to
    the environment. The environment's reward is in ``info["env_reward"]``; ``info`` also has ``env_terminated``,
    ``env_truncated``, ``is_success``, ``goal_steps``, and the ids ``achieved_goal_id`` and ``desired_goal_id`` (-1: not in
    the buffer).

    :param env: an environment whose observation is one array
    :param goal_buffer: where goals are kept, to be shared between environments; a new one if None
    :param selector: the rule that chooses goals, uniform if None
    :param max_episode_steps: the steps an episode may take, T in Algorithm 1
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :param reset_worlds: whether ``reset()`` after the end of a goal's episode resets the world too, or lets it go on with
        another goal; ``reset`` with a seed, options or a goal always does. "auto": where its starts are broad, see
        :class:`~sb3_manygoals.goals.GoalTracker`
    :raises TypeError: if the observations cannot be goals
    :raises ValueError: if ``goal_buffer`` is for another space, or a number makes no sense
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        goal_buffer: GoalBuffer | None = None,
        selector: GoalSelector | None = None,
        max_episode_steps: int = 50,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            goal_buffer=goal_buffer,
            selector=selector,
            max_episode_steps=max_episode_steps,
            goal_reward=goal_reward,
            step_reward=step_reward,
            reset_worlds=reset_worlds,
            _disable_deepcopy=True,  # environments are meant to share the buffer
        )
        super().__init__(env)
        self.observation_space = goal_observation_space(env.observation_space)  # type: ignore[assignment]
        goal_buffer = buffer_for(env.observation_space, goal_buffer)
        self.goal_tracker = GoalTracker(goal_buffer, 1, selector, max_episode_steps, goal_reward, step_reward, reset_worlds)
        self._going_on: tuple[NDArray[Any], dict[str, Any]] | None = None  # where the world stands that is not to be reset

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[GoalObs, dict[str, Any]]:
        """
        :param seed: of the environment and of the choice of goals
        :param options: ``{"goal": observation}`` to set the goal; anything else is the environment's
        :return: the first observation, and the environment's info with ``desired_goal_id``
        :raises ValueError: if the goal has not the shape and dtype of an observation, or no goal can be found
        """
        if self._going_on is not None and seed is None and not options:
            observation, info = self._going_on
            self._going_on = None
            self.goal_tracker.start(np.array([0]), observation[None], anew=False)
            return self._goal_obs(observation), {**info, "desired_goal_id": int(self.goal_tracker.desired_ids[0])}
        self._going_on = None
        options = dict(options or {})
        goal = options.pop("goal", None)
        if goal is not None:
            goal = self.goal_tracker.check_goal(goal)
        if seed is not None:
            self.goal_tracker.seed(seed)
            self.action_space.seed(seed)
        world_obs, info = self.env.reset(seed=seed, options=options or None)
        observation = self._own(world_obs, "a first observation")
        self.goal_buffer.add(observation[None])
        if goal is None and len(self.goal_buffer) == 0:
            observation, info = self._wander()
        self.goal_tracker.start(np.array([0]), observation[None], goal)
        return self._goal_obs(observation), {**info, "desired_goal_id": int(self.goal_tracker.desired_ids[0])}

    def step(self, action: Any) -> tuple[GoalObs, float, bool, bool, dict[str, Any]]:
        """
        :param action: of the environment
        :return: goal observation, goal reward, terminated, truncated, info (see the class)
        :raises ValueError: if the environment's observation has not the shape and kind of dtype of its space, or it or the
            environment's reward is not finite
        """
        world_obs, env_reward, env_terminated, env_truncated, info = self.env.step(action)
        observation = self._own(world_obs, "a terminal observation" if env_terminated or env_truncated else "an observation")
        episodes = self.goal_tracker
        if not math.isfinite(env_reward):
            guards.check_finite(np.array([env_reward], dtype=np.float64), "a reward", episodes)
        achieved_ids = episodes.advance(observation[None])
        desired_goal = episodes.desired_goals[0]
        info = {
            **info,
            "env_reward": float(env_reward),
            "env_terminated": bool(env_terminated),
            "env_truncated": bool(env_truncated),
            "is_success": bool(episodes.achieved(observation, desired_goal)),
            "goal_steps": int(episodes.steps[0]),
            "achieved_goal_id": int(achieved_ids[0]),
            "desired_goal_id": int(episodes.desired_ids[0]),
        }
        reward = episodes.compute_reward(observation, desired_goal, info)
        terminated = episodes.compute_terminated(observation, desired_goal, info)
        truncated = episodes.compute_truncated(observation, desired_goal, info)
        if terminated or truncated:
            episodes.end(np.array([0]), np.array([info["is_success"]]))
            if not (env_terminated or env_truncated or episodes.resets(np.array([0]))[0]):
                self._going_on = observation.copy(), info
        return self._goal_obs(observation), reward, terminated, truncated, info

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: the goal episode; neither the environment's state nor the goal buffer"""
        return {"goal_tracker": self.goal_tracker.get_checkpoint_state(), "going_on": copy.deepcopy(self._going_on)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: from :meth:`get_checkpoint_state`
        :raises ValueError: if it is of goal episodes of other settings
        """
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        self._going_on = copy.deepcopy(state["going_on"])

    def compute_reward(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """The reward of a transition that led to ``achieved_goal``; see :meth:`GoalTracker.compute_reward`."""
        return self.goal_tracker.compute_reward(achieved_goal, desired_goal, info)

    def compute_terminated(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """Whether it ends the episode; see :meth:`GoalTracker.compute_terminated`."""
        return self.goal_tracker.compute_terminated(achieved_goal, desired_goal, info)

    def compute_truncated(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """Whether it cuts the episode short; see :meth:`GoalTracker.compute_truncated`."""
        return self.goal_tracker.compute_truncated(achieved_goal, desired_goal, info)

    def render(self) -> Any:
        """
        The environment's frame and, where the render mode is ``"rgb_array"`` and goals are images, the goal to the right of
        it, enlarged to the same height. An environment that has a method ``render_observation(observation)``, returning an
        RGB frame, draws the goal itself.

        :return: (H, W, 3) uint8; in other modes, or if goals are no images, what the environment returns
        """
        frame = self.env.render()
        if self.render_mode != "rgb_array" or not isinstance(frame, np.ndarray):
            return frame
        picture = goal_picture(self.env, self.goal_tracker.desired_goals[0])
        return frame if picture is None else beside(frame, picture)

    def _own(self, observation: Any, what: str) -> NDArray[Any]:
        goals = self.goal_buffer
        return guards.own_observation(observation, goals.shape, goals.dtype, what, self.goal_tracker)

    def _goal_obs(self, observation: NDArray[Any]) -> GoalObs:
        return {
            "observation": observation,
            "achieved_goal": observation.copy(),
            "desired_goal": self.goal_tracker.desired_goals[0].copy(),
        }

    def _wander(self) -> tuple[NDArray[Any], dict[str, Any]]:
        # Algorithm 1, line 2: the first goals come from a random policy. Only needed where the first observation is held out.
        for _ in range(MAX_WANDERING):
            world_obs, _, terminated, truncated, info = self.env.step(self.action_space.sample())
            if terminated or truncated:
                world_obs, info = self.env.reset()
            observation = self._own(world_obs, "an observation")
            self.goal_buffer.add(observation[None])
            if len(self.goal_buffer) > 0:
                return observation, info
        raise ValueError(f"the goal buffer is still empty after {MAX_WANDERING} random steps: all they met is held out")


def buffer_for(observation_space: spaces.Space[Any], goal_buffer: GoalBuffer | None) -> GoalBuffer:
    """
    :param observation_space: of an environment without goals
    :param goal_buffer: that was asked for, or None
    :return: it, or a new one
    :raises ValueError: if it is for another space
    """
    if goal_buffer is None:
        return GoalBuffer(observation_space)
    if goal_buffer.observation_space != observation_space:
        raise ValueError(
            f"goal_buffer is for observations of {goal_buffer.observation_space}, the environment has {observation_space}"
        )
    return goal_buffer
