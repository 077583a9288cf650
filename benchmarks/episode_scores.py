"""How well an agent does while it trains: the mean return of its last episodes, against steps and the clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

LAST = 100
"""Episodes of a score. The paper does not say how its own are made; this is what OpenAI's baselines have, its A2C's source."""


@dataclass(frozen=True)
class ScorePoint:
    """The score at one step."""

    step: int
    """Environment steps taken."""
    episodes: int
    """That have ended so far."""
    episode_return: float
    """Mean return of the last 100, or of all if there are fewer."""
    episode_length: float
    """Their mean length, as the Monitor has it."""
    training_seconds: float
    """Time since training began, pauses left out."""


class ScoreCallback(BaseCallback):
    """
    Keeps the returns that a Monitor puts into ``infos[i]["episode"]``, before rewards are clipped.

    :param every: environment steps between points; there is one more at the end, none before an episode has ended
    :param on_point: called with each :class:`ScorePoint`
    :raises ValueError: if ``every`` is not positive
    """

    def __init__(self, every: int, on_point: Callable[[ScorePoint], None]) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"eval_freq must be at least 1, got {every}")
        self.every = every
        self.on_point = on_point
        self.episodes = 0
        self.training_seconds = 0.0
        self._last: deque[tuple[float, int]] = deque(maxlen=LAST)
        self._last_step = 0
        self._resumed = 0.0

    @property
    def score(self) -> float | None:
        """Mean return of the last 100 episodes; None before one has ended."""
        return float(np.mean([score for score, _ in self._last])) if self._last else None

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: all of it, for :class:`~sb3_manygoals.checkpoint.callback.ExactCheckpointCallback`"""
        seconds = self.training_seconds + time.perf_counter() - self._resumed
        return {
            "episodes": self.episodes,
            "last": [list(one) for one in self._last],
            "last_step": self._last_step,
            "training_seconds": seconds,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.episodes, self._last_step = state["episodes"], state["last_step"]
        self._last = deque([(score, length) for score, length in state["last"]], maxlen=LAST)
        self.training_seconds = state["training_seconds"]

    def _on_training_start(self) -> None:
        self._resumed = time.perf_counter()

    def _on_step(self) -> bool:
        ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
        self.episodes += len(ended)
        self._last.extend((float(one["r"]), int(one["l"])) for one in ended)
        if self.num_timesteps // self.every > self._last_step // self.every:
            self._point()
        return True

    def _on_training_end(self) -> None:
        if self.num_timesteps > self._last_step:
            self._point()

    def _point(self) -> None:
        now = time.perf_counter()
        self.training_seconds += now - self._resumed
        self._resumed = now
        self._last_step = self.num_timesteps
        if self.score is not None:
            length = float(np.mean([length for _, length in self._last]))
            self.on_point(ScorePoint(self._last_step, self.episodes, self.score, length, self.training_seconds))
