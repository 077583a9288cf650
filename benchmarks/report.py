"""One HTML page about one run, complete in itself: it opens without a network."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.worlds import World
from sb3_manygoals import MasteryResult

MOST_FAILURES = 24
"""Pictures of goals not always reached that are shown; the rest are counted."""


def write(
    folder: Path,
    world: World,
    results: Mapping[str, MasteryResult],
    summary: Mapping[str, Any],
    states: NDArray[np.int64] | None = None,
) -> None:
    """
    Write ``report.html`` from what the run has left in its folder.

    :param folder: of the run; has ``config.json``, and may have ``curve.png`` and ``reaching.gif``
    :param world: that was learned in
    :param results: final measurements by name, "greedy" among them
    :param summary: of the run
    :param states: which goals were measured, by the numbers of their states; None: those that were known
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    greedy = results["greedy"]
    share = greedy.reached.mean(axis=1)
    failing = np.argsort(share, kind="stable")[: int((share < 1.0).sum())]
    pictures = []
    if world.is_two_rooms and states is not None:
        chosen = failing[:MOST_FAILURES]
        pictures = goal_pictures(world, states[chosen], share[chosen])
    made = {kind: folder / name for kind, name in (("image/png", "curve.png"), ("image/gif", "reaching.gif"))}
    html = (
        templates()
        .get_template("report.html.j2")
        .render(
            world=world.name,
            config=config,
            settings=_flatten(config["settings"]),
            summary=summary,
            results=[_row(name, result) for name, result in results.items()],
            n_goals=len(share),
            episodes=greedy.reached.shape[1],
            always=int((share == 1.0).sum()),
            never=int((share == 0.0).sum()),
            images={kind: data_uri(kind, path.read_bytes()) for kind, path in made.items() if path.exists()},
            failures=pictures,
            n_failing=len(failing),
            files=sorted({path.name for path in folder.iterdir() if path.is_file()} - {"report.html"}),
        )
    )
    (folder / "report.html").write_text(html, encoding="utf-8")


def templates() -> jinja2.Environment:
    """:return: the templates of pages, which are beside this file"""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def _row(name: str, result: MasteryResult) -> dict[str, Any]:
    steps = result.steps[result.reached]
    return {
        "name": name.replace("held_out_", "goals held out, "),
        "rate": result.rate,
        "low": result.interval[0],
        "high": result.interval[1],
        "median_steps": float(np.median(steps)) if len(steps) else float("nan"),
    }


def goal_pictures(world: World, states: Iterable[int], share: Iterable[float]) -> list[dict[str, Any]]:
    """
    :param world: a TwoRoomsSwitch world
    :param states: of it, to be seen
    :param share: of starts from which each of them was reached
    :return: for each its "state", its "share", and "src", a data URI of its picture
    """
    env = world.make(render_mode="rgb_array", cell_size=12)
    pictures = []
    for state, reached in zip(states, share, strict=True):
        env.reset(options={"state": int(state)})
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(env.render())).save(buffer, format="PNG")
        pictures.append({"state": int(state), "share": float(reached), "src": data_uri("image/png", buffer.getvalue())})
    env.close()
    return pictures


def data_uri(kind: str, content: bytes) -> str:
    """
    :param kind: MIME type
    :param content: of a file
    :return: it as an address that needs no file
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _flatten(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in settings.items():
        rows += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return rows
