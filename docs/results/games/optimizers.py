"""
Compare the gradients of two optimizers with their epsilon, at the end of runs in Atari games.

RMSProp divides a gradient by the root of its mean square plus epsilon. Where the mean square is
below epsilon, a step is nearly in proportion to the gradient. In the root of the repository, with
the root folder of a ``games-study``:

    PYTHONPATH=. python docs/results/games/optimizers.py runs/games
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th

from sb3_manygoals.checkpoint.tree import load_tree

TABLE = Path(__file__).parent / "five-million-steps-optimizers.csv"
STEPS = 5_000_000
"""Steps of the runs in the table."""


def optimizers(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """
    Return the states of the optimizers of A2C and of its auxiliary task.

    :param tree: what a checkpoint of a run with an auxiliary task has
    """
    state = tree["tree"]
    return {
        "A2C": state["learner"]["algorithm"]["optimizer"],
        "auxiliary": state["extras"]["many_goals"]["optimizer"],
    }


def row(optimizer: dict[str, Any]) -> dict[str, float]:
    """
    Return how the mean squares of gradients compare with epsilon.

    :param optimizer: the state of SB3's ``RMSpropTFLike``
    """
    squares = th.cat([each["square_avg"].flatten() for each in optimizer["state"].values()])
    epsilon = optimizer["param_groups"][0]["eps"]
    return {
        "weights": len(squares),
        "epsilon": epsilon,
        "share_above_epsilon": float(f"{(squares > epsilon).double().mean():.2g}"),
        "length": round(squares.double().sum().sqrt().item(), 4),
    }


def main(root: Path) -> None:
    """
    Write a row for each optimizer of each finished run with goals that has a checkpoint.

    Rows of other runs stay in the table: a checkpoint is large, and nobody keeps all of them.

    :param root: the folder of the study
    """
    rows = []
    for result in sorted(root.glob("*-goals-*/result.json")):
        spec = json.loads(result.read_text(encoding="utf-8"))["spec"]
        checkpoints = sorted(result.parent.rglob("checkpoints/*.pt"), key=lambda path: path.name)
        if spec["steps"] != STEPS or not checkpoints:
            print(f"left out: {result.parent}")
            continue
        with checkpoints[-1].open("rb") as file:
            found = optimizers(load_tree(file))
        for optimizer_name, optimizer in found.items():
            run = {name: spec[name] for name in ("game", "agent", "seed")}
            run["optimizer"] = optimizer_name
            rows.append({**run, **row(optimizer)})
    keys = ["game", "agent", "seed", "optimizer"]
    both = pd.concat([pd.read_csv(TABLE), pd.DataFrame(rows)])
    table = both.drop_duplicates(keys, keep="last").sort_values(keys)
    table.to_csv(TABLE, index=False)
    print(table.to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
