"""One page about one run of mastery, from the files that it left in its folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from markupsafe import Markup

from benchmarks.report import mastery, page, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book, Section, Sheet, name
from benchmarks.report.study import making
from benchmarks.worlds import World

MOST_FAILURES = 24
"""Pictures of goals not always reached that are shown; the rest are counted."""


def write(folder: Path) -> Path:
    """
    Write ``report.html``, and the numbers on it that no other file has to ``report.csv`` and ``failing.csv``.

    :param folder: of the run; has ``config.json``, ``summary.csv`` and ``goals.csv``, and may have ``curve.png`` and
        ``reaching.gif``
    :return: the page
    """
    book = Book(folder / "report.html", folder, "report")
    record, settings = reader.settings_of(folder)
    world = World(settings["env_id"], settings.get("map"))
    summary, goals = Sheet(folder / "summary.csv"), pd.read_csv(folder / "goals.csv")
    reached = goals["greedy_reached"]
    random = book.fact("share of random actions", settings["eval_epsilon"], "percent")
    knows = Markup("The agent knows {} of the {} observations that can be reached.")
    if summary.frame["reachable"][0] == "":
        knows = Markup(
            "The agent knows {} observations; how many can be reached is not known, and the goals are among those known."
        )
    known, reachable = (summary.number(0, column, "plain") for column in ("known", "reachable"))
    said = Markup(
        "of {} goals reached within {} steps by the greedy policy. {} goals were reached from every start, {} from none. {}"
    )
    content = Markup('<div class="big">{}</div>').format(summary.number(0, "greedy", "percent1")) + page.words(
        said.format(
            summary.number(0, "measured"),
            book.fact("steps allowed to reach a goal", settings["eval_steps"]),
            book.fact("goals reached from every start", int((reached == 1.0).sum())),
            book.fact("goals reached from none", int((reached == 0.0).sum())),
            knows.format(known, reachable),
        )
    )
    content += _results(book, summary, goals)
    policies = Markup("“epsilon”: with {} random actions.").format(random)
    if summary.frame["plan"][0]:
        policies += " “plan”: acting by the values planned in the replay memory, which the network learns."
    if (folder / "demo.html").exists():
        policies += Markup(' <a href="demo.html">Set it a goal with the mouse.</a>')
    sections: list[Section] = [("mastery", "Mastery", content + page.words(policies))]
    if (folder / "curve.png").exists():
        picture = page.image("image/png", (folder / "curve.png").read_bytes(), "Mastery against environment steps")
        sections.append(("curve", "Learning curve", Markup('<div class="wide">{}</div>').format(picture)))
    if (folder / "reaching.gif").exists():
        film = mastery.film(folder / "reaching.gif", "Film of the agent moving towards six goals")
        words = Markup(
            "With {} random actions. Left the world, right the goal; the frame turns green when they are identical. The goals "
            "are drawn from those reached from every start, or from all if those are fewer than six; the starts are random."
        ).format(random)
        sections.append(("film", "Six goals", page.words(words) + Markup('<div class="wide">{}</div>').format(film)))
    failing = goals.assign(reached=reached)[reached < 1.0].sort_values("reached", kind="stable")[["state", "reached"]]
    shown = Markup("{}, in {}.").format(book.fact("goals not always reached", len(failing)), name("goals.csv"))
    worst = page.words(shown if len(failing) else "None: every goal was reached from every start.")
    if world.is_two_rooms and len(failing):
        sheet = book.add("failing", failing.head(MOST_FAILURES))
        worst += page.gallery(mastery.pictures(world, sheet), "icons")
    sections.append(("failing", "Goals not always reached", worst))
    rows = [[Markup("<code>{}</code>").format(key), name(value)] for key, value in settings.items()]
    made = page.words(Markup("<code>{}</code>").format(record["command"])) + making([record])
    made += page.table(["setting", ""], rows, "All settings", folded=True)
    own = [
        (path, path.name)
        for path in sorted({*folder.iterdir(), folder / "report.csv"})
        if path != book.page and not path.is_dir()
    ]
    made += Markup('<ul class="files">{}</ul>').format(book.files("Files beside this page", own))
    sections.append(("making", "How it was made", made))
    updates, targets = summary.number(0, "updates", "count"), summary.frame["targets"][0]
    lead = Markup("Agent {}, {} environment steps, {} seconds of training without the measurements, seed {}.").format(
        summary.text(0, "agent"),
        *(summary.number(0, column, "count") for column in ("steps", "training_seconds", "seed")),
    )
    if updates:
        lead += Markup(" {} updates{}.").format(updates, f", by {targets}" if targets else "")
    book.write(f"Mastery of {world.name}", lead, sections)
    return book.page


def _results(book: Book, summary: Sheet, goals: pd.DataFrame) -> Markup:
    """A row a policy: mastery, its interval, and the median over goals of the mean steps to those that were reached."""
    rows: list[list[page.Cell]] = []
    for prefix, words in (("", ""), ("held_out_", "goals held out, ")):
        for policy in (*tables.POLICIES, "plan"):
            column = prefix + policy
            if summary.frame[column][0]:
                steps: page.Cell = ""
                if policy != "plan":
                    measured = goals[goals["held_out"] == 1] if prefix else goals
                    median = measured[f"{policy}_mean_steps"].dropna().median()
                    steps = "" if pd.isna(median) else book.fact(f"median steps, {column}", median, "score")
                low, high = (summary.number(0, f"{column}_{end}", "share4") for end in ("low", "high"))
                interval = Markup("{} to {}").format(low, high)
                rows.append([words + policy, summary.number(0, column, "share4"), interval, steps])
    if summary.frame["ceiling"][0]:
        rows.append(["best possible, by exact planning", summary.number(0, "ceiling", "share4"), "", ""])
    confidence = book.fact("confidence of the intervals", 0.95, "percent")
    head = [
        "policy",
        "mastery",
        Markup("{} interval (bootstrap over goals)").format(confidence),
        "median steps to a reached goal",
    ]
    return page.table(head, rows, source=summary)
