"""What the log and the progress bar say of plans and of exploration."""

import pandas as pd
import pytest
from stable_baselines3.common import callbacks
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import LinearSchedule

from sb3_manygoals import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import Corridor


def rows_of(model, steps, folder, **kwargs):
    """Train for so many steps, and return the rows of the log."""
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


@pytest.mark.filterwarnings(
    "ignore:.* goals fit into max_plan_bytes", "ignore:the last plan knows a way"
)
@pytest.mark.parametrize("max_plan_bytes", [100, 10_000])
def test_updates_are_logged_while_no_goal_episode_ends(tmp_path, max_plan_bytes):
    """Many updates come between ends of episodes, as all episodes end together."""
    settings = {
        "learning_starts": 500,
        "updates_as_needed": False,
        "target_class": PlannedTargets,
        "target_kwargs": {"max_plan_bytes": max_plan_bytes},
        "updates_per_step": 0.25,
        "goal_wrapper_kwargs": {"max_episode_steps": 10_000, "reset_worlds": False},
    }
    model = make_model(make_vec_env(Corridor, 4, env_kwargs={"length": 30}), **settings)
    rows = rows_of(model, 1_000, tmp_path, log_interval=3)
    learned = rows[rows["train/loss"].notna()]
    assert len(learned) > 5
    assert learned["time/total_timesteps"].is_monotonic_increasing
    assert learned["plan/goals"].notna().all()


def test_each_plan_is_in_the_log_at_once(tmp_path):
    rows = rows_of(make_model(Corridor(30)), 200, tmp_path, log_interval=1_000)
    assert len(rows) == 2
    assert rows["plan/known_ways"].notna().all()


def test_without_a_log_interval_nothing_is_logged(tmp_path):
    assert rows_of(make_model(), 200, tmp_path, log_interval=None).empty


def test_the_log_tells_goal_episodes_that_explore_from_others(tmp_path):
    model = make_model(
        make_vec_env(Corridor, 4),
        learning_starts=400,
        target_class=PlannedTargets,
        target_kwargs={"exploring_episodes": LinearSchedule(1.0, 0.3, 0.1)},
        goal_wrapper_kwargs={"max_episode_steps": 5},
    )
    rows = rows_of(model, 1_600, tmp_path, log_interval=1)
    # All episodes with random steps explore, so that their success says nothing.
    random = rows[rows["time/total_timesteps"] < 400]
    assert (random["rollout/exploring"] == 1.0).all()
    exploiting = random.get("rollout/success_rate_exploiting")
    assert exploiting is None or exploiting.isna().all()
    # In the end the plan knows every way.
    last = rows.iloc[-1]
    assert 0.1 < last["rollout/exploring"] < 0.6
    assert last["rollout/success_rate_exploiting"] == 1.0
    assert last["rollout/success_rate"] < 1.0


def test_a_learner_without_plans_logs_none(tmp_path):
    rows = rows_of(make_model(target_class=TDTargets), 200, tmp_path, log_interval=1)
    names = [name for name in rows if name.startswith("plan/") or "explor" in name]
    assert names == ["rollout/exploration_rate"]


class Listen(BaseCallback):
    """Notes the steps at which it is called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def _on_step(self):
        self.calls.append(self.num_timesteps)
        return True


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_a_progress_bar_says_what_the_plan_knows(monkeypatch):
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    said = []

    class Bar(callbacks.tqdm):
        def set_description(self, desc=None, refresh=True):
            said.append((model.num_timesteps, desc))
            super().set_description(desc, refresh)

    monkeypatch.setattr(callbacks, "tqdm", Bar)
    model = make_model(learning_starts=100)
    listen = Listen()
    model.learn(200, listen, progress_bar=True)
    assert listen.calls == list(range(1, 201))
    assert said[0] == (0, "random steps")
    first_plan = next(steps for steps, text in said if text == "planning")
    assert first_plan >= 100
    after = [text for steps, text in said if steps > first_plan]
    assert after[-1].startswith("plan: 6 goals, ")
    known = [text for text in after if text != "planning"]
    assert all(text.endswith("% of ways known") for text in known)


@pytest.mark.filterwarnings("ignore:rich is experimental")
@pytest.mark.parametrize("callback", [None, lambda *_: True, [Listen()]])
def test_a_progress_bar_goes_with_callbacks_of_all_kinds(callback):
    pytest.importorskip("tqdm")
    pytest.importorskip("rich")
    assert make_model().learn(40, callback, progress_bar=True).num_timesteps == 40
