"""Turn a vector of environments in SB3's form into one that pursues goals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from sb3_manygoals import guards
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector
from sb3_manygoals.goals.tracker import GoalTracker, ResetWorlds
from sb3_manygoals.goals.wrappers import MAX_WANDERING, GoalObs, buffer_for, goal_observation_space


class VecGoalBufferWrapper(VecEnvWrapper):
    """
    :class:`~sb3_manygoals.GoalBufferWrapper` for an SB3 VecEnv: all its environments share one goal buffer.

    What ``reset_worlds`` asks for is done exactly as a ``GoalBufferWrapper`` around each of them would. Where VecEnvs cannot
    reset one environment, or have wrappers (frame stacking, say) that would not notice, "auto" is False. See
    :func:`can_reset_single_envs`.

    ``infos`` have the keys of ``GoalBufferWrapper``, and at the end of an episode ``terminal_observation``,
    ``TimeLimit.truncated`` and ``episode`` (return, length) of the goal episode. An ``episode`` entry that a Monitor below
    writes is moved to ``env_episode``.

    :param venv: vectorized environment whose observation is one array
    :param goal_buffer: where goals are kept; a new one if None
    :param selector: the rule that chooses goals, uniform if None
    :param max_episode_steps: the steps an episode may take, T in Algorithm 1
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :param reset_worlds: whether a goal episode's end resets the world; "auto": where its starts are broad, see
        :class:`~sb3_manygoals.goals.GoalTracker`. A Monitor around an environment must allow early resets then, as it does
        by default
    :raises TypeError: if the observations cannot be goals
    :raises ValueError: if ``reset_worlds`` is asked of a VecEnv that cannot, or another argument makes no sense
    """

    def __init__(
        self,
        venv: VecEnv,
        goal_buffer: GoalBuffer | None = None,
        selector: GoalSelector | None = None,
        max_episode_steps: int = 50,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
    ) -> None:
        can_reset = can_reset_single_envs(venv)
        if reset_worlds is True and not can_reset:
            raise ValueError(
                f"reset_worlds=True needs a DummyVecEnv or SubprocVecEnv, got {type(venv).__name__}, in which single "
                "environments cannot be reset: pass reset_worlds=False, put VecGoalBufferWrapper innermost, or make the "
                "environments of a GymnasiumVecEnv with AutoresetMode.DISABLED"
            )
        super().__init__(venv, observation_space=goal_observation_space(venv.observation_space))
        guards.watch(venv)
        goal_buffer = buffer_for(venv.observation_space, goal_buffer)
        if reset_worlds == "auto" and not can_reset:
            reset_worlds = False
        self.goal_tracker = GoalTracker(
            goal_buffer, venv.num_envs, selector, max_episode_steps, goal_reward, step_reward, reset_worlds
        )
        self._returns = np.zeros(venv.num_envs)

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def seed(self, seed: int | None = None) -> Any:
        """
        :param seed: of the choice of goals, and of the environments at their next reset
        :return: the seed of each environment
        """
        self.goal_tracker.seed(seed)
        self.action_space.seed(seed)
        return self.venv.seed(seed)

    def reset(self) -> GoalObs:
        """
        Reset all environments. Options set by ``set_options({"goal": observation})`` set the goals.

        :return: the first goal observations, each of shape ``(num_envs, *observation_space.shape)``
        """
        options = [dict(option) for option in self._options]
        goals = [option.pop("goal", None) for option in options]
        goals = [None if goal is None else self.goal_tracker.check_goal(goal) for goal in goals]
        self.venv.set_options(options)
        try:
            observations = self._checked(self.venv.reset(), "a first observation")
        except ValueError:
            guards.blame(self.venv)
            raise
        self.reset_infos = list(current_reset_infos(self.venv))
        self._options = [{} for _ in range(self.num_envs)]
        self.goal_buffer.add(observations)
        if len(self.goal_buffer) == 0 and any(goal is None for goal in goals):
            observations = self._wander()
        for row, goal in enumerate(goals):
            self.goal_tracker.start(np.array([row]), observations[row : row + 1], goal)
        self._returns[:] = 0.0
        return self._goal_obs(observations)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """:param options: for the next reset, for all environments or one dict each; ``"goal"`` sets the goal"""
        VecEnv.set_options(self, options)

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: goal observations, goal rewards float32, dones, infos
        :raises ValueError: if an environment's observation has not the shape and kind of dtype of its space, or it or the
            environment's reward is not finite
        :raises RuntimeError: if a worker of a SubprocVecEnv has died
        """
        try:
            venv_obs, env_rewards, env_dones, infos = self.venv.step_wait()
            observations = self._checked(venv_obs, "an observation")
        except ValueError:
            guards.blame(self.venv)
            raise
        guards.check_finite(np.asarray(env_rewards), "a reward", self.goal_tracker)
        final = observations.copy()
        if env_dones.any():
            starts = current_reset_infos(self.venv)
            for row in np.flatnonzero(env_dones).tolist():
                final[row] = self._own(infos[row]["terminal_observation"], "a terminal observation", row)
                self.reset_infos[row] = starts[row]

        episodes = self.goal_tracker
        achieved_ids = episodes.advance(final)
        desired_goals, desired_ids = episodes.desired_goals.copy(), episodes.desired_ids.copy()
        success = episodes.achieved(final, desired_goals)
        for row, info in enumerate(infos):
            env_truncated = bool(info.get("TimeLimit.truncated", False))
            info.update(
                env_reward=float(env_rewards[row]),
                env_terminated=bool(env_dones[row]) and not env_truncated,
                env_truncated=env_truncated,
                is_success=bool(success[row]),
                goal_steps=int(episodes.steps[row]),
                achieved_goal_id=int(achieved_ids[row]),
                desired_goal_id=int(desired_ids[row]),
            )
        rewards = episodes.compute_reward(final, desired_goals, infos)
        terminated = episodes.compute_terminated(final, desired_goals, infos)
        truncated = episodes.compute_truncated(final, desired_goals, infos)
        dones = terminated | truncated
        self._returns += rewards

        ended = np.flatnonzero(dones)
        anew = env_dones.astype(np.bool_)
        anew[ended] |= episodes.resets(ended)
        for row in ended.tolist():
            info = infos[row]
            if not anew[row]:
                self.reset_infos[row] = dict(info)  # the next episode starts where this one ends
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            info["terminal_observation"] = {
                "observation": final[row],
                "achieved_goal": final[row].copy(),
                "desired_goal": desired_goals[row],
            }
            if "episode" in info:
                info["env_episode"] = info["episode"]
            info["episode"] = {"r": float(self._returns[row]), "l": int(episodes.steps[row])}
        rows = np.flatnonzero(anew & ~env_dones).tolist()
        # all at once: a vector environment then looks once at its states
        for row, restarted in zip(rows, self.venv.env_method("reset", indices=rows) if rows else (), strict=True):
            first, self.reset_infos[row] = restarted
            observations[row] = self._own(first, "a first observation", row)
        if anew.any():
            self.goal_buffer.add(observations[anew])
        if len(ended):
            episodes.end(ended, success[ended])
            episodes.start(ended, observations[ended], anew=anew[ended])
            self._returns[ended] = 0.0
        return self._goal_obs(observations), rewards, dones, infos

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: the goal episodes, and what comes with the last and the next reset; neither environments nor goal buffer"""
        return {
            "goal_tracker": self.goal_tracker.get_checkpoint_state(),
            "returns": self._returns.copy(),
            "reset_infos": copy.deepcopy(self.reset_infos),
            "options": copy.deepcopy(self._options),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: from :meth:`get_checkpoint_state`
        :raises ValueError: if it is of goal episodes of other settings
        """
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        self._returns = state["returns"].copy()
        self.reset_infos, self._options = copy.deepcopy(state["reset_infos"]), copy.deepcopy(state["options"])

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """SB3's way to call methods, HerReplayBuffer's to ``compute_reward``; the goal methods are answered here."""
        if method_name in ("compute_reward", "compute_terminated", "compute_truncated"):
            answer = getattr(self.goal_tracker, method_name)(*method_args, **method_kwargs)
            return [answer for _ in self._get_indices(indices)]
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def _goal_obs(self, observations: NDArray[Any]) -> GoalObs:
        return {
            "observation": observations,
            "achieved_goal": observations.copy(),
            "desired_goal": self.goal_tracker.desired_goals.copy(),
        }

    def _checked(self, venv_obs: Any, what: str) -> NDArray[Any]:
        observations = self.goal_buffer.check(np.array(venv_obs), "observations")
        guards.check_finite(observations, what, self.goal_tracker)
        return observations

    def _own(self, observation: Any, what: str, row: int) -> NDArray[Any]:
        goals = self.goal_buffer
        return guards.own_observation(observation, goals.shape, goals.dtype, what, self.goal_tracker, row)

    def _wander(self) -> NDArray[Any]:
        # as GoalBufferWrapper._wander; the VecEnv resets by itself
        for _ in range(MAX_WANDERING):
            actions = np.array([self.action_space.sample() for _ in range(self.num_envs)])
            step_observations, _, dones, infos = self.venv.step(actions)
            observations = self._checked(step_observations, "an observation")
            starts = current_reset_infos(self.venv)
            self.reset_infos = [starts[row] if dones[row] else info for row, info in enumerate(infos)]
            self.goal_buffer.add(observations)
            if len(self.goal_buffer) > 0:
                return observations
        raise ValueError(f"the goal buffer is still empty after {MAX_WANDERING} random steps: all they met is held out")


def current_reset_infos(venv: VecEnv) -> list[dict[str, Any]]:
    """
    What came with the first observation of each environment's episode. SB3's own VecEnvWrappers have ``reset_infos`` too, and
    leave them empty.

    :param venv: vectorized environment
    :return: the ``reset_infos`` of the outermost that fills them, one for each environment
    """
    while isinstance(venv, VecEnvWrapper) and not any(venv.reset_infos):
        venv = venv.venv
    return venv.reset_infos


def can_reset_single_envs(venv: VecEnv) -> bool:
    """
    Whether ``venv.env_method("reset", indices=...)`` can be relied upon. SB3's own VecEnvs can do that, others say so in an
    attribute ``can_reset_single_envs``. Wrappers cannot, even around these: a stack of frames would not notice the reset.

    :param venv: vectorized environment
    :return: whether single environments can be reset
    """
    if isinstance(venv, VecEnvWrapper):  # which would answer with the attribute of what it wraps
        return False
    return isinstance(venv, (DummyVecEnv, SubprocVecEnv)) or bool(getattr(venv, "can_reset_single_envs", False))
