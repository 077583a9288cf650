"""
Sections of a page about mastery.

They have a table beside what the paper says, curves, goals that fail, and films.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from PIL import Image

from benchmarks.report import figures, page, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book
from benchmarks.worlds import SettingError, World
from gym_twoRooms.layout import LayoutError

MOST_PICTURES = 24
"""Failing goals of each agent that are shown at most; all are counted."""


def sections(runs: pd.DataFrame, book: Book) -> Iterator[dict[str, Any]]:
    """
    Return what the template needs of each group of comparable runs.

    :param runs: runs as :func:`benchmarks.report.runs.read` returns them
    :param book: book to which tables and figures are added
    :return: a section for each group
    """
    for number, (_, group) in enumerate(runs.dropna(subset=["group"]).groupby("group"), start=1):
        yield _section(group, book, f"mastery{number}")


def _section(runs: pd.DataFrame, book: Book, prefix: str) -> dict[str, Any]:
    """Return what the template needs of comparable runs."""
    settings = runs["settings"].iloc[0]
    world = World(settings["env_id"], settings.get("map"))
    done = runs[runs["status"] == "finished"]
    curves = reader.gather(reader.settled(runs), "mastery.csv")
    finals = _with_columns(
        reader.gather(done, "summary.csv"),
        *tables.MEASURES,
        "known",
        "ceiling",
        "training_seconds",
    )
    goals = _with_columns(
        reader.gather(done, "goals.csv"), "state", "held_out", "updates", "greedy_reached"
    )
    table = tables.mastery(runs, curves, finals, goals)
    sheets = {
        "table": book.add(f"{prefix}-table", table),
        "finals": book.add(f"{prefix}-finals", finals),
    }
    title = f"Mastery: {world.name}, {settings['total_steps']:,} steps"
    return {
        "kind": "mastery",
        "id": prefix,
        "title": title + (", goals held out" if settings.get("held_out") else ""),
        "settings": settings,
        "goals": runs["goals"].iloc[0],
        "measures": tables.MEASURES,
        "levels": tables.LEVELS,
        "agents": table["agent"].tolist(),
        **sheets,
        "curves": _curves(curves, table["agent"].tolist(), book, prefix),
        "updates": book.charts(
            f"{prefix}-updates",
            tables.updates(goals),
            "agent",
            "How often each goal was in an update,",
            figures.histogram,
        ),
        "failing": _failing(goals, finals, world, book, prefix) if world.is_two_rooms else [],
        "films": _films(runs, book),
    }


def _with_columns(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return a table with these columns, which are empty if it did not have them."""
    return table.reindex(columns=table.columns.union(list(names), sort=False))


def _curves(curves: pd.DataFrame, agents: list[str], book: Book, prefix: str) -> dict[str, Any]:
    """Return what the template needs of mastery while training: a figure for each measure."""
    key = ["agent", "seed", "step"]
    named = curves.reindex(columns=[*key, *tables.MEASURES]).rename(columns=tables.MEASURES)
    lines = tables.bands(named.melt(key, var_name="panel").dropna())
    labels = {"xlabel": "environment steps", "ylabel": "mastery", "ylim": (0, 1.02)}
    draw = partial(figures.curves, agents=agents, size=figures.MEDIUM, **labels)
    return book.charts(f"{prefix}-curves", lines, "panel", "Mastery against steps,", draw)


def _failing(
    goals: pd.DataFrame, finals: pd.DataFrame, world: World, book: Book, prefix: str
) -> list[tuple[str, list[tuple[Markup, Markup]]]]:
    """
    Return pictures of the goals that failed most often, by agent.

    Each is captioned with the share of starts from which it was reached greedily, over all seeds.
    """
    shares = (
        goals.groupby(["agent", "state"])["greedy_reached"].mean().rename("reached").reset_index()
    )
    failing = shares[shares["reached"] < 1.0].sort_values(["agent", "reached"], kind="stable")
    worst = failing.groupby("agent").head(MOST_PICTURES).reset_index(drop=True)
    sheet = book.add(f"{prefix}-worst", worst)
    try:
        env = world.make(render_mode="rgb_array", cell_size=12)
    except (LayoutError, SettingError) as error:
        # The file of a map may be gone or moved since the run.
        print(f"left out: pictures of goals in {world.name}: {error}")
        return []
    world_now: Any = env.unwrapped
    n_states = world_now.mdp.n_states
    measured_in = finals.reindex(columns=["reachable"])["reachable"].dropna()
    if (measured_in != n_states).any():
        print(
            f"left out: pictures of goals in {world.name}, whose map has changed since: it has "
            f"{n_states} states"
        )
        return []
    found: dict[str, list[tuple[Markup, Markup]]] = {}
    for row, goal in enumerate(worst.itertuples()):
        env.reset(options={"state": int(goal.state)})
        picture = page.image(
            "image/png", _png(Image.fromarray(np.asarray(env.render()))), f"goal state {goal.state}"
        )
        said = Markup("state {}: {}").format(
            sheet.cell(row, "state", "g"), sheet.cell(row, "reached", ".0%")
        )
        found.setdefault(goal.agent, []).append((picture, said))
    env.close()
    return list(found.items())


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format="PNG")
    return buffer.getvalue()


def _films(runs: pd.DataFrame, book: Book) -> list[tuple[Markup, Markup]]:
    """
    Return a film of each agent.

    It is that of the run with the lowest seed, which nobody has chosen.
    """
    filmed = runs[[(own / "reaching.gif").is_file() for own in runs["own"]]]
    filmed = filmed.sort_values(["agent", "seed"])
    films = []
    for run in filmed.groupby("agent").head(1).itertuples():
        said = page.name(f"{run.agent}, seed {run.seed}")
        if (run.own / "demo.html").is_file():
            said += Markup('. <a href="{}">Set it a goal with the mouse</a>').format(
                book.link(run.own / "demo.html")
            )
        film = _film(run.own / "reaching.gif", f"{run.agent} moving towards six goals")
        films.append((film, said))
    return films


def _film(path: Path, alt: str) -> Markup:
    """Return an animation, or its last picture for those who want nothing to move."""
    with Image.open(path) as animation:
        animation.seek(getattr(animation, "n_frames", 1) - 1)
        still = page.address("image/png", _png(animation))
    moving = page.image("image/gif", path.read_bytes(), alt)
    element = '<picture><source media="(prefers-reduced-motion: reduce)" srcset="{}">{}</picture>'
    return Markup(element).format(still, moving)
