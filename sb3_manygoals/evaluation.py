"""Mastery: for how many goals does the agent get there?"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from sb3_manygoals import errors
from sb3_manygoals.action_masks import random_allowed
from sb3_manygoals.goals.buffer import GoalBuffer, check_goal_space, check_inside, identical
from sb3_manygoals.goals.wrapping import refuse_evaluation, worlds_of
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_count, check_number


class GoalReacher(Protocol):
    """Whatever acts towards goals: a ManyGoalsDQN, an SB3 model on goal observations, or a plan of one's own."""

    def predict(
        self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        """Takes "observation", "achieved_goal" and "desired_goal" of n rows. Returns actions, shape (n,), and anything."""


Ceiling = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]]
"""Takes starts and goals, n observations each, and gives for each pair the best probability of getting there, shape (n,)."""


@dataclass(frozen=True)
class MasteryPoint:
    """One measurement of a learning curve: mastery of the greedy policy, and with some random actions."""

    step: int
    training_seconds: float
    """Since training began, less the time the measurements took."""
    greedy: MasteryResult
    epsilon: MasteryResult


@dataclass(frozen=True)
class MasteryResult:
    """
    What :func:`evaluate_mastery` found.

    :ivar rate: mastery, the share of episodes that reached their goal, with a 95% bootstrap ``interval`` over goals
    :ivar reached: whether each episode reached its goal, shape (n_goals, episodes_per_goal)
    :ivar steps: steps it took, 0 if the start was the goal, -1 if it was not reached; of the same shape
    :ivar ceiling: the best probability of reaching each goal from the same start, of the same shape, or None
    :ivar seed: of the bootstrap, also of subsets
    """

    rate: float
    interval: tuple[float, float]
    reached: NDArray[np.bool_] = field(repr=False)
    steps: NDArray[np.int64] = field(repr=False)
    ceiling: NDArray[np.float64] | None = field(default=None, repr=False)
    seed: int = field(default=0, repr=False)

    def subset(self, goals: NDArray[Any]) -> MasteryResult:
        """Mastery of some of the goals, such as those held out: a mask or indexes. A ValueError if there are none."""
        ceiling = None if self.ceiling is None else self.ceiling[goals]
        return _result(self.steps[goals], ceiling, self.seed)


def evaluate_mastery(
    model: GoalReacher,
    env: VectorEnv[Any, Any, Any],
    goals: NDArray[Any],
    max_steps: int = 200,
    epsilon: float = 0.0,
    episodes_per_goal: int = 1,
    seed: int = 0,
    action_masks: bool = False,
    ceiling: Ceiling | None = None,
    env_seeds: Sequence[int] | None = None,
    warn: bool = True,
) -> MasteryResult:
    """
    Let the model try every goal from a random start: does it get there within ``max_steps`` (the paper: 200)?

    All goals are pursued at once, one in each sub-environment; with more episodes than sub-environments, in rounds. Starts are
    the environment's own. An episode in which the environment ends before its goal has failed.

    :param model: acts towards goals; asked for deterministic actions
    :param env: vector environment without goals, of single arrays and discrete actions, in any autoreset mode
    :param goals: observations to reach, shape (n_goals, *observation_space.shape)
    :param epsilon: probability of a random action instead of the model's: greedy policies circle for ever where they are wrong
    :param episodes_per_goal: starts tried for each goal
    :param seed: of starts, random actions, and the bootstrap
    :param action_masks: whether all actions obey ``infos["action_mask"]`` of ``env``, which the model's ``predict`` gets
    :param ceiling: how likely the best policy reaches each goal from its start, for instance
        ``gym_twoRooms.oracle.mastery_ceiling(mdp, max_steps)``; None where it is not known
    :param env_seeds: the seeds that the environments accept, at least one, for example
        ``range(10)`` where there are ten scenarios. Each round draws them in a new order, again and
        again until each sub-environment has one. None: any numbers below 2**32
    :param warn: whether to warn of goals that the model never met, if it has a ``goal_buffer``;
        held-out ones need not be met
    :return: rate, interval, and the outcome of each episode
    :raises TypeError: if ``env`` is no vector environment, or its observations cannot be goals
    :raises ValueError: if goals, env, a reward, a number or what ``ceiling`` gives do not fit, or there are no masks to act
        under
    """
    known = _known_goals(model)
    goals, n_actions = _check(env, goals, known)
    if warn:
        _warn_of_unmet(known, goals)
    check_count("max_steps", max_steps)
    check_count("episodes_per_goal", episodes_per_goal)
    check_count("seed", seed, least=0)
    check_number("epsilon", epsilon, "[0, 1]")
    check_seeds(env_seeds)
    watch = TerminalWatch()
    n_envs, episode_goals = env.num_envs, np.repeat(np.arange(len(goals)), episodes_per_goal)
    steps: NDArray[np.int64] = np.full(len(episode_goals), -1, dtype=np.int64)
    starts = np.empty(
        (0 if ceiling is None else len(episode_goals), *goals.shape[1:]), dtype=goals.dtype
    )
    for round_, first in enumerate(range(0, len(episode_goals), n_envs)):
        rng = np.random.default_rng((seed, round_, Stream.EVALUATION))
        rows = slice(first, min(first + n_envs, len(episode_goals)))
        n = rows.stop - first
        pursued = goals[episode_goals[rows]]
        observations, infos = env.reset(
            seed=_seeds(seed, round_, env_seeds, n_envs)  # type: ignore[arg-type]  # or a list
        )
        if ceiling is not None:
            starts[rows] = observations[:n]
        active = np.arange(n)
        for step in range(max_steps + 1):
            there = identical(observations[active], pursued[active], goals.ndim - 1)
            steps[first + active[there]] = step
            active = active[~there]
            if step == max_steps or len(active) == 0:
                break
            explore = rng.random(n_envs) < epsilon
            allowed = (
                np.asarray(infos.get("action_mask")).astype(np.bool_) if action_masks else None
            )
            if allowed is not None and allowed.shape != (n_envs, n_actions):
                expected = f'infos["action_mask"] of shape {(n_envs, n_actions)}'
                raise ValueError(f"action_masks=True needs {expected}, got {allowed.shape}")
            actions = (
                rng.integers(n_actions, size=n_envs)
                if allowed is None
                else random_allowed(allowed, rng)
            )
            shown, masked = (
                observations[active],
                {} if allowed is None else {"action_masks": allowed[active]},
            )
            query = {"observation": shown, "achieved_goal": shown, "desired_goal": pursued[active]}
            chosen, _ = model.predict(query, deterministic=True, **masked)
            actions[active] = np.where(explore[active], actions[active], chosen)
            observations, last, ended, infos = _step(env, actions, watch)
            gone = active[ended[active]]
            steps[first + gone[identical(last[gone], pursued[gone], goals.ndim - 1)]] = step + 1
            active = active[~ended[active]]
    steps = steps.reshape(len(goals), episodes_per_goal)
    if ceiling is None:
        return _result(steps, None, seed)
    best = ceiling(starts, goals[episode_goals])
    if len(best) != steps.size or not (np.all(best >= 0.0) and np.all(best <= 1.0 + 1e-9)):
        got = f"{len(best)} numbers from {np.min(best)} to {np.max(best)}"
        raise ValueError(
            f"ceiling must give {steps.size} probabilities, one for each episode, got {got}"
        )
    return _result(steps, best.reshape(steps.shape), seed)


def _seeds(seed: int, round_: int, env_seeds: Sequence[int] | None, n_envs: int) -> int | list[int]:
    """
    Those of the worlds of a round: one to count up from, or one for each, drawn from those given.
    """
    if env_seeds is None:
        # hashed, so that neither rounds nor evaluations with neighbouring seeds share worlds
        return int(np.random.SeedSequence((seed, round_)).generate_state(1)[0])
    rng = np.random.default_rng((seed, round_, Stream.WORLDS))
    n_seeds = len(env_seeds)
    whole = [rng.permutation(n_seeds) for _ in range(n_envs // n_seeds)]
    order = np.concatenate([*whole, rng.choice(n_seeds, n_envs % n_seeds, replace=False)])
    return [int(env_seeds[place]) for place in order.tolist()]


def check_seeds(env_seeds: Sequence[int] | None) -> None:
    """
    Raise a ValueError unless they are None or one or more whole numbers, none of them negative.
    """
    if env_seeds is None:
        return
    if not isinstance(env_seeds, (Sequence, np.ndarray)) or isinstance(env_seeds, (str, bytes)):
        raise ValueError(f"env_seeds must be a sequence of seeds or None, got {env_seeds!r}")
    if len(env_seeds) == 0:
        raise ValueError("env_seeds must have at least one seed, got none")
    for one in env_seeds if not isinstance(env_seeds, range) else (min(env_seeds), max(env_seeds)):
        check_count("each of env_seeds", one, least=0)


def _known_goals(model: Any) -> GoalBuffer | None:
    """Those that a model has met, if it says so and can say which."""
    known = getattr(model, "goal_buffer", None)
    return known if isinstance(known, GoalBuffer) and len(known) > 0 else None


def _warn_of_unmet(known: GoalBuffer | None, goals: NDArray[Any], stacklevel: int = 3) -> None:
    """Say which of the goals measured the model has never met, and is not to meet."""
    if known is None or (known.shape, known.dtype) != (goals.shape[1:], goals.dtype):
        return
    text = known.describe_unknown(goals)
    if text is not None:
        warnings.warn(text, stacklevel=stacklevel)


def _step(
    env: VectorEnv[Any, Any, Any], actions: NDArray[np.int64], watch: TerminalWatch
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], dict[str, Any]]:
    """:return: observations to act on, those that the step led to, which episodes have ended, and infos"""
    with errors.stepping(env):
        observations, _, terminated, truncated, infos = env.step(actions)
    watch.look_at_vector(env, observations, terminated | truncated, infos)
    last, ended, mode = observations, terminated | truncated, env.metadata["autoreset_mode"]
    if not ended.any() or mode is AutoresetMode.NEXT_STEP:
        return observations, last, ended, infos
    last = observations.copy()
    if mode is AutoresetMode.SAME_STEP:
        last[ended] = [infos["final_obs"][row] for row in np.flatnonzero(ended)]
    else:
        observations, reset_infos = env.reset(options={"reset_mask": ended})
        if "action_mask" in reset_infos:
            infos = {
                "action_mask": np.where(
                    ended[:, None], reset_infos["action_mask"], infos["action_mask"]
                )
            }
    return observations, last, ended, infos


def _result(
    steps: NDArray[np.int64], ceiling: NDArray[np.float64] | None, seed: int
) -> MasteryResult:
    reached = steps >= 0
    if len(reached) == 0:
        raise ValueError("goals must be at least one of the goals, got none")
    rate, rates = float(reached.mean()), reached.mean(axis=1)
    low = high = rate
    if np.ptp(rates) > 0.0:  # otherwise every resample is the sample
        from scipy import stats  # importing it takes longer than all else of this package but torch

        found = stats.bootstrap(
            (rates,), np.mean, method="percentile", batch=100, rng=np.random.default_rng(seed)
        )
        low, high = found.confidence_interval
    return MasteryResult(rate, (float(low), float(high)), reached, steps, ceiling, seed)


def _check(
    env: VectorEnv[Any, Any, Any], goals: NDArray[Any], known: GoalBuffer | None = None
) -> tuple[NDArray[Any], int]:
    """The goals as an array, and the number of actions."""
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"env must be a gymnasium.vector.VectorEnv, as of gymnasium.make_vec, got {type(env).__name__}"
        )
    space = env.single_observation_space
    check_goal_space(space)
    goals = np.asarray(goals)
    if (
        goals.shape[1:] != space.shape
        or goals.ndim == 0
        or len(goals) == 0
        or goals.dtype != space.dtype
    ):
        expected = f"{space.dtype} of shape (n, *{space.shape}) with n > 0"
        raise ValueError(f"goals must be {expected}, got {goals.dtype} of {goals.shape}")
    if known is not None and known.observation_space == space:
        known.check_goals(goals, "goals")
    else:
        check_inside(space, goals, "goals")
    if (
        not isinstance(env.single_action_space, spaces.Discrete)
        or env.single_action_space.start != 0
    ):
        raise ValueError(
            f"env must have discrete actions that start at 0, got {env.single_action_space}"
        )
    if not isinstance(env.metadata.get("autoreset_mode"), AutoresetMode):
        raise ValueError(
            f"env.metadata must say its autoreset_mode, got {env.metadata.get('autoreset_mode')}"
        )
    return goals, int(env.single_action_space.n)


class MasteryCallback(BaseCallback):
    """
    Measure mastery as training goes on, greedy and at ``epsilon``, into SB3's log as ``mastery/greedy`` and
    ``mastery/epsilon``. A model that learns under action masks is measured under them.

    :param env: as for :func:`evaluate_mastery`, like ``goals``, ``max_steps``, ``epsilon`` and ``seed``, the same each time
        It must not be the one that the model learns in
    :param eval_freq: environment steps between measurements; one more is taken before training and one after
    :param on_measure: called with each measurement, or None
    :param verbose: 1 to print each measurement
    :param env_seeds: as for :func:`evaluate_mastery`
    :raises TypeError: as :func:`evaluate_mastery`
    :raises ValueError: if ``eval_freq`` is not positive, another argument does not fit, or training
        begins in ``env``

    Goals that the model has not met by the end of training are warned of.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        goals: NDArray[Any],
        eval_freq: int,
        max_steps: int = 200,
        epsilon: float = 0.1,
        on_measure: Callable[[MasteryPoint], None] | None = None,
        seed: int = 0,
        verbose: int = 0,
        env_seeds: Sequence[int] | None = None,
    ) -> None:
        super().__init__(verbose)
        self.env, self.goals, self.eval_freq = env, goals, check_count("eval_freq", eval_freq)
        self.env_seeds = env_seeds
        check_seeds(env_seeds)
        self.max_steps, self.epsilon, self.on_measure, self.seed = (
            max_steps,
            epsilon,
            on_measure,
            seed,
        )
        self.training_seconds, self._resumed = 0.0, np.inf  # the clock stands between trainings
        self._last_step, self._goes_on = 0, False

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: when it measured last, and the seconds of training"""
        return {"last_step": self._last_step, "training_seconds": self._seconds_so_far()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`; training goes on without a measurement before it"""
        self._last_step, self.training_seconds, self._goes_on = (
            state["last_step"],
            state["training_seconds"],
            True,
        )

    def _seconds_so_far(self) -> float:
        return self.training_seconds + max(time.perf_counter() - self._resumed, 0.0)

    def _init_callback(self) -> None:
        _check(self.env, self.goals, _known_goals(self.model))
        if worlds_of(self.env) & worlds_of(self.training_env):
            refuse_evaluation(self)

    def _on_training_start(self) -> None:
        if self.locals["reset_num_timesteps"] and not self._goes_on:
            self.training_seconds = 0.0
        self._resumed = time.perf_counter()
        if not self._goes_on and not 0 < self._last_step == self.num_timesteps:
            self._measure()
        self._goes_on = False

    def _on_step(self) -> bool:
        if self.num_timesteps // self.eval_freq > self._last_step // self.eval_freq:
            self._measure()
        return True

    def _on_training_end(self) -> None:
        if self._last_step < self.num_timesteps:
            self._measure()
        self.training_seconds, self._resumed = self._seconds_so_far(), np.inf
        _warn_of_unmet(_known_goals(self.model), np.asarray(self.goals))

    def _measure(self) -> None:
        self.training_seconds = self._seconds_so_far()
        self._last_step = self.num_timesteps
        settings: dict[str, Any] = {
            "seed": self.seed,
            "action_masks": getattr(self.model, "action_masks", False),
            "env_seeds": self.env_seeds,
            "warn": False,  # goals may still be met
        }
        rounds = (self.model, self.env, self.goals, self.max_steps)
        results = (
            evaluate_mastery(*rounds, epsilon, **settings) for epsilon in (0.0, self.epsilon)
        )
        point = MasteryPoint(self.num_timesteps, self.training_seconds, *results)
        self.logger.record("time/total_timesteps", point.step)
        self.logger.record("mastery/greedy", point.greedy.rate)
        self.logger.record("mastery/epsilon", point.epsilon.rate)
        self.logger.dump(point.step)
        if self.verbose:
            print(
                f"step {point.step}: mastery {point.greedy.rate:.3f} greedy, {point.epsilon.rate:.3f} at {self.epsilon}"
            )
        if self.on_measure is not None:
            self.on_measure(point)
        self._resumed = time.perf_counter()
