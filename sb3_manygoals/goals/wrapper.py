"""Turn an environment, or SB3's vector of environments, into one that pursues goals."""

from __future__ import annotations

import copy
from typing import Any

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
from sb3_manygoals.checkpoint.tree import plain_part
from sb3_manygoals.goals.buffer import GoalBuffer, check_goal_space
from sb3_manygoals.goals.selection import GoalSelector
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_chosen, one_action
from sb3_manygoals.vec_env import can_reset_single_envs, current_reset_infos

GoalObs = dict[str, NDArray[Any]]


def goal_observation_space(observation_space: spaces.Space[Any]) -> spaces.Dict:
    """The GoalEnv space: a space three times. A TypeError if its elements cannot be goals."""
    check_goal_space(observation_space)
    return spaces.Dict(
        {key: observation_space for key in ("observation", "achieved_goal", "desired_goal")}
    )


class GoalBufferWrapper(
    gym.Wrapper[GoalObs, Any, NDArray[Any], Any], gym.utils.RecordConstructorArgs
):
    """
    Pursue goals drawn from the observations met so far.

    The observation becomes ``{"observation", "achieved_goal", "desired_goal"}``, as Gymnasium-Robotics' GoalEnv has it. An
    episode terminates when the goal is reached and is truncated after ``max_episode_steps``; the environment's own ends end it
    too. ``reset(options={"goal": observation})`` sets the goal, other options go to the environment. ``info`` has the
    environment's ``env_reward``, ``env_terminated`` and ``env_truncated``, besides ``is_success``, ``goal_steps``, and the ids
    ``achieved_goal_id`` and ``desired_goal_id`` (-1: not in the buffer). Around a Monitor, ``episode`` (return, length) is of
    the goal episode, and the Monitor's entry becomes ``env_episode``.

    An end of the environment itself terminates too, after one ``step_reward``. ManyGoalsDQN counts it as a failure for ever;
    to another learner, such as SB3's with HerReplayBuffer, it is the shortest way to stop paying.

    ``reset`` raises a ValueError if the goal is no observation, or none can be found; ``step`` if the observation has not the
    shape and kind of dtype of its space, it or the reward is not finite, the reward is not one number (None counts as 0), or
    actions do not begin at 0 and the one chosen is none of them.

    :param env: an environment whose observation is one array
    :param goal_buffer: where goals are kept, to be shared between environments; a new one if None
    :param selector: rule that chooses goals, uniform if None
    :param settings: ``max_episode_steps`` (50), the paper's T; ``goal_reward`` (0.0) of the transition that reaches the goal,
        ``step_reward`` (-0.1) of every other one; ``reset_worlds``, whether the end of a goal episode resets the world,
        "auto": if its starts are broad, and else only after 20 ``max_episode_steps``. ``reset`` with a seed or options does;
        ``training`` (True), False to evaluate: what is met does not become a goal, and its rewards are not recorded
    :raises TypeError: if the observations cannot be goals, or ``selector`` is none
    :raises ValueError: if ``goal_buffer`` is for another space, or a number makes no sense
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        goal_buffer: GoalBuffer | None = None,
        selector: GoalSelector | None = None,
        **settings: Any,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(  # no deep copy: environments are meant to share the buffer
            self, goal_buffer=goal_buffer, selector=selector, **settings, _disable_deepcopy=True
        )
        super().__init__(env)
        self.observation_space = goal_observation_space(env.observation_space)  # type: ignore[assignment]
        self.goal_tracker = GoalTracker(env.observation_space, 1, goal_buffer, selector, **settings)
        self._going_on: tuple[NDArray[Any], dict[str, Any]] | None = (
            None  # where a world stands that is not to be reset
        )
        self._monitored = is_wrapped(env, Monitor)  # so that SB3 waits for the returns of episodes

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObs, dict[str, Any]]:
        """The seed is also of the action space, and of goals: among the same known ones. A world not to be reset goes on."""
        tracker, going_on = self.goal_tracker, self._going_on
        self._going_on = None
        if going_on is not None and seed is None and not options:
            observation, info = going_on
            tracker.start(np.array([0]), self.goal_buffer.ids(observation[None]), anew=False)
        else:
            options = dict(options or {})
            goal = tracker.take_goal(options)
            if seed is not None:
                tracker.seed(seed)
                self.action_space.seed(seed)
            world_obs, info = self.env.reset(seed=seed, options=options or None)

            def move() -> NDArray[Any]:
                nonlocal info
                with errors.stepping(tracker):
                    world_obs, _, terminated, truncated, info = self.env.step(
                        _random_action(self.action_space, info)
                    )
                if terminated or truncated:
                    world_obs, info = self.env.reset()
                return tracker.own(world_obs, "an observation")[None]

            (observation,) = tracker.reset(
                tracker.own(world_obs, "a first observation")[None], [goal], move
            )
        return _goal_obs(observation, tracker.desired_goals[0]), {
            **info,
            "desired_goal_id": int(tracker.desired_ids[0]),
        }

    def step(self, action: Any) -> tuple[GoalObs, float, bool, bool, dict[str, Any]]:
        """As the environment's, with the reward and the ends of the goal episode."""
        tracker = self.goal_tracker
        if isinstance(self.action_space, spaces.Discrete):
            check_chosen(action, self.action_space)
            action = one_action(action, self.action_space)  # environments use actions as keys
        with errors.stepping(tracker):
            world_obs, env_reward, *env_ends, world_info = self.env.step(action)
        observation = tracker.own(
            world_obs, "a terminal observation" if any(env_ends) else "an observation"
        )
        info = dict(world_info)
        env_terminated, env_truncated = np.array(env_ends, np.bool_)
        outcome = tracker.step(
            observation[None], [env_reward], env_terminated[None], env_truncated[None], [info]
        )
        terminated, truncated, resets = (bool(column[0]) for column in outcome[1:])
        over = terminated or truncated
        self._going_on = (
            (observation.copy(), dict(world_info))
            if over and not (any(env_ends) or resets)
            else None
        )
        if "episode" in info:
            info["env_episode"] = info.pop("episode")
        if over and self._monitored:
            before = (info["goal_steps"] - 1) * tracker.step_reward
            info["episode"] = {"r": before + float(outcome[0][0]), "l": info["goal_steps"]}
        return (
            _goal_obs(observation, tracker.desired_goals[0]),
            float(outcome[0][0]),
            terminated,
            truncated,
            info,
        )

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any
    ) -> Any:
        """The reward of a transition that led to ``achieved_goal``; float32 of shape ``(n,)`` for a batch."""
        return self.goal_tracker.compute_reward(achieved_goal, desired_goal, info)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: the goal episode; neither the environment's state nor the goal buffer"""
        going_on = (
            None if self._going_on is None else (self._going_on[0], plain_part(self._going_on[1]))
        )
        return {
            "goal_tracker": self.goal_tracker.get_checkpoint_state(),
            "going_on": copy.deepcopy(going_on),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Raises a CheckpointError if the state is of goal episodes of other settings."""
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        self._going_on = copy.deepcopy(state["going_on"])


class VecGoalBufferWrapper(VecEnvWrapper):
    """
    :class:`~sb3_manygoals.GoalBufferWrapper` for an SB3 VecEnv: all its environments share one goal buffer.

    What ``reset_worlds`` asks for is done exactly as a ``GoalBufferWrapper`` around each of them would. Where VecEnvs cannot
    reset one environment, or have wrappers (frame stacking, say) that would not notice, "auto" is False. See
    :func:`~sb3_manygoals.vec_env.can_reset_single_envs`.

    ``infos`` have the keys of ``GoalBufferWrapper``, and at the end of an episode ``terminal_observation``,
    ``TimeLimit.truncated`` and ``episode`` (return, length) of the goal episode; a Monitor's entry becomes ``env_episode``.
    ``set_options({"goal": observation})``, or one such dict for each environment, sets the goals of the next reset. A step
    raises a RuntimeError if a worker of a SubprocVecEnv has died. A reward of None, of which SB3's DummyVecEnv makes NaN, is
    refused as NaN there.

    :param venv: vectorized environment whose observation is one array
    :param goal_buffer: as of ``GoalBufferWrapper``, like ``selector`` and ``settings``. Where worlds are reset, a Monitor
        around one must allow early resets, as it does by default
    :raises TypeError: if the observations cannot be goals
    :raises ValueError: if ``reset_worlds`` is asked of a VecEnv that cannot, or another argument makes no sense
    """

    def __init__(
        self,
        venv: VecEnv,
        goal_buffer: GoalBuffer | None = None,
        selector: GoalSelector | None = None,
        **settings: Any,
    ) -> None:
        if not can_reset_single_envs(venv):
            if settings.get("reset_worlds") is True:
                raise ValueError(
                    f"reset_worlds=True needs a DummyVecEnv or SubprocVecEnv, got {type(venv).__name__}, in which single "
                    "environments cannot be reset: pass reset_worlds=False, put VecGoalBufferWrapper innermost, or make the "
                    "environments of a GymnasiumVecEnv with AutoresetMode.DISABLED"
                )
            if settings.get("reset_worlds", "auto") == "auto":
                settings["reset_worlds"] = False
        super().__init__(venv, observation_space=goal_observation_space(venv.observation_space))
        self.goal_tracker = GoalTracker(
            venv.observation_space, venv.num_envs, goal_buffer, selector, **settings
        )
        self._returns = np.zeros(venv.num_envs)
        self._terminal_watch = TerminalWatch()

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.goal_tracker.goal_buffer

    def seed(self, seed: int | None = None) -> Any:
        """Also of the choice of goals."""
        self.goal_tracker.seed(seed)
        self.action_space.seed(seed)
        return self.venv.seed(seed)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """
        As SB3's.

        :param options: of the next reset, one dict or one for each environment; "goal" is the goal
            of its next episode
        :raises ValueError: if a goal is no observation of the space; the options are then as before
        """
        for option in [options] if isinstance(options, dict) else options or []:
            self.goal_tracker.take_goal(dict(option))
        VecEnv.set_options(self, options)

    def reset(self) -> GoalObs:
        tracker = self.goal_tracker
        options = [dict(option) for option in self._options]
        goals = [tracker.take_goal(option) for option in options]
        self.venv.set_options(options)
        with errors.workers(self.venv):
            observations = self._checked(self.venv.reset(), "a first observation")
        self.reset_infos = list(current_reset_infos(self.venv))
        self._options = [{} for _ in range(self.num_envs)]

        def move() -> NDArray[Any]:
            actions = [_random_action(self.action_space, info) for info in self.reset_infos]
            with errors.stepping(tracker):
                venv_obs, _, dones, infos = self.venv.step(np.array(actions))
            starts = current_reset_infos(self.venv)
            self.reset_infos = [
                starts[row] if dones[row] else info for row, info in enumerate(infos)
            ]
            return self._checked(venv_obs, "an observation")

        observations = tracker.reset(observations, goals, move)
        self._returns[:] = 0.0
        return _goal_obs(observations, tracker.desired_goals)

    def step_async(self, actions: NDArray[Any]) -> None:
        check_chosen(actions, self.action_space)
        with errors.workers(self.venv):
            self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        tracker = self.goal_tracker
        with errors.workers(self.venv, answering=True):
            with errors.stepping(tracker):
                venv_obs, env_rewards, env_dones, infos = self.venv.step_wait()
            observations = self._checked(venv_obs, "an observation")
        self._terminal_watch.look(self.venv, observations, env_dones, infos)
        final, env_truncated = observations, np.zeros(self.num_envs, dtype=np.bool_)
        if env_dones.any():
            final = observations.copy()
            starts = current_reset_infos(self.venv)
            for row in np.flatnonzero(env_dones).tolist():
                final[row] = tracker.own(
                    infos[row]["terminal_observation"], "a terminal observation", row
                )
                self.reset_infos[row] = starts[row]
                # at a lost life of an Atari game the episode is only cut: play goes on, and every goal can still be reached
                env_truncated[row] = bool(
                    infos[row].get("TimeLimit.truncated") or infos[row].get("life_lost")
                )
        outcome = tracker.step(final, env_rewards, env_dones & ~env_truncated, env_truncated, infos)
        goal_rewards, terminated, truncated, resets = outcome
        rewards, dones, anew = (
            goal_rewards.astype(np.float32),
            terminated | truncated,
            env_dones | resets,
        )
        self._returns += rewards
        ended = np.flatnonzero(dones)
        for row in ended.tolist():
            info = infos[row]
            if not anew[row]:
                self.reset_infos[row] = dict(info)  # the next episode starts where this one ends
            info["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
            info["terminal_observation"] = _goal_obs(final[row].copy(), tracker.desired_goals[row])
            if "episode" in info:
                info["env_episode"] = info["episode"]
            info["episode"] = {"r": float(self._returns[row]), "l": info["goal_steps"]}
        if resets.any():
            # all at once: a vector environment then looks once at its states
            rows = np.flatnonzero(resets).tolist()
            with errors.workers(self.venv):
                restarted = self.venv.env_method("reset", indices=rows)
            for row, (first, self.reset_infos[row]) in zip(rows, restarted, strict=True):
                observations[row] = tracker.own(first, "a first observation", row)
        if len(ended):
            ids = np.array([infos[row]["achieved_goal_id"] for row in ended])
            if anew.any():
                ids[anew[ended]] = tracker.ids_of(observations[anew])
            tracker.start(ended, ids, anew=anew[ended])
            self._returns[ended] = 0.0
        return _goal_obs(observations, tracker.desired_goals), rewards, dones, infos

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """As SB3's. ``compute_reward``, which HerReplayBuffer calls, is answered here."""
        if method_name == "compute_reward":
            answer = self.goal_tracker.compute_reward(*method_args, **method_kwargs)
            return [answer for _ in self._get_indices(indices)]
        return self.venv.env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> VecEnv:
        return copy_vec_env(self, memo)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: the goal episodes, and what comes with the last and the next reset; neither environments nor goal buffer"""
        infos = [plain_part(info) for info in self.reset_infos]
        kept = {"returns": self._returns, "reset_infos": infos, "options": self._options}
        return {"goal_tracker": self.goal_tracker.get_checkpoint_state(), **copy.deepcopy(kept)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Raises a CheckpointError if the state is of goal episodes of other settings."""
        self.goal_tracker.set_checkpoint_state(state["goal_tracker"])
        kept = copy.deepcopy([state[name] for name in ("returns", "reset_infos", "options")])
        self._returns, self.reset_infos, self._options = kept

    def _checked(self, venv_obs: Any, what: str) -> NDArray[Any]:
        observations = self.goal_buffer.check(np.array(venv_obs), "observations")
        errors.check_finite(observations, what, self.goal_tracker)
        return observations


def copy_vec_env(env: VecEnv, memo: dict[int, Any]) -> VecEnv:
    """
    A deep copy. SB3's VecEnvWrappers have none: they keep members of their class in an attribute,
    which ``copy`` cannot take, and look for attributes before they have any.

    :param env: a VecEnv, wrapped or not
    :param memo: of ``__deepcopy__``, what was copied so far
    :return: the copy
    :raises TypeError: if its environments cannot be copied, as those in other processes
    """
    if id(env) in memo:
        return memo[id(env)]  # type: ignore[no-any-return]
    if not isinstance(env, VecEnvWrapper):
        try:
            vector_env = getattr(env, "vector_env", None)
            if isinstance(env, SubprocVecEnv) or isinstance(
                getattr(vector_env, "unwrapped", None), AsyncVectorEnv
            ):  # copies of pipes would close those of the original when they are thrown away
                raise TypeError("they are in other processes")
            return copy.deepcopy(env, memo)
        except Exception as error:
            advice = "save the model, and load it with environments that are made anew"
            raise TypeError(
                f"the environments of {env} cannot be copied: {error}; {advice}"
            ) from error
    inner = copy_vec_env(env.venv, memo)
    copied = type(env).__new__(type(env))
    memo[id(env)] = copied
    vars(copied).update({"venv": inner, "class_attributes": env.class_attributes})
    for name, value in vars(env).items():
        if name not in ("venv", "class_attributes"):
            vars(copied)[name] = copy.deepcopy(value, memo)
    return copied


def _random_action(space: spaces.Space[Any], info: dict[str, Any]) -> Any:
    """One that the environment allows, if it says which it does."""
    mask = info.get("action_mask")
    return space.sample() if mask is None else space.sample(np.asarray(mask, dtype=np.int8))


def _goal_obs(shown: NDArray[Any], desired: NDArray[Any]) -> GoalObs:
    shown, desired = (
        shown[()],
        desired[()],
    )  # of a Discrete space a number, not an array without axes
    return {"observation": shown, "achieved_goal": shown.copy(), "desired_goal": desired.copy()}
