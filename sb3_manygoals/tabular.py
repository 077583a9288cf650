"""Kaelbling's all-goals learner: one lookup table of the values of all actions for all goals, on numbered states."""

from __future__ import annotations

import sys
import time
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import LinearSchedule, safe_mean
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.checks import check_count
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.goals.environments import as_goal_vec_env, goal_trackers, is_goal_wrapped, pursue_goals
from sb3_manygoals.memory import check_memory

SelfTabularAllGoals = TypeVar("SelfTabularAllGoals", bound="TabularAllGoals")

_LEARNER_STREAM = 4


class AllGoalsTable:
    """
    Q(s, a, g) for all states, actions and goals, every state being a goal ("Learning to Achieve Goals", Kaelbling 1993).

    ``values[s, a]`` are the values for all goals, next to each other in memory, since a transition changes them all at once.
    They start at zero, which is more than any goal a step away is worth: what was not tried yet looks best.

    :param n_states: number of states, S
    :param n_actions: number of actions, A
    :raises ValueError: if a number is not positive
    :raises MemoryError: if S A S numbers of 4 bytes do not fit into the memory that is available
    """

    def __init__(self, n_states: int, n_actions: int) -> None:
        self.n_states, self.n_actions = check_count("n_states", n_states), check_count("n_actions", n_actions)
        size = self.n_states * self.n_actions * self.n_states * np.dtype(np.float32).itemsize
        check_memory(
            f"a table of {n_states} states, {n_actions} actions and {n_states} goals", {"values": size}, "number less"
        )
        self.values: NDArray[np.float32] = np.zeros((self.n_states, self.n_actions, self.n_states), dtype=np.float32)

    def update(
        self,
        states: NDArray[np.integer[Any]],
        actions: NDArray[np.integer[Any]],
        next_states: NDArray[np.integer[Any]],
        learning_rate: float,
        gamma: float = 0.99,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        terminated: NDArray[np.bool_] | None = None,
    ) -> None:
        r"""
        Let transitions teach all goals, one transition after the other:

        .. math:: Q(s, a, g) \leftarrow Q(s, a, g) + \alpha \,(r_g + \gamma_g \max_{a'} Q(s', a', g) - Q(s, a, g))

        with ``goal_reward`` and 0 for :math:`r_g, \gamma_g` where :math:`s' = g`, else ``step_reward`` and ``gamma``. Where
        the environment itself ended elsewhere, the goal will never be reached, and the target is that of paying
        ``step_reward`` for ever, as in :func:`~sb3_manygoals.losses.pairwise_td_targets`.

        :param states: s, shape (N,)
        :param actions: a, shape (N,)
        :param next_states: s', shape (N,)
        :param learning_rate: step size, in [0, 1]
        :param gamma: discount factor, in [0, 1)
        :param goal_reward: reward of the transition that reaches the goal
        :param step_reward: reward of every other transition
        :param terminated: whether the environment itself ended, bool, shape (N,); None: nowhere
        :raises ValueError: if there is no such state or action; then nothing has changed
        """
        for name, numbers in (("states", states), ("actions", actions), ("next_states", next_states)):
            n = self.n_actions if name == "actions" else self.n_states
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= n):
                raise ValueError(f"{name} must be in [0, {n}), got {numbers.min()} to {numbers.max()}")
        ended = np.zeros(len(states), dtype=np.bool_) if terminated is None else terminated
        change = np.empty(self.n_states, dtype=np.float32)
        # One by one: a transition's values are read from memory faster than those of a batch are gathered, and transitions
        # of one state and action need no care.
        for s, a, after, is_end in zip(states.tolist(), actions.tolist(), next_states.tolist(), ended.tolist(), strict=True):
            if is_end:
                change[:] = step_reward / (1.0 - gamma)
            else:
                np.maximum.reduce(self.values[after], axis=0, out=change)
                change *= gamma
                change += step_reward
            change[after] = goal_reward
            values = self.values[s, a]
            change -= values
            change *= learning_rate
            values += change

    def greedy(self, states: NDArray[np.integer[Any]], goals: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """
        :param states: shape (n,)
        :param goals: the goal of each, shape (n,)
        :return: the best actions, the first where several are, shape (n,)
        """
        return np.asarray(self.values[states, :, goals].argmax(axis=1), dtype=np.int64)


class TablePolicy(BasePolicy):
    """
    Greedy in an :class:`AllGoalsTable`, which it keeps as a buffer named ``q``, for SB3 to save it.

    :param observation_space: Dict with "observation" and "desired_goal", both Discrete
    :param action_space: Discrete
    """

    q: th.Tensor

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Discrete) -> None:
        super().__init__(observation_space, action_space)
        states = observation_space["observation"]
        assert isinstance(states, spaces.Discrete)
        self.table = AllGoalsTable(int(states.n), int(action_space.n))
        self.register_buffer("q", th.from_numpy(self.table.values))  # the same memory

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        states, goals = (observation[name].cpu().numpy() for name in ("observation", "desired_goal"))
        return th.from_numpy(self.table.greedy(states, goals))

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> Any:
        """
        :param observation: dict with "observation" and "desired_goal", the numbers of states, of shape () or (n,)
        :param state: not used, as ``episode_start`` and ``deterministic``: exploration is the algorithm's
        :return: greedy actions, int64, of the same shape, and ``state``
        :raises ValueError: if ``observation`` is not such a dict, or there is no such state
        """
        if not isinstance(observation, dict) or not {"observation", "desired_goal"} <= observation.keys():
            got = list(observation) if isinstance(observation, dict) else type(observation).__name__
            raise ValueError(f'observation must be a dict with "observation" and "desired_goal", got {got}')
        states, goals = np.asarray(observation["observation"]), np.asarray(observation["desired_goal"])
        for name, numbers in (("observation", states), ("desired_goal", goals)):
            if not np.issubdtype(numbers.dtype, np.integer) or np.any((numbers < 0) | (numbers >= self.table.n_states)):
                raise ValueError(f"{name} must be numbers of states in [0, {self.table.n_states}), got {numbers!r}")
        if states.shape != goals.shape:
            raise ValueError(f"observation and desired_goal must have one shape, got {states.shape} and {goals.shape}")
        return self.table.greedy(states.ravel(), goals.ravel()).reshape(states.shape), state


class TabularAllGoals(BaseAlgorithm):
    """
    The paper's tabular baseline: all-goals Q-learning in a lookup table, on the numbers of states instead of pictures. Every
    transition updates the values for all goals, once, when it is made; there is no replay memory.

    Goals are pursued as by :class:`~sb3_manygoals.ManyGoalsDQN`: chosen among the states met so far, for as many steps as the
    goal wrapper gives, epsilon-greedily. A selector is told of episodes, not of losses.
    The table grows with the square of the states.

    :param policy: "TablePolicy"
    :param env: an environment or its id, or a VecEnv, whose observations and actions are Discrete: without goals, or wrapped
        to pursue them
    :param learning_rate: step size, or a function of the remaining progress from 1 to 0
    :param gamma: discount factor
    :param exploration_initial_eps: probability of a random action at the start
    :param exploration_final_eps: the same at the end
    :param exploration_steps: environment steps over which it falls, linearly
    :param goal_wrapper_kwargs: arguments of the goal wrapper put around an ``env`` without goals, as ManyGoalsDQN's
    :param seed: of all pseudo-random generators
    :param _init_setup_model: whether to make the table now
    :param kwargs: of SB3's BaseAlgorithm: ``verbose``, ``tensorboard_log``, ``stats_window_size``. ``device`` is not used
    :raises TypeError: if observations or actions are not discrete
    :raises ValueError: if a number makes no sense
    :raises MemoryError: if the table does not fit into the memory that is available
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"TablePolicy": TablePolicy}
    policy: TablePolicy

    def __init__(
        self,
        policy: str | type[TablePolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 0.3,
        gamma: float = 0.99,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.1,
        exploration_steps: int = 1_000_000,
        goal_wrapper_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        if isinstance(env, str):
            env = gym.make(env)
        if env is not None:
            if not is_goal_wrapped(env):
                env = _with_room_for_all(env, goal_wrapper_kwargs or {})
            elif goal_wrapper_kwargs:
                raise ValueError(f"goal_wrapper_kwargs {sorted(goal_wrapper_kwargs)} given, but env pursues goals already")
        kwargs["device"] = "cpu"
        super().__init__(policy, env, learning_rate, support_multi_env=True, seed=seed, **kwargs)
        self.gamma = gamma
        self.exploration_initial_eps = exploration_initial_eps
        self.exploration_final_eps = exploration_final_eps
        self.exploration_steps = exploration_steps
        self.exploration_rate = exploration_initial_eps
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        for name in ("gamma", "exploration_initial_eps", "exploration_final_eps"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be a number in [0, 1], got {getattr(self, name)!r}")
        if self.gamma == 1.0:
            raise ValueError("gamma must be less than 1: a goal that is never reached would be worth minus infinity")
        if self.exploration_steps < 1:
            raise ValueError(f"exploration_steps must be at least 1, got {self.exploration_steps!r}")
        self._setup_lr_schedule()
        for progress in (1.0, 0.0):
            if not 0.0 <= self.lr_schedule(progress) <= 1.0:
                raise ValueError(f"learning_rate must be in [0, 1], got {self.lr_schedule(progress)!r}")
        self.set_random_seed(self.seed)
        self.exploration_schedule = LinearSchedule(self.exploration_initial_eps, self.exploration_final_eps, 1.0)
        assert isinstance(self.observation_space, spaces.Dict)
        self.policy = self.policy_class(self.observation_space, self.action_space, **self.policy_kwargs)  # type: ignore[assignment]

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_goal_vec_env(_with_room_for_all(env, {}), monitor_wrapper)

    @property
    def table(self) -> AllGoalsTable:
        """The values of all actions for all goals."""
        return self.policy.table

    def set_random_seed(self, seed: int | None = None) -> None:
        """:param seed: of python, numpy, torch, the action space, the environments, and exploration"""
        super().set_random_seed(seed)
        # tagged: environments draw their own numbers with default_rng(seed)
        self.rng = np.random.default_rng(None if seed is None else (seed, _LEARNER_STREAM))

    def learn(
        self: SelfTabularAllGoals,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "TabularAllGoals",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfTabularAllGoals:
        """
        :param total_timesteps: environment steps to take; a float such as ``3e6`` will do
        :param callback: called at every step
        :param log_interval: episodes between two lines of the log
        :param tb_log_name: name of the run in TensorBoard
        :param reset_num_timesteps: False to go on counting, and exploring less, from where the last call ended
        :param progress_bar: show one (needs tqdm and rich)
        :return: the model
        :raises ValueError: if ``total_timesteps`` makes no sense
        """
        if not isinstance(total_timesteps, (int, float, np.number)) or not 1 <= total_timesteps < np.inf:
            raise ValueError(f"total_timesteps must be a finite number, at least 1, got {total_timesteps!r}")
        total, callback = self._setup_learn(int(total_timesteps), callback, reset_num_timesteps, tb_log_name, progress_bar)
        assert self.env is not None
        episodes = goal_trackers(self.env)[0]
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total:
            callback.on_rollout_start()
            last_obs: Any = self._last_obs
            remaining = max(0.0, 1.0 - self.num_timesteps / self.exploration_steps)
            self.exploration_rate = self.exploration_schedule(remaining)
            actions, _ = self.predict(last_obs)
            new_obs, rewards, dones, infos = self.env.step(actions)
            self.num_timesteps += self.n_envs
            callback.update_locals(locals())
            if not callback.on_step():
                break
            assert isinstance(new_obs, dict)
            next_states = new_obs["observation"].copy()
            for row in np.flatnonzero(dones).tolist():
                next_states[row] = infos[row]["terminal_observation"]["observation"]
            self._update_current_progress_remaining(self.num_timesteps, total)
            self.table.update(
                last_obs["observation"],
                actions,
                next_states,
                self.lr_schedule(self._current_progress_remaining),
                self.gamma,
                episodes.goal_reward,
                episodes.step_reward,
                np.array([info["env_terminated"] for info in infos]),
            )
            self._last_obs = new_obs
            if dones.any():
                self._update_info_buffer(infos, dones)
                before, self._episode_num = self._episode_num, self._episode_num + int(dones.sum())
                if self._episode_num // log_interval > before // log_interval:
                    self.dump_logs()
            callback.on_rollout_end()
        callback.on_training_end()
        return self

    def dump_logs(self) -> None:
        """Write log data."""
        assert self.env is not None
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        episodes = list(self.ep_info_buffer or ())
        means = {
            "rollout/ep_rew_mean": [episode["r"] for episode in episodes],
            "rollout/ep_len_mean": [episode["l"] for episode in episodes],
            "rollout/success_rate": list(self.ep_success_buffer or ()),
        }
        log = {
            **{name: safe_mean(values) for name, values in means.items() if values},
            "rollout/exploration_rate": self.exploration_rate,
            "goals/known": len(goal_trackers(self.env)[0].goal_buffer),
            "time/episodes": self._episode_num,
            "time/fps": int((self.num_timesteps - self._num_timesteps_at_start) / elapsed),
            "time/time_elapsed": int(elapsed),
            "time/total_timesteps": self.num_timesteps,
        }
        for name, value in log.items():
            self.logger.record(name, value, exclude="tensorboard" if name.startswith("time/") and name != "time/fps" else None)
        self.logger.dump(step=self.num_timesteps)

    def predict(self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> Any:
        """
        :param observation: dict with "observation" and "desired_goal", the numbers of states, of shape () or (n,)
        :param state: not used, as ``episode_start``
        :param deterministic: True for greedy actions, else epsilon-greedy ones, drawn for each environment by itself
        :return: actions, int64, of the same shape, and ``state``
        :raises ValueError: if ``observation`` is not such a dict, or there is no such state
        """
        actions, state = self.policy.predict(observation, state, episode_start, deterministic)
        if not deterministic:
            explore = self.rng.random(actions.shape) < self.exploration_rate
            actions = np.where(explore, self.rng.integers(self.table.n_actions, size=actions.shape), actions)
        return actions, state

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        As :meth:`ManyGoalsDQN.get_checkpoint_state`; the table is most of it.

        :return: a plain tree, whose arrays are the model's own: to be written before training goes on
        """
        assert self.env is not None, "the model has no environment"
        return {
            "algorithm": get_algorithm_state(self),
            "goal_buffer": goal_trackers(self.env)[0].goal_buffer.get_checkpoint_state(),
            "rng": self.rng,
            "exploration_rate": self.exploration_rate,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`, of a model that was built in the same way
        :raises CheckpointError: if it was built in another way; this one may then be in part what the other was
        """
        assert self.env is not None, "the model has no environment: give it one before"
        set_algorithm_state(self, state["algorithm"])
        try:
            goal_trackers(self.env)[0].goal_buffer.set_checkpoint_state(state["goal_buffer"])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.rng, self.exploration_rate = state["rng"], state["exploration_rate"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy"], []


def _with_room_for_all(env: GymEnv, goal_wrapper_kwargs: dict[str, Any]) -> GymEnv:
    """Pursue goals, any state of ``env`` if not said otherwise."""
    if is_goal_wrapped(env):
        return env
    if not isinstance(env.observation_space, spaces.Discrete) or env.observation_space.start != 0:
        raise TypeError(f"a table needs a Discrete observation space that starts at 0, got {env.observation_space}")
    settings = dict(goal_wrapper_kwargs)
    if settings.get("goal_buffer") is None:
        settings["goal_buffer"] = GoalBuffer(env.observation_space, int(env.observation_space.n))
    return pursue_goals(env, settings)
