"""
The paper's own summaries of its scores, beside what follows from its tables.

``python -m benchmarks.paper_scores`` prints them.
"""

from __future__ import annotations

import pandas as pd

from benchmarks.scores import count_above, median, normalized, read_table, relative_improvement

AUXILIARY = "paper_auxiliary_scores"
"""The paper's table of scores with auxiliary tasks."""

PRETRAINING = "paper_pretraining_scores"
"""The paper's table of scores after pre-training."""

OURS = {AUXILIARY: "many_goals", PRETRAINING: "many_goals_pretraining"}
"""The column of many goals in each table."""

PRINTED = (
    (AUXILIARY, "a2c", "A2C", 32.8, 21),
    (AUXILIARY, "pixel_control", "Pixel-control", 34.6, 20),
    (AUXILIARY, "reward_prediction", "Reward-prediction", 35.2, 21),
    (AUXILIARY, "many_goals", "Many-goals", 42.3, 24),
    (PRETRAINING, "a2c", "A2C (no pre-training)", 32.8, 21),
    (PRETRAINING, "reward_prediction_pretraining", "A2C + RP pre-training", 31.5, 18),
    (PRETRAINING, "many_goals_pretraining", "A2C + MG pre-training", 39.2, 23),
)
"""
The lines of both summaries.

They are the table summed up, its column, the agent's title, the median in percent, and the number
of games with more than half the human score.
"""


def summaries() -> pd.DataFrame:
    """
    Compare the paper's summaries with its tables.

    :return: a row for each line of the summaries; columns that end in "_printed" have the paper's
        numbers, those that end in "_follows" say whether they agree with its tables
    """
    rows = []
    for file, column, title, printed, above in PRINTED:
        scores = read_table(file)[column]
        human = normalized(scores, scores.index)[None]
        found = round(float(median(human)), 4)
        count = int(count_above(human))
        summary = f"{file.removeprefix('paper_').removesuffix('_scores')}, {title}"
        same = (f"{100 * found:.1f}" == f"{printed:.1f}", count == above)
        follows = ["yes" if each else "no" for each in same]
        rows.append([summary, round(printed / 100, 3), found, follows[0], above, count, follows[1]])
    ends = ("_printed", "", "_follows")
    return pd.DataFrame(
        rows,
        columns=["summary", *(name + end for name in ("median", "above_half") for end in ends)],
    )


def improvements() -> dict[str, dict[str, float]]:
    """
    Compute the paper's five figures of bars from its tables.

    :return: for each title, the relative improvement of each game
    """
    found = {}
    for file, column, *_ in PRINTED:
        ours = OURS[file]
        if column != ours:
            table = read_table(file)
            bars = relative_improvement(table[ours], table[column], table.index)
            found[f"{ours} over {column}"] = dict(zip(table.index, bars.tolist(), strict=True))
    return found


def main() -> None:
    """Print both summaries, what follows from the tables, and how many bars are positive."""
    print(summaries().to_string(index=False))
    for title, bars in improvements().items():
        better = sum(bar > 0 for bar in bars.values())
        worse = sum(bar < 0 for bar in bars.values())
        print(f"{title}: better in {better} games, worse in {worse} of {len(bars)}")


if __name__ == "__main__":
    main()
