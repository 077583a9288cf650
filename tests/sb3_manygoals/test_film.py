"""Films of agents on their way to goals."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformObservation
from PIL import Image, ImageSequence
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import FilmedGoals, GoalBufferWrapper, ManyGoalsDQN, record_goals
from sb3_manygoals.film import FAILED, REACHED, UNDER_WAY
from tests.sb3_manygoals.goal_worlds import Room, Sparse
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.many_goals_dqn.test_state_learning import Spotted, model_of
from tests.sb3_manygoals.worlds import Always, Corridor, NumberedCorridor

GAP = 4
"""Width of the frame around pictures of 20 pixels."""
PAUSE = 720
"""Milliseconds for which the last picture of a goal stands longer than the others."""


class Painted(gym.Wrapper):
    """A world that draws the number of its cell, or of its place, as a bar."""

    render_mode = "rgb_array"

    def __init__(self, env, fps=None):
        super().__init__(env)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}

    def render(self):
        world = self.unwrapped
        return paint(world.place if isinstance(world, Room) else world.cell)


class Drawing(Painted):
    """One that draws its goals, too."""

    def render_observation(self, observation):
        return paint(int(observation))


class Broken(Painted):
    """One whose picture is what a test says."""

    picture = None

    def render(self):
        return self.picture(self.unwrapped.cell) if callable(self.picture) else self.picture


class Asked:
    """A policy that always takes one action, and remembers what it was asked."""

    def __init__(self, action=1):
        self.action = action
        self.queries = []

    def predict(self, observation, **kwargs):
        self.queries.append((observation, kwargs))
        return np.array([self.action]), None


def paint(cell):
    picture = np.full((20, 30, 3), 120, np.uint8)
    picture[:, : 5 * (cell + 1)] = (0, 0, 10 * cell + 100)
    return picture


def world(length=6, start=None, **kwargs):
    return Painted(NumberedCorridor(length, start=start, **kwargs))


def seen_in(path):
    """Return the different pictures of a film one after another, and its milliseconds."""
    pictures = []
    milliseconds = 0
    with Image.open(path) as film:
        for frame in ImageSequence.Iterator(film):
            milliseconds += frame.info["duration"]
            pictures.append(np.asarray(frame.convert("RGB")))
    return pictures, milliseconds


def parts(picture):
    """Return the color of the frame, the world and the goal of a picture."""
    world_part = picture[GAP:-GAP, GAP : GAP + 30]
    goal_part = picture[GAP:-GAP, 2 * GAP + 30 : 2 * GAP + 60]
    return tuple(picture[0, 0].tolist()), world_part, goal_part


def replay(model, env, goals, max_steps, seed):
    """Pursue goals without a film. Return the cells of each way, and the steps, -1 for failures."""
    ways = []
    steps = []
    for number, goal in enumerate(goals):
        observation, _ = env.reset(seed=seed + number)
        way = [env.unwrapped.cell]
        ended = False
        while not ended and observation != goal and len(way) <= max_steps:
            query = {"observation": observation, "desired_goal": goal, "achieved_goal": observation}
            batch = {name: np.asarray(part)[None] for name, part in query.items()}
            (action,), _ = model.predict(batch, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(int(action))
            way.append(env.unwrapped.cell)
            ended = terminated or truncated
        ways.append(way)
        steps.append(len(way) - 1 if observation == goal else -1)
    return ways, np.array(steps)


def trained():
    model = make_model(NumberedCorridor())
    model.learn(400)
    return model


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Always(1), {"max_steps": 3}),
        (Always(1), {"max_steps": 3, "fps": 25}),
        (Always(1), {"deadly": True}),
        (trained, {}),
        (lambda: trained().goal_policy(), {}),
    ],
    ids=["few steps", "fast", "deadly", "network", "plan"],
)
def test_what_is_reached_equals_a_replay_and_every_step_is_shown(model, settings, tmp_path):
    model = model if isinstance(model, Always) else model()
    settings = dict(settings)
    deadly = settings.pop("deadly", False)
    goals = np.array([5, 0, 3, 3, 1, 4, 2])
    ways, steps = replay(
        model, NumberedCorridor(deadly=deadly), goals, settings.get("max_steps", 200), seed=7
    )
    path = tmp_path / "new" / "film.GIF"
    filmed = record_goals(model, world(deadly=deadly), goals, path, seed=7, **settings)
    assert isinstance(filmed, FilmedGoals)
    np.testing.assert_array_equal(filmed.steps, steps)
    np.testing.assert_array_equal(filmed.reached, steps >= 0)
    if isinstance(model, Always):
        assert 0 < filmed.reached.sum() < len(goals)

    pictures, milliseconds = seen_in(path)
    n_pictures = sum(len(way) for way in ways)
    # GIFs count hundredths of a second.
    assert milliseconds == n_pictures * 1000 // settings.get("fps", 10) + PAUSE * len(goals)
    expected = []
    for way, goal, step in zip(ways, goals, steps, strict=True):
        goal_picture = paint(goal) if step >= 0 else np.full((20, 30, 3), UNDER_WAY)
        for cell in way[:-1]:
            expected.append((UNDER_WAY, paint(cell), goal_picture))
        expected.append((REACHED if step >= 0 else FAILED, paint(way[-1]), goal_picture))
    # Equal pictures that follow each other are one in a GIF.
    differing = [
        now
        for before, now in zip([None, *expected[:-1]], expected, strict=True)
        if before is None or not all(map(np.array_equal, before, now))
    ]
    assert len(pictures) == len(differing)
    for picture, (frame, world_part, goal_part) in zip(pictures, differing, strict=True):
        found = parts(picture)
        assert found[0] == frame
        np.testing.assert_array_equal(found[1], world_part)
        np.testing.assert_array_equal(found[2], goal_part)


def test_the_environment_draws_its_goals_if_it_can(tmp_path):
    env = Drawing(NumberedCorridor(start=1))
    record_goals(Always(1), env, [0, 3], tmp_path / "film.gif", max_steps=2)
    pictures, _ = seen_in(tmp_path / "film.gif")
    goals = [parts(picture)[2] for picture in pictures]
    assert parts(pictures[2])[0] == FAILED
    assert parts(pictures[-1])[0] == REACHED
    for goal in goals[:3]:
        np.testing.assert_array_equal(goal, paint(0))
    for goal in goals[3:]:
        np.testing.assert_array_equal(goal, paint(3))

    # A wrapper that changes observations hides the method, which would not know them.
    changed = TransformObservation(env, lambda cell: cell + 1, spaces.Discrete(7))
    record_goals(Always(1), changed, [0], tmp_path / "film.gif", max_steps=2)
    pictures, _ = seen_in(tmp_path / "film.gif")
    assert (parts(pictures[0])[2] == UNDER_WAY).all()


def test_a_goal_that_is_an_image_is_shown_though_it_is_not_reached(tmp_path):
    image = Corridor(6, image=True, start=0)
    record_goals(
        Always(0), Painted(image), [image.observation_of(3)], tmp_path / "film.gif", max_steps=2
    )
    goal = parts(seen_in(tmp_path / "film.gif")[0][0])[2]
    # The image of 4 x 6 pixels becomes one of 20 x 30.
    expected = np.zeros((20, 30, 3), np.uint8)
    expected[:, 15:20] = 255
    np.testing.assert_array_equal(goal, expected)


@pytest.mark.parametrize("shape", [(1, 4, 6), (4, 6, 1), (4, 6, 6)], ids=str)
def test_images_of_one_channel_are_shown_and_those_of_many_are_not(shape, tmp_path):
    class Channels(Corridor):
        def observation_of(self, cell):
            return np.full(shape, 40 * cell + 10, np.uint8)

    corridor = Channels(6, start=0)
    corridor.observation_space = spaces.Box(0, 255, shape, np.uint8)
    goal = corridor.observation_of(3)
    record_goals(Always(0), Painted(corridor), [goal], tmp_path / "film.gif", max_steps=2)
    shown = parts(seen_in(tmp_path / "film.gif")[0][0])[2]
    assert (shown == (130 if 1 in shape else UNDER_WAY)).all()


@pytest.mark.parametrize("kind", ["list", "dict", "packed"])
def test_goals_of_dict_worlds_are_given_in_any_form(kind, tmp_path):
    room = Room()
    model = ManyGoalsDQN("MultiInputPolicy", Room(), learning_starts=200, seed=0)
    model.learn(200)
    dicts = [room.observation_of(place, wheel) for place, wheel in ((0, 1), (2, 3))]
    batch = {name: np.stack([one[name] for one in dicts]) for name in dicts[0]}
    space = model.goal_buffer.observation_space
    goals = {"list": dicts, "dict": batch, "packed": space.pack(batch)}[kind]
    filmed = record_goals(
        model.goal_policy(), Painted(Room()), goals, tmp_path / "film.gif", max_steps=20
    )
    assert filmed.reached.all()


def test_a_model_of_sb3_pursues_goals_in_a_goal_env(tmp_path):
    short = TimeLimit(Sparse(), 5)
    model = DQN("MultiInputPolicy", short, replay_buffer_class=HerReplayBuffer, learning_starts=10)
    model.learn(50)
    path = tmp_path / "film.gif"
    env = Painted(Sparse(ends=False))
    filmed = record_goals(model, env, np.array([[3.125], [0.125]]), path, max_steps=5, seed=2)
    for number, goal in enumerate((3.125, 0.125)):
        track = Sparse(ends=False)
        seen, _ = track.reset(seed=2 + number)
        steps = 0
        while abs(seen["achieved_goal"][0] - goal) > 0.25 and steps < 5:
            action, _ = model.predict({**seen, "desired_goal": np.array([goal])}, None, None, True)
            seen, *_ = track.step(action)
            steps += 1
        reached = abs(seen["achieved_goal"][0] - goal) <= 0.25
        assert filmed.reached[number] == reached
        assert filmed.steps[number] == (steps if reached else -1)


def test_what_a_goal_env_shows_goes_to_a_policy_with_the_goal_in_place_of_its_own(tmp_path):
    policy = Asked(action=1)
    env = Painted(Sparse(length=9, ends=False))
    record_goals(policy, env, [[7.5]], tmp_path / "film.gif", max_steps=2)
    (query, kwargs), _ = policy.queries
    assert set(query) == {"observation", "achieved_goal", "desired_goal"}
    cell = query["achieved_goal"].item()
    np.testing.assert_array_equal(query["observation"], [[cell, 2 * cell]])
    np.testing.assert_array_equal(query["desired_goal"], [[7.5]])
    assert kwargs == {"deterministic": True}


def test_a_model_that_learned_in_a_goal_env_is_filmed_there(tmp_path):
    pursuit = {"goals_from": "achieved"}
    model = ManyGoalsDQN("MultiInputPolicy", Sparse(), goal_wrapper_kwargs=pursuit, seed=0)
    model.learn(300)
    path = tmp_path / "film.gif"
    env = Painted(Sparse(ends=False))
    assert record_goals(model.goal_policy(), env, [[3.0], [0.0]], path).reached.all()
    model.save(tmp_path / "model")
    # Without its environment, a loaded model cannot say what is reached: that of the film does.
    loaded = ManyGoalsDQN.load(tmp_path / "model")
    filmed = record_goals(loaded, env, [[3.0], [0.0]], path, max_steps=5)
    again = record_goals(model, env, [[3.0], [0.0]], path, max_steps=5)
    np.testing.assert_array_equal(filmed.steps, again.steps)


def test_a_goal_wrapper_says_what_is_reached_and_stays_as_it_was(tmp_path):
    inner = TimeLimit(world(start=0), 100)
    env = GoalBufferWrapper(inner, goal=lambda cell: int(cell) // 2, max_episode_steps=1)
    filmed = record_goals(Always(1), env, [[1], [2]], tmp_path / "film.gif")
    np.testing.assert_array_equal(filmed.steps, [2, 4])
    assert len(env.goal_buffer) == 0
    assert env.goal_tracker.training
    assert env.goal_tracker.n_moves == 0
    # What is reached looks as it looked then.
    goal = parts(seen_in(tmp_path / "film.gif")[0][0])[2]
    np.testing.assert_array_equal(goal, paint(2))


def test_a_goal_function_of_the_model_says_what_is_reached(tmp_path):
    model = make_model(NumberedCorridor(), goal_wrapper_kwargs={"goal": lambda cell: int(cell) > 3})
    model.learn(100)
    filmed = record_goals(
        model.goal_policy(), world(start=0), [[True]], tmp_path / "film.gif", max_steps=20
    )
    np.testing.assert_array_equal(filmed.steps, [4])


def test_states_that_the_model_has_learned_judge_with_a_warning(tmp_path):
    # The policy plans, so the network need not learn.
    model = model_of(updates_per_step=0.02).learn(2_000)
    # No later observation equals this one.
    goal = Spotted(6).reset(seed=3)[0]
    with pytest.warns(UserWarning, match="judged by the states that the model has learned.*wrap"):
        filmed = record_goals(
            model.goal_policy(), Painted(Spotted()), [goal], tmp_path / "film.gif", max_steps=50
        )
    assert filmed.reached.all()


def test_random_actions_are_those_of_the_seed(tmp_path):
    def filmed(seed, epsilon=0.5):
        path = tmp_path / "film.gif"
        goals = [5] * 8
        steps = record_goals(
            Always(1), world(start=0), goals, path, seed=seed, epsilon=epsilon
        ).steps
        return steps.tolist(), path.read_bytes()

    assert filmed(0, epsilon=0.0)[0] == [5] * 8
    assert filmed(0) == filmed(0) != filmed(1)
    assert min(filmed(0)[0]) >= 5
    assert max(filmed(0)[0]) > 5
    # The next goal has the next seed.
    assert filmed(0)[0][1:] == filmed(1)[0][:-1]


class Masked(gym.Wrapper):
    """A world that allows one action."""

    def __init__(self, env, allowed):
        super().__init__(env)
        self.mask = np.arange(3) == allowed

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        return observation, {**info, "action_mask": self.mask.astype(np.int8)}

    def step(self, action):
        assert self.mask[action]
        *found, info = self.env.step(action)
        return *found, {**info, "action_mask": self.mask.astype(np.int8)}


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_actions_obey_masks(epsilon, tmp_path):
    policy = Asked(action=1)
    env = Masked(world(start=0), allowed=1)
    filmed = record_goals(
        policy, env, [3], tmp_path / "film.gif", epsilon=epsilon, action_masks=True
    )
    assert filmed.steps[0] == 3
    assert len(policy.queries) == (0 if epsilon else 3)
    for _, kwargs in policy.queries:
        np.testing.assert_array_equal(kwargs["action_masks"], [[False, True, False]])
    with pytest.raises(ValueError, match=r'needs info\["action_mask"\] of shape \(3,\), got \(\)'):
        record_goals(policy, world(start=0), [3], tmp_path / "film.gif", action_masks=True)


def test_actions_may_be_continuous(tmp_path):
    class Pushed(gym.ActionWrapper):
        def __init__(self):
            super().__init__(Sparse(ends=False))
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

        def action(self, action):
            return 1 if action[0] > 0.0 else 0

    policy = Asked(action=np.array([0.5], np.float32))
    filmed = record_goals(policy, Painted(Pushed()), [[4.0]], tmp_path / "film.gif", max_steps=9)
    assert filmed.reached.all()
    record_goals(policy, Painted(Pushed()), [[4.0]], tmp_path / "film.gif", epsilon=1.0)


@pytest.mark.parametrize(("fps", "duration"), [(25, 40), (60, 20), (None, 100), (0, 100)])
def test_films_have_the_frames_per_second_of_the_world(fps, duration, tmp_path):
    record_goals(Always(1), Painted(NumberedCorridor(start=0), fps), [2], tmp_path / "film.gif")
    assert seen_in(tmp_path / "film.gif")[1] == 3 * duration + PAUSE


def test_large_pictures_become_smaller(tmp_path):
    env = Broken(NumberedCorridor(start=0))
    env.picture = lambda cell: np.repeat(np.repeat(paint(cell), 30, axis=0), 30, axis=1)
    record_goals(Always(1), env, [2], tmp_path / "film.gif")
    pictures, _ = seen_in(tmp_path / "film.gif")
    # Of 600 x 900 pixels a third is left, and the gap around is a sixteenth of the height.
    assert pictures[0].shape == (200 + 2 * 12, 2 * 300 + 3 * 12, 3)
    np.testing.assert_array_equal(pictures[0][12 + 100, 12:312][::10], paint(0)[10])


PATH = "film.gif"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "film.mp4"}, r"path must end in \"\.gif\", got '.*film\.mp4'"),
        ({"path": "film"}, r"path must end in \"\.gif\""),
        ({"goals": []}, "goals must have at least one goal, got none"),
        ({"goals": 3}, r"goals must be a list or an array of goals, elements of Discrete\(6\)"),
        ({"goals": np.array(3)}, "goals must be a list or an array of goals"),
        ({"goals": [[1, 2]]}, r"each of goals must be int64 of shape \(\), got int64 of \(2,\)"),
        ({"goals": [1.5]}, r"each of goals must be int64 of shape \(\), got float64 of \(\)"),
        ({"goals": [2, 6]}, r"goals\[1\] is 6: 6 is not in \[0, 5\]"),
        ({"max_steps": 0}, "max_steps must be a whole number, at least 1, got 0"),
        ({"fps": 0}, r"fps must be a number in \(0, 50\], got 0"),
        ({"fps": 60}, r"fps must be a number in \(0, 50\], got 60"),
        ({"fps": 1, "max_steps": 1_000}, r"max_steps / fps must be at most 655 seconds"),
        ({"epsilon": 2}, r"epsilon must be a number in \[0, 1\], got 2"),
        ({"seed": -1}, "seed must be a whole number, at least 0, got -1"),
        (
            {"env": NumberedCorridor()},
            r'make it with render_mode="rgb_array", got render_mode=None',
        ),
        ({"env": make_vec_env(world, 1)}, "env must be one gymnasium.Env, .*got DummyVecEnv"),
        ({"model": object()}, "model must have a method predict, got object"),
        ({"model": DQN("MlpPolicy", world())}, "model must act on dicts .* got a DQN for"),
    ],
)
def test_bad_input_is_an_error_and_writes_nothing(change, message, tmp_path):
    arguments = {"model": Always(1), "env": world(), "goals": [3], "path": PATH, **change}
    arguments["path"] = tmp_path / "new" / arguments["path"]
    with pytest.raises((TypeError, ValueError), match=message):
        record_goals(**arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (None, "env.render\\(\\) must return a picture, uint8 .* got NoneType"),
        (np.zeros((20, 30, 3)), "got ndarray of float64 and shape \\(20, 30, 3\\)"),
        (np.zeros((20, 30), np.uint8), "got ndarray of uint8 and shape \\(20, 30\\)"),
        (
            lambda cell: np.zeros((20, 30 + cell, 3), np.uint8),
            r"pictures of one size, .* \(20, 30, 3\) and \(20, 31, 3\)",
        ),
    ],
)
def test_what_is_no_picture_is_an_error_and_writes_nothing(picture, message, tmp_path):
    env = Broken(NumberedCorridor(start=0))
    env.picture = picture
    with pytest.raises(ValueError, match=message):
        record_goals(Always(1), env, [3], tmp_path / PATH)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_of_training_is_refused(tmp_path):
    env = world()
    model = make_model(env)
    model.learn(50)
    with pytest.raises(ValueError, match="env is the environment that the model learns in"):
        record_goals(model, env, [3], tmp_path / PATH)


def test_a_wrapper_around_the_goal_wrapper_must_not_change_observations(tmp_path):
    wrapped = GoalBufferWrapper(world())
    changed = TransformObservation(
        wrapped, lambda seen: seen["observation"], wrapped.observation_space["observation"]
    )
    with pytest.raises(ValueError, match="around the goal wrapper of env changes observations"):
        record_goals(Always(1), changed, [3], tmp_path / PATH)


def test_a_film_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / PATH
    record_goals(Always(1), world(start=0), [3], path)
    before = path.read_bytes()

    def half(image, file, **options):
        file.write_bytes(before[:100])
        raise OSError("the disk is full")

    monkeypatch.setattr("PIL.Image.Image.save", half)
    with pytest.raises(OSError, match="the disk is full"):
        record_goals(Always(1), world(start=0), [4], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_pillow_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'needs Pillow: pip install "sb3-manygoals\[film\]"'):
        record_goals(Always(1), world(), [3], tmp_path / PATH)
