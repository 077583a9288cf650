"""What spoils pictures: noise, flicker, brightness, blur, distractors and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from sb3_manygoals.evaluation import GoalReacher

# The pixels of the first row that flicker.
_FLICKERING = 3
# The whole picture is so much darker at most, and blurred by so much of its neighbours at most.
_DARKEST = 0.6
_MOST_BLUR = 0.5
# The colour of a distractor.
_DOT = (255, 0, 255)
# A clock counts modulo this, in such steps of brightness.
_ROUND_OF_CLOCK = 64
_STEP_OF_CLOCK = 4


class Disturbance:
    """
    Something that spoils pictures. It may have a hidden state, a number for each environment, which
    goes on with each step of the world, whatever the agent does.

    This one does nothing.
    """

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw hidden states at any time.

        :param shape: shape of the pictures, (n, height, width, 3)
        :param rng: random generator
        :return: shape (n,)
        """
        return np.zeros(shape[0], dtype=np.int64)

    def advance(
        self, hidden: NDArray[np.int64], shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Return the hidden states after a step of the world.

        :param hidden: hidden states before it, shape (n,)
        :param shape: shape of the pictures, (n, height, width, 3)
        :param rng: random generator
        :return: shape (n,)
        """
        return hidden

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Return what is seen of pictures.

        :param pictures: shape (n, height, width, 3)
        :param hidden: hidden states, shape (n,)
        :param rng: random generator
        :return: new pictures, of the same shape
        """
        return pictures.copy()


class Flicker(Disturbance):
    """The first pixels of the first row have random colours. What they show is lost."""

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Let pixels flicker.

        :param pictures: shape (n, height, width, 3)
        :param hidden: not used
        :param rng: random generator
        """
        seen = pictures.copy()
        seen[:, 0, :_FLICKERING] = rng.integers(0, 256, seen[:, 0, :_FLICKERING].shape)
        return seen


class Brightness(Disturbance):
    """Each picture is darker by a random factor, the same for all pixels."""

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Darken pictures.

        :param pictures: shape (n, height, width, 3)
        :param hidden: not used
        :param rng: random generator
        """
        factors = rng.uniform(_DARKEST, 1.0, (len(pictures), 1, 1, 1))
        return (pictures * factors).astype(np.uint8)


class Blur(Disturbance):
    """Each pixel is mixed with the mean of its neighbours, in each picture by a random share."""

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Blur pictures.

        :param pictures: shape (n, height, width, 3)
        :param hidden: not used
        :param rng: random generator
        """
        padded = np.pad(pictures.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
        sides = (
            padded[:, :-2, 1:-1],
            padded[:, 2:, 1:-1],
            padded[:, 1:-1, :-2],
            padded[:, 1:-1, 2:],
        )
        share = rng.uniform(0.0, _MOST_BLUR, (len(pictures), 1, 1, 1))
        mixed = (1.0 - share) * pictures + share * sum(sides) / len(sides)
        return mixed.astype(np.uint8)


class Distractor(Disturbance):
    """
    A dot goes along the edge of the picture. Half of the pixel on which it is shines through.

    :param is_random: whether it walks at random, a pixel to either side. Else it goes round
    """

    def __init__(self, is_random: bool) -> None:
        self.is_random = is_random

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw places on the edge.

        :param shape: shape of the pictures, (n, height, width, 3)
        :param rng: random generator
        """
        return rng.integers(_length_of_edge(shape), size=shape[0])

    def advance(
        self, hidden: NDArray[np.int64], shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Move the dots.

        :param hidden: places on the edge, shape (n,)
        :param shape: shape of the pictures, (n, height, width, 3)
        :param rng: random generator
        """
        steps = rng.choice([-1, 1], size=len(hidden)) if self.is_random else 1
        moved: NDArray[np.int64] = (hidden + steps) % _length_of_edge(shape)
        return moved

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Draw the dots.

        :param pictures: shape (n, height, width, 3)
        :param hidden: places on the edge, shape (n,)
        :param rng: not used
        """
        seen = pictures.copy()
        height, width = pictures.shape[1:3]
        # Along the top, down the right side, back along the bottom, and up the left side.
        edge = [(0, column) for column in range(width)]
        edge += [(row, width - 1) for row in range(1, height)]
        edge += [(height - 1, column) for column in range(width - 2, -1, -1)]
        edge += [(row, 0) for row in range(height - 2, 0, -1)]
        rows, columns = np.array(edge)[hidden].T
        places = (np.arange(len(seen)), rows, columns)
        seen[places] = seen[places] // 2 + np.array(_DOT, dtype=np.uint8) // 2
        return seen


class Counting(Disturbance):
    """The red of the last pixel of the first row counts the steps of the world, as a clock does."""

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw times.

        :param shape: shape of the pictures, (n, height, width, 3)
        :param rng: random generator
        """
        return rng.integers(_ROUND_OF_CLOCK, size=shape[0])

    def advance(
        self, hidden: NDArray[np.int64], shape: tuple[int, ...], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Let the clocks go on.

        :param hidden: times, shape (n,)
        :param shape: not used
        :param rng: not used
        """
        return (hidden + 1) % _ROUND_OF_CLOCK

    def show(
        self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """
        Show the time.

        :param pictures: shape (n, height, width, 3)
        :param hidden: times, shape (n,)
        :param rng: not used
        """
        seen = pictures.copy()
        seen[:, 0, -1, 0] = hidden * _STEP_OF_CLOCK
        return seen


DISTURBANCES: Mapping[str, Callable[[], Disturbance]] = {
    "none": Disturbance,
    "flicker": Flicker,
    "brightness": Brightness,
    "blur": Blur,
    "walking-dot": lambda: Distractor(is_random=True),
    "circling-dot": lambda: Distractor(is_random=False),
    "clock": Counting,
}
"""Disturbances by their names."""


class Spoiler:
    """
    Spoils the pictures of n environments: a disturbance first, and then noise.

    :param disturbance: the disturbance
    :param noise: greatest noise in each channel of each pixel, of 255
    :param seed: seed of all that is random
    """

    def __init__(self, disturbance: Disturbance, noise: int, seed: int) -> None:
        self.disturbance = disturbance
        self.noise = noise
        self._rng = np.random.default_rng(seed)
        self._hidden: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def next(self, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Return what is seen after a step of the world.

        :param pictures: shape (n, height, width, 3)
        :return: new pictures, of the same shape
        """
        if len(self._hidden) != len(pictures):
            self._hidden = self.disturbance.draw(pictures.shape, self._rng)
        self._hidden = self.disturbance.advance(self._hidden, pictures.shape, self._rng)
        return self._show(pictures, self._hidden)

    def any(self, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Return what may be seen at any time, as of goals.

        :param pictures: shape (n, height, width, 3)
        :return: new pictures, of the same shape
        """
        return self._show(pictures, self.disturbance.draw(pictures.shape, self._rng))

    def again(self, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Return what is seen of other pictures at the same time, as after a reset of the world.

        :param pictures: shape (n, height, width, 3)
        :return: new pictures, of the same shape
        """
        if len(self._hidden) != len(pictures):
            self._hidden = self.disturbance.draw(pictures.shape, self._rng)
        return self._show(pictures, self._hidden)

    def _show(self, pictures: NDArray[np.uint8], hidden: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return pictures as they are seen with these hidden states."""
        seen = self.disturbance.show(pictures, hidden, self._rng)
        if self.noise == 0:
            return seen
        noise = self._rng.integers(-self.noise, self.noise + 1, seen.shape, dtype=np.int16)
        noisy: NDArray[np.uint8] = np.clip(seen.astype(np.int16) + noise, 0, 255).astype(np.uint8)
        return noisy


class Spoiled(VectorWrapper):
    """
    Environments whose pictures are spoiled.

    :param env: environments of pictures, which do not reset themselves
    :param spoiler: spoils the pictures
    """

    copy = True
    """Observations are new arrays, so that nobody needs to copy them."""

    def __init__(self, env: VectorEnv[Any, Any, Any], spoiler: Spoiler) -> None:
        super().__init__(env)
        self.spoiler = spoiler

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Begin episodes. What spoils the pictures goes on, as a clock on the wall does.

        :param seed: seed of the environments
        :param options: options of the environments
        :return: pictures, shape (n, height, width, 3), and infos
        """
        observations, infos = self.env.reset(seed=seed, options=options)
        return self.spoiler.again(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """
        Take a step.

        :param actions: actions, shape (n,)
        :return: as of the environments, with spoiled pictures
        """
        observations, *others, infos = self.env.step(actions)
        rewards, terminated, truncated = others
        return self.spoiler.next(observations), rewards, terminated, truncated, infos


class SpoiledReacher:
    """
    An agent that sees spoiled pictures, in a world that shows clean ones. So its mastery can be
    measured by the true states of the world.

    Goals' pictures are spoiled once, and stay so for as long as the same goals are pursued. If one
    of several episodes ends, all of them, and what changes with time, are drawn anew.

    :param agent: the agent
    :param spoiler: spoils the pictures
    """

    def __init__(self, agent: GoalReacher, spoiler: Spoiler) -> None:
        self.agent = agent
        self.spoiler = spoiler
        self._goals: NDArray[np.uint8] | None = None
        self._seen_goals: NDArray[np.uint8] | None = None

    def predict(
        self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False
    ) -> tuple[NDArray[Any], Any]:
        """
        Choose actions.

        :param observation: clean pictures of n environments: "observation" and "desired_goal"
        :param deterministic: whether to choose the best actions
        :return: actions, shape (n,), and what else the agent returns
        """
        goals = observation["desired_goal"]
        if self._goals is None or not np.array_equal(goals, self._goals):
            self._goals = goals.copy()
            self._seen_goals = self.spoiler.any(goals)
        seen = self.spoiler.next(observation["observation"])
        spoiled = {"observation": seen, "achieved_goal": seen, "desired_goal": self._seen_goals}
        return self.agent.predict(spoiled, deterministic=deterministic)  # type: ignore[arg-type]


def _length_of_edge(shape: tuple[int, ...]) -> int:
    """Return the number of pixels on the edge of pictures."""
    return 2 * (shape[1] + shape[2]) - 4
