"""The paper's baseline for pre-training: predict the sign of rewards while acting at random."""

from __future__ import annotations

import io
import pathlib
from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import (
    GymEnv,
    MaybeCallback,
    PyTorchObs,
    RolloutReturn,
    Schedule,
)
from stable_baselines3.common.vec_env import VecTransposeImage, is_vecenv_wrapped
from torch import nn

from sb3_manygoals import errors
from sb3_manygoals.auxiliary.losses import REWARD_CLASSES, reward_prediction_losses
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.frames import frame_bytes
from sb3_manygoals.goals.moved_worlds import check_evaluators
from sb3_manygoals.goals.spaces import check_goal_space
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.networks import PaddedCNN, Preprocess, make_trunk
from sb3_manygoals.pretraining.replay_buffers import FrameReplayBuffer
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_action_space, check_count, check_seed


class RewardPredictionPolicy(BasePolicy):
    """
    A trunk as ManyGoalsDQN has it, and a layer from its features to the sign of the reward.

    The policy acts at random.

    :param observation_space: Box, Discrete, MultiDiscrete or MultiBinary
    :param action_space: Discrete, starting at 0
    :param lr_schedule: learning rate as a function of the remaining progress
    :param net_arch: widths of the layers after the features extractor; None: two of 256
    :param ortho_init: whether the trunk's weights begin orthogonal, as in SB3's actor-critics
    :param channels_last: whether the last axis of images holds the channels; None: the shape tells
    :param kwargs: further arguments of SB3's policies, such as ``features_extractor_class`` and
        ``normalize_images``. The default of ``optimizer_class`` is RMSProp in TensorFlow's form,
        as in the paper's ManyGoalsDQN
    :raises TypeError: if actions are not Discrete and starting at 0
    """

    action_space: spaces.Discrete

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        ortho_init: bool = False,
        channels_last: bool | None = None,
        **kwargs: Any,
    ) -> None:
        optimizer_class = kwargs.setdefault("optimizer_class", RMSpropTFLike)
        if kwargs.get("optimizer_kwargs") is None and issubclass(optimizer_class, RMSpropTFLike):
            kwargs["optimizer_kwargs"] = {"alpha": 0.99, "eps": 1e-5}
        check_action_space(action_space)
        super().__init__(observation_space, action_space, **kwargs)
        self.net_arch = [256, 256] if net_arch is None else net_arch
        self.ortho_init = ortho_init
        self.channels_last = channels_last
        preprocess = Preprocess(
            observation_space, self.normalize_images, channels_last=channels_last
        )
        extractor = self.features_extractor_class(
            preprocess.space, **self.features_extractor_kwargs
        )
        self.trunk, features_dim = make_trunk(
            preprocess, extractor, self.net_arch, nn.ReLU, ortho_init=ortho_init
        )
        self.head = nn.Linear(features_dim, REWARD_CLASSES)
        self.optimizer = self.optimizer_class(
            self.parameters(), **{"lr": lr_schedule(1), **self.optimizer_kwargs}
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        Compute the logits of a zero, a positive and a negative reward.

        :param observations: the dtype of the space, shape (B, *observation_space.shape)
        :return: logits, shape (B, 3)
        """
        return self.head(self.trunk(observations))  # type: ignore[no-any-return]

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        assert isinstance(observation, th.Tensor)
        return th.randint(int(self.action_space.n), (len(observation),), device=self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Return the arguments with which SB3 builds a saved policy again."""
        names = (
            "net_arch",
            "ortho_init",
            "channels_last",
            "features_extractor_class",
            "features_extractor_kwargs",
            "optimizer_class",
            "optimizer_kwargs",
        )
        return {
            **super()._get_constructor_parameters(),
            "lr_schedule": self._dummy_schedule,
            **{name: getattr(self, name) for name in names},
        }


class _CnnPolicy(RewardPredictionPolicy):
    """The default policy for images: convolutions that see every pixel, and no further layers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"features_extractor_class": PaddedCNN, "net_arch": [], **kwargs})


class RewardPredictor(OffPolicyAlgorithm):
    """
    Learns to predict the sign of the reward: zero, positive or negative.

    It predicts the reward of a transition (s, a, r, s') from s alone and minimizes the
    cross-entropy. Actions are uniformly random, and transitions are sampled uniformly from the
    replay memory.

    This is the baseline of section 4 of Veeriah et al. (2018), after Shelhamer et al. (2017): 80
    transitions at each step, a replay memory of 10,000, RMSProp with 7e-4. Afterwards, give the
    model to :func:`~sb3_manygoals.pretraining.transfer_trunk`. If the target has SB3's "CnnPolicy"
    and pictures are not 84x84, build the predictor with
    ``policy_kwargs={"features_extractor_class": NatureCNN}``.

    :param policy: "CnnPolicy" for images, "MlpPolicy" for vectors, or a RewardPredictionPolicy
    :param env: environment whose observation is one array, with Discrete actions starting at 0, or
        its id. None only if the model is loaded
    :param learning_rate: step size, or a function of the remaining progress
    :param buffer_size: transitions in the replay memory, in all environments together
    :param learning_starts: steps before the first update
    :param batch_size: transitions in an update
    :param n_stack: frames in an observation along its first axis. The replay memory keeps each
        frame once
    :param _init_setup_model: whether to build the network and the replay memory at once, as in SB3
    :param kwargs: further arguments of SB3's off-policy algorithms, such as ``train_freq``,
        ``policy_kwargs`` and ``seed``
    :raises TypeError: if actions do not start at 0, or an observation is not one array
    :raises ValueError: if a number is out of its range, the policy is not known, or there is no
        environment
    :raises MemoryError: if the full replay memory would not fit into the available memory
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "CnnPolicy": _CnnPolicy,
        "MlpPolicy": RewardPredictionPolicy,
    }
    policy: RewardPredictionPolicy
    replay_buffer: FrameReplayBuffer

    def __init__(
        self,
        policy: str | type[RewardPredictionPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 7e-4,
        buffer_size: int = 10_000,
        learning_starts: int = 1_000,
        batch_size: int = 80,
        n_stack: int = 1,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ) -> None:
        if env is None and _init_setup_model:
            raise ValueError(
                "env is needed to build a model; to load one without, use"
                " RewardPredictor.load(path)"
            )
        check_count("buffer_size", buffer_size)
        check_count("batch_size", batch_size)
        check_count("learning_starts", learning_starts, at_least=0, floats=True)
        if env is not None:
            env = maybe_make_env(env, kwargs.get("verbose", 0))
            check_goal_space(env.observation_space)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            replay_buffer_class=FrameReplayBuffer,
            replay_buffer_kwargs={"n_stack": n_stack},
            sde_support=False,
            support_multi_env=True,
            supported_action_spaces=(spaces.Discrete,),
            **kwargs,
        )
        if _init_setup_model:
            self._setup_model()

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Go on in another environment, as in SB3.

        :param env: an environment or a VecEnv, of as many environments as before
        :param force_reset: whether to reset the environment before training goes on
        """
        super().set_env(env, force_reset)
        # Nothing is known of it yet.
        self._terminal_watch = TerminalWatch()

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """Compute the share of training that is left, at least 0, also in the last rollout."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(self._current_progress_remaining, 0.0)

    def _setup_model(self) -> None:
        """Check that the replay memory will fit, and build it and the network."""
        self._terminal_watch = TerminalWatch()
        size = frame_bytes(
            self.buffer_size,
            self.n_envs,
            self.observation_space.shape or (),
            self.observation_space.dtype,
            self.replay_buffer_kwargs["n_stack"],
        )
        check_memory(
            "the replay memory",
            {"replay frames": size},
            f"choose a smaller buffer_size than {self.buffer_size}",
        )
        if self.env is not None and is_vecenv_wrapped(self.env, VecTransposeImage):
            self.policy_kwargs = {"channels_last": False, **self.policy_kwargs}
        super()._setup_model()

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        """Refuse an EvalCallback that moves the environments of training."""
        assert self.env is not None
        prepared = super()._init_callback(callback, progress_bar)
        check_evaluators(prepared, self.env, notices=False)
        return prepared

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        Replace the transitions by those that ``save_replay_buffer`` of a RewardPredictor wrote.

        :param path: path of the file, or an open file
        :param truncate_last_traj: not used, because transitions do not depend on each other
        :raises ValueError: if the file has something else, or a memory for other environments. Then
            nothing has changed
        """
        found = load_from_pkl(path, self.verbose)
        if not isinstance(found, FrameReplayBuffer) or isinstance(found, ManyGoalsReplayBuffer):
            kind = type(found)
            raise ValueError(
                f"{path} must have a FrameReplayBuffer, as save_replay_buffer of a RewardPredictor"
                f" writes it, got {kind.__module__}.{kind.__qualname__}"
            )
        theirs = (found.observation_space, found.action_space, found.n_envs)
        own = (self.observation_space, self.action_space, self.n_envs)
        if theirs != own:
            raise ValueError(f"the replay memory is of {theirs}, this model has {own}")
        found.device = self.device
        self.replay_buffer = found

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed the generators of SB3 and that of the random actions.

        :param seed: the seed; None: actions differ in every run
        :raises ValueError: if NumPy takes no such seed
        """
        seed = check_seed(seed)
        super().set_random_seed(seed)
        self.rng = generator(seed, Stream.REWARD_PREDICTOR)

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        actions = self.rng.integers(int(self.policy.action_space.n), size=n_envs)
        return actions, actions

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> RolloutReturn:
        """
        Collect transitions as SB3 does.

        :param args: positional arguments of SB3's method
        :param kwargs: keyword arguments of SB3's method
        :return: what SB3's method returns
        :raises EnvironmentFault: if a reward is not one finite number
        """
        with errors.stepping(self.env):
            return super().collect_rollouts(*args, **kwargs)

    def _store_transition(
        self,
        replay_buffer: ReplayBuffer,
        buffer_action: NDArray[Any],
        new_obs: NDArray[Any] | dict[str, NDArray[Any]],
        reward: NDArray[Any],
        dones: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Refuse rewards that are no finite numbers. Their sign would count as zero."""
        reward = errors.own_rewards(reward, self.n_envs, self.env)
        errors.check_finite(reward, "a reward", self.env)
        assert self.env is not None
        assert not isinstance(new_obs, dict)
        self._terminal_watch.look(self.env, new_obs, dones, infos)
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    def train(self, gradient_steps: int, batch_size: int = 80) -> None:
        """
        Make updates with batches from the replay memory.

        :param gradient_steps: number of updates
        :param batch_size: transitions in an update
        :raises FloatingPointError: if the loss of an update is not finite. The network then is as
            it was before this update
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            logits = self.policy(batch.observations)
            loss = reward_prediction_losses(logits, batch.rewards[:, 0]).mean()
            errors.check_loss(loss, self.policy, self._n_updates + 1, self.num_timesteps)
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.policy.optimizer.step()
            self._n_updates += 1
            self.logger.record("train/loss", loss.item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for a checkpoint.

        :return: a plain tree of the network, its optimizer, the replay memory and the generators
        """
        return {
            "algorithm": get_algorithm_state(self),
            "replay_buffer": self.replay_buffer.get_checkpoint_state(),
            "rng": self.rng,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the model was built in another way. This one may then be changed
            in part
        """
        set_algorithm_state(self, state["algorithm"])
        self.replay_buffer.set_checkpoint_state(state["replay_buffer"])
        self.rng = state["rng"]

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_terminal_watch"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []
