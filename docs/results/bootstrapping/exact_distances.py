"""
Teach a network the exact values of pairs of a state and a goal in layouts of FourRooms. Tell how
often the greedy action is on a shortest way, in layouts that were never seen. Add rows to a file.

Beside ``random_walks.py``, this shows what the network could learn if its targets had no errors.
States and goals of an update are drawn from everywhere in a layout, or from its random walk alone.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/exact_distances.py
    8000 everywhere runs/exact-distances.csv
OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/exact_distances.py
    8000 walks runs/exact-distances.csv
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch as th
from numpy.typing import NDArray
from random_walks import BATCH_SIZE, REWARDS, STEPS_OF_EPISODE, Layout, accuracy, make_trunk
from torch import nn

from benchmarks import recording
from benchmarks.puzzles import NewLayouts
from sb3_manygoals.networks import DistanceQNetwork

N_LAYOUTS = 200
# An update has pairs of so many layouts. Only pairs within a layout are taught.
LAYOUTS_OF_UPDATE = 8
GAMMA = 0.99


def random_walk(layout: Layout, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the states of an episode of random actions, which begins anywhere in the layout."""
    state = int(rng.integers(len(layout.after)))
    states = []
    for action in rng.integers(3, size=STEPS_OF_EPISODE):
        state = int(layout.after[state, action])
        states.append(state)
    return np.array(states)


def learn(n_updates: int, drawn_from: str) -> list[dict[str, float]]:
    """
    Make the updates; return how good greedy actions are after each fifth of them.

    :param n_updates: number of updates
    :param drawn_from: "everywhere" or "walks": where states and goals are drawn
    """
    th.manual_seed(0)
    rng = np.random.default_rng(0)
    env = NewLayouts("MiniGrid-FourRooms-v0")
    layouts = [Layout(env, 1_000 + number) for number in range(N_LAYOUTS)]
    new_layouts = [Layout(env, 1_000_000 + number) for number in range(30)]
    walks = []
    if drawn_from == "walks":
        of_walks = np.random.default_rng(0)
        walks = [random_walk(layout, of_walks) for layout in layouts]
        n_cells = np.mean([len(np.unique(walk // 4)) for walk in walks])
        print(f"a walk visits {n_cells:.1f} cells of {len(layouts[0].cells)}")
    drawn = [layout.observations(rng.integers(len(layout.after), size=100)) for layout in layouts]
    examples = th.as_tensor(np.concatenate(drawn))
    goal_examples = examples[:, : 2 * layouts[0].n_cells]
    net = DistanceQNetwork(make_trunk(examples), 512, 3, 128, make_trunk(goal_examples), 512)
    net.trunk[0].fit(examples)
    net.goal_trunk[0].fit(goal_examples)
    optimizer = th.optim.Adam(net.parameters(), 3e-4)
    never = REWARDS[1] / (1.0 - GAMMA)
    size = BATCH_SIZE // LAYOUTS_OF_UPDATE
    found = []
    for update in range(1, n_updates + 1):
        observations = []
        goals = []
        actions = []
        targets = []
        for number in rng.integers(N_LAYOUTS, size=LAYOUTS_OF_UPDATE):
            layout = layouts[number]
            if drawn_from == "walks":
                states = rng.choice(walks[number], size=size)
                cells = rng.choice(walks[number], size=size) // 4
            else:
                states = rng.integers(len(layout.after), size=size)
                cells = rng.integers(len(layout.cells), size=size)
            actions.append(rng.integers(3, size=size))
            observations.append(layout.observations(states))
            goals.append(layout.goals(cells))
            left = layout.distances[layout.after[states, actions[-1]]][:, cells]
            targets.append(never * (1.0 - GAMMA**left))
        values = net.values_of_taken(
            th.as_tensor(np.concatenate(observations)),
            th.as_tensor(np.concatenate(actions)),
            th.as_tensor(np.concatenate(goals)),
        )
        within = values.view(LAYOUTS_OF_UPDATE, size, LAYOUTS_OF_UPDATE, size)
        taught = within.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        loss = (taught - th.as_tensor(np.stack(targets), dtype=th.float32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if update % (n_updates // 5) == 0:
            everywhere, near = accuracy(net, new_layouts)
            found.append({"after": update, "everywhere": everywhere, "near": near})
            print(found[-1], flush=True)
    return found


def main() -> None:
    """
    Make as many updates as the first argument says, of pairs as the second says. Add rows to the
    file of the third.
    """
    th.set_num_threads(1)
    n_updates = int(sys.argv[1])
    drawn_from = sys.argv[2]
    if drawn_from not in ("everywhere", "walks"):
        raise ValueError(f"pairs are drawn from 'everywhere' or 'walks', not from {drawn_from!r}")
    output = Path(sys.argv[3])
    began = time.perf_counter()
    found = learn(n_updates, drawn_from)
    run = {"commit": recording.git_revision(), "pairs": drawn_from, "seed": 0}
    rows = pd.DataFrame([{**run, **row} for row in found])
    rows["seconds"] = round(time.perf_counter() - began)
    output.parent.mkdir(parents=True, exist_ok=True)
    rows.round(3).to_csv(output, mode="a", header=not output.exists(), index=False)


if __name__ == "__main__":
    main()
