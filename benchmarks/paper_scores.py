"""What the paper prints about its own scores, beside what follows from its tables: ``python -m benchmarks.paper_scores``."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.scores import DATA, count_above, human_normalized, median, read_table, relative_improvement

AUXILIARY, PRETRAINING = "paper_auxiliary_scores", "paper_pretraining_scores"
"""Files of the paper's tables."""

PRINTED = (
    (AUXILIARY, "a2c", "A2C", 32.8, 21),
    (AUXILIARY, "pixel_control", "Pixel-control", 34.6, 20),
    (AUXILIARY, "reward_prediction", "Reward-prediction", 35.2, 21),
    (AUXILIARY, "many_goals", "Many-goals", 42.3, 24),
    (PRETRAINING, "a2c", "A2C (no pre-training)", 32.8, 21),
    (PRETRAINING, "reward_prediction_pretraining", "A2C + RP pre-training", 31.5, 18),
    (PRETRAINING, "many_goals_pretraining", "A2C + MG pre-training", 39.2, 23),
)
"""The lines of both summaries: the table summed up, its column, the agent's title, the median in percent, games above half."""


def summaries() -> pd.DataFrame:
    """
    :return: the lines of the paper's summaries: human-normalized "median" and games "above_half" of a human, each as
        "_printed", as it follows from the paper's table, and whether that is the same to the digits printed ("_follows")
    """
    rows = []
    for file, column, title, printed, above in PRINTED:
        table = read_table(DATA / f"{file}.csv")
        scores = human_normalized(table.columns[column], table.games)[None]
        found, count = round(float(median(scores)), 4), int(count_above(scores))
        follows = {True: "yes", False: "no"}
        rows.append(
            {
                "summary": f"{file.removeprefix('paper_').removesuffix('_scores')}, {title}",
                "median_printed": round(printed / 100, 3),
                "median": found,
                "median_follows": follows[f"{100 * found:.1f}" == f"{printed:.1f}"],
                "above_half_printed": above,
                "above_half": count,
                "above_half_follows": follows[count == above],
            }
        )
    return pd.DataFrame(rows)


def improvements() -> dict[str, dict[str, float]]:
    """:return: the paper's five figures of bars: by title, the relative improvement of each game, from its tables"""
    found = {}
    for file, column, *_ in PRINTED:
        ours = {AUXILIARY: "many_goals", PRETRAINING: "many_goals_pretraining"}[file]
        if column != ours:
            table = read_table(DATA / f"{file}.csv")
            bars = relative_improvement(table.columns[ours], table.columns[column], table.games)
            found[f"{ours} over {column}"] = dict(zip(table.games, bars.tolist(), strict=True))
    return found


def main() -> None:
    """Print both summaries, what follows from the tables, and how many of the bars are positive."""
    print(summaries().to_string(index=False))
    for title, bars in improvements().items():
        values = np.array(list(bars.values()))
        print(f"{title}: better in {(values > 0).sum()} games, worse in {(values < 0).sum()} of {len(values)}")


if __name__ == "__main__":
    main()
