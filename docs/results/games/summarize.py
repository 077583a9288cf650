"""
Sum up the runs of five million steps in Atari games, and draw their curves.

In the root of the repository:

    PYTHONPATH=. python docs/results/games/summarize.py
"""

from pathlib import Path

import pandas as pd

from benchmarks.report import figures, tables
from benchmarks.scores import read_table

FOLDER = Path(__file__).parent
RUNS = FOLDER / "five-million-steps.csv"
CURVES = FOLDER / "five-million-steps-curves.csv"
LABELS = {
    "a2c": "A2C",
    "many-goals": "A2C with many goals",
    "shuffled-goals": "A2C with shuffled goals",
}
"""What the agents are called in figures."""


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """
    Return a row for each game and agent.

    :param runs: a row a run
    :return: the scores of the seeds, in their order; means over seeds; and the scores of random
        play and of the paper
    """
    random = read_table("atari_human_random_49")["random"]
    rows = []
    for (game, agent), alike in runs.sort_values("seed").groupby(["game", "agent"]):
        rows.append(
            {
                "game": game,
                "agent": agent,
                "seeds": len(alike),
                "scores": " ".join(f"{score:g}" for score in alike["score"]),
                "score": alike["score"].mean(),
                "mean_return": alike["mean_return"].mean(),
                "random": random[game],
                "paper_10_million_steps": alike["paper"].iloc[0],
                "hours": alike["training_seconds"].mean() / 3600,
                "share": alike["share"].mean(),
                "cosine": alike["cosine"].mean(),
            }
        )
    return pd.DataFrame(rows).round(4)


def draw(curves: pd.DataFrame) -> None:
    """
    Draw a figure for each game: episode returns against steps, a line a seed.

    :param curves: a row for each point of a curve
    """
    named = curves.rename(columns={"game": "panel", "episode_return": "value"})
    named["agent"] = named["agent"].map(LABELS)
    by_kind = {"steps": named, "hours": tables.against_hours(named)}
    labels = {"steps": "environment steps", "hours": "hours of training"}
    for kind, points in by_kind.items():
        for game, lines in tables.bands(points).groupby("panel"):
            figure = figures.curves(
                lines,
                [label for label in LABELS.values() if label in set(lines["agent"])],
                figures.MEDIUM,
                title=game,
                xlabel=labels[kind],
                ylabel="episode return",
            )
            text, _ = figures.svg(figure, "")
            (FOLDER / f"{str(game).lower()}-{kind}.svg").write_text(text, encoding="utf-8")


def main() -> None:
    """Write the table and the figures beside this file."""
    table = summary(pd.read_csv(RUNS))
    table.to_csv(FOLDER / "five-million-steps-summary.csv", index=False)
    print(table.T.to_string())
    draw(pd.read_csv(CURVES))


if __name__ == "__main__":
    main()
