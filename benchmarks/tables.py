"""
Worlds as tables.

They hold all states and observations, and the outcomes of actions. The best policy follows from
them, and copies of the world step by lookup.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from sb3_manygoals import GoalBuffer
from sb3_manygoals.evaluation import Ceiling

MOST_STATES = 200_000
"""A world with more observations gets no tables."""

MOST_SECONDS = 120.0
"""A world that takes longer to explore gets no tables."""

CHUNK = 64
"""Goals planned for at a time, so that the arrays stay in the cache."""

Outcomes = list[tuple[float, Hashable, bool]]
"""Outcomes of an action: probability, next state, and whether the episode ends there."""


class NotEnumerable(Exception):
    """Raised when a world cannot be written out as tables."""


@dataclass(frozen=True)
class Tables:
    """
    A world of S states, each with its own observation, and A actions.

    An action in a state has the outcomes from ``first[state * A + action]`` up to the next entry of
    ``first``, in the arrays of K outcomes.
    """

    space: spaces.Space[Any]
    """Space of observations."""
    observations: NDArray[Any]
    """The observation of each state, (S, *space.shape)."""
    starts: NDArray[np.float64]
    """The probability that an episode begins in a state, (S,)."""
    n_actions: int
    """Number of actions."""
    first: NDArray[np.int64]
    """The first outcome of each action in each state, and the number of outcomes, (S * A + 1,)."""
    next_states: NDArray[np.int64]
    """The state to which an outcome leads, (K,)."""
    chances: NDArray[np.float64]
    """The probability of an outcome, (K,)."""
    ended: NDArray[np.bool_]
    """Whether the episode ends with an outcome, (K,)."""

    def __post_init__(self) -> None:
        if len(self._known) != len(self):
            raise NotEnumerable("it has states that look the same")

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _known(self) -> GoalBuffer:
        """A buffer in which each observation has the id of its state."""
        known = GoalBuffer(self.space, len(self))
        known.add(self.observations)
        return known

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Look up the states of observations.

        :param observations: shape (n, *space.shape)
        :return: state numbers, shape (n,); -1 for unknown observations
        """
        return self._known.ids(observations)

    def get_checkpoint_state(self) -> None:
        """Return nothing, as tables do not change. Environments that have them can be saved."""

    def set_checkpoint_state(self, state: None) -> None:
        """
        Restore nothing.

        :param state: None
        """

    def ceiling(self, horizon: int) -> Ceiling:
        """
        Return a function that tells what the best possible policy reaches.

        :param horizon: steps within which a goal must be reached
        :return: takes starts and goals as observations, shape (n, *space.shape), and returns the
            probability that the best policy gets from each start to its goal, shape (n,)
        """

        def ceiling(starts: NDArray[Any], goals: NDArray[Any]) -> NDArray[np.float64]:
            """Look up the best probability of each pair, from a plan for each different goal."""
            states = self.states_of(starts)
            wanted, rows = np.unique(self.states_of(goals), return_inverse=True)
            best = np.empty(len(states))
            for low in range(0, len(wanted), CHUNK):
                here = (rows >= low) & (rows < low + CHUNK)
                reached = self._reached(wanted[low : low + CHUNK], horizon)
                best[here] = reached[states[here], rows[here] - low]
            return best

        return ceiling

    def _reached(self, goals: NDArray[np.int64], horizon: int) -> NDArray[np.float32]:
        """Return the greatest probability to reach each goal from each state, (S, G)."""
        from scipy.sparse import csr_array

        columns = np.arange(len(goals))
        shape = (len(self.first) - 1, len(self))
        arriving = csr_array((self.chances, self.next_states, self.first), shape=shape)
        # An end elsewhere than at the goal is worth nothing.
        there = arriving[:, goals].toarray().astype(np.float32)
        onward = csr_array(
            (self.chances * ~self.ended, self.next_states, self.first),
            shape=shape,
            dtype=np.float32,
        )
        there -= onward[:, goals].toarray()
        reached = np.zeros((len(self), len(goals)), dtype=np.float32)
        reached[goals, columns] = 1.0
        for _ in range(horizon):
            before = reached
            options = onward @ before
            options += there
            reached = options.reshape(len(self), self.n_actions, len(goals)).max(axis=1)
            np.minimum(reached, 1.0, out=reached)
            reached[goals, columns] = 1.0
            if np.abs(reached - before).max() <= 1e-7:
                break
        return reached


class TabularVectorEnv(gym.vector.VectorEnv[NDArray[Any], NDArray[np.int64], NDArray[Any]]):
    """
    Copies of a world that step by table lookup. Rewards are 0, and no episode is cut short.

    :param tables: the world
    :param num_envs: number of copies
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as VectorEnv has it

    def __init__(self, tables: Tables, num_envs: int) -> None:
        self.tables = tables
        self.num_envs = num_envs
        self.single_observation_space = tables.space
        self.single_action_space = spaces.Discrete(tables.n_actions)
        self.observation_space = batch_space(tables.space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._over: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self._sums = np.concatenate([[0.0], np.cumsum(tables.chances)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """
        Begin an episode in each copy.

        :param seed: seed of the generator that all copies share; by default it goes on
        :param options: have no effect
        :return: first observations, shape (num_envs, ...), and an empty dict
        """
        super().reset(seed=seed, options=options)
        self.states = self._begin(self.num_envs)
        self._over[:] = False
        return self.tables.observations[self.states], {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """
        Take a step in each copy. One that ended with the last step begins a new episode.

        :param actions: shape (num_envs,)
        :return: observations, rewards of 0, whether episodes have ended, whether they were cut
            short (never), each of shape (num_envs, ...), and an empty dict
        """
        table = self.tables
        over = self._over
        rows = self.states * table.n_actions + actions
        low = table.first[rows]
        high = table.first[rows + 1]
        # The cumulated chances of an action's outcomes are an interval: a number in it picks one.
        width = self._sums[high] - self._sums[low]
        drawn = self._sums[low] + self.np_random.random(self.num_envs) * width
        picked = np.searchsorted(self._sums, drawn, side="right") - 1
        picked = np.clip(picked, low, np.maximum(high - 1, low))
        # A terminal state has no outcomes; any will do, as the copy begins anew.
        picked[over] = 0
        self.states = table.next_states[picked]
        self._over = table.ended[picked] & ~over
        self.states[over] = self._begin(int(over.sum()))
        nothing = np.zeros(self.num_envs, dtype=np.bool_)
        return (
            table.observations[self.states],
            np.zeros(self.num_envs),
            self._over.copy(),
            nothing,
            {},
        )

    def _begin(self, n: int) -> NDArray[np.int64]:
        """Draw the first states of n episodes."""
        drawn = self.np_random.choice(len(self.tables), size=n, p=self.tables.starts)
        return np.asarray(drawn, dtype=np.int64)


class TrainingVectorEnv(TabularVectorEnv):
    """
    Copies of a world to train in. They do not reset themselves when episodes end.

    :param tables: the world
    :param num_envs: number of copies
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 - as VectorEnv has it
    copy = True
    """Observations are new arrays, so that nobody needs to copy them."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """
        Begin an episode in all copies, or in some of them.

        :param seed: seed of the generator that all copies share; by default it goes on
        :param options: may have "reset_mask", which copies begin anew, shape (num_envs,), bool; by
            default all do
        :return: observations, shape (num_envs, ...), and an empty dict
        """
        states_before = self.states
        over_before = self._over.copy()
        super().reset(seed=seed)
        begins = (options or {}).get("reset_mask", True)
        self.states = np.where(begins, self.states, states_before)
        self._over = np.where(begins, False, over_before)
        return self.tables.observations[self.states], {}


def explore(
    env: gym.Env[Any, Any],
    starts: dict[Hashable, float],
    outcomes: Callable[[Any, int], Outcomes],
    show: Callable[[list[Hashable]], NDArray[Any]],
) -> Tables:
    """
    Find all states, breadth first.

    :param env: the world, for its spaces
    :param starts: the states with which episodes begin, with their probabilities
    :param outcomes: function from a state and an action to the outcomes
    :param show: function from S states to their observations, shape (S, ...)
    :return: the world as tables, its states numbered in the order in which they were found
    :raises NotEnumerable: if there are too many states, it takes too long, or states look the same
    """
    assert isinstance(env.action_space, spaces.Discrete)
    n_actions = int(env.action_space.n)
    numbers = {state: number for number, state in enumerate(starts)}
    left: dict[Hashable, list[dict[tuple[int, bool], float]]] = {state: [] for state in starts}
    began = time.monotonic()
    waiting = list(starts)
    # The list grows while it is walked through.
    for state in waiting:
        for action in range(n_actions):
            merged: dict[tuple[int, bool], float] = {}
            for chance, after, ended in outcomes(state, action):
                if chance > 0.0:
                    key = numbers.setdefault(after, len(numbers)), ended
                    merged[key] = merged.get(key, 0.0) + chance
                    if not ended and after not in left:
                        left[after] = []
                        waiting.append(after)
            left[state].append(merged)
        seconds = time.monotonic() - began
        if len(numbers) > MOST_STATES or seconds > MOST_SECONDS:
            raise NotEnumerable(
                f"{len(numbers)} observations were met in {seconds:.0f} s, and there are more"
            )
    # A state in which episodes only end has no outcomes.
    rows = [merged for state in numbers for merged in left.get(state) or [{}] * n_actions]
    found = [(*key, merged[key]) for merged in rows for key in sorted(merged)]
    return Tables(
        env.observation_space,
        show(list(numbers)),
        np.array([starts.get(state, 0.0) for state in numbers]),
        n_actions,
        np.concatenate([[0], np.cumsum([len(merged) for merged in rows])]),
        np.array([after for after, _, _ in found], dtype=np.int64),
        np.array([chance for _, _, chance in found]),
        np.array([ended for _, ended, _ in found], dtype=np.bool_),
    )


def explore_by_copies(env: gym.Env[Any, Any]) -> Tables:
    """
    Try every action in a copy of the world at every observation.

    Equal observations are taken for the same state.

    :param env: the world
    :return: the world as tables
    :raises NotEnumerable: if the world begins or steps at random, cannot be copied, or is too large
    """
    assert isinstance(env.action_space, spaces.Discrete)
    begun = [np.asarray(env.reset(seed=seed)[0]) for seed in range(5)]
    if not all(np.array_equal(begun[0], other) for other in begun):
        raise NotEnumerable("it begins at random, and has no model in P")
    last = int(env.action_space.n) - 1
    start = begun[0].tobytes()
    shown = {start: begun[0]}
    # Copies of the world, each at a state that is not expanded yet.
    worlds: dict[bytes, gym.Env[Any, Any]] = {start: env}
    expanded: set[bytes] = set()

    def outcomes(state: bytes, action: int) -> Outcomes:
        """Take a step in a copy of the world at this state."""
        try:
            world = copy.deepcopy(worlds[state])
        except Exception as error:  # A world may raise any error.
            raise NotEnumerable(f"it has no model in P, and cannot be copied: {error!r}") from error
        before = pickle.dumps(world.unwrapped.np_random.bit_generator.state)
        observation, _, ended, _, _ = world.step(action)
        if pickle.dumps(world.unwrapped.np_random.bit_generator.state) != before:
            raise NotEnumerable("its steps are left to chance, and it has no model in P")
        after = np.asarray(observation).tobytes()
        if after not in shown or not (ended or after in worlds or after in expanded):
            shown[after] = np.asarray(observation)
            worlds[after] = world
        if action == last:
            del worlds[state]
            expanded.add(state)
        return [(1.0, after, bool(ended))]

    def observations_of(states: Any) -> NDArray[Any]:
        return np.stack([shown[state] for state in states])

    return explore(env, {start: 1.0}, outcomes, observations_of)
