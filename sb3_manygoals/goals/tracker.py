"""Goal-pursuing episodes of several environments at once: the core that both goal wrappers share."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer, identical
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector

Info = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_GOAL_STREAM = 2


_BROAD = 0.1
"""Starts are broad if they are as many as this share of the known observations, each as likely as the others."""
_NOT_ONE = 1.5
"""And if they are more than this: where there is one, nothing beyond the goals known would ever be met in a corridor."""
_RETURN_AFTER = 20
"""Goal episodes, of full length, after which a world that is not reset for its starts is reset all the same."""

ResetWorlds = bool | Literal["auto"]


class Starts:
    """
    Counts the observations with which the worlds begin, to tell broad starts from narrow ones: a reset to one of a few starts
    only takes an agent back there.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.n = 0
        self.pairs = 0
        """Pairs of equal starts."""

    def observe(self, ids: NDArray[np.int64]) -> None:
        """:param ids: of the first observations, ``UNKNOWN`` for those that are no goals, which count as all different"""
        for number in ids.tolist():
            self.n += 1
            if number != UNKNOWN:
                before = self.counts.get(number, 0)
                self.pairs += before
                self.counts[number] = before + 1

    def are_broad(self, n_known: int) -> bool:
        """
        :param n_known: number of known observations
        :return: whether there are as many starts as a tenth of these, and not one only, as far as can be told: of n starts
            drawn evenly from m, one pair in m is equal
        """
        return self.n * (self.n - 1) / 2 >= max(_BROAD * n_known, _NOT_ONE) * self.pairs


class GoalTracker:
    """
    What each of ``n_envs`` environments is pursuing and for how long, and what that is worth.

    An episode ends when the observation equals the goal (terminated) or after ``max_episode_steps`` steps (truncated), as in
    Algorithm 1 of Veeriah et al. 2018. The reward is ``goal_reward`` on the transition that reaches the goal, else
    ``step_reward`` (section 3 of the paper).

    :param goal_buffer: the known goals; observations met are added to it
    :param n_envs: the number of environments
    :param selector: the rule that chooses goals, uniform if None
    :param max_episode_steps: the steps an episode may take, T in Algorithm 1
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :param reset_worlds: whether the world is reset when a goal's episode ends, or goes on with another goal. "auto": it is
        reset where its starts are broad, and else goes on, but for a reset after 20 ``max_episode_steps``
    :raises TypeError: if ``selector`` is none
    :raises ValueError: if a count is not positive, or reaching a goal is not worth more than a step
    """

    def __init__(
        self,
        goal_buffer: GoalBuffer,
        n_envs: int = 1,
        selector: GoalSelector | None = None,
        max_episode_steps: int = 50,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
    ) -> None:
        if reset_worlds not in (True, False, "auto"):
            raise ValueError(f'reset_worlds must be True, False or "auto", got {reset_worlds!r}')
        for name, value in (("n_envs", n_envs), ("max_episode_steps", max_episode_steps)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
        if not (goal_reward > step_reward and np.isfinite([goal_reward, step_reward]).all()):
            raise ValueError(f"goal_reward must be greater than step_reward, both finite, got {goal_reward} and {step_reward}")
        if selector is not None and not isinstance(selector, GoalSelector):
            raise TypeError(f"selector must be a GoalSelector or None, got {selector!r}")
        self.goal_buffer = goal_buffer
        self.selector = UniformSelector() if selector is None else selector
        self.max_episode_steps = int(max_episode_steps)
        self.goal_reward = float(goal_reward)
        self.step_reward = float(step_reward)
        self.reset_worlds = reset_worlds
        self.starts = Starts()
        self.rng = np.random.default_rng()
        self.desired_goals: NDArray[Any] = np.zeros((n_envs, *goal_buffer.shape), dtype=goal_buffer.dtype)
        self.desired_ids: NDArray[np.int64] = np.full(n_envs, UNKNOWN, dtype=np.int64)
        self.steps: NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        self.world_steps: NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        """Since the world was reset."""

    def seed(self, seed: int | None) -> None:
        """:param seed: of the generator that goals are drawn with; None for a fresh one"""
        # tagged: the environment draws its own numbers with default_rng(seed)
        self.rng = np.random.default_rng(None if seed is None else (seed, _GOAL_STREAM))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: what is pursued and for how long, the generator and the selector's state, copied; not the goal buffer"""
        return {
            "settings": self._settings(),
            "desired_goals": self.desired_goals.copy(),
            "desired_ids": self.desired_ids.copy(),
            "steps": self.steps.copy(),
            "world_steps": self.world_steps.copy(),
            "starts": copy.deepcopy(vars(self.starts)),
            "rng": copy.deepcopy(self.rng),
            "selector": self.selector.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on with these episodes. The goal buffer is restored by itself.

        :param state: from :meth:`get_checkpoint_state`
        :raises ValueError: if it is of other goals, rewards, selectors or numbers of environments or steps
        """
        for name, value in self._settings().items():
            if state["settings"][name] != value:
                raise ValueError(f"the state is of goal episodes with {name}={state['settings'][name]!r}, not {value!r}")
        self.desired_goals, self.desired_ids = state["desired_goals"].copy(), state["desired_ids"].copy()
        self.steps, self.rng = state["steps"].copy(), copy.deepcopy(state["rng"])
        self.world_steps = state["world_steps"].copy()
        vars(self.starts).update(copy.deepcopy(state["starts"]))
        self.selector.set_checkpoint_state(state["selector"])

    def _settings(self) -> dict[str, Any]:
        return {
            "n_envs": len(self.steps),
            "shape": self.goal_buffer.shape,
            "dtype": self.goal_buffer.dtype.str,
            "selector": type(self.selector).__qualname__,
            "max_episode_steps": self.max_episode_steps,
            "goal_reward": self.goal_reward,
            "step_reward": self.step_reward,
            "reset_worlds": self.reset_worlds,
        }

    def adopt(self, goal_buffer: GoalBuffer) -> None:
        """:param goal_buffer: to be used from now on, for the same space of observations"""
        if goal_buffer is not self.goal_buffer:
            self.selector.forget()
            self.starts = Starts()
        self.goal_buffer = goal_buffer
        self.desired_ids = goal_buffer.ids(self.desired_goals)

    def resets(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """
        :param rows: environments whose goal episode has ended, and their world has not, shape ``(k,)``
        :return: whether to reset the world of each, shape ``(k,)``
        """
        if self.reset_worlds == "auto" and not self.starts.are_broad(len(self.goal_buffer)):
            long_ago: NDArray[np.bool_] = self.world_steps[rows] >= _RETURN_AFTER * self.max_episode_steps
            return long_ago
        return np.full(len(rows), bool(self.reset_worlds))

    def start(
        self,
        rows: NDArray[np.integer[Any]],
        observations: NDArray[Any],
        goal: NDArray[Any] | None = None,
        anew: NDArray[np.bool_] | bool = True,
    ) -> None:
        """
        Begin an episode in some environments.

        :param rows: which environments, shape ``(k,)``
        :param observations: what each of them shows, shape ``(k, *observation_space.shape)``; added to the goal buffer before,
            where they are counted once
        :param anew: whether the world of each was reset, shape ``(k,)``, or one answer for all
        :param goal: the goal to pursue, which need not be known and may be held out; chosen by the selector if None
        :raises ValueError: if no goal is given and none is known
        """
        current_ids = self.goal_buffer.ids(observations)
        begun = np.broadcast_to(anew, len(rows))
        self.starts.observe(current_ids[begun])
        self.world_steps[rows[begun]] = 0
        if goal is not None:
            goals = self.check_goal(goal)[None]
            ids = self.goal_buffer.ids(goals)
        elif len(self.goal_buffer) == 0:
            raise ValueError("the goal buffer is empty: no observation that may be a goal has been met yet")
        else:
            ids = self.selector.select(self.goal_buffer, current_ids, self.rng)
            goals = self.goal_buffer[ids]
        self.desired_goals[rows] = goals
        self.desired_ids[rows] = ids
        self.steps[rows] = 0

    def check_goal(self, goal: NDArray[Any]) -> NDArray[Any]:
        """
        :param goal: what should be one observation
        :return: the same as a NumPy array
        :raises ValueError: if its shape or dtype is another
        """
        array, shape, dtype = np.asarray(goal), self.goal_buffer.shape, self.goal_buffer.dtype
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"options['goal'] must be {dtype} of shape {shape}, got {array.dtype} of {array.shape}")
        return array

    def advance(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Count one step of every environment. The observations become known goals.

        :param observations: what each environment shows after its step, shape ``(n_envs, *observation_space.shape)``
        :return: the goal id of each observation, shape ``(n_envs,)``
        """
        self.steps += 1
        self.world_steps += 1
        ids = self.goal_buffer.add(observations)
        self.selector.observe_visits(ids[ids != UNKNOWN])
        return ids

    def end(self, rows: NDArray[np.integer[Any]], reached: NDArray[np.bool_]) -> None:
        """
        Tell the selector that episodes have ended.

        :param rows: in which environments, shape ``(k,)``
        :param reached: whether the goal was reached in each of them, shape ``(k,)``
        """
        ids = self.desired_ids[rows]
        known = ids != UNKNOWN
        self.selector.observe_episodes(ids[known], reached[known])

    def achieved(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any]) -> NDArray[np.bool_]:
        """
        :param achieved_goal: shape ``(*batch, *observation_space.shape)``
        :param desired_goal: the same shape
        :return: whether they are identical, shape ``batch``
        """
        left, right = self._check_batch(achieved_goal, "achieved_goal"), self._check_batch(desired_goal, "desired_goal")
        if left.shape != right.shape:
            raise ValueError(f"achieved_goal and desired_goal must have one shape, got {left.shape} and {right.shape}")
        return identical(left, right, len(self.goal_buffer.shape))

    def _check_batch(self, goal: NDArray[Any], name: str) -> NDArray[Any]:
        shape, dtype = self.goal_buffer.shape, self.goal_buffer.dtype
        array = np.asarray(goal)
        batch = array.shape[: array.ndim - len(shape)]
        if array.shape != (*batch, *shape) or array.dtype != dtype:
            raise ValueError(f"{name} must be {dtype} of shape (*batch, *{shape}), got {array.dtype} of {array.shape}")
        return array

    def compute_reward(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """
        :param achieved_goal: one observation or a batch
        :param desired_goal: the same
        :param info: not used; part of the GoalEnv interface
        :return: a float for one observation, float32 of shape ``(n,)`` for a batch
        """
        reward = np.where(self.achieved(achieved_goal, desired_goal), self.goal_reward, self.step_reward)
        return float(reward) if reward.ndim == 0 else reward.astype(np.float32)

    def compute_terminated(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """
        :param achieved_goal: one observation or a batch
        :param desired_goal: the same
        :param info: the info, or one info an observation, of the transitions; ``env_terminated`` is read from it
        :return: whether the goal is reached or the environment itself came to an end: bool, or bool of shape ``(n,)``
        """
        terminated = self.achieved(achieved_goal, desired_goal) | _read(info, "env_terminated", False).astype(bool)
        return bool(terminated) if terminated.ndim == 0 else terminated

    def compute_truncated(self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Info) -> Any:
        """
        :param achieved_goal: one observation or a batch; gives the shape of the answer
        :param desired_goal: not used; part of the GoalEnv interface
        :param info: the info, or one info an observation; ``goal_steps`` and ``env_truncated`` are read from it
        :return: whether the steps are used up or the environment itself was cut short: bool, or bool of shape ``(n,)``
        """
        cut = (_read(info, "goal_steps", 0) >= self.max_episode_steps) | _read(info, "env_truncated", False).astype(bool)
        batch = np.shape(achieved_goal)[: np.ndim(achieved_goal) - len(self.goal_buffer.shape)]
        truncated: NDArray[np.bool_] = np.broadcast_to(cut, batch)
        return bool(truncated) if truncated.ndim == 0 else truncated.copy()


def _read(info: Info, key: str, default: Any) -> NDArray[Any]:
    if isinstance(info, Mapping):
        return np.asarray(info.get(key, default))
    return np.asarray([one.get(key, default) for one in info])
