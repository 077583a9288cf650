"""What a log and a progress bar say of plans and of exploration."""

import numpy as np
import pandas as pd
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure

from sb3_manygoals import TDTargets, large_world
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import Corridor


def rows_of(model, steps, folder, **kwargs):
    """The log of so many steps, one row each time it is written."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(steps, **kwargs)
    model.logger.close()
    path = folder / "progress.csv"
    return pd.read_csv(path) if path.stat().st_size else pd.DataFrame()


def test_the_log_says_what_the_plan_knows(tmp_path):
    model = make_model()
    rows = rows_of(model, 200, tmp_path, log_interval=1)
    planned = rows[rows["plan/goals"].notna()]
    assert len(planned) > 2
    assert planned["plan/goals"].iloc[-1] == 6
    assert planned["plan/known_ways"].between(0.0, 1.0).all()
    best = model.targets.plan.best
    assert planned["plan/known_ways"].iloc[-1] == pytest.approx((best >= 0).mean())
    assert planned["plan/known_ways"].iloc[-1] > 0.7


@pytest.mark.parametrize("max_plan_bytes", [100, 10_000])
def test_a_large_world_is_logged_while_no_goal_episode_ends(tmp_path, max_plan_bytes):
    """Many updates between two ends of episodes, which all end at once, as in thousands of worlds."""
    settings = large_world(1_000, max_plan_bytes) | {"learning_starts": 500}
    pursuit = {"max_episode_steps": 10_000, "reset_worlds": False}
    model = make_model(
        make_vec_env(Corridor, 4, env_kwargs={"length": 30}),
        goal_wrapper_kwargs=pursuit,
        **settings | {"updates_per_step": 0.25},
    )
    rows = rows_of(model, 1_000, tmp_path, log_interval=3)
    learned = rows[rows["train/loss"].notna()]
    assert len(learned) > 5
    assert learned["time/total_timesteps"].is_monotonic_increasing
    assert learned["plan/goals"].notna().all()


def test_each_plan_is_in_the_log_at_once(tmp_path):
    rows = rows_of(make_model(Corridor(30)), 200, tmp_path, log_interval=1_000)
    assert len(rows) > 3
    assert rows["plan/known_ways"].notna().all()


def test_no_log_is_none(tmp_path):
    assert rows_of(make_model(), 200, tmp_path, log_interval=None).empty


def test_the_log_tells_goal_episodes_that_explore_from_those_that_do_not(tmp_path):
    model = make_model(
        make_vec_env(Corridor, 4),
        learning_starts=400,
        exploration_fraction=0.1,
        exploration_final_eps=0.3,
        goal_wrapper_kwargs={"max_episode_steps": 5},
    )
    rows = rows_of(model, 1_600, tmp_path, log_interval=1)
    random = rows[rows["time/total_timesteps"] < 400]
    assert (random["rollout/exploring"] == 1.0).all()  # so a success rate near 0 says nothing
    assert (
        "rollout/success_rate_exploiting" not in random
        or random["rollout/success_rate_exploiting"].isna().all()
    )
    last = rows.iloc[-1]
    assert 0.1 < last["rollout/exploring"] < 0.6
    assert last["rollout/success_rate_exploiting"] == 1.0  # the plan knows every way by now
    assert last["rollout/success_rate"] < 1.0


def test_a_learner_without_plans_logs_none(tmp_path):
    rows = rows_of(make_model(target_class=TDTargets), 200, tmp_path, log_interval=1)
    names = [name for name in rows if name.startswith("plan/") or "explor" in name]
    assert names == ["rollout/exploration_rate"]


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_a_progress_bar_says_what_the_plan_knows():
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    said, calls = [], []

    class Listen(BaseCallback):
        def _on_step(self):
            calls.append(self.num_timesteps)
            return True

    model = make_model(learning_starts=100)
    bars = model._init_callback

    def listening(callback, progress_bar=False):
        found = bars(callback, progress_bar)
        bar = found.callbacks[-1]
        say = bar._say
        bar._say = lambda text: (said.append(text), say(text))
        return found

    model._init_callback = listening
    model.learn(200, Listen(), progress_bar=True)
    assert calls == list(range(1, 201))
    assert said[0] == "random steps"
    assert "planning" in said
    assert said.index("planning") >= 100
    assert said[-1].startswith("plan: 6 goals, ")
    assert np.mean([text.endswith("% of ways known") for text in said[110:]]) > 0.8
    make_model().learn(40, lambda *_: True, progress_bar=True)
    make_model().learn(40, [Listen()], progress_bar=True)
    make_model().learn(40, progress_bar=True)
