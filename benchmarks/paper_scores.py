"""What the paper prints about its own scores, beside what follows from them: ``python -m benchmarks.paper_scores``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.scores import DATA, count_above, human_normalized, median, read_table, relative_improvement


@dataclass(frozen=True)
class Printed:
    """
    A line of a summary of the paper.

    :ivar table: name of the file of the scores that it summarizes
    :ivar agent: its column
    :ivar title: of the agent in the paper
    :ivar median: human-normalized, in percent
    :ivar above_half: number of games above 50%
    """

    table: str
    agent: str
    title: str
    median: float
    above_half: int


AUXILIARY, PRETRAINING = "paper_auxiliary_scores", "paper_pretraining_scores"

PRINTED = (
    Printed(AUXILIARY, "a2c", "A2C", 32.8, 21),
    Printed(AUXILIARY, "pixel_control", "Pixel-control", 34.6, 20),
    Printed(AUXILIARY, "reward_prediction", "Reward-prediction", 35.2, 21),
    Printed(AUXILIARY, "many_goals", "Many-goals", 42.3, 24),
    Printed(PRETRAINING, "a2c", "A2C (no pre-training)", 32.8, 21),
    Printed(PRETRAINING, "reward_prediction_pretraining", "A2C + RP pre-training", 31.5, 18),
    Printed(PRETRAINING, "many_goals_pretraining", "A2C + MG pre-training", 39.2, 23),
)
"""All of both summaries."""


@dataclass(frozen=True)
class Comparison:
    """
    A line of a summary, and what follows from the table that it summarizes.

    :ivar printed: the line
    :ivar median: human-normalized, in percent, with two digits
    :ivar above_half: number of games above 50%
    """

    printed: Printed
    median: float
    above_half: int

    @property
    def median_follows(self) -> bool:
        """Whether the printed median is this one, to the digit that it has."""
        return f"{self.median:.1f}" == f"{self.printed.median:.1f}"

    @property
    def count_follows(self) -> bool:
        """Whether the printed number of games is this one."""
        return self.above_half == self.printed.above_half


def compare(printed: Printed) -> Comparison:
    """
    :param printed: a line of a summary
    :return: it beside what follows from the paper's table
    """
    table = read_table(DATA / f"{printed.table}.csv")
    scores = human_normalized(table.columns[printed.agent], table.games)[None]
    return Comparison(printed, round(100 * float(median(scores)), 2), int(count_above(scores)))


def statement(comparison: Comparison) -> str:
    """
    :param comparison: of a line
    :return: a sentence about it
    """
    printed = comparison.printed
    parts = [
        (f"a median of {printed.median:.1f}%", comparison.median_follows, f"{comparison.median:.2f}%"),
        (f"{printed.above_half} games above 50%", comparison.count_follows, str(comparison.above_half)),
    ]
    said = [f"{what}, which {'follows' if good else 'does not follow'} from its table ({own})" for what, good, own in parts]
    return f"{printed.title}: the paper's summary prints {'; and '.join(said)}."


def improvements() -> dict[str, dict[str, float]]:
    """:return: the paper's five figures of bars: by title, the relative improvement of each game, from its tables"""
    found = {}
    for printed in PRINTED:
        ours = {AUXILIARY: "many_goals", PRETRAINING: "many_goals_pretraining"}[printed.table]
        if printed.agent != ours:
            table = read_table(DATA / f"{printed.table}.csv")
            bars = relative_improvement(table.columns[ours], table.columns[printed.agent], table.games)
            found[f"{ours} over {printed.agent}"] = dict(zip(table.games, bars.tolist(), strict=True))
    return found


def main() -> None:
    """Print both summaries, what follows from the tables, and how many of the bars are positive."""
    console = Console(width=127, markup=False, highlight=False)
    shown = Table("table", "agent", "median printed", "from the table", "> 50% printed", "from the table")
    comparisons = [compare(printed) for printed in PRINTED]
    for each in comparisons:
        printed = each.printed
        shown.add_row(
            printed.table,
            printed.title,
            f"{printed.median:.1f}%",
            f"{each.median:.2f}%",
            str(printed.above_half),
            str(each.above_half),
        )
    console.print(shown)
    for each in comparisons:
        console.print(statement(each))
    for title, bars in improvements().items():
        values = np.array(list(bars.values()))
        console.print(f"{title}: better in {(values > 0).sum()} games, worse in {(values < 0).sum()} of {len(values)}")


if __name__ == "__main__":
    main()
