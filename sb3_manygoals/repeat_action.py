"""A wrapper that holds each action for several steps of the environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium import spaces

from sb3_manygoals.action_masks import own_action_mask
from sb3_manygoals.validation import check_count

# Parts of the observations of a GoalEnv.
_GOALS = {"achieved_goal", "desired_goal"}


class RepeatAction(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    Takes each action for n steps of the environment, and shows the last observation.

    It is for worlds of small steps, whose states are cells (``state_key``). If a step hardly ever
    leaves its cell, a plan by cells cannot tell what an action does. With some steps as one, it
    can, and ways to goals are shorter too.

    Fewer steps are made if the environment terminates or truncates the episode, and if it says in
    its info that its goal is reached (``"is_success"`` or ``"success"``), or that it does not allow
    the action any more (``"action_mask"``). The reward is the sum of the rewards. In a GoalEnv it
    is the last one, since it is a function of the last observation and the goal.

    :param env: an environment
    :param n_repeats: how many steps of the environment an action is held for, n, at least 1
    :raises ValueError: if ``n_repeats`` is not a positive whole number
    """

    def __init__(self, env: gym.Env[Any, Any], n_repeats: int) -> None:
        self.n_repeats = check_count("n_repeats", n_repeats)
        gym.utils.RecordConstructorArgs.__init__(self, n_repeats=n_repeats)
        super().__init__(env)
        space = env.observation_space
        self._is_goal_env = isinstance(space, spaces.Dict) and set(space) >= _GOALS

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """
        Hold an action.

        :param action: an action of the environment
        :return: last observation, reward, whether the episode has terminated, whether it was
            truncated, and the last info
        """
        total: Any = 0.0
        for _ in range(self.n_repeats):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = reward if self._is_goal_env else total + reward
            is_success = info.get("is_success", info.get("success", False))
            if terminated or truncated or is_success or self._is_forbidden(action, info):
                break
        return observation, total, terminated, truncated, info

    def _is_forbidden(self, action: Any, info: dict[str, Any]) -> bool:
        """Return whether a mask forbids the action in the next step."""
        space = self.env.action_space
        mask = own_action_mask(info, space)
        if mask is None:
            return False
        assert isinstance(space, spaces.Discrete)
        return not mask[int(action) - int(space.start)]
