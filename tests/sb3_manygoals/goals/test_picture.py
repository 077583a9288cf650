import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    GrayscaleObservation,
    TransformObservation,
)

import gym_twoRooms  # noqa: F401 - registers the environments
from sb3_manygoals.goals import GoalBufferWrapper
from sb3_manygoals.goals.picture import as_rgb, beside
from tests.sb3_manygoals.worlds import Corridor


class Filmed(Corridor):
    """A corridor that renders a grey frame, or whatever it is told to."""

    def __init__(self, image, render_mode="rgb_array", frame=None):
        super().__init__(length=6, image=image)
        self.render_mode = render_mode
        self.frame = np.full((40, 30, 3), 100, np.uint8) if frame is None else frame

    def render(self):
        return self.frame


def box(*shape, high=255, dtype=np.uint8):
    return spaces.Box(0, high, shape, dtype)


def test_an_image_goal_is_enlarged_beside_the_frame():
    env = GoalBufferWrapper(Filmed(image=True))
    goal = env.unwrapped.observation_of(4)
    env.reset(seed=0, options={"goal": goal})
    picture = env.render()
    assert picture.shape == (40, 30 + 2 + 60, 3)
    assert (picture[:, :30] == 100).all()
    np.testing.assert_array_equal(picture[:, 32:], goal.repeat(10, axis=0).repeat(10, axis=1))
    env.reset(options={"goal": env.unwrapped.observation_of(0)})
    assert (env.render()[:, 32:42] == 255).all()


@pytest.mark.parametrize(
    "world",
    [
        Filmed(image=False),
        Filmed(image=True, render_mode="ansi", frame="a map"),
        Filmed(image=True, render_mode="human", frame=[]),
        Filmed(image=True, render_mode="rgb_array_list", frame=[np.zeros((4, 4, 3), np.uint8)]),
    ],
)
def test_where_goals_are_no_images_or_the_mode_is_another_the_frame_is_the_environments(world):
    env = GoalBufferWrapper(world)
    env.reset(seed=0)
    assert env.render() is world.frame


def test_images_in_all_their_forms():
    rng = np.random.default_rng(0)
    for shape, channels in [((8, 9), None), ((8, 9, 1), [0] * 3), ((8, 9, 3), [0, 1, 2]), ((8, 9, 4), [3] * 3)]:
        image = rng.integers(256, size=shape, dtype=np.uint8)
        expected = np.stack([image] * 3, axis=2) if channels is None else image[:, :, channels]
        np.testing.assert_array_equal(as_rgb(box(*shape), image), expected)
        if channels is not None:
            first = np.moveaxis(image, 2, 0)
            np.testing.assert_array_equal(as_rgb(box(*first.shape), first), expected)
    for space in (box(5), box(8, 9, 3, high=1), box(8, 9, 3, dtype=np.float32), box(2, 8, 9, 3), spaces.Discrete(3)):
        assert as_rgb(space, np.asarray(space.sample())) is None


def test_pictures_of_any_size_get_the_height_of_the_frame():
    frame = np.zeros((7, 5, 3), np.uint8)
    for height, width, expected in [(7, 5, 5), (3, 3, 7), (70, 140, 14), (100, 1, 1)]:
        assert beside(frame, np.zeros((height, width, 3), np.uint8)).shape == (7, 5 + 2 + expected, 3)


def test_two_rooms_draws_its_goal_itself():
    env = GoalBufferWrapper(gym.make("TwoRoomsSwitch-v0", render_mode="rgb_array", cell_size=16))
    world = env.unwrapped
    env.reset(seed=0, options={"goal": world.observation_of(1234)})
    picture = env.render()
    assert picture.shape == (160, 160 + 8 + 160, 3)
    np.testing.assert_array_equal(picture[:, :160], world.render())
    world.set_state(1234)
    np.testing.assert_array_equal(picture[:, 168:], world.render())


def test_a_method_that_draws_other_observations_is_not_asked():
    two_rooms = gym.make("TwoRoomsSwitch-v0", render_mode="rgb_array", cell_size=16)
    env = GoalBufferWrapper(GrayscaleObservation(two_rooms))
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render()[8::16, 176::16, 0], obs["desired_goal"])
    env = GoalBufferWrapper(FrameStackObservation(GrayscaleObservation(two_rooms), 4))
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render()[8::16, 176::16, 0], obs["desired_goal"][-1])
    mirrored = TransformObservation(two_rooms, lambda picture: picture[:, ::-1].copy(), two_rooms.observation_space)
    env = GoalBufferWrapper(mirrored)
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render()[8::16, 176::16], obs["desired_goal"])
