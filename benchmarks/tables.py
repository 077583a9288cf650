"""Worlds as tables: all states and observations, the outcomes of actions, the best policy, and copies that step by lookup."""

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

MOST_STATES, MOST_SECONDS = 200_000, 120.0
"""A world gets no tables if it has more observations, or takes longer to explore."""

CHUNK = 64
"""Goals planned for at a time, so that the arrays stay in the cache."""

Outcomes = list[tuple[float, Hashable, bool]]
"""Of an action: probability, next state, and whether the episode ends there."""


class NotEnumerable(Exception):
    """A world cannot be written out as tables."""


@dataclass(frozen=True)
class Tables:
    """
    A world of S states, each with its own observation, (S, *space.shape), and A actions. The outcomes of an action in a state
    are those from ``first[state * A + action]`` up to the next: state, probability, and whether the episode ends.
    """

    space: spaces.Space[Any]
    observations: NDArray[Any]
    starts: NDArray[np.float64]
    """The probability that an episode begins in a state, (S,)."""
    n_actions: int
    first: NDArray[np.int64]
    next_states: NDArray[np.int64]
    chances: NDArray[np.float64]
    ended: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if len(self._known) != len(self):
            raise NotEnumerable("it has states that look the same")

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _known(self) -> GoalBuffer:
        known = GoalBuffer(self.space, len(self))
        known.add(self.observations)
        return known

    def states_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The states that are seen so, -1 for unknown observations, (n,)."""
        return self._known.ids(observations)

    def get_checkpoint_state(self) -> None:
        """Nothing in it changes, so that environments that look states up can be saved."""

    def set_checkpoint_state(self, state: None) -> None:
        """Nothing is to be restored."""

    def ceiling(self, horizon: int) -> Ceiling:
        """A function of starts and goals: how probably the best policy gets from one to the other within the horizon."""

        def ceiling(starts: NDArray[Any], goals: NDArray[Any]) -> NDArray[np.float64]:
            states = self.states_of(starts)
            wanted, rows = np.unique(self.states_of(goals), return_inverse=True)
            best = np.empty(len(states))
            for low in range(0, len(wanted), CHUNK):
                here = (rows >= low) & (rows < low + CHUNK)
                best[here] = self._reached(wanted[low : low + CHUNK], horizon)[
                    states[here], rows[here] - low
                ]
            return best

        return ceiling

    def _reached(self, goals: NDArray[np.int64], horizon: int) -> NDArray[np.float32]:
        """The greatest probability to reach each goal from each state, (S, G), by backward induction."""
        from scipy.sparse import csr_array

        columns, shape = np.arange(len(goals)), (len(self.first) - 1, len(self))
        # An end elsewhere than at the goal is worth nothing.
        there = (
            csr_array((self.chances, self.next_states, self.first), shape=shape)[:, goals]
            .toarray()
            .astype(np.float32)
        )
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
    """N copies of a world, by table lookup. Rewards are 0, and no episode is cut short."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - VectorEnv declares it so

    def __init__(self, tables: Tables, num_envs: int) -> None:
        self.tables, self.num_envs = tables, num_envs
        self.single_observation_space, self.single_action_space = (
            tables.space,
            spaces.Discrete(tables.n_actions),
        )
        self.observation_space = batch_space(tables.space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.states: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._over: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)
        self._sums = np.concatenate([[0.0], np.cumsum(tables.chances)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """The seed is of the generator that all copies share."""
        super().reset(seed=seed, options=options)
        self.states, self._over[:] = self._begin(self.num_envs), False
        return self.tables.observations[self.states], {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        table, over = self.tables, self._over
        rows = self.states * table.n_actions + actions
        low, high = table.first[rows], table.first[rows + 1]
        # The cumulated chances of an action's outcomes are an interval, from which a number picks one.
        drawn = self._sums[low] + self.np_random.random(self.num_envs) * (
            self._sums[high] - self._sums[low]
        )
        picked = np.clip(
            np.searchsorted(self._sums, drawn, side="right") - 1, low, np.maximum(high - 1, low)
        )
        picked[over] = 0  # a terminal state has no outcomes
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
        return np.asarray(
            self.np_random.choice(len(self.tables), size=n, p=self.tables.starts), dtype=np.int64
        )


def explore(
    env: gym.Env[Any, Any],
    starts: dict[Hashable, float],
    outcomes: Callable[[Any, int], Outcomes],
    show: Callable[[list[Hashable]], NDArray[Any]],
) -> Tables:
    """Find all states, breadth first, from the probabilities of starts and the outcomes of an action in a state."""
    assert isinstance(env.action_space, spaces.Discrete)
    n_actions = int(env.action_space.n)
    numbers = {state: number for number, state in enumerate(starts)}
    left: dict[Hashable, list[dict[tuple[int, bool], float]]] = {state: [] for state in starts}
    began = time.monotonic()
    waiting = list(starts)
    for state in waiting:  # which grows
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
    """Try every action in a copy of the world at every observation; equal observations are taken for the same state."""
    assert isinstance(env.action_space, spaces.Discrete)
    begun = [np.asarray(env.reset(seed=seed)[0]) for seed in range(5)]
    if not all(np.array_equal(begun[0], other) for other in begun):
        raise NotEnumerable("it begins at random, and has no model in P")
    last, start = int(env.action_space.n) - 1, begun[0].tobytes()
    shown = {start: begun[0]}
    worlds: dict[bytes, gym.Env[Any, Any]] = {start: env}  # at states that are not expanded yet
    expanded: set[bytes] = set()

    def outcomes(state: bytes, action: int) -> Outcomes:
        try:
            world = copy.deepcopy(worlds[state])
        except Exception as error:  # whatever it is
            raise NotEnumerable(f"it has no model in P, and cannot be copied: {error!r}") from error
        before = pickle.dumps(world.unwrapped.np_random.bit_generator.state)
        observation, _, ended, _, _ = world.step(action)
        if pickle.dumps(world.unwrapped.np_random.bit_generator.state) != before:
            raise NotEnumerable("its steps are left to chance, and it has no model in P")
        after = np.asarray(observation).tobytes()
        if after not in shown or not (ended or after in worlds or after in expanded):
            shown[after], worlds[after] = np.asarray(observation), world
        if action == last:
            del worlds[state]
            expanded.add(state)
        return [(1.0, after, bool(ended))]

    def observations_of(states: Any) -> NDArray[Any]:
        return np.stack([shown[state] for state in states])

    return explore(env, {start: 1.0}, outcomes, observations_of)
