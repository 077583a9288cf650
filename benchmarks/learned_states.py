"""Mastery where no picture is ever seen twice, and how good the states are that are learned."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from benchmarks import recording
from benchmarks.disturbances import DISTURBANCES, Spoiled, SpoiledReacher, Spoiler
from benchmarks.mastery import ByPlan
from benchmarks.rows import add_row
from benchmarks.tables import Tables, TabularVectorEnv, TrainingVectorEnv, explore_by_copies
from benchmarks.worlds import SettingError, World
from gym_twoRooms.mdp import TwoRoomsMDP
from sb3_manygoals import GymnasiumVecEnv, ManyGoalsDQN, PlannedTargets, evaluate_mastery
from sb3_manygoals.validation import check_action_space
from sb3_manygoals.world import UNKNOWN, ExactStates, LearnedStates

MAPS = ("small", "paper", "locks", "warehouse", "mansion")
"""Maps of TwoRoomsSwitch."""

MINIGRID = {"four-rooms": "MiniGrid-FourRooms-v0", "door-key": "MiniGrid-DoorKey-6x6-v0"}
"""Worlds of MiniGrid, each with one layout, by their names."""

# Pixels a side of a cell in MiniGrid's pictures.
_TILE = 2
# Of each state, so many pictures are clustered when clusters are judged.
_PICTURES_PER_STATE = 8
# A goal must be reached within so many steps.
_MAX_STEPS = 200
# Random steps are made in episodes that are as long as those in which the default pursues goals.
_EPISODE = 50
# At most so many states are learned from random steps.
_MOST_STATES = 250_000
# So many states are drawn, and of each so many pictures.
_STATES_DRAWN = 6
_PICTURES_DRAWN = 5
_PICTURES_TO_AVERAGE = 100
# What is measured only if an agent is trained.
_OF_TRAINING = (
    "goals",
    "network",
    "network_epsilon",
    "plan",
    "ceiling",
    "targets",
    "updates",
)


@dataclass(frozen=True)
class LearnedStatesConfig:
    """Train ManyGoalsDQN on spoiled pictures, and measure it by the true states."""

    world: str = "paper"
    """The world: small, paper, locks, warehouse or mansion, which are maps of TwoRoomsSwitch,
    four-rooms or door-key."""
    disturbance: str = "none"
    """What spoils pictures besides noise: none, flicker, brightness, blur, walking-dot,
    circling-dot or clock."""
    noise: int = 20
    """Greatest noise in each channel of each pixel, of 255."""
    seed: int = 0
    """Seed of everything random."""
    total_steps: int = 500_000
    """Environment steps."""
    n_envs: int = 64
    """Environments that step together."""
    most_goals: int = 500
    """Most goals that are measured, drawn at random."""
    states_only: bool = False
    """Whether states are learned once, from random steps, and nothing is trained."""
    figure: Path | None = None
    """The file of a picture to draw: some pictures of a few states, and what they have in common;
    by default none."""
    output: Path = Path("runs/learned-states.csv")
    """The file to which a row is added."""

    def run(self) -> dict[str, Any]:
        """
        Train, measure, and add a row to the file.

        :return: the row
        :raises SettingError: if there is no such world or disturbance
        """
        if self.disturbance not in DISTURBANCES:
            raise SettingError(
                f"disturbance must be one of {', '.join(DISTURBANCES)}, got {self.disturbance!r}"
            )
        if self.total_steps < self.n_envs:
            raise SettingError(
                f"total_steps must be at least n_envs, {self.n_envs}, got {self.total_steps}"
            )
        th.set_num_threads(1)
        world, tables = _world(self.world, self.n_envs)
        spoiled = Spoiled(world, self._spoiler(0))
        began = time.perf_counter()
        cpu_began = time.process_time()
        found: dict[str, Any] = dict.fromkeys(_OF_TRAINING, "")
        states: ExactStates
        if self.states_only:
            states = self._learn_states(spoiled)
            seconds = time.perf_counter() - began
            cpu_seconds = time.process_time() - cpu_began
        else:
            model = ManyGoalsDQN("CnnPolicy", GymnasiumVecEnv(spoiled), seed=self.seed)
            model.learn(self.total_steps)
            seconds = time.perf_counter() - began
            cpu_seconds = time.process_time() - cpu_began
            assert model.world is not None
            states = model.world.identity
            found |= self._mastery(model, tables)
            found["targets"] = type(model.targets).__name__
            found["updates"] = model._n_updates
        row = {
            "commit": recording.git_revision(),
            "world": self.world,
            "disturbance": self.disturbance,
            "noise": self.noise,
            "seed": self.seed,
            "steps": self.total_steps,
            **found,
            **self._judge_states(states, tables),
            "seconds": round(seconds, 1),
            # What a core works for this run, whatever else it does.
            "cpu_seconds": round(cpu_seconds, 1),
            # Linux has kilobytes.
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        if self.figure is not None and isinstance(states, LearnedStates):
            _draw(states, self.figure)
        add_row(self.output, row)
        print(row)
        return row

    def _spoiler(self, stream: int) -> Spoiler:
        """Return what spoils pictures, with random numbers of a stream of its own."""
        return Spoiler(
            DISTURBANCES[self.disturbance](),
            self.noise,
            int(np.random.SeedSequence((self.seed, stream)).generate_state(1)[0]),
        )

    def _learn_states(self, env: Spoiled) -> LearnedStates:
        """Return states that are learned from random steps, in episodes of 50 steps."""
        rng = np.random.default_rng((self.seed, 1))
        n_actions = check_action_space(env.single_action_space)
        n_times = self.total_steps // self.n_envs
        actions = rng.integers(n_actions, size=(n_times, self.n_envs))
        places = np.zeros((n_times, self.n_envs), np.int64)
        next_places = np.zeros_like(places)
        seen = [env.reset(seed=self.seed)[0]]
        here = np.arange(self.n_envs)
        for time_step in range(n_times):
            places[time_step] = here
            after, _, ended, cut, _ = env.step(actions[time_step])
            ended = ended | cut
            here = len(seen) * self.n_envs + np.arange(self.n_envs)
            seen.append(after)
            next_places[time_step] = here
            if (time_step + 1) % _EPISODE == 0:
                ended = np.ones_like(ended)
            if ended.any():
                # The others are shown as they are, once more.
                seen.append(env.reset(options={"reset_mask": ended})[0])
                here = np.where(ended, here + self.n_envs, here)
        # Pictures of more states than steps would only take memory.
        capacity = min(_MOST_STATES, self.total_steps)
        states = LearnedStates(env.single_observation_space, capacity, seed=self.seed)
        states.learn(
            np.concatenate(seen),
            places.reshape(-1),
            actions.reshape(-1),
            next_places.reshape(-1),
            n_actions,
            self.n_envs,
        )
        return states

    def _mastery(self, model: ManyGoalsDQN, tables: Tables) -> dict[str, Any]:
        """Return the mastery of the network and of the plan, by the true states."""
        rng = np.random.default_rng(0)
        goals = tables.observations[rng.permutation(len(tables))[: self.most_goals]]
        task: dict[str, Any] = {
            "env": TabularVectorEnv(tables, len(goals)),
            "goals": goals,
            "max_steps": _MAX_STEPS,
            "seed": self.seed + 1_000,
        }
        network = SpoiledReacher(model, self._spoiler(1))
        greedy = evaluate_mastery(network, ceiling=tables.ceiling(_MAX_STEPS), **task)
        assert greedy.ceiling is not None
        found = {
            "goals": len(goals),
            "network": round(greedy.rate, 4),
            "network_epsilon": round(evaluate_mastery(network, epsilon=0.1, **task).rate, 4),
            "plan": "",
            "ceiling": round(float(greedy.ceiling.mean()), 4),
        }
        if isinstance(model.targets, PlannedTargets):
            by_plan = SpoiledReacher(ByPlan(model, self.seed), self._spoiler(2))
            found["plan"] = round(evaluate_mastery(by_plan, **task).rate, 4)
        return found

    def _judge_states(self, states: ExactStates, tables: Tables) -> dict[str, Any]:
        """Return how well states that are told apart agree with the true ones."""
        true = np.repeat(np.arange(len(tables)), _PICTURES_PER_STATE)
        spoiler = self._spoiler(3)
        parts = np.array_split(true, max(1, len(true) // 2_000))
        ids = np.concatenate([states.ids(spoiler.any(tables.observations[part])) for part in parts])
        found: dict[str, Any] = {
            "states": len(tables),
            "clusters": len(states),
            "purity": round(purity(ids, true), 5),
            "completeness": round(purity(true, ids), 5),
            "unknown": round(float((ids == UNKNOWN).mean()), 5),
            "purity_door": "",
            "purity_block": "",
            "learning_seconds": "",
        }
        if isinstance(states, LearnedStates):
            found["learning_seconds"] = round(states.seconds, 1)
        if self.world in MAPS:
            mdp = _mdp(self.world)
            # Doors that are open and cells of blocks, each as one number.
            doors = np.unique(mdp.doors_open, axis=0, return_inverse=True)[1].reshape(-1)
            blocks = np.unique(mdp.blocks, axis=0, return_inverse=True)[1].reshape(-1)
            found["purity_door"] = round(purity(ids, doors[true]), 5)
            found["purity_block"] = round(purity(ids, blocks[true]), 5)
        return found


def purity(clusters: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """
    Return the share of pictures whose label is the most frequent one of their cluster.

    :param clusters: the cluster of each picture, shape (n,). ``UNKNOWN`` counts as wrong
    :param labels: the label of each picture, shape (n,). ``UNKNOWN`` is no label
    :return: from 0 to 1
    """
    known = (clusters != UNKNOWN) & (labels != UNKNOWN)
    pairs, counts = np.unique(
        np.stack([clusters[known], labels[known]]), axis=1, return_counts=True
    )
    most = np.zeros(int(clusters.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(most, pairs[0], counts)
    return float(most.sum() / len(clusters))


def _draw(states: LearnedStates, path: Path) -> None:
    """Draw some pictures of a few states, and the mean of all that are kept of each."""
    # matplotlib takes long to import.
    from matplotlib import pyplot

    rng = np.random.default_rng(0)
    n_drawn = min(_STATES_DRAWN, len(states))
    chosen = np.sort(rng.choice(len(states), n_drawn, replace=False))
    size = (_PICTURES_DRAWN + 1, n_drawn)
    figure, axes = pyplot.subplots(
        *size[::-1], figsize=(size[0] * 1.2, size[1] * 1.25), squeeze=False
    )
    for row, state in zip(axes, chosen, strict=True):
        ids = np.full(_PICTURES_TO_AVERAGE, state)
        pictures = states.sample(ids, rng)
        for place, picture in zip(row, pictures[:_PICTURES_DRAWN], strict=False):
            place.imshow(picture)
        row[-1].imshow(pictures.mean(axis=0).astype(np.uint8))
        row[0].set_ylabel(f"state {state}")
    for place in axes.flat:
        place.set_xticks([])
        place.set_yticks([])
    axes[0, -1].set_title("mean")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _mdp(name: str) -> TwoRoomsMDP:
    """Return the states of a map."""
    env: Any = World("TwoRoomsSwitch-v0", name).make().unwrapped
    mdp: TwoRoomsMDP = env.mdp
    return mdp


def _world(name: str, n_envs: int) -> tuple[VectorEnv[Any, Any, Any], Tables]:
    """Return environments of a world, and its tables. A SettingError if there is none of it."""
    if name in MAPS:
        world = World("TwoRoomsSwitch-v0", name)
        return world.vector(n_envs), world.tables
    if name in MINIGRID:
        tables = explore_by_copies(_pictures_of(MINIGRID[name]))
        return TrainingVectorEnv(tables, n_envs), tables
    raise SettingError(f"world must be one of {', '.join((*MAPS, *MINIGRID))}, got {name!r}")


class _OneLayout(gym.Wrapper[Any, Any, Any, Any]):
    """A world that always begins with one seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in the one layout."""
        return self.env.reset(seed=0, options=options)


def _pictures_of(game: str) -> gym.Env[Any, Any]:
    """Return a world of MiniGrid with one layout, as MiniGrid's own small pictures show it."""
    from minigrid.wrappers import ImgObsWrapper, RGBImgObsWrapper

    env = gym.make(game, highlight=False, agent_view_size=3, disable_env_checker=True)
    env = RGBImgObsWrapper(env, tile_size=_TILE)  # type: ignore[no-untyped-call]
    pictures: gym.Env[Any, Any] = ImgObsWrapper(env)  # type: ignore[no-untyped-call]
    return _OneLayout(pictures)
