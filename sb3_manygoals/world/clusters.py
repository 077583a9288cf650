"""Clusters of codes, as wide as transitions show that states are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

# The distance of interchangeable codes is measured with so many transitions.
_TRANSITIONS_TO_MEASURE = 20_000
# If there is a clock, more of them are needed to find two of one state at different times. Times
# differ if they are not among this share of the nearest ones. The nearer half of all pairs is most
# often of one state.
_TRANSITIONS_WITH_CLOCK = 60_000
_SHARE_AT_ONE_TIME = 0.25
# Fine clusters have this multiple of the median distance of interchangeable codes as their radius.
# Pieces of states are merged later, so that it may be small.
_FINE_RADIUS = 1.3
# Fine clusters whose centers are farther apart than this multiple of the fine radius are not
# compared, and of each one only so many neighbors are.
_FARTHEST = 2.0
_N_NEIGHBORS = 12
# What is known of a pair of fine clusters is known from so many transitions. With fewer, distance
# decides alone.
_MANY_COUNTS = 20
_FEW_COUNTS = 4
# Fine clusters are surely pieces of one state if their successors agree so well, about as surely if
# they are near too and agree so well, and surely different ones if they agree at most so well.
_SURELY_AGREES = 0.85
_AGREES = 0.6
_DIFFERS = 0.5
# Merged clusters have more transitions to compare, so merging is tried again so often.
_MOST_ROUNDS = 4
# Clusters are found with at most so many transitions.
_TRANSITIONS_TO_CLUSTER = 150_000
# Codes are compared with centers so many at a time, and so many pairs, to bound memory.
_AT_A_TIME = 2_048
_PAIRS_AT_A_TIME = 2**26
# New codes found clusters of their own if they are farther away than this share of the codes that
# clusters were made of.
_SHARE_INSIDE = 0.9999
# They may be farther away by this factor, if that is not most of the way to another cluster.
_MARGIN = 1.25
_SHARE_NEAREST = 0.01
_SHARE_OF_WAY = 0.75


class Clusters(NamedTuple):
    """Clusters of codes."""

    centers: NDArray[np.float32]
    """The mean code of each cluster, shape ``(C, features)``."""
    radius: float
    """A code that is farther away than this from all centers is of none of these clusters."""
    threshold: float
    """
    Centers of pieces of one state are nearer to each other than this, centers of different states
    are farther apart, as far as transitions show what is one state.
    """


def nearest(
    codes: NDArray[np.float32], centers: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """
    Find the nearest center of each code.

    :param codes: shape ``(n, features)``
    :param centers: shape ``(C, features)``, at least one
    :return: the places of the centers, shape ``(n,)``, and their distances, shape ``(n,)``
    """
    targets = th.from_numpy(centers)
    squares = targets.square().sum(1)
    places = np.zeros(len(codes), np.int64)
    distances = np.zeros(len(codes), np.float32)
    at_a_time = _rows_at_a_time(len(centers))
    for at in range(0, len(codes), at_a_time):
        rows = th.from_numpy(codes[at : at + at_a_time])
        least, where = th.addmm(squares[None], rows, targets.T, alpha=-2.0).min(1)
        places[at : at + at_a_time] = where.numpy()
        least = (least + rows.square().sum(1)).clamp(min=0.0).sqrt()
        distances[at : at + at_a_time] = least.numpy()
    return places, distances


def _rows_at_a_time(n_others: int) -> int:
    """Return how many codes are compared with so many others at a time."""
    return max(1, min(_AT_A_TIME, _PAIRS_AT_A_TIME // max(n_others, 1)))


def leaders(codes: NDArray[np.float32], radius: float, most: int) -> NDArray[np.float32]:
    """
    Choose codes so that each code is near one of them, and no two of them are near each other.

    :param codes: shape ``(n, features)``
    :param radius: greatest distance at which codes are near
    :param most: greatest number of codes to choose
    :return: the codes that were chosen, shape ``(L, features)``
    """
    chosen = codes[:1]
    for at in range(0, len(codes), _AT_A_TIME):
        rows = codes[at : at + _AT_A_TIME]
        new = rows[nearest(rows, chosen)[1] > radius]
        kept = []
        near = (th.cdist(th.from_numpy(new), th.from_numpy(new)) <= radius).numpy()
        is_left = np.ones(len(new), np.bool_)
        for row in range(len(new)):
            if is_left[row]:
                kept.append(row)
                is_left &= ~near[row]
        chosen = np.concatenate([chosen, new[kept]])[:most]
        if len(chosen) == most:
            break
    return chosen


def means(
    codes: NDArray[np.float32], labels: NDArray[np.int64], n_clusters: int
) -> NDArray[np.float32]:
    """
    Return the mean code of each cluster. Those of empty clusters are zeros.

    :param codes: shape ``(n, features)``
    :param labels: the cluster of each code, shape ``(n,)``
    :param n_clusters: number of clusters
    :return: shape ``(n_clusters, features)``
    """
    counts = np.bincount(labels, minlength=n_clusters)
    ones = np.ones(len(labels), np.float32)
    member = csr_array((ones, (labels, np.arange(len(labels)))), shape=(n_clusters, len(labels)))
    found: NDArray[np.float32] = (member @ codes) / np.maximum(counts, 1)[:, None]
    return found.astype(np.float32)


def interchangeable_distance(
    codes: NDArray[np.float32],
    actions: NDArray[np.integer],
    next_codes: NDArray[np.float32],
    rng: np.random.Generator,
    autonomous: NDArray[np.float32] | None = None,
) -> float:
    """
    Measure how far apart codes of one state typically are.

    Two transitions with one action, from the two nearest of many observations, most often begin in
    one state and lead to one state. So the median distance of what they lead to is that of
    different observations of one state. If something goes on by itself, such as a clock, it must be
    far from equal in the two.

    :param codes: codes of n observations, shape ``(n, features)``
    :param actions: the actions taken there, shape ``(n,)``
    :param next_codes: codes of what they led to, shape ``(n, features)``
    :param rng: chooses the transitions to look at
    :param autonomous: what goes on by itself, of the n observations, shape ``(n, k)``. None:
        nothing
    :return: the distance
    """
    n_rows = _TRANSITIONS_TO_MEASURE if autonomous is None else _TRANSITIONS_WITH_CLOCK
    rows = rng.permutation(len(codes))[:n_rows]
    found = []
    for action in np.unique(actions[rows]):
        of_action = rows[actions[rows] == action]
        if len(of_action) < 2:
            continue
        here = th.from_numpy(codes[of_action])
        places = []
        nearness = []
        for at in range(0, len(here), _AT_A_TIME):
            distances = th.cdist(here[at : at + _AT_A_TIME], here)
            n_rows = len(distances)
            distances[th.arange(n_rows), th.arange(at, at + n_rows)] = th.inf
            if autonomous is not None:
                going_on = th.from_numpy(autonomous[of_action])
                apart = th.cdist(going_on[at : at + _AT_A_TIME], going_on)
                n_at_one_time = max(int(_SHARE_AT_ONE_TIME * len(here)), 1)
                limits = apart.kthvalue(n_at_one_time, dim=1, keepdim=True).values
                distances[apart <= limits] = th.inf
            nearest_distances, nearest_places = distances.min(1)
            places.append(nearest_places.numpy())
            nearness.append(nearest_distances.numpy())
        there = next_codes[of_action]
        offsets = np.linalg.norm(there - there[np.concatenate(places)], axis=1)
        if autonomous is not None:
            near = np.concatenate(nearness)
            offsets = offsets[near <= np.median(near)]
        found.append(offsets)
    return float(np.median(np.concatenate(found))) if found else 0.0


def agreement(
    pairs: NDArray[np.int64],
    labels: NDArray[np.int64],
    actions: NDArray[np.integer],
    next_labels: NDArray[np.int64],
    n_clusters: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """
    Compare what the same actions lead to in two clusters, for many pairs of clusters.

    :param pairs: the clusters, shape ``(P, 2)``
    :param labels: the clusters of n observations, shape ``(n,)``
    :param actions: the actions taken there, shape ``(n,)``
    :param next_labels: the clusters that they led to, shape ``(n,)``
    :param n_clusters: number of clusters
    :return: how well successors agree, about 1 for pieces of one state and 0 if no successor is the
        same, NaN if nothing is known, shape ``(P,)``; and of how many transitions this is known,
        those of the pair's rarer one, shape ``(P,)``
    """
    n_actions = int(actions.max()) + 1
    pair_ids = labels * n_actions + actions
    shape = (n_clusters * n_actions, n_clusters)
    counts = csr_array((np.ones(len(labels)), (pair_ids, next_labels)), shape=shape)
    counts.sum_duplicates()
    totals = counts.sum(axis=1)
    match = np.zeros(len(pairs))
    own = np.zeros(len(pairs))
    known = np.zeros(len(pairs))
    first, second = pairs.T
    for action in range(n_actions):
        rows = [counts[cluster * n_actions + action] for cluster in (first, second)]
        n_first, n_second = (totals[cluster * n_actions + action] for cluster in (first, second))
        is_known = (n_first > 0) & (n_second > 0)
        together = rows[0].multiply(rows[1]).sum(axis=1)
        squares = [row.multiply(row).sum(axis=1) for row in rows]
        # Of two draws of one action, so many have the same successor.
        chances = [
            np.where(n > 1, (square - n) / np.maximum(n * (n - 1), 1), 1.0)
            for square, n in zip(squares, (n_first, n_second), strict=True)
        ]
        weight = np.where(is_known, np.minimum(n_first, n_second), 0.0)
        match += weight * together / np.maximum(n_first * n_second, 1)
        own += weight * np.sqrt(np.maximum(chances[0], 0.0) * np.maximum(chances[1], 0.0))
        known += weight
    return np.divide(match, own, out=np.full(len(pairs), np.nan), where=own > 0), known


def some_transitions(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """
    Choose transitions to find clusters with, if there are too many.

    :param n: number of transitions
    :param rng: chooses them
    :return: their rows, at most 150,000
    """
    if n <= _TRANSITIONS_TO_CLUSTER:
        return np.arange(n)
    return rng.permutation(n)[:_TRANSITIONS_TO_CLUSTER]


def find_clusters(
    codes: NDArray[np.float32],
    actions: NDArray[np.integer],
    next_codes: NDArray[np.float32],
    most: int,
    rng: np.random.Generator,
    autonomous: NDArray[np.float32] | None = None,
) -> Clusters:
    """
    Find clusters of codes that are one state each.

    First there are fine clusters, whose radius is little more than the typical distance of
    interchangeable codes (:func:`interchangeable_distance`). A state may have several of them.
    Those are merged whose centers are near, and from which the same actions lead to the same
    clusters. How near follows from pairs of which much is known.

    :param codes: codes of n observations, shape ``(n, features)``
    :param actions: the actions taken there, shape ``(n,)``
    :param next_codes: codes of what they led to, shape ``(n, features)``
    :param most: greatest number of clusters
    :param rng: chooses transitions to measure distances with
    :param autonomous: what goes on by itself, of the n observations, shape ``(n, k)``. None:
        nothing
    :return: the clusters
    """
    typical = interchangeable_distance(codes, actions, next_codes, rng, autonomous)
    # Codes that are all equal need a radius too.
    radius = max(_FINE_RADIUS * typical, 1e-6)
    centers = leaders(next_codes, radius, most)
    centers = _centers_of(next_codes, nearest(next_codes, centers)[0])
    threshold = radius
    next_labels, _ = nearest(next_codes, centers)
    labels, _ = nearest(codes, centers)
    for _ in range(_MOST_ROUNDS):
        n_before = len(centers)
        pairs, distances = _neighbors(centers, _FARTHEST * radius)
        if len(pairs) == 0:
            break
        agrees, known = agreement(pairs, labels, actions, next_labels, n_before)
        threshold = _threshold(distances, agrees, known, radius)
        is_one = (known >= _MANY_COUNTS) & (agrees >= _SURELY_AGREES)
        is_one |= (distances < threshold) & ~((known >= _FEW_COUNTS) & (agrees < _AGREES))
        merged = _merged(pairs[is_one], n_before)
        labels = merged[labels]
        next_labels = merged[next_labels]
        n_merged = int(merged.max()) + 1
        if n_merged == n_before:
            break
        # Each cluster has next codes, because it was made of some.
        centers = means(next_codes, next_labels, n_merged)
    _, distances = nearest(next_codes, centers)
    return Clusters(centers, _radius(distances, centers), threshold)


def _radius(distances: NDArray[np.float32], centers: NDArray[np.float32]) -> float:
    """
    Return the distance from all centers beyond which a code is of no known cluster.

    :param distances: of codes from their centers, shape ``(n,)``
    :param centers: shape ``(C, features)``
    """
    inside = max(float(np.quantile(distances, _SHARE_INSIDE)), 1e-6)
    _, between = _neighbors(centers, np.inf)
    if len(between) == 0:
        return inside * _MARGIN
    # Most clusters are farther apart than this.
    apart = float(np.quantile(between, _SHARE_NEAREST))
    return max(inside, min(inside * _MARGIN, _SHARE_OF_WAY * apart))


def _centers_of(codes: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean codes of the clusters that have some."""
    used, labels = np.unique(labels, return_inverse=True)
    return means(codes, labels, len(used))


def _neighbors(
    centers: NDArray[np.float32], farthest: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return pairs of centers that are near each other, each once, and their distances."""
    if len(centers) < 2:
        return np.zeros((0, 2), np.int64), np.zeros(0, np.float32)
    targets = th.from_numpy(centers)
    n_neighbors = min(_N_NEIGHBORS, len(centers) - 1)
    found = []
    at_a_time = _rows_at_a_time(len(centers))
    for at in range(0, len(centers), at_a_time):
        distances = th.cdist(targets[at : at + at_a_time], targets)
        n_rows = len(distances)
        places = th.arange(at, at + n_rows)
        distances[th.arange(n_rows), places] = th.inf
        near, others = distances.topk(n_neighbors, largest=False)
        is_near = near <= farthest
        first = places[:, None].expand_as(others)[is_near]
        found.append(th.stack([first, others[is_near]], dim=1).numpy())
    pairs = np.unique(np.sort(np.concatenate(found), axis=1), axis=0)
    return pairs, np.linalg.norm(centers[pairs[:, 0]] - centers[pairs[:, 1]], axis=1)


def _threshold(
    distances: NDArray[np.float32],
    agrees: NDArray[np.float64],
    known: NDArray[np.float64],
    otherwise: float,
) -> float:
    """
    Return the distance that best separates pairs of centers that are one state from others, by the
    pairs of which much is known.

    :param distances: of pairs of centers, shape ``(P,)``
    :param agrees: how well the successors of each pair agree, shape ``(P,)``
    :param known: of how many transitions this is known, shape ``(P,)``
    :param otherwise: the greatest threshold if no pair is one state
    """
    is_one = np.sort(distances[(known >= _MANY_COUNTS) & (agrees >= _SURELY_AGREES)])
    differs = np.sort(distances[(known >= _MANY_COUNTS) & (agrees < _DIFFERS)])
    if len(differs) == 0:
        return otherwise
    if len(is_one) == 0:
        return min(otherwise, float(differs[0]) / 2)
    edges = np.unique(np.concatenate([is_one, differs]))
    edges = np.concatenate([[0.0], (edges[1:] + edges[:-1]) / 2, edges[-1:] * 1.01])
    # A wrong merge is worse than a state in two pieces.
    split = len(is_one) - np.searchsorted(is_one, edges)
    confused = np.searchsorted(differs, edges)
    return float(edges[np.argmin(split + 10.0 * confused)])


def _merged(pairs: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
    """Return a number for each cluster, the same for those that pairs connect."""
    graph = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (n_clusters, n_clusters))
    _, numbers = connected_components(graph, directed=False)
    found: NDArray[np.int64] = numbers.astype(np.int64)
    return found
