import numpy as np
import pytest

from sb3_manygoals.goals import GoalBufferWrapper
from sb3_manygoals.goals.wrapper import _beside
from tests.sb3_manygoals.worlds import Corridor


class Filmed(Corridor):
    """A corridor that renders a grey frame, or whatever it is told to."""

    def __init__(self, image, render_mode="rgb_array", frame=None):
        super().__init__(length=6, image=image)
        self.render_mode = render_mode
        self.frame = np.full((40, 30, 3), 100, np.uint8) if frame is None else frame

    def render(self):
        return self.frame


def test_an_image_goal_is_enlarged_beside_the_frame():
    env = GoalBufferWrapper(Filmed(image=True))
    goal = env.unwrapped.observation_of(4)
    env.reset(seed=0, options={"goal": goal})
    picture = env.render()
    assert picture.shape == (40, 30 + 2 + 60, 3)
    assert (picture[:, :30] == 100).all()
    np.testing.assert_array_equal(picture[:, 32:], goal.repeat(10, axis=0).repeat(10, axis=1))


@pytest.mark.parametrize(
    "world",
    [
        Filmed(image=False),
        Filmed(image=True, render_mode="ansi", frame="a map"),
        Filmed(image=True, render_mode="rgb_array_list", frame=[np.zeros((4, 4, 3), np.uint8)]),
    ],
)
def test_where_goals_are_no_images_or_the_mode_is_another_the_frame_is_the_environments(world):
    env = GoalBufferWrapper(world)
    env.reset(seed=0)
    assert env.render() is world.frame


def test_goals_with_any_channels_and_of_any_size():
    rng, frame = np.random.default_rng(0), np.zeros((8, 5, 3), np.uint8)
    for channels, shown in (1, [0] * 3), (3, [0, 1, 2]), (4, [3] * 3):
        image = rng.integers(256, size=(8, 9, channels), dtype=np.uint8)
        for goal in (image, np.moveaxis(image, 2, 0)):
            np.testing.assert_array_equal(_beside(frame, goal)[:, 7:], image[:, :, shown])
    for height, width, expected in [(4, 4, 8), (80, 160, 16), (100, 4, 1)]:
        assert _beside(frame, np.zeros((height, width, 3), np.uint8)).shape == (8, 5 + 2 + expected, 3)
