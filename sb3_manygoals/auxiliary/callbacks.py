"""Auxiliary tasks for SB3's A2C: many goals, pixel control, reward prediction."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import (
    VecFrameStack,
    VecMonitor,
    is_vecenv_wrapped,
    unwrap_vec_wrapper,
)

from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, Trajectories
from sb3_manygoals.auxiliary.losses import (
    many_goals_losses,
    mean_of_real,
    pixel_changes,
    pixel_control_losses,
    reward_prediction_losses,
)
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy, Task
from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.errors import check_loss
from sb3_manygoals.goals.buffer import identical
from sb3_manygoals.goals.wrapping import check_evaluators
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_count, check_number, check_rewards

Update = Literal["two_steps", "joint"]

_MEASURED_EVERY = 50  # updates between measurements of shares and cosines
_PATIENCE = 200  # steps of A2C's optimizer without an auxiliary update before a warning
# A training of fewer steps, of all environments together, only tries out whether all fits.
_A_TRIAL = 500


class AuxiliaryCallback(BaseCallback):
    r"""
    An auxiliary task, for ``learn()``, alone or in a list with others, each with its own loss and weight.

    Veeriah et al. (2018) print the update in two ways. ``update`` chooses one of them.

    ``"joint"``: section 5 prints a sum of losses. One step of A2C's optimizer descends

    .. math:: \mathcal{L} = \mathcal{L}^{AC} + \sum_i \beta_i \mathcal{L}_i

    The gradient of the weighted loss is clipped by itself and added to A2C's. The weight scales a gradient. RMSProp divides
    by moments of the sum, in which a small gradient counts little.

    ``"two_steps"``: Algorithm 2 prints one step after the other,

    .. math::
        \theta \leftarrow \theta - \alpha \nabla \mathcal{L}^{AC}, \quad
        \theta \leftarrow \theta - \alpha \beta_i \nabla \mathcal{L}_i

    The second gradient is that of the loss without its weight, at the weights after the first step, clipped by itself. An
    optimizer of its own takes the second step. It has the policy's class and arguments, but moments of its own. Its step size
    is the policy's of that moment times the weight, so that it follows the same schedule. The weight scales a step. Callbacks
    in a list take their steps one after the other.

    Both clip to A2C's ``max_grad_norm``. With a weight of 0 nothing is computed, and A2C is SB3's to the last bit.

    Every 50 updates the logger gets ``auxiliary/<task>_share`` and ``auxiliary/<task>_cosine``: the length of this update
    over the length of what A2C, and the callbacks before this one, did in the same update; and the cosine between both. They
    are of the parameters that the task shares with A2C, of steps or, where joint, of gradients.

    Updates begin when the first episode has ended, or the first piece of an endless one, see :class:`EpisodeBuffer`. Training
    warns if nothing can be learned for long.

    :param weight: of the loss, the mean over transitions
    :param episodes: the buffer to fill and to draw from, which several callbacks may share. None: one of its own, with the
        default capacity and the stack of the VecFrameStack, if there is one
    :param batch_size: transitions in an update, a multiple of ``n_steps``
    :param n_steps: n, transitions in a trajectory
    :param seed: of the draws; None: the model's
    :param verbose: as SB3's: 0 no output, 1 info, 2 debug
    :param update: "two_steps" or "joint", see above
    :raises ValueError: if a number is out of its range, ``batch_size`` no multiple of ``n_steps``, or ``update`` neither
    """

    task: Task
    """The name of its head in the policy."""
    policy: AuxiliaryActorCriticPolicy
    """The policy that learns."""

    def __init__(
        self,
        weight: float,
        episodes: EpisodeBuffer | None = None,
        batch_size: int = 80,
        n_steps: int = 1,
        seed: int | None = None,
        verbose: int = 0,
        update: Update = "joint",
    ) -> None:
        super().__init__(verbose)
        self.weight = check_number("the weight", weight, at_least=0)
        self.n_steps, self.batch_size = (
            check_count("n_steps", n_steps),
            check_count("batch_size", batch_size),
        )
        if batch_size % n_steps:
            raise ValueError(
                f"batch_size must be a multiple of n_steps, {n_steps}, got {batch_size}"
            )
        if update not in get_args(Update):
            raise ValueError(f"update must be 'two_steps' or 'joint', got {update!r}")
        self.episodes, self.seed = episodes, seed
        self.update = update
        self.n_updates = 0
        """Updates by the auxiliary loss so far."""
        self._rng: np.random.Generator | None = None
        self._start_time: float | None = None
        self._hooks: list[Any] = []
        self._optimizer: th.optim.Optimizer | None = None  # of the second step
        self._saved_optimizer: dict[str, Any] | None = None
        self._weights_before: th.Tensor | None = None  # the shared ones, before A2C's step
        self._terminal_watch = TerminalWatch()
        self._n_waiting = 0  # A2C's updates without an auxiliary one, all trainings together
        self._warned = False  # that nothing is learned
        self._saved_episodes: dict[str, Any] | None = None
        self._last_step: tuple[Any, Any] = (
            None,
            None,
        )  # what SB3 and the environments showed before and after it

    @abstractmethod
    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        """
        :param policy: whose head learns
        :param episodes: to draw from; at least one has ended
        :return: the loss of one update before it is weighted, shape ()
        """

    def get_checkpoint_state(self) -> dict[str, Any]:
        """For the ``extras`` of an ExactCheckpointCallback; with the episodes, if this callback fills the buffer."""
        episodes = self._saved_episodes
        if self.episodes is not None and self.episodes.recorder in (None, self):
            episodes = self.episodes.get_checkpoint_state()
        optimizer = self._saved_optimizer
        if self._optimizer is not None:
            optimizer = self._optimizer.state_dict()
        return {
            "rng": self._rng,
            "n_updates": self.n_updates,
            "episodes": episodes,
            "update": self.update,
            "optimizer": optimizer,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:raises CheckpointError: if ``update`` was another, or its episodes are of a buffer built in another way"""
        # All updates were joint before states said so.
        state = {"update": "joint", "optimizer": None} | state
        check_same("an auxiliary callback", state, {"update": self.update})
        self._saved_episodes = state["episodes"]
        self._restore_episodes()
        self._rng, self.n_updates = state["rng"], state["n_updates"]
        # The optimizer is built when training begins.
        self._optimizer = None
        self._saved_optimizer = state["optimizer"]

    def _restore_episodes(self) -> None:
        # a buffer that is not made yet gets them when training begins
        if self.episodes is not None and self._saved_episodes is not None:
            self.episodes.set_checkpoint_state(self._saved_episodes)
            self._saved_episodes = None

    def _init_callback(self) -> None:
        model, policy = self.model, self.model.policy
        if not isinstance(model, A2C) or not isinstance(policy, AuxiliaryActorCriticPolicy):
            needed = f"{type(self).__name__} needs an A2C with an AuxiliaryActorCriticPolicy"
            raise TypeError(f"{needed}, got {type(model).__name__} with {type(policy).__name__}")
        if self.task not in policy.tasks:
            raise ValueError(
                f'the policy has no head for it: pass policy_kwargs={{"tasks": [..., {self.task!r}]}} to A2C'
            )
        if self.episodes is None:
            venv, space = (
                unwrap_vec_wrapper(self.training_env, VecFrameStack),
                model.observation_space,
            )
            n_stack, normalizer = (
                getattr(self.training_env.unwrapped, "n_stack", 1),
                model.get_vec_normalize_env(),
            )
            # stacked along the first axis, as also images are, whose channels SB3 has moved, and vectors
            if isinstance(venv, VecFrameStack) and (
                venv.stacked_obs.stack_dimension == 1
                or is_image_space(space)
                or len(space.shape or ()) == 1
            ):
                n_stack = venv.stacked_obs.n_stack
            normalized = (
                normalizer is not None and normalizer.norm_obs
            )  # it drifts, so that such stacks do not overlap
            self.episodes = EpisodeBuffer(
                space, n_stack=1 if normalized else n_stack, normalized=normalized
            )
        elif self.episodes.observation_space != model.observation_space:
            seen, kept = model.observation_space, self.episodes.observation_space
            raise ValueError(
                f"episodes must be a buffer for {seen}, as the model sees it, got one for {kept}"
            )
        if getattr(self, "policy", None) is not policy:
            self._optimizer = None
        self.policy = policy
        if self.update == "two_steps" and self.weight > 0.0 and self._optimizer is None:
            self._make_optimizer()
        self.episodes.recorder = self  # the last of those that share it
        self._restore_episodes()
        if self._rng is None:
            # Tagged: the same number seeds the learner and others.
            seed = model.seed if self.seed is None else self.seed
            self._rng = np.random.default_rng(None if seed is None else [*self.task.encode(), seed])

    def _on_training_start(self) -> None:
        if self.parent is not None:
            inside = f"{type(self).__name__} is inside of {type(self.parent).__name__}, and does not see every step"
            raise ValueError(f"{inside}: give it to learn() itself or in a list of callbacks")
        check_evaluators(self.locals["callback"], self.training_env, notices=False)
        assert self.episodes is not None
        if self.episodes.recorder is self:
            before, after = self._last_step
            shown: Any = self.model._last_obs
            # where a callback ended training within a step, SB3 does not know where that led
            self.episodes.start(
                after if shown is before else shown,
                keep_ongoing=not self.locals["reset_num_timesteps"],
            )
            venv = self.training_env
            self.episodes.monitored |= is_vecenv_wrapped(venv, VecMonitor) or any(
                venv.env_is_wrapped(Monitor)
            )
        self._start_time = self.model.start_time
        self._remove_hooks()  # an exception may have ended the last training
        self._weights_before = None
        optimizer = self.policy.optimizer
        if self.weight > 0.0 and self.update == "joint":
            self._hooks = [optimizer.register_step_pre_hook(self._add_gradient)]
        elif self.weight > 0.0:
            self._hooks = [
                optimizer.register_step_pre_hook(self._note_weights),
                optimizer.register_step_post_hook(self._take_step),
            ]

    def _on_step(self) -> bool:
        assert self.episodes is not None
        if self.episodes.recorder is self:
            shown, dones, infos = (self.locals[name] for name in ("new_obs", "dones", "infos"))
            self._terminal_watch.look(self.training_env, shown, dones, infos)
            # SB3 adds to the rewards afterwards, in place: the buffer copies them.
            actions, rewards = self.locals["actions"], self.locals["rewards"]
            self.episodes.add(actions, rewards, dones, shown, infos)
            self._last_step = self.model._last_obs, self.locals["new_obs"]
        return True

    def _make_optimizer(self) -> None:
        """Build the optimizer of the second step as the policy's is built, and restore what a checkpoint has of it."""
        groups = self.policy.optimizer.param_groups
        self._optimizer = self.policy.optimizer_class(
            [{"params": list(group["params"])} for group in groups],
            lr=self.weight * groups[0]["lr"],  # type: ignore[call-arg]
            **self.policy.optimizer_kwargs,
        )
        if self._saved_optimizer is not None:
            self._optimizer.load_state_dict(self._saved_optimizer)
            self._saved_optimizer = None

    def _learns(self) -> bool:
        """Whether there is something to learn from, and no exception has ended the training that these hooks are of."""
        assert self.episodes is not None
        return self.model.start_time == self._start_time and len(self.episodes) > 0

    def _count_waiting(self) -> None:
        """Count a step of A2C without an auxiliary one, and warn if there were many."""
        if self.model.start_time != self._start_time:  # an exception ended this training
            return
        self._n_waiting += 1
        if self._n_waiting >= _PATIENCE:
            self._warn_of_nothing()

    def _is_measured(self) -> bool:
        return self.n_updates % _MEASURED_EVERY == 0

    def _add_gradient(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer before each step, after A2C has computed and clipped its own gradient."""
        if not self._learns():
            self._count_waiting()
            return
        gradients, loss = self._gradients(optimizer, self.weight)
        if self._is_measured():
            shared = self.policy.shared_parameters()
            nothing = [th.zeros_like(parameter) for parameter in shared]
            before = _joined(
                zero if parameter.grad is None else parameter.grad
                for parameter, zero in zip(shared, nothing, strict=True)
            )
            ours = _joined(
                gradients.get(parameter, zero)
                for parameter, zero in zip(shared, nothing, strict=True)
            )
            self._record_share(before, ours)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._count_update(loss)

    def _note_weights(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer before each step: now and then, keep the weights from which it starts."""
        if self._learns() and self._is_measured():
            self._weights_before = _joined(self.policy.shared_parameters())

    def _take_step(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called by the optimizer after each step: take the second one, on the gradient at the weights of now."""
        if not self._learns():
            self._count_waiting()
            return
        assert self._optimizer is not None
        gradients, loss = self._gradients(optimizer, 1.0)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        first_gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = gradients.get(parameter)
        for group, first_group in zip(
            self._optimizer.param_groups, optimizer.param_groups, strict=True
        ):
            group["lr"] = self.weight * first_group["lr"]
        before, self._weights_before = self._weights_before, None
        between = None if before is None else _joined(self.policy.shared_parameters())
        self._optimizer.step()
        if before is not None and between is not None:
            after = _joined(self.policy.shared_parameters())
            self._record_share(between - before, after - between)
        # Other hooks may look at A2C's gradient.
        for parameter, first_gradient in zip(parameters, first_gradients, strict=True):
            parameter.grad = first_gradient
        self._count_update(loss)

    def _gradients(
        self, optimizer: th.optim.Optimizer, weight: float
    ) -> tuple[dict[th.Tensor, th.Tensor], th.Tensor]:
        """:return: the clipped gradient of the weighted loss, by the parameters that it has one for; and the loss itself"""
        assert self.episodes is not None
        assert self._rng is not None
        assert isinstance(self.model, A2C)
        with th.enable_grad():
            loss = self.loss(self.policy, self.episodes, self._rng)
            check_loss(loss, self.policy, self.n_updates + 1, self.model.num_timesteps)
            parameters = [
                one
                for group in optimizer.param_groups
                for one in group["params"]
                if one.requires_grad
            ]
            found = th.autograd.grad(weight * loss, parameters, allow_unused=True)
        used = {
            parameter: gradient
            for parameter, gradient in zip(parameters, found, strict=True)
            if gradient is not None
        }
        norm = th.nn.utils.get_total_norm(list(used.values()))
        scale = (self.model.max_grad_norm / (norm + 1e-6)).clamp(
            max=1.0
        )  # as PyTorch's clip_grad_norm_
        return {parameter: gradient * scale for parameter, gradient in used.items()}, loss

    def _record_share(self, first: th.Tensor, ours: th.Tensor) -> None:
        """
        :param first: what A2C does to the shared parameters in this update, as one vector
        :param ours: what this callback does to them
        """
        length = first.norm().item()
        if length > 0.0:  # a schedule may end at 0
            self.logger.record(f"auxiliary/{self.task}_share", ours.norm().item() / length)
            cosine = th.cosine_similarity(first, ours, dim=0).item()
            self.logger.record(f"auxiliary/{self.task}_cosine", cosine)

    def _count_update(self, loss: th.Tensor) -> None:
        self.n_updates += 1
        self.logger.record(f"auxiliary/{self.task}_loss", loss.item())
        assert self.episodes is not None
        self.logger.record("auxiliary/episodes", len(self.episodes))

    def _on_training_end(self) -> None:
        self._remove_hooks()
        assert self.episodes is not None
        assert isinstance(self.model, A2C)
        n_steps = self._n_waiting * self.model.n_steps * self.model.n_envs
        if n_steps >= _A_TRIAL and len(self.episodes) == 0:
            self._warn_of_nothing()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()  # which does nothing the second time

    def _warn_of_nothing(self) -> None:
        """Say once that the task has not learned, and what helps."""
        if self._warned:
            return
        self._warned = True
        assert self.episodes is not None
        assert isinstance(self.model, A2C)
        n_steps = self._n_waiting * self.model.n_steps
        what = f"{type(self).__name__} has learned nothing in {n_steps} steps of each environment"
        cut_after = self.episodes.cut_after
        rule = "none is cut" if cut_after is None else f"none is cut before it has {cut_after}"
        advice = "Train longer, put a TimeLimit around the environment"
        warnings.warn(
            f"{what}: no episode is complete, and {rule}. {advice}, or give EpisodeBuffer a smaller"
            " cut_after",
            stacklevel=2,
        )

    def _draw(
        self, episodes: EpisodeBuffer, rng: np.random.Generator, device: th.device
    ) -> tuple[Trajectories, th.Tensor, th.Tensor, th.Tensor]:
        """:return: trajectories; and as tensors their observations, their actions, and which transitions are real"""
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        arrays = batch.observations, batch.actions, np.arange(self.n_steps) < batch.lengths[:, None]
        observations, actions, real = (th.as_tensor(array, device=device) for array in arrays)
        return batch, observations, actions, real


def _joined(tensors: Iterable[th.Tensor]) -> th.Tensor:
    """:return: copies of tensors as one vector"""
    return th.cat([tensor.detach().flatten() for tensor in tensors])


class ManyGoalsCallback(AuxiliaryCallback):
    r"""
    Many goals as an auxiliary task (section 5 and Algorithm 2 of Veeriah et al. 2018). Trajectories are drawn from the best
    episodes. The last observation of each is the goal of all its transitions.

    The paper gives beta, K and 80 transitions. Chosen here: trajectories as long as the actor-critic's rollouts (5 steps of 16
    environments are 80), and the gridworld's interval of the target network.

    By default each update takes the two steps of Algorithm 2: :math:`\theta - \alpha \nabla \mathcal{L}^{AC}`, then
    :math:`\theta - \alpha \beta \nabla \mathcal{L}^Q`. Section 5 prints the sum of both losses, which is
    ``update="joint"``. :class:`AuxiliaryCallback` says how both are carried out.

    :param beta: weight of the loss
    :param n_steps: n, transitions in a trajectory
    :param gamma: discount factor of the goals
    :param goal_reward: reward of a transition that reaches its goal, ``step_reward`` of every other one
    :param target_update_interval: updates between copies to the target network
    :param update: "two_steps" (Algorithm 2) or "joint" (section 5)
    :param kwargs: ``episodes``, ``batch_size``, ``seed``, ``verbose``: see :class:`AuxiliaryCallback`
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "many_goals"

    def __init__(
        self,
        beta: float = 0.02,
        n_steps: int = 5,
        gamma: float = 0.99,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        target_update_interval: int = 250,
        update: Update = "two_steps",
        **kwargs: Any,
    ) -> None:
        super().__init__(beta, n_steps=n_steps, update=update, **kwargs)
        self.gamma = check_number("gamma", gamma, at_least=0, below=1)
        self.goal_reward, self.step_reward = check_rewards(goal_reward, step_reward)
        self.target_update_interval = check_count("target_update_interval", target_update_interval)

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch, observations, actions, real = self._draw(episodes, rng, policy.device)
        goals = np.broadcast_to(batch.observations[:, -1:], batch.observations[:, 1:].shape)
        achieved = th.as_tensor(
            identical(batch.observations[:, 1:], goals, len(episodes.frames.shape)),
            device=policy.device,
        )
        with th.no_grad():
            next_q = policy.goal_values(observations, target=True)
        q, rewards = policy.goal_values(observations), (self.goal_reward, self.step_reward)
        return mean_of_real(
            many_goals_losses(q, next_q, actions, achieved, self.gamma, *rewards), real
        )


class PixelControlCallback(AuxiliaryCallback):
    """
    Pixel control (Jaderberg et al. 2017): learn to change each part of the picture. The policy's ``crop`` and ``cell`` say
    which parts. Of a stack of frames, the newest counts. The source adds its loss to A3C's, so that the update is joint.

    The source takes one trajectory in an update and draws the weight log-uniformly from 0.0001 to 0.01 for Atari; the default
    is the middle of that range.

    :param weight: of the loss; that of a transition is the sum over all cells
    :param n_steps: n, transitions in a trajectory
    :param gamma: discount factor of the changes
    :param update: "joint" or "two_steps", see :class:`AuxiliaryCallback`
    :param kwargs: ``episodes``, ``batch_size``, ``seed``, ``verbose``: see :class:`AuxiliaryCallback`
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "pixel_control"

    def __init__(
        self,
        weight: float = 0.001,
        n_steps: int = 20,
        gamma: float = 0.9,
        update: Update = "joint",
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, n_steps=n_steps, update=update, **kwargs)
        self.gamma = check_number("gamma", gamma, at_least=0, at_most=1)

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        batch, observations, actions, real = self._draw(episodes, rng, policy.device)
        newest = np.ascontiguousarray(episodes.frames.split(batch.observations)[:, :, -1])
        changes = pixel_changes(
            th.as_tensor(newest, device=policy.device).float() / 255.0, policy.crop, policy.cell
        )
        ended = th.as_tensor(batch.terminated, device=policy.device)
        losses = pixel_control_losses(
            policy.cell_values(observations), actions, changes, ended, real, self.gamma
        )
        return mean_of_real(losses, real)


class RewardPredictionCallback(AuxiliaryCallback):
    """
    Reward prediction (Jaderberg et al. 2017): is the next reward zero, positive or negative? From three observations; half of
    the transitions have a reward. The source adds its loss to A3C's, so that the update is joint.

    :param weight: of the loss, 1 in the source
    :param update: "joint" or "two_steps", see :class:`AuxiliaryCallback`
    :param kwargs: ``episodes``, ``batch_size``, ``seed``, ``verbose``: see :class:`AuxiliaryCallback`
    :raises ValueError: if a number is out of its range
    """

    task = "reward_prediction"

    def __init__(self, weight: float = 1.0, update: Update = "joint", **kwargs: Any) -> None:
        super().__init__(weight, update=update, **kwargs)

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        drawn = episodes.sample_rewards(self.batch_size, rng)
        observations, rewards = (th.as_tensor(array, device=policy.device) for array in drawn)
        return reward_prediction_losses(policy.reward_logits(observations), rewards).mean()
