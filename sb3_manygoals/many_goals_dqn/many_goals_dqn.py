"""ManyGoalsDQN: Algorithm 1 of "Many-Goals Reinforcement Learning" on Stable-Baselines3."""

from __future__ import annotations

import copy
import warnings
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import LinearSchedule, get_parameters_by_name, polyak_update
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals import guards
from sb3_manygoals.action_masks import check_action_masks, random_allowed
from sb3_manygoals.goals import UNKNOWN, GoalBuffer, GoalSelector
from sb3_manygoals.goals.buffer import check_goal_space
from sb3_manygoals.goals.environments import is_goal_wrapped, pursue_goals
from sb3_manygoals.many_goals_dqn import objective
from sb3_manygoals.many_goals_dqn.captured import CapturedUpdate
from sb3_manygoals.many_goals_dqn.checks import GoalSampling, check_settings
from sb3_manygoals.many_goals_dqn.goal_algorithm import GoalOffPolicyAlgorithm
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from sb3_manygoals.many_goals_dqn.policies import CnnPolicy, ManyGoalsPolicy, MlpPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.memory import keep_freed_memory
from sb3_manygoals.networks import UniversalQNetwork

SelfManyGoalsDQN = TypeVar("SelfManyGoalsDQN", bound="ManyGoalsDQN")

Taught = tuple[th.Tensor, th.Tensor, th.Tensor]
"""What an update gives: its loss, the ids of its goals, and the loss of each."""

_LEARNER_STREAM = 3


class ManyGoalsDQN(GoalOffPolicyAlgorithm):
    """
    Deep Q-learning of a universal value function Q(s, a, g), where every transition teaches many goals.

    Paper: "Many-Goals Reinforcement Learning" (Veeriah, Oh, Singh 2018), https://arxiv.org/abs/1806.09605. Goals are the
    observations met so far. Each update pairs every sampled transition with every sampled goal, rewards and terminates
    each pair as that goal would, and descends the mean squared Bellman error.

    The defaults are the paper's, where it gives them: replay of 10,000; 32 transitions x 16 goals an update; an update every
    step; RMSProp; gamma 0.99; epsilon from 1 to 0.1 over a million steps. ``docs/design.md`` says how the others were chosen.

    :param policy: "CnnPolicy" for images, "MlpPolicy" for vectors, or a subclass of :class:`ManyGoalsPolicy`
    :param env: an environment or its id, or a VecEnv, without goals (it is wrapped to pursue them) or already wrapped in
        :class:`GoalBufferWrapper` or :class:`VecGoalBufferWrapper`. Actions must be discrete, observations single arrays
    :param learning_rate: step size, or a function of the remaining progress from 1 to 0
    :param buffer_size: transitions in the replay memory
    :param learning_starts: environment steps, taken at random, before the first update
    :param batch_size: transitions in an update, S
    :param goal_batch_size: goals in an update, G; not used with "all" and "pursued"
    :param goal_sampling: where the goals of an update come from: "uniform" over the known goals, as in the paper;
        "batch": the next observations of the sampled transitions, as many as are different, topped up with uniform goals;
        "all" known goals; "pursued": not many goals but one, each transition teaching only the goal that was pursued when it
        was made, the paper's on-policy baseline (there with a ``batch_size`` of 16)
    :param batch_goal_share: with "batch", the largest share of an update's goals that are its next observations
    :param double_q: choose the next action with the learning network and value it with the target network
    :param action_gap: share of what the action taken is worse than the best that its target is lowered by, see
        :func:`~sb3_manygoals.losses.widen_action_gap`; 0.0: none
    :param near_decay: pairs that are d steps from their goal count ``near_decay ** d + near_floor``, see
        :func:`~sb3_manygoals.losses.near_weights`; 1.0: all the same, as in the paper
    :param near_floor: how much the farthest pairs count
    :param n_steps: steps of the world that a transition spans, see :func:`~sb3_manygoals.losses.n_step_td_targets`; not with
        "pursued", nor in a captured graph
    :param segment_length: transitions in a row, as the world went, that a part of an update's are drawn by; their targets are
        the largest return that the way taken gave, see :func:`~sb3_manygoals.losses.best_along_segments`; not with ``n_steps``
        or "pursued", nor in a captured graph; 1: none
    :param segment_share: the part of an update's transitions that are drawn so, in whole segments
    :param plan_interval: environment steps between value iterations in the world as the replay memory knows it, whose values
        are then learned, those of all actions at once, in place of targets by the target network: for worlds of a few
        thousand observations, see :class:`~sb3_manygoals.many_goals_dqn.planning.ReplayPlan`. Not with ``n_steps``,
        segments, ``action_gap``, ``double_q``, "pursued" or ``goals_in_replay``, nor in a captured graph; 0: none
    :param plan_sweeps: the most updates of all values each time
    :param plan_evenly: whether transitions are then drawn evenly over the states, however often these were met
    :param plan_states: observations that are told apart as states, at most
    :param margin_weight: with a plan, how much it counts that the actions it finds best do not lead all others by ``margin``,
        beside the squared error of values, see :func:`~sb3_manygoals.losses.large_margin_loss`; 0.0: not at all
    :param margin: that margin, in units of values
    :param tau: share of the learning network taken over by the target network at each of its updates
    :param gamma: discount factor
    :param train_freq: update every so many (vector) steps, or ``(n, "episode")``
    :param gradient_steps: updates each time; -1: one for each environment step taken
    :param target_update_interval: environment steps between updates of the target network
    :param initial_value: what all values begin near, the output's bias; None: what a goal that is never reached is worth,
        ``step_reward / (1 - gamma)``. From 0, with few goals reached in an update, all values first sink to there together
    :param exploration_initial_eps: probability of a random action at the start
    :param exploration_final_eps: the same at the end
    :param exploration_steps: environment steps over which it falls, linearly
    :param goal_wrapper_kwargs: arguments of the goal wrapper put around an ``env`` without goals: ``goal_buffer``,
        ``selector``, ``max_episode_steps``, ``goal_reward``, ``step_reward``, and for a VecEnv ``reset_worlds``
    :param goals_in_replay: whether the goals are the next observations in the replay memory, drawn at random, in place of all
        different observations ever met: for worlds that show too many, as games do. See
        :class:`~sb3_manygoals.many_goals_dqn.replay_goals.ReplayGoals`. With "uniform" and "batch", and goals to pursue chosen
        uniformly
    :param replay_buffer_class: None: :class:`ManyGoalsReplayBuffer`; or a subclass, such as
        :class:`~sb3_manygoals.pretraining.ManyGoalsFrameReplayBuffer`, which keeps frames once
    :param replay_buffer_kwargs: its arguments beside those that follow from the others here
    :param action_masks: whether to act, and to look for the best next action, only among those that the environment's
        ``info["action_mask"]`` allows, at every reset and step; False: masks are not looked at
    :param stats_window_size: episodes averaged in the log
    :param tensorboard_log: folder for TensorBoard, None for no such log
    :param policy_kwargs: further arguments of the policy
    :param verbose: 0 no output, 1 info, 2 debug
    :param seed: of all pseudo-random generators
    :param device: for the networks
    :param cuda_graph: on a CUDA device, whether replay memory and goals are kept there too and an update is one captured graph
        that waits for nothing; where that cannot be, a warning says why. Its draws are other ones than the host's
    :param _init_setup_model: whether to build the network now
    :raises TypeError: if observations cannot be goals or actions are not discrete
    :raises ValueError: if a count, rate or choice makes no sense
    :raises MemoryError: if replay memory and goals, once full, do not fit into the memory that is available
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"CnnPolicy": CnnPolicy, "MlpPolicy": MlpPolicy}
    policy: ManyGoalsPolicy
    replay_buffer: ManyGoalsReplayBuffer
    q_net: UniversalQNetwork
    q_net_target: UniversalQNetwork
    goal_buffer: GoalBuffer | None

    def __init__(
        self,
        policy: str | type[ManyGoalsPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 10_000,
        learning_starts: int = 1_000,
        batch_size: int = 32,
        goal_batch_size: int = 16,
        goal_sampling: GoalSampling = "uniform",
        batch_goal_share: float = 1.0,
        double_q: bool = False,
        action_gap: float = 0.0,
        near_decay: float = 1.0,
        near_floor: float = 0.02,
        n_steps: int = 1,
        segment_length: int = 1,
        segment_share: float = 0.5,
        plan_interval: int = 0,
        plan_sweeps: int = 16,
        plan_evenly: bool = False,
        plan_states: int = 20_000,
        margin_weight: float = 0.0,
        margin: float = 0.05,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        target_update_interval: int = 250,
        initial_value: float | None = None,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.1,
        exploration_steps: int = 1_000_000,
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
        cuda_graph: bool = True,
        _init_setup_model: bool = True,
    ) -> None:
        if isinstance(policy, str):
            if policy not in self.policy_aliases:
                raise ValueError(f"policy must be one of {', '.join(self.policy_aliases)}, got {policy!r}")
            # by class: SB3 refuses these names for Dict observations
            policy = self.policy_aliases[policy]  # type: ignore[assignment]
        if isinstance(env, str):
            env = gym.make(env)
        if env is not None and not isinstance(env, (gym.Env, VecEnv)):
            raise TypeError(f"env must be a Gymnasium environment, its id, or an SB3 VecEnv, got {env!r}")
        if env is None and _init_setup_model:
            raise ValueError("env is needed to build a model; to load one without, use ManyGoalsDQN.load(path)")
        if env is not None:
            if goal_wrapper_kwargs and is_goal_wrapped(env):
                raise ValueError(f"goal_wrapper_kwargs {sorted(goal_wrapper_kwargs)} given, but env pursues goals already")
            settings = dict(goal_wrapper_kwargs or {})
            if goals_in_replay and not is_goal_wrapped(env):
                if "goal_buffer" in settings:
                    raise ValueError("goals_in_replay: the goals are in the replay memory, goal_buffer must not be given")
                check_goal_space(env.observation_space)
                settings["goal_buffer"] = ReplayGoals(env.observation_space)
            env = pursue_goals(env, settings)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            tau,
            gamma,
            train_freq,
            gradient_steps,
            replay_buffer_class=ManyGoalsReplayBuffer if replay_buffer_class is None else replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            sde_support=False,
            support_multi_env=True,
        )
        if self._vec_normalize_env is not None:
            raise ValueError("VecNormalize is not supported: a goal is one exact observation, and normalisation drifts")
        self.goal_batch_size = goal_batch_size
        self.goal_sampling = goal_sampling
        self.batch_goal_share = batch_goal_share
        self.double_q = double_q
        self.action_gap = action_gap
        self.near_decay = near_decay
        self.near_floor = near_floor
        self.n_steps = n_steps
        self.segment_length = segment_length
        self.segment_share = segment_share
        self.plan_interval = plan_interval
        self.plan_sweeps = plan_sweeps
        self.plan_evenly = plan_evenly
        self.plan_states = plan_states
        self.margin_weight = margin_weight
        self.margin = margin
        self.target_update_interval = target_update_interval
        self.initial_value = initial_value
        self.exploration_initial_eps = exploration_initial_eps
        self.exploration_final_eps = exploration_final_eps
        self.exploration_steps = exploration_steps
        # Without the buffer, and a selector as it is now: what they learn is no setting, and would be saved with the model.
        settings = {name: value for name, value in (goal_wrapper_kwargs or {}).items() if name != "goal_buffer"}
        self.goal_wrapper_kwargs = copy.deepcopy(settings)
        self._selectors: list[GoalSelector] = []
        self.goals_in_replay = goals_in_replay
        self.action_masks = action_masks
        self.cuda_graph = cuda_graph
        self.goal_buffer = None
        self._goal_updates: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.goal_rules: dict[str, Any] | None = None
        self.exploration_rate = exploration_initial_eps
        self._loss = th.zeros(())
        self._captured: CapturedUpdate | None = None
        self.plan: ReplayPlan | None = None
        self._last_action_masks: NDArray[np.bool_] | None = None  # of _last_obs
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        check_settings(self)
        keep_freed_memory()
        self.replay_buffer_kwargs = {
            **self.replay_buffer_kwargs,
            "action_masks": self.action_masks,
            "pursued_goals": self.goal_sampling == "pursued",
            "n_steps": self.n_steps,
            "segment_length": self.segment_length,
            "segment_share": self.segment_share,
            "n_states": self.plan_states if self.plan_interval else 0,
        }
        if self.env is not None:  # without one it only predicts, and the replay memory stays untouched
            self._check_memory(self.env)
        with warnings.catch_warnings():  # SB3 does not know that our replay memory has n steps of its own
            warnings.filterwarnings("ignore", message="`n_steps=")
            super()._setup_model()
        self.q_net = self.policy.q_net
        self.q_net_target = self.policy.q_net_target
        # of batch normalization, which no parameter is; as SB3's DQN
        self._running_stats = get_parameters_by_name(self.q_net, ["running_"])
        self._running_stats_target = get_parameters_by_name(self.q_net_target, ["running_"])
        fraction = 1.0  # of exploration_steps, which stands for the whole of training in this schedule
        self.exploration_schedule = LinearSchedule(self.exploration_initial_eps, self.exploration_final_eps, fraction)
        if self.env is not None:
            self._adopt_goals(self.env)
            never_reached = self.step_reward / (1.0 - self.gamma)
            self.policy.shift_values(never_reached if self.initial_value is None else self.initial_value)

    def set_random_seed(self, seed: int | None = None) -> None:
        """:param seed: of python, numpy, torch, the action space, the environments, and the choice of update goals"""
        super().set_random_seed(seed)
        # tagged: environments draw their own numbers with default_rng(seed)
        self.rng = np.random.default_rng(None if seed is None else (seed, _LEARNER_STREAM))

    def _on_step(self) -> None:
        steps = self.num_timesteps
        # the steps of all environments count, so an update is due whenever a multiple of the interval was passed
        if steps // self.target_update_interval > (steps - self.n_envs) // self.target_update_interval:
            if self._captured is None:
                self._move_target()
            else:
                self._captured.move_target(self)
        self.exploration_rate = self.exploration_schedule(max(0.0, 1.0 - steps / self.exploration_steps))

    def _move_target(self) -> None:
        polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), self.tau)
        polyak_update(self._running_stats, self._running_stats_target, 1.0)

    def train(self, gradient_steps: int, batch_size: int = 32) -> None:
        """
        :param gradient_steps: number of updates
        :param batch_size: transitions in each
        :raises FloatingPointError: if the loss of an update is not finite; the networks are left as they were before it. On a
            CUDA device see :func:`~sb3_manygoals.guards.check_loss`
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        if self._n_updates == 0 and self.policy.standardize:
            assert self.goal_buffer is not None
            self.policy.fit_standardization(th.as_tensor(self.goal_buffer.observations.copy(), device=self.device))
        if self.plan is not None and self.plan.is_due(self.num_timesteps, self.plan_interval):
            assert self.goal_buffer is not None
            self.plan.refresh(self.replay_buffer, self.goal_buffer, self.plan_sweeps, self.num_timesteps)
        for _ in range(gradient_steps):
            self._loss, goal_ids, losses = self._update(batch_size)
            for selector in self._selectors:
                selector.observe_losses(goal_ids, losses)
            self._n_updates += 1

    def _update(self, batch_size: int) -> Taught:
        if not self._captures:
            return self._update_eagerly(batch_size)
        if self._captured is None or not self._captured.fits(self, batch_size):
            self._drop_captured()  # frees its memory before as much is taken again
            self._captured = CapturedUpdate(self, batch_size)
        return self._captured.update(self)

    @property
    def _captures(self) -> bool:
        return self.cuda_graph and self.device.type == "cuda"

    def _update_eagerly(self, batch_size: int) -> Taught:
        batch: ManyGoalsSamples
        if self.plan is not None and self.plan_evenly:
            batch = self.plan.draw(batch_size, self.replay_buffer, self.rng)
        else:
            batch = self.replay_buffer.sample(batch_size)
        return self._descend(batch, *self._sample_goals(batch))

    def _descend(self, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor, met: th.Tensor | None = None) -> Taught:
        """
        One step of the optimizer and what follows it. It may be captured: nothing in it may wait for the device or count.

        :return: the loss before the step, ``goal_ids``, and the loss of each goal, on the device, without their graph
        """
        losses = self.goal_losses(batch, goals, goal_ids, met)
        loss = losses.mean()
        guards.check_loss(loss, self.policy, self._n_updates + 1, self.num_timesteps)
        self.policy.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.policy.optimizer.step()
        self.policy.update_average()
        return loss.detach(), goal_ids, losses.detach()

    def goal_losses(
        self, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor, met: th.Tensor | None = None
    ) -> th.Tensor:
        """
        The paper's L(g) of each goal over a batch of transitions, at the cost of S + G passes of the trunk.

        :param batch: S transitions
        :param goals: observations, shape (G, *observation_space.shape)
        :param goal_ids: their ids, shape (G,) int64
        :param met: rows of the batch whose next observations the first M goals are, shape (M,) int64: they go through the
            target network once for both; None: not known
        :return: shape (G,)
        """
        if self.goal_sampling == "pursued":
            return objective.pursued_losses(self, batch, goals, goal_ids)
        if self.plan is not None:
            return objective.planned_losses(self, batch, goals, goal_ids)
        return objective.pairwise_losses(self, batch, goals, goal_ids, met)

    def goal_values(self, observations: NDArray[Any], goals: NDArray[Any]) -> NDArray[np.float32]:
        """
        What the best action is worth.

        :param observations: shape (n, *observation_space.shape)
        :param goals: the goal of each, the same shape
        :return: max_a Q(s, a, g) by the learning network and by the target network, shape (2, n)
        """
        self.policy.set_training_mode(False)
        pair = [th.as_tensor(array, device=self.device) for array in (observations, goals)]
        with th.no_grad():
            values = th.stack([net(*pair).amax(dim=1) for net in (self.q_net, self.q_net_target)])
        return np.asarray(values.cpu().numpy(), dtype=np.float32)

    def _sample_goals(self, batch: ManyGoalsSamples) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Goals, their ids, and the rows of the batch that the first of them come from."""
        assert self.goal_buffer is not None
        if self.goal_sampling == "all":
            ids = np.arange(len(self.goal_buffer))
        elif self.goal_sampling == "pursued":
            assert batch.pursued_ids is not None
            ids = batch.pursued_ids.cpu().numpy()
        else:
            ids = self.goal_buffer.sample_ids(self.goal_batch_size, self.rng)
        rows = None
        if self.goal_sampling == "batch":
            met, first_rows = np.unique(batch.next_ids.cpu().numpy(), return_index=True)
            most = round(self.batch_goal_share * self.goal_batch_size)
            chosen = self.rng.permutation(np.flatnonzero(met != UNKNOWN))[:most]
            ids[: len(chosen)] = met[chosen]
            rows = th.as_tensor(first_rows[chosen], device=self.device)
        if not self.goals_in_replay:  # where ids are no rows
            np.add.at(self._goal_updates, ids[ids != UNKNOWN], 1)
        goals = th.as_tensor(self.goal_buffer[np.maximum(ids, 0)], device=self.device)
        return goals, th.as_tensor(ids, device=self.device), rows

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        if not self.action_masks:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        assert self._last_action_masks is not None
        assert isinstance(self._last_obs, dict)
        if self.num_timesteps < learning_starts:
            actions: NDArray[Any] = random_allowed(self._last_action_masks, self.rng)
        else:
            actions, _ = self.predict(self._last_obs, action_masks=self._last_action_masks)
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
        Greedy actions, or epsilon-greedy with the current ``exploration_rate``, drawn for each environment by itself.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch
        :param state: not used
        :param episode_start: not used
        :param deterministic: True for the greedy action
        :param action_masks: actions allowed, shape (A,) or (n, A), None for all; as sb3-contrib's, and whatever the option
            ``action_masks``, which is about learning
        :return: actions, int64, of shape () or (n,), and ``state``
        :raises ValueError: if ``observation`` is not such a dict, or masks do not fit it or allow nothing
        """
        if not isinstance(observation, dict) or not {"observation", "desired_goal"} <= observation.keys():
            got = list(observation) if isinstance(observation, dict) else type(observation).__name__
            raise ValueError(f'observation must be a dict with "observation" and "desired_goal", got {got}')
        goal_obs = {key: np.asarray(observation[key]) for key in ("observation", "desired_goal")}
        shapes = [array.shape for array in goal_obs.values()]
        if shapes[0] != shapes[1]:
            raise ValueError(f"observation and desired_goal must have one shape, got {shapes[0]} and {shapes[1]}")
        if deterministic:
            return self.policy.predict(goal_obs, state, episode_start, deterministic, action_masks)
        shape = shapes[0][:1] if self.policy.is_vectorized_observation(goal_obs) else ()
        explore = self.rng.random(shape) < self.exploration_rate
        if action_masks is None:
            random_actions = self.rng.integers(self._n_actions, size=shape)
        else:
            masks = check_action_masks(action_masks, explore.size, self._n_actions)
            random_actions = random_allowed(masks, self.rng).reshape(shape)
        if explore.all():  # the network is not asked
            return random_actions, state
        actions, state = self.policy.predict(goal_obs, state, episode_start, deterministic, action_masks)
        actions = np.where(explore, random_actions, actions)
        return actions, state

    def dump_logs(self) -> None:
        """Write log data; the loss is fetched from the device only now."""
        assert self.goal_buffer is not None
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        self.logger.record("goals/known", len(self.goal_buffer))
        if self._n_updates > 0:
            self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
            self.logger.record("train/loss", self._loss.item())
        super().dump_logs()

    def learn(
        self: SelfManyGoalsDQN,
        total_timesteps: float,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str = "ManyGoalsDQN",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfManyGoalsDQN:
        """
        :param total_timesteps: environment steps to take; a float such as ``3e6`` will do
        :param callback: called at every step
        :param log_interval: episodes between two lines of the log
        :param tb_log_name: name of the run in TensorBoard
        :param reset_num_timesteps: False to go on counting, and exploring less, from where the last call ended
        :param progress_bar: show one (needs tqdm and rich)
        :return: the model
        :raises ValueError: if ``total_timesteps`` makes no sense, or an environment gives an observation that has not the
            shape and kind of dtype of its space, or an observation or reward that is not finite
        :raises RuntimeError: if a worker of a SubprocVecEnv has died
        :raises FloatingPointError: if a loss is not finite, see :meth:`train`
        """
        if not isinstance(total_timesteps, (int, float, np.number)) or not 1 <= total_timesteps < np.inf:
            raise ValueError(f"total_timesteps must be a finite number, at least 1, got {total_timesteps!r}")
        total = int(total_timesteps)
        try:
            return super().learn(total, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        except guards.Fault as fault:
            self._add_step(fault)
            raise
