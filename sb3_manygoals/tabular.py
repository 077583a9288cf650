"""Kaelbling's all-goals learner: one lookup table of the values of all actions for all goals, on numbered states."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule

from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapping import (
    GoalAlgorithm,
    goal_trackers,
    is_goal_wrapped,
    wrap_goal_env,
)
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.validation import check_action_space, check_count, check_number


class AllGoalsTable:
    """
    Q(s, a, g) for all states, actions and goals, every state being a goal ("Learning to Achieve Goals", Kaelbling 1993).
    ``values[s, a]`` are those for all goals. They start at zero, so untried actions look best.

    :param n_states: number of states, S, and ``n_actions`` that of actions, A
    :raises ValueError: if a number is not positive
    :raises MemoryError: if S A S numbers of 4 bytes do not fit into the memory that is available
    """

    def __init__(self, n_states: int, n_actions: int) -> None:
        self.n_states, self.n_actions = (
            check_count("n_states", n_states),
            check_count("n_actions", n_actions),
        )
        what = f"a table of {n_states} states, {n_actions} actions and {n_states} goals"
        check_memory(what, {"values": 4 * self.n_states**2 * self.n_actions}, "number less")
        self.values: NDArray[np.float32] = np.zeros(
            (self.n_states, self.n_actions, self.n_states), dtype=np.float32
        )

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

        with the targets of :func:`~sb3_manygoals.losses.pairwise_td_targets`.

        :param states: s, shape (N,), as ``actions``, a, and ``next_states``, s'
        :param learning_rate: step size, in [0, 1]
        :param terminated: whether the environment itself ended, bool, shape (N,); None: nowhere
        :raises ValueError: if there is no such state, action or step size; then nothing has changed
        """
        _check_numbers(self.n_states, states=states, next_states=next_states)
        _check_numbers(self.n_actions, actions=actions)
        check_number("learning_rate", learning_rate, "[0, 1]")
        terminated = np.zeros(len(states), dtype=np.bool_) if terminated is None else terminated
        change = np.empty(self.n_states, dtype=np.float32)
        # one by one, as a later transition builds on the values of an earlier one
        columns = (column.tolist() for column in (states, actions, next_states, terminated))
        for s, a, after, ended in zip(*columns, strict=True):
            if ended:
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

    def greedy(
        self, states: NDArray[np.integer[Any]], goals: NDArray[np.integer[Any]]
    ) -> NDArray[np.int64]:
        """The best action in each state for its goal, the first if several are. A ValueError if there is no such state."""
        _check_numbers(self.n_states, states=states, goals=goals)
        return np.asarray(self.values[states, :, goals].argmax(axis=-1), dtype=np.int64)


class TablePolicy(BasePolicy):
    """Greedy in an :class:`AllGoalsTable`, of Discrete observations and goals. SB3 saves it as a buffer named ``q``."""

    q: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule | None = None,
        **kwargs: Any,
    ) -> None:
        n_actions = check_action_space(action_space)
        super().__init__(observation_space, action_space, **kwargs)
        states = observation_space["observation"]
        assert isinstance(states, spaces.Discrete)
        self.table = AllGoalsTable(int(states.n), n_actions)
        self.register_buffer("q", th.from_numpy(self.table.values))  # the same memory

    def __deepcopy__(self, memo: dict[int, Any]) -> TablePolicy:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        copied.q = th.from_numpy(copied.table.values)  # again the same memory
        return copied

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        return th.from_numpy(
            self.table.greedy(
                observation["observation"].numpy(), observation["desired_goal"].numpy()
            )
        )


class TabularAllGoals(GoalAlgorithm):
    """
    The paper's tabular baseline: all-goals Q-learning in a lookup table, on the numbers of states instead of pictures. Every
    transition updates the values for all goals, once, when it is made. The table grows with the square of the states. Goals
    are pursued as by :class:`~sb3_manygoals.ManyGoalsDQN`, epsilon-greedily. A selector is not told of losses.

    :param policy: "TablePolicy"
    :param env: an environment, its id or a VecEnv, with Discrete observations and actions; with goals or without
    :param learning_rate: step size, or a function of the remaining progress from 1 to 0
    :param gamma: discount factor
    :param exploration_initial_eps: probability of a random action at the start, ``exploration_final_eps`` after
        ``exploration_steps`` environment steps, over which it falls linearly
    :param goal_wrapper_kwargs: arguments of the goal wrapper put around an ``env`` without goals, as ManyGoalsDQN's
    :param seed: of all pseudo-random generators
    :param kwargs: of SB3's BaseAlgorithm: ``verbose``, ``tensorboard_log``, ``stats_window_size``. ``device`` is not used
    :raises TypeError: if observations or actions are not discrete
    :raises ValueError: if a number makes no sense
    :raises MemoryError: if the table does not fit into the memory that is available
    """

    stream = Stream.TABULAR_ALL_GOALS
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"TablePolicy": TablePolicy}
    policy: TablePolicy
    goal_rules: dict[str, Any]  # saved with the model, so that held-out observations stay held out

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
        self.exploration_initial_eps = check_number(
            "exploration_initial_eps", exploration_initial_eps, "[0, 1]"
        )
        self.exploration_final_eps = check_number(
            "exploration_final_eps", exploration_final_eps, "[0, 1]"
        )
        self.exploration_steps = check_count("exploration_steps", exploration_steps)
        settings = dict(goal_wrapper_kwargs or {})
        if env is not None:
            env = _with_room_for_all(maybe_make_env(env, 0), settings)
        settings.pop("goal_buffer", None)  # not to be saved with the model
        self.goal_wrapper_kwargs = copy.deepcopy(settings)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None when a saved model is loaded
            learning_rate,
            buffer_size=1,  # SB3 makes a replay buffer, which stays empty
            learning_starts=0,
            gamma=check_number("gamma", gamma, "[0, 1)"),
            train_freq=1,
            gradient_steps=0,
            support_multi_env=True,
            seed=seed,
            sde_support=False,
            **{**kwargs, "device": "cpu"},
        )
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        for progress in (1.0, 0.0):
            check_number("learning_rate", self.lr_schedule(progress), "[0, 1]")
        if self.env is not None:
            self.goal_rules = self._tracker.goal_buffer.rules

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """As SB3's. An environment without goals is wrapped as before; the known goals, if there are some, stay."""
        if not is_goal_wrapped(env):
            known = (
                GoalBuffer(env.observation_space, **self.goal_rules)
                if self.env is None
                else self._tracker.goal_buffer
            )
            env = _with_room_for_all(env, {**self.goal_wrapper_kwargs, "goal_buffer": known})
        elif self.env is None:
            goal_trackers(self._wrap_env(env))[0].goal_buffer.check_held_out(
                self.goal_rules["held_out"]
            )
        super().set_env(env, force_reset)

    @property
    def table(self) -> AllGoalsTable:
        """The values of all actions for all goals."""
        return self.policy.table

    @property
    def goal_buffer(self) -> GoalBuffer | None:
        """The known goals; None while the model has no environment."""
        return None if self.env is None else self._tracker.goal_buffer

    @property
    def exploration_rate(self) -> float:
        """The probability of a random action now."""
        progress = min(1.0, self.num_timesteps / self.exploration_steps)
        return self.exploration_initial_eps + progress * (
            self.exploration_final_eps - self.exploration_initial_eps
        )

    @property
    def _tracker(self) -> GoalTracker:
        return goal_trackers(self._require_env())[0]

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: Any,
        new_obs: Any,
        reward: Any,
        dones: Any,
        infos: list[dict[str, Any]],
    ) -> None:
        """Learn from the transition, in place of storing it."""
        last_obs: Any = self._last_obs
        next_states = new_obs["observation"].copy()
        for row in np.flatnonzero(dones).tolist():
            next_states[row] = infos[row]["terminal_observation"]["observation"]
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        rate, tracker = self.lr_schedule(max(self._current_progress_remaining, 0.0)), self._tracker
        terminated = np.array([info["env_terminated"] for info in infos])
        rewards = tracker.goal_reward, tracker.step_reward
        self.table.update(
            last_obs["observation"],
            buffer_action,
            next_states,
            rate,
            self.gamma,
            *rewards,
            terminated,
        )
        self._last_obs = new_obs
        self._note_transition()

    def dump_logs(self) -> None:
        """Write log data."""
        self._require_env()
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        self.logger.record("goals/known", len(self._tracker.goal_buffer))
        super().dump_logs()

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> Any:
        """
        As ManyGoalsDQN's, for a dict with "observation" and "desired_goal", the numbers of states, of shape () or (n,). A
        ValueError if ``observation`` is not such a dict, or there is no such state.
        """
        if (
            not isinstance(observation, dict)
            or not {"observation", "desired_goal"} <= observation.keys()
        ):
            raise ValueError(
                f'observation must be a dict with "observation" and "desired_goal", got {observation!r}'
            )
        desired = np.asarray(observation["desired_goal"])
        actions = self.table.greedy(np.asarray(observation["observation"]), desired)
        if observation is not self._last_obs:  # not in training
            self._warn_of_unknown_goal(desired)
        if not deterministic:
            explore = self.rng.random(actions.shape) < self.exploration_rate
            actions = np.where(
                explore, self.rng.integers(self.table.n_actions, size=actions.shape), actions
            )
        return actions[()], state

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, most of which is the table itself: to be written before training goes on"""
        goals = self._tracker.goal_buffer.get_checkpoint_state()
        return {"algorithm": get_algorithm_state(self), "goal_buffer": goals, "rng": self.rng}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """A CheckpointError if the state is of a model that was built in another way; this one may then be partly changed."""
        self._n_moves = None
        set_algorithm_state(self, state["algorithm"])
        self._tracker.goal_buffer.set_checkpoint_state(state["goal_buffer"])
        self.rng = state["rng"]


def _check_numbers(n: int, **numbers: NDArray[Any]) -> None:
    for name, values in numbers.items():
        if values.dtype.kind not in "iu" or (
            values.size and (values.min() < 0 or values.max() >= n)
        ):
            raise ValueError(f"{name} must be whole numbers in [0, {n}), got {values!r}")


def _with_room_for_all(env: GymEnv, settings: dict[str, Any]) -> GymEnv:
    """Pursue goals, any state of ``env`` if not said otherwise."""
    if is_goal_wrapped(env):
        return wrap_goal_env(env, settings)
    if not isinstance(env.observation_space, spaces.Discrete) or env.observation_space.start != 0:
        raise TypeError(
            f"a table needs a Discrete observation space that starts at 0, got {env.observation_space}"
        )
    if settings.get("goal_buffer") is None:
        settings = {
            **settings,
            "goal_buffer": GoalBuffer(env.observation_space, int(env.observation_space.n)),
        }
    return wrap_goal_env(env, settings)
