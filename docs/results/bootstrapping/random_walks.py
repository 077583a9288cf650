"""
Bootstrap from random steps in FourRooms, whose layout is drawn anew for each 100 steps. Tell how
often the greedy action is on a shortest way, in layouts that were never seen. Add rows to a file.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/random_walks.py
    '{"standardized_by": 1000, "again": true}' runs/random-walks.csv
"""

import copy
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from benchmarks import recording
from benchmarks.puzzles import NewLayouts
from sb3_manygoals.losses import near_weights, nearness, pairwise_td_targets, widen_action_gaps
from sb3_manygoals.networks import DistanceQNetwork, Preprocess, SmallImageCNN

STEPS_OF_EPISODE = 100
# Height and width of FourRooms, in cells.
SIDE = 19
# The rewards of a goal that is reached, and of another step.
REWARDS = (0.0, -0.1)
BATCH_SIZE = 128


@dataclass(frozen=True)
class Settings:
    """What differs between runs."""

    seed: int = 0
    """Seed of the walks and of the updates."""
    steps: int = 20_000
    """Random steps."""
    updates: int = 4_000
    """Updates."""
    gamma: float = 0.99
    """Discount factor."""
    segment_length: int = 4
    """Consecutive transitions in a segment of an update."""
    near_floor: float = 0.02
    """The floor of weights by nearness."""
    standardized_by: int = 0
    """The first steps whose observations tell how inputs are standardized. 0: all."""
    again: bool = False
    """Whether inputs are standardized again each time twice as many steps would have been made,
    with 0.3 updates for each step."""
    convolutions: bool = False
    """Whether the network sees pictures through convolutions, in place of bits."""


class Layout:
    """
    A layout of FourRooms, with all its states and how far they are from each cell. A state is a
    cell and one of four directions. Actions are to turn left, to turn right and to go forward.

    :param env: the world
    :param seed: seed of the layout
    """

    def __init__(self, env: NewLayouts, seed: int) -> None:
        env.reset(seed=seed)
        self.n_cells = env._n_cells
        self.walls = env._walls()
        inside = [cell for cell in np.flatnonzero(~self.walls) if env._is_inside(int(cell))]
        self.cells = np.array(inside)
        numbers = {int(cell): number for number, cell in enumerate(inside)}
        # The directions are east, south, west and north.
        moves = (1, env._env.width, -1, -env._env.width)
        self.after = np.zeros((4 * len(inside), 3), dtype=np.int64)
        for cell, number in numbers.items():
            for direction, move in enumerate(moves):
                state = 4 * number + direction
                ahead = numbers.get(cell + move, number)
                left = 4 * number + (direction - 1) % 4
                right = 4 * number + (direction + 1) % 4
                self.after[state] = (left, right, 4 * ahead + direction)
        self.distances = self._distances()

    def _distances(self) -> NDArray[np.int64]:
        """Return the steps from each state to each cell."""
        n_states = len(self.after)
        distances = np.full((n_states, n_states // 4), n_states)
        distances[np.arange(n_states), np.arange(n_states) // 4] = 0
        while True:
            shorter = np.minimum(distances, 1 + distances[self.after].min(axis=1))
            if (shorter == distances).all():
                return distances
            distances = shorter

    def observations(self, states: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return observations of states as NewLayouts shows them, without its closed doors."""
        seen = np.zeros((len(states), 3 * self.n_cells + 4), dtype=np.int8)
        seen[:, : self.n_cells] = self.walls
        rows = np.arange(len(states))
        seen[rows, self.n_cells + self.cells[states // 4]] = 1
        seen[rows, 3 * self.n_cells + states % 4] = 1
        return seen

    def goals(self, cells: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return goals: the agent in these cells, by their numbers."""
        return self.observations(4 * cells)[:, : 2 * self.n_cells]


class Data:
    """
    Random steps.

    :param settings: how many, and their seed
    :param layouts: a layout for each 100 of them
    """

    def __init__(self, settings: Settings, layouts: list[Layout]) -> None:
        rng = np.random.default_rng(settings.seed)
        states = []
        next_states = []
        actions = []
        for layout in layouts:
            state = int(rng.integers(len(layout.after)))
            for _ in range(STEPS_OF_EPISODE):
                action = int(rng.integers(3))
                states.append(state)
                actions.append(action)
                state = int(layout.after[state, action])
                next_states.append(state)
        episodes = np.repeat(np.arange(len(layouts)), STEPS_OF_EPISODE)
        self.actions = th.tensor(actions)
        self.observations = self._shown(layouts, np.array(states))
        self.next_observations = self._shown(layouts, np.array(next_states))
        cells = np.array(next_states) // 4
        # Where each transition led, as a goal: as numbers and as the network sees it.
        self.goal_ids = episodes * 1_000 + cells
        self.goals = self.next_observations[:, : 2 * layouts[0].n_cells]

    @staticmethod
    def _shown(layouts: list[Layout], states: NDArray[np.int64]) -> th.Tensor:
        """Return observations of states, 100 for each layout."""
        parts = np.split(states, len(layouts))
        shown = [layout.observations(part) for layout, part in zip(layouts, parts, strict=True)]
        return th.as_tensor(np.concatenate(shown))


class PreprocessPictures(Preprocess):
    """
    Makes pictures of rows of bits, and prepares these. A channel is 255 where something is: a wall,
    the agent or, if rows have them, the agent that looks in one of four directions.

    :param side: height and width of the grid
    :param has_directions: whether rows end with closed doors and a direction. Doors are left out
    """

    def __init__(self, side: int, has_directions: bool) -> None:
        self.n_channels = 6 if has_directions else 2
        shape = (self.n_channels, side, side)
        super().__init__(spaces.Box(0, 255, shape, np.uint8), standardize=True)
        self.standardize_by_channel()

    def _pictures(self, rows: th.Tensor) -> th.Tensor:
        """Return pictures, uint8, shape (B, C, H, W)."""
        _, height, width = self.space.shape
        bits = rows.to(th.uint8) * 255
        n_cells = height * width
        channels = bits[:, : 2 * n_cells].view(-1, 2, height, width)
        if self.n_channels == 2:
            return channels
        directions = rows[:, 3 * n_cells :].to(th.uint8)
        looks = channels[:, 1:] * directions[:, :, None, None]
        return th.cat([channels, looks], dim=1)

    def fit(self, observations: th.Tensor) -> None:
        """Standardize by these rows from now on."""
        super().fit(self._pictures(observations))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """Return prepared pictures."""
        return super().forward(self._pictures(observations))


def make_trunk(rows: th.Tensor, has_convolutions: bool = False) -> nn.Module:
    """Return two layers of 512 for such rows, after convolutions if there are any."""
    n_features = rows.shape[1]
    if has_convolutions:
        pictures = PreprocessPictures(SIDE, has_directions=n_features > 2 * SIDE**2)
        cnn = SmallImageCNN(pictures.space)
        n_features = cnn.features_dim
        first: tuple[nn.Module, ...] = (pictures, cnn)
    else:
        first = (Preprocess(spaces.MultiBinary(n_features), standardize=True),)
    layers = (nn.Linear(n_features, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU())
    return nn.Sequential(*first, *layers)


def chance(layouts: list[Layout]) -> float:
    """Return how often a random action is on a shortest way to a random goal."""
    shares = []
    for layout in layouts:
        to_go = layout.distances
        shorter = to_go[layout.after] < to_go[:, None]
        shares.append(shorter.mean(axis=1)[to_go > 0].mean())
    return float(np.mean(shares))


def accuracy(net: DistanceQNetwork, layouts: list[Layout]) -> tuple[float, float]:
    """
    Return how often the greedy action is on a shortest way, in 200 random pairs of a state and a
    goal of each layout; and the same of pairs that are at most five steps apart.
    """
    rng = np.random.default_rng(0)
    is_best = []
    is_near = []
    for layout in layouts:
        states = rng.integers(len(layout.after), size=200)
        goals = rng.integers(len(layout.cells), size=200)
        observations = th.as_tensor(layout.observations(states))
        with th.no_grad():
            values = net(observations, th.as_tensor(layout.goals(goals)))
        chosen = values.argmax(dim=1).numpy()
        to_go = layout.distances[states, goals]
        left = layout.distances[layout.after[states, chosen], goals]
        differs = to_go > 0
        is_best.append((left < to_go)[differs])
        is_near.append((to_go <= 5)[differs])
    best = np.concatenate(is_best)
    return float(best.mean()), float(best[np.concatenate(is_near)].mean())


def learn(settings: Settings, data: Data, new_layouts: list[Layout]) -> list[dict[str, float]]:
    """Make the updates; return how good greedy actions are after each quarter of them."""
    th.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    trunk, goal_trunk = (
        make_trunk(rows, settings.convolutions) for rows in (data.observations, data.goals)
    )
    net = DistanceQNetwork(trunk, 512, 3, 128, goal_trunk, 512)
    target = copy.deepcopy(net).requires_grad_(False)

    def standardize(n: int) -> None:
        for network in (net, target):
            network.trunk[0].fit(data.observations[:n])
            network.goal_trunk[0].fit(data.goals[:n])

    n_standardized_by = settings.standardized_by or settings.steps
    standardize(n_standardized_by)
    optimizer = th.optim.Adam(net.parameters(), 3e-4)
    scale = (settings.gamma, *REWARDS)
    n_segments = BATCH_SIZE // settings.segment_length
    found = []
    for update in range(1, settings.updates + 1):
        if settings.again and settings.standardized_by + update / 0.3 >= 2 * n_standardized_by:
            n_standardized_by *= 2
            standardize(n_standardized_by)
        begins = rng.integers(settings.steps - settings.segment_length + 1, size=n_segments)
        rows = (begins[:, None] + np.arange(settings.segment_length)).reshape(-1)
        # Goals are where transitions led, filled up with others.
        _, places = np.unique(data.goal_ids[rows], return_index=True)
        others = rng.integers(settings.steps, size=BATCH_SIZE - len(places))
        of_goals = np.concatenate([rows[places], others])
        observations = data.observations[rows]
        actions = data.actions[rows]
        goals = data.goals[of_goals]
        with th.no_grad():
            seen = th.cat([data.next_observations[rows], observations])
            states, embedded_goals = target.embed(seen, goals)
            next_states, states = states.split(len(rows))
            reached = th.as_tensor(data.goal_ids[rows][:, None] == data.goal_ids[of_goals])
            never_ends = th.zeros(len(rows), dtype=th.bool)
            next_values = target.pairwise_best(next_states, embedded_goals)
            targets = pairwise_td_targets(next_values, reached, never_ends, *scale)
            best = target.pairwise_best(states, embedded_goals)
            taken = target.pairwise_taken(states, embedded_goals, actions)
            targets = widen_action_gaps(targets, best, taken, 0.5 * nearness(best, 0.9, *scale))
        values = net.values_of_taken(observations, actions, goals)
        by_value = near_weights(values.detach(), 0.75, settings.near_floor, *scale)
        by_target = near_weights(targets, 0.75, settings.near_floor, *scale)
        share = 0.5 * (1.0 - update / settings.updates)
        weights = (1.0 - share) * by_value + share * by_target
        loss = (weights * (values - targets).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with th.no_grad():
            for moved, towards in zip(target.parameters(), net.parameters(), strict=True):
                moved.lerp_(towards, 0.05)
        if update % (settings.updates // 4) == 0:
            everywhere, near = accuracy(net, new_layouts)
            found.append({"after": update, "everywhere": everywhere, "near": near})
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Learn by the settings of the first argument, and add rows to the file of the second."""
    th.set_num_threads(1)
    settings = Settings(**json.loads(sys.argv[1]))
    output = Path(sys.argv[2])
    env = NewLayouts("MiniGrid-FourRooms-v0")
    n_episodes = settings.steps // STEPS_OF_EPISODE
    layouts = [Layout(env, 1_000 + number) for number in range(n_episodes)]
    new_layouts = [Layout(env, 1_000_000 + number) for number in range(30)]
    print(f"a random action is on a shortest way in {chance(new_layouts):.3f} of the pairs")
    began = time.perf_counter()
    found = learn(settings, Data(settings, layouts), new_layouts)
    rows = pd.DataFrame(
        [{"commit": recording.git_revision(), **asdict(settings), **row} for row in found]
    )
    rows["seconds"] = round(time.perf_counter() - began)
    output.parent.mkdir(parents=True, exist_ok=True)
    rows.round(3).to_csv(output, mode="a", header=not output.exists(), index=False)


if __name__ == "__main__":
    main()
