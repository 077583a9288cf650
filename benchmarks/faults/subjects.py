"""The learners that faults are done to: ours with its checkpoints, and SB3's DQN with save and save_replay_buffer."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

import gym_twoRooms  # noqa: F401 - registers the world
from benchmarks.logs import CSVLog
from sb3_manygoals import PAPER, ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import CheckpointError, checkpoints, read_newest

WORLD = "TwoRoomsSwitchSmall-v0"
N_ENVS = 2
STEPS = 800
SAVE_EVERY = 100
SMALL: dict[str, Any] = {"learning_starts": 100, "buffer_size": 400, "batch_size": 16}
LOG_INTERVAL = 4

Tell = Callable[[str], None]
"""Called with "begin" and "end" around each save."""


class Subject(Protocol):
    """A learner, how its user would save it, and how they would go on after a crash."""

    name: str

    def train(self, folder: Path, tell: Tell) -> dict[str, str]:
        """
        Train to the end, from where the folder's newest save allows.

        :param folder: of the run
        :param tell: called around each save
        :return: digests of what came out, by name
        """

    def files(self, folder: Path) -> list[Path]:
        """
        :param folder: of a run
        :return: the files of its newest save
        """

    def load(self, folder: Path) -> str:
        """
        Load the newest save.

        :param folder: of a run
        :return: a digest of what was loaded
        :raises Exception: if it is refused
        """

    def has_older(self, folder: Path) -> bool:
        """
        :param folder: of a run
        :return: whether there is an older save to go on from, if the newest is damaged
        """

    def save_again(self, folder: Path, limit: Callable[[Path], None]) -> None:
        """
        Load the newest save, and save what was loaded.

        :param folder: of a run
        :param limit: called with it between the two
        """


class Ours:
    """ManyGoalsDQN with ExactCheckpointCallback."""

    name = "ManyGoalsDQN, exact checkpoints"

    def train(self, folder: Path, tell: Tell) -> dict[str, str]:
        """See :class:`Subject`."""
        model = self._build()
        folder.mkdir(parents=True, exist_ok=True)
        table = CSVLog(folder / "progress.csv")
        model.set_logger(Logger(str(folder), [table]))
        callback = _Telling(tell, folder / "checkpoints", every_steps=SAVE_EVERY, keep=2, extras={"progress.csv": table})
        resumed = callback.resume(model)
        if model.num_timesteps < STEPS:
            model.learn(STEPS - model.num_timesteps, callback, LOG_INTERVAL, reset_num_timesteps=not resumed)
        assert model.goal_buffer is not None
        return {
            "weights": _weights(model),
            "replay memory": _arrays(model.replay_buffer.get_checkpoint_state()),
            "goals": _digest(model.goal_buffer.observations.tobytes()),
            "log": _digest(json.dumps(log_rows(folder / "progress.csv")).encode()),
        }

    def files(self, folder: Path) -> list[Path]:
        """See :class:`Subject`."""
        return sorted(path for path in checkpoints(folder / "checkpoints")[0].rglob("*") if path.is_file())

    def load(self, folder: Path) -> str:
        """See :class:`Subject`."""
        found = read_newest(folder / "checkpoints")
        assert found is not None
        model = self._build()
        model.set_checkpoint_state(found[1]["learner"])
        return _weights(model) + _arrays(model.replay_buffer.get_checkpoint_state())

    def has_older(self, folder: Path) -> bool:
        """See :class:`Subject`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = read_newest(folder / "checkpoints", fallback=True)
            except CheckpointError:
                return False
        return found is not None and found[0] == checkpoints(folder / "checkpoints")[1]

    def save_again(self, folder: Path, limit: Callable[[Path], None]) -> None:
        """See :class:`Subject`."""
        model = self._build()
        table = CSVLog(folder / "progress.csv")
        model.set_logger(Logger(None, [table]))
        callback = ExactCheckpointCallback(folder / "checkpoints", extras={"progress.csv": table})
        callback.resume(model)
        callback.init_callback(model)
        limit(folder)
        callback.save()

    def _build(self) -> ManyGoalsDQN:
        # One layer of more than a mebibyte, so that a checkpoint has files of every kind.
        policy = PAPER["policy_kwargs"] | {"embedding_dim": 160, "features_extractor_kwargs": {"features_dim": 2048}}
        targets = PAPER["target_kwargs"] | {"update_interval": 50}
        settings = PAPER | SMALL | {"goal_batch_size": 8, "updates_per_step": 1 / N_ENVS}
        settings |= {"target_kwargs": targets, "policy_kwargs": policy}
        return ManyGoalsDQN("CnnPolicy", make_vec_env(WORLD, N_ENVS, seed=0), seed=0, device="cpu", **settings)


class PlainSB3:
    """SB3's DQN, saved as its documentation shows: model and replay memory, each to one file."""

    name = "SB3 DQN, save + save_replay_buffer"

    def train(self, folder: Path, tell: Tell) -> dict[str, str]:
        """See :class:`Subject`."""
        folder.mkdir(parents=True, exist_ok=True)
        env = make_vec_env(WORLD, N_ENVS, seed=0)
        model_file, replay_file = folder / "model.zip", folder / "replay.pkl"
        resumed = model_file.exists() and replay_file.exists()
        if resumed:
            model = DQN.load(model_file, env, device="cpu")
            model.load_replay_buffer(replay_file)
        else:
            policy = {"net_arch": [16]}
            settings = SMALL | {"policy_kwargs": policy, "train_freq": 1, "target_update_interval": 50}
            model = DQN("MlpPolicy", env, seed=0, device="cpu", **settings)
        model.set_logger(Logger(str(folder), []))
        if model.num_timesteps < STEPS:
            callback = _SaveBoth(tell, model_file, replay_file)
            model.learn(STEPS - model.num_timesteps, callback, LOG_INTERVAL, reset_num_timesteps=not resumed)
        assert model.replay_buffer is not None
        arrays = {name: value for name, value in vars(model.replay_buffer).items() if isinstance(value, np.ndarray)}
        return {"weights": _weights(model), "replay memory": _arrays(arrays)}

    def files(self, folder: Path) -> list[Path]:
        """See :class:`Subject`."""
        return [folder / "model.zip", folder / "replay.pkl"]

    def load(self, folder: Path) -> str:
        """See :class:`Subject`."""
        model = DQN.load(folder / "model.zip", device="cpu")
        model.load_replay_buffer(folder / "replay.pkl")
        arrays = {name: value for name, value in vars(model.replay_buffer).items() if isinstance(value, np.ndarray)}
        return _weights(model) + _arrays(arrays)

    def has_older(self, folder: Path) -> bool:
        """See :class:`Subject`."""
        return False

    def save_again(self, folder: Path, limit: Callable[[Path], None]) -> None:
        """See :class:`Subject`."""
        model = DQN.load(folder / "model.zip", device="cpu")
        model.load_replay_buffer(folder / "replay.pkl")
        limit(folder)
        model.save(folder / "model.zip")
        model.save_replay_buffer(folder / "replay.pkl")


SUBJECTS: tuple[Subject, ...] = (Ours(), PlainSB3())


def log_rows(path: Path) -> list[dict[str, str]]:
    """
    :param path: of a ``progress.csv``
    :return: its rows without wall-clock times
    """
    names, *lines = (line.split(",") for line in path.read_text(encoding="utf-8").splitlines())
    times = {"time/fps", "time/time_elapsed"}
    return [{name: value for name, value in sorted(zip(names, line, strict=True)) if name not in times} for line in lines]


class _Telling(ExactCheckpointCallback):
    def __init__(self, tell: Tell, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tell = tell

    def save(self) -> Path:
        self.tell("begin")
        path = super().save()
        self.tell("end")
        return path


class _SaveBoth(BaseCallback):
    def __init__(self, tell: Tell, model_file: Path, replay_file: Path) -> None:
        super().__init__()
        self.tell, self.model_file, self.replay_file = tell, model_file, replay_file
        self._saved = 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // SAVE_EVERY > self._saved // SAVE_EVERY:
            self._saved = self.num_timesteps
            self.tell("begin")
            self.model.save(self.model_file)
            assert isinstance(self.model, DQN)
            self.model.save_replay_buffer(self.replay_file)
            self.tell("end")

    def _on_training_start(self) -> None:
        self._saved = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def _weights(model: BaseAlgorithm) -> str:
    return _arrays({name: tensor.numpy() for name, tensor in model.policy.state_dict().items()})


def _arrays(arrays: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(repr((name, value.shape, value.dtype) if isinstance(value, np.ndarray) else (name, value)).encode())
        if isinstance(value, np.ndarray):
            digest.update(value.tobytes())
    return digest.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
