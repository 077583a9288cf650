"""Tasks learned from nothing, and told to a trained agent."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import mastery, tasks, told_tasks
from benchmarks.agents import hindsight
from benchmarks.agents.hindsight import Rewarded
from benchmarks.agents.rivals import HindsightPolicy, RivalPolicy, make
from benchmarks.studies.tasks import PARTS, TasksStudyConfig
from benchmarks.suite import Result
from benchmarks.tasks import CURVE, Measure, TasksConfig, TaskWorld, evaluate
from benchmarks.told_tasks import TASKS, WORLD, ToldTasksConfig, returns, rewarded_states
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals import ManyGoalsDQN
from tests.benchmarks.command_line import command, printed, rows_of
from tests.sb3_manygoals.worlds import Always, Paid

TINY = {
    "many_goals": '{"policy_kwargs": {"net_arch": [16], "embedding_dim": 8}, '
    '"batch_size": 16, "goal_batch_size": 16}',
    "ppo": '{"n_envs": 2, "n_steps": 100, "batch_size": 50, "n_epochs": 1}',
    "a2c": '{"n_envs": 2}',
    "dqn": '{"buffer_size": 500, "train_freq": 50}',
    "hindsight": '{"max_episode_steps": 20, "train_freq": 400}',
}
"""Arguments that make each agent small."""


@pytest.mark.parametrize("agent", TINY)
def test_a_run_measures_its_task_and_goes_on(agent, tmp_path):
    pytest.importorskip("minigrid")
    quick = ["--world", "MiniGrid-Empty-5x5-v0", "--agent", agent, "--agent-kwargs", TINY[agent]]
    quick += ["--eval-episodes", "2", "--total-steps", "800", "--eval-freq", "400"]
    quick += ["--no-progress-bar", "--output", str(tmp_path)]
    printed("tasks", *quick)
    (folder,) = tmp_path.iterdir()
    rows = rows_of(folder / "curve.csv")
    (summary,) = rows_of(folder / "summary.csv")
    assert set(rows[0]) == set(CURVE)
    assert [int(row["step"]) for row in rows] == [400, 800]
    assert (summary["agent"], summary["first_reward"]) == (agent, rows[-1]["first_reward"])
    assert (rows[-1]["planned"] != "") == (agent == "many_goals")
    printed("tasks", "--resume", str(folder), "--total-steps", "1200")
    assert rows_of(folder / "curve.csv")[:2] == rows
    assert [int(row["step"]) for row in rows_of(folder / "curve.csv")] == [400, 800, 1200]
    other = ("--world", "MiniGrid-Empty-6x6-v0", "--total-steps", "1600")
    said = command("tasks", "--resume", str(folder), *other)
    assert "world must be MiniGrid-Empty-5x5-v0, as the run in" in said.stderr


def test_a_run_ends_once_its_task_was_solved_often_enough():
    measure = Measure(TasksConfig(patience=2), TaskWorld("MiniGrid-Empty-5x5-v0"), None)
    for success, settled in zip(
        ("1.0", "0.9", "0.95", "1.0"), (False, False, False, True), strict=True
    ):
        measure.rows.append([600, 100, success, "0.5", ""])
        assert measure.is_settled() == settled
    assert not Measure(TasksConfig(), measure.world, None).is_settled()


def test_success_of_episodes():
    class Corridors:
        def make(self):
            return gym.wrappers.TimeLimit(Paid({8: 0.5}, (8,), start=next(starts)), 4)

    # The goal is two steps away, or more than there are.
    starts = itertools.cycle([6, 3])
    assert evaluate(Always(1), Corridors(), 4, 0, greedy=True) == 0.5
    assert evaluate(Always(1), Corridors(), 2, 0, greedy=False, epsilon=1.0) < 1.0


def test_an_episode_of_a_world_without_a_limit_ends(monkeypatch):
    class Endless:
        def make(self):
            return Paid({8: 0.5}, (8,), start=3)

    monkeypatch.setattr(tasks, "MOST_STEPS", 30)
    assert evaluate(Always(0), Endless(), 2, 0, greedy=True) == 0.0
    assert evaluate(Always(1), Endless(), 2, 0, greedy=True) == 1.0


def test_a_run_may_go_on_with_another_frequency(monkeypatch):
    measured = []
    config = TasksConfig(eval_freq=100)
    measure = Measure(config, TaskWorld("MiniGrid-Empty-5x5-v0"), None)
    measure.rows = [[step, 100, "0.5", "0.5", ""] for step in (500, 1_000, 1_500)]
    measure.model = ManyGoalsDQN("MlpPolicy", gym.make("FrozenLake-v1"))

    def note():
        measured.append(measure.num_timesteps)
        measure.rows.append([measure.num_timesteps, 100, "0.5", "0.5", ""])

    monkeypatch.setattr(measure, "_measure", note)
    for step in range(1_501, 1_801):
        measure.num_timesteps = step
        measure.locals = {"infos": [{"env_reward": 0.0}], "rewards": [0.0]}
        measure._on_step()
    assert measured == [1_600, 1_700, 1_800]


@pytest.mark.parametrize("agent", ["ppo", "dqn"])
def test_rivals_see_numbers_of_states_one_hot_as_all_of_sb3s_agents_do(agent):
    given = {"buffer_size": 100} if agent == "dqn" else {"n_envs": 2, "n_steps": 64}
    model = make(agent, lambda: gym.make("FrozenLake-v1"), 0, "cpu", given)
    assert model.observation_space.shape == (16,)
    np.testing.assert_array_equal(model.env.reset()[0], np.eye(16)[0])
    seen = []
    obs_to_tensor = model.policy.obs_to_tensor

    def note(observation):
        seen.append(observation)
        return obs_to_tensor(observation)

    model.policy.obs_to_tensor = note
    RivalPolicy(model).predict(np.array([3, 5]))
    np.testing.assert_array_equal(seen[0], np.eye(16)[[3, 5]])


@pytest.mark.parametrize("option", ["--threads", "--n-envs"])
def test_numbers_below_1_are_refused(option):
    assert "must be at least 1, got 0" in command("tasks", option, "0").stderr


def test_sampled_actions_of_rivals_differ_from_step_to_step_and_leave_training_alone():
    policy = RivalPolicy(make("a2c", lambda: Paid({}, ()), 0, "cpu", {"n_envs": 1}))
    before = th.get_rng_state()
    drawn = [
        policy.predict(np.eye(9, dtype=np.uint8)[:1], deterministic=False)[0].item()
        for _ in range(60)
    ]
    # Of each action 20 are expected.
    assert np.bincount(drawn, minlength=3).min() > 5
    assert th.equal(th.get_rng_state(), before)


@pytest.mark.parametrize("agent", ["ppo", "a2c"])
def test_rivals_learn_from_the_normalized_observations_that_they_see(agent):
    model = make(agent, lambda: gym.make(WORLD), 0, "cpu", {"n_envs": 2, "n_steps": 64})
    seen = []
    forward = model.policy.forward
    model.policy.forward = lambda observations: (
        seen.append(observations.clone()) or forward(observations)
    )
    model.learn(128)
    assert th.stack(seen).min() < 0
    np.testing.assert_array_equal(
        model.rollout_buffer.observations.reshape(2, 64, -1), th.stack(seen, dim=1)
    )


def test_hindsight_acts_towards_what_was_rewarded_and_half_of_its_goals_are():
    worlds = make_vec_env(lambda: Paid({8: 1.0}, (8,)), 2)
    pursuit = {"selector_class": Rewarded}
    model = hindsight.make(worlds, pursuit, 0, "cpu", {"max_episode_steps": 20}).learn(300)
    assert HindsightPolicy(model).goals.argmax(axis=1).tolist() == [8]
    goals = model.goal_buffer
    selector = model.env.goal_tracker.selector
    rng = np.random.default_rng(0)
    anywhere = np.full(4_000, -1)
    (rewarded,) = np.flatnonzero(model.goal_rewards > 0)
    share = np.mean(selector.select(goals, anywhere, rng) == rewarded)
    assert abs(share - (0.5 + 0.5 / len(goals))) < 0.03
    assert not (selector.select(goals, np.full(4_000, rewarded), rng) == rewarded).any()
    model.world.arrival_rewards[:] = 0.0
    assert abs(np.mean(selector.select(goals, anywhere, rng) == rewarded) - 1 / len(goals)) < 0.03


def test_the_tasks_of_two_rooms_and_their_best_returns():
    mdp = gym.make(WORLD).unwrapped.mdp
    rewarded = {task: rewarded_states(mdp, task) for task in TASKS}
    assert len(set(TASKS)) == len(TASKS) == 20
    assert all(0 < mask.sum() < mdp.n_states / 2 for mask in rewarded.values())
    task = "agent at the upper switch"
    assert rewarded[task][mdp.encode(11, [52], [False])]
    best = returns(transition_matrices(mdp), rewarded[task], 0.9)
    near, far = (mdp.encode(agent, [52], [False]) for agent in (12, 3))
    assert best[near] == pytest.approx(1.0)
    assert best[far] == pytest.approx(0.9**2)
    # A policy that stays where it is never gets there.
    stay = np.full(mdp.n_states, 4)
    assert returns(transition_matrices(mdp), rewarded[task], 0.9, stay)[far] == 0.0


def test_a_task_of_two_rooms_is_a_world(tmp_path):
    world = TaskWorld(WORLD, None, "agent in the door")
    env = world.make()
    seen, _ = env.reset(seed=0)
    mdp = env.unwrapped.mdp
    rewarded = env.get_wrapper_attr("rewarded")
    ended = False
    steps = 0
    env.action_space.seed(0)
    while not ended and steps < 199:
        assert not rewarded[mdp.states_of(seen[None])[0]]
        seen, reward, ended, _, _ = env.step(env.action_space.sample())
        steps += 1
        assert (reward == 1.0) == ended == bool(rewarded[mdp.states_of(seen[None])[0]])
    options = ["--task", "agent in the door", "--agent", "a2c"]
    options += ["--total-steps", "40", "--eval-freq", "40"]
    printed("tasks", "--world", WORLD, *options, "--eval-episodes", "1", "--output", str(tmp_path))
    printed("report", str(tmp_path), "--output", str(tmp_path / "page.html"))
    for name, task in ((WORLD, "to fly"), ("TwoRoomsSwitchSmall-v0", "agent above")):
        done = command("tasks", "--world", name, "--task", task)
        assert (done.returncode, "task must be one of agent above" in done.stderr) == (1, True)
    assert (
        "agent_kwargs of '{bad' cannot be built"
        in command("tasks", "--agent", "ppo", "--agent-kwargs", "{bad").stderr
    )
    assert (
        "agent must be the folder of a finished run of mastery"
        in command("told-tasks", "--agent", "nowhere").stderr
    )


def test_a_task_told_to_a_run_is_done_by_its_network_and_by_its_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(mastery, "conclude", lambda *_: None)
    monkeypatch.setattr(told_tasks, "TASKS", ("agent slipping, door open",))
    # For so few steps, it would bootstrap.
    small = (
        '{"policy_kwargs": {"net_arch": [16]}, '
        '"target_class": {"class": "sb3_manygoals:PlannedTargets"}}'
    )
    config = mastery.MasteryConfig(
        total_steps=2_560, curve_goals=2, agent_kwargs=small, progress_bar=False, output=tmp_path
    )
    run = config.run()
    found = {
        row["policy"]: float(row["return"])
        for row in rows_of(ToldTasksConfig(run, tmp_path / "told.csv").run())
    }
    assert found["network"] < found["plan"] < 0.9
    settings = (run / "config.json").read_text()
    (run / "config.json").write_text(
        settings.replace('"TwoRoomsSwitch-v0"', '"TwoRoomsSwitchSmall-v0"')
    )
    with pytest.raises(
        ValueError, match="a finished run of mastery in TwoRoomsSwitch-v0 by ManyGoalsDQN"
    ):
        ToldTasksConfig(run).run()
    (run / "config.json").write_text(settings.replace('"default"', '"heads"'))
    with pytest.raises(ValueError, match="a run of heads has no values of tasks"):
        ToldTasksConfig(run).run()


def test_the_comparison_has_medians_in_which_never_is_infinite():
    specs = [
        spec for spec in PARTS["grids"].specs(3) if spec.agent == "dqn" and "FourRooms" in spec.game
    ]
    found = [
        {"first_reward": 100.0, "greedy_final": 0.0},
        {"first_reward": 300.0, "greedy_solved": 400.0},
        {},
    ]
    table = TasksStudyConfig().compare(
        [Result(spec, values, 1.0, 1) for spec, values in zip(specs, found, strict=True)]
    )
    (row,) = table.to_dict("records")
    assert (row["runs"], row["first_reward"], row["greedy_solved"]) == (3, 300.0, np.inf)
    # This agent has no plan.
    assert np.isnan(row["planned_solved"])
