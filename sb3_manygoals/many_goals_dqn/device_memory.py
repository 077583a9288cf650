"""What updates draw from, once more on the device, so that drawing waits for no copy and no answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples

_PIECE = 2**24
"""Bytes copied at once: what of the host's memory is locked for it stays small when all of a replay memory is copied."""


class DeviceMemory:
    """
    A replay memory and a goal buffer as tensors on a device, in the dtypes that they have on the host, at addresses that
    stay: a captured graph reads there. :meth:`sync` copies what is new; the draws are made on the device.

    A transition is one row of bytes, all its fields side by side: one copy brings it, one gather draws it. Observations are
    kept beside next observations, as on the host, though most are the same: whatever shared them would need room for the
    first observations of as many episodes as there are transitions, since the tables cannot grow.

    :param replay_buffer: the host's transitions
    :param goal_buffer: the host's goals
    :param device: where the tables are made, as large as both are when full
    :raises torch.OutOfMemoryError: if they do not fit
    """

    def __init__(self, replay_buffer: ManyGoalsReplayBuffer, goal_buffer: GoalBuffer, device: th.device) -> None:
        self.replay_buffer, self.goal_buffer = replay_buffer, goal_buffer
        self._device = device
        shape = replay_buffer.observations.shape[2:]
        fields: list[tuple[str, Any, tuple[int, ...]]] = [
            ("observations", replay_buffer.observations.dtype, shape),
            ("next_observations", replay_buffer.next_observations.dtype, shape),
            ("actions", replay_buffer.actions.dtype, ()),
            ("next_ids", replay_buffer.next_ids.dtype, ()),
            ("terminated", np.bool_, ()),
        ]
        if replay_buffer.next_action_masks is not None:
            fields.append(("next_action_masks", np.bool_, replay_buffer.next_action_masks.shape[2:]))
        if replay_buffer.behavior_goal_ids is not None:
            fields.append(("behavior_goal_ids", replay_buffer.behavior_goal_ids.dtype, ()))
        self._record = np.dtype(fields, align=True)  # so that bytes can be looked at as what they are of
        rows = replay_buffer.buffer_size * replay_buffer.n_envs
        self._transitions = th.empty((rows, self._record.itemsize), dtype=th.uint8, device=device)
        self._goals = th.empty(
            (goal_buffer.capacity, *goal_buffer.shape), dtype=_torch_dtype(goal_buffer.dtype), device=device
        )
        # on the device, where the draws of a captured graph see them grow, and on the host, to know when to tell it
        self._counts = th.zeros(2, dtype=th.int64, device=device)
        self._n_transitions, self._n_goals = 0, 0
        self._added = 0
        self._rewrites = (-1, -1)

    def sync(self) -> None:
        """
        Copy what was added since the last call, or all if all was replaced. The host goes on at once.

        :raises ValueError: if there are no transitions or no goals to draw from
        """
        replay, goals = self.replay_buffer, self.goal_buffer
        if replay.size() == 0 or len(goals) == 0:
            raise ValueError(f"nothing to draw from: {replay.size()} transitions of each environment, {len(goals)} goals")
        rewrites = replay.rewrites, goals.rewrites
        new = replay.added - self._added
        if rewrites[0] != self._rewrites[0] or new >= replay.buffer_size:
            self._copy_transitions(0, replay.size())
        elif new > 0:
            first = replay.pos - new
            if first < 0:  # past the end of the ring
                self._copy_transitions(first + replay.buffer_size, replay.buffer_size)
            self._copy_transitions(max(first, 0), replay.pos)
        self._copy_goals(0 if rewrites[1] != self._rewrites[1] else self._n_goals, len(goals))
        self._added, self._rewrites = replay.added, rewrites
        n_transitions = replay.size() * replay.n_envs
        if n_transitions != self._n_transitions:
            self._n_transitions = n_transitions
            self._counts[0].fill_(n_transitions)
        if len(goals) != self._n_goals:
            self._n_goals = len(goals)
            self._counts[1].fill_(self._n_goals)

    def sample(self, batch_size: int) -> ManyGoalsSamples:
        """
        :param batch_size: S, transitions drawn uniformly, with replacement, by the device's default generator
        :return: the batch
        """
        return self.gather(self._draw(batch_size, self._counts[0]))

    def gather(self, rows: th.Tensor) -> ManyGoalsSamples:
        """
        :param rows: int64, shape (S,), of transitions: ring position * number of environments + environment
        :return: the batch
        """
        drawn = self._transitions[rows]
        shape = (len(rows), *(self.replay_buffer.observation_space.shape or ()))
        masked, pursued = (self.replay_buffer.next_action_masks is not None, self.replay_buffer.behavior_goal_ids is not None)
        return ManyGoalsSamples(
            self._field(drawn, "observations").reshape(shape),
            self._field(drawn, "actions")[:, 0],
            self._field(drawn, "next_observations").reshape(shape),
            self._field(drawn, "next_ids")[:, 0],
            self._field(drawn, "terminated")[:, 0],
            self._field(drawn, "next_action_masks") if masked else None,
            self._field(drawn, "behavior_goal_ids")[:, 0] if pursued else None,
        )

    def sample_goals(self, n: int, next_ids: th.Tensor | None = None, most: int | None = None) -> tuple[th.Tensor, th.Tensor]:
        """
        Goals drawn uniformly, with replacement; or first of all the different known ones among ``next_ids``, each once, in
        random choice if there are more than ``n`` or ``most``.

        :param n: G, how many
        :param next_ids: int64, shape (S,), of a batch's next observations; None: all goals are drawn uniformly
        :param most: of ``next_ids``; None: as many as there are
        :return: goals, shape (G, *observation_space.shape), and their ids, shape (G,) int64
        """
        ids = self._draw(n, self._counts[1])
        if next_ids is not None:
            # as many steps whatever the ids are, since the host does not know them
            met = next_ids.sort().values
            first = th.cat([th.ones_like(met[:1], dtype=th.bool), met[1:] != met[:-1]]) & (met != UNKNOWN)
            # those to be taken come first, in random order
            order = th.rand(met.shape, device=self._device).masked_fill(~first, 2.0).argsort()
            order = order[: n if most is None else min(n, most)]
            taken = th.where(first[order], met[order], ids[: len(order)])
            ids = th.cat([taken, ids[len(order) :]])
        return self.goals(ids), ids

    def goals(self, ids: th.Tensor) -> th.Tensor:
        """
        :param ids: int64, shape (G,); in place of ``UNKNOWN`` there is some goal
        :return: shape (G, *observation_space.shape)
        """
        return self._goals[ids.clamp(min=0)]

    def _draw(self, n: int, count: th.Tensor) -> th.Tensor:
        # 53 random bits: below 1, and times any count that memory can hold still below it
        return (th.rand(n, dtype=th.float64, device=self._device) * count).long()

    def _field(self, drawn: th.Tensor, name: str) -> th.Tensor:
        """:return: of one field, shape (S, number of elements)"""
        assert self._record.fields is not None
        dtype, offset = self._record.fields[name][:2]
        return drawn[:, offset : offset + dtype.itemsize].view(_torch_dtype(dtype.base))

    def _copy_transitions(self, first: int, last: int) -> None:
        """Of ring positions ``first`` to ``last`` - 1."""
        replay = self.replay_buffer
        step = max(1, _PIECE // (self._record.itemsize * replay.n_envs))
        for start in range(first, last, step):
            span = slice(start, min(start + step, last))
            staged = self._stage((span.stop - start) * replay.n_envs, self._record.itemsize)
            records = staged.numpy().view(self._record).reshape(-1, replay.n_envs)
            records["observations"] = replay.observations[span]
            records["next_observations"] = replay.next_observations[span]
            records["actions"] = replay.actions[span, :, 0]
            records["next_ids"] = replay.next_ids[span]
            records["terminated"] = replay.dones[span] != 0
            if replay.next_action_masks is not None:
                records["next_action_masks"] = replay.next_action_masks[span]
            if replay.behavior_goal_ids is not None:
                records["behavior_goal_ids"] = replay.behavior_goal_ids[span]
            self._transitions[start * replay.n_envs : span.stop * replay.n_envs].copy_(staged, non_blocking=True)

    def _copy_goals(self, first: int, last: int) -> None:
        """Of ids ``first`` to ``last`` - 1."""
        goals = self.goal_buffer.observations
        size = goals[:1].nbytes
        step = max(1, _PIECE // size)
        for start in range(first, last, step):
            rows: NDArray[Any] = goals[start : min(start + step, last)]
            staged = self._stage(len(rows), size)
            staged.numpy().view(rows.dtype).reshape(rows.shape)[...] = rows
            self._goals[start : start + len(rows)].copy_(staged.view(self._goals.dtype).view(rows.shape), non_blocking=True)

    def _stage(self, rows: int, size: int) -> th.Tensor:
        # Only from locked memory a copy runs beside the host. PyTorch gives it to no one else until the copy is done.
        return th.empty((rows, size), dtype=th.uint8, pin_memory=self._device.type == "cuda")


def _torch_dtype(dtype: np.dtype[Any]) -> th.dtype:
    return th.from_numpy(np.empty(0, dtype)).dtype
