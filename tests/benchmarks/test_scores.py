import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from benchmarks import paper_scores
from benchmarks.paper_scores import improvements, summaries
from benchmarks.scores import (
    DATA,
    count_above,
    interquartile_mean,
    interval,
    median,
    normalized,
    optimality_gap,
    probability_of_improvement,
    read_table,
    references,
    relative_improvement,
)

# Of few values, so that there are ties.
SOME_SCORES = st.tuples(st.integers(1, 5), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-4, 8).map(lambda number: number / 4))
)


def percent(value):
    return f"{100 * float(value):.2f}%"


def test_the_game_at_the_median_of_pretraining_is_at_half_and_not_above():
    """Boxing, (2.2 - 0.1) / (4.3 - 0.1): whether it counts must not hang on the last bit of a quotient."""
    assert count_above(normalized([[2.2]], ["Boxing"])) == 0
    assert count_above(np.array([[0.5 + 1e-15]])) == 0
    assert count_above(np.array([[0.5 + 1e-9]])) == 1


def test_the_papers_summaries_beside_its_tables(capsys):
    found = summaries().drop(columns="summary")
    assert (100 * found["median"]).tolist() == pytest.approx([32.78, 34.63, 35.2, 42.34, 32.78, 33.75, 50.0])
    assert found["above_half"].tolist() == [21, 20, 20, 24, 21, 20, 24]
    assert found["median_follows"].tolist() == ["yes"] * 5 + ["no"] * 2
    assert found["above_half_follows"].tolist() == ["yes", "yes", "no", "yes", "yes", "no", "no"]
    paper_scores.main()
    output = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "A2C + MG pre-training 0.392 0.5000 no 23 24 no" in output
    assert "many_goals over a2c: better in 31 games, worse in 13 of 49" in output


def test_the_tables_are_of_the_same_games_and_agent_with_digits_as_printed():
    """Every number has at most one decimal, as in the paper; nothing was computed."""
    names = ("atari_human_random_49", "paper_auxiliary_scores", "paper_pretraining_scores")
    reference, auxiliary, pretraining = map(read_table, names)
    assert list(reference.index) == list(auxiliary.index) == list(pretraining.index)
    assert (len(set(reference.index)), "Pitfall" in reference.index, "Hero" in reference.index) == (49, True, False)
    np.testing.assert_array_equal(auxiliary["a2c"], pretraining["a2c"])
    assert (reference["human"] > reference["random"]).all()
    for name in names:
        lines = (DATA / f"{name}.csv").read_text().splitlines()[1:]
        assert all(re.fullmatch(r"\w+(,-?\d+\.\d)+", line) for line in lines)


def test_normalized_scores_by_hand():
    assert references(["Pong", "Breakout"]).to_numpy().tolist() == [[-20.7, 9.3], [1.7, 31.8]]
    raw = [[-20.7, 31.8], [9.3, 1.7], [-5.7, 61.9]]
    np.testing.assert_allclose(normalized(raw, ["Pong", "Breakout"]), [[0, 1], [1, 0], [0.5, 2]], atol=1e-12)
    with pytest.raises(ValueError, match=r"scores must be of shape \(\.\.\., 2\), one for each game, got \(3,\)"):
        normalized([1, 2, 3], ["Pong", "Breakout"])
    with pytest.raises(ValueError, match="no scores of Hero; there are those of Alien"):
        normalized([1], ["Hero"])


def test_bars_by_hand():
    games = ["Pong", "Breakout", "Freeway"]  # random -20.7, 1.7, 0; human 9.3, 31.8, 29.6
    ours, theirs = [[9.3, 401.7, 0.0], [9.3, 401.7, 14.8]], [-5.7, 201.7, 0.0]
    # (9.3 + 5.7) / (9.3 + 20.7); the human is surpassed: 200 / (201.7 - 1.7); the other plays like random: 7.4 / 29.6
    np.testing.assert_allclose(relative_improvement(ours, theirs, games), [0.5, 1.0, 0.25])
    np.testing.assert_allclose(relative_improvement(theirs, ours, games)[:1], [-0.5])


def test_bars_of_the_paper_are_finite_and_none_is_zero_by_mistake():
    bars = improvements()
    assert len(bars) == 5
    for values in bars.values():
        assert len(values) == 49
        assert np.isfinite(list(values.values())).all()
    # From the table: 2045339.7 and 173983.7, random 12850, human 29028.1.
    assert bars["many_goals over a2c"]["Atlantis"] == pytest.approx((2045339.7 - 173983.7) / (173983.7 - 12850.0))
    same = {game for game, value in bars["many_goals over a2c"].items() if value == 0}
    assert same == {"Enduro", "Freeway", "IceHockey", "Tennis", "Venture"}


def test_statistics_by_hand():
    scores = np.array([[0.0, 0.4, 2.0, 8.0], [0.2, 0.8, 4.0, 4.0]])  # means 0.1, 0.6, 3, 6
    assert median(scores) == 1.8
    assert count_above(scores) == 3
    assert count_above(scores, 3.0) == 1
    assert interquartile_mean(scores) == pytest.approx((0.4 + 0.8 + 2 + 4) / 4)  # sorted: 0 .2 | .4 .8 2 4 | 4 8
    assert optimality_gap(scores) == pytest.approx((1 + 0.6 + 0 + 0 + 0.8 + 0.2 + 0 + 0) / 8)
    assert optimality_gap(scores, 4.0) == pytest.approx((4 + 3.6 + 2 + 0 + 3.8 + 3.2 + 0 + 0) / 8)
    others = np.array([[0.1, 0.4, 5.0, 8.0]])
    # 0 and 0.2 against 0.1: a half; 0.4 and 0.8 against 0.4: a tie and a win; never; a tie and a loss
    assert probability_of_improvement(scores, others) == pytest.approx((0.5 + 0.75 + 0 + 0.25) / 4)


@given(SOME_SCORES)
def test_statistics_are_those_of_loops(scores):
    means = sorted(np.mean(column) for column in scores.T)
    n = len(means)
    assert median(scores) == pytest.approx((means[(n - 1) // 2] + means[n // 2]) / 2)
    assert count_above(scores) == sum(mean > 0.5 for mean in np.round(means, 9))
    pooled = sorted(scores.ravel().tolist())
    cut = len(pooled) // 4
    assert interquartile_mean(scores) == pytest.approx(np.mean(pooled[cut : len(pooled) - cut]))
    assert optimality_gap(scores) == pytest.approx(np.mean([max(0.0, 1 - score) for score in pooled]))


@given(SOME_SCORES.flatmap(lambda x: st.tuples(st.just(x), arrays(np.float64, (3, x.shape[1]), elements=st.integers(-4, 8)))))
def test_probability_of_improvement_is_the_statistic_of_mann_and_whitney(pair):
    x, y = pair
    expected = [
        stats.mannwhitneyu(x[:, game], y[:, game], method="asymptotic").statistic / (len(x) * len(y))
        for game in range(x.shape[1])
        if not (x[0, game] == x[:, game]).all() or not (y == x[0, game])[:, game].all()
    ]
    expected += [0.5] * (x.shape[1] - len(expected))
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(expected))
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)


STATISTICS = [median, count_above, interquartile_mean, optimality_gap]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_statistics_of_many_at_once(statistic):
    scores = np.random.default_rng(0).normal(size=(4, 5, 3, 7))
    each = [[statistic(scores[i, j]) for j in range(5)] for i in range(4)]
    np.testing.assert_allclose(statistic(scores), each)
    found = interval(statistic, scores, resamples=50)  # each as by itself
    np.testing.assert_allclose(found.low[1, 2], interval(statistic, scores[1, 2], resamples=50).low)
    others = scores[..., :2, :]
    each = [[probability_of_improvement(scores[i, j], others[i, j]) for j in range(5)] for i in range(4)]
    np.testing.assert_allclose(probability_of_improvement(scores, others), each)


def three_seeds(seed, n_games=12):
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=n_games) + 0.4 * rng.normal(size=(3, n_games))


def by_loops(statistic, *scores, resamples=3000):
    """Percentiles of the statistic of what is drawn game by game."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(resamples):
        drawn = []
        for each in scores:
            columns = [rng.choice(each[:, game], len(each)) for game in range(each.shape[1])]
            drawn.append(np.stack(columns, axis=1))
        found.append(statistic(*drawn))
    return np.percentile(found, [2.5, 97.5])


@pytest.mark.parametrize("statistic", [median, interquartile_mean, optimality_gap, probability_of_improvement])
def test_intervals_are_those_of_loops(statistic):
    scores = (three_seeds(0), three_seeds(1)[:2])[: 1 + (statistic is probability_of_improvement)]
    found = interval(statistic, *scores, resamples=3000)
    assert found.value == statistic(*scores)
    low, high = by_loops(statistic, *scores)
    np.testing.assert_allclose([found.low, found.high], [low, high], atol=0.1 * (high - low))


def test_intervals_hold_what_is_so_as_often_as_they_say():
    """With many runs; with three, a bootstrap is too narrow."""
    rng = np.random.default_rng(0)
    truth = np.arange(6) / 5.0
    hits = 0
    for trial in range(200):
        scores = truth + 0.1 * rng.normal(size=(12, 6))
        found = interval(optimality_gap, scores, level=0.8, resamples=300, seed=trial)
        expected = np.mean(np.maximum(0.0, 1.0 - (truth + 0.1 * rng.normal(size=(20_000, 6)))))
        hits += found.low <= expected <= found.high
    assert 0.68 <= hits / 200 <= 0.88


def test_intervals_are_repeatable_and_wider_where_they_should_be():
    scores = three_seeds(0)
    assert interval(median, scores) == interval(median, scores)
    assert interval(median, scores) != interval(median, scores, seed=1)
    narrow, wide = (interval(interquartile_mean, scores, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("scores", [np.ones((1, 4)), np.ones(4), np.array([[1.0], [np.nan]])])
def test_intervals_of_nothing_are_refused(scores):
    with pytest.raises(ValueError, match=r"scores must be finite and of shape \(\.\.\., n_runs >= 2, n_games\)"):
        interval(median, scores)


@pytest.mark.filterwarnings("ignore")  # of the reference's own packages
@pytest.mark.parametrize("seed", range(2))
def test_rliable_agrees(seed):
    library, metrics = (pytest.importorskip(f"rliable.{name}") for name in ("library", "metrics"))
    scores, others = three_seeds(seed), three_seeds(seed + 10)
    for ours, theirs, pair, reps in (
        (median, metrics.aggregate_median, (scores,), 2000),
        (interquartile_mean, metrics.aggregate_iqm, (scores,), 2000),
        (optimality_gap, metrics.aggregate_optimality_gap, (scores,), 2000),
        (probability_of_improvement, metrics.probability_of_improvement, (scores, others), 500),
    ):
        # a default argument, as the function is called within the loop only
        given = pair if len(pair) > 1 else pair[0]
        points, ends = library.get_interval_estimates({"x": given}, lambda *x, f=theirs: np.array([f(*x)]), reps=reps)
        found = interval(ours, *pair, resamples=3000)
        assert found.value == pytest.approx(points["x"][0])
        low, high = ends["x"].ravel()
        np.testing.assert_allclose([found.low, found.high], [low, high], atol=0.15 * (high - low))
