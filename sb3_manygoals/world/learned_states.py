"""States that are learned from transitions, where no observation ever recurs."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.validation import check_count, check_number
from sb3_manygoals.world.autonomous import draw_alike, find_autonomous
from sb3_manygoals.world.clusters import find_clusters, nearest, some_transitions
from sb3_manygoals.world.contrastive import ContrastiveEncoder, train_encoder
from sb3_manygoals.world.examples import EXAMPLES_PER_STATE, ExampleStates
from sb3_manygoals.world.looks import Looks
from sb3_manygoals.world.states import UNKNOWN, ExactStates

# By default there is an update for so many transitions, within these bounds.
_TRANSITIONS_PER_UPDATE = 35
_FEWEST_UPDATES = 1_000
_MOST_UPDATES = 8_000
# Before anything is learned, so many of the first observations are states of their own.
_PROVISIONAL_STATES = 1_000
_WEIGHT = "learned_weight_"
_LOOK = "learned_look_"
# Observations are compared with how their states look so many numbers at a time, to bound memory.
_NUMBERS_AT_A_TIME = 1_000_000
# A look is compared with those of states with codes alike if they have no more numbers than this.
# A whole new room may have codes alike, so these states may be many.
_MOST_NUMBERS_ALIKE = 4_000_000
# Noise is not understood if more than this share of all observations look like no other one.
_MOST_SEEN_ONCE = 0.01


class LearnedStates(ExampleStates):
    """
    States by what is learned from transitions, for worlds in which no observation recurs, such as
    those with noise in every pixel.

    An encoder (:class:`~sb3_manygoals.world.contrastive.ContrastiveEncoder`) learns to tell what an
    action leads to from what it does not lead to. What cannot be predicted drops out of its codes.
    A state is a cluster of codes. How far apart codes of one state may be follows from the
    transitions, see :func:`~sb3_manygoals.world.clusters.find_clusters`. An observation that is far
    away from all clusters is a new state. So is one that looks like none of its cluster: an encoder
    ignores what it never saw (:class:`~sb3_manygoals.world.looks.Looks`).

    What goes on by itself over resets of the world, such as a clock or a distractor, could be
    predicted, too. It is found first, and left out: the encoder compares only transitions that
    share it, see :func:`~sb3_manygoals.world.autonomous.find_autonomous`.

    Nothing is known before :meth:`learn`. Until then, the first 1,000 observations are states of
    their own, so that there are goals to pursue, and all others are ``UNKNOWN``.

    Of each state, some observations are kept, as examples of how it looks. The first one is that
    whose code is nearest to the center of the cluster.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: greatest number of states
    :param examples_per_state: greatest number of observations that are kept of a state
    :param n_features: length of a code
    :param n_hidden: width of the encoder's layers
    :param n_updates: updates of the encoder each time that it learns. None: one for 35 transitions,
        at least 1,000 and at most 8,000
    :param batch_size: transitions in an update
    :param learning_rate: greatest step size of the encoder
    :param seed: seed of weights and batches
    :raises ValueError: if a number is out of its range
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int,
        examples_per_state: int = EXAMPLES_PER_STATE,
        n_features: int = 64,
        n_hidden: int = 256,
        n_updates: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        self.n_features = check_count("n_features", n_features)
        self.n_hidden = check_count("n_hidden", n_hidden)
        self.n_updates = n_updates
        if n_updates is not None:
            self.n_updates = check_count("n_updates", n_updates)
        self.batch_size = check_count("batch_size", batch_size, at_least=2)
        check_number("learning_rate", learning_rate, above=0)
        self.learning_rate = learning_rate
        self.seed = check_count("seed", seed, at_least=0)
        self.n_learned = 0
        """How often the states were learned."""
        self.seconds = 0.0
        """The time that learning took last, in seconds."""
        self.autonomous_gain = 0.0
        """
        How much goes on by itself over resets of the world, such as a clock, in nats. States leave
        it out. 0 if nothing does, or nothing was learned. NaN if there were too few resets to tell.
        """
        super().__init__(observation_space, capacity, examples_per_state)

    def _make_room(self, capacity: int) -> None:
        """Allocate memory for so many states, and forget all that are known."""
        self.capacity = capacity
        self.encoder: ContrastiveEncoder | None = None
        """Encodes observations. None before :meth:`learn`."""
        self.radius = 0.0
        """Observations whose codes are farther away from all clusters are new states."""
        self.threshold = 0.0
        """Clusters whose centers were nearer than this were taken for one state."""
        self._n_states = 0
        self._centers: NDArray[np.float32] = np.zeros((0, self.n_features), np.float32)
        # States with codes alike, told apart by their looks, have the first of them as their root.
        self._roots: NDArray[np.int64] = np.zeros(0, np.int64)
        self._looks: Looks | None = None
        self._provisional = ExactStates(self.observation_space, min(capacity, _PROVISIONAL_STATES))
        self._make_room_for_examples()

    @property
    def is_known(self) -> bool:
        """Whether states were learned, so that observations can be told apart."""
        return self.encoder is not None

    def __len__(self) -> int:
        return self._n_states if self.is_known else len(self._provisional)

    @property
    def centers(self) -> NDArray[np.float32]:
        """The mean code of each state, shape ``(len(self), n_features)``."""
        return self._centers[: self._n_states]

    def _look_up(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        if self.encoder is None:
            ids = self._provisional._look_up(observations, take_in)
        elif len(observations) == 0:
            return np.zeros(0, np.int64)
        else:
            ids = self._by_codes_and_looks(observations, take_in)
        if take_in:
            self._keep_examples(ids, observations)
        return ids

    def _by_codes_and_looks(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        assert self.encoder is not None
        codes = self.encoder.encode(observations)
        ids, distances = nearest(codes, self.centers)
        is_new = distances > self.radius
        ids[is_new] = UNKNOWN
        self._tell_by_looks(ids, codes, observations, 0 if take_in else None)
        if take_in and is_new.any():
            rows = self.encoder.flat(observations[is_new])
            for place, row in zip(np.flatnonzero(is_new).tolist(), rows, strict=True):
                ids[place] = self._found(codes[place], row)
        return ids

    def _tell_by_looks(
        self,
        ids: NDArray[np.int64],
        codes: NDArray[np.float32],
        observations: NDArray[Any],
        learn_from: int | None,
    ) -> None:
        """
        Correct the ids of observations that look like none of their state.

        :param learn_from: new looks are new states, and those of young states are learned if their
            ids are at least this. None: new looks are ``UNKNOWN``
        """
        assert self.encoder is not None
        assert self._looks is not None
        if not self._looks.can_tell:
            return
        known = np.flatnonzero(ids != UNKNOWN)
        take_in = learn_from is not None
        at_a_time = max(_NUMBERS_AT_A_TIME // len(self.encoder.mean), 1)
        for at in range(0, len(known), at_a_time):
            places = known[at : at + at_a_time]
            rows = self.encoder.flat(observations[places])
            found = self._roots[ids[places]]
            differences = self._looks.differences(rows, found)
            teaches = np.ones(len(places), np.bool_)
            sizes = np.bincount(self._roots[: self._n_states], minlength=self._n_states)
            for root in np.unique(found[sizes[found] > 1]).tolist():
                of_root = np.flatnonzero(found == root)
                for other in np.flatnonzero(self._roots[: self._n_states] == root).tolist():
                    by_other = self._looks.differences(rows[of_root], np.full(len(of_root), other))
                    is_nearer = by_other < differences[of_root]
                    found[of_root[is_nearer]] = other
                    differences[of_root[is_nearer]] = by_other[is_nearer]
            for place in np.flatnonzero(differences > self._looks.limit).tolist():
                nearest_state = int(ids[places[place]])
                n_before = self._n_states
                found[place] = self._alike(
                    nearest_state, codes[places[place]], rows[place], take_in
                )
                # The first look of a new state is known already, and if there is no room for one,
                # the look is that of another state.
                teaches[place] = self._n_states == n_before and (
                    self._looks.differences(rows[place], found[place : place + 1])[0]
                    <= self._looks.limit
                )
            ids[places] = found
            if learn_from is not None:
                is_young = (found >= learn_from) & teaches
                self._looks.update(rows[is_young], found[is_young])

    def _alike(
        self, state: int, code: NDArray[np.float32], row: NDArray[np.float32], take_in: bool
    ) -> int:
        """
        Return the state that looks like this, of those with codes alike, or a new one.

        :param state: the state whose center is nearest to the code
        """
        assert self._looks is not None
        roots = self._roots[: self._n_states]
        root = int(roots[state])
        is_alike = roots == root
        if state != root:
            # The center of a state that was found by its look is a single code, which may be near
            # the codes of other states.
            all_roots = np.flatnonzero(roots == np.arange(len(roots)))
            is_alike |= roots == all_roots[nearest(code[None], self._centers[all_roots])[0][0]]
        others = np.flatnonzero(is_alike)
        differences = self._looks.differences(row, others)
        best = int(others[differences.argmin()])
        is_full = len(others) * len(row) >= _MOST_NUMBERS_ALIKE
        if differences.min() <= self._looks.limit or is_full:
            return best
        if not take_in:
            return UNKNOWN
        new = self._append(code, row, root)
        # If there is no room, it is what it looks like most.
        return best if new == UNKNOWN else new

    def _split(self, groups: list[tuple[int, NDArray[np.int64]]]) -> None:
        """
        Split states.

        :param groups: ids of states, and the group of each of their examples. The largest group
            keeps the id
        """
        assert self.encoder is not None
        assert self._looks is not None
        for state, labels in groups:
            if self._n_states + labels.max() > self.capacity:
                return
            examples = self._examples[state, : len(labels)]
            rows = self.encoder.flat(examples)
            largest = np.bincount(labels).argmax()
            self._looks.set(state, rows[labels == largest])
            for label in np.unique(labels[labels != largest]):
                of_label = rows[labels == label]
                new = self._append(self._centers[state], of_label[0], state)
                self._looks.set(new, of_label)

    def _found(self, code: NDArray[np.float32], row: NDArray[np.float32]) -> int:
        """Return a new state at this code, or the state that was just founded near it."""
        assert self._looks is not None
        state_ids, distances = nearest(code[None], self.centers)
        if distances[0] > self.radius:
            return self._append(code, row)
        state = int(state_ids[0])
        return self._alike(state, code, row, True) if self._looks.can_tell else state

    def _append(
        self, code: NDArray[np.float32], row: NDArray[np.float32], root: int | None = None
    ) -> int:
        """Return a new state, or ``UNKNOWN`` if there is no room."""
        assert self._looks is not None
        state = self._n_states
        if state == self.capacity:
            return UNKNOWN
        if state == len(self._centers):
            n_rows = min(2 * state, self.capacity)
            centers = np.zeros((n_rows, self.n_features), np.float32)
            centers[:state] = self.centers
            roots = np.zeros(n_rows, np.int64)
            roots[:state] = self._roots[:state]
            self._centers = centers
            self._roots = roots
        self._centers[state] = code
        self._roots[state] = state if root is None else root
        self._looks.add(row)
        self._n_states += 1
        return state

    def learn(
        self,
        observations: NDArray[Any],
        places: NDArray[np.integer[Any]],
        actions: NDArray[np.integer[Any]],
        next_places: NDArray[np.integer[Any]],
        n_actions: int,
        n_envs: int = 1,
    ) -> NDArray[np.int64]:
        """
        Learn states from transitions. All ids change. An encoder that has learned before learns on,
        unless it is found only now that something goes on by itself.

        :param observations: all that was seen, shape ``(m, *observation_space.shape)``
        :param places: the observations in which actions were taken, by their rows, shape ``(n,)``
        :param actions: the actions, shape ``(n,)``
        :param next_places: the observations that they led to, by their rows, shape ``(n,)``
        :param n_actions: number of actions
        :param n_envs: number of environments. Transitions are in order of time, of all environments
            in turn. Where one does not begin with what the one before led to, its environment was
            reset
        :return: the states of all observations, ``UNKNOWN`` where there was no room, shape ``(m,)``
        :raises ValueError: if there are no transitions, an action is none of ``n_actions``, or
            transitions are not as many for each environment
        """
        begin = time.perf_counter()
        if len(actions) == 0:
            raise ValueError("states are learned from transitions, got none")
        if actions.min() < 0 or actions.max() >= n_actions:
            raise ValueError(
                f"actions must be from 0 to {n_actions - 1}, got {actions.min()} to {actions.max()}"
            )
        check_count("n_envs", n_envs)
        if len(actions) % n_envs:
            raise ValueError(
                f"transitions must be as many for each of {n_envs} environments, got {len(actions)}"
            )
        rng = np.random.default_rng((self.seed, self.n_learned))
        n_updates = self.n_updates
        if n_updates is None:
            n_updates = len(actions) // _TRANSITIONS_PER_UPDATE
            n_updates = min(max(n_updates, _FEWEST_UPDATES), _MOST_UPDATES)
        autonomous = find_autonomous(
            self.observation_space,
            observations,
            places,
            next_places,
            n_envs,
            n_updates,
            self.batch_size,
            self.learning_rate,
            rng,
        )
        # If learning is interrupted, nothing has changed.
        encoder = copy.deepcopy(self.encoder)
        # An encoder that has learned a clock would have to forget it.
        is_news = autonomous.gain > 0.0 and not self.autonomous_gain > 0.0
        if encoder is None or is_news:
            encoder = ContrastiveEncoder(
                self.observation_space, n_actions, self.n_features, self.n_hidden, self.seed
            )
            encoder.fit_inputs(observations)
        draw = None
        if autonomous.codes is not None:
            draw = draw_alike(autonomous.codes[next_places], self.batch_size)
        train_encoder(
            encoder,
            observations,
            (places, actions, next_places),
            n_updates,
            self.batch_size,
            self.learning_rate,
            rng,
            draw,
        )
        codes = encoder.encode(observations)
        rows = some_transitions(len(actions), rng)
        clusters = find_clusters(
            codes[places[rows]],
            actions[rows],
            codes[next_places[rows]],
            self.capacity,
            rng,
            None if autonomous.codes is None else autonomous.codes[places[rows]],
        )
        before = {name: getattr(self, name) for name in _LEARNED}
        rng_before = self._rng.bit_generator.state
        try:
            self.encoder = encoder
            self.autonomous_gain = autonomous.gain
            self.radius = clusters.radius
            self.threshold = clusters.threshold
            # A clock is a part of how states look.
            by_looks = autonomous.codes is None
            ids = self._assign(observations, codes, clusters.centers, by_looks)
            self._show(observations, ids, codes)
        except BaseException:
            # If learning is interrupted, nothing has changed.
            for name, value in before.items():
                setattr(self, name, value)
            self._rng.bit_generator.state = rng_before
            raise
        self.n_learned += 1
        self.n_added = int(np.count_nonzero(ids != UNKNOWN))
        self.n_recurred = self.n_added - len(self)
        self.seconds = time.perf_counter() - begin
        return ids

    def _assign(
        self,
        observations: NDArray[Any],
        codes: NDArray[np.float32],
        centers: NDArray[np.float32],
        by_looks: bool,
    ) -> NDArray[np.int64]:
        """Return the states of all observations, which are these clusters and what else is seen."""
        assert self.encoder is not None
        n_clusters = len(centers)
        self._centers = centers
        self._n_states = n_clusters
        self._roots = np.arange(n_clusters)
        self._looks = Looks(len(self.encoder.mean))
        ids, distances = nearest(codes, centers)
        is_far = distances > self.radius
        if by_looks:
            ids[is_far] = UNKNOWN
            self._show(observations, ids, codes)
            n_kept = np.minimum(self._n_seen[:n_clusters], self.examples_per_state)
            examples = self._examples[:n_clusters]
            self._looks.fit(examples, n_kept, self.encoder.flat)
            self._split(list(self._looks.groups(examples, n_kept, self.encoder.flat)))
        n_split = self._n_states
        # The first observations of episodes may be in no cluster, because no action led to them.
        for place in np.flatnonzero(is_far).tolist():
            row = self.encoder.flat(observations[place : place + 1])[0]
            ids[place] = self._found(codes[place], row)
        if self._n_states > n_split:
            others, other_distances = nearest(codes, self.centers[n_split:])
            is_nearer = other_distances < distances
            ids[is_nearer] = n_split + others[is_nearer]
        self._tell_by_looks(ids, codes, observations, n_split)
        n_once = self._looks.n_seen_once(n_split)
        if n_once > max(_MOST_SEEN_ONCE * len(observations), 1):
            return self._assign(observations, codes, centers, by_looks=False)
        return self._without_unseen(ids)

    def _without_unseen(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Drop states that no observation is of, and return the ids of all observations."""
        assert self._looks is not None
        is_known = ids != UNKNOWN
        is_seen = np.bincount(ids[is_known], minlength=self._n_states) > 0
        seen = np.flatnonzero(is_seen)
        # The first state of those with codes alike is their root.
        _, first, place = np.unique(self._roots[seen], return_index=True, return_inverse=True)
        self._roots = first[place]
        self._centers = self._centers[seen]
        self._n_states = len(seen)
        self._looks.keep(seen)
        return np.where(is_known, (np.cumsum(is_seen) - 1)[ids], UNKNOWN)

    def _show(
        self, observations: NDArray[Any], ids: NDArray[np.int64], codes: NDArray[np.float32]
    ) -> None:
        """Keep examples of all states, first the one nearest to its center, then random ones."""
        self._make_room_for_examples()
        known = np.flatnonzero(ids != UNKNOWN)
        offsets = np.linalg.norm(codes[known] - self._centers[ids[known]], axis=1)
        by_distance = np.lexsort((offsets, ids[known]))
        first = known[by_distance[_begins(ids[known][by_distance])]]
        is_first = np.zeros(len(ids), np.bool_)
        is_first[first] = True
        shuffled = self._rng.permutation(known)
        in_order = shuffled[np.lexsort((~is_first[shuffled], ids[shuffled]))]
        state_ids = ids[in_order]
        begins = np.flatnonzero(_begins(state_ids))
        sizes = np.diff(np.r_[begins, len(state_ids)])
        ranks = np.arange(len(state_ids)) - np.repeat(begins, sizes)
        kept = ranks < self.examples_per_state
        self._examples[state_ids[kept], ranks[kept]] = observations[in_order[kept]]
        self._n_seen[state_ids[begins]] = sizes

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`set_checkpoint_state`.

        :return: a dictionary of plain data and copies of arrays
        """
        state = {
            "capacity": self.capacity,
            "observations": self.observations.copy(),
            "examples": self._examples[: len(self)].copy(),
            "n_seen": self._n_seen[: len(self)].copy(),
            "rng": self._rng.bit_generator.state,
            "n_added": self.n_added,
            "n_recurred": self.n_recurred,
            "learned_times": self.n_learned,
            "learned_autonomous_gain": self.autonomous_gain,
        }
        if self.encoder is not None:
            state["learned_centers"] = self.centers.copy()
            state["learned_radius"] = self.radius
            state["learned_threshold"] = self.threshold
            state["learned_roots"] = self._roots[: len(self)].copy()
            assert self._looks is not None
            for name, value in self._looks.get_state().items():
                state[_LOOK + name] = value
            for name, weight in self.encoder.state_dict().items():
                state[_WEIGHT + name] = weight.cpu().numpy().copy()
        return state

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace all that is known, in place, so that it holds for all who use these states.

        :param state: what :meth:`get_checkpoint_state` returned, of states with the same arguments
        :raises ValueError: if it is damaged, or of states with other arguments. Then nothing has
            changed
        """
        if "learned_times" not in state:
            raise ValueError("the file has states that were not learned")
        try:
            self._restore(state)
        except KeyError as error:
            raise ValueError(f"the file has learned states without {error}") from error

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Replace all that is known. Before anything changes, all that is needed is read."""
        observations = state["observations"]
        capacity = int(state["capacity"])
        centers = state.get("learned_centers")
        n_states = len(observations) if centers is None else len(centers)
        if n_states != len(observations) or n_states > capacity:
            raise ValueError(
                f"the file has {len(observations)} states and {n_states} clusters, of at most "
                f"{capacity}"
            )
        encoder = None
        looks = None
        radius = 0.0
        threshold = 0.0
        if centers is not None:
            if "learned_roots" not in state:
                raise ValueError("the file has states that an earlier version learned")
            encoder = self._encoder_of(state)
            looks = Looks.of_state(
                {
                    name.removeprefix(_LOOK): value
                    for name, value in state.items()
                    if name.startswith(_LOOK)
                }
            )
            roots = np.asarray(state["learned_roots"], np.int64).copy()
            are_as_many = len(roots) == n_states == (len(looks) if looks.can_tell else n_states)
            are_roots = are_as_many and bool(((roots >= 0) & (roots <= np.arange(n_states))).all())
            if not are_roots or looks.n_inputs != len(encoder.mean):
                raise ValueError(
                    f"the file has {n_states} states, roots of {len(roots)} states and looks of "
                    f"{len(looks)} states with {looks.n_inputs} inputs, which do not fit each other"
                )
            radius = float(state["learned_radius"])
            threshold = float(state["learned_threshold"])
        examples = state["examples"][:, : self.examples_per_state]
        # If fewer were kept than these states keep, no more can be drawn from.
        kept_fewer = examples.shape[1] < self.examples_per_state
        most = examples.shape[1] if kept_fewer else np.iinfo(np.int64).max
        n_seen = np.minimum(state["n_seen"], most)
        numbers = [int(state[name]) for name in ("learned_times", "n_added", "n_recurred")]
        autonomous_gain = float(state["learned_autonomous_gain"])
        self._make_room(capacity)
        self.encoder = encoder
        if encoder is None:
            self._provisional.add(observations)
        else:
            self._centers = np.asarray(centers, np.float32).copy()
            self._n_states = len(observations)
            self._roots = roots
            self._looks = looks
        self.radius = radius
        self.threshold = threshold
        self._examples[: len(examples), : examples.shape[1]] = examples
        self._n_seen[: len(examples)] = n_seen
        if "rng" in state:
            self._rng.bit_generator.state = state["rng"]
        self.n_learned, self.n_added, self.n_recurred = numbers
        self.autonomous_gain = autonomous_gain

    def _encoder_of(self, state: Mapping[str, Any]) -> ContrastiveEncoder:
        """Return the encoder of a saved state. A ValueError if it does not fit these states."""
        weights = {
            name.removeprefix(_WEIGHT): th.as_tensor(np.asarray(value))
            for name, value in state.items()
            if name.startswith(_WEIGHT)
        }
        try:
            n_actions = len(weights["predicted.weight"]) // self.n_features
            encoder = ContrastiveEncoder(
                self.observation_space, n_actions, self.n_features, self.n_hidden, self.seed
            )
            encoder.load_state_dict(weights)
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"the file has learned states with other arguments than these: {error}"
            ) from error
        return encoder

    def __getstate__(self) -> dict[str, Any]:
        names = ("observation_space", "examples_per_state", *_ARGUMENTS)
        return {**{name: getattr(self, name) for name in names}, **self.get_checkpoint_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("observation_space", "examples_per_state", *_ARGUMENTS):
            setattr(self, name, state[name])
        self.seconds = 0.0
        self._rng = np.random.default_rng(0)
        self.set_checkpoint_state(state)


_LEARNED = (
    "encoder",
    "autonomous_gain",
    "radius",
    "threshold",
    "_centers",
    "_n_states",
    "_roots",
    "_looks",
    "_examples",
    "_n_seen",
)
_ARGUMENTS = ("n_features", "n_hidden", "n_updates", "batch_size", "learning_rate", "seed")


def _begins(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where another id begins, of ids in order."""
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = ids[1:] != ids[:-1]
    return begins
