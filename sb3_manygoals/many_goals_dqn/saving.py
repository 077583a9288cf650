"""Saving and loading a ManyGoalsDQN, and its state in exact checkpoints."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.type_aliases import GymEnv

from sb3_manygoals.checkpoint.added import added_attributes, restore_added
from sb3_manygoals.checkpoint.functions import UnsavedFunction, can_be_pickled
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals.buffer import KINDS_OF_GOALS, GoalBuffer
from sb3_manygoals.goals.files import read_npz, write_npz
from sb3_manygoals.many_goals_dqn.circles import Circles
from sb3_manygoals.many_goals_dqn.part import ModelPart
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.many_goals_dqn.targets import TDTargets
from sb3_manygoals.world import LearnedStates

SelfSavingMixin = TypeVar("SelfSavingMixin", bound="SavingMixin")

# What save_all writes.
_FILES = {"model": "model.zip", "replay_buffer": "replay_buffer.pkl", "world": "world.npz"}
_WORLD_FORMAT = 1
_GOAL_ARRAYS = ("capacity", "state_ids", "held_out")
_WORLD_ARRAYS = (
    "visit_counts",
    "arrivals",
    "arrival_rewards",
    "arrival_ends",
    "outcome_keys",
    "outcome_counts",
    "outcome_reward_sums",
)
_EARLIER = "an earlier version wrote, which this version cannot read: train anew, or load it with"


class SavingMixin(ModelPart):
    """
    The part of :class:`~sb3_manygoals.ManyGoalsDQN` that saves and loads. A model has three parts:
    the networks (``save``), what it knows of the world and its goals (:meth:`save_world`), and its
    replay memory (``save_replay_buffer``). :meth:`save_all` saves all of them.
    """

    _NOT_SAVED: ClassVar[tuple[str, ...]] = (
        "goal_buffer",
        "_restored_goals",
        "world",
        "targets",
        "selector",
        "goal_updates",
        "lr_schedule",
        "_selector_settings",
        "_trackers",
        "_target_choice",
        "_pacer",
        "_paced_timesteps",
        "_is_learning",
        "_updates_are_due",
        "_loss",
        "_explores",
        "_had_random_steps",
        "_circles",
        "_exploring_share",
        "_episode_outcomes",
        "_log_interval",
        "_n_updates_logged",
    )
    """Attributes that are not saved with a model."""
    _IN_CHECKPOINTS: ClassVar[tuple[str, ...]] = (
        "goal_updates",
        "rng",
        "exploration_rate",
        "_loss",
        "_last_action_masks",
        "_explores",
        "_had_random_steps",
        "_exploring_share",
        "_episode_outcomes",
        "_n_updates_logged",
        "_learned_at_stage",
        "_learned_from",
        "_gave_up_states",
        "_n_standardized_by",
        "_rollout_begin",
    )
    """Attributes that are saved in checkpoints as they are."""

    def save_world(self, path: str | os.PathLike[str]) -> None:
        """
        Write what the model knows: states, visit counts, outcomes and rewards, and which states are
        goals. A file that is already there is replaced once the new one is whole.

        :param path: of an ``.npz`` file. The ending may be left out
        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if the model knows nothing, because it was loaded without an environment
        :raises OSError: if the file cannot be written
        """
        self._check_has_world()
        model = self._model
        if model.goal_buffer is None or model.world is None:
            model._require_env()
        assert model.goal_buffer is not None
        assert model.world is not None
        write_npz(
            path,
            {
                "world_format": _WORLD_FORMAT,
                "given": np.array(_given(model.goal_buffer), dtype=np.str_),
                **model.goal_buffer.arrays(),
                **model.world.get_checkpoint_state(),
            },
        )

    def load_world(self, path: str | os.PathLike[str]) -> None:
        """
        Replace what the model knows by what :meth:`save_world` wrote. The model gets a new goal
        buffer, of the larger capacity. Plans are made anew.

        :param path: of the file. The ending ``.npz`` may be left out
        :raises TypeError: if the goals are in the replay memory
        :raises ValueError: if it is no such file, or of a model with other observations, another
            number of actions, another choice of ``state_key``, ``goal`` and ``reached``, or other
            states than the user's ``state_class``. Then nothing has changed
        :raises MemoryError: if so many goals do not fit into the memory that is available
        :raises OSError: if the file cannot be read
        """
        self._check_has_world()
        model = self._model
        names = ("world_format", "states", *_GOAL_ARRAYS, *_WORLD_ARRAYS)
        arrays = read_npz(path, names, "what a model knows of its world")
        known = model._known_goals()
        states = known.check(arrays["states"], "the states of the file")
        n_actions = arrays["visit_counts"].shape[-1]
        if n_actions != int(model.action_space.n):
            raise ValueError(
                f"{path} is of a model with {n_actions} actions, this one has "
                f"{int(model.action_space.n)}"
            )
        if arrays["visit_counts"].shape != (len(states), n_actions):
            raise ValueError(
                f"{path} is damaged: visit_counts must be of shape {(len(states), n_actions)}, "
                f"(states, actions), got {arrays['visit_counts'].shape}"
            )
        # Files of earlier versions do not say what was given.
        saved = arrays["given"].tolist() if "given" in arrays else _given(known)
        if saved != _given(known):
            there, here = (
                " and ".join(names) or "none of state_key, goal and reached"
                for names in (saved, _given(known))
            )
            raise ValueError(
                f"{path} is of a model with {there}, this one has {here}: they say what its "
                "states and goals are"
            )
        capacity = max(int(arrays["capacity"]), known.capacity)
        # A new goal buffer, because another model may use the one that there is.
        config = {**known.config, "held_out": arrays["held_out"], "capacity": capacity}
        self._check_states_of_file(path, "learned_times" in arrays, known)
        if "learned_times" in arrays and not isinstance(known.states, LearnedStates):
            config["state_class"] = LearnedStates
            config["state_kwargs"] = model._kwargs_of_learned_states
        goal_buffer = GoalBuffer(known.observation_space, **config)
        goal_buffer.restore({**arrays, "capacity": capacity})
        model._adopt_goals(goal_buffer)
        model._restored_goals = goal_buffer
        assert model.world is not None
        model.world.set_checkpoint_state({name: arrays[name] for name in _WORLD_ARRAYS})
        model.goal_updates = np.zeros(goal_buffer.capacity, dtype=np.int64)
        self._begin_anew_after_loading()

    def _check_states_of_file(
        self, path: str | os.PathLike[str], are_learned: bool, known: GoalBuffer
    ) -> None:
        """
        Raise a ValueError if the user wants other states than those of a file.

        :param path: of the file
        :param are_learned: whether its states were learned
        :param known: a goal buffer of the model
        """
        wanted = self._model.state_class
        if are_learned:
            does_not_fit = wanted is not None and not issubclass(wanted, LearnedStates)
            what = "were learned"
        else:
            does_not_fit = isinstance(known.states, LearnedStates)
            what = "were not learned"
        if does_not_fit:
            chosen = LearnedStates if wanted is None else wanted
            raise ValueError(
                f"the states of {path} {what}, but this model has state_class={chosen.__name__}: "
                "use load and load_replay_buffer, which finds the states of its transitions anew"
            )

    def _begin_anew_after_loading(self) -> None:
        """Forget what refers to goals and states that were replaced."""
        model = self._model
        if model.env is None:
            return
        assert model.selector is not None
        model.selector.forget()
        model._give_goals_to_trackers()
        model._target_choice.count_anew()
        # The next training resets the environments, and so finds their states.
        model._last_obs = None
        if hasattr(model, "targets"):
            kind = type(model.targets)
            del model.targets
            model._make_targets(kind)

    def _check_has_world(self) -> None:
        """Raise a TypeError if the goals are in the replay memory."""
        if self._model.goals_in_replay:
            raise TypeError(
                "the goals of this model are in its replay memory: use save_replay_buffer and "
                "load_replay_buffer"
            )

    def load_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True
    ) -> None:
        """
        Replace the transitions by those that ``save_replay_buffer`` wrote. Their next observations
        become known goals. If the model knows nothing of the world yet, they are recorded in it.
        Which goals were pursued is known again if ``load_world`` was called before, as ``load_all``
        does. Else it is forgotten, because goals may have other ids.

        :param path: path of the file, or an open file
        :param truncate_last_traj: not used, because transitions do not depend on others
        :raises ValueError: if something else is in the file, such as a replay memory of SB3's own,
            or the model that wrote it had another ``n_envs``, ``action_masks``, action space or
            observation space. Then nothing has changed
        """
        model = self._model
        loaded = self._read_replay_buffer(path)
        found = {
            "n_envs": loaded.n_envs,
            "action_masks": loaded.next_action_masks is not None,
            "space": loaded.observation_space,
            "actions": loaded.action_space,
        }
        own = {
            "n_envs": model.n_envs,
            "action_masks": model.action_masks,
            "space": model.observation_space["observation"],
            "actions": model.action_space,
        }
        if found != own:
            advice = ""
            if found["n_envs"] != own["n_envs"]:
                advice = ". With another n_envs, load without it: load(path, env), then load_world"
            raise ValueError(
                f"the replay memory was saved by a model with {found}, this one has {own}{advice}"
            )
        loaded.device = model.device
        goal_buffer = model._known_goals()
        model.replay_buffer = loaded
        if isinstance(goal_buffer, ReplayGoals):
            goal_buffer.replay_buffer = loaded
        model._adopt_goals(goal_buffer)
        has_ids = not model.goals_in_replay and goal_buffer.states.is_exact
        states = goal_buffer.states if has_ids else None
        are_restored = model.goals_in_replay or model._restored_goals is goal_buffer
        loaded.move_to(goal_buffer, states, are_restored)
        assert model.world is not None
        if model.world.n_counted == 0 and not model.goals_in_replay:
            loaded.record_in(model.world)
        if model.env is not None:
            model._make_targets(type(model.targets))

    def _read_replay_buffer(
        self, path: str | pathlib.Path | io.BufferedIOBase
    ) -> ManyGoalsReplayBuffer:
        """Return what ``save_replay_buffer`` wrote. A ValueError if it is something else."""
        advice = "give one that save_replay_buffer of a ManyGoalsDQN wrote"
        file = open_path(path, "r", self.verbose, "pkl")
        try:
            found = pickle.load(file)
        except Exception as error:
            # What is no pickle may raise anything.
            raise ValueError(
                f"{path} is no file of a replay memory ({error!r}): {advice}"
            ) from error
        finally:
            if isinstance(path, (str, pathlib.Path)):
                file.close()
        if not isinstance(found, ManyGoalsReplayBuffer):
            kind = type(found)
            raise ValueError(
                f"{path} must have a ManyGoalsReplayBuffer, got "
                f"{kind.__module__}.{kind.__qualname__}: {advice}"
            )
        if not hasattr(found, "next_goal_ids"):
            raise ValueError(f"{path} is a replay memory that {_EARLIER} the version that wrote it")
        return found

    def save_all(self, folder: str | os.PathLike[str]) -> None:
        """
        Save what a model needs to learn on: the networks, what it knows of the world, unless its
        goals are in the replay memory, and the replay memory. :meth:`load_all` reads them; so do
        ``load``, ``load_world`` and ``load_replay_buffer``, one by one. A file that is already
        there is replaced once all new ones are whole.

        Environments are not saved: their episodes begin anew. What the rule that selects goals has
        learned is not saved either, nor attributes of targets. To go on exactly where training was,
        use :class:`~sb3_manygoals.ExactCheckpointCallback`.

        :param folder: for ``model.zip``, ``world.npz`` and ``replay_buffer.pkl``. It is made if
            there is none
        :raises ValueError: if the model knows nothing, because it was loaded without an environment
        :raises OSError: if a file cannot be written
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
            staging = pathlib.Path(name)
            if not self._model.goals_in_replay:
                self.save_world(staging / _FILES["world"])
            self.save_replay_buffer(staging / _FILES["replay_buffer"])
            self.save(staging / _FILES["model"])
            for path in staging.iterdir():
                path.replace(folder / path.name)

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save the networks and the settings, as SB3 does. A function of the goals that cannot be
        pickled, such as one that refers to a lock or a window, is saved by its name, with a
        warning. To learn on, load the model with an environment whose goal wrapper has it.

        :param path: path of the file, or an open file
        :param exclude: names of attributes that are not saved besides those that never are
        :param include: names of attributes that are saved though they are not by default
        """
        attributes = vars(self._model)
        names = ("goal_config", "goal_wrapper_kwargs")
        kept = {name: attributes[name] for name in names}
        functions = {**kept["goal_wrapper_kwargs"], **(kept["goal_config"] or {})}
        unsaved = {
            name: UnsavedFunction(functions[name], name)
            for name in KINDS_OF_GOALS
            if callable(functions.get(name)) and not can_be_pickled(functions[name])
        }
        for name, function in unsaved.items():
            warnings.warn(
                f"{name} cannot be pickled, so only its name is saved: {function.identity[0]}. "
                f"Load the model with an environment whose goal wrapper has this {name}",
                stacklevel=2,
            )
        for name, settings in kept.items():
            if settings is not None:
                own = {key: value for key, value in unsaved.items() if key in settings}
                attributes[name] = {**settings, **own}
        try:
            super().save(path, exclude, include)
        finally:
            attributes.update(kept)

    @classmethod
    def load(
        cls: type[SelfSavingMixin],
        path: Any,
        env: GymEnv | None = None,
        device: Any = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfSavingMixin:
        """
        Load a model that ``save`` saved. To learn on, it needs what it knew of the world and its
        transitions too, or it unlearns: see :meth:`load_all`.

        :param path: path of the file, or an open file
        :param env: environment to learn on in. One without goals is wrapped as it was before. None
            to predict only
        :param device: device of the networks
        :param custom_objects: by name, attributes to replace by others
        :param print_system_info: whether to print information on the systems that saved and load
        :param force_reset: whether to reset the environment before training goes on
        :param kwargs: arguments of the constructor to change, with the same meaning, but not
            ``policy``. None of ``train_freq``, ``gradient_steps`` and ``tau`` is their default.
            ``goal_wrapper_kwargs`` take the place of all that goal wrappers were given before, but
            a trained model keeps its rewards
        :return: the model
        :raises TypeError: if an argument is of another type than in the constructor
        :raises ValueError: if an earlier version wrote the file, or something does not fit
        """
        return super().load(
            path,
            env,
            device,
            custom_objects,
            print_system_info,
            force_reset,
            **kwargs,
            _given_at_loading=tuple(kwargs),
        )

    @classmethod
    def load_all(
        cls: type[SelfSavingMixin],
        folder: str | os.PathLike[str],
        env: GymEnv | None = None,
        **kwargs: Any,
    ) -> SelfSavingMixin:
        """
        Load what :meth:`save_all` saved. ``learn(steps, reset_num_timesteps=False)`` goes on.

        :param folder: with ``model.zip``, ``world.npz`` and ``replay_buffer.pkl``
        :param env: environment to learn on in, as many environments as the model was saved with.
            None to plan and act only
        :param kwargs: further arguments of ``load``, but those of the replay memory
        :return: the model, with what it knew and its transitions
        :raises FileNotFoundError: if a file is missing. It names all that are
        :raises ValueError: if a file is of something else, ``env`` has another number of
            environments, or an argument of the replay memory is given
        """
        of_memory = [name for name in kwargs if name.startswith(("buffer_size", "replay_buffer_"))]
        if of_memory:
            raise ValueError(
                f"{' and '.join(of_memory)} must be left out, because load_all goes on with the "
                "replay memory that was saved: load and load_world begin with a new one"
            )
        paths = {part: pathlib.Path(folder, name) for part, name in _FILES.items()}
        missing = {part: path.name for part, path in paths.items() if not path.is_file()}
        model = None
        # A model whose goals are in the replay memory has no world.
        if missing.keys() <= {"world"}:
            model = cls.load(paths["model"], env, **kwargs)
        if model is None or (missing and not model._model.goals_in_replay):
            raise FileNotFoundError(
                f"{folder} must have {', '.join(_FILES.values())}, as save_all writes them; "
                f"missing: {', '.join(missing.values())}"
            )
        if not model._model.goals_in_replay:
            model.load_world(paths["world"])
        model.load_replay_buffer(paths["replay_buffer"])
        return model

    def _check_file_format(self) -> None:
        """Raise a ValueError if the attributes are those of a model of an earlier version."""
        if "goal_rules" in vars(self):
            raise ValueError(f"this is a model that {_EARLIER} the version that wrote it")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return all but environments and global random generators.

        :return: plain data and arrays that are in use: write them at once
        """
        model = self._model
        model._require_env()
        assert model.goal_buffer is not None
        assert model.world is not None
        return {
            "algorithm": get_algorithm_state(model),
            "goal_buffer": model.goal_buffer.get_checkpoint_state(),
            "world": model.world.get_checkpoint_state(),
            "replay_buffer": model.replay_buffer.get_checkpoint_state(),
            "added_to_replay_buffer": added_attributes(model.replay_buffer, self._saved_parts),
            "target_choice": model._target_choice.get_checkpoint_state(),
            "pacer": model._pacer.get_checkpoint_state(),
            "paced_timesteps": model._paced_timesteps,
            "target_class": type(model.targets).__name__,
            "targets": model.targets.get_checkpoint_state(),
            "added_to_targets": added_attributes(model.targets, self._saved_parts),
            "circles": model._circles.get_checkpoint_state(),
            "attributes": {name: getattr(model, name) for name in self._IN_CHECKPOINTS},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of a model that was built in another way. This model may
            then be partly changed
        """
        model = self._model
        model._require_env()
        assert model.goal_buffer is not None
        assert model.world is not None
        saved = state["target_class"]
        if saved != type(model.targets).__name__:
            kinds = {kind.__name__: kind for kind in (PlannedTargets, TDTargets)}
            if model.target_class is not None or saved not in kinds:
                raise CheckpointError(
                    f"the checkpoint is of a learner with target_class {saved}, got "
                    f"{type(model.targets).__name__}"
                )
            # Networks fit only if both have a target network, or none.
            model._make_targets(kinds[saved])
        set_algorithm_state(model, state["algorithm"])
        model._n_moves = None
        model.goal_buffer.set_checkpoint_state(state["goal_buffer"])
        if model.world.identity is not model.goal_buffer.states:
            # The learner has learned states, or has given them up.
            kind = type(model.targets)
            model._adopt_goals(model.goal_buffer)
            del model.targets
            model._make_targets(kind)
        model.world.set_checkpoint_state(state["world"])
        model.replay_buffer.set_checkpoint_state(state["replay_buffer"])
        model.goal_config = model.goal_buffer.config
        model._target_choice.set_checkpoint_state(state["target_choice"])
        model._pacer.set_checkpoint_state(state["pacer"])
        model._paced_timesteps = state["paced_timesteps"]
        for name, value in state["attributes"].items():
            setattr(model, name, value.to(model.device) if isinstance(value, th.Tensor) else value)
        model.targets.set_checkpoint_state(state["targets"])
        # Checkpoints of earlier versions do not have these, nor circles.
        added = [
            (model.targets, state.get("added_to_targets", {})),
            (model.replay_buffer, state.get("added_to_replay_buffer", {})),
        ]
        restore_added(added, model.device)
        model._circles = Circles(model.n_envs)
        if "circles" in state:
            model._circles.set_checkpoint_state(state["circles"])

    @property
    def _saved_parts(self) -> list[Any]:
        """The parts of the model that checkpoints have, to which a user's objects may refer."""
        model = self._model
        assert model.goal_buffer is not None
        assert model.world is not None
        return [
            *(model.goal_buffer, model.goal_buffer.states, model.world, model.world.identity),
            *(model.replay_buffer, model.targets, model.targets.context, model.policy.optimizer),
            *model.policy.modules(),
            *model.policy.parameters(),
            *model.policy.buffers(),
        ]

    def _excluded_save_params(self) -> list[str]:
        """Return the names of attributes that are not saved with a model."""
        return [*super()._excluded_save_params(), *self._NOT_SAVED]


def _given(goal_buffer: GoalBuffer) -> list[str]:
    """Return which of the arguments that say what states and goals are were given."""
    names = {
        "state_key": goal_buffer.state_key,
        "goal": goal_buffer.achievement.goal,
        "reached": goal_buffer.achievement.reached,
    }
    return [name for name, value in names.items() if value is not None]
