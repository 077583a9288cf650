"""The part of ManyGoalsDQN that is about environments, goals and files: SB3's DQN for goal wrappers."""

from __future__ import annotations

import copy
import io
import os
import pathlib
import pickle
import tempfile
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, TrainFreq
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn import DQN

from sb3_manygoals.action_masks import next_action_masks, read_action_masks
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals import GoalBuffer, GoalSelector
from sb3_manygoals.goals.selection import taken
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapping import (
    GoalAlgorithm,
    goal_trackers,
    is_goal_wrapped,
    wrap_goal_env,
)
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.progress import PlanProgressBarCallback
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals, replay_goals
from sb3_manygoals.many_goals_dqn.targets import Learner, PlannedTargets, Targets, TDTargets
from sb3_manygoals.many_goals_dqn.task_policy import Reward, TaskPolicy, make_task_policy
from sb3_manygoals.memory_limits import check_memory, share_of_memory
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.vec_env import current_reset_infos

SelfGoalDQN = TypeVar("SelfGoalDQN", bound="GoalDQN")

_NOT_SAVED = [
    "batch_norm_stats",
    "batch_norm_stats_target",
    "goal_buffer",
    "goal_updates",
    "targets",
]
_NOT_SAVED += ["_loss", "_selectors", "_rules", "_trackers", "_reviewed"]
_NOT_SAVED += ["_log_interval", "_n_logged", "_episodes", "_wandering"]
_IN_CHECKPOINTS = (
    "goal_updates",
    "rng",
    "exploration_rate",
    "_loss",
    "_last_action_masks",
    "_exploring",
    "_wandering",
    "_episodes",
    "_n_logged",
    "_reviewed",
)
_SHARE_OF_MEMORY = 0.9  # of what is available, for whole observations beside all else
_FILES = {
    "model": "model.zip",
    "replay_buffer": "replay_buffer.pkl",
    "goal_buffer": "goal_buffer.npz",
}
# Shares of observations that were met before: below the first, planned targets are given up; from the second on, learning
# begins with them; from the third on, bootstrapped ones are given up. In between they stay, so that they do not alternate.
_GIVE_UP, _BEGIN, _GO_OVER = 0.05, 0.1, 0.2


class GoalDQN(GoalAlgorithm, DQN):
    """See :class:`ManyGoalsDQN`, which adds what is learned."""

    observation_space: spaces.Dict
    action_space: spaces.Discrete
    policy: ManyGoalsPolicy  # type: ignore[assignment]
    replay_buffer: ManyGoalsReplayBuffer
    q_net: UniversalQNetwork  # type: ignore[assignment]
    q_net_target: UniversalQNetwork  # type: ignore[assignment]
    target_class: type[Targets] | None
    target_kwargs: dict[str, Any] | None
    goal_buffer: GoalBuffer | None = None
    goal_wrapper_kwargs: dict[str, Any]
    goal_rules: dict[str, Any] | None = (
        None  # saved with the model, so that held-out observations stay held out
    )
    goals_in_replay: bool
    action_masks: bool
    goal_updates: NDArray[np.int64]
    """How often each goal was in an update, by id, shape (capacity of the goal buffer,); not of goals in the replay memory."""
    _last_action_masks: NDArray[np.bool_] | None = None  # of _last_obs
    _last_target_class: type[Targets] | None = None  # a loaded model goes on with it
    _selectors: Sequence[GoalSelector] = ()
    _rules: Sequence[GoalSelector] = ()  # one for each goal tracker
    _log_interval: int | None = None  # of this call of learn()
    _n_logged: int = 0  # updates at the last row of the log

    def _setup_model(self) -> None:
        replay_class, goals_in_replay = self.replay_buffer_class, self.goals_in_replay
        first, target_kwargs = self._first_target_class, self.target_kwargs or {}
        if not (isinstance(replay_class, type) and issubclass(replay_class, ManyGoalsReplayBuffer)):
            raise TypeError(
                f"replay_buffer_class must be a ManyGoalsReplayBuffer, got {replay_class!r}"
            )
        if not (isinstance(first, type) and issubclass(first, Targets)):
            raise TypeError(
                f"target_class must be TDTargets, PlannedTargets or another subclass of Targets, got {first!r}"
            )
        if self.target_class is None and target_kwargs:
            raise ValueError(
                f"target_kwargs {sorted(target_kwargs)} need a target_class: classes have different arguments"
            )
        if goals_in_replay and issubclass(first, PlannedTargets):
            raise ValueError(
                "goals_in_replay: goals are forgotten, so PlannedTargets cannot plan for them, use TDTargets"
            )
        if goals_in_replay and target_kwargs.get("goal_sampling") == "behavior":
            raise ValueError(
                'goals_in_replay needs goal_sampling "uniform" or "batch", got "behavior"'
            )
        planned = self.target_class is not None and issubclass(
            first, PlannedTargets
        )  # so nothing is sampled
        self.replay_buffer_kwargs = {
            "as_numbers": planned,
            **self.replay_buffer_kwargs,
            "action_masks": self.action_masks,
        }
        if self.env is not None:
            self._check_memory(self.env)
        self._reviewed = (
            0,
            0,
            0,
        )  # steps, observations and known ones among them, when targets were last chosen
        self._exploring = np.ones(
            self.n_envs, dtype=np.bool_
        )  # whose goal episodes explore, for targets that act
        self._wandering = np.ones(self.n_envs, dtype=np.bool_)  # whose ones had random steps
        # whether each of the last goal episodes was to explore, and whether it reached its goal
        self._episodes: deque[tuple[bool, bool]] = deque(maxlen=self._stats_window_size)
        super()._setup_model()
        if self.env is not None:
            self._adopt_goals(self.env)
            self._fit_memory(self.env)
            self.policy.shift_values(self.targets.initial_value)
            if (cost := (1.0 - self.gamma) * self.goal_reward - self.step_reward) > 0.0:
                self.policy.scale_distances(cost)

    @property
    def _first_target_class(self) -> type[Targets]:
        default = TDTargets if self.goals_in_replay else self._last_target_class or PlannedTargets
        return default if self.target_class is None else self.target_class

    def _make_targets(self, target_class: type[Targets]) -> None:
        self.targets: Targets = target_class(self._learner, **(self.target_kwargs or {}))
        self.policy.target_follows = not target_class.uses_target_network
        self._last_target_class = target_class

    @property
    def _learner(self) -> Learner:
        assert self.goal_buffer is not None
        return Learner(
            self.policy,
            self.replay_buffer,
            self.goal_buffer,
            self.gamma,
            self.goal_reward,
            self.step_reward,
            self.seed,
        )

    def _review_targets(self) -> None:
        """Choose targets, if the user did not, by the share of observations that recur; again when steps have doubled."""
        steps, n_before, recurred_before = self._reviewed
        if (
            self.target_class is not None
            or self.goals_in_replay
            or steps <= self.num_timesteps < 2 * steps
        ):
            return
        assert self.goal_buffer is not None
        n, recurred = self.goal_buffer.n_added, self.goal_buffer.n_recurred
        if n - n_before < max(self.learning_starts, 20):  # too few to tell, as after loading
            return
        self._reviewed = self.num_timesteps, n, recurred
        share = (recurred - recurred_before) / max(n - n_before, 1)
        planned = isinstance(self.targets, PlannedTargets)
        plan = share >= (_BEGIN if steps == 0 else _GIVE_UP if planned else _GO_OVER)
        if plan != planned:
            before = self.targets.initial_value
            if not plan:
                self.replay_buffer.forget_states()
            self._make_targets(PlannedTargets if plan else TDTargets)
            if self._n_updates == 0:
                self.policy.shift_values(self.targets.initial_value - before)
            self.policy.copy_to_target()  # plans do not update it
        if plan != planned or steps == 0:
            how = (
                "planned in the replay memory (PlannedTargets)"
                if plan
                else "bootstrapped by a target network (TDTargets)"
            )
            self.logger.info(f"{share:.0%} of the observations were met before: values are {how}")
            if not plan:
                what = f"only {share:.0%} of the observations were met before"
                warnings.warn(
                    f"{what}: goals that are never met again are not reached, see the guide",
                    stacklevel=2,
                )

    def _check_memory(self, env: VecEnv) -> None:
        """Refuse what will not fit once it is full. Whole observations are another matter, see ``_fit_memory``."""
        needed, _ = self._memory_to_come(env)
        advice = (
            f"choose a smaller buffer_size than {self.buffer_size}, a goal buffer of smaller "
            "capacity, or fewer max_plan_bytes"
        )
        check_memory("the replay memory and the goals", needed, advice)

    def _fit_memory(self, env: VecEnv) -> None:
        """
        Where whole observations are kept from the beginning, shrink the replay memory to what fits. Planned targets keep them
        only if the world turns out to have too many, and the memory shrinks then, if it must.
        """
        if isinstance(self.targets, PlannedTargets) and not self.replay_buffer.whole:
            return
        needed, of_observations = self._memory_to_come(env)
        room = (
            self.replay_buffer.buffer_size * self.n_envs - self.replay_buffer.size() * self.n_envs
        )
        left = share_of_memory(_SHARE_OF_MEMORY) - sum(needed.values())
        if of_observations > max(left, 0):
            fitting = room * max(left, 0) // of_observations
            self.replay_buffer.shrink(self.replay_buffer.size() * self.n_envs + fitting)

    def _memory_to_come(self, env: VecEnv) -> tuple[dict[str, int], int]:
        """
        :return: bytes that replay memory, goals and plan will take once they are full, besides what they have taken, by what
            they are for; and those for whole observations, of as many transitions as there is room for
        """
        assert self.replay_buffer_class is not None
        size = self.buffer_size
        room = max(size // self.n_envs, 1)
        if self.replay_buffer is not None:  # the filled part is taken already
            size = self.replay_buffer.buffer_size * self.n_envs
            room = self.replay_buffer.buffer_size - self.replay_buffer.size()
        needed = self.replay_buffer_class.memory_needed(  # type: ignore[attr-defined]
            size,
            self.observation_space,
            self.action_space,
            self.n_envs,
            **self.replay_buffer_kwargs,
        )
        rows = max(size // self.n_envs, 1)
        needed = {name: size // rows * room for name, size in needed.items()}
        whole = [name for name in needed if name.endswith(("observations", "frames"))]
        of_observations = sum(needed.pop(name) for name in whole)
        goal_buffer = self.goal_buffer
        if goal_buffer is None:
            goal_buffer = goal_trackers(env)[0].goal_buffer
        needed |= goal_buffer.memory_to_come
        if "max_plan_bytes" in (self.target_kwargs or {}):  # else it is what the machine has
            needed["the plan"] = self._plan_to_come(goal_buffer.capacity)
        return needed, of_observations

    def _plan_to_come(self, capacity: int) -> int:
        """Bytes that a plan for so many goals will take besides what it takes now."""
        assert self.target_kwargs is not None
        targets = getattr(self, "targets", None)
        taken = targets.plan.nbytes if isinstance(targets, PlannedTargets) else 0
        most = min(int(self.target_kwargs["max_plan_bytes"]), 5 * capacity**2)
        return max(most - taken, 0)

    def _adopt_goals(self, env: VecEnv) -> None:
        """Take over goal buffer and rewards from the goal wrappers of the environment."""
        trackers = goal_trackers(env)
        if self.goals_in_replay:
            self.goal_buffer = replay_goals(trackers, self.goal_buffer, self.replay_buffer)
        elif self.goal_buffer is None:
            self.goal_buffer = trackers[0].goal_buffer
        self.goal_rules = self.goal_buffer.rules
        if len(self.goal_updates) != self.goal_buffer.capacity:
            self.goal_updates = np.zeros(self.goal_buffer.capacity, dtype=np.int64)
        self._take_selectors(trackers)
        for tracker in trackers:
            tracker.adopt(self.goal_buffer)  # to which the ids in the replay memory refer
        self._n_moves = None
        self._trackers, self._selectors = (
            trackers,
            list({id(each.selector): each.selector for each in trackers}.values()),
        )
        self.goal_reward, self.step_reward = trackers[0].goal_reward, trackers[0].step_reward
        now = getattr(self, "targets", None)
        kind = self._first_target_class if now is None else type(now)
        if not issubclass(kind, PlannedTargets) and self.replay_buffer.states is not None:
            self.replay_buffer.forget_states()  # of a memory that was loaded
        if now is None or now.learner != self._learner:
            self._make_targets(kind)

    def _take_selectors(self, trackers: list[GoalTracker]) -> None:
        """
        Give trackers a copy that knows nothing of a selector in which another model has a part.
        """
        ours = {id(each): each for each in self._selectors}
        for tracker in trackers:
            given = tracker.selector
            if id(given) not in ours:
                ours[id(given)] = taken(given)
            tracker.selector = ours[id(given)]
        self._rules = [tracker.selector for tracker in trackers]

    @staticmethod
    def _pursue(env: GymEnv, settings: dict[str, Any], goals_in_replay: bool) -> GymEnv:
        """With a goal wrapper around it, if it has none."""
        if goals_in_replay and not is_goal_wrapped(env):
            settings = {**settings, "goal_buffer": ReplayGoals(env.observation_space)}
        return wrap_goal_env(env, settings)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        As SB3's, for an environment with goals or without. The goals known so far are kept.

        :raises ValueError: if it comes with another goal buffer that is not empty
        :raises MemoryError: if replay memory and goals, once full, do not fit into the memory that is available
        """
        known, rules = self.goal_buffer, self.goal_rules
        given = is_goal_wrapped(env) or "goal_buffer" in self.goal_wrapper_kwargs
        if not is_goal_wrapped(env):
            settings = copy.deepcopy(self.goal_wrapper_kwargs)
            if self._n_updates:
                settings |= {"goal_reward": self.goal_reward, "step_reward": self.step_reward}
            if known is not None:
                settings["goal_buffer"] = known
                if "selector" in settings and self._selectors:
                    settings["selector"] = self._selectors[0]
            env = self._pursue(env, settings, self.goals_in_replay)
        env = self._wrap_env(env)
        tracker = goal_trackers(env)[0]
        theirs, rewards = tracker.goal_buffer, (tracker.goal_reward, tracker.step_reward)
        if self._n_updates and rewards != (ours := (self.goal_reward, self.step_reward)):
            raise ValueError(
                f"env's goal wrapper must have the model's goal_reward and step_reward, {ours}, got {rewards}"
            )
        told = len(theirs) > 0 or theirs.has_held_out
        if known is None and rules is not None and told:
            theirs.check_held_out(rules["held_out"])
        if (
            known is None and rules is not None and not told and not self.goals_in_replay
        ):  # it was loaded
            self.goal_buffer = self._empty_goals(theirs.capacity if given else 0)
        if self.goal_buffer is not None and theirs is not self.goal_buffer and told:
            own = "env has a goal buffer of its own, with goals or held-out observations"
            advice = "give env's goal wrapper goal_buffer=model.goal_buffer"
            raise ValueError(f"{own}, but the model goes on with the one it has: {advice}")
        self._check_memory(env)
        super().set_env(env, force_reset)
        self._adopt_goals(env)
        self._fit_memory(env)

    def _empty_goals(self, capacity: int = 0) -> GoalBuffer:
        """A goal buffer as the model was saved with, of this capacity if it is larger."""
        space = self.observation_space["observation"]
        if self.goals_in_replay:
            return ReplayGoals(space)
        if self.goal_rules is None:
            return GoalBuffer(space)
        least = {"capacity": max(self.goal_rules["capacity"], capacity)}
        return GoalBuffer(space, **self.goal_rules | least)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        """As SB3's, with a progress bar that tells of plans."""
        if not progress_bar:
            return super()._init_callback(callback)
        given = callback if isinstance(callback, list) else [callback]
        callbacks = [
            one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given
        ]
        return super()._init_callback([*callbacks, PlanProgressBarCallback()])

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        before = self._last_obs
        if self.env is not None:  # another model may have been built in this environment
            for tracker, rule in zip(self._trackers, self._rules, strict=True):
                tracker.selector = rule
        successes = self.ep_success_buffer
        prepared = super()._setup_learn(*args, **kwargs)
        if self.ep_success_buffer is not successes:  # SB3 counts anew
            self._episodes.clear()
        rollout = cast("TrainFreq", self.train_freq).frequency * self.n_envs
        first = (
            self.learning_starts
            if self.lr_schedule(0.0)
            else self.learning_starts // rollout * rollout + rollout
        )
        if self._n_updates == 0 and self._total_timesteps <= first:
            what = f"learning_starts={self.learning_starts} random steps, in rollouts of {rollout}, come before an update"
            end = f"training ends after {self._total_timesteps}: nothing is learned"
            if isinstance(self.targets, PlannedTargets):
                end += " by the network. task_policy() plans in what was met"
            warnings.warn(f"{what}, and {end}", stacklevel=5)
        if self._n_updates and self.replay_buffer.size() == 0:
            warnings.warn(
                "the model was trained, its replay memory is empty: load_replay_buffer or it unlearns",
                stacklevel=5,
            )
        assert self.env is not None
        if self.action_masks and (self._last_obs is not before or self._last_action_masks is None):
            self._last_action_masks = read_action_masks(
                current_reset_infos(self.env), int(self.action_space.n)
            )
        return prepared

    def _go_on_from_what_is_shown(self) -> None:
        before = self._last_obs
        super()._go_on_from_what_is_shown()
        if self.action_masks and self._last_obs is not before:
            assert self.env is not None
            self._last_action_masks = read_action_masks(
                current_reset_infos(self.env), int(self.action_space.n)
            )

    def _store_transition(self, *args: Any) -> None:
        super()._store_transition(*args)
        *_, dones, infos = args
        self._note_transition()
        if dones.any():
            self._count_episodes(dones, infos)
            self._exploring[dones] = self.rng.random(int(dones.sum())) < self.exploration_rate
        if self.action_masks:
            assert self.env is not None
            self._last_action_masks = next_action_masks(
                self.env, int(self.action_space.n), infos, dones
            )

    def _count_episodes(self, dones: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        """Note of goal episodes that have ended whether they were to explore, and their success."""
        explored = self._exploring | self._wandering
        for row in np.flatnonzero(dones).tolist():
            self._episodes.append((bool(explored[row]), bool(infos[row]["is_success"])))
        self._wandering[dones] = False

    @property
    def _moves(self) -> int:
        self._require_env()
        return sum(tracker.n_moves for tracker in self._trackers)

    def save_goal_buffer(self, path: str | os.PathLike[str]) -> None:
        """:param path: of an ``.npz`` file for the known goals, which ``save`` leaves out, as it does the replay memory"""
        if self.goal_buffer is None:
            self._require_env()
        assert self.goal_buffer is not None
        self.goal_buffer.save(path)

    def load_goal_buffer(self, path: str | os.PathLike[str]) -> None:
        """
        Replace the goals by those written by :meth:`save_goal_buffer`; the capacity is the larger one. A TypeError if they are
        in the replay memory.
        """
        if self.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory: use load_replay_buffer"
            )
        least = 1 if self.goal_buffer is None else self.goal_buffer.capacity
        self.goal_buffer = GoalBuffer.load(path, self.observation_space["observation"], least)
        self.goal_rules = self.goal_buffer.rules
        self.goal_updates = np.zeros(self.goal_buffer.capacity, dtype=np.int64)
        self.replay_buffer.identify(self.goal_buffer)
        if self.env is not None:
            self._adopt_goals(self.env)

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        Replace the transitions by those written by ``save_replay_buffer``; their next observations become known goals.

        :param path: of the file, or an open one
        :param truncate_last_traj: not used, as transitions do not depend on others
        :raises ValueError: if something else is in the file, such as a replay memory of SB3's own, or the model that wrote it
            had another ``n_envs``, ``action_masks``, action space or observation space. Then nothing has changed
        """
        new = self._read_replay_buffer(path)
        found = {
            "n_envs": new.n_envs,
            "action_masks": new.next_action_masks is not None,
            "space": new.observation_space,
            "actions": new.action_space,
        }
        own = {
            "n_envs": self.n_envs,
            "action_masks": self.action_masks,
            "space": self.observation_space["observation"],
            "actions": self.action_space,
        }
        if found != own:
            raise ValueError(
                f"the replay memory was saved by a model with {found}, this one has {own}"
            )
        if self.env is not None and not isinstance(self.targets, PlannedTargets):
            new.forget_states()
        new.device = self.device
        self.replay_buffer = new
        if self.goal_buffer is None:
            self.goal_buffer = self._empty_goals()
        if isinstance(self.goal_buffer, ReplayGoals):
            self.goal_buffer.replay_buffer = new
        new.identify(self.goal_buffer)
        if self.env is not None:
            self._adopt_goals(self.env)

    def _read_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase
    ) -> ManyGoalsReplayBuffer:
        """What ``save_replay_buffer`` wrote. A ValueError if it is something else."""
        advice = "give one that save_replay_buffer of a ManyGoalsDQN wrote"
        file = open_path(path, "r", self.verbose, "pkl")
        try:
            found = pickle.load(file)
        except Exception as error:  # what is no pickle may raise anything
            raise ValueError(
                f"{path} is no file of a replay memory ({error!r}): {advice}"
            ) from error
        finally:
            if isinstance(path, (str, pathlib.Path)):
                file.close()
        if not isinstance(found, ManyGoalsReplayBuffer):
            kind = type(found)
            raise ValueError(
                f"{path} must have a ManyGoalsReplayBuffer, got {kind.__module__}.{kind.__qualname__}: {advice}"
            )
        return found

    def save_all(self, folder: str | os.PathLike[str]) -> None:
        """
        Save what a model needs to learn on: the model itself, its replay memory, and the goals with their rewards, unless
        these are in the replay memory. :meth:`load_all` reads them; so do ``load``, ``load_replay_buffer`` and
        ``load_goal_buffer``, one by one. A file that is already there is replaced once all new ones are whole.

        Environments are not saved: their episodes begin anew. To go on exactly where training was, use
        :class:`~sb3_manygoals.ExactCheckpointCallback`.

        :param folder: for ``model.zip``, ``replay_buffer.pkl`` and ``goal_buffer.npz``; it is made if there is none
        :raises ValueError: if there are no goals, as the model was loaded without an environment
        :raises OSError: if a file cannot be written
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
            staging = pathlib.Path(name)
            if not self.goals_in_replay:
                self.save_goal_buffer(staging / _FILES["goal_buffer"])
            self.save_replay_buffer(staging / _FILES["replay_buffer"])
            self.save(staging / _FILES["model"])
            for path in staging.iterdir():
                path.replace(folder / path.name)

    @classmethod
    def load_all(
        cls: type[SelfGoalDQN],
        folder: str | os.PathLike[str],
        env: GymEnv | None = None,
        **kwargs: Any,
    ) -> SelfGoalDQN:
        """
        Load what :meth:`save_all` saved. ``learn(steps, reset_num_timesteps=False)`` goes on.

        :param folder: with ``model.zip``, ``replay_buffer.pkl`` and ``goal_buffer.npz``
        :param env: to learn on in, as many environments as the model was saved with; None to plan and act only
        :param kwargs: further arguments of ``load``
        :return: the model, with its transitions and goals
        :raises FileNotFoundError: if a file is missing; it names all that are
        :raises ValueError: if a file is of something else, or ``env`` has another number of environments
        """
        paths = {part: pathlib.Path(folder, name) for part, name in _FILES.items()}
        missing = {part: path.name for part, path in paths.items() if not path.is_file()}
        model = None
        if missing.keys() <= {"goal_buffer"}:
            model = cls.load(paths["model"], env, **kwargs)
        if model is None or (missing and not model.goals_in_replay):
            raise FileNotFoundError(
                f"{folder} must have {', '.join(_FILES.values())}, as save_all writes them; "
                f"missing: {', '.join(missing.values())}"
            )
        if not model.goals_in_replay:
            model.load_goal_buffer(paths["goal_buffer"])
        model.load_replay_buffer(paths["replay_buffer"])
        return model

    def task_policy(
        self,
        reward: Reward | None = None,
        *,
        gamma: float | None = None,
        planned: bool | None = None,
    ) -> TaskPolicy:
        """
        A policy for a task, made of the network as it is now; observations are those of the environment without goals.

        It goes for the highest discounted reward, for tasks that end at their first reward. Planned, that is exact for the
        world as the replay memory shows it; the network goes for the best single goal, which with chance may fall short. An
        end without reward counts as a failure. A reward that ends nothing is gone for and stayed at, with a warning. If each
        step costs the same, that is accounted for; other negative rewards are refused.

        :param reward: None for the rewards that the environment gave while the model learned; else a function of a batch of
            observations, or an array, that gives a number of at least 0 for each of ``model.goal_buffer.observations``
        :param gamma: discount of the task, in (0, 1]; None: the model's, the only one for which what the network tells of
            distances is exact with chance
        :param planned: whether to plan in the replay memory, and to take the network's actions only where no way to a reward
            is known there. None: if that can be done: with PlannedTargets, but not in a model that was loaded without memory
        :return: an SB3 policy, independent of what the model learns from now on
        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if no known observation is rewarded, an argument is out of its range, or there is no plan
        """
        if self.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory, and are forgotten: their rewards are not known"
            )
        if self.goal_buffer is None:
            raise ValueError("no reward is known: the model has no goals. Call load_goal_buffer")
        net = self.q_net if self.policy.q_net_ema is None else self.policy.q_net_ema
        values = self.gamma, self.goal_reward, self.step_reward
        targets = getattr(self, "targets", None)  # there are none without an environment
        kind = self._first_target_class if targets is None else type(targets)
        sweeps = getattr(targets, "sweeps", (self.target_kwargs or {}).get("sweeps"))
        memory = None
        if planned is not False and issubclass(kind, PlannedTargets) and self.replay_buffer.n_tried:
            memory = self.replay_buffer, sweeps == 0
        if planned and memory is None:
            raise ValueError(
                "planned=True needs PlannedTargets and transitions in the replay memory, see load_replay_buffer"
            )
        return make_task_policy(
            net, self.goal_buffer, self.action_space, values, reward, gamma, memory
        )

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree of all but environments and global generators; arrays are its own, so write it at once"""
        self._require_env()
        assert self.goal_buffer is not None
        return {
            "algorithm": get_algorithm_state(self),
            "replay_buffer": self.replay_buffer.get_checkpoint_state(),
            "goal_buffer": self.goal_buffer.get_checkpoint_state(),
            "targets": {
                "class": type(self.targets).__name__,
                "state": self.targets.get_checkpoint_state(),
            },
            "attributes": {name: getattr(self, name) for name in _IN_CHECKPOINTS},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """A CheckpointError if the state is of a model that was built in another way; this one may then be partly changed."""
        self._require_env()
        assert self.goal_buffer is not None
        set_algorithm_state(self, state["algorithm"])
        saved, now = state["targets"]["class"], type(self.targets).__name__
        self._n_moves = None
        if saved != now:
            chosen = {kind.__name__: kind for kind in (PlannedTargets, TDTargets)}.get(saved)
            if self.target_class is not None or chosen is None:
                raise CheckpointError(
                    f"the checkpoint is of a learner with target_class {saved}, got {now}"
                )
            self._make_targets(chosen)
        self.goal_buffer.set_checkpoint_state(state["goal_buffer"])
        self.replay_buffer.set_checkpoint_state(state["replay_buffer"])
        self.goal_rules = self.goal_buffer.rules
        for name, value in state["attributes"].items():
            setattr(self, name, value.to(self.device) if isinstance(value, th.Tensor) else value)
        self.targets.set_checkpoint_state(state["targets"]["state"])

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_NOT_SAVED]
