"""
Compare A2C with and without many goals in two steps, in MinAtar's five games.

In the root of the repository:

    PYTHONPATH=. python docs/results/minatar/compare.py two-steps-comparison.csv
"""

import sys
from pathlib import Path

import pandas as pd

from benchmarks.scores import (
    Scores,
    estimated,
    interquartile_mean,
    normalized,
    probability_of_improvement,
)

FOLDER = Path(__file__).parent
GAMES = ["asterix", "breakout", "freeway", "seaquest", "space_invaders"]


def scores_of(runs: pd.DataFrame, agent: str, column: str) -> Scores:
    """
    Return normalized scores of the seeds that an agent has in all games, a row a seed.

    :param runs: a row a run
    :param agent: name of the agent
    :param column: the column with the scores
    """
    own = runs[runs["agent"] == agent]
    table = own.pivot(index="seed", columns="game", values=column).reindex(columns=GAMES)
    return normalized(table.dropna().to_numpy(), GAMES)


def main(output: str) -> None:
    """
    Write a table with a row for each agent.

    :param output: the CSV file to write
    """
    runs = pd.read_csv(FOLDER / "two-steps.csv")
    rows = []
    for agent in sorted(runs["agent"].unique()):
        row: dict[str, float | str] = {"agent": agent}
        for column in ("score", "mean_return"):
            own = scores_of(runs, agent, column)
            others = scores_of(runs, "a2c", column)
            row["seeds"] = len(own)
            row |= estimated(column, interquartile_mean, own)
            if agent != "a2c":
                row |= estimated(f"{column}_better", probability_of_improvement, own, others)
        for game in GAMES:
            of_game = runs[(runs["agent"] == agent) & (runs["game"] == game)]
            row[f"score_{game}"] = of_game["score"].mean()
            row[f"runs_{game}"] = len(of_game)
        if agent != "a2c":
            paired = runs[runs["agent"] == agent].merge(
                runs[runs["agent"] == "a2c"], on=["game", "seed"], suffixes=("", "_a2c")
            )
            row["pairs"] = len(paired)
            row["pairs_better"] = int((paired["score"] > paired["score_a2c"]).sum())
            row["share"] = runs.loc[runs["agent"] == agent, "share"].median()
            row["cosine"] = runs.loc[runs["agent"] == agent, "cosine"].median()
        rows.append(row)
    table = pd.DataFrame(rows).round(4)
    table.to_csv(output, index=False)
    print(table.T.to_string())


if __name__ == "__main__":
    main(sys.argv[1])
