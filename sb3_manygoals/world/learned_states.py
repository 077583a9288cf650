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
from sb3_manygoals.world.autonomous import Autonomous, draw_alike, find_autonomous
from sb3_manygoals.world.clusters import Clusters, find_clusters, nearest, some_transitions
from sb3_manygoals.world.contrastive import ContrastiveEncoder, train_encoder
from sb3_manygoals.world.examples import EXAMPLES_PER_STATE, ExampleStates
from sb3_manygoals.world.find_looks import FoundLooks, find_looks
from sb3_manygoals.world.inputs import Inputs
from sb3_manygoals.world.looks import Looks
from sb3_manygoals.world.predictability import LEAST_GAIN, gain_of_states
from sb3_manygoals.world.states import UNKNOWN, ExactStates

# By default there is an update for so many transitions, within these bounds.
_TRANSITIONS_PER_UPDATE = 35
_FEWEST_UPDATES = 1_000
_MOST_UPDATES = 8_000
# Before anything is learned, so many of the first observations are states of their own.
_PROVISIONAL_STATES = 1_000
_WEIGHT = "learned_weight_"
_LOOK = "learned_look_"


class LearnedStates(ExampleStates):
    """
    States by what is learned from transitions, for worlds in which no observation recurs, such as
    those with noise in every pixel. There are two ways to tell them apart.

    **By looks**, if the noise of each number is independent of the others, which is measured. An
    observation is of the state whose mean observation is nearest. If it differs by more than noise
    does, it is a new state, see :func:`~sb3_manygoals.world.find_looks.find_looks`.

    **By codes** otherwise, and if something goes on by itself. An encoder
    (:class:`~sb3_manygoals.world.contrastive.ContrastiveEncoder`) learns to tell what an action
    leads to from what it does not lead to. What cannot be predicted drops out of its codes. A state
    is a cluster of codes. How far apart codes of one state may be follows from the transitions, see
    :func:`~sb3_manygoals.world.clusters.find_clusters`. An observation that is far away from all
    clusters is a new state.

    What goes on by itself over resets of the world, such as a clock or a distractor, could be
    predicted, too. It is found first, and left out: the encoder compares only transitions that
    share it, see :func:`~sb3_manygoals.world.autonomous.find_autonomous`.

    Nothing is known before :meth:`learn`. Until then, the first 1,000 observations are states of
    their own, so that there are goals to pursue, and all others are ``UNKNOWN``.

    Of each state, some observations are kept, as examples of how it looks. The first one is that
    which is nearest to the center of the state.

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
        self._inputs = Inputs(observation_space)
        super().__init__(observation_space, capacity, examples_per_state)

    def _make_room(self, capacity: int) -> None:
        """Allocate memory for so many states, and forget all that are known."""
        self.capacity = capacity
        self.encoder: ContrastiveEncoder | None = None
        """Encodes observations. None before :meth:`learn`, and if looks tell states apart."""
        self.looks: Looks | None = None
        """How states look. None before :meth:`learn`, and if codes tell states apart."""
        self.radius = 0.0
        """Observations whose codes are farther away from all clusters are new states."""
        self.threshold = 0.0
        """Clusters whose centers were nearer than this were taken for one state."""
        self._n_states = 0
        self._centers: NDArray[np.float32] = np.zeros((0, self.n_features), np.float32)
        self._provisional = ExactStates(self.observation_space, min(capacity, _PROVISIONAL_STATES))
        self._make_room_for_examples()

    @property
    def is_known(self) -> bool:
        """Whether states were learned, so that observations can be told apart."""
        return self.encoder is not None or self.looks is not None

    def __len__(self) -> int:
        if self.looks is not None:
            return len(self.looks)
        return self._n_states if self.is_known else len(self._provisional)

    @property
    def centers(self) -> NDArray[np.float32]:
        """
        The mean code of each state, shape ``(len(self), n_features)``. If looks tell states apart,
        the mean observation of each one, shape ``(len(self), n_inputs)``.
        """
        if self.looks is None:
            return self._centers[: self._n_states]
        return (self.looks.means + self._inputs.offset).astype(np.float32)

    def _look_up(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        if not self.is_known:
            ids = self._provisional._look_up(observations, take_in)
        elif len(observations) == 0:
            return np.zeros(0, np.int64)
        elif self.looks is not None:
            rows = self._inputs.flat(observations)
            ids = self.looks.add(rows) if take_in else self.looks.ids(rows)
        else:
            ids = self._by_codes(observations, take_in)
        if take_in:
            self._keep_examples(ids, observations)
        return ids

    def _by_codes(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        assert self.encoder is not None
        codes = self.encoder.encode(observations)
        ids, distances = nearest(codes, self.centers)
        is_new = distances > self.radius
        ids[is_new] = UNKNOWN
        if take_in:
            for place in np.flatnonzero(is_new).tolist():
                ids[place] = self._found(codes[place])
        return ids

    def _found(self, code: NDArray[np.float32]) -> int:
        """Return a new state at this code, or the state that was just founded near it."""
        state_ids, distances = nearest(code[None], self.centers)
        if distances[0] <= self.radius:
            return int(state_ids[0])
        if self._n_states == self.capacity:
            return UNKNOWN
        if self._n_states == len(self._centers):
            n_rows = min(2 * self._n_states, self.capacity)
            room = np.zeros((n_rows, self.n_features), np.float32)
            room[: self._n_states] = self.centers
            self._centers = room
        self._centers[self._n_states] = code
        self._n_states += 1
        return self._n_states - 1

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
        unless it is found only now that something goes on by itself. Looks that were found before
        are begun with.

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
        looks = None
        inputs = self._inputs
        if self.looks is None:
            # Looks that are known have numbers from which the offset of that time was subtracted.
            inputs = Inputs(self.observation_space)
            inputs.fit_offset(observations)
        if autonomous.codes is None:
            steps = (places, next_places)
            looks = find_looks(observations, steps, inputs, self.capacity, rng, self.looks)
        if looks is not None:
            # Things that come and go by chance, such as rain, are no noise, but tell nothing.
            gain = gain_of_states(looks.ids[places], actions, looks.ids[next_places])
            looks = looks if gain >= LEAST_GAIN else None
        codes = None
        if looks is None:
            codes = self._find_codes(
                observations, (places, actions, next_places), n_actions, n_updates, autonomous, rng
            )
        before = {name: getattr(self, name) for name in _LEARNED}
        rng_before = self._rng.bit_generator.state
        offsets: NDArray[np.floating[Any]]
        try:
            self.autonomous_gain = autonomous.gain
            self._inputs = inputs
            if looks is not None:
                ids, offsets = self._use_looks(looks)
            else:
                assert codes is not None
                ids, offsets = self._use_codes(*codes)
            self._show(observations, ids, offsets)
        except BaseException:
            # If learning is interrupted, nothing has changed.
            for name, value in before.items():
                setattr(self, name, value)
            self._rng.bit_generator.state = rng_before
            raise
        self.n_learned += 1
        self.n_added = len(ids)
        self.n_recurred = int(np.count_nonzero(ids != UNKNOWN)) - len(self)
        self.n_shared = 0
        self.seconds = time.perf_counter() - begin
        return ids

    def _find_codes(
        self,
        observations: NDArray[Any],
        transitions: tuple[NDArray[np.integer[Any]], ...],
        n_actions: int,
        n_updates: int,
        autonomous: Autonomous,
        rng: np.random.Generator,
    ) -> tuple[ContrastiveEncoder, NDArray[np.float32], Clusters]:
        """
        Train an encoder.

        :param transitions: rows of observations, actions, and rows of next observations, each of
            shape (n,)
        :return: the encoder, the codes of all observations, and clusters of them
        """
        places, actions, next_places = transitions
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
        return encoder, codes, clusters

    def _use_codes(
        self, encoder: ContrastiveEncoder, codes: NDArray[np.float32], clusters: Clusters
    ) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
        """Return the states of all observations by codes, and how far each is from its center."""
        self.encoder = encoder
        self.looks = None
        self.radius = clusters.radius
        self.threshold = clusters.threshold
        n_clusters = len(clusters.centers)
        self._centers = clusters.centers
        self._n_states = n_clusters
        ids, distances = nearest(codes, clusters.centers)
        is_far = distances > self.radius
        # The first observations of episodes may be in no cluster, because no action led to them.
        ids[is_far] = [self._found(code) for code in codes[is_far]]
        if self._n_states > n_clusters:
            others, other_distances = nearest(codes, self.centers[n_clusters:])
            is_nearer = (other_distances < distances) & (other_distances <= self.radius)
            ids[is_nearer] = n_clusters + others[is_nearer]
        return ids, np.linalg.norm(codes - self._centers[ids], axis=1)

    def _use_looks(self, found: FoundLooks) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the states of all observations by looks, and how far each is from its center."""
        self.encoder = None
        self.looks = found.looks
        self.radius = 0.0
        self.threshold = 0.0
        self._centers = np.zeros((0, self.n_features), np.float32)
        self._n_states = 0
        return found.ids, found.distances

    def _show(
        self,
        observations: NDArray[Any],
        ids: NDArray[np.int64],
        offsets: NDArray[np.floating[Any]],
    ) -> None:
        """Keep examples of all states, first the one nearest to its center, then random ones."""
        self._make_room_for_examples()
        known = np.flatnonzero(ids != UNKNOWN)
        by_distance = np.lexsort((offsets[known], ids[known]))
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
            for name, weight in self.encoder.state_dict().items():
                state[_WEIGHT + name] = weight.cpu().numpy().copy()
        if self.looks is not None:
            for name, value in self.looks.get_state().items():
                state[_LOOK + name] = value
            state["learned_offset"] = self._inputs.offset.copy()
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
        n_states = len(observations)
        encoder = None
        looks = None
        inputs = Inputs(self.observation_space)
        radius = 0.0
        threshold = 0.0
        centers: NDArray[np.float32] = np.zeros((0, self.n_features), np.float32)
        if "learned_centers" in state:
            encoder = self._encoder_of(state)
            centers = np.asarray(state["learned_centers"], np.float32).copy()
            n_states = len(centers)
            radius = float(state["learned_radius"])
            threshold = float(state["learned_threshold"])
        elif _LOOK + "means" in state:
            looks = self._looks_of(state)
            # There may be more room than when the states were saved.
            looks.capacity = capacity
            # Earlier versions subtracted nothing.
            offset = np.array(state.get("learned_offset", inputs.offset), np.float64)
            if offset.shape != inputs.offset.shape:
                raise ValueError(
                    f"learned_offset must be of shape {inputs.offset.shape}, got {offset.shape}"
                )
            inputs.offset = offset
            n_states = len(looks)
        if n_states != len(observations) or n_states > capacity:
            raise ValueError(
                f"the file has {len(observations)} states and {n_states} clusters, of at most "
                f"{capacity}"
            )
        examples = state["examples"][:, : self.examples_per_state]
        # If fewer were kept than these states keep, no more can be drawn from.
        kept_fewer = examples.shape[1] < self.examples_per_state
        most = examples.shape[1] if kept_fewer else np.iinfo(np.int64).max
        n_seen = np.minimum(state["n_seen"], most)
        numbers = [int(state[name]) for name in ("learned_times", "n_added", "n_recurred")]
        autonomous_gain = float(state["learned_autonomous_gain"])
        self._make_room(capacity)
        self.encoder = encoder
        self.looks = looks
        self._inputs = inputs
        self._centers = centers
        self._n_states = len(centers)
        if not self.is_known:
            self._provisional.add(observations)
        self.radius = radius
        self.threshold = threshold
        self._examples[: len(examples), : examples.shape[1]] = examples
        self._n_seen[: len(examples)] = n_seen
        if "rng" in state:
            self._rng.bit_generator.state = state["rng"]
        self.n_learned, self.n_added, self.n_recurred = numbers
        self.n_shared = 0
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

    def _looks_of(self, state: Mapping[str, Any]) -> Looks:
        """Return the looks of a saved state. A ValueError if they do not fit these states."""
        looks = Looks.of_state(
            {
                name.removeprefix(_LOOK): value
                for name, value in state.items()
                if name.startswith(_LOOK)
            }
        )
        if looks.n_inputs != len(self._inputs):
            raise ValueError(
                f"the file has looks of {looks.n_inputs} inputs, these states have "
                f"{len(self._inputs)}"
            )
        return looks

    def __getstate__(self) -> dict[str, Any]:
        names = ("observation_space", "examples_per_state", *_ARGUMENTS)
        return {**{name: getattr(self, name) for name in names}, **self.get_checkpoint_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("observation_space", "examples_per_state", *_ARGUMENTS):
            setattr(self, name, state[name])
        self._inputs = Inputs(self.observation_space)
        self.seconds = 0.0
        self._rng = np.random.default_rng(0)
        self.set_checkpoint_state(state)


_LEARNED = (
    "encoder",
    "autonomous_gain",
    "radius",
    "threshold",
    "looks",
    "_inputs",
    "_centers",
    "_n_states",
    "_examples",
    "_n_seen",
)
_ARGUMENTS = ("n_features", "n_hidden", "n_updates", "batch_size", "learning_rate", "seed")


def _begins(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where another id begins, of ids in order."""
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = ids[1:] != ids[:-1]
    return begins
