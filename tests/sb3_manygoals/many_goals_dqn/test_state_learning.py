"""Models that learn which observations are one state, in corridors where none recurs."""

import re
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import GoalBuffer, ManyGoalsDQN, NoEnv, Transitions
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from sb3_manygoals.many_goals_dqn import state_learning as learning
from sb3_manygoals.world import ExactStates, LearnedStates, WorldModel
from tests.sb3_manygoals.checkpoint.resuming import assert_the_end_is_the_same
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import Corridor, Dusty, cell_of

QUICK = {"n_features": 8, "n_hidden": 32, "n_updates": 150, "batch_size": 64}
FEW_UPDATES = {"updates_per_step": 0.02}
"""For tests of states and of plans, which do not depend on what the network has learned."""
LEFT, RIGHT, STAY = range(3)
N_STEPS = 1_400


class Spotted(Corridor):
    """A corridor that shows its cell one-hot, with noise in each number."""

    def __init__(self, length=6):
        super().__init__(length)
        self.observation_space = spaces.Box(-1.0, 2.0, (length,), np.float32)

    def observation_of(self, cell):
        """Return the cell one-hot, with noise."""
        noise = self.np_random.uniform(-0.2, 0.2, self.observation_space.shape)
        return (np.eye(len(noise))[cell] + noise).astype(np.float32)


class Wide(Spotted):
    """The same with 30 further numbers that show nothing but noise."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 2.0, (36,), np.float32)


def spotted_cell(observation):
    """Return the cell of a noisy observation."""
    return int(observation.argmax())


class Random(gym.Env):
    """Shows random numbers, whatever is done."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), 0.0, False, False, {}


class Alike(gym.Env):
    """
    Two corridors of four cells that look alike and have different ends. An action at an end leads
    to the first cell of one of them.
    """

    observation_space = spaces.Box(-1.0, 2.0, (6,), np.float32)
    action_space = spaces.Discrete(2)

    def show(self):
        is_end = self.cell == 4
        seen = np.eye(6)[4 + self.corridor if is_end else self.cell]
        return (seen + self.np_random.uniform(-0.1, 0.1, 6)).astype(np.float32)

    def begin(self):
        self.corridor = int(self.np_random.integers(2))
        self.cell = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin()
        return self.show(), {}

    def step(self, action):
        if self.cell == 4:
            self.begin()
        else:
            self.cell = max(self.cell + 2 * int(action) - 1, 0)
        return self.show(), 0.0, False, False, {}


def model_of(env=None, **kwargs):
    """Return a model that learns states."""
    settings = {
        "state_class": LearnedStates,
        "state_kwargs": QUICK,
        "goal_wrapper_kwargs": {"max_episode_steps": 15},
        "learning_starts": 100,
        "updates_per_step": 0.5,
    }
    return make_model(Spotted() if env is None else env, **{**settings, **kwargs})


def cells_of(model):
    """Return the true cell that the first observation of each state shows."""
    return np.array([spotted_cell(seen) for seen in model.world.identity.observations])


def share_of_right_moves(model, planned, seed=0, world=Spotted):
    """Return in which share of all ways the model makes a step towards the goal."""
    env = world()
    env.reset(seed=seed)
    rights = []
    for cell, goal_cell in np.ndindex(6, 6):
        if cell != goal_cell:
            goal = env.observation_of(goal_cell)
            obs = {"observation": env.observation_of(cell), "desired_goal": goal}
            obs["achieved_goal"] = obs["observation"]
            action = int(model.predict(obs, deterministic=True, planned=planned)[0])
            rights.append(action == (RIGHT if goal_cell > cell else LEFT))
    return np.mean(rights)


@pytest.fixture(scope="module")
def trained():
    """A model that has learned."""
    return model_of().learn(N_STEPS)


def test_plan_and_network_reach_goals_in_observations_that_never_recur(trained):
    assert isinstance(trained.targets, PlannedTargets)
    assert trained.world.identity.n_learned == 3
    assert set(cells_of(trained)) == set(range(6))
    assert len(trained.world.identity) <= 8
    assert share_of_right_moves(trained, planned=True) >= 0.95
    assert share_of_right_moves(trained, planned=False) >= 0.95


def test_counts_are_those_of_all_transitions_that_were_made(trained):
    # One transition is not counted each time that states get other ids.
    assert N_STEPS - 10 <= trained.world.n_counted <= N_STEPS
    cells = cells_of(trained)
    outcomes = trained.world.outcomes()
    moves = {LEFT: -1, RIGHT: 1, STAY: 0}
    wanted = cells[outcomes.state_ids] + np.vectorize(moves.get)(outcomes.actions)
    is_right = cells[outcomes.next_state_ids] == np.clip(wanted, 0, 5)
    assert np.average(is_right, weights=outcomes.counts) > 0.99


def test_goals_are_clusters_and_any_of_their_observations_is_shown(trained):
    goals = trained.goal_buffer
    assert len(goals) == len(goals.states)
    ids = np.repeat(np.arange(len(goals)), 30)
    shown = goals.sample_shown(ids, np.random.default_rng(0))
    cells = np.array([spotted_cell(seen) for seen in shown])
    np.testing.assert_array_equal(cells, cells_of(trained)[goals.state_ids[ids]])
    assert len(np.unique(shown, axis=0)) > 3 * len(goals)
    # Two observations of one cell reach each other.
    env = Spotted()
    env.reset(seed=3)
    pair = np.stack([env.observation_of(2), env.observation_of(2), env.observation_of(3)])
    np.testing.assert_array_equal(goals.is_reached(pair, pair[[1, 0, 0]]), [True, True, False])


def test_that_learning_twice_with_one_seed_is_the_same():
    models = [model_of().learn(400) for _ in range(2)]
    assert [model.world.identity.n_learned for model in models] == [2, 2]
    assert all(model._n_updates > 100 for model in models)
    for left, right in zip(*(model.q_net.parameters() for model in models), strict=True):
        assert (left == right).all()


def test_a_target_network_learns_with_learned_states():
    model = model_of(target_class=TDTargets, target_update_interval=50).learn(600)
    assert isinstance(model.targets, TDTargets)
    assert model.world.identity.is_known
    known = model.replay_buffer.next_goal_ids[:600]
    assert (known < len(model.goal_buffer)).all()
    assert (known != UNKNOWN).mean() > 0.9


def test_several_environments_and_steady_updates():
    env = DummyVecEnv([Spotted] * 3)
    model = model_of(env, target_class=PlannedTargets, updates_as_needed=False).learn(900)
    assert model.world.identity.is_known
    assert model._n_updates > 0
    assert model.replay_buffer.size() == 300
    # The steps that come after states were learned begin in states that are known.
    assert model.world.n_counted == 900


def test_transitions_that_memory_gave_up_are_carried_over():
    model = model_of(buffer_size=400, **FEW_UPDATES).learn(N_STEPS)
    assert model.replay_buffer.size() == 400
    # States were learned at a half of training, when most transitions had been given up.
    assert model.world.identity.n_learned == 3
    # A few are counted twice, because their observations belong to states that were found later.
    assert 0.95 * N_STEPS <= model.world.n_counted <= 1.03 * N_STEPS
    assert share_of_right_moves(model, planned=True) >= 0.95


def test_counts_that_were_loaded_without_a_replay_memory_are_carried_over(trained, tmp_path):
    trained.save_all(tmp_path)
    loaded = ManyGoalsDQN.load(tmp_path / "model.zip", Spotted())
    loaded.load_world(tmp_path / "world.npz")
    # States are learned again at a half of training.
    loaded.learn(2 * N_STEPS, callback=lambda local, _: local["self"].num_timesteps <= N_STEPS)
    assert loaded.world.identity.n_learned == trained.world.identity.n_learned + 1
    assert 0.95 * 2 * N_STEPS <= loaded.world.n_counted <= 1.03 * 2 * N_STEPS


def test_all_that_was_saved_goes_on(trained, tmp_path):
    trained.save_all(tmp_path)
    for env in (Spotted(), None):
        loaded = ManyGoalsDQN.load_all(tmp_path, env)
        assert isinstance(loaded.world.identity, LearnedStates)
        np.testing.assert_array_equal(loaded.world.identity.centers, trained.world.identity.centers)
        assert loaded.world.n_counted == trained.world.n_counted
        assert share_of_right_moves(loaded, planned=False) >= 0.95
    loaded = ManyGoalsDQN.load_all(tmp_path, Spotted())
    loaded.learn(300, reset_num_timesteps=False)
    assert share_of_right_moves(loaded, planned=True) >= 0.95


def test_a_world_that_was_saved_is_loaded_into_a_new_model(trained, tmp_path):
    trained.save_world(tmp_path / "world")
    model = model_of()
    model.load_world(tmp_path / "world")
    np.testing.assert_array_equal(model.world.visit_counts[:6], trained.world.visit_counts[:6])
    assert model.world.identity.is_known


def test_a_loaded_model_that_knows_no_states_learns_them(trained, tmp_path):
    trained.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=Spotted())
    with pytest.warns(UserWarning, match="knows nothing of the world"):
        loaded.learn(400)
    assert loaded.world.identity.n_learned > 0
    assert loaded._n_updates > trained._n_updates


def test_policies_that_plan_keep_states_of_their_own(trained, tmp_path):
    # States that were found since the last plan are not planned for.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = trained.goal_policy()
    env = Spotted()
    env.reset(seed=1)
    obs = {"observation": env.observation_of(1), "desired_goal": env.observation_of(4)}
    obs["achieved_goal"] = obs["observation"]
    assert int(policy.predict(obs)[0]) == RIGHT
    reward = (cells_of(trained)[trained.goal_buffer.state_ids] == 0).astype(float)
    assert int(trained.task_policy(reward).predict(env.observation_of(3))[0]) == LEFT


def test_states_are_told_apart_by_looks_where_numbers_have_noise_of_their_own(tmp_path):
    model = model_of(Wide()).learn(400)
    states = model.world.identity
    assert states.looks is not None
    assert states.n_learned == 2
    np.testing.assert_array_equal(np.sort(cells_of(model)), np.arange(6))
    assert share_of_right_moves(model, planned=True, world=Wide) == 1.0
    model.save_all(tmp_path)
    loaded = ManyGoalsDQN.load_all(tmp_path, Wide())
    env = Wide()
    env.reset(seed=1)
    seen = np.stack([env.observation_of(cell) for cell in range(6)])
    np.testing.assert_array_equal(loaded.world.identity.ids(seen), states.ids(seen))


@pytest.mark.parametrize("world", [Spotted, Wide])
def test_checkpoints_go_on_exactly(world, tmp_path):
    def make():
        quick = {**QUICK, "n_updates": 20, "n_features": 4}
        return model_of(world(), state_kwargs=quick, learning_starts=40, updates_per_step=0.2), {}

    # States are learned at 40, 60 and 120 steps.
    assert_the_end_is_the_same(make, tmp_path, stops=(55,))


def test_states_are_learned_by_default_where_observations_do_not_recur(monkeypatch, capsys):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 1_000)
    model = model_of(state_class=None, verbose=1, **FEW_UPDATES).learn(1_200)
    assert isinstance(model.world.identity, LearnedStates)
    assert isinstance(model.targets, PlannedTargets)
    said = capsys.readouterr().out
    assert re.search(r"\d% of the observations were met before: which of them are one state", said)
    assert re.search(r"states were learned from [\d,]+ transitions in \d+ s, by codes", said)
    assert share_of_right_moves(model, planned=True) >= 0.9


def test_default_checkpoints_of_learned_states_are_restored_in_a_new_model(monkeypatch, tmp_path):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 200)

    def make():
        quick = {**QUICK, "n_updates": 20, "n_features": 4}
        settings = {"learning_starts": 40, "updates_per_step": 0.2, "state_class": None}
        return model_of(state_kwargs=quick, **settings), {}

    assert_the_end_is_the_same(make, tmp_path, stops=(150,))


def test_states_that_do_not_recur_are_given_up(monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 1_000)
    model = model_of(Random(), state_class=None, **FEW_UPDATES)
    with pytest.warns(UserWarning, match="states were learned, but they do not recur"):
        model.learn(1_000)
    assert isinstance(model.targets, TDTargets)
    assert type(model.world.identity) is ExactStates
    # What was met before is not forgotten.
    assert model.world.n_counted == 1_000
    assert model.world.arrivals.sum() == 1_000


def test_what_moves_smoothly_has_no_states(monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 1_000)
    model = model_of(gym.make("MountainCar-v0"), state_class=None)
    with pytest.warns(UserWarning, match="states were learned, but they do not recur"):
        model.learn(4_000, callback=lambda local, _: local["self"].num_timesteps < 600)
    assert isinstance(model.targets, TDTargets)
    assert type(model.world.identity) is ExactStates


def noisy_walk(n_steps):
    """Return recorded random steps in a corridor that is seen with noise."""
    env = Spotted()
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=0)[0]]
    actions = rng.integers(3, size=n_steps)
    for action in actions:
        seen.append(env.step(int(action))[0])
    return Transitions(np.stack(seen[:-1]), actions, np.stack(seen[1:]))


@pytest.mark.parametrize("n_updates", [5, 120])
def test_states_are_learned_from_recorded_transitions_before_the_first_update(n_updates):
    env = Spotted()
    model = model_of(NoEnv(env.observation_space, env.action_space))
    model.learn_from(noisy_walk(1_500), n_updates=n_updates)
    assert model._n_updates == n_updates
    assert model.world.identity.n_learned == 1
    assert model.world.n_counted == 1_500
    # More of them are learned from when they come.
    model.learn_from(noisy_walk(300), n_updates=5)
    assert model.world.identity.n_learned == 2
    assert model.world.n_counted == 1_800


def test_recorded_transitions_choose_learned_states_by_themselves(monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 1_000)
    env = Spotted()
    model = model_of(
        NoEnv(env.observation_space, env.action_space), state_class=None, state_kwargs=QUICK
    )
    model.learn_from(noisy_walk(1_500), n_updates=5)
    assert isinstance(model.world.identity, LearnedStates)
    assert isinstance(model.targets, PlannedTargets)
    assert model._n_updates == 5


def test_if_memory_is_short_states_are_learned_from_the_newest_transitions(monkeypatch):
    model = model_of(**FEW_UPDATES)
    # A transition needs three copies of an observation of 6 x 4 bytes.
    monkeypatch.setattr(learning, "share_of_memory", lambda share: 3 * 24 * 300)
    with (
        pytest.warns(UserWarning, match="states are learned from the newest 300 of 500 trans"),
        pytest.warns(UserWarning, match="states are learned from the newest 300 of 1000 trans"),
    ):
        model.learn(2_000)
    # The others count, too, but for one that began in no known state.
    assert model.world.n_counted >= 1_999


def test_states_for_which_there_is_no_memory_are_not_learned(monkeypatch):
    monkeypatch.setattr("sb3_manygoals.many_goals_dqn.choosing.FEWEST_STEPS", 200)
    model = model_of(state_class=None)

    def refuse(*_):
        raise MemoryError("a goal buffer of capacity 9 needs 1 TB")

    monkeypatch.setattr(model.goal_buffer, "use_states", refuse)
    with pytest.warns(UserWarning, match="states are not learned: a goal buffer of capacity 9"):
        model.learn(250)
    assert isinstance(model.targets, TDTargets)


def test_short_trainings_and_exact_worlds_learn_no_states():
    with pytest.warns(UserWarning, match="were met before"):
        short = model_of(state_class=None).learn(600)
    assert isinstance(short.targets, TDTargets)
    exact = make_model(Corridor(), learning_starts=50).learn(300)
    assert type(exact.world.identity) is ExactStates


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match="state_class must be LearnedStates or ExactStates"):
        model_of(state_class=dict)
    with pytest.raises(ValueError, match="give one of them"):
        model_of(Dusty(), goal_wrapper_kwargs={"state_key": cell_of})
    with pytest.raises(ValueError, match="states will not be learned"):
        make_model(state_class=ExactStates, state_kwargs=QUICK)
    with pytest.raises(ValueError, match="goals_in_replay"):
        model_of(goals_in_replay=True, target_class=TDTargets)
    with pytest.raises(ValueError, match="give one of them"):
        GoalBuffer(Dusty().observation_space, state_key=cell_of, state_class=LearnedStates)


def test_states_that_look_alike_are_one_and_the_log_shows_it(capsys):
    # With some seeds, the agent hardly ever comes to the second corridor.
    model = model_of(Alike(), verbose=1, seed=1, **FEW_UPDATES).learn(2_000)
    # Four cells and two ends are seen. Nothing tells in which corridor a cell is.
    assert 6 <= len(model.world.identity) <= 9
    # From the last cell of a corridor, equal actions lead to either end.
    assert learning.predictability_of(model.world) < 0.95
    said = re.findall(r"lead to one state with probability ([.\d]+)", capsys.readouterr().out)
    assert len(said) == model.world.identity.n_learned
    assert float(said[-1]) < 0.98


def test_predictability_of_counts():
    world = WorldModel(ExactStates(spaces.Discrete(4), 4), 2)
    world.identity.add(np.arange(4))
    # One action leads to 1, 1 and 2, another one always to 3, and one was tried once.
    world.record(
        np.array([0, 0, 0, 1, 1, 2]),
        np.array([0, 0, 0, 1, 1, 0]),
        np.array([1, 1, 2, 3, 3, 0]),
        np.zeros(6),
        np.zeros(6, np.bool_),
    )
    # Of three pairs of the first, one leads to one state. Three transitions count against two.
    assert learning.predictability_of(world) == pytest.approx((3 * (1 / 3) + 2) / 5)
