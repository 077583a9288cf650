"""What auxiliary tasks have in common: they fill a buffer of episodes, and add to the gradient of each step of SB3's A2C."""

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
from sb3_manygoals.auxiliary.losses import Reduction, check_reduction
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy, Task
from sb3_manygoals.guards import check_loss


class AuxiliaryCallback(BaseCallback):
    r"""
    One auxiliary task. Give it to ``learn()``, alone or in a list with others, of which each has its own loss and weight.

    Each step of A2C's optimizer is one on the joint objective

    .. math:: \mathcal{L} = \mathcal{L}^{AC} + \sum_i \beta_i \mathcal{L}_i

    (section 5 of Veeriah et al. 2018): once A2C has its gradient, those of the auxiliary losses are added, and one step is
    taken, with one set of second moments. (Algorithm 2 there has two steps, one after the other, of sizes :math:`\alpha` and
    :math:`\alpha\beta`. Were the second one RMSProp's with moments of its own, a factor of the loss would not matter.) A2C's
    gradient is clipped as ever, by its own length; that of each auxiliary loss, times its weight, by its own, to the same
    ``max_grad_norm``. With a weight of 0 nothing is computed, and A2C is SB3's to the last bit.

    Episodes are ranked by the returns in ``infos[i]["episode"]`` that a Monitor puts there, before rewards are clipped. Where
    there is a Monitor, an episode of the learner that is over without one, as at a lost life, is a part of the one that is.
    Without, by the sum of the rewards that the learner saw.

    :param weight: of the loss
    :param reduction: "sum" or "mean" of the losses of the transitions, since it changes what the weight means
    :param episodes: the buffer to fill and to draw from; several callbacks can have one in common. None: one of its own, of
        2000 episodes, with the stack of a VecFrameStack where there is one
    :param batch_size: transitions of an update
    :param seed: of the draws; None: that of the model
    :param verbose: as SB3 has it
    :raises ValueError: if ``weight`` is negative or not finite, ``reduction`` is neither, or ``batch_size`` is not positive
    """

    task: Task
    """Its head in the policy."""

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
        self.weight = weight
        self.reduction: Reduction = reduction
        self.episodes = episodes
        self.batch_size = batch_size
        self.seed = seed
        self.n_updates = 0
        """Of the auxiliary loss, so far."""
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
        :return: the loss of one update, not yet weighted, shape ()
        """

    @property
    def policy(self) -> AuxiliaryActorCriticPolicy:
        """The policy that learns."""
        policy = self.model.policy
        assert isinstance(policy, AuxiliaryActorCriticPolicy)
        return policy

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        :return: a plain tree, with the episodes if it is this callback that fills the buffer; for
            :class:`~sb3_manygoals.checkpoint.callback.ExactCheckpointCallback`, as one of its ``extras``
        """
        if self._pending is not None:
            return self._pending
        fills = self.episodes is not None and self.episodes.recorder in (None, self._claim)
        return {
            "rng": self._rng,
            "n_updates": self.n_updates,
            "monitored": self._monitored,
            "episodes": self.episodes.get_checkpoint_state() if fills and self.episodes is not None else None,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Effective at once, or when training begins, where the buffer is yet to be made.

        :param state: of :meth:`get_checkpoint_state`
        :raises ValueError: if its episodes are of a buffer built otherwise
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
        stack = unwrap_vec_wrapper(self.training_env, VecFrameStack)
        space = self.model.observation_space
        if stack is None:
            return EpisodeBuffer(space)
        assert isinstance(stack, VecFrameStack)
        # the channels of images come first by now
        last = stack.stacked_obs.stack_dimension == -1 and not is_image_space(space)
        return EpisodeBuffer(space, n_stack=stack.stacked_obs.n_stack, stack_axis=-1 if last else 0)

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
            current = self.model._last_obs
            assert isinstance(current, np.ndarray)
            self.episodes.start(current, keep_ongoing=not self.locals["reset_num_timesteps"])
        self._monitored = self._monitored or _has_monitor(self.training_env)
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
        n_envs = len(dones)
        returns: list[float | None] = [None] * n_envs
        terminal: list[NDArray[Any] | None] = [None] * n_envs
        truncated = [False] * n_envs
        for env in np.flatnonzero(dones).tolist():
            terminal[env] = infos[env].get("terminal_observation")
            truncated[env] = bool(infos[env].get("TimeLimit.truncated", False))
            if "episode" in infos[env]:
                self._monitored = True
                returns[env] = infos[env]["episode"]["r"]
            elif not self._monitored:
                returns[env] = episodes.rewards_so_far(env) + float(self.locals["rewards"][env])
        # SB3 adds to the rewards afterwards, in place: the buffer copies them.
        episodes.add(
            self.locals["actions"], self.locals["rewards"], dones, self.locals["new_obs"], terminal, truncated, returns
        )

    def _add_gradient(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer before each of its steps, when A2C's own gradient is there, clipped."""
        assert self.episodes is not None
        assert self._rng is not None
        if self.model.start_time != self._start_time or len(self.episodes) == 0:  # a training that was left by an exception
            return
        policy = self.policy
        with th.enable_grad():
            loss = self.loss(policy, self.episodes, self._rng)
            check_loss(loss, policy, self.n_updates + 1, self.model.num_timesteps)
            parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
            gradients = th.autograd.grad(self.weight * loss, parameters, allow_unused=True)
        self._add(parameters, gradients)
        self.n_updates += 1
        self.logger.record(f"auxiliary/{self.task}_loss", loss.item())
        self.logger.record("auxiliary/episodes", len(self.episodes))

    def _add(self, parameters: list[th.Tensor], gradients: tuple[th.Tensor | None, ...]) -> None:
        used = [(one, gradient) for one, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
        assert isinstance(self.model, A2C)
        norm = th.nn.utils.get_total_norm([gradient for _, gradient in used])
        scale = (self.model.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)  # as PyTorch's clip_grad_norm_
        for parameter, gradient in used:
            gradient = gradient * scale
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _on_training_end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _has_monitor(venv: Any) -> bool:
    return is_vecenv_wrapped(venv, VecMonitor) or any(venv.env_is_wrapped(Monitor))


def check_positive(**numbers: int) -> None:
    """
    :param numbers: arguments by name
    :raises ValueError: if one is no positive whole number
    """
    for name, value in numbers.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
