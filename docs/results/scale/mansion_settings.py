"""
Discover `mansion` once, and learn its plan under several settings, each in a process of its own.

Each process is a fork of the one that has discovered the world and made the first plan. It makes
updates for 12 minutes, with a step size that falls linearly to 0, and is measured on 500 goals.
Run it on one core: OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/scale/mansion_settings.py
"""

import os
import time
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import update_learning_rate

from benchmarks import mastery
from benchmarks.tables import TabularVectorEnv
from sb3_manygoals import ManyGoalsDQN, evaluate_mastery

SECONDS = 12 * 60
TOTAL_STEPS = 32_250_000
# Of the settings of an earlier version: best_weight is for worlds of up to 8,192 states.
EARLIER: dict[str, Any] = {"near_floor": 0.1, "best_weight": 1e4 * 8_192 / 190_800}
EARLIER_UPDATE: dict[str, Any] = {"states": 256, "goals": 16, "step_size": 1e-3}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "ten times as many goals exchanged": {"fresh_goals": 1.0},
    "the same, weights of the earlier version": {"fresh_goals": 1.0, **EARLIER},
    "all settings of the earlier version": {"fresh_goals": 0.3, **EARLIER, **EARLIER_UPDATE},
    "likeliest outcomes": {"likeliest": True},
    "likeliest outcomes, all settings of the earlier version": {
        "likeliest": True,
        "fresh_goals": 0.3,
        **EARLIER,
        **EARLIER_UPDATE,
    },
}


class Fork(BaseCallback):
    """Try all settings once the first plan is made, and end."""

    model: ManyGoalsDQN

    def __init__(self, evaluated: mastery.EvaluatedAgent) -> None:
        super().__init__()
        self.evaluated = evaluated

    def _on_rollout_start(self) -> None:
        targets: Any = self.model.targets
        if targets.planned_at is None:
            return
        for name, settings in SETTINGS.items():
            child = os.fork()
            if child == 0:
                print(name, learn(self.model, self.evaluated, **settings), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        os._exit(0)

    def _on_step(self) -> bool:
        return True


def learn(
    model: ManyGoalsDQN,
    evaluated: mastery.EvaluatedAgent,
    fresh_goals: float = 0.1,
    near_floor: float = 0.02,
    best_weight: float = 50.0,
    states: int = 128,
    goals: int = 128,
    step_size: float = 2e-3,
    likeliest: bool = False,
) -> str:
    """Learn the plan under these settings, and return what came."""
    targets: Any = model.targets
    targets.fresh_goals = fresh_goals
    targets.near_floor = near_floor
    targets.best_weight = best_weight
    plan = targets.plan
    if likeliest:
        plan.model = plan.model.likeliest()
        plan._prepared = plan._prepare(True)
        plan._plan_all()
    policy = model.policy
    policy.set_training_mode(True)
    model._prepare_first_update()
    n_updates = 0
    begin = time.perf_counter()
    while (spent := (time.perf_counter() - begin) / SECONDS) < 1.0:
        warm_up = min(1.0, (n_updates + 1) / 200)
        update_learning_rate(policy.optimizer, step_size * (1.0 - spent) * warm_up)
        batch = targets.sample(states, goals, model.rng)
        loss = targets.losses(batch, targets.target_values(batch)).mean()
        policy.optimizer.zero_grad()
        loss.backward()
        policy.optimizer.step()
        policy.update_ema()
        n_updates += 1
    policy.set_training_mode(False)
    tables = evaluated.tables
    assert tables is not None
    drawn = np.random.default_rng(0).permutation(len(tables))[:500]
    found = [
        evaluate_mastery(
            model,
            TabularVectorEnv(tables, len(drawn)),
            tables.observations[drawn],
            max_steps=400,
            epsilon=epsilon,
            seed=1_000,
            warn=False,
        ).rate
        for epsilon in (0.0, 0.1)
    ]
    return f"{n_updates} updates, {found[0]:.3f} greedily, {found[1]:.3f} at 0.1"


def main() -> None:
    """Discover the world, and try all settings."""
    th.set_num_threads(1)
    config = mastery.MasteryConfig(
        map="mansion", total_steps=TOTAL_STEPS, agent_kwargs='{"updates_per_step": 0.0037}'
    )
    evaluated = mastery._evaluated(config)
    evaluated.model.learn(config.total_steps, callback=Fork(evaluated))


if __name__ == "__main__":
    main()
