"""
Let ManyGoalsDQN choose which known goals it pursues while it bootstraps, by one of three rules, and
add a row to a file.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/behavior_goals.py random-bits-20
    3000 edge 0 runs/behavior-goals.csv

The rules are ``uniform``, ``progress`` (LearningProgressSelector) and ``edge``: goals about as far
as the agent gets. With ``environment``, the environment sets the goals.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from recipes import success, train

from benchmarks import recording
from benchmarks.goal_worlds import worlds
from benchmarks.rows import add_row
from sb3_manygoals import GoalBuffer, ManyGoalsDQN
from sb3_manygoals.goals import LearningProgressSelector, UniformSelector
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import UNKNOWN

# The edge rule chooses among so many goals, which are drawn uniformly.
N_CANDIDATES = 256
# The edge moves by this share of the candidates each time a goal is chosen.
STEP_OF_EDGE = 0.02


class EdgeSelector(UniformSelector):
    """
    Chooses goals about as far as the agent gets. It draws goals uniformly and sorts them by the
    network's value. It chooses the goal at a certain place in this order: the edge. The edge moves
    to farther goals while the agent reaches more than half of its goals, and else to nearer ones.
    """

    model: ManyGoalsDQN | None = None
    """The learner, which is set before it learns."""

    def __init__(self) -> None:
        # 0 is the nearest candidate, and 1 the farthest.
        self.edge = 0.5

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose a goal for each of n environments."""
        ids = super().select(goal_buffer, current_ids, rng)
        model = self.model
        if model is None or not model.ep_success_buffer:
            return ids
        for row, current in enumerate(current_ids.tolist()):
            is_easy = np.mean(model.ep_success_buffer) > 0.5
            self.edge += STEP_OF_EDGE if is_easy else -STEP_OF_EDGE
            self.edge = float(np.clip(self.edge, 0.0, 1.0))
            if current == UNKNOWN:
                continue
            candidates = goal_buffer.sample_others(np.full(N_CANDIDATES, current), rng)
            goals = th.as_tensor(goal_buffer[candidates], device=model.device)
            # In these worlds, an observation is what is achieved in it.
            state = goal_buffer[np.array([current])]
            space = model.observation_space["observation"]
            if isinstance(space, PackedSpace):
                state = space.pack(dict.fromkeys(space.parts, state))
            states = th.as_tensor(state, device=model.device).repeat_interleave(len(goals), dim=0)
            pairs = {"observation": states, "desired_goal": goals}
            with th.no_grad():
                values = model.policy.action_values(pairs).amax(dim=1)
            order = values.argsort(descending=True).tolist()
            ids[row] = candidates[order[round(self.edge * (N_CANDIDATES - 1))]]
        return ids


SELECTORS = {"uniform": UniformSelector, "progress": LearningProgressSelector, "edge": EdgeSelector}


class Learner(ManyGoalsDQN):
    """A learner that tells the edge rule of itself."""

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Train."""
        EdgeSelector.model = self
        return super().learn(*args, **kwargs)


def goal_arguments(world: str, rule: str) -> dict[str, Any]:
    """Return the arguments of the goal wrapper."""
    arguments: dict[str, Any] = {}
    if world != "small":
        arguments = dict(worlds()[world]().goals)
    if rule == "environment":
        return arguments
    if world != "small":
        arguments["goals_from"] = "achieved"
    return {**arguments, "selector_class": SELECTORS[rule]}


if __name__ == "__main__":
    th.set_num_threads(1)
    name, steps, rule, seed, file = sys.argv[1:]
    began = time.perf_counter()
    arguments = goal_arguments(name, rule)
    learner = train(
        name, int(steps), {"seed": int(seed)}, learner_class=Learner, goal_arguments=arguments
    )
    model_row = {
        "commit": recording.git_revision(),
        "world": name,
        "rule": rule,
        "seed": int(seed),
        "steps": int(steps),
        "updates": learner._n_updates,
        "seconds": round(time.perf_counter() - began, 1),
        "greedy": None,
        "epsilon": None,
        **success(learner, name),
    }
    print(model_row)
    add_row(Path(file), model_row)
