"""Sections of a page about mastery: tables beside what the paper says, curves, maps of goals that fail, pictures, films."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from benchmarks.report import PastRunError, figures, page, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book, Cell, Section, Sheet, fold, heading, name
from benchmarks.scores import DATA
from benchmarks.worlds import World
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import expected_steps, reach_probabilities

MOST_PAIRS = 2**21
"""Starts and goals planned for at once are at most so many pairs, or one goal: some 100 bytes each."""
MOST_PICTURES = 8
"""Pictures of failing goals for each agent."""
PAPER_GOALS = 5728
"""Observations of the paper's map."""
MEASURES = {"greedy": "greedy", "epsilon": "random actions", "held_out_greedy": "held-out, greedy"}
MEASURES["held_out_epsilon"] = "held-out, random actions"


@dataclass(frozen=True)
class Plan:
    """
    What is known exactly of some goals of a world.

    :ivar goals: states, shape (G,)
    :ivar distances: steps that the best policy without a deadline takes to each from each state on average, shape (S, G)
    :ivar ceiling: share of starts and goals for which the best policy gets there within the deadline
    """

    goals: NDArray[np.int64]
    distances: NDArray[np.float64]
    ceiling: float


def plan(mdp: TwoRoomsMDP, most: int, horizon: int) -> Plan:
    """
    :param mdp: the world
    :param most: goals
    :param horizon: steps allowed
    :return: plans for that many goals drawn at random, or for all, or for as many as are planned for at once
    :raises ValueError: if ``most`` is not positive
    """
    if most < 1:
        raise ValueError(f"goals must be at least 1, got {most}")
    n_goals = min(most, mdp.n_states, max(1, MOST_PAIRS // mdp.n_states))
    goals = np.sort(np.random.default_rng(0).choice(mdp.n_states, n_goals, replace=False))
    ceiling = float(reach_probabilities(mdp, goals, horizon).mean())
    return Plan(goals, expected_steps(mdp, goals, tolerance=1e-3), ceiling)


def sections(runs: pd.DataFrame, book: Book, goals: int, base: str | None) -> list[Section]:
    """
    :param runs: of :func:`benchmarks.report.runs.read`
    :param book: to write to
    :param goals: most goals for which exact plans are made
    :param base: what the time for a step is compared with, a label; None: nothing
    :return: one for each group of comparable runs in TwoRoomsSwitch, where exact plans are made
    """
    found: list[Section] = []
    for _, group in runs.dropna(subset=["group"]).groupby("group"):
        settings = group["settings"].iloc[0]
        world = World(settings["env_id"], settings.get("map"))
        if world.is_two_rooms:
            found.append(_section(group, book, f"mastery{len(found) + 1}", world, goals, base))
    return found


def _section(runs: pd.DataFrame, book: Book, prefix: str, world: World, goals: int, base: str | None) -> Section:
    settings = runs["settings"].iloc[0]
    mdp: TwoRoomsMDP = world.make().unwrapped.mdp  # type: ignore[attr-defined]
    exact = plan(mdp, goals, int(settings["eval_steps"]))
    done, outcomes = runs[runs["status"] == "finished"], goals_of(runs, mdp)
    curves = reader.gather(runs, "mastery.csv")
    curves = curves.reindex(columns=["label", "seed", "step", *tables.MEASURES, "training_seconds"])
    final = tables.finals(outcomes).merge(done[["label", "seed", "step", "training_seconds"]], on=["label", "seed"])
    frames = {
        "curves": curves,
        "finals": final,
        "table": tables.mastery(runs, curves, outcomes, base),
        "updates": tables.updates(outcomes),
        "failures": tables.failures(outcomes, mdp),
        "steps": tables.steps(outcomes, exact.goals, exact.distances.mean(axis=0)),
    }
    sheets = {kind: book.add(f"{prefix}-{kind}", frame) for kind, frame in frames.items()}
    labels = frames["table"]["label"].tolist()

    def fact(what: str, value: float, form: page.Form = "count") -> Markup:
        return book.fact(f"{prefix}: {what}", value, form)

    held_out, steps = float(settings.get("held_out", 0.0)), fact("environment steps of a run", settings["total_steps"])
    said = Markup(
        "{} goals; {} environment steps a run; a goal counts as reached within {} steps of a random start. Mastery is the "
        "share of goals reached by the greedy policy, or with {} random actions. The best policy, planned exactly for {} "
        "goals, reaches {} of them from all starts."
    ).format(
        fact("goals", mdp.n_states),
        steps,
        fact("steps allowed to reach a goal", settings["eval_steps"]),
        fact("share of random actions", settings["eval_epsilon"], "percent"),
        fact("goals planned for", len(exact.goals)),
        fact("mastery of the best policy", exact.ceiling, "share"),
    )
    if held_out:
        said += Markup(" {} of the goals were held out from training.").format(fact("share held out", held_out, "percent"))
    levels = {level: Markup("steps to {}").format(fact("level of mastery", level, "plain")) for level in tables.LEVELS}
    title = Markup(
        "Means of finished runs after training, with Student t intervals ({}) over seeds. Steps at which so much was first "
        "measured with random actions, seconds of training, and the time of a step by that of {}: medians over seeds."
    ).format(fact("confidence of the intervals", 0.95, "percent"), name(base or "no other"))
    content = page.words(said) + _table(sheets["table"], levels, title) + _paper(book, prefix, sheets["table"], mdp, steps)
    with figures.drawing():
        content += _curves(book, sheets["curves"], frames["curves"], labels)
        content += _per_label(
            book, sheets["updates"], frames["updates"], figures.histogram, "How often each goal was in an update"
        )
        content += _per_label(
            book,
            sheets["steps"],
            frames["steps"].dropna(subset=["epsilon"]),
            figures.against_best,
            "Steps to each goal, where it was reached, against those of the best policy (dashed: as many)",
        )
    content += _maps(book, sheets["failures"], frames["failures"], mdp)
    content += _failing(outcomes, book, prefix, world) + _films(runs)
    where = name(world.id if world.map is None else world.name)
    how = "goals held out" if held_out else "all goals taught"
    return prefix, Markup("Mastery: {}, {}, {} steps").format(where, how, steps), content


def goals_of(runs: pd.DataFrame, mdp: TwoRoomsMDP) -> pd.DataFrame:
    """
    :param runs: in one world
    :param mdp: that world
    :return: rows of ``goals.csv`` of those that have finished, with "label" and "seed"
    :raises PastRunError: if one is of another world
    """
    done = runs[runs["status"] == "finished"]
    columns = ["label", "seed", "state", "held_out", "updates"]
    columns += [f"{policy}_{what}" for policy in tables.POLICIES for what in ("reached", "mean_steps")]
    if done.empty:
        return pd.DataFrame(columns=columns, dtype=float).astype({"label": object})
    found = reader.gather(done, "goals.csv").reindex(columns=columns)
    sizes = found.groupby(["label", "seed"]).size()
    if (sizes != mdp.n_states).any():
        run = done.set_index(["label", "seed"]).loc[[sizes.ne(mdp.n_states).idxmax()]].iloc[0]
        got = f"{sizes[sizes != mdp.n_states].iloc[0]} rows in {run['own']}"
        raise PastRunError(f"goals.csv must have a row for each of {mdp.n_states} states, got {got}")
    return found.fillna({"held_out": 0})


def _table(sheet: Sheet, levels: dict[float, Markup], title: Cell) -> Markup:
    def seeds(row: int) -> Cell:
        finished, begun = sheet.number(row, "finished", "count"), sheet.number(row, "runs", "count")
        return finished if sheet.frame["finished"][row] == sheet.frame["runs"][row] else finished + " of " + begun + " begun"

    columns: list[page.Column] = [("agent", "label", "text"), ("seeds", seeds, "text")]
    columns += [(words, measure, "share") for measure, words in MEASURES.items() if any(sheet.frame[measure])]
    columns += [(words, f"steps_to_{level:g}", "count") for level, words in levels.items()]
    columns += [("seconds", "training_seconds", "count")]
    if any(sheet.frame["time_ratio"]):
        columns.append(("time of a step", "time_ratio", "short"))
    return sheet.table(columns, title)


def _paper(book: Book, prefix: str, own: Sheet, mdp: TwoRoomsMDP, steps: Markup) -> Markup:
    paper = pd.read_csv(DATA / "paper_mastery.csv")
    rows = []
    for part, measure, column in (("paper", "", "mastery"), ("generalization", "held_out_", "held_out")):
        known = paper.assign(label=part + "-" + paper["agent"], paper=paper[column], paper_steps=paper["steps"])
        ours = own.frame[["label", f"{measure}greedy", f"{measure}epsilon"]].set_axis(["label", "greedy", "epsilon"], axis=1)
        rows.append(known.merge(ours, on="label"))
    found = pd.concat(rows)
    if found.empty:
        return Markup("")
    sheet = book.add(f"{prefix}-paper", found[["agent", "greedy", "epsilon", "paper", "paper_steps", "said"]])
    title = Markup("Beside the paper, whose runs were on a map of {} goals, {}, over {} seeds; here {} steps.").format(
        book.fact("goals of the paper's map", PAPER_GOALS),
        "the same map" if mdp.n_states == PAPER_GOALS else "another map than here",
        book.fact("seeds of the paper's mastery", 6),
        steps,
    )
    columns: list[page.Column] = [("agent", "agent", "text"), ("greedy", "greedy", "share")]
    columns += [("random actions", "epsilon", "share"), ("the paper", "paper", "share"), ("its steps", "paper_steps", "count")]
    quoted = Markup('<q class="wide">{}</q>')
    return sheet.table([*columns, ("in its words", lambda row: quoted.format(sheet.text(row, "said")), "text")], title)


def _curves(book: Book, sheet: Sheet, curves: pd.DataFrame, labels: list[str]) -> Markup:
    drawn = []
    for measure, words in MEASURES.items():
        if curves[measure].notna().any():
            figure = figures.curves(
                curves, measure, "label", labels, xlabel="environment steps", ylabel="mastery", ylim=(0, 1.02)
            )
            drawn.append(book.chart(f"Mastery, {words}", figure, f"Mastery against steps, {words}", sheet))
    return page.charts(drawn, sheet, labels)


def _per_label(book: Book, sheet: Sheet, frame: pd.DataFrame, draw: object, title: str) -> Markup:
    drawn = [
        book.chart(name(label), draw(rows), f"{title.split(',')[0]}, {label}", sheet)  # type: ignore[operator]
        for label, rows in frame.groupby("label")
    ]
    return fold(title, page.charts(drawn, sheet)) if drawn else Markup("")


def _maps(book: Book, sheet: Sheet, failures: pd.DataFrame, mdp: TwoRoomsMDP) -> Markup:
    content = Markup("")
    for measure in tables.POLICIES:
        title = f"Mastery maps, {MEASURES[measure]}: the share of starts from which goals were not reached, by what they show"
        drawn = []
        with figures.drawing(grid=False):
            for (label, kind), rows in failures[failures["measure"] == measure].groupby(["label", "goals"]):
                alt = f"Map of failing goals of {label}, {kind} goals, {MEASURES[measure]}"
                figure = figures.failure_map(rows, mdp.layout)
                drawn.append(book.chart(Markup("{}, {} goals").format(name(label), kind), figure, alt, sheet))
        if drawn:
            shown = page.charts(drawn, sheet)
            content += heading(title + "; scales differ") + shown if measure == "greedy" else fold(title, shown)
    return content


def _failing(goals: pd.DataFrame, book: Book, prefix: str, world: World) -> Markup:
    """Those that failed most often, greedily, over all seeds."""
    if goals.empty:
        return Markup("")
    shares = goals.groupby(["label", "state"])["greedy_reached"].mean().rename("reached").reset_index()
    counts = shares.groupby("label")["reached"].agg(goals="size", failing=lambda share: int((share < 1.0).sum())).reset_index()
    failing = shares[shares["reached"] < 1.0].sort_values(["label", "reached"], kind="stable")
    worst = failing.groupby("label").head(MOST_PICTURES).reset_index(drop=True)
    totals, sheet = book.add(f"{prefix}-failing", counts), book.add(f"{prefix}-worst", worst)
    shown = pictures(world, sheet)
    content = heading("Goals that fail, greedily")
    for row, label in enumerate(counts["label"]):
        title = Markup("{}: {} of {} goals were not reached from every start with every seed").format(
            totals.text(row, "label"), totals.number(row, "failing", "count"), totals.number(row, "goals", "count")
        )
        here = [shown[number] for number in worst.index[worst["label"] == label]]
        content += (
            fold(title + "; the worst, and from how many starts they were", page.gallery(here, "icons"))
            if here
            else (page.words(title))
        )
    return content


def pictures(world: World, sheet: Sheet) -> list[tuple[Markup, Cell]]:
    """
    :param world: a TwoRoomsSwitch world
    :param sheet: "state" of goals, and "reached", the share of starts from which each was
    :return: of each goal its picture, and these two
    """
    env = world.make(render_mode="rgb_array", cell_size=12)
    found: list[tuple[Markup, Cell]] = []
    for row, state in enumerate(sheet.frame["state"]):
        env.reset(options={"state": int(float(state))})
        picture = page.image("image/png", png(Image.fromarray(np.asarray(env.render()))), f"goal state {state}")
        said = Markup("state {}: {}").format(sheet.number(row, "state"), sheet.number(row, "reached", "percent"))
        found.append((picture, said))
    env.close()
    return found


def png(picture: Image.Image) -> bytes:
    """
    :param picture: any
    :return: content of a PNG file
    """
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()


def film(path: Path, alt: str) -> Markup:
    """
    :param path: of an animation
    :param alt: what is on it
    :return: it, or its last picture for those who want nothing to move
    """
    with Image.open(path) as animation:
        animation.seek(getattr(animation, "n_frames", 1) - 1)
        still = page.image("image/png", png(animation), alt).split('"')[1]
    moving = page.image("image/gif", path.read_bytes(), alt)
    element = '<picture><source media="(prefers-reduced-motion: reduce)" srcset="{}">{}</picture>'
    return Markup(element).format(Markup(still), moving)


def _films(runs: pd.DataFrame) -> Markup:
    """Of the run of each label with the lowest seed, which is no choice of anybody's."""
    filmed = runs[[(own / "reaching.gif").is_file() for own in runs["own"]]].sort_values(["label", "seed"])
    films = [
        (
            film(run.own / "reaching.gif", f"{run.label} moving towards six goals"),
            Markup("{}, seed {}").format(name(run.label), name(run.seed)),
        )
        for run in filmed.groupby("label").head(1).itertuples()
    ]
    said = (
        "Goals being reached: left the world, right the goal; the frame turns green when they are identical. Goals are drawn "
        "from those reached from every start, starts are random."
    )
    return heading("Films") + page.words(said) + page.gallery(films) if films else Markup("")
