"""The room that frames of Atari games take in a FrameStore, and the time to get them out again."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sb3_manygoals.auxiliary.frame_store import FrameStore

TOGETHER = (1, 4, 8, 16)
"""How many frames are compressed together."""
EPISODES, ROOM = 2_000, 2 * 2**30
"""The paper's K, and the bytes that its episodes are to fit into."""
N_ENVS = 4
"""Copies of a game whose frames are measured."""
BATCH, STACK, TRAJECTORY = 80, 4, 5
"""Observations of a batch, frames of each, and observations in a row where they are drawn as trajectories."""


@dataclass(frozen=True)
class Row:
    """
    What was measured.

    :ivar game: whose frames
    :ivar together: how many were compressed as one
    :ivar frames: how many there were
    :ivar games: that they are of, whole ones
    :ivar bytes_per_frame: all that the store takes, by the number of frames
    :ivar ratio: raw bytes by these
    :ivar append_us: microseconds to add a frame
    :ivar singles_ms: milliseconds to get the frames of a batch of 80 stacks from anywhere, median
    :ivar trajectories_ms: those of a batch of 16 trajectories of 5 stacks in a row, median
    :ivar longest_mean_episode: steps that 2,000 episodes may have on average to fit into 2 GiB
    """

    game: str
    together: int
    frames: int
    games: int
    bytes_per_frame: float
    ratio: float
    append_us: float
    singles_ms: float
    trajectories_ms: float
    longest_mean_episode: int


def measure(game: str, steps: int, repeats: int) -> list[Row]:
    """
    :param game: its name
    :param steps: of random play, of each of four copies
    :param repeats: of each time that is measured
    :return: a row for each number of frames that are compressed together
    :raises ValueError: if no game came to its end
    """
    episodes = play(game, steps)
    if not episodes:
        raise ValueError(f"no game of {game} was over in {steps} steps: play more")
    n = sum(map(len, episodes))
    rng, rows = np.random.default_rng(0), []
    singles = [drawn(n, BATCH, STACK, rng) for _ in range(repeats)]
    trajectories = [drawn(n, BATCH // TRAJECTORY, STACK + TRAJECTORY - 1, rng) for _ in range(repeats)]
    for together in TOGETHER:
        store = FrameStore(episodes[0].shape[1:], together=together)
        begin = time.perf_counter()
        ids = np.concatenate([store.append(episode) for episode in episodes])
        append_us = (time.perf_counter() - begin) / n * 1e6
        bytes_per_frame = store.nbytes / n
        rows.append(
            Row(
                game=game,
                together=together,
                frames=n,
                games=len(episodes),
                bytes_per_frame=bytes_per_frame,
                ratio=episodes[0][0].nbytes / bytes_per_frame,
                append_us=append_us,
                singles_ms=float(np.median([milliseconds(store, ids[places]) for places in singles])),
                trajectories_ms=float(np.median([milliseconds(store, ids[places]) for places in trajectories])),
                longest_mean_episode=int(ROOM / EPISODES / bytes_per_frame),
            )
        )
    return rows


def play(game: str, steps: int) -> list[NDArray[np.uint8]]:
    """
    :param game: its name
    :param steps: of each of four copies, under random actions
    :return: the frames of each game that was over, (T, 84, 84)
    """
    from sb3_manygoals.atari import make_atari_vec_env  # here, as the command line works without ale-py

    env = make_atari_vec_env(game, N_ENVS, 0)
    assert isinstance(env.action_space, spaces.Discrete)
    rng = np.random.default_rng(0)
    obs = env.reset()
    assert isinstance(obs, np.ndarray)
    under_way, over = [[stack[-1]] for stack in obs], []
    for _ in range(steps):
        obs, _, _, infos = env.step(rng.integers(env.action_space.n, size=N_ENVS))
        assert isinstance(obs, np.ndarray)
        for row, info in enumerate(infos):
            if "episode" in info:
                over.append(np.array(under_way[row]))
                under_way[row] = []
            under_way[row].append(obs[row, -1].copy())
    env.close()
    return over


def drawn(n: int, pieces: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """:return: the places of pieces in a row of frames, each place once and in order, as an episode buffer asks for them"""
    begins = rng.integers(n - length + 1, size=pieces)
    return np.unique(begins[:, None] + np.arange(length))


def milliseconds(store: FrameStore, ids: NDArray[np.int64]) -> float:
    """:return: how long it takes to get frames"""
    begin = time.perf_counter()
    store.get(ids)
    return (time.perf_counter() - begin) * 1e3


def write(file: Path, rows: Sequence[Row]) -> None:
    """
    :param file: the CSV to write
    :param rows: what was measured
    """
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, fieldnames=list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def show(rows: Sequence[Row]) -> None:
    """:param rows: to be printed"""
    headers = "game", "together", "bytes/frame", "ratio", "append, us", "80 stacks, ms", "16 x 5 in a row, ms"
    table = Table(*headers, "2,000 in 2 GiB: steps")
    for row in rows:
        table.add_row(
            row.game,
            str(row.together),
            f"{row.bytes_per_frame:.0f}",
            f"{row.ratio:.1f}",
            f"{row.append_us:.1f}",
            f"{row.singles_ms:.2f}",
            f"{row.trajectories_ms:.2f}",
            f"{row.longest_mean_episode:,}",
        )
    Console(width=127, markup=False).print(table)
