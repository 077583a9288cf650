"""ManyGoalsDQN in GoalEnvs and in worlds with Dict observations."""

import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import (
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)

from sb3_manygoals import GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.many_goals_dqn import CnnPolicy, GoalPolicy, MultiInputPolicy, TDTargets
from sb3_manygoals.networks import MultiInputExtractor, PaddedCNN, SmallImageCNN
from sb3_manygoals.packing import PackedSpace
from tests.sb3_manygoals.checkpoint.resuming import assert_the_end_is_the_same
from tests.sb3_manygoals.goal_worlds import LEFT, RIGHT, Dense, Room, Sparse
from tests.sb3_manygoals.many_goals_dqn.models import make_model, parameters, reloaded
from tests.sb3_manygoals.worlds import Corridor

ALL_BITS = np.indices((2,) * 6, np.int8).reshape(6, -1).T


def multi(env=None, **kwargs):
    """Return a small model, by default in a GoalEnv."""
    return make_model(Sparse() if env is None else env, "MultiInputPolicy", **kwargs)


def raw(cell, goal):
    """Return the observation of a track, as the environment shows it."""
    return {
        "observation": np.array([cell, 2.0 * cell]),
        "achieved_goal": np.array([float(cell)]),
        "desired_goal": np.array([float(goal)]),
    }


def stacked(observations):
    """Return a batch of observations."""
    return {key: np.stack([one[key] for one in observations]) for key in observations[0]}


PAIRS = [(cell, goal) for cell in range(5) for goal in range(5) if cell != goal]
ALL = stacked([raw(cell, goal + 0.125) for cell, goal in PAIRS])
"""All cells of a track with all goals, which are not quite where the cells are."""
RIGHT_WAY = [RIGHT if goal > cell else LEFT for cell, goal in PAIRS]


def actions(model, observation, **kwargs):
    return model.predict(observation, deterministic=True, **kwargs)[0].tolist()


@pytest.fixture(scope="module")
def tracker():
    """A model that has learned a track."""
    return multi(learning_starts=200).learn(600)


def test_bits_are_flipped_from_all_to_all():
    world = BitFlippingEnv(n_bits=6)
    model = multi(
        world,
        learning_starts=500,
        updates_per_step=0.4,
        goal_wrapper_kwargs={"goals_from": "achieved"},
    )
    model.learn(2_000)
    state = np.repeat(ALL_BITS, 64, axis=0)
    goal = np.tile(ALL_BITS, (64, 1))
    n_different = (state != goal).sum(axis=1)
    for _ in range(6):
        seen = {"observation": state, "achieved_goal": state, "desired_goal": goal}
        chosen, _ = model.predict(seen, deterministic=True)
        moves = (state != goal).any(axis=1)
        state[moves, chosen[moves]] ^= 1
    # Six steps are enough only where each is on a shortest way.
    assert n_different.max() == 6
    assert (state == goal).all()
    # It takes the own goal of the environment as it shows it.
    returns, lengths = evaluate_policy(model, world, 10, warn=False, return_episode_rewards=True)
    assert all(-one == length - 1 for one, length in zip(returns, lengths, strict=True))
    assert max(lengths) <= 6


def test_a_goal_env_is_mastered_and_evaluated_as_it_is(tracker):
    assert tracker.goal_buffer.observations.shape == (5, 1)
    assert actions(tracker, ALL) == RIGHT_WAY
    assert [actions(tracker, raw(*pair)) for pair in PAIRS] == RIGHT_WAY
    # What the wrapper shows is packed.
    space = tracker.observation_space["observation"]
    packed = {"observation": space.pack(ALL), "desired_goal": ALL["desired_goal"]}
    assert actions(tracker, packed) == RIGHT_WAY
    assert actions(tracker, {**ALL, "observation": {**ALL}}) == RIGHT_WAY
    # Each of its episodes pays -1 for all steps but the last.
    limited = gym.wrappers.TimeLimit(Sparse(), 9)
    returns, lengths = evaluate_policy(
        tracker, limited, 20, warn=False, return_episode_rewards=True
    )
    assert all(-one == length - 1 for one, length in zip(returns, lengths, strict=True))
    assert 1 <= max(lengths) <= 4


def test_callbacks_evaluate_in_the_goal_env_itself():
    own = make_vec_env(lambda: gym.wrappers.TimeLimit(Sparse(), 9), 2, seed=1)
    callback = EvalCallback(own, eval_freq=200, n_eval_episodes=20, verbose=0)
    model = multi(gym.wrappers.TimeLimit(Sparse(), 9), learning_starts=100)
    with warnings.catch_warnings():
        # SB3 compares the classes of both VecEnvs.
        warnings.filterwarnings("ignore", message="Training and eval env are not of the same type")
        model.learn(400, callback)
    # At most four steps are needed, and each but the last pays -1. Random steps take all nine.
    assert -3.0 <= callback.last_mean_reward < 0.0


def test_a_saved_model_acts_and_learns_on_where_its_environment_is(tracker, tmp_path):
    # Without an environment it acts by its network.
    alone = reloaded(tracker, tmp_path)
    assert actions(alone, ALL) == RIGHT_WAY
    assert actions(alone, raw(0, 3.125)) == RIGHT
    assert th.equal(parameters(alone), parameters(tracker))
    # Which goals of others are reached is said by the environment, also by the next one.
    tracker.save_all(tmp_path / "all")
    for env in (Sparse(), make_vec_env(Sparse, 1), GoalBufferWrapper(Sparse())):
        model = ManyGoalsDQN.load_all(tmp_path / "all", env)
        assert len(model.goal_buffer) == 5
        model.env.set_options({"cell": 2, "own": 3.125})
        obs = model.env.reset()
        _, _, dones, infos = model.env.step(np.array([RIGHT]))
        assert infos[0]["is_success"]
        assert infos[0]["desired_goal_id"] == model.goal_buffer.ids(np.array([[3.0]]))[0]
        assert obs["desired_goal"].tolist() == [[3.125]]
        assert dones[0]
        model.learn(30, reset_num_timesteps=False)
        assert len(model.goal_buffer) == 5


def test_a_model_without_its_goal_env_says_why_it_cannot_plan(tracker, tmp_path):
    tracker.save_all(tmp_path)
    alone = ManyGoalsDQN.load_all(tmp_path)
    assert actions(alone, raw(0, 3.125)) == RIGHT
    with pytest.raises(ValueError, match=r"compute_reward of the .* there is no environment: load"):
        alone.goal_policy()
    alone.set_env(Sparse())
    assert actions(alone.goal_policy(), ALL) == RIGHT_WAY


def test_policies_take_what_the_environment_shows(tracker, tmp_path):
    planned = tracker.goal_policy()
    assert actions(planned, ALL) == RIGHT_WAY
    assert actions(tracker, ALL, planned=True) == RIGHT_WAY
    to_one = tracker.goal_policy(np.array([3.125]))
    assert [actions(to_one, raw(cell, 0)) for cell in (0, 1, 2, 4)] == [RIGHT] * 3 + [LEFT]
    # The reward of the task is that of arriving at the last cell.
    task = tracker.task_policy((tracker.goal_buffer.observations[:, 0] == 4.0).astype(float))
    assert [actions(task, raw(cell, 0)) for cell in range(4)] == [RIGHT] * 4
    planned.save(tmp_path / "planned")
    loaded = GoalPolicy.load(tmp_path / "planned")
    # No environment tells which known goal stands for one that was not met: the network acts.
    assert actions(loaded, ALL) == RIGHT_WAY
    assert actions(loaded, stacked([raw(*pair) for pair in PAIRS])) == RIGHT_WAY


def test_what_does_not_fit_is_refused_where_actions_are_asked_for(tracker):
    missing = raw(1, 2)
    del missing["achieved_goal"]
    with pytest.raises(ValueError, match=r"the observation must have .*, got no 'achieved_goal'"):
        tracker.predict(missing)
    with pytest.raises(ValueError, match="'observation' of the observation must be float64 of sha"):
        tracker.predict({**raw(1, 2), "observation": np.zeros(3)})
    rows = {**raw(1, 2), "desired_goal": np.zeros((2, 1))}
    with pytest.raises(ValueError, match="as many of one as of the other, got"):
        tracker.predict(rows)
    room = multi(Room())
    with pytest.raises(ValueError, match='must be a dict with "observation" and "desired_goal", g'):
        room.predict(Room().observation_of(0, 0))
    with pytest.raises(ValueError, match=r"'wheel' of the observation must be of Discrete\(4\)"):
        room.predict({key: Room().observation_of(0, 4) for key in ("observation", "desired_goal")})


@pytest.mark.parametrize("side", [7, 40])
def test_pictures_and_numbers_beside_each_other(side):
    world = Room(side=side)
    model = multi(world, learning_starts=150, batch_size=16, policy_kwargs={"net_arch": [64]})
    model.learn(320)
    extractor = model.q_net.trunk[1]
    assert type(extractor) is MultiInputExtractor
    # Small pictures go through smaller convolutions than large ones.
    kind = NatureCNN if side == 40 else SmallImageCNN
    assert isinstance(extractor.extractors["picture"], kind)
    assert extractor.features_dim == (256 if side == 40 else 16 * 4 * 4) + 4
    assert len(model.goal_buffer) == 12
    # From each state to each other one, by an action that is on a shortest way.
    states = [(place, wheel) for place in range(3) for wheel in range(4)]
    here, there = zip(
        *[(one, other) for one in states for other in states if one != other], strict=True
    )
    shown = {
        "observation": stacked([world.observation_of(*one) for one in here]),
        "desired_goal": stacked([world.observation_of(*one) for one in there]),
    }
    chosen = np.array(actions(model, shown, planned=True))
    turns = np.array([one[1] != other[1] for one, other in zip(here, there, strict=True)])
    moves = np.array([one[0] != other[0] for one, other in zip(here, there, strict=True)])
    assert np.where(chosen == 0, turns, moves).all()
    if side == 7:
        chosen = np.array(actions(model, shown))
        assert np.where(chosen == 0, turns, moves).mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, SmallImageCNN), ({"features_extractor_class": CombinedExtractor}, FlattenExtractor)],
)
def test_small_pictures_that_are_goals_go_through_convolutions_by_default(settings, kind):
    packed = PackedSpace(spaces.Dict({"observation": spaces.MultiBinary(3)}))
    picture = spaces.Box(0, 255, (3, 9, 1), np.uint8)
    space = spaces.Dict({"observation": packed, "achieved_goal": picture, "desired_goal": picture})
    policy = MultiInputPolicy(space, spaces.Discrete(2), lambda _: 1e-3, **settings)
    assert isinstance(policy.q_net.goal_trunk[1], kind)
    obs = {
        "observation": np.stack([packed.sample() for _ in range(4)]),
        "desired_goal": np.stack([picture.sample() for _ in range(4)]),
    }
    assert policy.predict(obs)[0].shape == (4,)
    # The same thing is the same number in all places only where convolutions follow.
    policy.fit_standardization(*(th.as_tensor(rows) for rows in obs.values()))
    means = policy.q_net.goal_trunk[0].mean
    assert (means == means[:, :1, :1]).all() == (kind is SmallImageCNN)


def test_large_pictures_that_are_goals_go_through_convolutions():
    env = BitFlippingEnv(n_bits=4, max_steps=4, image_obs_space=True)
    # Before its first reset, this environment cannot tell whether a picture is a goal.
    env.reset()
    model = multi(
        env,
        goal_wrapper_kwargs={"goals_from": "achieved"},
        policy_kwargs={"net_arch": [64], "features_extractor_kwargs": {"cnn_output_dim": 32}},
        learning_starts=100,
        updates_per_step=1.0,
    ).learn(400)
    goal_extractor = model.q_net.goal_trunk[1]
    assert isinstance(goal_extractor, NatureCNN)
    assert goal_extractor.features_dim == 32
    here, there = np.nonzero(~np.eye(16, dtype=bool))
    bits = np.indices((2,) * 4, np.int8).reshape(4, -1).T
    pictures = np.stack([env.convert_if_needed(one) for one in bits])
    seen = {"observation": pictures[here], "achieved_goal": pictures[here]}
    chosen = actions(model, {**seen, "desired_goal": pictures[there]})
    # The action is on a shortest way if it flips a bit that differs.
    assert (bits[here] != bits[there])[np.arange(len(here)), chosen].mean() > 0.9


class FlatExtractor(FlattenExtractor):
    """An extractor that is neither SB3's nor ours."""


@pytest.mark.parametrize(
    ("extractor", "side", "kind", "n_layers"),
    [
        (None, 40, PaddedCNN, 2),
        (None, 10, PaddedCNN, 2),
        (NatureCNN, 40, NatureCNN, 2),
        (NatureCNN, 10, FlattenExtractor, 6),
        (SmallImageCNN, 10, SmallImageCNN, 6),
        (FlatExtractor, 40, FlattenExtractor, 6),
    ],
)
def test_goals_of_an_image_policy_go_through_its_kind_of_network(extractor, side, kind, n_layers):
    picture = spaces.Box(0, 255, (48, 48, 3), np.uint8)
    crop = spaces.Box(0, 255, (side, side, 3), np.uint8)
    space = spaces.Dict({"observation": picture, "achieved_goal": crop, "desired_goal": crop})
    settings = {} if extractor is None else {"features_extractor_class": extractor}
    policy = CnnPolicy(space, spaces.Discrete(2), lambda _: 1e-3, **settings)
    assert type(policy.q_net.goal_trunk[1]) is kind
    assert len(policy.q_net.goal_trunk) == n_layers
    obs = {"observation": picture.sample()[None], "desired_goal": crop.sample()[None]}
    assert policy.predict(obs)[0].shape == (1,)


@pytest.mark.parametrize("kind", [CombinedExtractor, MultiInputExtractor])
def test_normalized_pictures_that_are_goals_go_through_convolutions(kind):
    packed = PackedSpace(spaces.Dict({"observation": spaces.MultiBinary(3)}))
    picture = spaces.Box(0.0, 1.0, (3, 40, 40), np.float32)
    space = spaces.Dict({"observation": packed, "achieved_goal": picture, "desired_goal": picture})
    settings = {"features_extractor_class": kind}
    policy = MultiInputPolicy(
        space,
        spaces.Discrete(2),
        lambda _: 1e-3,
        features_extractor_kwargs={"normalized_image": True},
        **settings,
    )
    assert type(policy.q_net.goal_trunk[1]) is NatureCNN
    obs = {"observation": packed.sample()[None], "desired_goal": picture.sample()[None]}
    assert policy.predict(obs)[0].shape == (1,)


def test_the_channels_of_goals_are_where_the_policy_says():
    packed = PackedSpace(spaces.Dict({"observation": spaces.MultiBinary(3)}))
    # The smallest axis would be taken for that of channels.
    picture = spaces.Box(0, 255, (4, 9, 8), np.uint8)
    space = spaces.Dict({"observation": packed, "achieved_goal": picture, "desired_goal": picture})
    policy = MultiInputPolicy(space, spaces.Discrete(2), lambda _: 1e-3, channels_last=True)
    assert policy.q_net.goal_trunk[1].net[0].in_channels == 8


def test_weights_of_a_network_that_flattens_small_images_are_refused(tmp_path):
    flat = {"features_extractor_class": CombinedExtractor}
    old = multi(Room(), policy_kwargs=flat)
    policy = multi(Room()).policy
    with pytest.raises(ValueError, match="flattens small images, as that of an earlier version"):
        policy.load_state_dict(old.policy.state_dict())
    # A model that an earlier version saved says nothing of its extractor.
    old.policy_kwargs = {key: value for key, value in old.policy_kwargs.items() if key not in flat}
    old.save(tmp_path / "old")
    with pytest.raises(ValueError, match="build or load the model with policy_kwargs"):
        ManyGoalsDQN.load(tmp_path / "old")
    loaded = ManyGoalsDQN.load(
        tmp_path / "old", custom_objects={"policy_kwargs": {**old.policy_kwargs, **flat}}
    )
    th.testing.assert_close(parameters(loaded), parameters(old))


def test_a_policy_with_convolutions_is_saved_and_loaded_without_a_target_network(tmp_path):
    model = multi(Room())
    assert model.policy.q_net_target is None
    model.policy.save(tmp_path / "policy")
    loaded = MultiInputPolicy.load(tmp_path / "policy")
    th.testing.assert_close(loaded.q_net.state_dict(), model.policy.q_net.state_dict())
    bootstrapping = multi(Room(), target_class=TDTargets)
    bootstrapping.set_parameters(model.get_parameters())
    target = bootstrapping.policy.q_net_target
    th.testing.assert_close(target.state_dict(), model.policy.q_net.state_dict())


@pytest.mark.parametrize("kind", [MultiInputExtractor, CombinedExtractor])
@pytest.mark.parametrize("is_function", [False, True])
def test_small_pictures_are_standardized_by_channel_before_convolutions(kind, is_function):
    view = spaces.Dict(
        {
            "first": spaces.Box(0, 255, (5, 5, 3), np.uint8),
            "second": spaces.Box(0, 255, (3, 9, 9), np.uint8),
            "vector": spaces.Box(0, 1, (4,), np.float32),
        }
    )
    packed = PackedSpace(view)
    space = spaces.Dict({name: packed for name in ("observation", "achieved_goal", "desired_goal")})
    extractor = partial(kind) if is_function else kind
    policy = MultiInputPolicy(
        space, spaces.Discrete(2), lambda _: 1e-3, features_extractor_class=extractor
    )
    policy.fit_standardization(th.as_tensor(np.stack([packed.sample() for _ in range(6)])))
    for name, part in policy.q_net.trunk[0].parts.items():
        for each in (part.mean, part.scale):
            if name == "vector":
                assert len(set(each.tolist())) == 4
            else:
                is_alike = bool((each == each[:, :1, :1]).all())
                assert is_alike == (kind is MultiInputExtractor)
                assert len(set(each[:, 0, 0].tolist())) == 3


def test_networks_see_the_parts_as_sb3_prepares_them():
    model = multi(Room(clock=True), policy_kwargs={"standardize": False})
    space = model.observation_space["observation"]
    seen = [Room(clock=True).observation_of(2, 3, time) for time in (0, 5)]
    # One row and several rows lie in memory in another way.
    for rows in (seen[:1], seen):
        packed = space.pack(stacked(rows))
        parts = model.q_net.trunk[0](th.as_tensor(packed))
        assert parts["wheel"].tolist() == [[0, 0, 0, 1]] * len(rows)
        assert parts["clock"].tolist() == [[0.0], [5.0]][: len(rows)]
        assert parts["picture"].shape == (len(rows), 3, 7, 7)
        assert parts["picture"][:, :, 2, 2].tolist() == [[1.0] * 3] * len(rows)
        assert parts["picture"].sum() == 3.0 * len(rows)


def test_the_other_policies_are_refused():
    for policy in ("MlpPolicy", "CnnPolicy"):
        for world in (Sparse, Room):
            with pytest.raises(
                ValueError, match='several arrays need "MultiInputPolicy", "MlpPoli'
            ):
                make_model(world(), policy)
    for world in (Corridor(), Corridor(image=True)):
        message = 'MultiInputPolicy needs .*, got Box.* Use "CnnPolicy" for .* "MlpPolicy" for vec'
        with pytest.raises(TypeError, match=message):
            multi(world)


def test_parts_with_names_that_torch_does_not_allow_are_refused():
    world = Room()
    world.observation_space = spaces.Dict({"keys": spaces.Discrete(2)})
    with pytest.raises(ValueError, match=r"'keys' already exists. Rename them in a wrapper, got"):
        multi(world)


def test_parts_that_look_alike_to_the_network_are_named():
    class Far(Room):
        """Its clock is far from 0, in steps that float32 does not tell."""

        def observation_of(self, place, wheel, time=0):
            return {"clock": np.array([1e17 + 64.0 * wheel]), "place": np.int64(place)}

    world = Far()
    world.observation_space = spaces.Dict(
        {"clock": spaces.Box(0, np.inf, (1,), np.float64), "place": spaces.Discrete(3)}
    )
    model = multi(world, policy_kwargs={"standardize": False}, learning_starts=40)
    with pytest.warns(UserWarning, match="goals look .* observations are float64 and int64. If"):
        model.learn(60)


def test_bootstrapped_targets_ask_the_environment_too():
    model = multi(
        target_class=TDTargets,
        target_kwargs={"goal_sampling": "uniform"},
        learning_starts=100,
        gamma=0.8,
        target_update_interval=50,
        exploration_initial_eps=1.0,
        exploration_final_eps=1.0,
    )
    model.learn(700)
    assert np.mean(np.equal(actions(model, ALL), RIGHT_WAY)) > 0.8


def resumable(kind):
    """Return a function that makes a model of which exact checkpoints are written."""
    settings = {
        "learning_starts": 60,
        "buffer_size": 150,
        "batch_size": 8,
        "goal_batch_size": 4,
        "policy_kwargs": {"net_arch": [16], "embedding_dim": 8},
    }
    if kind == "GoalEnv":
        return lambda: (multi(gym.wrappers.TimeLimit(Sparse(), 7), **settings), {})
    if kind == "GoalEnvs, achieved, TD":
        more = {
            "target_class": TDTargets,
            "goal_wrapper_kwargs": {"goals_from": "achieved", "max_episode_steps": 9},
        }
        return lambda: (multi(make_vec_env(Sparse, 2, seed=4), **settings, **more), {})
    pursuit = {"state_key": _place_and_wheel, "max_episode_steps": 9}
    return lambda: (multi(Room(clock=True), **settings, goal_wrapper_kwargs=pursuit), {})


def _place_and_wheel(parts):
    return [parts["picture"].argmax(), parts["wheel"]]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("kind", ["GoalEnv", "GoalEnvs, achieved, TD", "Dict"])
@pytest.mark.filterwarnings("ignore:the last plan knows a way")
def test_training_goes_on_to_the_last_bit(kind, tmp_path):
    assert_the_end_is_the_same(resumable(kind), tmp_path / "runs", stops=(75,), steps=120)


def test_a_user_who_says_what_is_reached_goes_on_in_a_dense_world(tmp_path):
    pursuit = {"reached": 0.25}
    model = multi(Dense(), learning_starts=40, goal_wrapper_kwargs=pursuit).learn(60)
    loaded = reloaded(model, tmp_path, Dense(), also=("world",))
    loaded.env.set_options({"cell": 2, "own": 3.125})
    loaded.env.reset()
    assert loaded.env.step(np.array([RIGHT]))[3][0]["is_success"]


def test_in_a_dict_world_goals_and_rewards_are_dicts_too():
    room = Room()
    model = multi(room, learning_starts=300).learn(310)
    assert len(model.goal_buffer) == 12
    goal = room.observation_of(place=2, wheel=1)
    policy = model.goal_policy(goal)
    # One more turn leads to the goal, and so does moving the lamp on.
    assert policy.predict(room.observation_of(2, 0))[0] == 0
    assert policy.predict(room.observation_of(1, 1))[0] == 1
    with pytest.raises(ValueError, match=r"the observation must have .*, got no 'wheel'"):
        model.goal_policy({"picture": goal["picture"]})

    def turned(goals):
        assert goals["picture"].shape == (12, 7, 7, 3)
        return goals["wheel"] == 3

    shapes = r"a dict of arrays, .*picture of shape \(12, 7, 7, 3\).*, and must return 12 numbers"
    with pytest.raises(ValueError, match=rf"reward raised KeyError\. .* {shapes}"):
        model.task_policy(lambda goals: goals["door"])
    task = model.task_policy(turned)
    assert all(task.predict(room.observation_of(place, 2))[0] == 0 for place in range(3))


def test_minigrid_as_it_is():
    pytest.importorskip("minigrid")
    with pytest.warns(UserWarning, match="is left out of the observations: 'mission'"):
        model = multi(gym.make("MiniGrid-Empty-5x5-v0"), learning_starts=300)
    assert list(model.observation_space["observation"].parts) == ["direction", "image"]
    model.learn(320)
    # Nine cells and four directions, of which many look alike from within.
    assert 10 < len(model.goal_buffer) <= 36
    world = gym.make("MiniGrid-Empty-5x5-v0")
    seen, _ = world.reset(seed=0)
    goal = model.goal_buffer.observations[5]
    action, _ = model.predict({"observation": seen, "desired_goal": goal}, deterministic=True)
    assert 0 <= action < 7
    # The task is to reach the corner, and the policy takes what the world shows.
    policy = model.task_policy()
    reward = 0.0
    for _ in range(20):
        seen, reward, ended, _, _ = world.step(policy.predict(seen)[0])
        if ended:
            break
    assert reward > 0.9
