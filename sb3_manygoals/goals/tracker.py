"""Goal-pursuing episodes of several environments at once: the core of both goal wrappers."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space

from sb3_manygoals import errors
from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector
from sb3_manygoals.goals.spaces import OutsideSpaceError, converted
from sb3_manygoals.packing import as_packed
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.validation import check_count, check_kwargs, check_rewards
from sb3_manygoals.world.states import UNKNOWN

ResetWorlds = bool | Literal["auto"]

# Starts are broad if there are at least this share as many as known observations ...
_BROAD_SHARE = 0.1
# ... and more than this number. If a world has a single start, resets would keep an agent in a
# corridor from going on.
_MORE_THAN_ONE = 1.5
# With narrow starts, a world is reset after so many goal episodes of full length.
_EPISODES_TO_RESET = 20
# So many goal episodes that begin at their goal, one after the other in each environment, are a
# reason to warn.
_EPISODES_AT_GOAL = 10
# A world that shows no observation that may be a goal is given up after so many random steps.
_MOST_RANDOM_STEPS = 1_000


class Starts:
    """
    Counts the first observations of episodes, to tell broad starts from narrow ones. Resets to a
    few starts only take an agent back to where it has been.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """How often each start was made, by its number."""
        self.n_starts = 0
        """The number of starts."""
        self.n_equal_pairs = 0
        """The number of pairs of starts that were equal."""

    def observe(self, ids: NDArray[np.int64]) -> None:
        """
        Count starts.

        :param ids: numbers that are equal for equal starts, such as the ids of goals, shape
            ``(n,)``. Those with ``UNKNOWN`` count as all different
        """
        self.n_starts += len(ids)
        for goal_id in ids[ids != UNKNOWN].tolist():
            n_before = self.counts.get(goal_id, 0)
            self.n_equal_pairs += n_before
            self.counts[goal_id] = n_before + 1

    def are_broad(self, n_known: int) -> bool:
        """
        Return whether there are at least a tenth as many starts as known observations, and more
        than one.

        :param n_known: number of known observations
        """
        # Among starts drawn evenly from m, one pair in m is equal.
        n_pairs = self.n_starts * (self.n_starts - 1) / 2
        return n_pairs >= max(_BROAD_SHARE * n_known, _MORE_THAN_ONE) * self.n_equal_pairs

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return a copy of the counts."""
        return copy.deepcopy(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace the counts.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self.counts = dict(state["counts"])
        self.n_starts = state["n_starts"]
        self.n_equal_pairs = state["n_equal_pairs"]


class GoalStep(NamedTuple):
    """What a step of n environments is to their goal episodes, as arrays of shape ``(n,)``."""

    rewards: NDArray[np.float64]
    """The rewards of the goal episodes."""
    terminated: NDArray[np.bool_]
    """Whether they reached their goals, or their environments terminated."""
    truncated: NDArray[np.bool_]
    """Whether they took too many steps, or their environments were truncated."""
    resets: NDArray[np.bool_]
    """Which environments are to be reset though only their goal episodes have ended."""
    achieved: NDArray[Any]
    """What the observations achieve, shape ``(n, *goal_space.shape)``."""


class GoalTracker:
    """
    The core of both goal wrappers: the goal of each of ``n_envs`` environments, and the rewards and
    ends of its episodes, as in Algorithm 1 of Veeriah et al. 2018.

    :param observation_space: space of the environments' observations
    :param n_envs: number of environments
    :param goal_buffer: the known goals. None: a new one
    :param selector_class: rule that chooses goals, a subclass of
        :class:`~sb3_manygoals.goals.GoalSelector`. None: uniform
    :param selector_kwargs: arguments of the selector's constructor
    :param max_episode_steps: steps after which a goal episode is truncated, the paper's T. None:
        it goes on until the environment ends
    :param goal_reward: reward of a step that reaches the goal
    :param step_reward: reward of every other step
    :param reset_worlds: whether the end of a goal episode resets the environment. "auto": if its
        starts are broad, and else only after 20 ``max_episode_steps``. In evaluation, always
    :param training: whether observations become goals. False to evaluate
    :raises TypeError: if the observations cannot be goals, ``goal_buffer`` is no GoalBuffer, or
        ``selector_class`` no class of selectors
    :raises ValueError: if ``goal_buffer`` is for another space, or another argument is out of range
    """

    # These are also those of a tracker that an earlier version pickled.
    asked: Mapping[str, Any] = MappingProxyType({})
    """
    Arguments of the goal wrapper that are not its defaults, as the user gave them, so that another
    environment can be wrapped alike. They say nothing of the kind of goals. A goal wrapper sets it.
    """
    has_learned = False
    """Whether a learner of this package has learned here. It says so."""
    began_without_goals = False
    """Whether no goal was known at the first reset, and goals were chosen since."""
    _knew_none_at_first = False
    # How many goal episodes, the newest ones, began at the only known goal.
    _n_begun_at_goal = 0
    _warned_of_only_goal = False

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        n_envs: int,
        goal_buffer: GoalBuffer | None = None,
        selector_class: type[GoalSelector] | None = None,
        selector_kwargs: dict[str, Any] | None = None,
        max_episode_steps: int | None = 50,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
        training: bool = True,
    ) -> None:
        if reset_worlds not in (True, False, "auto"):
            raise ValueError(f'reset_worlds must be True, False or "auto", got {reset_worlds!r}')
        if goal_buffer is not None and not isinstance(goal_buffer, GoalBuffer):
            raise TypeError(f"goal_buffer must be a GoalBuffer or None, got {goal_buffer!r}")
        self.goal_reward, self.step_reward = check_rewards(goal_reward, step_reward)
        self._goal_buffer = GoalBuffer(observation_space) if goal_buffer is None else goal_buffer
        known_space = self._goal_buffer.observation_space
        if known_space != observation_space:
            raise ValueError(
                f"goal_buffer is for observations of {known_space}, the environment has "
                f"{observation_space}"
            )
        self.n_envs = n_envs
        self.reset_worlds = reset_worlds
        self.training = training
        self.selector_class = UniformSelector if selector_class is None else selector_class
        self.selector_kwargs = check_kwargs("selector_kwargs", selector_kwargs)
        self.selector = self.make_selector()
        """The rule that chooses goals. A learner shares one between its environments."""
        if max_episode_steps is not None:
            max_episode_steps = check_count("max_episode_steps", max_episode_steps)
        self.max_episode_steps = max_episode_steps
        self.starts = Starts()
        self.rng = np.random.default_rng()
        goals_shape = (n_envs, *self._goal_buffer.shape)
        self.desired_goals: NDArray[Any] = np.zeros(goals_shape, dtype=self._goal_buffer.dtype)
        """The goal of each environment, shape ``(n_envs, *goal_space.shape)``."""
        self.achieved_goals: NDArray[Any] = self.desired_goals.copy()
        """What each environment shows achieves, shape ``(n_envs, *goal_space.shape)``."""
        self.desired_ids: NDArray[np.int64] = np.full(n_envs, UNKNOWN, dtype=np.int64)
        """
        The ids of these goals, shape ``(n_envs,)``. Where a goal was set that is not known, it may
        be that of a known goal that stands for it, see
        :meth:`~sb3_manygoals.GoalBuffer.stand_ins`.
        """
        self.desired_are_known: NDArray[np.bool_] = np.zeros(n_envs, dtype=np.bool_)
        """Whether the ids are those of the goals themselves, shape ``(n_envs,)``."""
        self.state_ids: NDArray[np.int64] = np.full(n_envs, UNKNOWN, dtype=np.int64)
        """The state that each environment shows now, shape ``(n_envs,)``."""
        self.steps: NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        """Steps of each goal episode so far, shape ``(n_envs,)``."""
        self.world_steps: NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        """Steps since each environment was reset, shape ``(n_envs,)``."""
        self.env_sets_goals = False
        """Whether the environments set the goals. A goal wrapper says so."""
        self.n_moves = 0
        """Steps and starts so far, by which a learner sees whether it missed some."""
        # Whether there are goals in pursuit.
        self._has_begun = False
        self._warned_of_unknown_goal = False

    def make_selector(self) -> GoalSelector:
        """
        Return a new selector of ``selector_class``, made with ``selector_kwargs``.

        :raises TypeError: if ``selector_class`` is not a subclass of GoalSelector, or does not take
            these arguments
        """
        kind = self.selector_class
        if not (isinstance(kind, type) and issubclass(kind, GoalSelector)):
            raise TypeError(f"selector_class must be a subclass of GoalSelector, got {kind!r}")
        try:
            return kind(**copy.deepcopy(self.selector_kwargs))
        except TypeError as error:
            raise TypeError(f"selector_kwargs: {error}") from error

    @property
    def goal_buffer(self) -> GoalBuffer:
        """
        The known goals. Setting another goal buffer, for the same observation space, makes a new
        selector and forgets the starts.
        """
        return self._goal_buffer

    @goal_buffer.setter
    def goal_buffer(self, goal_buffer: GoalBuffer) -> None:
        """
        Use another goal buffer from now on.

        :param goal_buffer: the known goals, for the same observation space
        """
        if goal_buffer is not self._goal_buffer:
            self._goal_buffer = goal_buffer
            # The selector that there was may be another model's, whose goals have not changed.
            self.selector = self.make_selector()
            self.forget_ids()
        self._find_desired_ids()

    def forget_ids(self) -> None:
        """
        Forget what refers to single goals and states, because the goal buffer has others now: what
        the selector has learned, the starts, and the states that environments show. The goals in
        pursuit stay, and their ids are found anew.
        """
        self.selector.forget()
        self.starts = Starts()
        self.state_ids = np.full(self.n_envs, UNKNOWN, dtype=np.int64)
        self._find_desired_ids()

    def _find_desired_ids(self) -> None:
        """Find the ids of the goals in pursuit."""
        # Before the first episodes they are zeros, which a function of the user's may not take.
        if self._has_begun:
            self.desired_ids = self._goal_buffer.ids(self.desired_goals)
            self.desired_are_known = self.desired_ids != UNKNOWN

    def seed(self, seed: int | None) -> None:
        """
        Seed the choice of goals.

        :param seed: None for another choice in every run
        """
        self.rng = generator(seed, Stream.GOALS)

    def look_up(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Find states and goals. In training, observations that were not met before become goals.

        :param observations: what n environments show, shape ``(n, *observation_space.shape)``
        :return: the ids of their states and of their goals, both of shape ``(n,)``
        :raises EnvironmentFault: if a number is out of the range of its space, which is a
            ValueError
        """
        if not self.training:
            return self.goal_buffer.look_up(observations)
        try:
            return self.goal_buffer.observe(observations)
        except OutsideSpaceError as error:
            what = str(error).partition(", ")[2]
            space = self.goal_buffer.observation_space
            raise errors.EnvironmentFault(
                f"an observation outside of its space, {space}: {what}", id(self), error.row
            ) from error

    def take_goal(self, options: dict[str, Any]) -> NDArray[Any] | None:
        """
        Take ``"goal"`` out of the options of a reset.

        :param options: of a reset, from which the entry is removed
        :return: the goal, or None if there is none
        :raises ValueError: if it is no goal of the space
        """
        goal = options.pop("goal", None)
        if goal is None:
            return None
        space = self.goal_buffer.goal_space
        goal = converted(as_packed(goal, space), space)
        return self.goal_buffer.check_goals(goal, "options['goal']", axes=0)

    def warn_of_unknown(self, goal: NDArray[Any]) -> None:
        """
        Warn once that a goal set from outside was never met, unless it is held out or nothing is
        known at all.

        :param goal: shape ``goal_space.shape``
        """
        if self._warned_of_unknown_goal or len(self.goal_buffer) == 0:
            return
        if self.goal_buffer.describe_unknown(goal[None]) is None:
            return
        self._warned_of_unknown_goal = True
        warnings.warn(
            f"the goal that was set is not known, it is none of {len(self.goal_buffer)} that were "
            "met: a model cannot be expected to reach it"
            f"{self.goal_buffer.describe_nearest(goal)}",
            stacklevel=4,
        )

    def reset(
        self,
        observations: NDArray[Any],
        goals: Sequence[NDArray[Any] | None],
        move: Callable[[], NDArray[Any]],
        env_sets_goals: bool = False,
    ) -> NDArray[Any]:
        """
        Begin an episode in every environment. While all that was met is held out, random steps look
        for a first goal (line 2 of Algorithm 1).

        :param observations: what the environments show after their resets, shape
            ``(n_envs, *observation_space.shape)``
        :param goals: the goal of each episode, None to choose one
        :param move: makes a random step in every environment and returns their observations
        :param env_sets_goals: whether the environments have set these goals. If not, it warns of
            unknown ones
        :return: what the environments show now
        :raises ValueError: if no goal is found
        """
        n_known = len(self.goal_buffer)
        if not self._has_begun:
            self._knew_none_at_first = n_known == 0
        state_ids, goal_ids = self.look_up(observations)
        n_moves = 0
        while self.training and len(self.goal_buffer) == 0 and any(goal is None for goal in goals):
            if n_moves == _MOST_RANDOM_STEPS:
                raise ValueError(
                    f"the goal buffer is still empty after {n_moves} random steps: all they met is "
                    "held out"
                )
            observations = move()
            state_ids, goal_ids = self.look_up(observations)
            n_moves += 1
        self.state_ids = state_ids
        self.achieved_goals = self.goal_buffer.achieved(observations, goal_ids)
        for row, goal in enumerate(goals):
            self.start(np.array([row]), goal_ids[row : row + 1], goal)
            if goal is None or env_sets_goals:
                continue
            if n_known and self.desired_ids[row] == UNKNOWN:
                self.warn_of_unknown(goal)
        return observations

    def start(
        self,
        rows: NDArray[np.integer[Any]],
        current_ids: NDArray[np.int64],
        goal: NDArray[Any] | None = None,
        world_was_reset: NDArray[np.bool_] | bool = True,
    ) -> None:
        """
        Begin an episode in some environments.

        :param rows: which environments, shape ``(n,)``
        :param current_ids: the goals that they show now, shape ``(n,)``
        :param goal: their goal, which may be unknown or held out, shape ``goal_space.shape``. None
            to choose goals
        :param world_was_reset: whether the environments were reset, a bool or of shape ``(n,)``
        :raises ValueError: if the goal does not fit the space, or none is known. Then nothing has
            changed
        """
        is_known = True
        if goal is not None:
            one = self.goal_buffer.check_shape(goal, "goal", axes=0)[None]
            ids = self.goal_buffer.ids(one)
            is_known = bool(ids[0] != UNKNOWN)
            if not is_known:
                ids = self.goal_buffer.stand_ins(one)
        elif len(self.goal_buffer):
            ids = self._selected(current_ids)
            goal = self.goal_buffer.sample_shown(ids, self.rng)
            self._warn_of_only_goal(rows, ids, current_ids)
            self.began_without_goals = self._knew_none_at_first
        else:
            raise ValueError(
                "the goal buffer is empty: no observation that may be a goal has been met yet"
            )
        self.desired_goals[rows] = goal
        self.desired_ids[rows] = ids
        self.desired_are_known[rows] = is_known
        self._has_begun = True
        self.steps[rows] = 0
        was_reset = np.broadcast_to(world_was_reset, len(rows))
        self.starts.observe(self._numbers_of_starts(rows[was_reset], current_ids[was_reset]))
        self.world_steps[rows[was_reset]] = 0
        self.n_moves += 1

    def _warn_of_only_goal(
        self,
        rows: NDArray[np.integer[Any]],
        ids: NDArray[np.int64],
        current_ids: NDArray[np.int64],
    ) -> None:
        """
        Warn once if many goal episodes in a row begin at the only goal that is known.

        :param rows: the environments in which an episode begins, shape ``(n,)``
        :param ids: its goals, shape ``(n,)``
        :param current_ids: the goals that the environments show now, shape ``(n,)``
        """
        if not self.training or len(self.goal_buffer) > 1 or (ids != current_ids).any():
            self._n_begun_at_goal = 0
            return
        # Resets alone are no episodes.
        self._n_begun_at_goal += int(np.count_nonzero(self.steps[rows]))
        is_odd = self._n_begun_at_goal >= _EPISODES_AT_GOAL * self.n_envs
        if is_odd and not self.has_learned and not self._warned_of_only_goal:
            self._warned_of_only_goal = True
            warnings.warn(
                f"{self._n_begun_at_goal} goal episodes in a row began at their goal, because the "
                "goal wrapper knows no other one. If this is an evaluation, its scores mean "
                "nothing: give the wrapper the goals of training, "
                "GoalBufferWrapper(env, goal_buffer, training=False)",
                stacklevel=6,
            )

    def _selected(self, current_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the goals that the selector chooses, after a check."""
        chosen = np.asarray(self.selector.select(self.goal_buffer, current_ids, self.rng))
        n_known = len(self.goal_buffer)
        fits = chosen.shape == current_ids.shape and chosen.dtype.kind in "iu"
        # The ids of goals that are not remembered are hashes.
        if fits and len(chosen) > 0 and self.goal_buffer.remembers_goals:
            fits = chosen.min() >= 0 and chosen.max() < n_known
        if not fits:
            raise ValueError(
                f"select() of {type(self.selector).__name__} must return {len(current_ids)} whole "
                f"numbers in [0, {n_known}), ids of known goals, got {chosen!r}"
            )
        return chosen.astype(np.int64, copy=False)

    def _numbers_of_starts(
        self, rows: NDArray[np.integer[Any]], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """
        Return numbers that are equal for equal starts.

        :param rows: which environments have begun anew, shape ``(n,)``
        :param goal_ids: the goals that they show, shape ``(n,)``
        :return: the ids of these goals, and numbers below -1 for starts that are no goals, such as
            those that are held out, shape ``(n,)``. With a ``goal_list``, all numbers are of states
        """
        numbers = goal_ids.copy()
        if not self.goal_buffer.takes_all_goals:
            numbers[:] = UNKNOWN
        for place in np.flatnonzero(numbers == UNKNOWN).tolist():
            row = rows[place]
            if self.state_ids[row] != UNKNOWN:
                numbers[place] = -2 - 2 * self.state_ids[row]
                continue
            achieved = np.ascontiguousarray(self.achieved_goals[row]).tobytes()
            digest = hashlib.blake2b(achieved, digest_size=7).digest()
            numbers[place] = -3 - 2 * int.from_bytes(digest, "little")
        return numbers

    def go_on(
        self,
        observations: NDArray[Any],
        goal_ids: NDArray[np.int64],
        goal: NDArray[Any] | None = None,
    ) -> None:
        """
        Begin the next episode in every environment where the last one ended.

        :param observations: what the environments show, shape
            ``(n_envs, *observation_space.shape)``
        :param goal_ids: the goals that they showed when the last episode ended, shape ``(n_envs,)``
        :param goal: the goal that the environment has set, shape ``goal_space.shape``. None to
            choose goals
        """
        if (self.state_ids == UNKNOWN).any():
            # Another goal buffer may have been set since.
            self.state_ids, goal_ids = self.goal_buffer.look_up(observations)
        self.achieved_goals = self.goal_buffer.achieved(observations, goal_ids)
        self.start(np.arange(self.n_envs), goal_ids, goal, world_was_reset=False)

    def restart(
        self,
        rows: NDArray[np.integer[Any]],
        observations: NDArray[Any],
        goal_ids: NDArray[np.int64],
        world_was_reset: NDArray[np.bool_],
        goals: NDArray[Any] | None = None,
    ) -> None:
        """
        Begin the next episode in environments whose episode has ended.

        :param rows: which environments, shape ``(n,)``
        :param observations: what all environments show now, shape
            ``(n_envs, *observation_space.shape)``
        :param goal_ids: the goals that these environments showed at the end, shape ``(n,)``
        :param world_was_reset: which of all environments were reset, shape ``(n_envs,)``
        :param goals: the goals that all environments have set, shape
            ``(n_envs, *goal_space.shape)``. None to choose goals
        """
        was_reset = world_was_reset[rows]
        current_ids = goal_ids.copy()
        if was_reset.any():
            anew = rows[was_reset]
            self.state_ids[anew], current_ids[was_reset] = self.look_up(observations[anew])
            self._achieve_anew(observations, anew, current_ids[was_reset])
        if goals is None:
            self.start(rows, current_ids, world_was_reset=was_reset)
            return
        for place, row in enumerate(rows):
            one = slice(place, place + 1)
            self.start(rows[one], current_ids[one], goals[row], was_reset[one])

    def _achieve_anew(
        self,
        observations: NDArray[Any],
        rows: NDArray[np.integer[Any]],
        goal_ids: NDArray[np.int64],
    ) -> None:
        """Note what environments that were reset achieve, which show these known goals."""
        if self.goal_buffer.goals_are_observations:
            self.achieved_goals = observations
            return
        achieved = self.achieved_goals.copy()
        achieved[rows] = self.goal_buffer.achieved(observations[rows], goal_ids)
        self.achieved_goals = achieved

    def step(
        self,
        observations: NDArray[Any],
        env_rewards: Any,
        env_terminated: NDArray[np.bool_],
        env_truncated: NDArray[np.bool_],
        infos: Sequence[dict[str, Any]],
    ) -> GoalStep:
        """
        Take in one step of every environment. What it met becomes a goal, terminal observations
        too. The infos are told of it.

        :param observations: where the step led, shape ``(n_envs, *observation_space.shape)``
        :param env_rewards: the environments' rewards, shape ``(n_envs,)``. None counts as 0
        :param env_terminated: whether each environment terminated, shape ``(n_envs,)``
        :param env_truncated: whether each environment was truncated, shape ``(n_envs,)``
        :param infos: a dictionary of each environment, to which keys are added
        :return: what the step is to the goal episodes
        :raises EnvironmentFault: if a reward is not one finite number, or an observation is out of
            range, which is a ValueError
        """
        env_rewards = errors.own_rewards(env_rewards, self.n_envs, self)
        errors.check_finite(env_rewards, "a reward", self)
        self.steps += 1
        self.world_steps += 1
        self.n_moves += 1
        previous_state_ids = self.state_ids
        self.state_ids, achieved_ids = self.look_up(observations)
        achieved = self.goal_buffer.achieved(observations, achieved_ids)
        self.achieved_goals = achieved
        reached = self.goal_buffer.is_reached(
            achieved, self.desired_goals, achieved_ids, self.desired_ids
        )
        terminated = reached | env_terminated
        truncated = env_truncated
        if self.max_episode_steps is not None:
            truncated = truncated | (self.steps >= self.max_episode_steps)
        columns = (
            env_rewards,
            env_terminated,
            env_truncated,
            reached,
            self.steps,
            achieved_ids,
            self.desired_ids,
            self.desired_are_known,
            previous_state_ids,
            self.state_ids,
        )
        # With thousands of environments this loop is most of a step.
        for info, row in zip(
            infos, zip(*(column.tolist() for column in columns), strict=True), strict=True
        ):
            (
                info["env_reward"],
                info["env_terminated"],
                info["env_truncated"],
                info["is_success"],
                info["goal_steps"],
                info["achieved_goal_id"],
                info["desired_goal_id"],
                info["desired_goal_is_known"],
                info["state_id"],
                info["next_state_id"],
            ) = row
        env_ended = env_terminated | env_truncated
        return GoalStep(
            rewards=np.where(reached, self.goal_reward, self.step_reward),
            terminated=terminated,
            truncated=truncated,
            achieved=achieved,
            resets=self._worlds_to_reset((terminated | truncated) & ~env_ended),
        )

    def _worlds_to_reset(self, only_goal_ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which environments are to be reset, of those in which a goal episode ended."""
        resets = only_goal_ended & bool(self.reset_worlds)
        # An evaluation begins anew, because the next goal may be impossible where the last one led.
        spares_resets = self.reset_worlds == "auto" and self.training
        if spares_resets and self.max_episode_steps is not None and resets.any():
            goals = self.goal_buffer
            n_known = len(goals) if goals.takes_all_goals else len(goals.states)
            if not self.starts.are_broad(n_known):
                resets &= self.world_steps >= _EPISODES_TO_RESET * self.max_episode_steps
        return resets

    def own(self, observation: Any, what: str, row: int = 0) -> NDArray[Any]:
        """
        Return an observation as an array of the shape and dtype of its space.

        :param observation: what an environment showed
        :param what: what it is, for the message
        :param row: which environment showed it
        :raises EnvironmentFault: if its shape or kind of dtype are others, or it is not finite,
            which is a ValueError
        """
        return errors.own_observation(
            observation,
            self.goal_buffer.observation_shape,
            self.goal_buffer.observation_dtype,
            what,
            self,
            row,
        )

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any
    ) -> Any:
        """
        Return the reward of a step that leads to ``achieved_goal``, as GoalEnv has it.

        :param achieved_goal: shape ``(*batch, *goal_space.shape)``. The channels of pictures may be
            first, as SB3 puts them for its networks
        :param desired_goal: the same shape
        :param info: not used
        :return: a float for one goal, else float32 of shape ``batch``
        :raises ValueError: if the goals do not fit the space, or have different shapes
        """
        achieved = self._as_goals(achieved_goal, "achieved_goal")
        desired = self._as_goals(desired_goal, "desired_goal")
        if achieved.shape != desired.shape:
            raise ValueError(
                "achieved_goal and desired_goal must have one shape, got "
                f"{achieved.shape} and {desired.shape}"
            )
        reached = self.goal_buffer.is_reached(achieved, desired)
        reward = np.where(reached, self.goal_reward, self.step_reward)
        return float(reward) if reward.ndim == 0 else reward.astype(np.float32)

    def _as_goals(self, given: Any, name: str) -> NDArray[Any]:
        """Return goals. The channels of pictures are put where the goal space has them."""
        goals = self.goal_buffer
        array = np.asarray(given)
        if is_image_space(goals.goal_space):
            height, width, channels = goals.shape
            # SB3 moves the channels outside of the goal wrapper, where HerReplayBuffer has them.
            if array.shape[-3:] == (channels, height, width) != goals.shape:
                array = np.moveaxis(array, -3, -1)
        return goals.check_shape(array, name, axes=None)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return a copy of the goal episodes, without the goal buffer."""
        names = (*_ARRAYS_OF_EPISODES, "desired_are_known")
        return {
            "settings": self._settings(),
            "arrays": {name: getattr(self, name).copy() for name in names},
            "starts": self.starts.get_checkpoint_state(),
            "rng": copy.deepcopy(self.rng),
            "selector": self.selector.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on with goal episodes. The goal buffer is restored by itself.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of goal episodes with other settings
        """
        check_same("goal episodes", state["settings"], self._settings())
        for name in _ARRAYS_OF_EPISODES:
            setattr(self, name, state["arrays"][name].copy())
        # Checkpoints of earlier versions do not say it, and keep no goals that have no id.
        are_known = state["arrays"].get("desired_are_known")
        if are_known is None:
            are_known = self.desired_ids != UNKNOWN
        self.desired_are_known = are_known.copy()
        self._has_begun = True
        self.rng = copy.deepcopy(state["rng"])
        self.starts.set_checkpoint_state(state["starts"])
        self.selector.set_checkpoint_state(state["selector"])

    def _settings(self) -> dict[str, Any]:
        """Return what must be the same where goal episodes go on."""
        names = ("n_envs", "max_episode_steps", "goal_reward", "step_reward", "reset_worlds")
        return {
            **{name: getattr(self, name) for name in names},
            "shape": self.goal_buffer.shape,
            "dtype": self.goal_buffer.dtype.str,
            "selector": self.selector_class.__qualname__,
        }


_ARRAYS_OF_EPISODES = ("desired_goals", "desired_ids", "state_ids", "steps", "world_steps")
