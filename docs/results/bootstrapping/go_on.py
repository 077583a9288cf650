"""
Go on from the checkpoint of a run on the paper's map by another recipe, and add a row to a file.

This shows what a recipe does to values that are learned, in a tenth of the time of a run. The
learning rate falls to 0 during the last steps, as at the end of each run.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/go_on.py
    runs/mastery-td-TwoRoomsSwitch-paper-seed0-.../checkpoints 40000
    '{"action_gap": 0.5, "target_share": 0.0, "double_q": false}' runs/go-on.csv
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

import sb3_manygoals.many_goals_dqn.targets as targets_module
from benchmarks import recording
from benchmarks.mastery import MasteryConfig, _evaluated
from benchmarks.rows import add_row
from benchmarks.tables import TabularVectorEnv
from sb3_manygoals import TDTargets, evaluate_mastery
from sb3_manygoals.checkpoint.envs import set_env_state
from sb3_manygoals.checkpoint.folder import read_newest
from sb3_manygoals.losses import pairwise_td_targets
from sb3_manygoals.many_goals_dqn.targets import UpdateBatch

_N_GOALS = 500


class _ConstantShare(TDTargets):
    """The share of weights that is by targets stays as it is."""

    def before_updates(self, progress: float) -> None:
        """Keep the share of the beginning."""


class _DoubleQ(_ConstantShare):
    """Targets of double Q-learning (van Hasselt et al. 2016), without a wider gap."""

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """Return targets in which the trained network chooses the action."""
        samples = batch.samples
        assert samples is not None
        trained = self.context.policy.q_net
        target = self._target_network
        with th.no_grad():
            values = trained.pairwise(*trained.embed(samples.next_observations, batch.goals))
            best = values.argmax(dim=2, keepdim=True)
            values = target.pairwise(*target.embed(samples.next_observations, batch.goals))
            next_values = values.gather(2, best)[:, :, 0]
            achieved = self._are_reached(batch, True)
            return pairwise_td_targets(
                next_values, achieved, samples.terminated, *self.context.gamma_and_rewards
            )


def go_on(checkpoints: Path, steps: int, recipe: dict[str, Any]) -> dict[str, float]:
    """Train for some more steps by a recipe, and return mastery of 500 goals."""
    evaluated = _evaluated(MasteryConfig(agent="td", map="paper"))
    model = evaluated.model
    found = read_newest(checkpoints)
    assert found is not None
    model.set_checkpoint_state(found[1]["learner"])
    set_env_state(model.env, found[1]["env"])
    targets_module._TARGET_SHARE = recipe["target_share"]
    model.targets.action_gap = recipe["action_gap"]
    model.targets.__class__ = _DoubleQ if recipe["double_q"] else _ConstantShare
    began_at = model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    tables = evaluated.tables
    assert tables is not None
    chosen = np.sort(np.random.default_rng(1).permutation(len(tables))[:_N_GOALS])
    goals = tables.observations[chosen]
    env = TabularVectorEnv(tables, _N_GOALS)
    rates = {
        name: evaluate_mastery(model, env, goals, epsilon=epsilon, seed=0).rate
        for name, epsilon in (("greedy", 0.0), ("epsilon", 0.1))
    }
    return {"from_step": began_at, **{name: round(rate, 4) for name, rate in rates.items()}}


if __name__ == "__main__":
    th.set_num_threads(1)
    folder, n_steps, text, file = sys.argv[1:]
    began = time.perf_counter()
    mastery = go_on(Path(folder), int(n_steps), json.loads(text))
    row = {
        "commit": recording.git_revision(),
        "recipe": text,
        "steps": int(n_steps),
        "seconds": round(time.perf_counter() - began, 1),
        **mastery,
    }
    print(row)
    add_row(Path(file), row)
