"""The learners that faults are done to, and how their users save them."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import zipfile
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

import gym_twoRooms  # noqa: F401 - registers the world
from benchmarks.faults.processes import Tell
from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import checkpoints, read_newest
from sb3_manygoals.many_goals_dqn import PlannedTargets, Targets, TDTargets

WORLD = "TwoRoomsSwitchSmall-v0"
"""The world in which all of them learn."""
N_ENVS = 2
"""Environments in a DummyVecEnv."""
STEPS = 800
"""Environment steps of a whole training."""
SAVE_EVERY = 100
"""Environment steps between two saves."""
SETTINGS: dict[str, Any] = {
    "learning_starts": 100,
    "buffer_size": 1_000,
    "seed": 0,
    "device": "cpu",
}
"""Arguments of all of them; the others are the defaults."""
TIMES = ("t", "t_start", "time/fps", "time/time_elapsed")
"""Names of wall-clock times, which differ from run to run."""

OURS = "`ManyGoalsDQN`, exact checkpoints"
"""The name of our column of the table."""
SB3 = "SB3's `DQN`, `save` and `save_replay_buffer`"
"""The name of the other column."""

Digests = dict[str, str]
"""The sha256 of each part of what was saved, by name."""


class Learner(ABC):
    """A learner, how it is saved while it trains, and how training goes on from there."""

    @abstractmethod
    def train(self, folder: Path, tell: Tell) -> Digests:
        """
        Train to the end, from the newest save if there is one.

        :param folder: where it saves
        :param tell: is called with "begin" before each save writes, and with "end" after it
        :return: what came out
        """

    @abstractmethod
    def load(self, folder: Path) -> Digests:
        """
        Load the newest save.

        :param folder: where it was saved
        :return: what was loaded
        """

    @abstractmethod
    def load_older(self, folder: Path) -> None:
        """
        Load what a user can go on from if the newest save cannot be read.

        :param folder: where it was saved
        :raises FileNotFoundError: if there is nothing
        """

    @abstractmethod
    def files(self, folder: Path) -> list[Path]:
        """
        Return the files of the newest save.

        :param folder: where it was saved
        :return: one file or several
        """

    @abstractmethod
    def plant(self, folder: Path, hostile: object, number: int) -> None:
        """
        Put a pickle that executes code into the newest save, where reading would meet it.

        :param folder: where it was saved
        :param hostile: an object that executes code when it is unpickled
        :param number: even for one place, odd for another
        """


class _Ours(Learner):
    """ManyGoalsDQN with ExactCheckpointCallback."""

    def __init__(self, target_class: type[Targets]) -> None:
        self.target_class = target_class

    def train(self, folder: Path, tell: Tell) -> Digests:
        model = self._build()
        model.set_logger(silent_logger())
        callback = _TellingCheckpoints(folder, tell)
        resumed = callback.resume(model)
        if model.num_timesteps < STEPS:
            model.learn(STEPS - model.num_timesteps, callback, reset_num_timesteps=not resumed)
        return self._newest(folder)

    def load(self, folder: Path) -> Digests:
        ExactCheckpointCallback(folder).resume(self._build())
        return self._newest(folder)

    def load_older(self, folder: Path) -> None:
        if not ExactCheckpointCallback(folder).resume(self._build(), fallback=True):
            raise FileNotFoundError(f"there is no checkpoint in {folder}")

    def files(self, folder: Path) -> list[Path]:
        return checkpoints(folder)[:1]

    def plant(self, folder: Path, hostile: object, number: int) -> None:
        """Write a file with the sha256 that fits it, as someone would do who means harm."""
        path = checkpoints(folder)[0]
        if number % 2:
            path.write_bytes(pickle.dumps(hostile))
        else:
            th.save({"tree": hostile, "objects": []}, path)
        name = path.name.rpartition("-")[0]
        path.rename(folder / f"{name}-{hashlib.sha256(path.read_bytes()).hexdigest()}.pt")

    def _build(self) -> ManyGoalsDQN:
        return ManyGoalsDQN("CnnPolicy", _envs(), target_class=self.target_class, **SETTINGS)

    def _newest(self, folder: Path) -> Digests:
        """Return the digests of all parts of the newest checkpoint."""
        found = read_newest(folder)
        if found is None:
            raise FileNotFoundError(f"there is no checkpoint in {folder}")
        return {name: digest(part) for name, part in found[1].items()}


class _SB3(Learner):
    """
    SB3's DQN, saved by ``save`` and ``save_replay_buffer`` into two files.

    Its documentation goes on from them in this way. Each save overwrites the one before.
    """

    def train(self, folder: Path, tell: Tell) -> Digests:
        folder.mkdir(parents=True, exist_ok=True)
        resumed = all(path.exists() for path in self.files(folder))
        model = self._loaded(folder) if resumed else DQN("MlpPolicy", _envs(), **SETTINGS)
        model.set_logger(silent_logger())
        if model.num_timesteps < STEPS:
            callback = _TellingSaves(self.files(folder), tell)
            model.learn(STEPS - model.num_timesteps, callback, reset_num_timesteps=not resumed)
        return self._digests(model)

    def load(self, folder: Path) -> Digests:
        return self._digests(self._loaded(folder))

    def load_older(self, folder: Path) -> None:
        raise FileNotFoundError("each save overwrites the one before")

    def files(self, folder: Path) -> list[Path]:
        return [folder / "model.zip", folder / "replay_buffer.pkl"]

    def plant(self, folder: Path, hostile: object, number: int) -> None:
        """Write the replay memory anew, or one of the objects that the model's file pickles."""
        model_file, replay_file = self.files(folder)
        if number % 2:
            replay_file.write_bytes(pickle.dumps(hostile))
            return
        with zipfile.ZipFile(model_file) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        settings = json.loads(contents["data"])
        pickled = base64.b64encode(pickle.dumps(hostile)).decode()
        settings["policy_class"][":serialized:"] = pickled
        contents["data"] = json.dumps(settings).encode()
        with zipfile.ZipFile(model_file, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, content)

    def _loaded(self, folder: Path) -> DQN:
        model_file, replay_file = self.files(folder)
        model = DQN.load(model_file, _envs(), device="cpu")
        model.load_replay_buffer(replay_file)
        return model

    def _digests(self, model: DQN) -> Digests:
        return {
            "weights": digest(model.get_parameters()),
            "replay memory": digest(
                {
                    name: value
                    for name, value in vars(model.replay_buffer).items()
                    if isinstance(value, (np.ndarray, int))
                }
            ),
        }


LEARNERS: dict[str, tuple[Learner, ...]] = {
    OURS: (_Ours(PlannedTargets), _Ours(TDTargets)),
    SB3: (_SB3(),),
}
"""The learners of each column of the table. The trials of a column take them in turn."""


class _TellingCheckpoints(ExactCheckpointCallback):
    """Tells when it writes: what a save does before, it does in memory."""

    def __init__(self, folder: Path, tell: Tell) -> None:
        super().__init__(folder, every_steps=SAVE_EVERY)
        self.tell = tell
        self._is_saving = False

    def save(self) -> Path:
        self._is_saving = True
        path = super().save()
        self._is_saving = False
        self.tell("end")
        return path

    def _state(self) -> dict[str, Any]:
        state = super()._state()
        # The state is also collected before the first step, to see whether it can be saved.
        if self._is_saving:
            self.tell("begin")
        return state


class _TellingSaves(BaseCallback):
    """Saves SB3's DQN at the same steps as the checkpoints are written, and tells it."""

    def __init__(self, files: list[Path], tell: Tell) -> None:
        super().__init__()
        self.files = files
        self.tell = tell
        self._saved_step = 0

    def _on_training_start(self) -> None:
        self._saved_step = self.num_timesteps

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // SAVE_EVERY > self._saved_step // SAVE_EVERY:
            self._save()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._save()

    def _save(self) -> None:
        model_file, replay_file = self.files
        assert isinstance(self.model, DQN)
        self.tell("begin")
        self.model.save(model_file)
        self.model.save_replay_buffer(replay_file)
        self.tell("end")
        self._saved_step = self.num_timesteps


def silent_logger() -> Logger:
    """
    Return a logger that writes nothing. SB3's own would make a folder for each training.

    :return: a new logger
    """
    return Logger(None, [])


def is_finite(model: BaseAlgorithm) -> bool:
    """
    Return whether all weights of a learner are finite.

    :param model: the learner
    :return: False if one is NaN or infinite
    """
    return all(bool(tensor.isfinite().all()) for tensor in model.policy.state_dict().values())


def digest(tree: Any) -> str:
    """
    Return the sha256 of a tree, wall-clock times left out.

    Equal trees have equal digests in all processes, and trees that differ in a bit have others.

    :param tree: plain data, arrays, tensors and generators, in dicts and sequences
    :return: 64 hexadecimal digits
    """
    hashed = hashlib.sha256()
    _add(tree, hashed)
    return hashed.hexdigest()


def _add(tree: Any, hashed: Any) -> None:
    """Add a tree to a sha256."""
    # Types and lengths are added, so that no two trees add the same bytes.
    hashed.update(type(tree).__name__.encode())
    if isinstance(tree, dict):
        kept = [(repr(key), value) for key, value in tree.items() if key not in TIMES]
        hashed.update(str(len(kept)).encode())
        for key, value in sorted(kept, key=lambda item: item[0]):
            hashed.update(key.encode())
            _add(value, hashed)
    elif isinstance(tree, (list, tuple, deque)):
        hashed.update(str(len(tree)).encode())
        for value in tree:
            _add(value, hashed)
    elif isinstance(tree, th.Tensor):
        _add(tree.detach().numpy(), hashed)
    elif isinstance(tree, (np.ndarray, np.generic)):
        hashed.update(f"{tree.dtype}{tree.shape}".encode())
        hashed.update(tree.tobytes())
    elif isinstance(tree, np.random.Generator):
        _add(tree.bit_generator.state, hashed)
    elif isinstance(tree, (set, frozenset)):
        _add(sorted(map(repr, tree)), hashed)
    else:
        hashed.update(repr(tree).encode())


def _envs() -> VecEnv:
    return make_vec_env(WORLD, N_ENVS, seed=0)
