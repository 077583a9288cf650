"""Mastery: the share of goals that an agent reaches."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from sb3_manygoals import errors
from sb3_manygoals.action_masks import random_allowed
from sb3_manygoals.goals.buffer import KINDS_OF_GOALS, GoalBuffer
from sb3_manygoals.goals.moved_worlds import refuse_evaluation, worlds_of
from sb3_manygoals.goals.packed_vector_env import as_arrays
from sb3_manygoals.goals.spaces import check_goal_space, check_inside, converted, identical
from sb3_manygoals.packing import PackedSpace, as_packed, unpacked
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import batch_shape, check_count, check_number, how_to_offer_actions
from sb3_manygoals.world import LearnedStates


class GoalReacher(Protocol):
    """
    Anything that acts towards goals: a ManyGoalsDQN, an SB3 model on goal observations, or a policy
    of your own.
    """

    def predict(
        self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        """
        Choose actions towards goals.

        :param observation: ``"observation"``, ``"achieved_goal"`` and ``"desired_goal"``, n rows
            each
        :param deterministic: whether to choose the best actions, without exploring
        :return: actions, (n,) integers, and anything else
        """


Ceiling = Callable[[Any, Any], NDArray[np.float64]]
"""
A function of n starts, which are observations, and of n goals, dicts of arrays in a Dict world. It
returns for each pair the best probability of getting there, shape (n,).
"""


@dataclass(frozen=True)
class MasteryPoint:
    """
    One measurement of a learning curve.

    :param step: number of environment steps since training began
    :param training_seconds: time since training began, without the measurements, in seconds
    :param greedy: mastery of the greedy policy
    :param epsilon: mastery with some random actions
    """

    step: int
    training_seconds: float
    greedy: MasteryResult
    epsilon: MasteryResult


@dataclass(frozen=True)
class MasteryResult:
    """
    The outcome of :func:`evaluate_mastery`.

    :param rate: mastery, the share of episodes that reached their goal
    :param interval: 95% bootstrap interval of the rate, over goals
    :param reached: whether each episode reached its goal, shape (n_goals, episodes_per_goal)
    :param steps: number of steps to the goal, 0 if the start was the goal, -1 if it was not
        reached; int64, shape (n_goals, episodes_per_goal)
    :param ceiling: the best probability of reaching each goal from the same start, shape (n_goals,
        episodes_per_goal); None if it is not known
    :param seed: seed of the bootstrap, also of subsets
    """

    rate: float
    interval: tuple[float, float]
    reached: NDArray[np.bool_] = field(repr=False)
    steps: NDArray[np.int64] = field(repr=False)
    ceiling: NDArray[np.float64] | None = field(default=None, repr=False)
    seed: int = field(default=0, repr=False)

    def subset(self, goals: NDArray[Any]) -> MasteryResult:
        """
        Return the mastery of some of the goals, such as held-out goals.

        :param goals: the goals, a mask of shape (n_goals,) or indexes
        :return: their mastery
        :raises ValueError: if there are none
        """
        ceiling = None if self.ceiling is None else self.ceiling[goals]
        return _result(self.steps[goals], ceiling, self.seed)


def evaluate_mastery(
    model: GoalReacher,
    env: VectorEnv[Any, Any, Any],
    goals: NDArray[Any] | dict[str, NDArray[Any]],
    max_steps: int = 200,
    epsilon: float = 0.0,
    episodes_per_goal: int = 1,
    seed: int = 0,
    action_masks: bool = False,
    ceiling: Ceiling | None = None,
    env_seeds: Sequence[int] | None = None,
    warn: bool = True,
    goal_buffer: GoalBuffer | None = None,
) -> MasteryResult:
    """
    Measure mastery: let the model try every goal from a random start.

    All goals are pursued at once, one in each sub-environment. If there are more episodes than
    sub-environments, they are pursued in rounds. Starts are the environment's own. An episode in
    which the environment ends before the goal is reached has failed.

    :param model: model that acts towards goals; it is asked for deterministic actions
    :param env: vector environment without goals, with arrays or Dicts of arrays as observations and
        discrete actions, in any autoreset mode
    :param goals: observations to reach, shape (n_goals, *observation_space.shape). Where goals are
        of another space, elements of that, shape (n_goals, *goal_space.shape). In a Dict world,
        packed observations, such as ``model.goal_buffer.observations``, or a dict of their parts
    :param max_steps: number of steps in which a goal must be reached; the paper allows 200
    :param epsilon: probability of a random action instead of the model's. Greedy policies circle
        for ever where they are wrong
    :param episodes_per_goal: number of starts tried for each goal
    :param seed: seed of starts, random actions and the bootstrap
    :param action_masks: whether all actions obey ``infos["action_mask"]`` of ``env``, which the
        model's ``predict`` gets as ``action_masks``
    :param ceiling: function that returns how likely the best policy reaches each goal from its
        start, for instance ``gym_twoRooms.oracle.mastery_ceiling(mdp, max_steps)``; None if it is
        not known
    :param env_seeds: the seeds that the environments accept, at least one, for example
        ``range(10)`` if there are ten scenarios. Each round draws them in a new order, again and
        again until each sub-environment has one. None: any numbers below 2**32
    :param warn: whether to warn of goals that the model never met, if it has a ``goal_buffer``;
        held-out goals need not be met
    :param goal_buffer: says what observations achieve and which goals are reached by that, by its
        ``state_key``, ``goal`` and ``reached``. None: that of the model, if it has one; else
        a goal is reached by the same observation, byte for byte. If the model has learned states,
        a goal is reached by an observation that it takes for the same state, and a warning says so
    :return: rate, interval, and the outcome of each episode
    :raises TypeError: if ``model`` has no method ``predict``, ``env`` is no vector environment, its
        observations cannot be goals, its environments are GoalEnvs, or ``goal_buffer`` is no
        GoalBuffer
    :raises ValueError: if goals, env, a reward, a number, or the values or the horizon of
        ``ceiling`` do not fit, ``goal_buffer`` is for other observations, or there are no action
        masks
    """
    env = as_arrays(env)
    known = _known_goals(model)
    rules = _rules(model, env, goal_buffer)
    goals, n_actions = _check(env, goals, known, rules)
    if not callable(getattr(model, "predict", None)):
        raise TypeError(
            "model must have SB3's method predict, for dicts of observation, achieved_goal and "
            f"desired_goal, got {type(model).__name__}"
        )
    if warn:
        _warn_of_unmet(known, goals)
        if goal_buffer is None:
            warn_of_learned_states(
                rules.goal_buffer, "give goal_buffer=GoalBuffer(space, state_key=...)"
            )
    check_count("max_steps", max_steps)
    if ceiling is not None and not callable(ceiling):
        raise TypeError(f"ceiling must be a function of a goal and a start, got {ceiling!r}")
    horizon = getattr(ceiling, "horizon", max_steps)
    if horizon != max_steps:
        raise ValueError(
            f"ceiling must be for max_steps={max_steps} steps, got one for {horizon} steps"
        )
    check_count("episodes_per_goal", episodes_per_goal)
    check_count("seed", seed, at_least=0)
    check_number("epsilon", epsilon, at_least=0, at_most=1)
    check_seeds(env_seeds)
    watch = TerminalWatch()
    n_envs = env.num_envs
    episode_goals = np.repeat(np.arange(len(goals)), episodes_per_goal)
    n_episodes = len(episode_goals)
    steps: NDArray[np.int64] = np.full(n_episodes, -1, dtype=np.int64)
    space = env.single_observation_space
    n_starts = 0 if ceiling is None else n_episodes
    starts = np.empty((n_starts, *(space.shape or ())), dtype=space.dtype)
    for round_number, first in enumerate(range(0, n_episodes, n_envs)):
        rng = np.random.default_rng((seed, round_number, Stream.EVALUATION))
        rows = slice(first, min(first + n_envs, n_episodes))
        n_rows = rows.stop - first
        pursued = goals[episode_goals[rows]]
        # Gymnasium annotates the seed as one integer, but it takes a list too.
        observations, infos = env.reset(
            seed=_seeds(seed, round_number, env_seeds, n_envs)  # type: ignore[arg-type]
        )
        if ceiling is not None:
            starts[rows] = observations[:n_rows]
        active = np.arange(n_rows)
        for step in range(max_steps + 1):
            achieved = rules.achieved(observations[active])
            reached = rules.are_reached(achieved, pursued[active])
            steps[first + active[reached]] = step
            active = active[~reached]
            if step == max_steps or len(active) == 0:
                break
            explore = rng.random(n_envs) < epsilon
            masks: dict[str, Any] = {}
            if action_masks:
                allowed = _allowed_actions(infos, (n_envs, n_actions))
                masks["action_masks"] = allowed[active]
                actions = random_allowed(allowed, rng)
            else:
                actions = rng.integers(n_actions, size=n_envs)
            seen = observations[active]
            query = {
                "observation": seen,
                "achieved_goal": seen if rules.goal_buffer is None else achieved[~reached],
                "desired_goal": pursued[active],
            }
            chosen, _ = model.predict(query, deterministic=True, **masks)
            actions[active] = np.where(explore[active], actions[active], chosen)
            observations, last, ended, infos = _step(env, actions, watch)
            # An episode may end at its goal, which the next observations no longer show.
            over = active[ended[active]]
            reached_last = rules.are_reached(rules.achieved(last[over]), pursued[over])
            steps[first + over[reached_last]] = step + 1
            active = active[~ended[active]]
    steps = steps.reshape(len(goals), episodes_per_goal)
    if ceiling is None:
        return _result(steps, None, seed)
    goal_space = space if rules.goal_buffer is None else rules.goal_buffer.goal_space
    best = ceiling(unpacked(starts, space), unpacked(goals[episode_goals], goal_space))
    if len(best) != n_episodes or not (np.all(best >= 0.0) and np.all(best <= 1.0 + 1e-9)):
        raise ValueError(
            f"ceiling must give {n_episodes} probabilities, one for each episode, got "
            f"{len(best)} numbers from {np.min(best)} to {np.max(best)}"
        )
    return _result(steps, best.reshape(steps.shape), seed)


def _seeds(
    seed: int, round_number: int, env_seeds: Sequence[int] | None, n_envs: int
) -> int | list[int]:
    """
    Return the seeds of the worlds of a round.

    That is one seed to count up from, or one seed for each world, drawn from ``env_seeds``.
    """
    if env_seeds is None:
        # The seed is hashed, so that neither rounds nor evaluations with neighbouring seeds share
        # worlds.
        return int(np.random.SeedSequence((seed, round_number)).generate_state(1)[0])
    rng = np.random.default_rng((seed, round_number, Stream.WORLDS))
    n_seeds = len(env_seeds)
    full_orders = [rng.permutation(n_seeds) for _ in range(n_envs // n_seeds)]
    remainder = rng.choice(n_seeds, n_envs % n_seeds, replace=False)
    order = np.concatenate([*full_orders, remainder])
    return [int(env_seeds[place]) for place in order.tolist()]


def check_seeds(env_seeds: Sequence[int] | None) -> None:
    """
    Raise an error if these are no seeds of environments.

    :param env_seeds: one or more whole numbers, none of them negative; None is always right
    :raises ValueError: if they are something else
    """
    if env_seeds is None:
        return
    if not isinstance(env_seeds, (Sequence, np.ndarray)) or isinstance(env_seeds, (str, bytes)):
        raise ValueError(f"env_seeds must be a sequence of seeds or None, got {env_seeds!r}")
    if len(env_seeds) == 0:
        raise ValueError("env_seeds must have at least one seed, got none")
    # A range may be too long to look at each number.
    seeds = (min(env_seeds), max(env_seeds)) if isinstance(env_seeds, range) else env_seeds
    for seed in seeds:
        check_count("each of env_seeds", seed, at_least=0)


class _Rules:
    """
    What observations achieve, and which goals are reached by that.

    :param goal_buffer: says so by its functions. None: a goal is reached by the same observation
    """

    def __init__(self, goal_buffer: GoalBuffer | None) -> None:
        self.goal_buffer = goal_buffer

    def achieved(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return what n observations achieve."""
        return observations if self.goal_buffer is None else self.goal_buffer.achieved(observations)

    def are_reached(self, achieved: NDArray[Any], pursued: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of n achievements reach the goals beside them."""
        if self.goal_buffer is None:
            return identical(achieved, pursued, achieved.ndim - 1)
        if len(achieved) == 0:
            # A function of the user's need not take an empty batch.
            return np.zeros(0, dtype=np.bool_)
        return self.goal_buffer.is_reached(achieved, pursued)


def _rules(model: Any, env: Any, goal_buffer: GoalBuffer | None) -> _Rules:
    """Return the rules that the user gives, or that a model has learned by."""
    if goal_buffer is not None and not isinstance(goal_buffer, GoalBuffer):
        raise TypeError(f"goal_buffer must be a GoalBuffer or None, got {goal_buffer!r}")
    if not isinstance(env, VectorEnv):
        # This is refused elsewhere.
        return _Rules(None)
    found = goal_buffer_of(model, env.single_observation_space, goal_buffer)
    return _Rules(None if found is None or _says_nothing(found) else found)


def goal_buffer_of(
    model: Any, space: spaces.Space[Any], given: GoalBuffer | None = None
) -> GoalBuffer | None:
    """
    Return the goal buffer that says what observations achieve, and which goals that reaches.

    :param model: model that acts towards goals
    :param space: space of the observations, packed in Dict worlds
    :param given: the goal buffer that the user gives. None: that of the model is taken
    :return: ``given``, or that by which the model has learned. None if there is none, or it is for
        other observations and says nothing but that equal ones reach each other
    :raises ValueError: if it is for other observations
    """
    found = given
    if found is None:
        found = getattr(model, "goal_buffer", None)
        config = getattr(model, "goal_config", None)
        if not isinstance(found, GoalBuffer) and isinstance(config, dict):
            # A model that was loaded without an environment has the functions, but no goals.
            found = GoalBuffer(space, 1, **{name: config.get(name) for name in KINDS_OF_GOALS})
    if not isinstance(found, GoalBuffer):
        return None
    if found.observation_space == space:
        return found
    if given is None and _says_nothing(found):
        return None
    whose = "the model's goal_buffer" if given is None else "goal_buffer"
    raise ValueError(f"{whose} is for observations of {found.observation_space}, env has {space}")


def _says_nothing(goal_buffer: GoalBuffer) -> bool:
    """Return whether a goal is reached by the same observation only, byte for byte."""
    has_functions = any(value is not None for value in goal_buffer.identity.values())
    # Where no observation recurs, those of one learned state reach each other.
    has_states = isinstance(goal_buffer.states, LearnedStates) and goal_buffer.states.is_known
    return not has_functions and not has_states


def _known_goals(model: Any) -> GoalBuffer | None:
    """Return the goals that a model has met; None if it does not say."""
    known = getattr(model, "goal_buffer", None)
    return known if isinstance(known, GoalBuffer) and len(known) > 0 else None


def _warn_of_unmet(known: GoalBuffer | None, goals: NDArray[Any]) -> None:
    """Warn of goals that the model has never met and will not meet."""
    if known is None or (known.shape, known.dtype) != (goals.shape[1:], goals.dtype):
        return
    text = known.describe_unknown(goals)
    if text is not None:
        warnings.warn(text, stacklevel=3)


def warn_of_learned_states(judge: GoalBuffer | None, advice: str) -> None:
    """
    Warn if the model itself judges which observations are the same.

    :param judge: says which goals are reached, or None
    :param advice: what to do if the true state can be told from an observation
    """
    if judge is not None and isinstance(judge.states, LearnedStates):
        warnings.warn(
            "whether a goal is reached is judged by the states that the model has learned. If the "
            f"true state can be told from an observation, {advice}",
            stacklevel=3,
        )


def _allowed_actions(infos: dict[str, Any], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the action masks in the infos, or raise a ValueError if they have another shape."""
    allowed = np.asarray(infos.get("action_mask")).astype(np.bool_)
    if allowed.shape != shape:
        raise ValueError(
            f'action_masks=True needs infos["action_mask"] of shape {shape}, got {allowed.shape}'
        )
    return allowed


def _step(
    env: VectorEnv[Any, Any, Any], actions: NDArray[np.int64], watch: TerminalWatch
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], dict[str, Any]]:
    """
    Act in all environments, and reset those whose episode ended, unless the next step does.

    Return the observations to act on, the observations that the step led to, which episodes have
    ended, and infos.
    """
    with errors.stepping(env):
        observations, _, terminated, truncated, infos = env.step(actions)
    ended = terminated | truncated
    watch.look_at_vector(env, observations, ended, infos)
    mode = env.metadata["autoreset_mode"]
    if not ended.any() or mode is AutoresetMode.NEXT_STEP:
        return observations, observations, ended, infos
    last = observations.copy()
    if mode is AutoresetMode.SAME_STEP:
        last[ended] = [infos["final_obs"][row] for row in np.flatnonzero(ended)]
    else:
        observations, reset_infos = env.reset(options={"reset_mask": ended})
        if "action_mask" in reset_infos and "action_mask" in infos:
            masks = np.where(ended[:, None], reset_infos["action_mask"], infos["action_mask"])
            infos = {"action_mask": masks}
    return observations, last, ended, infos


def _result(
    steps: NDArray[np.int64], ceiling: NDArray[np.float64] | None, seed: int
) -> MasteryResult:
    """Return the mastery that follows from the steps of each episode, with its interval."""
    reached = steps >= 0
    if len(reached) == 0:
        raise ValueError("goals must select at least one of the goals, got none")
    rate = float(reached.mean())
    rates = reached.mean(axis=1)
    interval = (rate, rate)
    # If all goals have the same rate, every resample is the sample.
    if np.ptp(rates) > 0.0:
        # Importing scipy.stats takes longer than all else of this package but torch.
        from scipy import stats

        found = stats.bootstrap(
            (rates,), np.mean, method="percentile", batch=100, rng=np.random.default_rng(seed)
        )
        low, high = found.confidence_interval
        interval = (float(low), float(high))
    return MasteryResult(rate, interval, reached, steps, ceiling, seed)


def _check(
    env: VectorEnv[Any, Any, Any], goals: Any, known: GoalBuffer | None, rules: _Rules
) -> tuple[NDArray[Any], int]:
    """Return the goals as an array and the number of actions, or raise an error."""
    if not isinstance(env, VectorEnv):
        raise TypeError(
            "env must be a gymnasium.vector.VectorEnv, such as gymnasium.make_vec makes, got "
            f"{type(env).__name__}"
        )
    space = env.single_observation_space
    check_goal_space(space)
    goal_space = space if rules.goal_buffer is None else rules.goal_buffer.goal_space
    is_list = not isinstance(goals, Mapping) and np.asarray(goals).dtype == object
    if isinstance(goal_space, PackedSpace) and is_list:
        raise ValueError(
            f"goals must be a dict of {list(goal_space.parts)}, with n rows each, or packed "
            "observations, such as model.goal_buffer.observations, got "
            f"{type(goals).__name__}"
        )
    goals = converted(as_packed(goals, goal_space), goal_space)
    shape = goal_space.shape or ()
    fits = goals.ndim > 0 and len(goals) > 0 and goals.shape[1:] == shape
    if not fits or goals.dtype != goal_space.dtype:
        raise ValueError(
            f"goals must be {goal_space.dtype} of shape {batch_shape(shape)} with n > 0, got "
            f"{goals.dtype} of {goals.shape}"
        )
    if rules.goal_buffer is not None:
        rules.goal_buffer.check_goals(goals, "goals")
    elif known is not None and known.observation_space == space:
        known.check_goals(goals, "goals")
    else:
        check_inside(space, goals, "goals")
    actions = env.single_action_space
    if not isinstance(actions, spaces.Discrete) or actions.start != 0:
        raise ValueError(
            f"env must have discrete actions that start at 0, got {actions}. "
            f"{how_to_offer_actions(actions)}"
        )
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ValueError(f"env.metadata must say its autoreset_mode, got {mode}")
    return goals, int(actions.n)


class MasteryCallback(BaseCallback):
    """
    Measure mastery during training, greedy and at ``epsilon``.

    The rates go into SB3's log as ``mastery/greedy`` and ``mastery/epsilon``. One measurement is
    taken before training and one after. A model that learns under action masks is measured under
    them. At the end of training the callback warns of goals that the model has not met.

    :param env: vector environment without goals, with arrays or Dicts of arrays as observations and
        discrete actions, in any autoreset mode; the model must not learn in it
    :param goals: observations to reach, shape (n_goals, *observation_space.shape). Where goals are
        of another space, elements of that, shape (n_goals, *goal_space.shape). In a Dict world,
        packed observations, such as ``model.goal_buffer.observations``, or a dict of their parts
    :param eval_freq: number of environment steps between measurements
    :param max_steps: number of steps in which a goal must be reached; the paper allows 200
    :param epsilon: probability of a random action in the second of the two measures
    :param on_measure: function called with each measurement; None for no function
    :param seed: seed of starts, random actions and the bootstrap, the same for each measurement
    :param verbose: 1 to print each measurement, 0 to print nothing
    :param env_seeds: the seeds that the environments accept, at least one; None: any numbers below
        2**32
    :param goal_buffer: says what observations achieve and which goals are reached by that, by its
        ``state_key``, ``goal`` and ``reached``. None: that of the model, if it has one; else
        a goal is reached by the same observation, byte for byte
    :raises TypeError: when training begins, if ``env`` is no vector environment, its observations
        cannot be goals, its environments are GoalEnvs, or ``goal_buffer`` is no GoalBuffer
    :raises ValueError: if ``eval_freq`` or ``env_seeds`` do not fit; when training begins, if
        another argument does not fit or the model learns in ``env``
    :ivar training_seconds: time of training so far, without the measurements, in seconds
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        goals: NDArray[Any] | dict[str, NDArray[Any]],
        eval_freq: int,
        max_steps: int = 200,
        epsilon: float = 0.1,
        on_measure: Callable[[MasteryPoint], None] | None = None,
        seed: int = 0,
        verbose: int = 0,
        env_seeds: Sequence[int] | None = None,
        goal_buffer: GoalBuffer | None = None,
    ) -> None:
        super().__init__(verbose)
        self.env = env
        self.goals = goals
        self.eval_freq = check_count("eval_freq", eval_freq)
        self.max_steps = max_steps
        self.epsilon = epsilon
        if on_measure is not None and not callable(on_measure):
            raise TypeError(f"on_measure must be a function or None, got {on_measure!r}")
        self.on_measure = on_measure
        self.seed = seed
        self.env_seeds = env_seeds
        self.goal_buffer = goal_buffer
        check_seeds(env_seeds)
        self.training_seconds = 0.0
        # When the clock was started, or infinity while it stands between trainings.
        self._clock_started = np.inf
        self._last_step = 0
        self._continues_checkpoint = False

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the step of the last measurement, and the seconds of training.

        :return: plain data for :meth:`set_checkpoint_state`
        """
        return {"last_step": self._last_step, "training_seconds": self._seconds_so_far()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Continue from a saved state, without a measurement before training.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self._last_step = state["last_step"]
        self.training_seconds = state["training_seconds"]
        self._continues_checkpoint = True

    def _seconds_so_far(self) -> float:
        return self.training_seconds + max(time.perf_counter() - self._clock_started, 0.0)

    def _init_callback(self) -> None:
        # Packed only once, because a warning may say what is left out.
        self._env = as_arrays(self.env)
        rules = _rules(self.model, self._env, self.goal_buffer)
        self._goals, _ = _check(self._env, self.goals, _known_goals(self.model), rules)
        if worlds_of(self.env) & worlds_of(self.training_env):
            refuse_evaluation(self)

    def _on_training_start(self) -> None:
        """Start the clock, and measure unless that has been done at this step."""
        if self.locals["reset_num_timesteps"] and not self._continues_checkpoint:
            self.training_seconds = 0.0
        self._clock_started = time.perf_counter()
        if not self._continues_checkpoint and not 0 < self._last_step == self.num_timesteps:
            self._measure()
        self._continues_checkpoint = False

    def _on_step(self) -> bool:
        if self.num_timesteps // self.eval_freq > self._last_step // self.eval_freq:
            self._measure()
        return True

    def _on_training_end(self) -> None:
        if self._last_step < self.num_timesteps:
            self._measure()
        self.training_seconds = self._seconds_so_far()
        self._clock_started = np.inf
        _warn_of_unmet(_known_goals(self.model), self._goals)

    def _measure(self) -> None:
        """Measure mastery while the clock stands, and tell the log and ``on_measure``."""
        self.training_seconds = self._seconds_so_far()
        self._last_step = self.num_timesteps
        greedy, epsilon = (
            evaluate_mastery(
                self.model,
                self._env,
                self._goals,
                self.max_steps,
                probability,
                seed=self.seed,
                action_masks=getattr(self.model, "action_masks", False),
                env_seeds=self.env_seeds,
                # Goals may still be met.
                warn=False,
                goal_buffer=self.goal_buffer,
            )
            for probability in (0.0, self.epsilon)
        )
        point = MasteryPoint(self.num_timesteps, self.training_seconds, greedy, epsilon)
        self.logger.record("time/total_timesteps", point.step)
        self.logger.record("mastery/greedy", point.greedy.rate)
        self.logger.record("mastery/epsilon", point.epsilon.rate)
        self.logger.dump(point.step)
        if self.verbose:
            print(
                f"step {point.step}: mastery {point.greedy.rate:.3f} greedy, "
                f"{point.epsilon.rate:.3f} at {self.epsilon}"
            )
        if self.on_measure is not None:
            self.on_measure(point)
        self._clock_started = time.perf_counter()
