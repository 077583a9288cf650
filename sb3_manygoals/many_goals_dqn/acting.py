"""How a ManyGoalsDQN acts: towards goals, and for the rewards of a task."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.action_masks import check_action_masks, random_allowed
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.spaces import check_goal_obs, check_inside, converted
from sb3_manygoals.many_goals_dqn.goal_policy import (
    GoalPolicy,
    actions_of_plan,
    actions_to_goal,
    fill_in_greedy,
)
from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets, plan_bytes
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.targets import Targets
from sb3_manygoals.many_goals_dqn.task_policy import (
    GoalValues,
    Reward,
    TaskPolicy,
    make_task_policy,
    mean_rewards_of_goals,
)
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.packing import as_packed
from sb3_manygoals.validation import as_held, is_held
from sb3_manygoals.world import WorldModel


class ActingMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that acts: towards a goal by the network or by
    the plan (:meth:`predict`). It makes policies towards goals by the plan (:meth:`goal_policy`),
    and for rewards (:meth:`task_policy`).
    """

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
        planned: bool = False,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Return greedy or epsilon-greedy actions, of the network or of the plan. In a batch, random
        actions are drawn for each observation independently. For a single goal that was never met,
        it warns once.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch of n
        :param state: not used
        :param episode_start: not used
        :param deterministic: True for greedy actions. False for actions that are random with
            probability ``exploration_rate``, and else greedy
        :param action_masks: whether each action is allowed, shape (A,) or (n, A), as in
            sb3-contrib. None: all are
        :param planned: whether greedy actions are those of the last plan of ``PlannedTargets``. The
            network acts where the plan knows no way, in observations that are no known states, for
            goals that are not planned, and where a mask forbids the planned action. If there is no
            plan, the network acts, with a warning. :meth:`goal_policy` makes a plan. False: the
            network acts
        :return: actions, int64, shape (n,), a NumPy integer for one observation; and ``state``
        :raises ValueError: if ``observation`` is not such a dict, a float is NaN or infinite, a
            number is out of the range of a Discrete, MultiDiscrete or MultiBinary space, or a
            single goal is outside of its Box. Also if masks have another shape, or allow no action
        """
        model = self._model
        tensors, vectorized = self._tensors_of(observation)
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
            greedy = np.full(n, -1, dtype=np.int64)
            if planned:
                greedy = self._planned_actions(tensors)
            model.policy.set_training_mode(False)
            with th.no_grad():
                fill_in_greedy(
                    greedy,
                    self._action_values,
                    tensors["observation"],
                    tensors["desired_goal"],
                    masks,
                )
            actions = greedy if explores is None else np.where(explores, actions, greedy)
        return actions if vectorized else actions[0], state

    def q_values(self, observation: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        """
        Return the network's values of all actions, Q(s, a, g), by which :meth:`predict` chooses
        greedy actions. They are discounted sums of the goal wrapper's rewards.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch of n
        :return: shape (n, A), or (A,) for one observation
        :raises ValueError: if ``observation`` is none that :meth:`predict` takes
        """
        tensors, vectorized = self._tensors_of(observation)
        self._model.policy.set_training_mode(False)
        with th.no_grad():
            values = self._action_values(tensors["observation"], tensors["desired_goal"])
        array: NDArray[np.float32] = values.float().cpu().numpy()
        return array if vectorized else array[0]

    def _tensors_of(self, observation: Any) -> tuple[dict[str, th.Tensor], bool]:
        """Return a goal observation, checked, as tensors, and whether it is a batch."""
        model = self._model
        advice = (
            "wrap the environment, GoalBufferWrapper(env, model.goal_buffer, training=False); for "
            "rewards use model.task_policy()"
        )
        goal_obs = check_goal_obs(model.observation_space, observation, advice)
        if observation is not model._last_obs:
            # The caller is not training, so the goal may be any.
            self._warn_of_goals_met_anew(observation)
            if not self._is_goal(goal_obs["desired_goal"]):
                self._check_desired_goal(goal_obs["desired_goal"])
                model._warn_of_unknown_goal(goal_obs["desired_goal"])
        tensors, vectorized = model.policy.obs_to_tensor(goal_obs)
        assert isinstance(tensors, dict)
        return tensors, vectorized

    def _warn_of_goals_met_anew(self, goal_obs: dict[str, NDArray[Any]]) -> None:
        """
        Warn once if the model was loaded without its goals, and acts in its environment all the
        same. The goals there are those met since, and an agent that never moves knows only one.

        :param goal_obs: what the caller shows. Of other environments, nothing is said
        """
        model = self._model
        if model._is_learning or model.env is None or model.num_timesteps == 0:
            return
        if model.goals_in_replay or model.world is None or model.world.n_counted > 0:
            return
        trackers = [one for one in model._trackers if not one.env_sets_goals]
        if model.replay_buffer.size() > 0 or not any(one.began_without_goals for one in trackers):
            return
        if all(
            _are_equal(
                goal_obs.get(f"{name}_goal"),
                np.concatenate([getattr(one, f"{name}_goals") for one in trackers]),
            )
            for name in ("achieved", "desired")
        ):
            model._warn_once(
                "met anew",
                "the model was loaded without the goals that it knew, so its environment pursues "
                "those that it has met since. Scores in it mean nothing: load_all or load_world "
                "brings the goals back",
            )

    @property
    def _acting_network(self) -> UniversalQNetwork:
        """The network by which greedy actions are chosen."""
        policy = self._model.policy
        return policy.q_net if policy.q_net_ema is None else policy.q_net_ema

    def _action_values(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """Return the values of all actions by which greedy ones are chosen, shape (n, A)."""
        return self._model.policy.action_values(
            {"observation": observations, "desired_goal": goals}
        )

    def _planned_actions(self, tensors: dict[str, th.Tensor]) -> NDArray[np.int64]:
        """Return the actions of the last plan, -1 where it knows none, shape (n,)."""
        model = self._model
        targets = getattr(model, "targets", None)
        if not isinstance(targets, PlannedTargets) or targets.planned_at is None:
            model._warn_once(
                "no plan",
                "planned=True, but the model has no plan, so its network acts. A plan is made in "
                "learn(). model.goal_policy() returns a policy with a plan of its own",
            )
            return np.full(len(tensors["observation"]), -1, dtype=np.int64)
        assert model.goal_buffer is not None
        observations, goals = (
            as_held(tensors[key].cpu().numpy(), model.observation_space[key].dtype, key)
            for key in ("observation", "desired_goal")
        )
        state_ids, _ = model.goal_buffer.look_up(observations)
        return targets.plan.best_actions(state_ids, model.goal_buffer.stand_ins(goals))

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
            with np.errstate(invalid="ignore", over="ignore"):
                own = one[None].astype(model.goal_buffer.dtype)
            # What the dtype of goals does not hold was not met.
            if is_held(one[None], own):
                met = model.goal_buffer.have_met(own)
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
        return mean_rewards_of_goals(world, goal_buffer)

    def _rewarded_goals(self) -> tuple[GoalBuffer, WorldModel]:
        """Return goals and the world, or raise an error if no rewards are known."""
        model = self._model
        if model.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory, and are forgotten: their "
                "rewards are not known"
            )
        if model.goal_buffer is None or model.world is None:
            raise ValueError(
                "no reward is known: the model has no goals. `save` does not keep them: save with "
                "save_all and load with load_all, or call load_world"
            )
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
            ``model.goal_buffer.observations``, the known goals, or a function that returns it for
            them. Goals are observations, unless a ``goal`` function or a GoalEnv says what they
            are. In ``Dict`` worlds, the function takes a dict of arrays. None: the rewards that the
            environment gave while the model learned
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
        can_plan = issubclass(self._target_class, PlannedTargets) and world.n_counted > 0
        if planned and not can_plan:
            raise ValueError(
                "planned=True needs PlannedTargets and a world in which transitions were made, see "
                "load_world"
            )
        return make_task_policy(
            self._acting_network,
            world,
            goal_buffer,
            model.action_space,
            GoalValues(model.gamma, model.goal_reward, model.step_reward),
            reward,
            gamma,
            planned=can_plan and planned is not False,
        )

    def goal_policy(self, goal: NDArray[Any] | dict[str, NDArray[Any]] | None = None) -> GoalPolicy:
        """
        Make a policy that follows a plan to goals, and the network where the plan knows no way. Its
        actions are planned in the model of the world, so they need no network that has learned:
        random steps are enough.

        Without ``goal``, it takes goal observations, and has the plan that the model acts by while
        it learns. If the model has none yet, it plans for all its goals now, within
        ``max_plan_bytes``. With ``goal``, it takes observations of the environment without goals,
        and plans for this goal now. It then stays at the goal, where an action does that.

        :param goal: the goal to pursue, an array of the shape and dtype of the space of goals,
            which is that of the observations by default. In ``Dict`` worlds, it may be a dict of
            arrays. If it was held out, it is not planned for, and the network acts. None: the goals
            that observations say
        :return: an SB3 policy, which does not change when the model learns
        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if targets are not ``PlannedTargets``, the model knows no transitions,
            or ``goal`` is not in the space of goals
        :raises MemoryError: if the plan does not fit into the available memory
        """
        model = self._model
        goals, world = self._plannable_world()
        space: spaces.Space[Any] = model.observation_space
        if goal is not None:
            given = converted(as_packed(goal, goals.goal_space), goals.goal_space)
            goal = goals.check_goals(given, "goal", axes=0).copy()
            space = model.observation_space["observation"]
            unknown = goals.describe_unknown(goal[None])
            if unknown is not None:
                warnings.warn(unknown, stacklevel=2)
            table = actions_to_goal(world, goals, goal, model.gamma)
        else:
            plan = self._plan_of_now(goals, world)
            table = actions_of_plan(plan, goals, int(model.action_space.n))
            n_planned = table.actions.shape[1]
            if n_planned < len(goals):
                warnings.warn(
                    f"{n_planned} of {len(goals)} goals are in the plan: the network acts for the "
                    "others. goal_policy(goal) plans for any one of them",
                    stacklevel=2,
                )
        q_net = copy.deepcopy(self._acting_network)
        return GoalPolicy(space, model.action_space, q_net, table, goal)

    def _plannable_world(self) -> tuple[GoalBuffer, WorldModel]:
        """Return goals and the world, or raise an error if nothing can be planned in it."""
        model = self._model
        if model.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory, and are forgotten: it cannot "
                "plan for them"
            )
        if not issubclass(self._target_class, PlannedTargets):
            raise ValueError(
                "goal_policy needs PlannedTargets, the targets of this model are "
                f"{self._target_class.__name__}: observations must recur, see the guide"
            )
        if model.goal_buffer is None or model.world is None or model.world.n_counted == 0:
            raise ValueError(
                "goal_policy needs a world in which transitions were made, the model knows none: "
                "let it learn, or call load_world"
            )
        return model.goal_buffer, model.world

    @property
    def _target_class(self) -> type[Targets]:
        """The class of the targets. A model without an environment has no targets."""
        targets = getattr(self._model, "targets", None)
        return self._model._first_target_class if targets is None else type(targets)

    def _plan_of_now(self, goals: GoalBuffer, world: WorldModel) -> AllGoalsPlan:
        """Return the plan that the model has, or make one that it does not keep."""
        model = self._model
        targets = getattr(model, "targets", None)
        if isinstance(targets, PlannedTargets) and targets.planned_at is not None:
            return targets.plan
        plan = AllGoalsPlan(
            model.gamma,
            model.goal_reward,
            model.step_reward,
            plan_bytes((model.target_kwargs or {}).get("max_plan_bytes")),
            model.seed,
        )
        plan.refresh(world, goals, converge=True)
        return plan


def _are_equal(shown: Any, own: NDArray[Any]) -> bool:
    """Return whether goals that a caller shows are those of the environments, shape (n, ...)."""
    array = np.asarray(shown)
    # An environment that is no VecEnv shows one goal, without the first axis.
    return array.size == own.size and np.array_equal(array.reshape(own.shape), own)
