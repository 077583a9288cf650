"""Films of an agent on its way to goals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.preprocessing import is_image_space

from sb3_manygoals.evaluation import GoalReacher, goal_buffer_of, warn_of_learned_states
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.moved_worlds import worlds_of
from sb3_manygoals.goals.sources import ObservationSource
from sb3_manygoals.goals.wrapper import GoalBufferWrapper
from sb3_manygoals.packing import PackedSpace, as_packed, unpacked
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.validation import check_count, check_number

REACHED = (46, 160, 67)
"""Colour of the frame around the last picture of a goal that was reached."""
FAILED = (203, 36, 49)
"""Colour of the frame around the last picture of a goal that was not reached."""
UNDER_WAY = (238, 238, 238)
"""Colour of the frame around all other pictures, and of the place of a goal without a picture."""

# Browsers show films with more pictures a second much too slowly.
_MOST_FPS = 50
# A GIF counts time in hundredths of a second, and has 16 bits for how long a picture stands.
_LONGEST = 2**16 - 1
# The last picture of a goal stands longer than the others, by so many hundredths of a second.
_PAUSE = 72
# Pictures with longer sides are made smaller.
_MOST_PIXELS = 300
# Factors that make one number of the three of a color.
_COLOR_DIGITS = np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)


@dataclass(frozen=True)
class FilmedGoals:
    """
    The outcome of :func:`record_goals`.

    :param reached: whether each goal was reached, bool, shape (n_goals,)
    :param steps: number of steps to each goal, 0 if the start was the goal, -1 if it was not
        reached; int64, shape (n_goals,)
    """

    reached: NDArray[np.bool_]
    steps: NDArray[np.int64]


def record_goals(
    model: GoalReacher,
    env: gym.Env[Any, Any],
    goals: Any,
    path: str | os.PathLike[str],
    max_steps: int = 200,
    fps: float | None = None,
    deterministic: bool = True,
    epsilon: float = 0.0,
    seed: int = 0,
    action_masks: bool = False,
) -> FilmedGoals:
    """
    Film a model on its way to goals, one after another, each from a start of the environment. The
    world is on the left. Its goal is on the right. The last picture of a goal has a green frame if
    the goal is reached, and a red one if it is not.

    An environment may have a method ``render_observation`` that takes an observation and returns
    its picture, uint8 of shape (height, width, 3). Then goals that are observations are drawn by
    it. Otherwise a goal looks like the picture in which it is reached. If it is not reached, and
    goals are images, it looks like the image. If they are no images, its place is empty. A GoalEnv
    may draw the goal that it sets itself, which is not pursued. If it ends at that goal on the way,
    the goal of the film counts as not reached.

    If ``env`` has a goal wrapper, this wrapper says what a goal is. It takes no part in the film,
    and neither do wrappers around it: goals are not added to it, and its time limit does not count.
    Pictures with sides of more than 300 pixels are made smaller. Pillow writes the film
    (``pip install "sb3-manygoals[film]"``). If there is a file, it is replaced only when the new
    one is complete.

    :param model: model that acts towards goals: a ManyGoalsDQN, a policy of ``goal_policy()``, an
        SB3 model whose observations are dicts with goals, or a policy of your own
    :param env: an environment with ``render_mode="rgb_array"``, with a goal wrapper or without, or
        a GoalEnv. It is not closed. The model must not learn in it
    :param goals: goals to pursue, one after another: a list of them, or an array of shape
        (n_goals, *observation_space.shape). Where goals are of another space, its elements. In a
        Dict world, a list of dicts of arrays, a dict of batches, or packed observations
    :param path: the film, which ends in ".gif". Its folder is made if there is none
    :param max_steps: number of steps in which a goal must be reached
    :param fps: pictures per second, above 0 and at most 50. None: ``render_fps`` of the
        environment's metadata, or 50 if that is more, or 10 if there is none. A picture of a GIF
        stands for whole hundredths of a second
    :param deterministic: whether to take the best actions. False: the model may draw actions, by
        its own random numbers
    :param epsilon: probability of a random action instead of the model's. Greedy policies circle
        for ever where they are wrong
    :param seed: seed of the first start, and of random actions; that of the next start is one more
    :param action_masks: whether all actions obey ``info["action_mask"]``, which the model's
        ``predict`` gets as ``action_masks``
    :return: which goals were reached, and in how many steps
    :raises ImportError: if Pillow is not installed
    :raises TypeError: if ``env`` is no single environment, its observations cannot be goals, or
        ``model`` does not act towards goals
    :raises ValueError: if ``env`` does not render pictures, the model learns in it, or a wrapper
        around its goal wrapper changes observations; if there are no goals or they do not fit; if
        ``path`` has another ending, or a number is out of its range
    :raises OSError: if the file cannot be written
    """
    _check_pillow()
    path = _checked_path(path)
    check_count("max_steps", max_steps)
    check_number("epsilon", epsilon, at_least=0, at_most=1)
    check_count("seed", seed, at_least=0)
    actor = _Actor(model, deterministic, epsilon, action_masks)
    world = _world(model, env, max_steps)
    hundredths = _hundredths(fps, env, max_steps)
    goals = _checked_goals(goals, world.goal_buffer)
    if world.goal_buffer is getattr(model, "goal_buffer", None):
        warn_of_learned_states(world.goal_buffer, "wrap env: GoalBufferWrapper(env, state_key=...)")
    camera = _Camera(world)
    scenes = []
    for number, goal in enumerate(goals):
        scenes.append(_walk(actor, world, camera, goal, seed + number))
    _write(scenes, path, hundredths)
    steps = [len(scene.pictures) - 1 if scene.reached else -1 for scene in scenes]
    return FilmedGoals(
        np.array([scene.reached for scene in scenes]), np.array(steps, dtype=np.int64)
    )


class _Scene(NamedTuple):
    """The pictures of the way to one goal, of the same shape (H, W, 3), uint8."""

    pictures: list[NDArray[np.uint8]]
    """What the world looked like, from the start on."""
    goal: NDArray[np.uint8]
    """What the goal looks like."""
    reached: bool
    """Whether it was reached."""

    @property
    def frame(self) -> tuple[int, int, int]:
        """The color of the frame around the last picture."""
        return REACHED if self.reached else FAILED

    def shots(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures with the goal beside them, and with a frame around both."""
        for picture in self.pictures[:-1]:
            yield _beside(picture, self.goal, UNDER_WAY)
        yield _beside(self.pictures[-1], self.goal, self.frame)


class _Actor:
    """
    Chooses actions.

    :param model: as :func:`record_goals` has it
    :param deterministic: whether to take the best actions
    :param epsilon: probability of a random action
    :param action_masks: whether actions obey masks
    :raises TypeError: if the model does not act towards goals
    """

    def __init__(
        self, model: GoalReacher, deterministic: bool, epsilon: float, action_masks: bool
    ) -> None:
        if not callable(getattr(model, "predict", None)):
            raise TypeError(f"model must have a method predict, got {type(model).__name__}")
        space = getattr(model, "observation_space", None)
        if isinstance(space, spaces.Space) and not ObservationSource.sets_goals(space):
            raise TypeError(
                "model must act on dicts of observation, achieved_goal and desired_goal, got a "
                f"{type(model).__name__} for observations of {space}"
            )
        self.takes_packed = isinstance(space, spaces.Dict) and isinstance(
            space["observation"], PackedSpace
        )
        """Whether the model has learned packed observations."""
        self.model = model
        self.deterministic = deterministic
        self.epsilon = epsilon
        self.action_masks = action_masks

    def action(
        self,
        world: GoalBufferWrapper,
        seen: Mapping[str, NDArray[Any]],
        info: dict[str, Any],
        rng: np.random.Generator,
    ) -> Any:
        """Return the action for a goal observation of a world, and for the info beside it."""
        allowed = self._allowed(world, info) if self.action_masks else None
        if rng.random() < self.epsilon:
            mask = None if allowed is None else allowed[0].astype(np.int8)
            return world.action_space.sample(mask)
        space = world.goal_buffer.observation_space
        if ObservationSource.sets_goals(world.env.observation_space) and not self.takes_packed:
            assert isinstance(space, PackedSpace)
            seen = {**space.unpack(seen["observation"]), "desired_goal": seen["desired_goal"]}
        masks = {} if allowed is None else {"action_masks": allowed}
        query = {name: np.asarray(part)[None] for name, part in seen.items()}
        actions, _ = self.model.predict(query, deterministic=self.deterministic, **masks)
        return np.asarray(actions)[0]

    @staticmethod
    def _allowed(world: GoalBufferWrapper, info: dict[str, Any]) -> NDArray[np.bool_]:
        """Return the action mask, shape (1, A)."""
        n_actions = getattr(world.action_space, "n", None)
        allowed = np.asarray(info.get("action_mask"))
        if allowed.shape != (n_actions,):
            raise ValueError(
                f'action_masks=True needs info["action_mask"] of shape ({n_actions},), got '
                f"{allowed.shape}"
            )
        return allowed.astype(np.bool_)[None]


class _Camera:
    """
    Takes pictures of a world, all of the same size.

    :param world: which renders
    """

    def __init__(self, world: GoalBufferWrapper) -> None:
        self.world = world
        self._draw = _drawing_method(world.env)
        self._size: tuple[int, ...] | None = None
        self._taken: dict[bytes, NDArray[np.uint8]] = {}

    def take(self) -> NDArray[np.uint8]:
        """Return a picture of the world as it is now, shape (H, W, 3)."""
        picture = _small(_checked_picture(self.world.env.render(), "env.render()"))
        if self._size is None:
            self._size = picture.shape
        if picture.shape != self._size:
            raise ValueError(
                "env.render() must return pictures of one size, got pictures that are made "
                f"{self._size} and {picture.shape}"
            )
        # In a world of few states, equal pictures of a long film are one array.
        digest = hashlib.blake2b(picture.tobytes()).digest()
        return self._taken.setdefault(digest, picture)

    def draw(self, goal: NDArray[Any], last: NDArray[np.uint8], reached: bool) -> NDArray[np.uint8]:
        """
        Return the picture of a goal, of the size of the others.

        :param goal: the goal
        :param last: the last picture of the way to it
        :param reached: whether it is reached there
        """
        buffer = self.world.goal_buffer
        drawn = None
        if buffer.goals_are_observations and self._draw is not None:
            drawn = self._draw(unpacked(goal, buffer.goal_space))
            drawn = _checked_picture(drawn, "env.render_observation()")
        elif reached:
            return last
        elif buffer.goals_are_observations:
            drawn = _image_of(goal, buffer.goal_space)
        if drawn is None:
            return np.full_like(last, UNDER_WAY)
        return _fitted(_small(drawn), last.shape)


def _check_pillow() -> None:
    """Raise an error that says how to install Pillow, if it is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError('a film needs Pillow: pip install "sb3-manygoals[film]"') from error


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a film, or raise an error if it is not that of a GIF."""
    found = Path(path)
    if found.suffix.lower() != ".gif":
        raise ValueError(f'path must end in ".gif", got {str(path)!r}')
    return found


def _world(model: GoalReacher, env: Any, max_steps: int) -> GoalBufferWrapper:
    """Return an environment, without the user's goal wrapper, in a goal wrapper of the film."""
    if not isinstance(env, gym.Env):
        raise TypeError(
            f"env must be one gymnasium.Env, such as gymnasium.make makes, got {type(env).__name__}"
        )
    if env.render_mode != "rgb_array":
        modes = env.metadata.get("render_modes") or "none"
        raise ValueError(
            'env must render pictures: make it with render_mode="rgb_array", got render_mode='
            f"{env.render_mode!r} of an environment whose modes are {modes}"
        )
    learns_in = model.get_env() if hasattr(model, "get_env") else None
    if learns_in is not None and worlds_of(env) & worlds_of(learns_in):
        raise ValueError(
            "env is the environment that the model learns in, whose episodes a film would break "
            "off: make another one for the film"
        )
    given = None
    if is_wrapped(env, GoalBufferWrapper):
        layer: Any = env
        while not isinstance(layer, GoalBufferWrapper):
            layer = layer.env
        if env.observation_space != layer.observation_space:
            raise ValueError(
                f"a wrapper around the goal wrapper of env changes observations, {env}: put it "
                "below, GoalBufferWrapper(Wrapper(env))"
            )
        given = layer.goal_buffer
        env = layer.env
    space = ObservationSource(env.observation_space).space
    known = goal_buffer_of(model, space, given)
    return GoalBufferWrapper(env, known, max_episode_steps=max_steps, training=False)


def _hundredths(fps: float | None, env: gym.Env[Any, Any], max_steps: int) -> int:
    """Return for how many hundredths of a second a picture stands."""
    if fps is None:
        own = env.metadata.get("render_fps")
        fps = min(own, _MOST_FPS) if isinstance(own, (int, float)) and own > 0 else 10
    check_number("fps", fps, above=0, at_most=_MOST_FPS)
    hundredths = round(100 / fps)
    # Equal pictures become one, so an agent that stands still is one picture.
    longest = (max_steps + 1) * hundredths + _PAUSE
    if longest > _LONGEST:
        raise ValueError(
            f"max_steps / fps must be at most {_LONGEST // 100} seconds, for which a picture of a "
            f"GIF can stand still, got {max_steps} / {fps}"
        )
    return hundredths


def _checked_goals(goals: Any, buffer: GoalBuffer) -> NDArray[Any]:
    """Return goals as an array, shape (n_goals, *goal_space.shape), or raise an error."""
    space = buffer.goal_space
    if isinstance(goals, Mapping):
        goals = as_packed(goals, space)
    try:
        goals = list(goals)
    except TypeError as error:
        raise ValueError(
            f"goals must be a list or an array of goals, elements of {space}, got {goals!r}"
        ) from error
    if len(goals) == 0:
        raise ValueError("goals must have at least one goal, got none")
    rows = [_goal(as_packed(goal, space), buffer) for goal in goals]
    return buffer.check_goals(np.stack(rows), "goals")


def _goal(given: Any, buffer: GoalBuffer) -> NDArray[Any]:
    """Return one goal as an array of the space of goals, or raise an error."""
    if isinstance(given, (np.ndarray, np.generic)):
        if given.shape == buffer.shape and given.dtype == buffer.dtype:
            return np.asarray(given)
    return buffer.achievement.as_goal(given, "each of goals must be")


def _walk(
    actor: _Actor, world: GoalBufferWrapper, camera: _Camera, goal: NDArray[Any], seed: int
) -> _Scene:
    """Let a model pursue a goal, and return the pictures of it."""
    rng = generator(seed, Stream.FILM)
    seen, info = world.reset(seed=seed, options={"goal": goal})
    pictures = [camera.take()]
    achieved = np.asarray(seen["achieved_goal"])[None]
    reached = bool(world.goal_buffer.is_reached(achieved, goal[None])[0])
    is_over = reached
    while not is_over:
        action = actor.action(world, seen, info, rng)
        seen, _, terminated, truncated, info = world.step(action)
        pictures.append(camera.take())
        reached = info["is_success"]
        is_over = terminated or truncated
    return _Scene(pictures, camera.draw(goal, pictures[-1], reached), reached)


def _drawing_method(env: gym.Env[Any, Any]) -> Callable[[Any], Any] | None:
    """Return the method by which an environment draws its observations, None if it has none."""
    layer = env
    # Within a wrapper that changes observations, the method would not know them.
    while layer.observation_space == env.observation_space:
        method = getattr(layer, "render_observation", None)
        if callable(method):
            return method  # type: ignore[no-any-return]
        if not isinstance(layer, gym.Wrapper):
            break
        layer = layer.env
    return None


def _checked_picture(picture: Any, what: str) -> NDArray[np.uint8]:
    """Return a copy of a picture, or raise an error if it is none."""
    array = np.array(picture)
    fits = array.ndim == 3 and array.shape[2] == 3 and array.size > 0
    if not fits or array.dtype != np.uint8:
        raise ValueError(
            f"{what} must return a picture, uint8 of shape (height, width, 3), got "
            f"{type(picture).__name__} of {array.dtype} and shape {array.shape}"
        )
    return array


def _image_of(goal: NDArray[Any], space: spaces.Space[Any]) -> NDArray[np.uint8] | None:
    """Return a goal as a picture, shape (H, W, 3), if it is an image of one or three channels."""
    if not isinstance(space, spaces.Box) or not is_image_space(space):
        return None
    if goal.shape[-1] in (1, 3):
        image = goal
    elif goal.shape[0] in (1, 3):
        image = np.moveaxis(goal, 0, -1)
    else:
        return None
    return np.ascontiguousarray(np.broadcast_to(image, (*image.shape[:2], 3)))


def _small(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture whose sides have at most so many pixels: a film has hundreds of them."""
    from PIL import Image

    factor = -(-max(picture.shape[:2]) // _MOST_PIXELS)
    if factor == 1:
        return picture
    return np.asarray(Image.fromarray(picture).reduce(factor))


def _fitted(picture: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a picture of another size, with margins where its proportions are others."""
    from PIL import Image, ImageOps

    if picture.shape == shape:
        return picture
    height, width, _ = shape
    image = Image.fromarray(picture)
    return np.asarray(ImageOps.pad(image, (width, height), Image.Resampling.BOX, UNDER_WAY))


def _beside(
    world: NDArray[np.uint8], goal: NDArray[np.uint8], color: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """Return one picture: the world on the left, the goal on the right, a frame around both."""
    height, width, _ = world.shape
    gap = max(height // 16, 4)
    picture = np.full((height + 2 * gap, 2 * width + 3 * gap, 3), color, np.uint8)
    picture[gap : gap + height, gap : gap + width] = world
    picture[gap : gap + height, 2 * gap + width : 2 * gap + 2 * width] = goal
    return picture


def _write(scenes: list[_Scene], path: Path, hundredths: int) -> None:
    """Write a GIF, whole or not at all."""
    from PIL import Image

    # One palette for all pictures prevents flicker. Equal pictures are often one array.
    pictures = {
        id(picture): picture for scene in scenes for picture in (scene.goal, *scene.pictures)
    }
    parts = [np.unique(picture @ _COLOR_DIGITS) for picture in pictures.values()]
    frames = [UNDER_WAY, *(scene.frame for scene in scenes)]
    parts.append(np.array(frames, dtype=np.uint8) @ _COLOR_DIGITS)
    colors = np.unique(np.concatenate(parts))[:, None] >> np.array([16, 8, 0], np.uint32) & 255
    palette = Image.fromarray(colors.astype(np.uint8)[None]).quantize(256)
    # They are made one by one, because all of them take much memory.
    shots = (
        Image.fromarray(shot).quantize(palette=palette, dither=Image.Dither.NONE)
        for scene in scenes
        for shot in scene.shots()
    )
    durations = []
    for scene in scenes:
        durations += [10 * hundredths] * len(scene.pictures)
        durations[-1] += 10 * _PAUSE
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        next(shots).save(
            staged,
            format="GIF",
            save_all=True,
            append_images=shots,
            duration=durations,
            loop=0,
            optimize=True,
        )
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
