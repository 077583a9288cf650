"""ManyGoalsDQN: Algorithm 1 of "Many-Goals Reinforcement Learning" on Stable-Baselines3."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import (
    GymEnv,
    MaybeCallback,
    RolloutReturn,
    Schedule,
    TrainFreq,
    TrainFrequencyUnit,
)
from stable_baselines3.common.utils import (
    LinearSchedule,
    configure_logger,
    update_learning_rate,
)
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn import DQN

from sb3_manygoals import errors
from sb3_manygoals.action_masks import (
    next_action_masks,
    random_allowed,
    read_action_masks,
)
from sb3_manygoals.checkpoint.added import note_construction
from sb3_manygoals.goals import GoalBuffer, GoalSelector
from sb3_manygoals.goals.algorithm import GoalAlgorithm
from sb3_manygoals.goals.buffer import KINDS_OF_GOALS, check_state_class
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapping import (
    is_goal_wrapped,
    warn_of_unknown_evaluations,
    wrap_goal_env,
)
from sb3_manygoals.many_goals_dqn.acting import ActingMixin
from sb3_manygoals.many_goals_dqn.adoption import AdoptionMixin
from sb3_manygoals.many_goals_dqn.choosing import ChoosingMixin
from sb3_manygoals.many_goals_dqn.circles import Circles
from sb3_manygoals.many_goals_dqn.clocks import find_clock, find_endless_clock
from sb3_manygoals.many_goals_dqn.memory_needs import check_memory_needs
from sb3_manygoals.many_goals_dqn.pacing import (
    LateLinearSchedule,
    UpdatePacer,
    update_rhythm,
)
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.policies import (
    CnnPolicy,
    ManyGoalsPolicy,
    MlpPolicy,
    MultiInputPolicy,
)
from sb3_manygoals.many_goals_dqn.progress import PlanProgressBarCallback
from sb3_manygoals.many_goals_dqn.recorded import Transitions, take_in
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.many_goals_dqn.saving import SavingMixin
from sb3_manygoals.many_goals_dqn.standardization import StandardizationMixin
from sb3_manygoals.many_goals_dqn.state_learning import (
    StateLearningMixin,
)
from sb3_manygoals.many_goals_dqn.target_choice import TargetChoice
from sb3_manygoals.many_goals_dqn.targets import TargetContext, Targets, TDTargets
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.random_streams import Stream
from sb3_manygoals.validation import (
    check_count,
    check_kwargs,
    check_number,
    check_schedule,
    check_seed,
)
from sb3_manygoals.vec_env import current_reset_infos
from sb3_manygoals.world import (
    UNKNOWN,
    ExactStates,
    KeyedStates,
    LearnedStates,
    StateKey,
    WorldModel,
)

SelfManyGoalsDQN = TypeVar("SelfManyGoalsDQN", bound="ManyGoalsDQN")

# The default learning rate of updates that are made steadily, from when learning starts to the end
# of training, and the largest one of updates that are made as needed.
_DEFAULT_LEARNING_RATE = 1e-3
_LARGEST_LEARNING_RATE = 2e-3
# Steps of an update of the target network, after each update of the trained one or at intervals.
_DEFAULT_TAU = 0.05
_TAU_AT_INTERVALS = 1.0
# For the log interval, which is a number of goal episodes, so many updates count as one episode.
_UPDATES_PER_EPISODE = 5
# From recorded transitions, so many updates are made between two looks at plans and schedules.
_UPDATES_FROM_DATA_TOGETHER = 50
# learn_from writes a row of the log as often as learn() does by default.
_LOG_INTERVAL = 100
# An action is random with this probability where the agent goes in circles.
_LEAVES_CIRCLE = 0.5


class ManyGoalsDQN(
    AdoptionMixin,
    ActingMixin,
    SavingMixin,
    StateLearningMixin,
    ChoosingMixin,
    StandardizationMixin,
    GoalAlgorithm,
    DQN,
):
    """
    Deep Q-learning of a universal value function Q(s, a, g), in which every transition teaches many
    goals.

    Paper: "Many-Goals Reinforcement Learning" (Veeriah, Oh, Singh 2018),
    https://arxiv.org/abs/1806.09605. Goals are the observations met so far. The defaults master
    worlds of some thousand observations. The paper's settings are
    :data:`~sb3_manygoals.many_goals_dqn.settings.PAPER`.

    :param policy: "CnnPolicy" for images, "MlpPolicy" for vectors, "MultiInputPolicy" for
        observations of several arrays and for GoalEnvs, or a subclass of
        :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsPolicy`
    :param env: an environment, its id, or a VecEnv, with discrete actions. Its observations are
        single arrays, Dicts of arrays, or those of a GoalEnv. One that has no goal wrapper is
        wrapped in a :class:`~sb3_manygoals.GoalBufferWrapper` or
        :class:`~sb3_manygoals.VecGoalBufferWrapper`
    :param learning_rate: step size, or a function of the share of training that is left, from 1 to
        0, as in SB3. None: if updates are made as needed, it falls linearly from at most 2e-3 to 0
        in each cycle of updates. Else it is 1e-3 until learning starts, and falls from there
        linearly to 0 at the end
    :param buffer_size: number of transitions in the replay memory, of all environments together.
        If ``target_class`` is ``PlannedTargets`` and states are not learned, nothing reads
        transitions and none are stored
    :param learning_starts: environment steps, with random actions, before the first update
    :param batch_size: number of states or transitions in an update, S
    :param tau: step of an update of the target network, in [0, 1]. None: 0.05, or 1.0, which copies
        the weights, if ``target_update_interval`` is given. Only for targets that use a target
        network
    :param gamma: discount factor, in [0, 1)
    :param train_freq: update after so many steps, as in SB3: a number of steps of the VecEnv, or a
        tuple such as ``(1, "episode")``. None: ``updates_per_step`` determines it, or it is SB3's
        default, 4, if ``gradient_steps`` is given
    :param gradient_steps: number of updates each time, as in SB3. -1: as many as steps were made.
        None: ``updates_per_step`` determines it, or it is SB3's default, 1, if ``train_freq`` is
        given
    :param replay_buffer_class: :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer` or a
        subclass, such as :class:`~sb3_manygoals.ManyGoalsFrameReplayBuffer`. None: the former
    :param replay_buffer_kwargs: further arguments of the replay memory
    :param optimize_memory_usage: must be False. The replay memory keeps a recurring state only once
    :param n_steps: must be 1. Transitions teach many goals, which end at different steps
    :param target_update_interval: environment steps between two updates of the target network.
        None: it is updated after each update of the trained one. Only for targets that use a target
        network
    :param exploration_fraction: share of training over which the exploration rate falls linearly
    :param exploration_initial_eps: exploration rate at the beginning. It is the probability of a
        random action in ``predict`` and, with targets that do not act, such as ``TDTargets``,
        during training. If it is above 0, ``TDTargets`` by default add random actions where the
        agent goes in circles, in worlds without chance. ``PlannedTargets`` act: in training,
        ``exploring_episodes`` of :class:`~sb3_manygoals.many_goals_dqn.PlannedTargets` takes its
        place
    :param exploration_final_eps: exploration rate at the end
    :param max_grad_norm: greatest norm of the gradient. None: it is not clipped
    :param goal_batch_size: number of goals in an update, G
    :param updates_per_step: number of updates for each environment step, of all environments
        together. It takes the place of ``train_freq`` and ``gradient_steps``. None: if these two
        are not given, ``updates_per_step`` of the class of targets: 0.3 for ``TDTargets``, and 0.04
        for ``PlannedTargets``, whose updates take more time. It changes if other targets are chosen
        during training
    :param updates_as_needed: whether updates wait until the world is known, at most for half of
        training, and rest while the network makes no errors, see
        :class:`~sb3_manygoals.many_goals_dqn.pacing.UpdatePacer`. Those that waited are made later.
        If False, and for bootstrapped values, whose errors nobody knows, all updates are made when
        they are due. It has no effect if ``train_freq`` or ``gradient_steps`` are given
    :param target_class: :class:`~sb3_manygoals.many_goals_dqn.PlannedTargets`, values from planning
        in a model of the world; :class:`~sb3_manygoals.many_goals_dqn.TDTargets`, the paper's
        target network; or another subclass of :class:`~sb3_manygoals.many_goals_dqn.Targets`.
        None: ``PlannedTargets`` while observations recur and the world does not seem to have far
        more states than training has steps, else ``TDTargets``. The log and ``model.targets`` say
        which
    :param target_kwargs: arguments of the ``target_class``. None: its defaults
    :param state_class: which observations are one state. :class:`~sb3_manygoals.world.ExactStates`:
        those that are equal. :class:`~sb3_manygoals.world.LearnedStates`: those that are
        interchangeable, which is learned from transitions in the replay memory. None: the former
        while observations recur. Else the latter, if ``target_class`` is None and training has at
        least 20,000 steps, and if states that are learned recur. With ``state_key``, it must be
        None
    :param state_kwargs: further arguments of learned states, such as ``n_updates``. None: their
        defaults
    :param goal_wrapper_kwargs: arguments of the goal wrapper that is put around an ``env`` without
        one. None: its defaults
    :param goals_in_replay: whether the goals are the next observations in the replay memory. This
        is for worlds with too many observations to keep, such as games; see
        :class:`~sb3_manygoals.many_goals_dqn.ReplayGoals`. It needs ``TDTargets`` and uniform
        choice of goals
    :param action_masks: whether the environment gives ``info["action_mask"]`` at every reset and
        step. Then only allowed actions are taken, and targets maximize over allowed next actions.
        If False, masks are ignored
    :param stats_window_size: number of episodes over which the log averages
    :param tensorboard_log: folder of the log for TensorBoard. None: no such log
    :param policy_kwargs: further arguments of the policy. None: its defaults
    :param verbose: 0 for no output, 1 for information, 2 for debugging
    :param seed: seed of all random generators. None: other random numbers in every run
    :param device: device of the networks. "auto": a GPU if there is one
    :param _init_setup_model: whether to build the networks at once. ``load`` builds them later
    :raises TypeError: if observations cannot be goals, actions are not discrete, or a class is of
        the wrong kind
    :raises ValueError: if an argument is out of its range, or two do not fit together
    :raises MemoryError: if replay memory and goals, once full, do not fit into the memory that is
        available. Observations in the replay memory do not count: it keeps fewer, with a warning
    """

    stream = Stream.MANY_GOALS_DQN
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "CnnPolicy": CnnPolicy,
        "MlpPolicy": MlpPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    observation_space: spaces.Dict
    action_space: spaces.Discrete
    learning_rate: float | Schedule | None  # type: ignore[assignment]
    policy: ManyGoalsPolicy  # type: ignore[assignment]
    replay_buffer: ManyGoalsReplayBuffer
    q_net: UniversalQNetwork  # type: ignore[assignment]
    q_net_target: UniversalQNetwork | None  # type: ignore[assignment]
    max_grad_norm: float | None  # type: ignore[assignment]
    target_update_interval: int | None  # type: ignore[assignment]
    goal_buffer: GoalBuffer | None
    """The known goals. None in a model that was loaded without an environment and without goals."""
    world: WorldModel | None
    """The model of the world. None if ``goal_buffer`` is None."""
    targets: Targets
    """What updates learn from."""
    goal_updates: NDArray[np.int64]
    """
    How often each goal was in an update, by its id, shape (capacity,). All 0 with
    ``goals_in_replay``.
    """

    def __init__(
        self,
        policy: str | type[ManyGoalsPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule | None = None,
        buffer_size: int = 1_000_000,
        learning_starts: int = 1_000,
        batch_size: int = 128,
        tau: float | None = None,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] | None = None,
        gradient_steps: int | None = None,
        replay_buffer_class: type[ManyGoalsReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int | None = None,
        exploration_fraction: float = 0.5,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.1,
        max_grad_norm: float | None = None,
        *,
        goal_batch_size: int = 128,
        updates_per_step: float | None = None,
        updates_as_needed: bool = True,
        target_class: type[Targets] | None = None,
        target_kwargs: dict[str, Any] | None = None,
        state_class: type[ExactStates] | None = None,
        state_kwargs: dict[str, Any] | None = None,
        goal_wrapper_kwargs: dict[str, Any] | None = None,
        goals_in_replay: bool = False,
        action_masks: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        _check_unsupported(optimize_memory_usage, n_steps)
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
        settings = check_kwargs("goal_wrapper_kwargs", goal_wrapper_kwargs)
        if goals_in_replay and "goal_buffer" in settings:
            raise ValueError(
                "goals_in_replay: the goals are in the replay memory, goal_buffer must not be given"
            )
        kinds = [name for name in KINDS_OF_GOALS if settings.get(name) is not None]
        if goals_in_replay and kinds:
            raise ValueError(
                f"goals_in_replay: goals are whole observations, {' and '.join(kinds)} must not be "
                "given"
            )
        if env is not None and not is_goal_wrapped(env) and goals_in_replay:
            env = wrap_goal_env(
                env, {**settings, "goal_buffer": ReplayGoals(env.observation_space)}
            )
        elif env is not None:
            env = wrap_goal_env(env, settings)
        if learning_rate is not None:
            learning_rate = check_schedule("learning_rate", learning_rate)
        rhythm_is_given = train_freq is not None or gradient_steps is not None
        _check_rhythm(rhythm_is_given, updates_per_step)
        super().__init__(
            self._policy_of(policy),  # type: ignore[arg-type]
            env,  # type: ignore[arg-type]
            learning_rate,  # type: ignore[arg-type]  # None is the default schedule
            check_count("buffer_size", buffer_size, floats=True),
            check_count("learning_starts", learning_starts, at_least=0, floats=True),
            check_count("batch_size", batch_size, floats=True),
            tau=_tau(tau, target_update_interval),
            gamma=gamma,
            # If only one of the two is given, the other has the default of SB3's DQN.
            train_freq=4 if train_freq is None else _checked_train_freq(train_freq),
            gradient_steps=check_count(
                "gradient_steps", 1 if gradient_steps is None else gradient_steps, at_least=-1
            ),
            replay_buffer_class=replay_buffer_class or ManyGoalsReplayBuffer,
            replay_buffer_kwargs=check_kwargs("replay_buffer_kwargs", replay_buffer_kwargs),
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=exploration_initial_eps,
            exploration_final_eps=exploration_final_eps,
            policy_kwargs=check_kwargs("policy_kwargs", policy_kwargs),
            stats_window_size=check_count("stats_window_size", stats_window_size),
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=check_seed(seed),
            _init_setup_model=False,
        )
        self.max_grad_norm = max_grad_norm
        self.target_update_interval = None
        if target_update_interval is not None:
            self.target_update_interval = check_count(
                "target_update_interval", target_update_interval, floats=True
            )
        self.goal_batch_size = check_count("goal_batch_size", goal_batch_size, floats=True)
        self.updates_per_step = updates_per_step
        # The names of the arguments of load() that change the model, while it is being loaded.
        self._given_at_loading: tuple[str, ...] = ()
        # None in a model that is being loaded, which has it in its file. Files of earlier versions
        # do not have it.
        self._rhythm_is_given: bool | None = rhythm_is_given if _init_setup_model else None
        # Likewise.
        self._tau_is_given: bool | None = tau is not None if _init_setup_model else None
        self.updates_as_needed = updates_as_needed
        self.target_class = target_class
        self.target_kwargs = _own_kwargs("target_kwargs", target_kwargs)
        self.state_class = state_class
        self.state_kwargs = check_kwargs("state_kwargs", state_kwargs)
        self.goals_in_replay = goals_in_replay
        self.action_masks = action_masks
        self._check_states()
        self._check_targets()
        self._check_target_network(tau, target_update_interval)
        # The settings are saved with the model. Goals are saved elsewhere.
        settings.pop("goal_buffer", None)
        self.goal_wrapper_kwargs = {
            # Functions are not copied: they may refer to what cannot be.
            name: value if name in KINDS_OF_GOALS else copy.deepcopy(value)
            for name, value in settings.items()
        }
        self._init_own_attributes()
        if _init_setup_model:
            self._setup_model()

    def _policy_of(self, policy: str | type[ManyGoalsPolicy]) -> type[BasePolicy]:
        """Return the class of a policy. SB3 would refuse these names for Dict observations."""
        if isinstance(policy, type):
            return policy
        if not isinstance(policy, str):
            raise TypeError(
                f"policy must be one of {', '.join(self.policy_aliases)}, or a class, got "
                f"{policy!r}"
            )
        if policy not in self.policy_aliases:
            raise ValueError(
                f"policy must be one of {', '.join(self.policy_aliases)}, got {policy!r}"
            )
        return self.policy_aliases[policy]

    def _init_own_attributes(self) -> None:
        """Set the attributes that SB3's DQN does not have."""
        self.exploration_rate = self.exploration_initial_eps
        self.goal_buffer = None
        self.world = None
        self.goal_config: dict[str, Any] | None = None
        """Arguments of the goal buffer. They are saved, so that held-out goals stay held out."""
        self.goal_updates = np.zeros(0, dtype=np.int64)
        # The goals that load_world has restored.
        self._restored_goals: GoalBuffer | None = None
        self.selector: GoalSelector | None = None
        """The rule that chooses goals in all environments."""
        # The class and the arguments of the selector.
        self._selector_settings: tuple[type[GoalSelector], dict[str, Any]] | None = None
        self._trackers: list[GoalTracker] = []
        # The class of targets with which a model goes on after loading.
        self._last_target_class: type[Targets] | None = None
        self._target_choice = TargetChoice()
        self._learned_at_stage = 0
        self._learned_from = 0
        # Whether learned states were given up, because they do not recur.
        self._gave_up_states = False
        # When updates are made, and for which length of training.
        self._pacer = UpdatePacer()
        self._paced_timesteps = 0
        # While learn_from makes as many updates as the user said, how many of them are to come.
        self._to_come_from_data: float | None = None
        # Whether learn() is running.
        self._is_learning = False
        # The time step at which this rollout began, if rollouts are cut short, and whether the one
        # that has just ended was a whole one, after which updates are due.
        self._rollout_begin = 0
        self._updates_are_due = True
        self._warned_of_alike_goals = False
        # How many states were known when inputs were standardized. 0: they were not.
        self._n_standardized_by = 0
        # The loss of the last update, on the device.
        self._loss = th.zeros(())
        self._last_action_masks: NDArray[np.bool_] | None = None
        # The share of goal episodes that begin as exploring ones.
        self._exploring_share = 1.0
        # The log interval of this call of learn(), and the updates at the last row of the log.
        self._log_interval: int | None = None
        self._n_updates_logged = 0

    def _check_numbers(self) -> None:
        """
        Raise a ValueError if a number is out of its range, also one that loading has changed. Make
        integers of floats that count something.
        """
        check_number("gamma", self.gamma, at_least=0, below=1)
        for name in (
            "tau",
            "exploration_fraction",
            "exploration_initial_eps",
            "exploration_final_eps",
        ):
            check_number(name, getattr(self, name), at_least=0, at_most=1)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, above=0)
        if self.learning_rate is not None:
            self.learning_rate = check_schedule("learning_rate", self.learning_rate)
        least = {"buffer_size": 1, "learning_starts": 0, "batch_size": 1, "goal_batch_size": 1}
        if self.target_update_interval is not None:
            least["target_update_interval"] = 1
        for name, at_least in least.items():
            setattr(self, name, check_count(name, getattr(self, name), at_least, floats=True))

    def _check_states(self) -> None:
        """Raise an error if arguments of states are wrong or do not fit together."""
        check_state_class(self.state_class, None)
        if self.state_kwargs and not self._may_learn_states:
            raise ValueError(
                f"state_kwargs {sorted(self.state_kwargs)} given, but states will not be learned: "
                "they need state_class=LearnedStates"
            )
        if self.goals_in_replay and self.state_class is not None:
            raise ValueError(
                "goals_in_replay: goals are forgotten, and so are states, state_class must not be "
                "given"
            )

    def _check_states_of(self, space: spaces.Space[Any], state_key: StateKey | None) -> None:
        """
        Raise an error if these observations cannot have states as the user wants them.

        :param space: space of the observations
        :param state_key: the user's key of states, or None
        """
        # Goals that were given have a key, too.
        check_state_class(self.state_class, state_key)
        if not self.state_kwargs:
            return
        if state_key is not None:
            raise ValueError(
                f"state_kwargs {sorted(self.state_kwargs)} given, but states will not be learned: "
                "state_key says what a state is"
            )
        state_class = self.state_class or LearnedStates
        try:
            # By default, states are learned after thousands of steps only.
            state_class(space, 1, **self.state_kwargs)
        except TypeError as error:
            raise TypeError(f"state_kwargs: {error}") from error
        except ValueError as error:
            raise ValueError(f"state_kwargs: {error}") from error

    @property
    def _may_learn_states(self) -> bool:
        """Whether states are learned, or may be if observations do not recur."""
        if self.state_class is None:
            return self.target_class is None and not self.goals_in_replay
        return issubclass(self.state_class, LearnedStates)

    def _check_targets(self) -> None:
        """
        Raise an error if arguments of the targets are wrong or do not fit together, also some that
        loading has changed.
        """
        first = self._first_target_class
        kwargs = self.target_kwargs or {}
        if not (isinstance(first, type) and issubclass(first, Targets)):
            raise TypeError(
                "target_class must be TDTargets, PlannedTargets or another subclass of Targets, "
                f"got {first!r}"
            )
        if self.target_class is None and kwargs:
            raise ValueError(
                f"target_kwargs {sorted(kwargs)} given without target_class: target_kwargs "
                "requires target_class, because each target class has its own arguments"
            )
        if self.goals_in_replay and issubclass(first, PlannedTargets):
            raise ValueError(
                "goals_in_replay: goals are forgotten, so PlannedTargets cannot plan for them, use "
                "TDTargets"
            )
        if self.goals_in_replay and kwargs.get("goal_sampling") == "behavior":
            raise ValueError(
                'goals_in_replay needs goal_sampling "uniform" or "segments", got "behavior"'
            )

    def _check_target_network(self, tau: float | None, target_update_interval: int | None) -> None:
        """Raise an error if arguments of the target network are given to targets without one."""
        given = {"tau": tau, "target_update_interval": target_update_interval}
        names = [name for name, value in given.items() if value is not None]
        kind = self.target_class
        if names and kind is not None and not kind.uses_target_network:
            raise ValueError(
                f"{' and '.join(names)} given, but {kind.__name__} uses no target network"
            )

    @property
    def _first_target_class(self) -> type[Targets]:
        """The class of targets to begin with, or to go on with after loading."""
        if self.target_class is not None:
            return self.target_class
        if self.goals_in_replay:
            return TDTargets
        return getattr(self, "_last_target_class", None) or PlannedTargets

    @property
    def _stores_transitions(self) -> bool:
        """Whether targets read transitions, or may be replaced by others that do."""
        is_read = self.target_class is None or self.target_class.uses_replay_buffer
        # A goal buffer of the user's may have states that are learned.
        return is_read or self._may_learn_states or self._learns_states

    def _setup_lr_schedule(self) -> None:
        """Make a function of the learning rate."""
        if self.learning_rate is None:
            # A method of the model would be a circle of references: the model would stay in memory
            # after nothing else refers to it.
            self.lr_schedule = LateLinearSchedule(_DEFAULT_LEARNING_RATE)
        else:
            super()._setup_lr_schedule()

    def _update_learning_rate(
        self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer
    ) -> None:
        """Set the learning rate of updates that are made steadily."""
        if isinstance(self.lr_schedule, LateLinearSchedule):
            # The default begins to fall only when learning starts.
            random_share = self.learning_starts / max(self._total_timesteps, 1)
            self.lr_schedule.falling_share = 1.0 - random_share
        super()._update_learning_rate(optimizers)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """Compute the share of training that is left, at least 0, also in the last rollout."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _setup_model(self) -> None:
        """Build replay memory, networks and targets."""
        self._check_file_format()
        # Loading may have changed these.
        _check_unsupported(self.optimize_memory_usage, self.n_steps)
        self.state_kwargs = check_kwargs("state_kwargs", self.state_kwargs)
        self.target_kwargs = _own_kwargs("target_kwargs", self.target_kwargs)
        self._check_states()
        self._check_targets()
        replay_class = self.replay_buffer_class or ManyGoalsReplayBuffer
        self.replay_buffer_class = replay_class
        self.replay_buffer_kwargs = check_kwargs("replay_buffer_kwargs", self.replay_buffer_kwargs)
        if not (isinstance(replay_class, type) and issubclass(replay_class, ManyGoalsReplayBuffer)):
            raise TypeError(
                f"replay_buffer_class must be a ManyGoalsReplayBuffer, got {replay_class!r}"
            )
        if self._rhythm_is_given is None:
            # In files of earlier versions, updates_per_step is None only if the rhythm was given.
            self._rhythm_is_given = self.updates_per_step is None
        self._take_given_at_loading()
        self._check_numbers()
        self._set_rhythm(self._first_target_class)
        self.replay_buffer_kwargs = {
            **self.replay_buffer_kwargs,
            "action_masks": self.action_masks,
            "wide_goal_ids": self.goals_in_replay,
        }
        if self.env is not None:
            check_memory_needs(self, self.env)
        # Whether the goal episode of each environment explores.
        self._explores: NDArray[np.bool_] = np.ones(self.n_envs, dtype=np.bool_)
        # Whether the goal episode of each environment had random steps.
        self._had_random_steps: NDArray[np.bool_] = np.ones(self.n_envs, dtype=np.bool_)
        self._circles = Circles(self.n_envs)
        # Whether each of the last goal episodes explored, and whether it reached its goal.
        self._episode_outcomes: deque[tuple[bool, bool]] = deque(maxlen=self._stats_window_size)
        # DQN's own method would look for a target network, which planned targets do not have.
        OffPolicyAlgorithm._setup_model(self)
        if self.n_envs > 1 and cast(TrainFreq, self.train_freq).unit == TrainFrequencyUnit.EPISODE:
            raise ValueError(
                f"train_freq can count episodes of one environment only, got {self.n_envs}: give a "
                "number of steps"
            )
        self.policy.use_target_network(self._first_target_class.uses_target_network)
        self._create_aliases()
        self.exploration_schedule = LinearSchedule(
            self.exploration_initial_eps, self.exploration_final_eps, self.exploration_fraction
        )
        if self.env is not None:
            self._adopt_env(self.env)
            self._use_chosen_states()
            self.policy.shift_values(self.targets.initial_value)
            step_cost = (1.0 - self.gamma) * self.goal_reward - self.step_reward
            if step_cost > 0.0:
                self.policy.scale_distances(step_cost)

    def _use_chosen_states(self) -> None:
        """Begin with the class of states that the user chose, after a check of its arguments."""
        assert self.goal_buffer is not None
        self._check_states_of(self.goal_buffer.observation_space, self.goal_buffer.state_key)
        self._check_class_of(self.goal_buffer.states)
        if self._is_to_learn_states:
            n_goals = len(self.goal_buffer)
            if n_goals:
                warnings.warn(
                    f"the {n_goals} goals in env's goal buffer are forgotten: with "
                    "state_class=LearnedStates, goals are found anew once states are learned",
                    stacklevel=4,
                )
            self._use_learned_states()

    def _check_class_of(self, states: ExactStates) -> None:
        """
        Raise a ValueError if states are learned, and not of the class that the user chose.

        :param states: the states of a goal buffer
        """
        kind = self.state_class
        if kind is None or not isinstance(states, LearnedStates):
            return
        if not (issubclass(kind, LearnedStates) and isinstance(states, kind)):
            raise ValueError(
                f"env's goal buffer has states of the class {type(states).__name__}, but the model "
                f"has state_class={kind.__name__}: give it a goal buffer without state_class"
            )

    def _take_given_at_loading(self) -> None:
        """
        Let what ``load`` was given take the place of what was saved.

        What was derived from a saved argument, and was not the user's, gets its default.
        """
        given = {name: getattr(self, name, None) for name in self._given_at_loading}
        self._given_at_loading = ()
        self._check_target_network(given.get("tau"), given.get("target_update_interval"))
        if "tau" in given:
            self._tau_is_given = self.tau is not None
        if self._tau_is_given is None:
            # Files of earlier versions do not say so. This tau may have been derived.
            may_be_derived = self.tau in (_DEFAULT_TAU, _TAU_AT_INTERVALS)
            self._tau_is_given = not may_be_derived
        if {"tau", "target_update_interval"} & given.keys() and not self._tau_is_given:
            self.tau = _tau(None, self.target_update_interval)
        self._take_rhythm(given)
        if {"state_class", "state_kwargs"} & given.keys():
            self._take_states("state_class" in given)

    def _take_rhythm(self, given: dict[str, Any]) -> None:
        """
        Let what ``load`` was given say when updates are made.

        :param given: the arguments of ``load`` that change the model
        """
        rhythm = {"train_freq": 4, "gradient_steps": 1}
        is_new = any(given.get(name) is not None for name in rhythm)
        _check_rhythm(is_new, given.get("updates_per_step"))
        if is_new:
            self.updates_per_step = None
        for name, default in rhythm.items():
            was_derived = is_new and not self._rhythm_is_given
            if getattr(self, name) is None or (was_derived and name not in given):
                setattr(self, name, default)
        if "train_freq" in given:
            self.train_freq = _checked_train_freq(self.train_freq)
        self.gradient_steps = check_count("gradient_steps", self.gradient_steps, at_least=-1)
        if is_new:
            self._rhythm_is_given = True
        elif given.get("updates_per_step") is not None or rhythm.keys() <= given.keys():
            self._rhythm_is_given = False

    def _take_states(self, is_class_given: bool) -> None:
        """
        Let the states that ``load`` was given take the place of those that were saved.

        :param is_class_given: whether their class was given. If not, their arguments were
        """
        config = self.goal_config
        if config is None:
            return
        self._check_states_of(self.observation_space["observation"], config["state_key"])
        kind = self.state_class if is_class_given else config["state_class"]
        is_new = (kind or ExactStates) is not (config["state_class"] or ExactStates)
        if is_new or (self._gave_up_states and self.state_kwargs):
            # It went over to bootstrapping because the states that it had did not recur.
            self._last_target_class = None
            self._gave_up_states = False
        is_learned = kind is not None and issubclass(kind, LearnedStates)
        kwargs = self._kwargs_of_learned_states if is_learned else {}
        self.goal_config = {**config, "state_class": kind, "state_kwargs": kwargs}

    def _updates_each_step(self, target_class: type[Targets]) -> float | None:
        """
        Return how many updates there are for each environment step.

        :param target_class: class of the targets
        :return: what the user said, or else the default of the targets. None if ``train_freq`` or
            ``gradient_steps`` are given
        """
        if self.updates_per_step is None and not self._rhythm_is_given:
            return target_class.updates_per_step
        return self.updates_per_step

    def _set_rhythm(self, target_class: type[Targets]) -> None:
        """Set SB3's two arguments by the number of updates for each step, if that is known."""
        per_step = self._updates_each_step(target_class)
        if per_step is not None:
            self.train_freq, self.gradient_steps = update_rhythm(per_step, self.n_envs)
            self._convert_train_freq()

    @property
    def _is_trained(self) -> bool:
        """Whether the model has learned with its rewards."""
        return self._n_updates > 0

    @property
    def _is_to_learn_states(self) -> bool:
        """Whether the user wants learned states, and the goal buffer has others."""
        assert self.goal_buffer is not None
        is_wanted = self.state_class is not None and self._may_learn_states
        return is_wanted and not isinstance(self.goal_buffer.states, LearnedStates)

    def _make_targets(self, target_class: type[Targets] | None = None) -> None:
        """
        Make targets, unless there are targets of this class and context already.

        :param target_class: class of the targets. None: the class to begin with
        """
        assert self.goal_buffer is not None
        assert self.world is not None
        kind = self._first_target_class if target_class is None else target_class
        context = TargetContext(
            self.policy,
            self.replay_buffer,
            self.goal_buffer,
            self.world,
            self.gamma,
            self.goal_reward,
            self.step_reward,
            self.tau,
            self.target_update_interval,
            self.seed,
        )
        known = getattr(self, "targets", None)
        if known is not None and type(known) is kind and known.context == context:
            return
        self.targets = kind(context, **(self.target_kwargs or {}))
        for owner in (self.targets, self.replay_buffer):
            note_construction(owner, self._saved_parts)
        self.replay_buffer.keeps_behavior_goals = self.targets.uses_behavior_goals
        self._last_target_class = kind
        self._set_rhythm(kind)
        self.policy.use_target_network(kind.uses_target_network)
        self._create_aliases()

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        """Prepare training."""
        last_obs = self._last_obs
        # Another model may have been built in this environment since, or have got it.
        if self.env is not None and self._give_goals_to_trackers():
            self._last_obs = None
        success_buffer = self.ep_success_buffer
        last_step = self.num_timesteps
        try:
            prepared = super()._setup_learn(*args, **kwargs)
        finally:
            # Steps may be counted from 0 again, also if a reset then fails.
            self._rollout_begin += self.num_timesteps - last_step
        if self.ep_success_buffer is not success_buffer:
            # SB3 has begun to count episodes anew.
            self._episode_outcomes.clear()
        self._warn_if_nothing_is_learned()
        if self.num_timesteps == 0 or self._total_timesteps != self._paced_timesteps:
            # This training does not go on from a checkpoint.
            self._pacer.restart()
            self._paced_timesteps = self._total_timesteps
            self._learned_at_stage = 0
            if self._is_paced and self._n_updates == 0:
                cast(PlannedTargets, self.targets).is_discovering = True
        is_reset = self._last_obs is not last_obs
        if is_reset:
            self._circles = Circles(self.n_envs)
        if self.action_masks and (is_reset or self._last_action_masks is None):
            self._read_action_masks()
        return prepared

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        *args: Any,
        **kwargs: Any,
    ) -> RolloutReturn:
        """
        Collect transitions until the next update, or until training ends if that comes first.

        A rollout that training cuts short has no updates of its own. It goes on in the next
        training, so that several short trainings have as many updates as a long one. With
        ``train_freq`` or ``gradient_steps``, no rollout is cut short, as in SB3.

        :param env: the environments
        :param callback: callback that is called at each step
        :param train_freq: length of the rollout
        :param args: further arguments of SB3's method
        :param kwargs: further arguments of SB3's method
        :return: how many steps were made, how many episodes ended, and whether training goes on
        """
        if not self._cuts_rollouts:
            return super().collect_rollouts(env, callback, train_freq, *args, **kwargs)
        # Somebody may have set the number of steps back.
        self._rollout_begin = min(self._rollout_begin, self.num_timesteps)
        left = self._total_timesteps - self.num_timesteps
        n_to_come = min(train_freq.frequency * env.num_envs - self._n_waited, left)
        frequency = max(math.ceil(n_to_come / env.num_envs), 1)
        shorter = train_freq._replace(frequency=frequency)
        rollout = super().collect_rollouts(env, callback, shorter, *args, **kwargs)
        self._updates_are_due = self._is_rollout_whole
        if self._updates_are_due and self.num_timesteps <= self.learning_starts:
            # Random steps at the beginning have no updates.
            self._begin_next_rollout()
        return rollout

    @property
    def _n_waited(self) -> int:
        """How many steps, of all environments together, came after the last whole rollout."""
        return self.num_timesteps - self._rollout_begin if self._cuts_rollouts else 0

    @property
    def _is_rollout_whole(self) -> bool:
        """Whether a rollout that may be cut short has all of its steps."""
        frequency = cast(TrainFreq, self.train_freq).frequency
        return self._cuts_rollouts and self._n_waited >= frequency * self.n_envs

    def _begin_next_rollout(self) -> None:
        """Begin a rollout that may be cut short. Steps beyond the last one count for this one."""
        frequency = cast(TrainFreq, self.train_freq).frequency
        self._rollout_begin = self.num_timesteps - self._n_waited % (frequency * self.n_envs)

    @property
    def _cuts_rollouts(self) -> bool:
        """Whether rollouts end with training, and not only with the next update."""
        train_freq = cast(TrainFreq, self.train_freq)
        is_step = train_freq.unit == TrainFrequencyUnit.STEP
        return is_step and not self._rhythm_is_given

    def _warn_if_nothing_is_learned(self) -> None:
        """Warn if training ends before the first update, or if a loaded model knows nothing."""
        assert self.world is not None
        train_freq = cast(TrainFreq, self.train_freq)
        needed = self.learning_starts + 1
        rollouts = ""
        # Nobody knows the length of rollouts of episodes.
        if train_freq.unit == TrainFrequencyUnit.STEP:
            rollout = train_freq.frequency * self.n_envs
            rollouts = f", in rollouts of {rollout},"
            end = self.num_timesteps + rollout - self._n_waited
            end += max(self.learning_starts - end + rollout, 0) // rollout * rollout
            has_own_rates = self._is_paced and self.learning_rate is None
            if not has_own_rates and not self.lr_schedule(0.0):
                # With a learning rate of 0, an update at the end would teach nothing.
                needed = end + 1
            elif self._cuts_rollouts:
                # All environments make the last step.
                needed = end - self.n_envs + 1
        if self._n_updates == 0 and self._total_timesteps < needed:
            plans = ""
            if isinstance(self.targets, PlannedTargets):
                plans = " by the network. goal_policy() and task_policy() plan in what was met"
            warnings.warn(
                f"learning_starts={self.learning_starts} random steps{rollouts} come before an "
                f"update, and training ends after {self._total_timesteps}: nothing is learned"
                f"{plans}",
                stacklevel=6,
            )
        if self._n_updates == 0 and self.num_timesteps == 0:
            return
        if self.targets.uses_replay_buffer and self.replay_buffer.size() == 0:
            warnings.warn(
                "the model was trained, its replay memory is empty: load_replay_buffer or it "
                "unlearns",
                stacklevel=6,
            )
        elif not self.targets.uses_replay_buffer and self.world.n_counted == 0:
            # With PlannedTargets of the user's choice, there are no transitions to load.
            also = ", or load_replay_buffer," if self._stores_transitions else ""
            warnings.warn(
                "the model was trained, but it knows nothing of the world: load_world"
                f"{also} or it unlearns",
                stacklevel=6,
            )

    def _read_action_masks(self) -> None:
        """Read which actions are allowed in what the environments show after a reset."""
        assert self.env is not None
        infos = current_reset_infos(self.env)
        self._last_action_masks = read_action_masks(infos, int(self.action_space.n))

    def _begin_anew_if_moved(self) -> None:
        """Reset the environments if a callback has moved them."""
        last_obs = self._last_obs
        super()._begin_anew_if_moved()
        if self._last_obs is last_obs:
            return
        self._circles = Circles(self.n_envs)
        if self.action_masks:
            self._read_action_masks()

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        """
        Prepare callbacks, with a progress bar that shows the state of plans. Warn of evaluations
        that would tell nothing.
        """
        assert self.goal_buffer is not None
        prepared = self._with_progress_bar(callback, progress_bar)
        warn_of_unknown_evaluations([prepared], self.goal_buffer)
        return prepared

    def _with_progress_bar(self, callback: MaybeCallback, progress_bar: bool) -> BaseCallback:
        """Prepare callbacks, with a progress bar if it is wanted."""
        if not progress_bar:
            return super()._init_callback(callback)
        given = callback if isinstance(callback, list) else [callback]
        # SB3 converts functions and None likewise.
        callbacks = [
            one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given
        ]
        return super()._init_callback([*callbacks, PlanProgressBarCallback()])

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Choose actions: random ones at first, then those of the targets or of the network."""
        self._begin_anew_if_moved()
        assert isinstance(self._last_obs, dict)
        masks = self._last_action_masks
        actions: NDArray[Any] | None
        if self.num_timesteps < learning_starts:
            self._had_random_steps[:] = True
            if masks is None:
                # The numbers that the space would draw one by one.
                actions = self.action_space.np_random.integers(self.action_space.n, size=n_envs)
            else:
                actions = random_allowed(masks, self.rng)
            return actions, actions
        state_ids = np.concatenate([tracker.state_ids for tracker in self._trackers])
        goal_ids = np.concatenate([tracker.desired_ids for tracker in self._trackers])
        actions = self.targets.act(state_ids, goal_ids, self._explores, self.rng, masks)
        if actions is None:
            actions, _ = self.predict(self._last_obs, action_masks=masks)
            assert self.world is not None
            leaves_circles = self.targets.leaves_circles and self.exploration_rate > 0.0
            if leaves_circles and self._circles.are_certain(self.world):
                actions = self._leave_circles(actions, state_ids)
        return actions, actions

    def _leave_circles(
        self, actions: NDArray[np.int64], state_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """
        Return random actions in place of some of these, where the agent goes in circles.

        :param actions: an action for each environment, shape (n,)
        :param state_ids: the state of each environment, -1 for unknown ones, shape (n,)
        """
        is_back = self._circles.visit(state_ids, self._contents_of_states(state_ids))
        if not is_back.any():
            # No random numbers are drawn, so nothing changes in worlds without circles.
            return actions
        masks = self._last_action_masks
        n = len(actions)
        leaves = is_back & (self.rng.random(n) < _LEAVES_CIRCLE)
        if masks is None:
            others = self.rng.integers(self.action_space.n, size=n)
        else:
            others = random_allowed(masks, self.rng)
        return np.where(leaves, others, actions)

    def _contents_of_states(self, state_ids: NDArray[np.int64]) -> NDArray[Any] | None:
        """
        Return what tells apart the states that environments show, if not all of them are known, as
        when the goal buffer is full. None: they are known, or there are no states.

        :param state_ids: the state of each environment, -1 for unknown ones, shape (n,)
        """
        if self.goals_in_replay or not (state_ids == UNKNOWN).any():
            return None
        assert isinstance(self._last_obs, dict)
        assert self.goal_buffer is not None
        seen = self._last_obs["observation"]
        states = self.goal_buffer.states
        return states.keys(seen) if isinstance(states, KeyedStates) else seen

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: NDArray[Any],
        new_obs: Any,
        reward: NDArray[Any],
        dones: NDArray[np.bool_],
        infos: list[dict[str, Any]],
    ) -> None:
        """Record the transitions in the model of the world and, if targets read it, in memory."""
        assert self.world is not None
        self.world.record(
            np.array([info["state_id"] for info in infos]),
            buffer_action.reshape(-1),
            np.array([info["next_state_id"] for info in infos]),
            np.array([info["env_reward"] for info in infos], dtype=np.float64),
            np.array([info["env_terminated"] for info in infos]),
        )
        if self._stores_transitions:
            next_obs = _ends_of_steps(new_obs, dones, infos)
            last_obs: Any = self._last_obs
            replay_buffer.add(last_obs, next_obs, buffer_action, reward, dones, infos)
        self._last_obs = new_obs
        self._note_transition()
        if dones.any():
            self._note_episodes(dones, infos)
            self._circles.begin_anew(dones)
            draws = self.rng.random(int(dones.sum()))
            self._explores[dones] = draws < self._exploring_share
        if self.action_masks:
            assert self.env is not None
            self._last_action_masks = next_action_masks(
                self.env, int(self.action_space.n), infos, dones
            )

    def _note_episodes(self, dones: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
        """Note whether the goal episodes that have ended explored, and whether they succeeded."""
        explored = self._explores | self._had_random_steps
        for row in np.flatnonzero(dones).tolist():
            self._episode_outcomes.append((bool(explored[row]), bool(infos[row]["is_success"])))
        self._had_random_steps[dones] = False

    def _on_step(self) -> None:
        """Take note of a step of the environments."""
        if self.num_timesteps >= self.learning_starts:
            self.targets.after_step(self.num_timesteps, self.n_envs)
        progress_remaining = self._current_progress_remaining
        self.exploration_rate = self.exploration_schedule(progress_remaining)
        self._exploring_share = self.targets.exploring_share(progress_remaining)

    def train(self, gradient_steps: int, batch_size: int = 128) -> None:
        """
        Make updates of the network. ``learn`` calls this after each rollout.

        Before the updates, targets are chosen and plans are made, if they are due.

        :param gradient_steps: number of updates
        :param batch_size: number of states or transitions in each update, S. ``learn`` passes the
            model's own ``batch_size``
        :raises FloatingPointError: if a loss is not finite, and not on a CUDA device, see
            :func:`~sb3_manygoals.errors.check_loss`. The networks are as before this update
        :raises ValueError: if there is not one loss for each goal
        """
        self._require_env()
        # Switch to train mode (this affects batch norm / dropout)
        self.policy.set_training_mode(True)
        # Update learning rate according to schedule
        self._update_learning_rate(self.policy.optimizer)
        has_learned = self._learn_states_if_due()
        self._choose_targets(has_learned)
        has_planned = self._prepare_targets()
        if not self._updates_are_due:
            gradient_steps = 0
        updates: Iterable[Any] = range(gradient_steps)
        if self._awaits_states and not self._is_paced:
            updates = ()
        if self._is_paced:
            updates = self._needed_updates(gradient_steps, has_planned)

        if self._standardization_is_due:
            self._standardize()

        for _ in updates:
            if self._n_updates == 0:
                self._prepare_first_update()

            # Sample states and goals
            batch = self.targets.sample(batch_size, self.goal_batch_size, self.rng)
            target_values = self.targets.target_values(batch)

            # Compute the loss of each goal
            losses = self.targets.losses(batch, target_values)
            if losses.shape != batch.goal_ids.shape:
                raise ValueError(
                    f"losses of {type(self.targets).__name__} must have shape "
                    f"{tuple(batch.goal_ids.shape)}, one for each goal, got {tuple(losses.shape)}"
                )
            loss = losses.mean()
            errors.check_loss(loss, self.policy, self._n_updates + 1, self.num_timesteps)

            # Optimize the policy
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.max_grad_norm is not None:
                th.nn.utils.clip_grad_norm_(self.q_net.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.policy.update_ema()
            self.targets.after_update()

            self._n_updates += 1
            self._loss = loss.detach()
            self._note_update(batch.goal_ids, losses.detach())

        if self._is_rollout_whole:
            # Not before, so that no updates are lost if training is interrupted during them.
            self._begin_next_rollout()
        self._log_after_updates(has_planned)

    @property
    def _is_paced(self) -> bool:
        """Whether updates wait and rest."""
        is_known = self._updates_each_step(type(self.targets)) is not None
        as_needed = self.updates_as_needed and is_known
        return self._is_learning and as_needed and isinstance(self.targets, PlannedTargets)

    def _needed_updates(self, n_due: int, has_planned: bool) -> Iterator[None]:
        """
        Yield once for each update that is to be made now, and set its learning rate.

        :param n_due: number of updates that are due now
        :param has_planned: whether a new plan was made
        """
        assert isinstance(self.targets, PlannedTargets)
        per_step = self._updates_each_step(type(self.targets))
        assert per_step is not None
        pacer = self._pacer
        if self.targets.plan.model is None and not pacer.is_waiting:
            pacer.wait()
        steps_to_come = self._total_timesteps - self.num_timesteps
        to_come = per_step * steps_to_come
        if self._to_come_from_data is not None:
            to_come = self._to_come_from_data
        pacer.add_due(n_due, to_come)
        if pacer.is_waiting:
            # A model that was loaded has learned before. It may know no states yet.
            was_trained = self._n_updates > 0 and self.targets.plan.model is not None
            if was_trained or self.targets.is_settled(1.0 - self._current_progress_remaining):
                assert self.targets.plan.model is not None
                pacer.begin(len(self.targets.plan.model.tried_states))
        if pacer.is_resting and has_planned:
            pacer.compare(self._failures())
        pacer.release(n_due)
        while pacer.take(self._failures):
            if self.learning_rate is None:
                learning_rate = _LARGEST_LEARNING_RATE * pacer.step_size
                update_learning_rate(self.policy.optimizer, learning_rate)
                self.logger.record("train/learning_rate", learning_rate)
            yield
            pacer.note_update()

    def _failures(self) -> float:
        """Return the share of goals that the network fails to reach and the plan reaches."""
        assert isinstance(self.targets, PlannedTargets)
        return self.targets.failures(self.rng)

    def _prepare_first_update(self) -> None:
        """Standardize inputs by the goals that are known, and look whether goals look alike."""
        # The weights that set_parameters gave expect their own standardization, at first.
        if self.policy.is_fitted:
            self._note_standardization()
        elif self.policy.standardize:
            self._standardize()
        self._warn_of_alike_goals()

    def _prepare_targets(self) -> bool:
        """
        Let targets prepare the updates.

        :return: whether they have made a plan
        """
        progress = 1.0 - self._current_progress_remaining
        plans = False
        if isinstance(self.targets, PlannedTargets):
            if not self._is_paced:
                # Updates that do not wait need a plan, also if an interrupted training left the
                # world undiscovered.
                self.targets.is_discovering = False
            plans = self.targets.is_plan_due(progress)
        if plans:
            self.logger.info(f"planning for {len(self.targets.context.goal_buffer):,} goals")
        self.targets.before_updates(progress)
        return plans

    def _note_update(self, goal_ids: th.Tensor, losses: th.Tensor) -> None:
        """Tell the selector of an update, and count how often goals were in one."""
        assert self.selector is not None
        self.selector.observe_losses(goal_ids, losses)
        if not self.goals_in_replay:
            ids = goal_ids.cpu().numpy()
            np.add.at(self.goal_updates, ids[ids >= 0], 1)

    def _log_after_updates(self, has_planned: bool) -> None:
        """Write a row of the log after a plan, and after many updates in few episodes."""
        if self._log_interval is None:
            return
        n_updates = self._n_updates - self._n_updates_logged
        if has_planned or n_updates >= _UPDATES_PER_EPISODE * self._log_interval:
            self.dump_logs()

    def _warn_of_clock(self) -> None:
        """Warn once of a number in the observations that goes on at every step."""
        if self.world is None or "clock" in self._warned:
            return
        clock = find_clock(self.world)
        if clock is None:
            return
        assert self.goal_buffer is not None
        found = f"{clock} went on in every transition, as a clock does. So no state recurs within "
        if self.goal_buffer.goals_are_observations:
            self._warn_once(
                "clock",
                f"{found}an episode, and a goal is a place at one time. If it is a clock, leave it "
                'out, goal_wrapper_kwargs={"state_key": ...} or a wrapper that removes it',
            )
        else:
            self._warn_once(
                "clock",
                f"{found}an episode, and the network gets numbers that it has hardly seen. If it "
                "is a clock, remove it by a wrapper",
            )

    def _warn_of_endless_clock(self) -> None:
        """Warn once of a number that goes on over resets, and that is no part of states."""
        if self.world is None or "clock" in self._warned:
            return
        assert self.goal_buffer is not None
        clock = find_endless_clock(
            self.replay_buffer, self.goal_buffer.observation_space, self.world.identity
        )
        if clock is not None:
            self._warn_once(
                "clock",
                f"{clock} went on at every step in memory, also when the world was reset, as a "
                "clock does. States recur all the same, but the network gets this number, too. If "
                "it never returns to earlier values, remove it by a wrapper: no network can learn "
                "what new values mean",
            )

    def dump_logs(self) -> None:
        """Write a row of the log. The loss is copied from the device only here."""
        self._require_env()
        self._n_updates_logged = self._n_updates
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        if isinstance(self.targets, PlannedTargets) and self._episode_outcomes:
            explored = [one for one, _ in self._episode_outcomes]
            pursued = [success for one, success in self._episode_outcomes if not one]
            self.logger.record("rollout/exploring", float(np.mean(explored)))
            if pursued:
                self.logger.record("rollout/success_rate_exploiting", float(np.mean(pursued)))
        for name, value in self.targets.describe().items():
            self.logger.record(name, value)
        self.logger.record("goals/known", len(self.targets.context.goal_buffer))
        if self._n_updates > 0:
            self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
            self.logger.record("train/loss", self._loss.item())
            if self._is_paced:
                self.logger.record("train/rested_updates", self._pacer.n_rested)
                if not math.isnan(self._pacer.failures):
                    self.logger.record("train/failures", self._pacer.failures)
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
        Train the model. All episodes in callbacks and in the log are goal episodes.

        :param total_timesteps: environment steps, of all environments together, at least 1. It may
            be a float such as ``3e6``
        :param callback: one or a list of SB3's callbacks, or a function of local and global
            variables. None: no callback
        :param log_interval: a row of the log is written after so many goal episodes, or after five
            times as many updates, if they come first. One more row follows each plan. None: no log
        :param tb_log_name: name of the run for TensorBoard
        :param reset_num_timesteps: whether steps are counted from 0. False: the count goes on from
            the last training
        :param progress_bar: whether to show a progress bar, with the share of ways that the plan
            knows. It needs tqdm and rich
        :return: the model
        :raises ValueError: if ``total_timesteps`` or ``log_interval`` is below 1, the model has no
            environment, or an environment returns what is not finite or not of its space
        :raises RuntimeError: if a worker of a SubprocVecEnv has died
        :raises FloatingPointError: if a loss is not finite, see
            :func:`~sb3_manygoals.errors.check_loss`
        """
        if log_interval is not None:
            check_count("log_interval", log_interval)
        total: Any = total_timesteps  # _setup_learn makes an integer of it
        self._log_interval = log_interval
        self._is_learning = True
        try:
            super().learn(
                total, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
            )
        except errors.Fault as fault:
            self._complete(fault)
            raise
        finally:
            self._log_interval = None
            self._is_learning = False
            self._updates_are_due = True
        self._warn_of_alike_goals()
        self._warn_of_clock()
        self._warn_of_endless_clock()
        return self

    def learn_from(
        self: SelfManyGoalsDQN,
        transitions: Transitions,
        n_updates: int | None = None,
        tb_log_name: str = "ManyGoalsDQN",
    ) -> SelfManyGoalsDQN:
        """
        Learn from recorded transitions, without a step of an environment. Updates are made as in a
        training of as many steps, in which all transitions are known from the beginning.

        Build the model with ``NoEnv(observation_space, action_space)`` in place of an environment,
        or with the environment in which it shall learn on.

        :param transitions: the recorded transitions
        :param n_updates: greatest number of updates. None: ``updates_per_step`` for each
            transition, or what ``gradient_steps`` and ``train_freq`` say. If the latter counts
            episodes, ``gradient_steps=-1`` is one for each transition, and other numbers have no
            effect
        :param tb_log_name: name of the run for TensorBoard
        :return: the model
        :raises TypeError: if ``transitions`` are no Transitions
        :raises ValueError: if observations do not fit the model's space, an action is none of its
            actions, a reward is not finite, or ``n_updates`` is not a positive whole number. Then
            nothing has been recorded. Also if the model has action masks, goals in the replay
            memory, or several environments
        """
        if self.goals_in_replay or self.action_masks:
            kind = "goals_in_replay" if self.goals_in_replay else "action_masks"
            raise ValueError(f"learn_from cannot be used with {kind}")
        if self.n_envs != 1:
            raise ValueError(f"learn_from needs a model of one environment, got {self.n_envs}")
        self._require_env()
        if n_updates is not None:
            check_count("n_updates", n_updates)
        take_in(self, transitions)
        # Time passes as if the transitions were made now, so that schedules see all of it.
        begin = self.num_timesteps
        rollout_begin = self._rollout_begin
        self._total_timesteps = begin + len(transitions)
        if not self._custom_logger:
            self._logger = configure_logger(
                self.verbose, self.tensorboard_log, tb_log_name, reset_num_timesteps=True
            )
        self.start_time = time.time_ns()
        self._num_timesteps_at_start = begin
        if self.ep_info_buffer is None:
            # The log looks for episodes in them.
            self.ep_info_buffer = deque(maxlen=self._stats_window_size)
            self.ep_success_buffer = deque(maxlen=self._stats_window_size)
        self._log_interval = _LOG_INTERVAL
        self._pacer.restart()
        self._is_learning = True
        rate = self._updates_for_data
        if n_updates is not None:
            rate = n_updates / len(transitions)
        together = len(transitions)
        if rate > 0:
            together = min(together, max(1, round(_UPDATES_FROM_DATA_TOGETHER / rate)))
        self.num_timesteps = begin + together
        try:
            # All transitions are known now, so states need not be learned again later.
            self._choose_targets(has_learned_states=False)
            self._choose_targets(self._learn_states_now())
            is_given = n_updates is not None
            if n_updates is None:
                # A rate such as 1/49 may be a little too small.
                n_updates = int(round(self._updates_for_data * len(transitions), 6))
            if n_updates == 0:
                warnings.warn(
                    f"{self._updates_for_data:g} updates for each transition are none for "
                    f"{len(transitions)} transitions: the network learns nothing. Give n_updates",
                    stacklevel=2,
                )
            # Updates wait until half of training is done, so the second half has some.
            n_rollouts = max(2, n_updates // _UPDATES_FROM_DATA_TOGETHER)
            shares = np.diff(np.linspace(0, n_updates, n_rollouts + 1).astype(int)).tolist()
            for number, n_now in enumerate(shares, 1):
                # The choice of targets may have looked a little ahead.
                last = min(self.num_timesteps, begin + len(transitions) * number // n_rollouts)
                self.num_timesteps = begin + len(transitions) * number // n_rollouts
                self._current_progress_remaining = 1.0 - (number - 1) / n_rollouts
                if self.targets.uses_target_network:
                    self.targets.after_step(self.num_timesteps, self.num_timesteps - last)
                if is_given:
                    self._to_come_from_data = n_updates - sum(shares[:number])
                self.train(n_now, self.batch_size)
            self.dump_logs()
            # As after learn(), predict then takes random actions with this probability.
            self.exploration_rate = self.exploration_schedule(0.0)
        finally:
            self._log_interval = None
            self._to_come_from_data = None
            self._is_learning = False
            self._paced_timesteps = self._total_timesteps
            # Updates for these transitions were made here.
            self._rollout_begin = rollout_begin + self.num_timesteps - begin
        self._warn_of_clock()
        return self

    @property
    def _updates_for_data(self) -> float:
        """The number of updates for each recorded transition."""
        per_step = self._updates_each_step(type(self.targets))
        if per_step is not None:
            return per_step
        train_freq = cast(TrainFreq, self.train_freq)
        if self.gradient_steps < 0:
            return 1.0
        if train_freq.unit == TrainFrequencyUnit.EPISODE:
            # Recorded transitions are of no goal episodes of this length.
            return self.targets.updates_per_step
        return self.gradient_steps / (train_freq.frequency * self.n_envs)

    def _complete(self, fault: errors.Fault) -> None:
        """Add the index of the environment and the time step to a fault of an environment."""
        assert self.env is not None
        sources = [id(tracker) for tracker in self._trackers]
        if fault.source in sources:
            # Each GoalBufferWrapper knows of one environment only.
            fault.index += sources.index(fault.source)
        # A fault of a callback's environments did not happen at this time step.
        if fault.source in (*sources, id(self.env.unwrapped)):
            fault.num_timesteps = self.num_timesteps


def _ends_of_steps(
    new_obs: dict[str, NDArray[Any]], dones: NDArray[np.bool_], infos: list[dict[str, Any]]
) -> dict[str, NDArray[Any]]:
    """Return where steps led: where an episode ended, its last observation, not the next first."""
    if not dones.any():
        return new_obs
    next_obs = {key: values.copy() for key, values in new_obs.items()}
    for row in np.flatnonzero(dones).tolist():
        terminal = infos[row].get("terminal_observation")
        if terminal is not None:
            for key, values in next_obs.items():
                values[row] = terminal[key]
    return next_obs


def _own_kwargs(name: str, value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a copy of arguments: the user may change theirs for another model. None stays None."""
    return None if value is None else check_kwargs(name, value)


def _check_unsupported(optimize_memory_usage: bool, n_steps: int) -> None:
    """Raise an error for arguments of SB3's DQN that have no meaning here."""
    if optimize_memory_usage:
        raise ValueError(
            "optimize_memory_usage=True is not supported: while observations recur, the replay "
            "memory keeps each of them once. For stacked frames use ManyGoalsFrameReplayBuffer"
        )
    if n_steps != 1:
        raise ValueError(
            "n_steps must be 1, because a transition teaches many goals, which end at different "
            f"steps, got {n_steps!r}"
        )


def _tau(tau: float | None, target_update_interval: int | None) -> float:
    """Return the step of an update of the target network, from both arguments of the user."""
    if tau is not None:
        return tau
    return _DEFAULT_TAU if target_update_interval is None else _TAU_AT_INTERVALS


def _check_rhythm(rhythm_is_given: bool, updates_per_step: float | None) -> None:
    """Raise a ValueError if two rules say when updates are made."""
    if rhythm_is_given and updates_per_step is not None:
        raise ValueError(
            "updates_per_step takes the place of train_freq and gradient_steps: give it, or give "
            "these"
        )


def _checked_train_freq(train_freq: int | tuple[int, str]) -> int | tuple[int, str]:
    """Return SB3's argument. A ValueError if no steps or episodes come before an update."""
    if isinstance(train_freq, tuple) and len(train_freq) == 2:
        frequency, unit = train_freq
        return check_count("train_freq", frequency), unit
    return check_count("train_freq", train_freq)
