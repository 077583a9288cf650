import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from benchmarks import paper_scores, scores
from benchmarks.paper_scores import improvements, summaries

SCORES = arrays(np.float64, (2, 4), elements=st.integers(-4, 8).map(float))
"""Scores of few values, so that there are ties."""


def test_the_game_at_the_median_of_pretraining_is_at_half_and_not_above():
    """Boxing, (2.2 - 0.1) / (4.3 - 0.1), must not count by the last bit of a quotient."""
    assert scores.count_above(scores.normalized([[2.2]], ["Boxing"])) == 0
    assert [scores.count_above(np.array([[0.5 + above]])) for above in (1e-15, 1e-9)] == [0, 1]


def test_the_papers_summaries_beside_its_tables(capsys):
    found = summaries().drop(columns="summary")
    assert (100 * found["median"]).tolist() == pytest.approx(
        [32.78, 34.63, 35.2, 42.34, 32.78, 33.75, 50.0]
    )
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
    reference, auxiliary, pretraining = map(scores.read_table, names)
    assert list(reference.index) == list(auxiliary.index) == list(pretraining.index)
    assert len(set(reference.index)) == 49
    assert "Pitfall" in reference.index
    assert "Hero" not in reference.index
    np.testing.assert_array_equal(auxiliary["a2c"], pretraining["a2c"])
    assert (reference["human"] > reference["random"]).all()
    for name in names:
        lines = (scores.DATA / f"{name}.csv").read_text().splitlines()[1:]
        assert all(re.fullmatch(r"\w+(,-?\d+\.\d)+", line) for line in lines)


def test_normalized_scores_by_hand():
    assert scores.references(["Pong", "Breakout"]).to_numpy().tolist() == [
        [-20.7, 9.3],
        [1.7, 31.8],
    ]
    raw = [[-20.7, 31.8], [9.3, 1.7], [-5.7, 61.9]]
    np.testing.assert_allclose(
        scores.normalized(raw, ["Pong", "Breakout"]), [[0, 1], [1, 0], [0.5, 2]], atol=1e-12
    )
    with pytest.raises(
        ValueError, match=r"scores must be of shape \(\.\.\., 2\), one for each game, got \(3,\)"
    ):
        scores.normalized([1, 2, 3], ["Pong", "Breakout"])
    with pytest.raises(ValueError, match="no scores of Hero; there are those of Alien"):
        scores.normalized([1], ["Hero"])


def test_bars_by_hand():
    # Scores of random play are -20.7, 1.7 and 0, those of a human 9.3, 31.8 and 29.6.
    games = ["Pong", "Breakout", "Freeway"]
    ours = [[9.3, 401.7, 0.0], [9.3, 401.7, 14.8]]
    theirs = [-5.7, 201.7, 0.0]
    # Pong is (9.3 + 5.7) / (9.3 + 20.7). In Breakout the human is surpassed: 200 / (201.7 - 1.7).
    # In Freeway the other agent plays like random: 7.4 / 29.6.
    np.testing.assert_allclose(scores.relative_improvement(ours, theirs, games), [0.5, 1.0, 0.25])
    np.testing.assert_allclose(scores.relative_improvement(theirs, ours, games)[:1], [-0.5])


def test_bars_of_the_paper_are_finite_and_none_is_zero_by_mistake():
    bars = improvements()
    assert np.isfinite([list(values.values()) for values in bars.values()]).all()
    # The table has 2045339.7 and 173983.7; random play has 12850 and a human 29028.1.
    assert bars["many_goals over a2c"]["Atlantis"] == pytest.approx(
        (2045339.7 - 173983.7) / (173983.7 - 12850.0)
    )
    same = {game for game, value in bars["many_goals over a2c"].items() if value == 0}
    assert same == {"Enduro", "Freeway", "IceHockey", "Tennis", "Venture"}


def test_statistics_by_hand():
    # The means of the games are 0.1, 0.6, 3 and 6.
    runs = np.array([[0.0, 0.4, 2.0, 8.0], [0.2, 0.8, 4.0, 4.0]])
    assert scores.median(runs) == 1.8
    assert scores.count_above(runs) == 3
    assert scores.count_above(runs, 3.0) == 1
    # In order the scores are 0, 0.2 | 0.4, 0.8, 2, 4 | 4, 8.
    assert scores.interquartile_mean(runs) == pytest.approx((0.4 + 0.8 + 2 + 4) / 4)
    assert scores.optimality_gap(runs) == pytest.approx((1 + 0.6 + 0 + 0 + 0.8 + 0.2 + 0 + 0) / 8)
    others = np.array([[0.1, 0.4, 5.0, 8.0]])
    # 0 and 0.2 against 0.1 are a half; 0.4 and 0.8 against 0.4 are a tie and a win. The third game
    # is never won, and the last has a tie and a loss.
    assert scores.probability_of_improvement(runs, others) == pytest.approx(
        (0.5 + 0.75 + 0 + 0.25) / 4
    )


@given(SCORES, SCORES)
def test_probability_of_improvement_is_the_statistic_of_mann_and_whitney(x, y):
    expected = []
    for pair in np.concatenate([x, y]).T:
        # Mann and Whitney have no statistic of four scores that are all alike.
        if (pair[0] == pair).all():
            expected.append(0.5)
        else:
            found = stats.mannwhitneyu(pair[:2], pair[2:], method="asymptotic")
            expected.append(found.statistic / 4)
    assert scores.probability_of_improvement(x, y) == pytest.approx(np.mean(expected))


def three_seeds(seed, n_games=12):
    """Draw scores of three runs of each game."""
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=n_games) + 0.4 * rng.normal(size=(3, n_games))


@pytest.mark.parametrize(
    "name", ["median", "interquartile_mean", "optimality_gap", "probability_of_improvement"]
)
def test_intervals_are_those_of_loops(name):
    """The ends are percentiles of the statistic of runs that are drawn game by game."""
    statistic = getattr(scores, name)
    runs = [three_seeds(0)]
    if name == "probability_of_improvement":
        runs.append(three_seeds(1)[:2])
    value, *ends = scores.interval(statistic, *runs)
    assert value == statistic(*runs)
    assert (value, *ends) == scores.interval(statistic, *runs)
    rng = np.random.default_rng(1)
    draws = [
        [np.stack([rng.choice(game, len(each)) for game in each.T], axis=1) for each in runs]
        for _ in range(2000)
    ]
    low, high = np.percentile([statistic(*drawn) for drawn in draws], [2.5, 97.5])
    np.testing.assert_allclose(ends, [low, high], atol=0.1 * (high - low))


@pytest.mark.parametrize("runs", [np.ones((1, 4)), np.ones(4), np.array([[1.0], [np.nan]])])
def test_intervals_of_nothing_are_refused(runs):
    with pytest.raises(
        ValueError, match=r"scores must be finite and of shape \(\.\.\., n_runs >= 2, n_games\)"
    ):
        scores.interval(scores.median, runs)
