"""An encoder of observations, learned from what single actions lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from sb3_manygoals.world.inputs import Inputs, places_of_units

# The first updates have a smaller step size.
_WARM_UP = 100
# Inputs are standardized by at most so many observations, and so many numbers.
_OBSERVATIONS_TO_FIT = 5_000
_NUMBERS_TO_FIT = 2**26
# At most so many observations, and so many numbers, are encoded at a time, to bound memory.
_AT_A_TIME = 8_192
_NUMBERS_AT_A_TIME = 2**25
# An encoder with enough weights learns the noise of single transitions by heart. Random inputs and
# features, and weights that decay, prevent that. The noise is in standard deviations of an input.
_INPUT_NOISE = 0.25
_DROPOUT = 0.1
_WEIGHT_DECAY = 0.5


class ContrastiveEncoder(nn.Module):
    """
    Encodes observations so that those of one state are close, and those of other states are not.

    It is learned from transitions (s, a, s') alone. Its score of a next observation is
    ``-c |A_a h(s) - B h(s')|^2``, and the loss is the cross-entropy of the true next observation
    among those of a batch (InfoNCE). What no action predicts, such as noise, helps nothing to find
    the true one. So it drops out of the code ``B h(s')``.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param n_actions: number of actions
    :param n_features: length of a code
    :param n_hidden: width of the two layers of h
    :param seed: seed of the weights
    """

    offset: th.Tensor
    mean: th.Tensor
    scale: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        n_actions: int,
        n_features: int = 64,
        n_hidden: int = 256,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.n_actions = n_actions
        self.n_features = n_features
        self._inputs = Inputs(observation_space)
        n_inputs = len(self._inputs)
        # The weights come from a seed of their own, and leave PyTorch's generator as it is.
        with th.random.fork_rng(devices=[]):
            # th.manual_seed would seed the generators of GPUs, too.
            th.default_generator.manual_seed(seed)
            self.shared = nn.Sequential(
                nn.Linear(n_inputs, n_hidden),
                nn.LayerNorm(n_hidden),
                nn.GELU(),
                nn.Dropout(_DROPOUT),
                nn.Linear(n_hidden, n_hidden),
                nn.LayerNorm(n_hidden),
                nn.GELU(),
                nn.Dropout(_DROPOUT),
            )
            self.predicted = nn.Linear(n_hidden, n_actions * n_features)
            self.code = nn.Linear(n_hidden, n_features)
        self.log_scale = nn.Parameter(th.zeros(()))
        self.register_buffer("offset", th.zeros(n_inputs, dtype=th.float64))
        self.register_buffer("mean", th.zeros(n_inputs))
        self.register_buffer("scale", th.ones(n_inputs))
        self.eval()

    def fit_inputs(self, observations: NDArray[Any]) -> None:
        """
        Standardize inputs by these observations from now on.

        :param observations: shape ``(n, *observation_space.shape)``
        """
        self._inputs.fit_offset(observations)
        self.offset.copy_(th.from_numpy(self._inputs.offset))
        most = max(1, min(_OBSERVATIONS_TO_FIT, _NUMBERS_TO_FIT // len(self._inputs)))
        places = np.linspace(0, len(observations) - 1, most, dtype=np.int64)
        rows = self._inputs.flat(observations[np.unique(places)])
        deviations = rows.std(axis=0)
        # Floats may have different units, so only numbers that do not vary are left as they are.
        least = 1e-6 * np.maximum(np.abs(rows).max(axis=0), 1e-6)
        # Integers of one part, such as pixels, have one unit. Those that hardly ever vary must not
        # become hundreds of times too large.
        for places in places_of_units(self._inputs.units):
            varying = deviations[places][deviations[places] > 0.0]
            least[places] = np.median(varying) / 2 if len(varying) else 1.0
        self.mean.copy_(th.from_numpy(rows.mean(axis=0)))
        self.scale.copy_(th.from_numpy(1.0 / np.maximum(deviations, least).astype(np.float32)))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """Load weights. Those of earlier versions have no offset."""
        state_dict.setdefault(f"{prefix}offset", th.zeros_like(self.offset))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._inputs.offset = self.offset.numpy(force=True).copy()

    def _features(self, observations: NDArray[Any]) -> th.Tensor:
        """Return the shared features of observations."""
        rows = th.from_numpy(self._inputs.flat(observations)).to(self.mean.device)
        rows = (rows - self.mean) * self.scale
        if self.training:
            rows = rows + _INPUT_NOISE * th.randn_like(rows)
        features: th.Tensor = self.shared(rows)
        return features

    def loss(
        self, observations: NDArray[Any], actions: NDArray[Any], next_observations: NDArray[Any]
    ) -> th.Tensor:
        """
        Return the cross-entropy of the true next observations among all of the batch.

        :param observations: shape ``(n, *observation_space.shape)``
        :param actions: shape ``(n,)``
        :param next_observations: what the actions led to, the shape of ``observations``
        :return: the mean, a scalar
        """
        n = len(observations)
        features = self._features(np.concatenate([observations, next_observations]))
        rows = th.arange(n, device=features.device)
        chosen = th.as_tensor(actions, dtype=th.int64, device=features.device)
        predicted = self.predicted(features[:n]).view(n, self.n_actions, -1)[rows, chosen]
        codes = self.code(features[n:])
        squares = predicted.square().sum(1)[:, None] + codes.square().sum(1)
        scores = -(squares - 2.0 * predicted @ codes.T) * self.log_scale.exp()
        return nn.functional.cross_entropy(scores, rows)

    @th.no_grad()
    def encode(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """
        Return the codes of observations.

        :param observations: shape ``(n, *observation_space.shape)``
        :return: float32, shape ``(n, n_features)``
        """
        at_a_time = max(1, min(_AT_A_TIME, _NUMBERS_AT_A_TIME // len(self._inputs)))
        parts = range(0, len(observations), at_a_time)
        codes = [
            self.code(self._features(observations[at : at + at_a_time])).cpu().numpy()
            for at in parts
        ]
        if not codes:
            return np.zeros((0, self.n_features), np.float32)
        found: NDArray[np.float32] = np.concatenate(codes)
        return found


def train_encoder(
    encoder: ContrastiveEncoder,
    observations: NDArray[Any],
    transitions: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    n_updates: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
    draw: Callable[[np.random.Generator], NDArray[np.int64]] | None = None,
) -> float:
    """
    Train an encoder on transitions.

    :param encoder: the encoder, which is changed
    :param observations: all that was seen, shape ``(m, *observation_space.shape)``
    :param transitions: the observations in which actions were taken, by their rows; the actions;
        and the observations that they led to, by their rows. Each of shape ``(n,)``
    :param n_updates: number of updates
    :param batch_size: transitions in an update
    :param learning_rate: greatest step size. It rises at first, and then falls linearly to 0
    :param rng: chooses the transitions
    :param draw: function of ``rng`` that returns the rows of the transitions of an update. None:
        all are drawn uniformly
    :return: the mean loss of the last tenth of the updates
    """
    places, actions, next_places = transitions
    optimizer = th.optim.AdamW(encoder.parameters(), lr=1.0, weight_decay=_WEIGHT_DECAY)
    last = []
    encoder.train()
    # Dropout and noise come from a seed of their own, and leave PyTorch's generator as it is.
    with th.random.fork_rng(devices=[]):
        th.default_generator.manual_seed(int(rng.integers(2**31)))
        for update in range(n_updates):
            share = min(1.0, (update + 1) / _WARM_UP) * (1.0 - update / n_updates)
            optimizer.param_groups[0]["lr"] = learning_rate * share
            rows = rng.integers(len(actions), size=batch_size) if draw is None else draw(rng)
            before = observations[places[rows]]
            after = observations[next_places[rows]]
            loss = encoder.loss(before, actions[rows], after)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if update >= 0.9 * n_updates:
                last.append(float(loss.detach()))
    encoder.eval()
    return float(np.mean(last)) if last else float("nan")
