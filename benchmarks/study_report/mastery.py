"""Sections about mastery: tables beside what the paper says, curves, maps of goals that fail, films."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import EngFormatter
from PIL import Image

from benchmarks import report, summary, summary_plots
from benchmarks.past_runs import PastRun
from benchmarks.scores import DATA
from benchmarks.study_report import figures
from benchmarks.study_report.blocks import Block, Cell, Chart, Charts, Gallery, Picture, Section, Table, Words
from benchmarks.study_report.findings import Findings
from benchmarks.study_report.sheets import Book, Sheet, name
from benchmarks.summary_tables import LEVELS
from benchmarks.worlds import World
from gym_twoRooms.layout import Layout

MOST_PICTURES = 8
"""Pictures of failing goals for each agent."""

MEASURES = {"greedy": "greedy", "epsilon": "some random actions"}
"""How mastery is measured, in words."""


def sections(found: Findings, book: Book, goals: int) -> list[Section]:
    """
    :param found: runs
    :param book: to write to
    :param goals: most goals for which exact plans are made
    :return: one for each group of comparable runs
    """
    return [_section(runs, book, number, goals) for number, runs in enumerate(found.mastery, 1)]


def _section(runs: Sequence[PastRun], book: Book, number: int, goals: int) -> Section:
    prefix = f"mastery{number}"
    mdp, exact = summary.write_tables(runs, book.folder, goals, prefix=f"{prefix}-")
    curves, table, failures = (book.read(f"{prefix}-{kind}") for kind in ("curves", "table", "failures"))
    labels = [row["label"] for row in table.rows]
    first = runs[0].settings
    world, held_out = World(str(first["env_id"]), first.get("map")), float(first.get("held_out", 0.0))
    steps = book.fact(f"{prefix}: environment steps of a run", float(first["total_steps"]))
    words = [
        Markup("{} goals; {} environment steps a run; a goal counts as reached within {} steps of a random start. ").format(
            book.fact(f"{prefix}: goals", mdp.n_states),
            steps,
            book.fact(f"{prefix}: steps allowed to reach a goal", float(first["eval_steps"])),
        ),
        Markup("Mastery is the share of goals reached by the greedy policy, or with {} random actions. ").format(
            book.fact(f"{prefix}: share of random actions", float(first["eval_epsilon"]), "percent"),
        ),
        Markup("The best policy, planned exactly for {} goals, reaches {} of them from all starts.").format(
            book.fact(f"{prefix}: goals planned for", len(exact.goals)),
            book.fact(f"{prefix}: mastery of the best policy", exact.ceiling, "share"),
        ),
    ]
    if held_out:
        held = book.fact(f"{prefix}: share of goals held out", held_out, "percent")
        words.append(Markup(" {} of the goals were held out from training.").format(held))
    title = Markup("Mastery: {}, {}, {} steps").format(
        name(world.id if world.map is None else world.name), "goals held out" if held_out else "all goals taught", steps
    )
    blocks: list[Block] = [Words(Markup("").join(words)), _table(table, book, prefix)]
    blocks += _paper(book, prefix, mdp.n_states, int(first["total_steps"]))
    blocks.append(_curves(curves, labels, prefix))
    blocks += _maps(failures, mdp.layout, labels)
    blocks += _failing(runs, book, prefix, world)
    blocks += _updates(book.read(f"{prefix}-updates"))
    blocks += _steps(book.read(f"{prefix}-steps"))
    blocks += _films(runs)
    return Section(prefix, title, blocks)


def _table(table: Sheet, book: Book, prefix: str) -> Table:
    said = [
        ("greedy", "greedy"),
        ("epsilon", "random actions"),
        ("held_out_greedy", "held-out, greedy"),
        ("held_out_epsilon", "held-out, random actions"),
    ]
    shown = [(column, words) for column, words in said if any(row[column] for row in table.rows)]
    head: list[Cell] = ["agent", "seeds", *(words for _, words in shown)]
    for level in LEVELS:
        head.append(Markup("steps to {}").format(book.fact(f"{prefix}: level of mastery", level, "plain")))
    rows = []
    for i, row in enumerate(table.rows):
        seeds: Cell = table.number(i, "finished", "count")
        if row["finished"] != row["runs"]:
            seeds = Markup("{} of {} begun").format(seeds, table.number(i, "runs", "count"))
        cells: list[Cell] = [table.text(i, "label"), seeds]
        cells += [table.interval(i, column) for column, _ in shown]
        cells += [table.number(i, f"steps_to_{level:g}", "count") for level in LEVELS]
        rows.append(cells)
    confidence = book.fact(f"{prefix}: confidence of the intervals", 0.95, "percent")
    title = Markup(
        "Means of finished runs after training, with Student t intervals ({}) over seeds; steps are those at which so much "
        "was first measured with random actions, medians over seeds."
    ).format(confidence)
    return Table(head, rows, [table], title)


def _paper(book: Book, prefix: str, n_states: int, steps: int) -> list[Block]:
    paper = Sheet(DATA / "paper_mastery.csv")
    own = book.read(f"{prefix}-table")
    rows = []
    for row in paper.rows:
        agent = row["agent"]
        for part, column in (("paper", "mastery"), ("generalization", "held_out")):
            ours = next((i for i, each in enumerate(own.rows) if each["label"] == f"{part}-{agent}"), None)
            if ours is not None:
                measure = "greedy" if part == "paper" else "held_out_greedy"
                noisy = "epsilon" if part == "paper" else "held_out_epsilon"
                values = {"greedy": own.rows[ours][measure], "random actions": own.rows[ours][noisy]}
                rows.append(
                    {"agent": agent, "paper": row[column], "paper_steps": row["steps"], "said": row["said"]}
                    | values
                    | {"steps": steps}
                )
    if not rows:
        return []
    columns = ["agent", "greedy", "random actions", "steps", "paper", "paper_steps", "said"]
    sheet = book.add(f"{prefix}-paper", columns, rows)
    cells = [
        [
            sheet.text(i, "agent"),
            *(sheet.number(i, column, "share") for column in ("greedy", "random actions")),
            sheet.number(i, "steps", "count"),
            sheet.number(i, "paper", "share"),
            sheet.number(i, "paper_steps", "count"),
            Markup('<q class="wide">{}</q>').format(sheet.text(i, "said")),
        ]
        for i in range(len(rows))
    ]
    where = "the same map" if n_states == PAPER_GOALS else "another map than here"
    title = Markup("Beside the paper, whose runs were on a map of {} goals, {}, over {} seeds.").format(
        book.fact("goals of the paper's map", PAPER_GOALS), where, book.fact("seeds of the paper's mastery", 6)
    )
    head = ["agent", "greedy", "random actions", "steps", "the paper", "its steps", "in its words"]
    return [Table(head, cells, [sheet], title)]


PAPER_GOALS = 5728
"""Observations of the paper's map."""


def _curves(curves: Sheet, labels: Sequence[str], prefix: str) -> Charts:
    charts = []
    panels = [(column, words) for column, words in MEASURES.items()]
    panels += [(f"held_out_{column}", f"goals held out, {words}") for column, words in MEASURES.items()]
    with figures.drawing():
        for column, words in panels:
            rows = [row for row in curves.rows if row[column]]
            if not rows:
                continue
            figure, axes = figures.chart()
            for number, label in enumerate(labels):
                of_seed: dict[str, list[tuple[float, float]]] = {}
                for row in rows:
                    if row["label"] == label:
                        of_seed.setdefault(row["seed"], []).append((float(row["step"]), float(row[column])))
                if of_seed:
                    figures.seeds(axes, number, list(of_seed.values()))
            axes.set(xlabel="environment steps", ylabel="mastery", ylim=(0, 1.02))
            figures.steps_axis(axes)
            charts.append(Chart(Markup("Mastery, {}").format(words), figures.svg(figure, f"Mastery against steps, {words}")))
    legend = figures.legend([name(label) for label in labels])
    return Charts(charts, curves, legend)


def _maps(failures: Sheet, layout: Layout, labels: Sequence[str]) -> list[Block]:
    blocks: list[Block] = []
    for measure, words in MEASURES.items():
        charts = []
        for label in labels:
            for kind in ("taught", "held-out"):
                rows = [row for row in failures.rows if (row["label"], row["goals"], row["measure"]) == (label, kind, measure)]
                if not rows:
                    continue
                with figures.drawing(grid=False):
                    figure = plt.figure(figsize=(4.6, 2.3))
                    summary_plots.failure_map(figure, rows, layout)
                    alt = f"Map of failing goals of {label}, {kind} goals, {words}"
                    charts.append(Chart(Markup("{}, {} goals").format(name(label), kind), figures.svg(figure, alt)))
        if charts:
            folded = Markup(
                "Mastery maps, {}: the share of starts from which goals were not reached, by what they show; scales differ"
            ).format(words)
            blocks.append(Charts(charts, failures, folded="" if measure == "greedy" else folded))
            if measure == "greedy":
                blocks.insert(len(blocks) - 1, Words(Markup("<h3>{}</h3>").format(folded)))
    return blocks


def _failing(runs: Sequence[PastRun], book: Book, prefix: str, world: World) -> list[Block]:
    """Those that failed most often, greedily, over all seeds."""
    counts, worst, sources = [], [], []
    for label in dict.fromkeys(run.label for run in runs if run.is_finished):
        reached = [run.outcomes.reached["greedy"] for run in runs if run.label == label and run.is_finished]
        share = np.mean(reached, axis=0)
        failing = int((share < 1.0).sum())
        states = np.argsort(share, kind="stable")[: min(MOST_PICTURES, failing)].tolist()
        counts.append({"label": label, "goals": len(share), "failing": failing})
        worst += [{"label": label, "state": state, "reached": round(float(share[state]), 6)} for state in states]
        sources += [picture["src"] for picture in report.goal_pictures(world, states, share[states])]
    if not counts:
        return []
    totals = book.add(f"{prefix}-failing", ["label", "goals", "failing"], counts)
    sheet = book.add(f"{prefix}-worst", ["label", "state", "reached"], worst)
    blocks: list[Block] = [Words(Markup("<h3>Goals that fail, greedily</h3>"))]
    for i, row in enumerate(totals.rows):
        here = [number for number, each in enumerate(sheet.rows) if each["label"] == row["label"]]
        pictures = [
            Picture(
                sources[number],
                f"goal state {sheet.rows[number]['state']}",
                Markup("state {}: {}").format(sheet.number(number, "state"), sheet.number(number, "reached", "percent")),
            )
            for number in here
        ]
        title = Markup("{}: {} of {} goals were not reached from every start with every seed{}").format(
            totals.text(i, "label"),
            totals.number(i, "failing", "count"),
            totals.number(i, "goals", "count"),
            "; the worst, and from how many starts they were" if here else "",
        )
        blocks.append(Gallery(pictures, title, "icons", folded=bool(pictures)))
    return blocks


def _updates(updates: Sheet) -> list[Block]:
    """The paper's histogram."""
    charts = []
    for label in dict.fromkeys(row["label"] for row in updates.rows):
        rows = [row for row in updates.rows if row["label"] == label]
        low, high, share = (np.array([float(row[column]) for row in rows]) for column in ("low", "high", "share"))
        with figures.drawing():
            figure, axes = figures.chart(3.4, 2.2)
            axes.bar(low, share, high - low, align="edge", color=figures.style(0)[0])
            axes.set(xlabel="updates", ylabel="share of goals")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            charts.append(Chart(name(label), figures.svg(figure, f"How often goals were in an update of {label}")))
    return [Charts(charts, updates, folded="How often each goal was in an update")] if charts else []


def _steps(steps: Sheet) -> list[Block]:
    charts = []
    for label in dict.fromkeys(row["label"] for row in steps.rows):
        rows = [row for row in steps.rows if row["label"] == label and row["epsilon"]]
        if not rows:
            continue
        optimal, taken = (np.array([float(row[column]) for row in rows]) for column in ("optimal", "epsilon"))
        with figures.drawing():
            figure, axes = figures.chart(3.4, 2.6)
            axes.plot([0, optimal.max()], [0, optimal.max()], color=figures.INK, linewidth=1, linestyle=(0, (6, 4)))
            axes.plot(optimal, taken, ".", color=figures.style(0)[0], markersize=3, alpha=0.6)
            axes.set(xlabel="steps of the best policy", ylabel="steps, some random actions", xlim=(0, None), ylim=(0, None))
            charts.append(Chart(name(label), figures.svg(figure, f"Steps of {label} against those of the best policy")))
    folded = "Steps to each goal, where it was reached, against those of the best policy (dashed: as many)"
    return [Charts(charts, steps, folded=folded)] if charts else []


def _films(runs: Sequence[PastRun]) -> list[Block]:
    """Of the finished run of each label with the lowest seed, which is no choice of anybody's."""
    films: dict[str, Picture] = {}
    for run in runs:
        path = run.folder / "reaching.gif"
        if run.label not in films and path.is_file():
            caption = Markup("{}, seed {}").format(name(run.label), name(run.seed))
            alt = f"{run.label} moving towards six goals"
            films[run.label] = Picture(report.data_uri("image/gif", path.read_bytes()), alt, caption, _still(path))
    if not films:
        return []
    title = (
        "Goals being reached: left the world, right the goal; the frame turns green when they are identical. Goals are drawn "
        "from those reached from every start, starts are random."
    )
    return [Words(Markup("<h3>Films</h3>")), Gallery(list(films.values()), title)]


def _still(path: Path) -> str:
    """The last picture of an animation."""
    with Image.open(path) as animation:
        animation.seek(getattr(animation, "n_frames", 1) - 1)
        buffer = io.BytesIO()
        animation.convert("RGB").save(buffer, format="PNG")
    return report.data_uri("image/png", buffer.getvalue())
