"""How a ManyGoalsDQN acts: towards goals, and for the rewards of a task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.action_masks import check_action_masks, random_allowed
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.spaces import check_inside, check_one_hot
from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.task_policy import (
    GoalValues,
    Reward,
    TaskPolicy,
    make_task_policy,
)
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import WorldModel


def _packed(observation: dict[str, Any], space: PackedSpace) -> NDArray[np.uint8]:
    """Return the packed observation of a goal observation: of a wrapper, a GoalEnv, or a Dict."""
    seen = observation["observation"]
    if isinstance(seen, dict):
        return space.pack(seen)
    array = np.asarray(seen)
    if array.dtype == np.uint8 and array.shape[-1:] == space.shape:
        return array
    return space.pack(observation)


class ActingMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that acts: towards a goal by the network
    (:meth:`predict`), and for rewards by a policy of its own (:meth:`task_policy`).
    """

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Return greedy or epsilon-greedy actions of the network. In a batch, random actions are drawn
        for each observation independently. For a single goal that was never met, it warns once.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch of n
        :param state: not used
        :param episode_start: not used
        :param deterministic: True for greedy actions. False for actions that are random with
            probability ``exploration_rate``, and else greedy
        :param action_masks: whether each action is allowed, shape (A,) or (n, A), as in
            sb3-contrib. None: all are
        :return: actions, int64, shape (n,), a NumPy integer for one observation; and ``state``
        :raises ValueError: if ``observation`` is not such a dict, a number is out of the range of a
            Discrete, MultiDiscrete or MultiBinary space, or a single goal is outside of its Box.
            Also if masks have another shape, or allow no action
        """
        model = self._model
        goal_obs = self._check_goal_obs(observation)
        if observation is not model._last_obs and not self._is_goal(goal_obs["desired_goal"]):
            # The caller is not training, so the goal may be any.
            self._check_desired_goal(goal_obs["desired_goal"])
            model._warn_of_unknown_goal(goal_obs["desired_goal"])
        tensors, vectorized = model.policy.obs_to_tensor(goal_obs)
        assert isinstance(tensors, dict)
        n = len(tensors["observation"])
        n_actions = int(model.action_space.n)
        masks = None
        if action_masks is not None:
            masks = check_action_masks(action_masks, n, n_actions)
        explores: NDArray[np.bool_] | None = None
        if not deterministic:
            explores = model.rng.random(n) < model.exploration_rate
            if masks is None:
                actions = model.rng.integers(n_actions, size=n)
            else:
                actions = random_allowed(masks, model.rng)
        if explores is None or not explores.all():
            model.policy.set_training_mode(False)
            with th.no_grad():
                q = model.policy.action_values(tensors)
            if masks is not None:
                q = q.masked_fill(~th.as_tensor(masks, device=model.device), -th.inf)
            greedy = q.argmax(dim=1).cpu().numpy()
            actions = greedy if explores is None else np.where(explores, actions, greedy)
        return actions if vectorized else actions[0], state

    def _check_goal_obs(
        self, observation: NDArray[Any] | dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return observation and desired goal as arrays. Raise a ValueError if they are wrong."""
        model = self._model
        keys = ("observation", "desired_goal")
        if not isinstance(observation, dict) or not set(keys) <= observation.keys():
            got = list(observation) if isinstance(observation, dict) else type(observation).__name__
            raise ValueError(
                f'observation must be a dict with "observation" and "desired_goal", got {got}: '
                "wrap the environment, GoalBufferWrapper(env, model.goal_buffer); for rewards use "
                "model.task_policy()"
            )
        goal_obs = {"desired_goal": np.asarray(observation["desired_goal"])}
        space = model.observation_space["observation"]
        if isinstance(space, PackedSpace):
            goal_obs["observation"] = _packed(observation, space)
        else:
            goal_obs["observation"] = np.asarray(observation["observation"])
        shapes = [goal_obs[key].shape for key in keys]
        wanted = [model.observation_space[key].shape or () for key in keys]
        batches = [
            shape[: max(len(shape) - len(of_one), 0)]
            for shape, of_one in zip(shapes, wanted, strict=True)
        ]
        differ = shapes[0] != shapes[1] if wanted[0] == wanted[1] else batches[0] != batches[1]
        if differ:
            same = "one shape" if wanted[0] == wanted[1] else f"shapes {wanted[0]} and {wanted[1]}"
            raise ValueError(
                f"observation and desired_goal must have {same}, as many of one as of the other, "
                f"got {shapes[0]} and {shapes[1]}"
            )
        for key in keys:
            check_one_hot(model.observation_space[key], goal_obs[key], key)
        return goal_obs

    def _is_goal(self, desired: NDArray[Any]) -> bool:
        """Return whether this is a single goal that is known. Of such a goal all is in order."""
        model = self._model
        goals = model.goal_buffer
        if goals is None or model.goals_in_replay:
            return False
        is_single = desired.shape == goals.shape and desired.dtype == goals.dtype
        return is_single and goals.ids(desired[None])[0] != UNKNOWN

    def _check_desired_goal(self, desired: NDArray[Any]) -> None:
        """
        Raise an error for a single goal outside of its Box, unless it was met. Batches are not
        checked, because that would take too long.
        """
        model = self._model
        space = model.observation_space["desired_goal"]
        one = desired[0] if desired.shape == (1, *(space.shape or ())) else desired
        fits = one.shape == space.shape and one.dtype.kind in "iubf"
        if not isinstance(space, spaces.Box) or not fits:
            return
        met = None
        if model.goal_buffer is not None and not model.goals_in_replay:
            met = model.goal_buffer.have_met(one[None].astype(model.goal_buffer.dtype))
        check_inside(space, one[None], "desired_goal", met, numbered=False)

    @property
    def goal_rewards(self) -> NDArray[np.float64]:
        """
        The mean reward of the environment on arriving at each of ``goal_buffer.observations``,
        shape ``(len(goal_buffer),)``. NaN where no transition arrived.

        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if the model knows no goals, because it was loaded without an
            environment
        """
        goal_buffer, world = self._rewarded_goals()
        return world.mean_rewards[goal_buffer.state_ids]

    def _rewarded_goals(self) -> tuple[GoalBuffer, WorldModel]:
        """Return goals and the world, or raise an error if no rewards are known."""
        model = self._model
        if model.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory, and are forgotten: their "
                "rewards are not known"
            )
        if model.goal_buffer is None or model.world is None:
            raise ValueError("no reward is known: the model has no goals. Call load_world")
        return model.goal_buffer, model.world

    def task_policy(
        self,
        reward: Reward | None = None,
        *,
        gamma: float | None = None,
        planned: bool | None = None,
    ) -> TaskPolicy:
        """
        Make a policy for a task, from the network and the model of the world as they are now. It
        takes observations of the environment without goals.

        The policy maximizes the discounted first reward, because a task ends there. A planned
        policy does this exactly for the world as the model knows it. Otherwise the network goes to
        the best single goal, which falls short in some worlds with chance. A termination without
        reward counts as a failure. If a rewarded state does not end the episode, the policy goes
        there and stays, and a warning says so. Negative rewards are allowed if all steps without a
        positive reward have the same one. Other negative rewards are refused.

        :param reward: the rewards of the task: an array with a number of at least 0 for each of
            ``model.goal_buffer.observations``, or a function that returns it for these
            observations. None: the rewards that the environment gave while the model learned
        :param gamma: discount factor of the task, in (0, 1]. None: that of the model. In worlds
            with chance, the network's distances are exact only with this one
        :param planned: whether to plan in the model of the world. Then the network acts only where
            the plan knows no way to a reward. None: plan if targets are ``PlannedTargets`` and the
            model knows transitions
        :return: an SB3 policy, which does not change when the model learns
        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if no known observation is rewarded, an argument is out of its range, or
            ``planned`` is True and cannot be done
        """
        model = self._model
        goal_buffer, world = self._rewarded_goals()
        # A model without an environment has no targets.
        targets = getattr(model, "targets", None)
        kind = model._first_target_class if targets is None else type(targets)
        can_plan = issubclass(kind, PlannedTargets) and world.n_counted > 0
        if planned and not can_plan:
            raise ValueError(
                "planned=True needs PlannedTargets and a world in which transitions were made, see "
                "load_world"
            )
        return make_task_policy(
            model.q_net if model.policy.q_net_ema is None else model.policy.q_net_ema,
            world,
            goal_buffer,
            model.action_space,
            GoalValues(model.gamma, model.goal_reward, model.step_reward),
            reward,
            gamma,
            planned=can_plan and planned is not False,
        )
