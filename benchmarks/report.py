"""One HTML page about one run, complete in itself: it opens without a network."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import jinja2
import numpy as np
from PIL import Image

from sb3_manygoals import MasteryResult

MOST_FAILURES = 24
"""Pictures of goals not always reached that are shown; the rest are counted."""


def write(
    folder: Path,
    env_id: str,
    results: Sequence[tuple[str, MasteryResult]],
    training_seconds: float,
) -> None:
    """
    Write ``report.html`` from what the run has left in its folder.

    :param folder: of the run; has ``config.json``, ``curve.png``, ``reaching.gif``
    :param env_id: of the TwoRoomsSwitch world, for pictures of goals
    :param results: final measurements by name, the first that of the greedy policy, with its ceiling
    :param training_seconds: time spent training
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    greedy = results[0][1]
    assert greedy.ceiling is not None
    share = greedy.reached.mean(axis=1)
    failing = np.argsort(share, kind="stable")[: int((share < 1.0).sum())]
    html = (
        templates()
        .get_template("report.html.j2")
        .render(
            env_id=env_id,
            config=config,
            settings=_flatten(config["settings"]),
            results=[_row(name, result) for name, result in results],
            n_goals=len(share),
            episodes=greedy.reached.shape[1],
            horizon=config["settings"]["eval_steps"],
            always=int((share == 1.0).sum()),
            never=int((share == 0.0).sum()),
            ceiling=float(greedy.ceiling.mean()),
            training_seconds=training_seconds,
            curve=data_uri("image/png", (folder / "curve.png").read_bytes()),
            film=data_uri("image/gif", (folder / "reaching.gif").read_bytes()),
            failures=goal_pictures(env_id, failing[:MOST_FAILURES], share),
            more_failures=max(len(failing) - MOST_FAILURES, 0),
            files=sorted(path.name for path in folder.iterdir() if path.is_file()),
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
        "name": name,
        "rate": result.rate,
        "low": result.interval[0],
        "high": result.interval[1],
        "median_steps": float(np.median(steps)) if len(steps) else float("nan"),
    }


def goal_pictures(env_id: str, states: Iterable[int], share: Any) -> list[dict[str, Any]]:
    """
    :param env_id: of a TwoRoomsSwitch world
    :param states: of it, to be seen
    :param share: of starts from which each of all states was reached, shape (n_states,)
    :return: for each its "state", its "share", and "src", a data URI of its picture
    """
    env = gym.make(env_id, render_mode="rgb_array", cell_size=12)
    pictures = []
    for state in states:
        env.reset(options={"state": int(state)})
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(env.render())).save(buffer, format="PNG")
        pictures.append({"state": int(state), "share": float(share[state]), "src": data_uri("image/png", buffer.getvalue())})
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
