"""Auxiliary tasks for SB3's A2C: many goals, pixel control, reward prediction."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, is_vecenv_wrapped, unwrap_vec_wrapper

from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer
from sb3_manygoals.auxiliary.losses import (
    Reduction,
    check_positive,
    check_reduction,
    many_goals_losses,
    pixel_changes,
    pixel_control_losses,
    reduce,
    reward_prediction_losses,
)
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy, Task
from sb3_manygoals.goals.buffer import identical
from sb3_manygoals.guards import check_loss


class AuxiliaryCallback(BaseCallback):
    r"""
    An auxiliary task. Pass it to ``learn()``, alone or in a list with others, each with its own loss and weight.

    Each step of A2C's optimizer descends the joint objective

    .. math:: \mathcal{L} = \mathcal{L}^{AC} + \sum_i \beta_i \mathcal{L}_i

    (section 5 of Veeriah et al. 2018): the gradients of the auxiliary losses are added to A2C's, for one step with one set of
    second moments. (Algorithm 2 there takes two steps, of sizes :math:`\alpha` and :math:`\alpha\beta`; with second moments of
    its own, the factor of a loss would not matter to RMSProp.) The gradient of each weighted auxiliary loss is clipped by
    itself, to A2C's ``max_grad_norm``. With a weight of 0 nothing is computed, and A2C is SB3's to the last bit.

    Episodes are ranked by the returns of a Monitor (``infos[i]["episode"]``), before rewards are clipped. With a Monitor, a
    learner's episode that ends without such a return, as at a lost life, is part of the episode that has one. Without, they
    are ranked by the sum of the learner's rewards.

    :param weight: of the loss
    :param reduction: "sum" or "mean" over the losses of the transitions
    :param episodes: the buffer to fill and to draw from, which several callbacks may share. None: one of its own, with the
        default capacity and the stack of the VecFrameStack, if there is one
    :param batch_size: transitions in an update
    :param seed: of the draws; None: the model's
    :param verbose: as SB3 has it
    :raises ValueError: if ``weight`` is negative or not finite, ``reduction`` is unknown, or ``batch_size`` is not positive
    """

    task: Task
    """The name of its head in the policy."""

    def __init__(
        self,
        weight: float,
        reduction: Reduction,
        episodes: EpisodeBuffer | None,
        batch_size: int,
        seed: int | None,
        verbose: int,
    ) -> None:
        super().__init__(verbose)
        if not 0.0 <= weight < float("inf"):
            raise ValueError(f"the weight must be a finite number, at least 0, got {weight!r}")
        check_reduction(reduction)
        check_positive(batch_size=batch_size)
        self.weight, self.reduction, self.batch_size = weight, reduction, batch_size
        self.episodes, self.seed = episodes, seed
        self.n_updates = 0
        """Updates by the auxiliary loss so far."""
        self._rng: np.random.Generator | None = None
        self._start_time: float | None = None
        self._hook: Any = None
        self._monitored = False
        self._pending: dict[str, Any] | None = None

    @abstractmethod
    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """
        :param policy: whose head learns
        :param episodes: to draw from; at least one has ended
        :param rng: for the draws
        :return: the loss of one update before it is weighted, shape ()
        """

    @property
    def policy(self) -> AuxiliaryActorCriticPolicy:
        """The policy that learns."""
        policy = self.model.policy
        assert isinstance(policy, AuxiliaryActorCriticPolicy)
        return policy

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        :return: a plain tree, with the episodes if this callback fills the buffer. For the ``extras`` of an
            :class:`~sb3_manygoals.checkpoint.callback.ExactCheckpointCallback`
        """
        if self._pending is not None:
            return self._pending
        fills = self.episodes is not None and self.episodes.recorder in (None, self._claim)
        return {
            "rng": self._rng,
            "n_updates": self.n_updates,
            "monitored": self._monitored,
            "episodes": self.episodes.get_checkpoint_state() if self.episodes is not None and fills else None,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Takes effect when training begins if the buffer has not been made yet.

        :param state: of :meth:`get_checkpoint_state`
        :raises ValueError: if its episodes are of a buffer built in another way
        """
        if state["episodes"] is not None and self.episodes is None:
            self._pending = state
            return
        if state["episodes"] is not None and self.episodes is not None:
            self.episodes.set_checkpoint_state(state["episodes"])
        self._rng, self.n_updates, self._monitored = state["rng"], state["n_updates"], state["monitored"]
        self._pending = None

    def _init_callback(self) -> None:
        if not isinstance(self.model, A2C) or not isinstance(self.model.policy, AuxiliaryActorCriticPolicy):
            raise TypeError(
                f"{type(self).__name__} needs an A2C with an AuxiliaryActorCriticPolicy, got {type(self.model).__name__} with "
                f"{type(self.model.policy).__name__}"
            )
        if self.task not in self.policy.tasks:
            raise ValueError(f'the policy has no head for it: pass policy_kwargs={{"tasks": [..., {self.task!r}]}} to A2C')
        if self.episodes is None:
            self.episodes = self._make_buffer()
        elif self.episodes.observation_space != self.model.observation_space:
            raise ValueError(
                f"episodes must be a buffer for {self.model.observation_space}, as the model sees it, got one for "
                f"{self.episodes.observation_space}"
            )
        if self._pending is not None:
            self.set_checkpoint_state(self._pending)
        if self._rng is None:
            # Tagged: the same number seeds the learner and others.
            seed = self.model.seed if self.seed is None else self.seed
            self._rng = np.random.default_rng(None if seed is None else [*self.task.encode(), seed])

    def _make_buffer(self) -> EpisodeBuffer:
        venv, space = unwrap_vec_wrapper(self.training_env, VecFrameStack), self.model.observation_space
        if not isinstance(venv, VecFrameStack):
            return EpisodeBuffer(space)
        last = venv.stacked_obs.stack_dimension == -1 and not is_image_space(space)  # SB3 has moved the channels of images
        return EpisodeBuffer(space, n_stack=venv.stacked_obs.n_stack, stack_axis=-1 if last else 0)

    def _on_training_start(self) -> None:
        if self.parent is not None:
            raise ValueError(
                f"{type(self).__name__} is inside of {type(self.parent).__name__}, and does not see every step: give it to "
                "learn() itself or in a list of callbacks"
            )
        assert self.episodes is not None
        self._start_time = self.model.start_time
        if self.episodes.recorder is None or self.episodes.recorder[0] != self._start_time:
            self.episodes.recorder = self._claim
            assert isinstance(self.model._last_obs, np.ndarray)
            self.episodes.start(self.model._last_obs, keep_ongoing=not self.locals["reset_num_timesteps"])
        venv = self.training_env
        self._monitored |= is_vecenv_wrapped(venv, VecMonitor) or any(venv.env_is_wrapped(Monitor))
        if self._hook is not None:
            self._hook.remove()
        self._hook = self.policy.optimizer.register_step_pre_hook(self._add_gradient) if self.weight > 0.0 else None

    @property
    def _claim(self) -> tuple[float | None, int]:
        return (self._start_time, id(self))

    def _on_step(self) -> bool:
        assert self.episodes is not None
        if self.episodes.recorder == self._claim:
            self._record(self.episodes)
        return True

    def _record(self, episodes: EpisodeBuffer) -> None:
        dones, infos = self.locals["dones"], self.locals["infos"]
        returns: list[float | None] = [None] * len(dones)
        terminal: list[NDArray[Any] | None] = [None] * len(dones)
        truncated = [False] * len(dones)
        for env in np.flatnonzero(dones).tolist():
            terminal[env] = infos[env].get("terminal_observation")
            truncated[env] = bool(infos[env].get("TimeLimit.truncated", False))
            if "episode" in infos[env]:
                self._monitored, returns[env] = True, infos[env]["episode"]["r"]
            elif not self._monitored:
                returns[env] = episodes.rewards_so_far(env) + float(self.locals["rewards"][env])
        # SB3 adds to the rewards afterwards, in place: the buffer copies them.
        episodes.add(
            self.locals["actions"], self.locals["rewards"], dones, self.locals["new_obs"], terminal, truncated, returns
        )

    def _add_gradient(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer before each step, after A2C has computed and clipped its own gradient."""
        assert self.episodes is not None
        assert self._rng is not None
        if self.model.start_time != self._start_time or len(self.episodes) == 0:  # an exception ended this training
            return
        policy = self.policy
        with th.enable_grad():
            loss = self.loss(policy, self.episodes, self._rng)
            check_loss(loss, policy, self.n_updates + 1, self.model.num_timesteps)
            parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
            gradients = th.autograd.grad(self.weight * loss, parameters, allow_unused=True)
        used = [(one, gradient) for one, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
        assert isinstance(self.model, A2C)
        norm = th.nn.utils.get_total_norm([gradient for _, gradient in used])
        scale = (self.model.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as PyTorch's clip_grad_norm_
        for parameter, gradient in used:
            gradient = gradient * scale
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self.n_updates += 1
        self.logger.record(f"auxiliary/{self.task}_loss", loss.item())
        self.logger.record("auxiliary/episodes", len(self.episodes))

    def _on_training_end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class ManyGoalsCallback(AuxiliaryCallback):
    """
    Many goals as an auxiliary task (section 5 and Algorithm 2 of Veeriah et al. 2018). Trajectories are drawn from the best
    episodes. The last observation of each is the goal of all its transitions.

    The paper gives beta, K and 80 transitions. It gives neither the length of the trajectories, here the n of its actor-critic
    (5 steps of 16 environments are 80), nor the interval of the target network, here the default in its gridworld.

    :param beta: weight of the loss
    :param reduction: "mean", the expectation in the paper's equation, or "sum"
    :param episodes: see :class:`AuxiliaryCallback`
    :param n_steps: n, transitions in a trajectory
    :param batch_size: transitions in an update, a multiple of ``n_steps``
    :param gamma: discount factor of the goals
    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :param target_update_interval: updates between copies to the target network
    :param seed: of the draws; None: the model's
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "many_goals"

    def __init__(
        self,
        beta: float = 0.02,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        n_steps: int = 5,
        batch_size: int = 80,
        gamma: float = 0.99,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        target_update_interval: int = 250,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(beta, reduction, episodes, batch_size, seed, verbose)
        _check_trajectories(batch_size, n_steps)
        check_positive(target_update_interval=target_update_interval)
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must be in [0, 1), got {gamma!r}")
        self.n_steps, self.gamma, self.target_update_interval = n_steps, gamma, target_update_interval
        self.goal_reward, self.step_reward = goal_reward, step_reward

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`AuxiliaryCallback`."""
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        goals = np.broadcast_to(batch.observations[:, -1:], batch.observations[:, 1:].shape)
        achieved = identical(batch.observations[:, 1:], goals, len(episodes.shape))
        observations = th.as_tensor(batch.observations, device=policy.device)
        with th.no_grad():
            next_q = policy.goal_values(observations, target=True)
        losses = many_goals_losses(
            policy.goal_values(observations),
            next_q,
            th.as_tensor(batch.actions, device=policy.device),
            th.as_tensor(achieved, device=policy.device),
            self.gamma,
            self.goal_reward,
            self.step_reward,
        )
        return reduce(losses, self.reduction, _valid(batch.lengths, self.n_steps, policy.device))


class PixelControlCallback(AuxiliaryCallback):
    """
    Pixel control (Jaderberg et al. 2017): learn to change each part of the picture. The policy's ``crop`` and ``cell`` say
    which parts. Of a stack of frames, the newest counts.

    The source takes one trajectory in an update and draws the weight log-uniformly from 0.0001 to 0.01 for Atari; the default
    is the middle of that range.

    :param weight: of the loss
    :param reduction: "mean" or "sum" over the losses of the transitions, each the sum over all cells
    :param episodes: see :class:`AuxiliaryCallback`
    :param n_steps: n, transitions in a trajectory
    :param batch_size: transitions in an update, a multiple of ``n_steps``
    :param gamma: discount factor of the changes
    :param seed: of the draws; None: the model's
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "pixel_control"

    def __init__(
        self,
        weight: float = 0.001,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        n_steps: int = 20,
        batch_size: int = 80,
        gamma: float = 0.9,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(weight, reduction, episodes, batch_size, seed, verbose)
        _check_trajectories(batch_size, n_steps)
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {gamma!r}")
        self.n_steps, self.gamma = n_steps, gamma

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`AuxiliaryCallback`."""
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        newest = np.ascontiguousarray(episodes.frames.newest(batch.observations))
        images = th.as_tensor(newest, device=policy.device).float() / 255.0
        valid = _valid(batch.lengths, self.n_steps, policy.device)
        losses = pixel_control_losses(
            policy.cell_values(th.as_tensor(batch.observations, device=policy.device)),
            th.as_tensor(batch.actions, device=policy.device),
            pixel_changes(images, policy.crop, policy.cell),
            th.as_tensor(batch.terminated, device=policy.device),
            valid,
            self.gamma,
        )
        return reduce(losses, self.reduction, valid)


class RewardPredictionCallback(AuxiliaryCallback):
    """
    Reward prediction (Jaderberg et al. 2017): is the next reward zero, positive or negative? From three observations; half of
    the transitions have a reward.

    :param weight: of the loss, 1 in the source
    :param reduction: "mean" or "sum" over the losses of the transitions
    :param episodes: see :class:`AuxiliaryCallback`
    :param batch_size: transitions in an update
    :param seed: of the draws; None: the model's
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range
    """

    task = "reward_prediction"

    def __init__(
        self,
        weight: float = 1.0,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        batch_size: int = 80,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(weight, reduction, episodes, batch_size, seed, verbose)

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`AuxiliaryCallback`."""
        batch = episodes.sample_rewards(self.batch_size, rng)
        logits = policy.reward_logits(th.as_tensor(batch.observations, device=policy.device))
        return reduce(reward_prediction_losses(logits, th.as_tensor(batch.rewards, device=policy.device)), self.reduction)


def _valid(lengths: NDArray[np.int64], n_steps: int, device: th.device) -> th.Tensor:
    return th.as_tensor(np.arange(n_steps) < lengths[:, None], device=device)


def _check_trajectories(batch_size: int, n_steps: int) -> None:
    check_positive(n_steps=n_steps)
    if batch_size % n_steps:
        raise ValueError(f"batch_size must be a multiple of n_steps, {n_steps}, got {batch_size}")
