"""What auxiliary tasks for SB3's A2C have in common: episodes, updates and the log."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import (
    VecEnv,
    VecFrameStack,
    VecMonitor,
    is_vecenv_wrapped,
    unwrap_vec_wrapper,
)

from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, Trajectories
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy, Task
from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.errors import check_loss
from sb3_manygoals.goals.moved_worlds import check_evaluators, marks_of
from sb3_manygoals.terminal_watch import TerminalWatch
from sb3_manygoals.validation import check_count, check_number, check_seed

Update = Literal["two_steps", "joint"]

# Shares and cosines are measured in one of so many updates.
_MEASURED_EVERY = 50
# After so many steps of A2C's optimizer without an auxiliary update, training warns.
_PATIENCE = 200
# A training of fewer steps, of all environments together, need not make an update: its end does not
# warn.
_A_TRIAL = 500


class AuxiliaryCallback(BaseCallback):
    r"""
    An auxiliary task for SB3's A2C.

    Give it to ``learn()``, alone or in a list with other callbacks. Each auxiliary callback has its
    own loss and weight.

    Veeriah et al. (2018) print the update in two ways. ``update`` chooses one of them.

    ``"joint"``: section 5 prints a sum of losses. One step of A2C's optimizer descends

    .. math:: \mathcal{L} = \mathcal{L}^{AC} + \sum_i \beta_i \mathcal{L}_i

    The gradient of the weighted loss is clipped by its own norm and added to A2C's. So the weight
    scales a gradient. RMSProp divides by second moments of the sum, to which a small gradient adds
    little.

    ``"two_steps"``: Algorithm 2 prints one step after the other,

    .. math::
        \theta \leftarrow \theta - \alpha \nabla \mathcal{L}^{AC}, \quad
        \theta \leftarrow \theta - \alpha \beta_i \nabla \mathcal{L}_i

    The second gradient is that of the loss without beta, at the parameters after the first step. It
    is clipped by its own norm. A second optimizer takes the second step. It has the class and the
    arguments of the policy's optimizer, but its own moments. Its step size is beta times the
    policy's current one, which follows the schedule. So beta scales a step. Callbacks in a list
    take their steps one after the other.

    Both ways clip to A2C's ``max_grad_norm``. With a weight of 0 nothing is computed, and A2C is
    SB3's to the last bit.

    In one of 50 updates, the logger gets ``auxiliary/<task>_share`` and
    ``auxiliary/<task>_cosine``. Both compare the step of this callback with the step of A2C and of
    the callbacks before this one. If the update is joint, they compare gradients instead. Only the
    parameters that the task shares with A2C count. The share is the quotient of the norms, this
    callback's over the other. The cosine is that of the angle between them.

    Updates begin when the first episode has ended, or the first piece of an endless one, see
    :class:`EpisodeBuffer`. If there is no update for long, a warning says why.

    :param weight: weight of the loss, beta, at least 0. The loss is a mean over transitions
    :param episodes: the buffer to fill and to sample from. Several callbacks may share one. None:
        the callback makes one, with the default capacity and the stack of a VecFrameStack. For
        stacks of Gymnasium's FrameStackObservation, give a buffer with their ``n_stack``
    :param batch_size: number of transitions in an update, a multiple of ``n_steps``
    :param n_steps: n, number of transitions in a trajectory
    :param seed: seed of the batches; None: the model's seed
    :param verbose: SB3's verbosity: 0 no output, 1 info, 2 debug
    :param update: "joint", one step on the sum of losses, or "two_steps", a step after A2C's
    :raises ValueError: if a number is out of its range, ``batch_size`` is not a multiple of
        ``n_steps``, or ``update`` is unknown
    """

    task: Task
    """The name of the task's head in the policy."""
    name_of_weight: ClassVar[str] = "weight"
    """What the subclass calls the argument that is its weight."""
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
        self.weight = check_number(self.name_of_weight, weight, at_least=0)
        self.n_steps = check_count("n_steps", n_steps)
        self.batch_size = check_count("batch_size", batch_size)
        if episodes is not None and not isinstance(episodes, EpisodeBuffer):
            raise TypeError(f"episodes must be an EpisodeBuffer, got {episodes!r}")
        if batch_size % n_steps:
            raise ValueError(
                f"batch_size must be a multiple of n_steps, {n_steps}, got {batch_size}"
            )
        if update not in get_args(Update):
            raise ValueError(f"update must be 'two_steps' or 'joint', got {update!r}")
        self.episodes = episodes
        self.seed = check_seed(seed)
        self.update = update
        self.n_updates = 0
        """Number of updates by the auxiliary loss so far."""
        self.rng: np.random.Generator | None = None
        """Generator of the batches; None before the first training."""
        # The policy that was trained last. None: there is none, or a checkpoint was restored.
        self._last_policy: AuxiliaryActorCriticPolicy | None = None
        # Whether this object made the buffer of episodes, and not the user.
        self._made_episodes = False
        self._start_time: float | None = None
        self._hooks: list[Any] = []
        # The optimizer of the second step. Until it is built, its state in a checkpoint.
        self._optimizer: th.optim.Optimizer | None = None
        self._saved_optimizer: dict[str, Any] | None = None
        # The episodes of a checkpoint until there is a buffer for them.
        self._saved_episodes: dict[str, Any] | None = None
        # The shared weights before A2C's step.
        self._weights_before: th.Tensor | None = None
        self._terminal_watch = TerminalWatch()
        # A2C's updates without an auxiliary one, in all trainings of the model together.
        self._n_waiting = 0
        # Whether it has warned that nothing is learned.
        self._warned = False
        # SB3's observations before the last step, and the observations that the step returned.
        self._observations_before: Any = None
        # The environments of the last training, and what tells whether somebody moved them since.
        self._last_env: VecEnv | None = None
        self._marks: tuple[Any, ...] | None = None
        self._observations_after: Any = None

    @abstractmethod
    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        """
        Compute the loss of one update, without its weight.

        :param policy: the policy whose head learns
        :param episodes: the buffer to sample from. At least one episode has ended
        :param rng: generator of the batch
        :return: the loss, shape ()
        """

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for the ``extras`` of an ExactCheckpointCallback.

        :return: the state. It includes the episodes if this callback fills the buffer
        """
        episodes = self._saved_episodes
        if self.episodes is not None and self.episodes.recorder in (None, self):
            episodes = self.episodes.get_checkpoint_state()
        optimizer = self._saved_optimizer
        if self._optimizer is not None:
            optimizer = self._optimizer.state_dict()
        return {
            "rng": self.rng,
            "n_updates": self.n_updates,
            "episodes": episodes,
            "update": self.update,
            "optimizer": optimizer,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the state is of a callback with another ``update``, or its
            episodes are of a buffer with other settings
        """
        # States of earlier versions do not have the update. It was always joint.
        state = {"update": "joint", "optimizer": None} | state
        check_same("an auxiliary callback", state, {"update": self.update})
        self._saved_episodes = state["episodes"]
        self._restore_episodes()
        self.rng = state["rng"]
        self.n_updates = state["n_updates"]
        # What was restored belongs to whichever model comes next, and to its environments.
        self._last_policy = None
        self._last_env = None
        self._marks = None
        # The optimizer is built when training begins.
        self._optimizer = None
        self._saved_optimizer = state["optimizer"]

    def _restore_episodes(self) -> None:
        """Restore the episodes of a checkpoint, unless there is no buffer yet."""
        if self.episodes is not None and self._saved_episodes is not None:
            self.episodes.set_checkpoint_state(self._saved_episodes)
            self._saved_episodes = None

    def _init_callback(self) -> None:
        """Check that the model fits, and make what is missing."""
        model = self.model
        policy = model.policy
        if not isinstance(model, A2C) or not isinstance(policy, AuxiliaryActorCriticPolicy):
            raise TypeError(
                f"{type(self).__name__} needs an A2C with an AuxiliaryActorCriticPolicy, got"
                f" {type(model).__name__} with {type(policy).__name__}"
            )
        if self.task not in policy.tasks:
            raise ValueError(
                "the policy has no head for it: pass"
                f' policy_kwargs={{"tasks": [..., {self.task!r}]}} to A2C'
            )
        is_another = self._last_policy is not policy
        if self._last_policy is not None and is_another:
            self._begin_with_another_model()
        if self.episodes is None:
            self.episodes = self._make_episodes(model)
            self._made_episodes = True
        elif self.episodes.observation_space != model.observation_space:
            raise ValueError(
                f"episodes must be a buffer for {model.observation_space}, as the model sees it,"
                f" got one for {self.episodes.observation_space}"
            )
        if is_another:
            self._optimizer = None
        self.policy = policy
        self._last_policy = policy
        if self.update == "two_steps" and self.weight > 0.0 and self._optimizer is None:
            self._make_optimizer()
        # The last of the callbacks that share the buffer fills it.
        self.episodes.recorder = self
        self._restore_episodes()
        if self.rng is None:
            seed = model.seed if self.seed is None else self.seed
            # The name of the task keeps its numbers apart from others with the same seed.
            self.rng = np.random.default_rng(None if seed is None else [*self.task.encode(), seed])

    def _begin_with_another_model(self) -> None:
        """Forget what belongs to the model before. Episodes that the user gave are kept."""
        self.n_updates = 0
        self.rng = None
        self._n_waiting = 0
        self._warned = False
        self._terminal_watch = TerminalWatch()
        if self._made_episodes:
            self.episodes = None

    def _make_episodes(self, model: A2C) -> EpisodeBuffer:
        """Make a buffer for the model's observations and the stacks of frames in them."""
        space = model.observation_space
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None and normalizer.norm_obs:
            # The normalization drifts, so consecutive stacks do not overlap.
            return EpisodeBuffer(space, normalized=True)
        n_stack = getattr(self.training_env.unwrapped, "n_stack", 1)
        stack = unwrap_vec_wrapper(self.training_env, VecFrameStack)
        shape = space.shape or ()
        if isinstance(stack, VecFrameStack) and shape == stack.observation_space.shape:
            if is_image_space(space) and stack.stacked_obs.stack_dimension == -1:
                # SB3 has taken the first axis of the stack for the channels, and not the last.
                raise ValueError(
                    f"the shape of the stacked pictures, {shape}, does not tell which axis holds "
                    "the channels: put the channels first, "
                    'VecFrameStack(VecTransposeImage(venv), n, channels_order="first")'
                )
        # The buffer needs stacks along the first axis. Vectors have them there. So have images,
        # because SB3 moves their channels there.
        if isinstance(stack, VecFrameStack) and (
            stack.stacked_obs.stack_dimension == 1
            or is_image_space(space)
            or len(space.shape or ()) == 1
        ):
            n_stack = stack.stacked_obs.n_stack
        return EpisodeBuffer(space, n_stack=n_stack)

    def _on_training_start(self) -> None:
        """Begin episodes or go on with them, and hook into A2C's optimizer."""
        if self.parent is not None:
            raise ValueError(
                f"{type(self).__name__} is inside of {type(self.parent).__name__}, and does not see"
                " every step: give it to learn() itself or in a list of callbacks"
            )
        check_evaluators(self.locals["callback"], self.training_env, notices=False)
        assert self.episodes is not None
        if self.episodes.recorder is self:
            shown: Any = self.model._last_obs
            if shown is self._observations_before:
                # A callback ended the last training within a step, so SB3 does not know where the
                # step led.
                shown = self._observations_after
            self._start_episodes(shown)
        if self._optimizer is not None and not self.policy.optimizer.state:
            # Weights were transferred to the policy, so the moments belong to others.
            self._optimizer.state.clear()
        self._start_time = self.model.start_time
        # The hooks are still there if an exception ended the last training.
        self._remove_hooks()
        self._weights_before = None
        optimizer = self.policy.optimizer
        if self.weight > 0.0 and self.update == "joint":
            self._hooks = [optimizer.register_step_pre_hook(self._add_gradient)]
        elif self.weight > 0.0:
            self._hooks = [
                optimizer.register_step_pre_hook(self._note_weights),
                optimizer.register_step_post_hook(self._take_step),
            ]

    def _start_episodes(self, shown: Any) -> None:
        """Go on with episodes, or begin new ones where the environments were reset or moved."""
        assert self.episodes is not None
        venv = self.training_env
        is_reset = self.locals["reset_num_timesteps"]
        is_another = self._last_env is not None and self._last_env is not venv
        marks = self._marks
        # After a reset by SB3, it knows what all environments show.
        is_shown_anew = shown is not self._observations_after
        was_reset = is_shown_anew and bool(np.all(self.model._last_episode_starts))
        self._last_env = venv
        if is_another:
            self._terminal_watch = TerminalWatch()
        # An exception may end the training, and then nobody knows what the marks were.
        self._marks = None
        self.episodes.start(
            shown,
            keep_ongoing=not (is_reset or is_another),
            are_new=self.model._last_episode_starts,
            have_moved=not is_reset
            and not is_another
            and not was_reset
            and marks not in (None, marks_of(venv)),
        )
        is_monitored = is_vecenv_wrapped(venv, VecMonitor) or any(venv.env_is_wrapped(Monitor))
        if not (is_reset or is_another):
            is_monitored = is_monitored or self.episodes.monitored
        else:
            self.episodes.monitor_is_silent = False
        self.episodes.monitored = is_monitored and not self.episodes.monitor_is_silent

    def _on_step(self) -> bool:
        """Add the transitions of a step to the buffer."""
        assert self.episodes is not None
        if self.episodes.recorder is self:
            observations = self.locals["new_obs"]
            dones = self.locals["dones"]
            infos = self.locals["infos"]
            self._terminal_watch.look(self.training_env, observations, dones, infos)
            # What VecNormalize makes of a reward drifts, so returns could not be compared.
            normalizer = self.model.get_vec_normalize_env()
            original = None if normalizer is None else normalizer.get_original_reward()
            # SB3 adds to the rewards afterwards, in place: the buffer copies them.
            self.episodes.add(
                self.locals["actions"], self.locals["rewards"], dones, observations, infos, original
            )
            self._observations_before = self.model._last_obs
            self._observations_after = observations
        return True

    def _make_optimizer(self) -> None:
        """
        Build the optimizer of the second step, with the class and arguments of the policy's.

        Restore its state if a checkpoint has one.
        """
        groups = self.policy.optimizer.param_groups
        self._optimizer = self.policy.optimizer_class(
            [{"params": list(group["params"])} for group in groups],
            # Each step has a step size of its own. A schedule may have gone below 0 by now.
            lr=0.0,  # type: ignore[call-arg]
            **self.policy.optimizer_kwargs,
        )
        if self._saved_optimizer is not None:
            self._optimizer.load_state_dict(self._saved_optimizer)
            self._saved_optimizer = None

    def _is_running(self) -> bool:
        """Whether no exception has ended the training to which the hooks belong."""
        return self.model.start_time == self._start_time

    def _learns(self) -> bool:
        """Whether the hooks' training goes on and there is something to learn from."""
        assert self.episodes is not None
        return self._is_running() and len(self.episodes) > 0

    def _count_waiting(self) -> None:
        """Count a step of A2C without an auxiliary one, and warn if there were many."""
        if not self._is_running():
            return
        self._n_waiting += 1
        if self._n_waiting >= _PATIENCE:
            self._warn_of_nothing()

    def _is_measured(self) -> bool:
        return self.n_updates % _MEASURED_EVERY == 0

    def _add_gradient(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """
        Add the auxiliary gradient to A2C's.

        The optimizer calls this before each step, after A2C has computed and clipped its gradient.
        """
        if not self._learns():
            self._count_waiting()
            return
        gradients, loss = self._gradients(optimizer, self.weight)
        if self._is_measured():
            a2cs = []
            ours = []
            for shared in self.policy.shared_parameters():
                nothing = th.zeros_like(shared)
                a2cs.append(nothing if shared.grad is None else shared.grad)
                ours.append(gradients.get(shared, nothing))
            self._record_share(_joined(a2cs), _joined(ours))
        for parameter, gradient in gradients.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._count_update(loss)

    def _note_weights(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """
        Keep the weights from which A2C's step starts, if this update is measured.

        The optimizer calls this before each step.
        """
        if self._learns() and self._is_measured():
            self._weights_before = _joined(self.policy.shared_parameters())

    def _take_step(self, optimizer: th.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """
        Take the second step, on the gradient at the weights after A2C's step.

        The optimizer calls this after each step.
        """
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
            # In SB3's last rollout, a schedule may go below 0.
            group["lr"] = self.weight * max(first_group["lr"], 0.0)
        before = self._weights_before
        self._weights_before = None
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
        """
        Compute the clipped gradient of the weighted loss.

        Return it by the parameters that have one, and the loss itself.
        """
        assert self.episodes is not None
        assert self.rng is not None
        assert isinstance(self.model, A2C)
        with th.enable_grad():
            loss = self.loss(self.policy, self.episodes, self.rng)
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
        # PyTorch's clip_grad_norm_ computes this too.
        scale = (self.model.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return {parameter: gradient * scale for parameter, gradient in used.items()}, loss

    def _record_share(self, a2cs: th.Tensor, ours: th.Tensor) -> None:
        """Log how this callback's change of the shared parameters compares with A2C's."""
        length = a2cs.norm().item()
        # The length is 0 if a schedule of step sizes has ended at 0.
        if length > 0.0:
            self.logger.record(f"auxiliary/{self.task}_share", ours.norm().item() / length)
            cosine = th.cosine_similarity(a2cs, ours, dim=0).item()
            self.logger.record(f"auxiliary/{self.task}_cosine", cosine)

    def _count_update(self, loss: th.Tensor) -> None:
        self.n_updates += 1
        self.logger.record(f"auxiliary/{self.task}_loss", loss.item())
        assert self.episodes is not None
        self.logger.record("auxiliary/episodes", len(self.episodes))

    def _on_training_end(self) -> None:
        """Remove the hooks, and warn if nothing was learned."""
        self._remove_hooks()
        self._marks = marks_of(self.training_env)
        assert self.episodes is not None
        assert isinstance(self.model, A2C)
        n_steps = self._n_waiting * self.model.n_steps * self.model.n_envs
        if n_steps >= _A_TRIAL and len(self.episodes) == 0:
            self._warn_of_nothing()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            # A hook that was removed before is left alone.
            hook.remove()

    def _warn_of_nothing(self) -> None:
        """Warn once that the task has not learned, and say what helps."""
        if self._warned:
            return
        self._warned = True
        assert self.episodes is not None
        assert isinstance(self.model, A2C)
        n_steps = self._n_waiting * self.model.n_steps
        cut_after = self.episodes.cut_after
        rule = "none is cut" if cut_after is None else f"none is cut before it has {cut_after}"
        warnings.warn(
            f"{type(self).__name__} has learned nothing in {n_steps} steps of each environment: no"
            f" episode is complete, and {rule}. Train longer, put a TimeLimit around the"
            " environment, or give EpisodeBuffer a smaller cut_after",
            stacklevel=2,
        )

    def _sample(
        self, episodes: EpisodeBuffer, rng: np.random.Generator, device: th.device
    ) -> tuple[Trajectories, th.Tensor, th.Tensor, th.Tensor]:
        """
        Sample the trajectories of an update.

        Return them, and as tensors: their observations, their actions, and which transitions are
        real.
        """
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        is_real = np.arange(self.n_steps) < batch.lengths[:, None]
        observations = th.as_tensor(batch.observations, device=device)
        actions = th.as_tensor(batch.actions, device=device)
        return batch, observations, actions, th.as_tensor(is_real, device=device)


def _joined(tensors: Iterable[th.Tensor]) -> th.Tensor:
    """Return copies of tensors as one vector."""
    return th.cat([tensor.detach().flatten() for tensor in tensors])
