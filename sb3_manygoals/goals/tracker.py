"""Goal-pursuing episodes of several environments at once: the core of both goal wrappers."""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals import errors
from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.goals.buffer import GoalBuffer, OutsideSpaceError, identical
from sb3_manygoals.goals.selection import GoalSelector, UniformSelector
from sb3_manygoals.goals.table import UNKNOWN
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.validation import check_count, check_rewards

ResetWorlds = bool | Literal["auto"]

_BROAD = 0.1  # starts are broad if they are at least this share of the known observations, all equally likely,
_NOT_ONE = 1.5  # and more than this: resets to a single start would keep an agent in a corridor from going on
_RETURN_AFTER = (
    20  # goal episodes of full length after which a world is reset although its starts are narrow
)
_MAX_WANDERING = 1_000  # random steps after which a world is given up that shows no observation that may be a goal


class Starts:
    """Counts first observations, to tell broad starts from a few, to which resets only take an agent back."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.n, self.equal_pairs = 0, 0

    def observe(self, ids: NDArray[np.int64]) -> None:
        """Count starts. Those with ``UNKNOWN`` count as all different."""
        self.n += len(ids)
        for number in ids[ids != UNKNOWN].tolist():
            before = self.counts.get(number, 0)
            self.equal_pairs += before
            self.counts[number] = before + 1

    def are_broad(self, n_known: int) -> bool:
        """Whether there are at least a tenth as many starts as known observations, and more than one."""
        # of starts drawn evenly from m, one pair in m is equal
        return self.n * (self.n - 1) / 2 >= max(_BROAD * n_known, _NOT_ONE) * self.equal_pairs


class GoalTracker:
    """
    The core of both goal wrappers: the goal of each of ``n_envs`` environments, and the rewards and ends of its episode, as in
    Algorithm 1 of Veeriah et al. 2018. Arguments are as of :class:`~sb3_manygoals.GoalBufferWrapper`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        n_envs: int,
        goal_buffer: GoalBuffer | None = None,
        selector: GoalSelector | None = None,
        max_episode_steps: int = 50,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        reset_worlds: ResetWorlds = "auto",
        training: bool = True,
    ) -> None:
        if reset_worlds not in (True, False, "auto"):
            raise ValueError(f'reset_worlds must be True, False or "auto", got {reset_worlds!r}')
        self.goal_reward, self.step_reward = check_rewards(goal_reward, step_reward)
        for name, value, kind in (
            ("goal_buffer", goal_buffer, GoalBuffer),
            ("selector", selector, GoalSelector),
        ):
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__} or None, got {value!r}")
        self.goal_buffer = GoalBuffer(observation_space) if goal_buffer is None else goal_buffer
        known = self.goal_buffer.observation_space
        if known != observation_space:
            raise ValueError(
                f"goal_buffer is for observations of {known}, the environment has {observation_space}"
            )
        self.n_envs, self.reset_worlds, self.training = n_envs, reset_worlds, training
        self.selector = UniformSelector() if selector is None else selector
        self.max_episode_steps = check_count("max_episode_steps", max_episode_steps)
        self.starts = Starts()
        self.rng = np.random.default_rng()
        self.desired_goals: NDArray[Any] = np.zeros(
            (n_envs, *self.goal_buffer.shape), dtype=self.goal_buffer.dtype
        )
        self.desired_ids: NDArray[np.int64] = np.full(n_envs, UNKNOWN, dtype=np.int64)
        self.steps: NDArray[np.int64] = np.zeros(n_envs, dtype=np.int64)
        self.world_steps: NDArray[np.int64] = np.zeros(
            n_envs, dtype=np.int64
        )  # since the world was reset
        self._warned = False  # of a goal that is not known
        self.n_moves = 0  # steps and starts so far, for a learner to see whether it missed some

    def seed(self, seed: int | None) -> None:
        self.rng = generator(seed, Stream.GOALS)

    def adopt(self, goal_buffer: GoalBuffer) -> None:
        """Use this goal buffer, for the same observation space, from now on."""
        if goal_buffer is not self.goal_buffer:
            self.selector.forget()
            self.starts = Starts()
        self.goal_buffer = goal_buffer
        self.desired_ids = goal_buffer.ids(self.desired_goals)

    def ids_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        The goals' ids, shape ``(n,)``; in training, what was not met before becomes a goal.

        An EnvironmentFault, a ValueError, if a number is out of the range of its space.
        """
        if not self.training:
            return self.goal_buffer.ids(observations)
        try:
            return self.goal_buffer.add(observations)
        except OutsideSpaceError as error:
            what = str(error).partition(", ")[2]
            space = self.goal_buffer.observation_space
            raise errors.EnvironmentFault(
                f"an observation outside of its space, {space}: {what}", id(self), error.row
            ) from error

    def take_goal(self, options: dict[str, Any]) -> NDArray[Any] | None:
        """
        Take ``"goal"`` out of the options of a reset. A ValueError if it is no observation of the
        space.
        """
        goal = options.pop("goal", None)
        if goal is None:
            return None
        return self.goal_buffer.check_goals(goal, "options['goal']", axes=0)

    def warn_of_unknown(self, goal: NDArray[Any]) -> None:
        """
        Say once that a goal set from outside was never met, unless it is held out or nothing is
        known at all.
        """
        if (
            self._warned
            or len(self.goal_buffer) == 0
            or self.goal_buffer.is_held_out(goal[None])[0]
        ):
            return
        self._warned = True
        n_known = len(self.goal_buffer)
        what = f"the goal that was set is not known, it is none of {n_known} that were met"
        near = self.goal_buffer.describe_nearest(goal)
        warnings.warn(f"{what}: a model cannot be expected to reach it{near}", stacklevel=4)

    def reset(
        self,
        observations: NDArray[Any],
        goals: Sequence[NDArray[Any] | None],
        move: Callable[[], NDArray[Any]],
    ) -> NDArray[Any]:
        """
        Begin an episode in every environment. ``move`` makes a random step everywhere and returns the observations, while all
        that was met is held out (Algorithm 1, line 2). Returns the current observations; a ValueError if no goal is found.
        """
        n_known = len(self.goal_buffer)
        ids = self.ids_of(observations)
        n_moves = 0
        while self.training and len(self.goal_buffer) == 0 and any(goal is None for goal in goals):
            if n_moves == _MAX_WANDERING:
                raise ValueError(
                    f"the goal buffer is still empty after {n_moves} random steps: all they met is held out"
                )
            observations = move()
            ids = self.ids_of(observations)
            n_moves += 1
        for row, goal in enumerate(goals):
            self.start(np.array([row]), ids[row : row + 1], goal)
            if goal is not None and n_known and self.desired_ids[row] == UNKNOWN:
                self.warn_of_unknown(goal)
        return observations

    def start(
        self,
        rows: NDArray[np.integer[Any]],
        current_ids: NDArray[np.int64],
        goal: NDArray[Any] | None = None,
        anew: NDArray[np.bool_] | bool = True,
    ) -> None:
        """
        Begin an episode in some environments, which show ``current_ids``; ``anew`` says whether their worlds were reset. The
        goal may be unknown or held out; a ValueError, and nothing has changed, if it is no observation, or none is known.
        """
        if goal is not None:
            ids = self.goal_buffer.ids(self.goal_buffer.check(goal, "goal", axes=0)[None])
        elif len(self.goal_buffer):
            ids = self.selector.select(self.goal_buffer, current_ids, self.rng)
            goal = self.goal_buffer[ids]
        else:
            raise ValueError(
                "the goal buffer is empty: no observation that may be a goal has been met yet"
            )
        self.desired_goals[rows], self.desired_ids[rows], self.steps[rows] = goal, ids, 0
        begun = np.broadcast_to(anew, len(rows))
        self.starts.observe(current_ids[begun])
        self.world_steps[rows[begun]] = 0
        self.n_moves += 1

    def step(
        self,
        observations: NDArray[Any],
        env_rewards: Any,
        env_terminated: NDArray[np.bool_],
        env_truncated: NDArray[np.bool_],
        infos: Sequence[dict[str, Any]],
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """
        Take in one step of every environment, with where it led, terminal observations included, which become known goals.
        Ids and outcome are written into ``infos``. Returns rewards and ends (terminated, truncated) of the goal episodes, and
        which worlds are to be reset though only their goal episodes have ended, each of shape ``(n_envs,)``. A ValueError if
        an environment's reward is not one number, or not finite; None counts as 0.
        """
        env_rewards = errors.own_rewards(env_rewards, self.n_envs, self)
        errors.check_finite(env_rewards, "a reward", self)
        self.steps += 1
        self.world_steps += 1
        self.n_moves += 1
        ids = self.ids_of(observations)
        if self.training:
            self.goal_buffer.record(ids, env_rewards, env_terminated)
        reached = ids == self.desired_ids
        # held-out observations have no id, nor do goals set by hand before they were met
        nameless = (ids == UNKNOWN) | (self.desired_ids == UNKNOWN)
        if nameless.any():
            desired = self.desired_goals[nameless]
            reached[nameless] = identical(
                observations[nameless], desired, len(self.goal_buffer.shape)
            )
        terminated = reached | env_terminated
        truncated = (self.steps >= self.max_episode_steps) | env_truncated
        columns = (
            env_rewards,
            env_terminated,
            env_truncated,
            reached,
            self.steps,
            ids,
            self.desired_ids,
        )
        lists = (column.tolist() for column in columns)
        # one by one: with thousands of environments this is most of a step, and update() takes twice as long
        for info, reward, over, cut, success, n_steps, achieved, desired in zip(
            infos, *lists, strict=True
        ):
            info["env_reward"], info["env_terminated"], info["env_truncated"] = reward, over, cut
            info["is_success"], info["goal_steps"] = success, n_steps
            info["achieved_goal_id"], info["desired_goal_id"] = achieved, desired
        resets = (
            (terminated | truncated) & ~(env_terminated | env_truncated) & bool(self.reset_worlds)
        )
        if (
            self.reset_worlds == "auto"
            and resets.any()
            and not self.starts.are_broad(len(self.goal_buffer))
        ):
            resets &= self.world_steps >= _RETURN_AFTER * self.max_episode_steps
        return np.where(reached, self.goal_reward, self.step_reward), terminated, truncated, resets

    def own(self, observation: Any, what: str, row: int = 0) -> NDArray[Any]:
        return errors.own_observation(
            observation, self.goal_buffer.shape, self.goal_buffer.dtype, what, self, row
        )

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: Any
    ) -> Any:
        achieved = self.goal_buffer.check(achieved_goal, "achieved_goal", axes=None)
        desired = self.goal_buffer.check(desired_goal, "desired_goal", axes=None)
        if achieved.shape != desired.shape:
            raise ValueError(
                f"achieved_goal and desired_goal must have one shape, got {achieved.shape} and {desired.shape}"
            )
        reward = np.where(
            identical(achieved, desired, len(self.goal_buffer.shape)),
            self.goal_reward,
            self.step_reward,
        )
        return float(reward) if reward.ndim == 0 else reward.astype(np.float32)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a copy of everything but the goal buffer"""
        return {
            "settings": self._settings(),
            "arrays": {name: getattr(self, name).copy() for name in _ARRAYS},
            "starts": copy.deepcopy(vars(self.starts)),
            "rng": copy.deepcopy(self.rng),
            "selector": self.selector.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Go on with these episodes. A CheckpointError if they have other settings. The goal buffer is restored by itself."""
        check_same("goal episodes", state["settings"], self._settings())
        for name in _ARRAYS:
            setattr(self, name, state["arrays"][name].copy())
        self.rng = copy.deepcopy(state["rng"])
        vars(self.starts).update(copy.deepcopy(state["starts"]))
        self.selector.set_checkpoint_state(state["selector"])

    def _settings(self) -> dict[str, Any]:
        names = ("n_envs", "max_episode_steps", "goal_reward", "step_reward", "reset_worlds")
        goals = {"shape": self.goal_buffer.shape, "dtype": self.goal_buffer.dtype.str}
        return {
            **{name: getattr(self, name) for name in names},
            **goals,
            "selector": type(self.selector).__qualname__,
        }


_ARRAYS = ("desired_goals", "desired_ids", "steps", "world_steps")
