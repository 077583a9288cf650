"""What goes on by itself over resets of a world, and is left out of learned states."""

import numpy as np
import pytest
from gymnasium import spaces

from sb3_manygoals.world import LearnedStates
from sb3_manygoals.world.autonomous import (
    draw_alike,
    find_autonomous,
    pairs_over_resets,
    steps_since_reset,
)

N_CELLS = 6
ROUND = 8
SPACE = spaces.Box(-2.0, 3.0, (N_CELLS + ROUND,), np.float32)


def walks(n_times, n_envs, seed, clock, length=8):
    """
    Return random walks on a line of cells, in episodes that begin anywhere, with a clock beside.

    :param clock: function of the time since training began, of the time since the reset, and of the
        number of the environment, that tells what the clock shows; None if it shows nothing
    """
    rng = np.random.default_rng(seed)
    cells = rng.integers(N_CELLS, size=n_envs)
    ends = rng.integers(1, length + 1, size=n_envs)
    since = np.zeros(n_envs, np.int64)

    def look(time):
        seen = np.eye(N_CELLS)[cells]
        shown = np.zeros((n_envs, ROUND))
        if clock is not None:
            times = clock(time, since, np.arange(n_envs)) % ROUND
            shown = np.eye(ROUND)[times]
        noise = rng.uniform(-0.1, 0.1, (n_envs, N_CELLS + ROUND))
        return (np.concatenate([seen, shown], axis=1) + noise).astype(np.float32)

    observations = [look(0)]
    truth = [cells.copy()]
    places, actions, next_places = [], [], []
    here = np.arange(n_envs)
    n_seen = n_envs
    for time in range(1, n_times + 1):
        action = rng.integers(2, size=n_envs)
        cells = np.clip(cells + 2 * action - 1, 0, N_CELLS - 1)
        since += 1
        observations.append(look(time))
        truth.append(cells.copy())
        places.append(here)
        actions.append(action)
        next_places.append(np.arange(n_seen, n_seen + n_envs))
        here = next_places[-1].copy()
        n_seen += n_envs
        over = since >= ends
        if over.any():
            cells = np.where(over, rng.integers(N_CELLS, size=n_envs), cells)
            ends = np.where(over, rng.integers(1, length + 1, size=n_envs), ends)
            since[over] = 0
            observations.append(look(time)[over])
            truth.append(cells[over])
            here[over] = np.arange(n_seen, n_seen + over.sum())
            n_seen += int(over.sum())
    columns = [np.concatenate(each) for each in (observations, places, actions, next_places, truth)]
    return tuple(columns)


def found_in(seen, n_envs):
    observations, places, _, next_places, _ = seen
    rng = np.random.default_rng(0)
    streams = (SPACE, observations, places, next_places, n_envs)
    return find_autonomous(*streams, 300, 64, 1e-3, rng)


def on_the_wall(time, since, envs):
    """A clock that goes on over resets, and differs between environments."""
    return time + 3 * envs


def layout(time, since, envs):
    """No clock, but something that differs between environments and never changes."""
    return envs


def since_reset(time, since, envs):
    """A clock that begins anew with each episode."""
    return since


def test_steps_since_resets_are_those_of_each_environment():
    # Two environments, five times. The second one is reset after its second step.
    places = np.array([0, 1, 2, 3, 4, 20, 6, 7, 8, 9])
    next_places = np.array([2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    since = steps_since_reset(places, next_places, 2)
    assert since.T.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]]


@pytest.mark.parametrize("n_envs", [1, 3])
def test_pairs_are_those_of_a_loop_over_all_transitions(n_envs):
    _, places, _, next_places, _ = walks(60, n_envs, 1, None)
    pairs = pairs_over_resets(places, next_places, n_envs, fewest=1)
    expected = set()
    since = steps_since_reset(places, next_places, n_envs)
    for number, lag in enumerate((1, 4, 16, 64)):
        for time in range(lag, 60):
            for env in range(n_envs):
                begin = time - since[time, env]
                # The episode began after the lag did, and it is known when.
                if begin > 0 and time - lag < begin:
                    first = places[(time - lag) * n_envs + env]
                    last = next_places[time * n_envs + env]
                    expected.add((int(first), number, int(last)))
    found = list(zip(*(column.tolist() for column in pairs[:3]), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == expected
    # The groups are all pairs, each once.
    in_groups = np.concatenate(
        [np.arange(group.start, group.stop) for of_lag in pairs.groups for group in of_lag]
    )
    assert np.sort(in_groups).tolist() == list(range(len(found)))
    env_of = {int(place): row % n_envs for row, place in enumerate(next_places)}
    assert pairs.envs.tolist() == [env_of[place] for place in pairs.next_places.tolist()]


def test_a_group_has_one_lag_and_one_number_of_steps_since_the_reset():
    _, places, _, next_places, _ = walks(200, 2, 1, None)
    pairs = pairs_over_resets(places, next_places, 2, fewest=10)
    since = dict(
        zip(next_places.tolist(), steps_since_reset(places, next_places, 2).ravel(), strict=True)
    )
    draw = pairs.draw(32)
    for seed in range(20):
        rows = draw(np.random.default_rng(seed))
        assert len(set(pairs.lags[rows].tolist())) == 1
        assert len({since[place] for place in pairs.next_places[rows].tolist()}) == 1


def test_a_clock_that_goes_on_over_resets_is_found_and_nothing_else():
    n_envs = 16
    clock = found_in(walks(1_000, n_envs, 0, on_the_wall), n_envs)
    assert clock.gain > 0.5
    assert found_in(walks(1_000, n_envs, 0, None), n_envs) == (0.0, None)
    # One that begins anew with each episode tells nothing about the next one.
    assert found_in(walks(1_000, n_envs, 0, since_reset), n_envs) == (0.0, None)
    # What stays the same in an environment, such as its layout, does not go on.
    assert found_in(walks(1_000, n_envs, 0, layout), n_envs) == (0.0, None)
    # In a world that is never reset, nothing can be told.
    never = found_in(walks(1_000, n_envs, 0, on_the_wall, length=10_000), n_envs)
    assert np.isnan(never.gain)
    assert never.codes is None


def test_transitions_are_drawn_with_those_nearest_to_them():
    codes = np.repeat(np.arange(10.0, dtype=np.float32), 100)[:, None]
    draw = draw_alike(codes, 50)
    for seed in range(10):
        rows = draw(np.random.default_rng(seed))
        assert len(rows) == 50
        assert len(np.unique(codes[rows])) == 1


def test_states_leave_out_a_clock():
    n_envs = 16
    observations, places, actions, next_places, truth = walks(500, n_envs, 0, on_the_wall)
    states = LearnedStates(SPACE, 2_000, n_features=16, n_hidden=64, n_updates=600, batch_size=64)
    ids = states.learn(observations, places, actions, next_places, 2, n_envs=n_envs)
    assert states.autonomous_gain > 0.5
    # With the clock, there would be eight times as many states as cells.
    assert N_CELLS <= len(states) <= 3 * N_CELLS
    counts = np.zeros((len(states), N_CELLS))
    np.add.at(counts, (ids, truth), 1)
    assert counts.max(axis=1).sum() / len(ids) > 0.99


def test_transitions_in_no_order_of_time_tell_nothing():
    n_envs = 16
    observations, places, _, next_places, _ = walks(1_000, n_envs, 0, on_the_wall)
    # As if they were of one environment.
    rng = np.random.default_rng(0)
    found = find_autonomous(SPACE, observations, places, next_places, 1, 300, 64, 1e-3, rng)
    assert np.isnan(found.gain)
    assert found.codes is None


def test_transitions_must_be_as_many_for_each_environment():
    observations, places, actions, next_places, _ = walks(10, 2, 0, None)
    with pytest.raises(ValueError, match="as many for each of 3 environments, got 20"):
        LearnedStates(SPACE, 100).learn(observations, places, actions, next_places, 2, n_envs=3)
