"""ManyGoalsDQN: Algorithm 1 of "Many-Goals Reinforcement Learning" on Stable-Baselines3."""

from __future__ import annotations

import copy
import math
import warnings
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import LinearSchedule, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_manygoals import errors
from sb3_manygoals.action_masks import check_action_masks, random_allowed
from sb3_manygoals.goals import GoalSelector
from sb3_manygoals.goals.buffer import check_inside, check_one_hot
from sb3_manygoals.many_goals_dqn.goal_dqn import GoalDQN
from sb3_manygoals.many_goals_dqn.policies import CnnPolicy, ManyGoalsPolicy, MlpPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.targets import PlannedTargets, Targets, TDTargets
from sb3_manygoals.memory_limits import keep_freed_memory
from sb3_manygoals.networks import PaddedCNN, count_distinct
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.validation import check_count, check_number

SelfManyGoalsDQN = TypeVar("SelfManyGoalsDQN", bound="ManyGoalsDQN")

_MILLION = 1_000_000
_MOST_TO_FIT = 2**26  # elements of observations by which inputs are standardized
_UPDATES_AN_EPISODE = 5  # that count as much as a goal episode, of which log_interval is a number
_LONGEST_RHYTHM = 64  # vector steps between updates, if updates_per_step allows

PAPER: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 10_000,
    "learning_starts": 10_000,
    "batch_size": 32,
    "goal_batch_size": 16,
    "gamma": 0.99,
    "updates_per_step": 1.0,
    "target_class": TDTargets,
    "target_kwargs": {"goal_sampling": "uniform", "update_interval": 250, "tau": 1.0},
    "exploration_fraction": 1 / 3,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.1,
    "goal_wrapper_kwargs": {"max_episode_steps": 50, "reset_worlds": True},
    "policy_kwargs": {
        "features_extractor_class": PaddedCNN,
        "net_arch": [],
        "activation_fn": nn.ReLU,
        "embedding_dim": 1024,
        "head": "bilinear",
        "standardize": True,
        "ema_decay": 0.0,
        "optimizer_class": RMSpropTFLike,
        "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-12},
    },
}
"""
The settings of Veeriah et al. (2018), for ``ManyGoalsDQN("CnnPolicy", env, **PAPER).learn(3e6)``: replay memory of 10,000, an
update of 32 transitions x 16 goals every step, RMSProp, gamma 0.99, epsilon from 1 to 0.1 over a million steps. The paper does
not give step size, target network, T and normalization; for these see ``docs/design.md``.
"""


def large_world(steps: float, max_plan_bytes: float = 6_500_000_000) -> dict[str, Any]:
    """
    Settings for a world of more than some ten thousand observations, with a fast vector environment:
    ``ManyGoalsDQN("CnnPolicy", env, **large_world(7e6)).learn(7e6)``. Most steps are random; the updates that follow learn
    plans without chance.

    :param steps: of ``learn``, all environments together; 150 for each observation are enough
    :param max_plan_bytes: memory for the plan, see :class:`~sb3_manygoals.many_goals_dqn.PlannedTargets`
    :return: arguments of :class:`ManyGoalsDQN`, in a dictionary of its own: random steps for the first 93% of training, and a
        replay memory for all of it
    :raises ValueError: if a number is not whole and positive
    """
    steps = check_count("steps", steps, floats=True)
    return {
        "buffer_size": math.ceil(steps / _MILLION) * _MILLION,
        "learning_starts": steps * 40 // 43,
        "batch_size": 256,
        "goal_batch_size": 16,
        "target_class": PlannedTargets,
        "target_kwargs": {
            "sweeps": 0,
            "max_plan_bytes": check_count("max_plan_bytes", max_plan_bytes, floats=True),
            "fresh_goals": 0.3,
            "near_floor": 0.1,
            "best_weight": 1e4,
        },
    }


LARGE_WORLD: dict[str, Any] = large_world(32_250_000)
"""
:func:`~sb3_manygoals.large_world` for a world of 190,800 observations and ``learn(32_250_000)``: some 150 random steps an
observation, then an update for 25 steps, in 10 GB.
"""


class ManyGoalsDQN(GoalDQN):
    """
    Deep Q-learning of a universal value function Q(s, a, g), in which every transition teaches many goals.

    Paper: "Many-Goals Reinforcement Learning" (Veeriah, Oh, Singh 2018), https://arxiv.org/abs/1806.09605. Goals are the
    observations met so far. The defaults master worlds of some thousand observations; other settings are
    :data:`~sb3_manygoals.many_goals_dqn.many_goals_dqn.PAPER` and, for larger worlds,
    :func:`~sb3_manygoals.large_world`. Where nothing else is said, it is SB3's ``DQN``.

    :param policy: "CnnPolicy" for images, "MlpPolicy" for vectors, or a subclass of :class:`ManyGoalsPolicy`
    :param env: an environment, its id, or a VecEnv; either without goals, and then it is wrapped, or already wrapped in
        :class:`GoalBufferWrapper` or :class:`VecGoalBufferWrapper`. Actions must be discrete, observations single arrays
    :param learning_rate: step size, or a function of the progress left, from 1 when learning starts to 0; default: 1e-3 to 0
    :param buffer_size: transitions in the replay memory
    :param learning_starts: environment steps, with random actions, before the first update
    :param batch_size: states or transitions in an update, S
    :param goal_batch_size: goals in an update, G
    :param gamma: discount factor
    :param updates_per_step: updates for each environment step, all environments together
    :param target_class: :class:`~sb3_manygoals.many_goals_dqn.PlannedTargets`, values from planning in the replay memory;
        :class:`~sb3_manygoals.many_goals_dqn.TDTargets`, the paper's target network; or another subclass of
        :class:`~sb3_manygoals.many_goals_dqn.Targets`. None: planned while observations recur, else bootstrapped, as the log
        and ``model.targets`` say
    :param target_kwargs: arguments of the ``target_class``
    :param exploration_fraction: share of training over which the exploration rate falls, linearly
    :param exploration_initial_eps: initial exploration rate, ``exploration_final_eps`` the final one: the share of goal
        episodes that explore with planned targets, the share of random actions with others
    :param goal_wrapper_kwargs: arguments of the :class:`GoalBufferWrapper` put around an ``env`` without goals
    :param goals_in_replay: whether the goals are the next observations in the replay memory, for worlds that show too many, as
        games do; see :class:`~sb3_manygoals.many_goals_dqn.ReplayGoals`. It needs ``TDTargets`` and uniform choice of goals
    :param replay_buffer_class: :class:`ManyGoalsReplayBuffer`, which None stands for, or a subclass, such as
        :class:`~sb3_manygoals.pretraining.ManyGoalsFrameReplayBuffer`
    :param replay_buffer_kwargs: its further arguments
    :param action_masks: whether to act, and to maximize over next actions, only among those that the environment allows in
        ``info["action_mask"]`` at every reset and step; False: masks are ignored
    :param stats_window_size: as of SB3's ``DQN``, like ``tensorboard_log``, ``verbose``, ``device`` and ``_init_setup_model``
    :param policy_kwargs: further arguments of the policy
    :param seed: of all random generators
    :raises TypeError: if observations cannot be goals, actions are not discrete, or a class is of the wrong kind
    :raises ValueError: if an argument is out of its range, or two do not fit together
    :raises MemoryError: if replay memory and goals, once full, do not fit into the memory that is available
    """

    stream = Stream.MANY_GOALS_DQN
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "CnnPolicy": CnnPolicy,
        "MlpPolicy": MlpPolicy,
    }

    def __init__(
        self,
        policy: str | type[ManyGoalsPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = LinearSchedule(1e-3, 0.0, 1.0),  # noqa: B008 - it has no state
        buffer_size: int = 1_000_000,
        learning_starts: int = 1_000,
        batch_size: int = 128,
        goal_batch_size: int = 128,
        gamma: float = 0.99,
        updates_per_step: float = 0.04,
        target_class: type[Targets] | None = None,
        target_kwargs: dict[str, Any] | None = None,
        exploration_fraction: float = 0.5,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.1,
        goal_wrapper_kwargs: dict[str, Any] | None = None,
        goals_in_replay: bool = False,
        replay_buffer_class: type[ManyGoalsReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        action_masks: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        if isinstance(policy, str):
            if policy not in self.policy_aliases:
                raise ValueError(
                    f"policy must be one of {', '.join(self.policy_aliases)}, got {policy!r}"
                )
            # by class: SB3 refuses these names for Dict observations
            policy = self.policy_aliases[policy]  # type: ignore[assignment]
        if isinstance(env, str):
            env = gym.make(env)
        if env is not None and not isinstance(env, (gym.Env, VecEnv)):
            raise TypeError(
                f"env must be a Gymnasium environment, its id, or an SB3 VecEnv, got {env!r}"
            )
        if env is None and _init_setup_model:
            raise ValueError(
                "env is needed to build a model; to load one without, use ManyGoalsDQN.load(path)"
            )
        if env is not None:
            if goals_in_replay and "goal_buffer" in (goal_wrapper_kwargs or {}):
                raise ValueError(
                    "goals_in_replay: the goals are in the replay memory, goal_buffer must not be given"
                )
            env = self._pursue(env, goal_wrapper_kwargs or {}, goals_in_replay)
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,  # type: ignore[arg-type]
            learning_rate,
            check_count("buffer_size", buffer_size, floats=True),
            check_count("learning_starts", learning_starts, 0, floats=True),
            check_count("batch_size", batch_size, floats=True),
            gamma=gamma,
            replay_buffer_class=ManyGoalsReplayBuffer
            if replay_buffer_class is None
            else replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            _init_setup_model=False,
        )
        self.goal_batch_size = check_count("goal_batch_size", goal_batch_size, floats=True)
        self.updates_per_step = updates_per_step
        self.target_class, self.target_kwargs = target_class, target_kwargs
        # to be saved with the model, so without the buffer, and with a selector that has not learned yet
        settings = {
            name: value
            for name, value in (goal_wrapper_kwargs or {}).items()
            if name != "goal_buffer"
        }
        self.goal_wrapper_kwargs = copy.deepcopy(settings)
        if isinstance(saved := self.goal_wrapper_kwargs.get("selector"), GoalSelector):
            saved.forget()
        self.goals_in_replay, self.action_masks = goals_in_replay, action_masks
        self.goal_updates = np.zeros(0, dtype=np.int64)
        self.exploration_rate = exploration_initial_eps
        self._loss = th.zeros(())
        self._warned_of_alike = False
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        check_number("gamma", self.gamma, "[0, 1)")
        for name in ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"):
            check_number(name, getattr(self, name), "[0, 1]")
        keep_freed_memory()
        self.train_freq, self.gradient_steps = update_rhythm(self.updates_per_step, self.n_envs)
        super()._setup_model()

    def _on_step(self) -> None:
        if self.num_timesteps >= self.learning_starts:
            self.targets.after_step(self.num_timesteps, self.n_envs)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)

    def train(self, gradient_steps: int, batch_size: int = 128) -> None:
        """As SB3's. A loss that is not finite is a FloatingPointError; the networks are as before this update."""
        self._require_env()
        self.policy.set_training_mode(True)
        learning = max(1.0 - self.learning_starts / max(self._total_timesteps, 1), 1e-9)
        progress = min(self._current_progress_remaining / learning, 1.0)
        update_learning_rate(
            self.policy.optimizer, self.lr_schedule(max(progress, 0.0))
        )  # the last rollout may go beyond
        if self._n_updates == 0 and self.policy.standardize:
            self.policy.fit_standardization(self._some_goals())
        if self._n_updates == 0:
            self._warn_of_goals_that_look_alike()
        self._review_targets()
        done = 1.0 - self._current_progress_remaining
        planning = isinstance(self.targets, PlannedTargets) and self.targets.is_plan_due(done)
        if planning:
            self.logger.info(f"planning for {len(self.targets.learner.goal_buffer):,} goals")
        self.targets.before_updates(self.num_timesteps, done)
        for _ in range(gradient_steps):
            self._update(batch_size)
        if self._log_interval is not None:
            many = self._n_updates - self._n_logged >= _UPDATES_AN_EPISODE * self._log_interval
            if planning or many:
                self.dump_logs()

    def _some_goals(self) -> th.Tensor:
        """Known goals, evenly chosen where there are too many for one batch, shape (n, *observation_space.shape)."""
        goals = self.targets.learner.goal_buffer.observations
        most = min(10_000, max(1, _MOST_TO_FIT // goals[0].size))
        if len(goals) > most:
            goals = goals[np.linspace(0, len(goals) - 1, most, dtype=np.int64)]
        return th.as_tensor(goals.copy(), device=self.device)

    def _warn_of_goals_that_look_alike(self) -> None:
        """Once, if the network gets the same numbers for different goals, as float32 has fewer digits than they."""
        if self._warned_of_alike or not self.policy.may_confuse_observations:
            return
        goals = self._some_goals()
        n_goals = count_distinct(
            goals.cpu().numpy()
        )  # those in a replay memory come again and again
        n_alike = n_goals - self.policy.count_distinct(goals)
        if n_alike > 0:
            self._warned_of_alike = True
            dtype = self.targets.learner.goal_buffer.dtype
            warnings.warn(
                f"{n_alike} of {n_goals} known goals look to the network like another one: it computes in float32, "
                f"observations are {dtype}. Subtract a constant from them in a wrapper, or choose a larger unit",
                stacklevel=3,
            )

    def _update(self, batch_size: int) -> None:
        draw = self.targets.draw(batch_size, self.goal_batch_size, self.rng)
        losses = self.targets.losses(draw)
        loss = losses.mean()
        errors.check_loss(loss, self.policy, self._n_updates + 1, self.num_timesteps)
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.policy.optimizer.step()
        self.policy.update_ema()
        self._n_updates += 1
        self._loss = loss.detach()
        for selector in self._selectors:
            selector.observe_losses(draw.goal_ids, losses.detach())
        if not self.goals_in_replay:  # otherwise ids are hashes
            ids = draw.goal_ids.cpu().numpy()
            np.add.at(self.goal_updates, ids[ids >= 0], 1)

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        self._go_on_from_what_is_shown()
        assert isinstance(self._last_obs, dict)
        masks = self._last_action_masks
        if self.num_timesteps < learning_starts:
            self._wandering[:] = True
            # unmasked, the numbers that the space would draw one by one
            drawn = self.action_space.np_random.integers(self.action_space.n, size=n_envs)
            actions: NDArray[Any] = drawn if masks is None else random_allowed(masks, self.rng)
            return actions, actions
        goal_ids = np.concatenate([tracker.desired_ids for tracker in self._trackers])
        planned = self.targets.act(
            self._last_obs["observation"], goal_ids, self._exploring, self.rng, masks
        )
        actions = (
            self.predict(self._last_obs, action_masks=masks)[0] if planned is None else planned
        )
        return actions, actions

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Greedy or epsilon-greedy actions of the network; each environment explores independently.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch
        :param deterministic: True for greedy actions, False for random ones with probability ``exploration_rate``
        :param action_masks: actions allowed, shape (A,) or (n, A), None for all, as in sb3-contrib
        :return: actions, int64, of shape (n,), a NumPy integer for one observation, and ``state``, which is not used, as
            ``episode_start``
        :raises ValueError: if ``observation`` is not such a dict, a number is out of the range of its Discrete,
            MultiDiscrete or MultiBinary space, a single goal is outside of its Box, or masks do not fit it or allow no action

        Where it is asked for one action, not for a batch, a goal that was never met is warned of
        once.
        """
        if (
            not isinstance(observation, dict)
            or not {"observation", "desired_goal"} <= observation.keys()
        ):
            got = list(observation) if isinstance(observation, dict) else type(observation).__name__
            wrap = "wrap the environment, GoalBufferWrapper(env, model.goal_buffer); for rewards use model.task_policy()"
            raise ValueError(
                f'observation must be a dict with "observation" and "desired_goal", got {got}: {wrap}'
            )
        goal_obs = {key: np.asarray(observation[key]) for key in ("observation", "desired_goal")}
        shapes = [array.shape for array in goal_obs.values()]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"observation and desired_goal must have one shape, got {shapes[0]} and {shapes[1]}"
            )
        for key, values in goal_obs.items():
            check_one_hot(self.observation_space[key], values, key)
        if observation is not self._last_obs:  # not in training
            self._check_desired_goal(goal_obs["desired_goal"])
            self._warn_of_unknown_goal(goal_obs["desired_goal"])
        tensors, vectorized = self.policy.obs_to_tensor(goal_obs)
        assert isinstance(tensors, dict)
        n = len(tensors["observation"])
        masks = (
            None
            if action_masks is None
            else check_action_masks(action_masks, n, int(self.action_space.n))
        )
        explore, actions = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
        if not deterministic:
            explore = self.rng.random(n) < self.exploration_rate
            actions = (
                self.rng.integers(int(self.action_space.n), size=n)
                if masks is None
                else random_allowed(masks, self.rng)
            )
        if not explore.all():
            self.policy.set_training_mode(False)
            with th.no_grad():
                q = self.policy.action_values(tensors)
            if masks is not None:
                q = q.masked_fill(~th.as_tensor(masks, device=self.device), -th.inf)
            actions = np.where(explore, actions, q.argmax(dim=1).cpu().numpy())
        return actions if vectorized else actions[0], state

    def _check_desired_goal(self, desired: NDArray[Any]) -> None:
        """Refuse a single goal outside of its Box, unless it was met; a batch would cost too much to look at."""
        space = self.observation_space["desired_goal"]
        one = desired[0] if desired.shape == (1, *(space.shape or ())) else desired
        fits = one.shape == space.shape and one.dtype.kind in "iubf"
        if not isinstance(space, spaces.Box) or not fits:
            return
        goals = self.goal_buffer
        met = None
        if goals is not None and not self.goals_in_replay:
            met = goals.have_met(one[None].astype(goals.dtype))
        check_inside(space, one[None], "desired_goal", met, numbered=False)

    def dump_logs(self) -> None:
        """Write the log; only here the loss is copied from the device."""
        self._require_env()
        self._n_logged = self._n_updates
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        if isinstance(self.targets, PlannedTargets) and self._episodes:
            explored = [one for one, _ in self._episodes]
            pursued = [success for one, success in self._episodes if not one]
            self.logger.record("rollout/exploring", float(np.mean(explored)))
            if pursued:
                self.logger.record("rollout/success_rate_exploiting", float(np.mean(pursued)))
        for name, value in self.targets.describe().items():
            self.logger.record(name, value)
        self.logger.record("goals/known", len(self.targets.learner.goal_buffer))
        if self._n_updates > 0:
            self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
            self.logger.record("train/learning_rate", self.policy.optimizer.param_groups[0]["lr"])
            self.logger.record("train/loss", self._loss.item())
            self.logger.record("train/targets", type(self.targets).__name__, exclude="tensorboard")
        super().dump_logs()

    def learn(
        self: SelfManyGoalsDQN,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "ManyGoalsDQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfManyGoalsDQN:
        """
        As SB3's, with goal episodes for episodes.

        :param total_timesteps: environment steps, at least 1; may be a float such as ``3e6``
        :param callback: one or a list of SB3's callbacks, or a function of local and global variables
        :param log_interval: goal episodes from one row of the log to the next, or five times as many updates, if they come
            first; one more follows each plan. None: no log
        :param tb_log_name: name of the run for TensorBoard
        :param reset_num_timesteps: False to go on counting steps from the last training
        :param progress_bar: whether to show a progress bar, which says what the plan knows; needs tqdm and rich
        :return: the model
        :raises ValueError: if ``total_timesteps`` is below 1, the model has no environment, or one gives what is not finite or
            not of its space
        :raises RuntimeError: if a worker of a SubprocVecEnv has died
        :raises FloatingPointError: if a loss is not finite, see :func:`~sb3_manygoals.errors.check_loss`
        """
        total: Any = total_timesteps  # which _setup_learn makes an integer
        self._log_interval = log_interval
        try:
            super().learn(
                total, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
            )
        except errors.Fault as fault:
            assert self.env is not None
            sources = [id(tracker) for tracker in self._trackers]
            if fault.source in sources:
                fault.index += sources.index(
                    fault.source
                )  # of GoalBufferWrappers, each of which knows of one environment
            if fault.source in (
                *sources,
                id(self.env.unwrapped),
            ):  # and not of a callback's environments
                fault.num_timesteps = self.num_timesteps
            raise
        finally:
            self._log_interval = None
            if self.policy.target_follows:
                self.policy.copy_to_target()
        self._warn_of_goals_that_look_alike()
        return self


def update_rhythm(updates_per_step: float, n_envs: int) -> tuple[int, int]:
    """SB3's ``train_freq``, in vector steps, and ``gradient_steps`` that make so many updates a step of each environment."""
    check_number("updates_per_step", updates_per_step, "[1e-6, 1000]")
    each = Fraction(updates_per_step).limit_denominator(10**6) * n_envs
    if each < Fraction(1, _LONGEST_RHYTHM):
        return max(1, round(1 / each)), 1
    rhythm = each.limit_denominator(_LONGEST_RHYTHM)
    return rhythm.denominator, rhythm.numerator
