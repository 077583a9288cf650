"""Which updates are measured: descriptions of them that another process can build them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks import floor, peers, updates
from benchmarks.floor import Work
from benchmarks.leo import AllGoalsDQN
from benchmarks.updates import WORLD, Update
from sb3_manygoals import ManyGoalsDQN

Kind = Literal["pairwise", "tiled", "head", "SB3 DQN", "SB3 DQN + HER"]


@dataclass(frozen=True)
class Case:
    """
    An update to measure.

    :ivar kind: whose: ours, the same loss tiled, a head for each goal, SB3's DQN with the goal pursued or relabelled
    :ivar transitions: S
    :ivar goals: G; 1 for SB3's, each of whose transitions has its own; all of the world's for the head
    :ivar goal_sampling: as ManyGoalsDQN's
    :ivar world: as :func:`benchmarks.updates.learner`'s
    :ivar device: for the networks
    """

    kind: Kind
    transitions: int
    goals: int = 1
    goal_sampling: Literal["uniform", "batch"] = "uniform"
    world: str = WORLD
    device: str = "cpu"

    @property
    def name(self) -> str:
        """In tables."""
        size = f"{self.transitions} x {self.goals}"
        names: dict[Kind, str] = {
            "pairwise": f"pairwise {size}",
            "tiled": f"tiled {size}",
            "head": f"a head for each goal {size}",
            "SB3 DQN": f"SB3 DQN, one goal, {self.transitions}",
            "SB3 DQN + HER": f"SB3 DQN + HER, {self.transitions}",
        }
        return names[self.kind] + self._suffix

    @property
    def floor_name(self) -> str | None:
        """Of the floor below this update; None where there is none: what is not on the CPU, and peers."""
        if self.kind not in ("pairwise", "tiled") or self.device != "cpu":
            return None
        return f"floor {self.transitions} x {self.goals}{self._suffix}"

    @property
    def _suffix(self) -> str:
        return (", Atari" if self.world == "frames" else "") + ("" if self.device == "cpu" else f", {self.device}")

    @property
    def pairs(self) -> int:
        """(Transition, goal) pairs that one update teaches."""
        return self.transitions * self.goals

    def update(self) -> Update:
        """:return: with a new learner"""
        if self.kind.startswith("SB3"):
            return peers.sb3_dqn(self.transitions, relabel=self.kind == "SB3 DQN + HER")
        make: Callable[[ManyGoalsDQN], Update] = updates.tiled if self.kind == "tiled" else updates.ours
        return make(self.learner())

    def learner(self) -> ManyGoalsDQN:
        """:return: a new one; not of SB3's kinds"""
        algorithm = AllGoalsDQN if self.kind == "head" else ManyGoalsDQN
        return updates.learner(
            self.transitions,
            self.goals,
            self.goal_sampling,
            world=self.world,
            device=self.device,
            algorithm=algorithm,
        )

    def floor(self) -> Work:
        """:return: what the update must do"""
        shared = min(self.transitions, self.goals) if self.goal_sampling == "batch" else 0
        return floor.work(self.learner(), self.transitions, self.goals, n_shared=shared)
