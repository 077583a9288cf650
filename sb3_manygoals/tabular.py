"""Kaelbling's all-goals learner: a lookup table of the values of all actions for all goals."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import LinearSchedule

from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.goals.algorithm import GoalAlgorithm
from sb3_manygoals.goals.buffer import KINDS_OF_GOALS
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapping import goal_trackers, is_goal_wrapped, wrap_goal_env
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.validation import (
    check_action_space,
    check_count,
    check_kwargs,
    check_number,
    check_schedule,
    check_seed,
)

_ONLY_STATES = "every goal of a table is a state, use ManyGoalsDQN for other goals"


class AllGoalsTable:
    """
    Q(s, a, g) for all states, actions and goals, every state being a goal ("Learning to Achieve
    Goals", Kaelbling 1993). ``values[s, a]`` are those for all goals. They start at zero, so
    untried actions look best.

    :param n_states: number of states, S
    :param n_actions: number of actions, A
    :raises ValueError: if a number is not positive
    :raises MemoryError: if S A S numbers of 4 bytes do not fit into the memory that is available
    """

    def __init__(self, n_states: int, n_actions: int) -> None:
        self.n_states = check_count("n_states", n_states)
        self.n_actions = check_count("n_actions", n_actions)
        what = f"a table of {n_states} states, {n_actions} actions and {n_states} goals"
        check_memory(what, {"values": 4 * self.n_states**2 * self.n_actions}, "number less")
        shape = (self.n_states, self.n_actions, self.n_states)
        self.values: NDArray[np.float32] = np.zeros(shape, dtype=np.float32)
        """Values Q(s, a, g), shape (S, A, S)."""

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
        taught: NDArray[np.bool_] | None = None,
    ) -> None:
        r"""
        Let N transitions teach all goals, one transition after the other:

        .. math:: Q(s, a, g) \leftarrow Q(s, a, g) + \alpha \,(r_g + \gamma_g \max_{a'} Q(s', a', g)
            - Q(s, a, g))

        with the targets of :func:`~sb3_manygoals.losses.pairwise_td_targets`.

        :param states: s, shape (N,)
        :param actions: a, shape (N,)
        :param next_states: s', shape (N,)
        :param learning_rate: step size, in [0, 1]
        :param gamma: discount factor, in [0, 1)
        :param goal_reward: reward of a transition that reaches its goal
        :param step_reward: reward of every other transition
        :param terminated: whether the environment itself terminated, bool, shape (N,). None:
            nowhere
        :param taught: which goals are taught, bool, shape ``(n_states,)``. None: all
        :raises ValueError: if there is no such state, action, step size or discount factor, or a
            transition lacks one of them. Then nothing has changed
        """
        _check_numbers(self.n_states, states=states, next_states=next_states)
        _check_numbers(self.n_actions, actions=actions)
        check_number("learning_rate", learning_rate, at_least=0, at_most=1)
        check_number("gamma", gamma, at_least=0, below=1)
        if terminated is None:
            terminated = np.zeros(len(states), dtype=np.bool_)
        lengths = [len(column) for column in (states, actions, next_states, terminated)]
        if len(set(lengths)) > 1:
            raise ValueError(
                "states, actions, next_states and terminated must have one length, got "
                f"{', '.join(map(str, lengths))}"
            )
        change = np.empty(self.n_states, dtype=np.float32)
        # One by one, because a later transition builds on the values of an earlier one.
        columns = (column.tolist() for column in (states, actions, next_states, terminated))
        for state, action, next_state, has_terminated in zip(*columns, strict=True):
            if has_terminated:
                change[:] = step_reward / (1.0 - gamma)
            else:
                np.maximum.reduce(self.values[next_state], axis=0, out=change)
                change *= gamma
                change += step_reward
            change[next_state] = goal_reward
            values = self.values[state, action]
            change -= values
            change *= learning_rate
            if taught is not None:
                change *= taught
            values += change

    def greedy(
        self, states: NDArray[np.integer[Any]], goals: NDArray[np.integer[Any]]
    ) -> NDArray[np.int64]:
        """
        Return the best action in each state for its goal, the first one if several are.

        :param states: states, any shape
        :param goals: the goal of each, the same shape
        :return: actions, the same shape
        :raises ValueError: if there is no such state
        """
        _check_numbers(self.n_states, states=states, goals=goals)
        return np.asarray(self.values[states, :, goals].argmax(axis=-1), dtype=np.int64)


class TablePolicy(BasePolicy):
    """
    Greedy in an :class:`AllGoalsTable`, for Discrete observations and goals. SB3 saves it as a
    buffer named ``q``.

    :param observation_space: Dict of observation, achieved_goal and desired_goal, all Discrete
    :param action_space: Discrete
    :param lr_schedule: not used, the algorithm has the learning rate
    :param kwargs: further arguments of SB3's BasePolicy
    :raises TypeError: if actions are not discrete
    """

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
        # The buffer is the same memory.
        self.register_buffer("q", th.from_numpy(self.table.values))

    def __deepcopy__(self, memo: dict[int, Any]) -> TablePolicy:
        """Copy the table, and let the buffer of the copy be the same memory again."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            vars(copied)[name] = copy.deepcopy(value, memo)
        copied.q = th.from_numpy(copied.table.values)
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild a pickled policy, and let the buffer be the table's memory again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.q = th.from_numpy(self.table.values)

    def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
        """Return greedy actions."""
        states = observation["observation"].numpy()
        goals = observation["desired_goal"].numpy()
        return th.from_numpy(self.table.greedy(states, goals))


class TabularAllGoals(GoalAlgorithm):
    """
    The paper's tabular baseline: all-goals Q-learning in a lookup table, on the numbers of states
    instead of pictures. Every transition updates the values for all goals, once, when it is made.
    The table grows with the square of the number of states. Goals are pursued epsilon-greedily. A
    selector is not told of losses.

    :param policy: "TablePolicy"
    :param env: an environment, its id or a VecEnv, with Discrete observations and actions. One that
        has no goal wrapper is wrapped
    :param learning_rate: step size, or a function of the share of training that is left, from 1 to
        0
    :param gamma: discount factor, in [0, 1)
    :param exploration_fraction: share of training over which the exploration rate falls linearly,
        as in SB3's DQN
    :param exploration_initial_eps: probability of a random action at the beginning
    :param exploration_final_eps: probability of a random action at the end
    :param goal_wrapper_kwargs: arguments of the goal wrapper put around an ``env`` that has none
    :param seed: seed of all random generators. None: other random numbers in every run
    :param _init_setup_model: whether to build the table at once
    :param stats_window_size: number of episodes over which the log averages
    :param policy_kwargs: further arguments of the policy. None: its defaults
    :param kwargs: further arguments of SB3's BaseAlgorithm: ``verbose`` and ``tensorboard_log``.
        ``device`` is not used
    :raises TypeError: if observations or actions are not discrete
    :raises ValueError: if an argument is out of its range, or goals are something else than states
    :raises MemoryError: if the table does not fit into the memory that is available
    """

    stream = Stream.TABULAR_ALL_GOALS
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"TablePolicy": TablePolicy}
    policy: TablePolicy
    goal_config: dict[str, Any]
    """Arguments of the goal buffer. They are saved, so that held-out goals stay held out."""

    def __init__(
        self,
        policy: str | type[TablePolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 0.3,
        gamma: float = 0.99,
        exploration_fraction: float = 1 / 3,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.1,
        goal_wrapper_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        _init_setup_model: bool = True,
        stats_window_size: int = 100,
        policy_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.exploration_fraction = exploration_fraction
        self.exploration_initial_eps = exploration_initial_eps
        self.exploration_final_eps = exploration_final_eps
        self.exploration_rate = exploration_initial_eps
        """The probability of a random action now."""
        settings = check_kwargs("goal_wrapper_kwargs", goal_wrapper_kwargs)
        if env is not None:
            env = _with_room_for_all(maybe_make_env(env, 0), settings)
        # The settings are saved with the model, so without the goals.
        settings.pop("goal_buffer", None)
        self.goal_wrapper_kwargs = copy.deepcopy(settings)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None when a saved model is loaded
            check_schedule("learning_rate", learning_rate, at_most=1),
            buffer_size=1,  # SB3 makes a replay buffer, which stays empty
            learning_starts=0,
            gamma=gamma,
            train_freq=1,
            gradient_steps=0,
            support_multi_env=True,
            seed=check_seed(seed),
            sde_support=False,
            policy_kwargs=check_kwargs("policy_kwargs", policy_kwargs),
            stats_window_size=check_count("stats_window_size", stats_window_size),
            **{**kwargs, "device": "cpu"},
        )
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        """Build the table."""
        if "goal_rules" in vars(self):
            raise ValueError(
                "this is a model that an earlier version wrote, which this version cannot read: "
                "train anew, or load it with the version that wrote it"
            )
        # Loading may have changed these.
        check_number("gamma", self.gamma, at_least=0, below=1)
        for name in ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"):
            check_number(name, getattr(self, name), at_least=0, at_most=1)
        super()._setup_model()
        for progress_remaining in (1.0, 0.0):
            learning_rate = self.lr_schedule(progress_remaining)
            check_number("learning_rate", learning_rate, at_least=0, at_most=1)
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        )
        if self.env is not None:
            _check_goals_are_states(self._tracker.goal_buffer)
            self._adopt_wrapper()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Go on in another environment. The goals that are known so far stay known, unless it comes
        with a goal wrapper, which has goals of its own.

        :param env: with a goal wrapper or without, as many environments as before
        :param force_reset: whether to reset it before training goes on
        :raises ValueError: if its goal buffer does not hold out what the model held out, or if the
            model is trained and its goal wrapper gives other rewards
        """
        if not is_goal_wrapped(env):
            known = self.goal_buffer
            if known is None:
                known = GoalBuffer(env.observation_space, **self.goal_config)
            settings = self._kwargs_of_wrapper()
            if self._is_trained:
                settings = self._keep_rewards(settings)
            env = _with_room_for_all(env, {**settings, "goal_buffer": known})
        else:
            tracker = goal_trackers(self._wrap_env(env))[0]
            _check_goals_are_states(tracker.goal_buffer)
            if self.env is None:
                tracker.goal_buffer.check_held_out(self.goal_config["held_out"])
            if self._is_trained:
                self._check_rewards(tracker)
        super().set_env(env, force_reset)
        self._adopt_wrapper()

    @property
    def _is_trained(self) -> bool:
        """Whether the model has learned with its rewards. Values start at zero."""
        # Files of earlier versions do not have the rewards.
        return hasattr(self, "goal_reward") and bool(self.table.values.any())

    def _adopt_wrapper(self) -> None:
        """Note how the goal wrapper's goals, rewards and episodes are."""
        self.goal_config = self._tracker.goal_buffer.config
        self.goal_reward = self._tracker.goal_reward
        self.step_reward = self._tracker.step_reward
        self._note_wrapper()

    @property
    def table(self) -> AllGoalsTable:
        """The values of all actions for all goals."""
        return self.policy.table

    @property
    def goal_buffer(self) -> GoalBuffer | None:
        """The known goals. None while the model has no environment."""
        return None if self.env is None else self._tracker.goal_buffer

    @property
    def _tracker(self) -> GoalTracker:
        """The first tracker, which has the rewards and goals of all."""
        return goal_trackers(self._require_env())[0]

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        """Warn if the model was loaded, because goals are not saved with it."""
        if self.num_timesteps > 0 and self.goal_buffer is not None and len(self.goal_buffer) == 0:
            self._warn_once(
                "forgot",
                "the model was trained, but its goals were not saved with it: only those that are "
                "met again are pursued. An ExactCheckpointCallback keeps them",
            )
        return super()._setup_learn(*args, **kwargs)

    def _on_step(self) -> None:
        """Compute the exploration rate."""
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: Any,
        new_obs: Any,
        reward: Any,
        dones: Any,
        infos: list[dict[str, Any]],
    ) -> None:
        """Learn from the transitions, in place of storing them."""
        last_obs: Any = self._last_obs
        next_states = new_obs["observation"].copy()
        for row in np.flatnonzero(dones).tolist():
            next_states[row] = infos[row]["terminal_observation"]["observation"]
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        self.table.update(
            last_obs["observation"],
            buffer_action,
            next_states,
            learning_rate=self.lr_schedule(max(self._current_progress_remaining, 0.0)),
            gamma=self.gamma,
            goal_reward=self.goal_reward,
            step_reward=self.step_reward,
            terminated=np.array([info["env_terminated"] for info in infos]),
            taught=self._taught_goals(),
        )
        self._last_obs = new_obs
        self._note_transition()

    def _taught_goals(self) -> NDArray[np.bool_] | None:
        """Return which goals are not held out, shape ``(n_states,)``. None: no goal is."""
        goals = self._tracker.goal_buffer
        if not goals.has_held_out:
            return None
        taught = np.ones(self.table.n_states, np.bool_)
        taught[goals.config["held_out"]] = False
        return taught

    def dump_logs(self) -> None:
        """Write a row of the log."""
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
        Return greedy or epsilon-greedy actions.

        :param observation: dict with "observation" and "desired_goal", the numbers of states, of
            shape () or (n,)
        :param state: not used
        :param episode_start: not used
        :param deterministic: True for greedy actions, False for random ones with probability
            ``exploration_rate``
        :return: actions of the same shape, and ``state``
        :raises ValueError: if ``observation`` is not such a dict, or there is no such state
        """
        keys = {"observation", "desired_goal"}
        if not isinstance(observation, dict) or not keys <= observation.keys():
            raise ValueError(
                'observation must be a dict with "observation" and "desired_goal", got '
                f"{observation!r}"
            )
        desired = np.asarray(observation["desired_goal"])
        actions = self.table.greedy(np.asarray(observation["observation"]), desired)
        if observation is not self._last_obs:
            # Somebody else asks than training.
            self._warn_of_unknown_goal(desired)
        if not deterministic:
            explores = self.rng.random(actions.shape) < self.exploration_rate
            random_actions = self.rng.integers(self.table.n_actions, size=actions.shape)
            actions = np.where(explores, random_actions, actions)
        return actions[()], state

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return plain data and arrays, most of them the table itself: write them at once."""
        return {
            "algorithm": get_algorithm_state(self),
            "goal_buffer": self._tracker.goal_buffer.get_checkpoint_state(),
            "exploration_rate": self.exploration_rate,
            "rng": self.rng,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of a model that was built in another way. This model may
            then be partly changed
        """
        self._n_moves = None
        set_algorithm_state(self, state["algorithm"])
        self._tracker.goal_buffer.set_checkpoint_state(state["goal_buffer"])
        self.exploration_rate = state["exploration_rate"]
        self.rng = state["rng"]


def _check_numbers(n: int, **numbers: NDArray[Any]) -> None:
    """Raise a ValueError if these are no whole numbers in [0, n)."""
    for name, values in numbers.items():
        is_whole = values.dtype.kind in "iu"
        if not is_whole or (values.size and (values.min() < 0 or values.max() >= n)):
            raise ValueError(f"{name} must be whole numbers in [0, {n}), got {values!r}")


def _check_goals_are_states(goals: GoalBuffer) -> None:
    """Raise a ValueError if a goal is something else than one number of a state."""
    if not goals.goals_are_states or goals.state_key is not None:
        given = [name for name, value in goals.identity.items() if value is not None]
        raise ValueError(f"the goal buffer of env has {' and '.join(given)}: {_ONLY_STATES}")


def _with_room_for_all(env: GymEnv, settings: dict[str, Any]) -> GymEnv:
    """Return an environment that pursues goals, with room for all states if it is not given."""
    if is_goal_wrapped(env):
        return wrap_goal_env(env, settings)
    space = env.observation_space
    given = [name for name in KINDS_OF_GOALS if settings.get(name) is not None]
    if given:
        raise ValueError(f"goal_wrapper_kwargs has {' and '.join(given)}: {_ONLY_STATES}")
    if not isinstance(space, spaces.Discrete) or space.start != 0:
        raise TypeError(f"a table needs a Discrete observation space that starts at 0, got {space}")
    if settings.get("goal_buffer") is None:
        settings = {**settings, "goal_buffer": GoalBuffer(space, int(space.n))}
    return wrap_goal_env(env, settings)
