"""Updates on a CUDA device as graphs: recorded once, then started by one call each, which waits for nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.device_memory import DeviceMemory
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.targets import Draw, TDTargets
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.optim import ForeachRMSprop

Taught = tuple[th.Tensor, th.Tensor, th.Tensor]
"""What an update gives: its loss, the ids of its goals, and the loss of each."""

WARM_UPS = 3
"""Calls before a capture: libraries set themselves up, optimizers make their state."""

_SETTINGS = ("goal_batch_size", "gamma", "goal_reward", "step_reward")
"""Attributes of the model that a graph has as they were when it was captured."""
_SETTINGS_OF_TARGETS = ("goal_sampling", "tau")
"""And of its targets."""


class Model(Protocol):
    """What a captured update looks at, and calls: a ManyGoalsDQN."""

    policy: ManyGoalsPolicy
    targets: Any
    goal_batch_size: int
    goals_in_replay: bool
    replay_buffer: ManyGoalsReplayBuffer
    goal_buffer: GoalBuffer | None
    q_net: UniversalQNetwork
    q_net_target: UniversalQNetwork

    @property
    def device(self) -> th.device:
        """Of the networks."""

    def _update_eagerly(self, batch_size: int) -> Taught: ...

    def _descend(self, draw: Draw) -> Taught: ...


class CaptureError(RuntimeError):
    """Something cannot be captured; the text is the reason."""


class Graph:
    """
    A function without arguments, called :data:`WARM_UPS` times, then captured, and from then on replayed.

    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs

    :param stream: beside the current one, for warm-up and capture
    """

    def __init__(self, stream: th.cuda.Stream) -> None:
        self._stream = stream
        self._graph: th.cuda.CUDAGraph | None = None
        self._warm_ups = 0
        self._waits: list[str] = []

    @property
    def captured(self) -> bool:
        """Whether it can be replayed."""
        return self._graph is not None

    def run(self, function: Callable[[], None]) -> None:
        """
        Do it once, whichever way.

        :param function: the same each time; it is not kept, so that no cycle keeps a graph alive
        :raises CaptureError: if it cannot be captured; it has not been done then, and the current stream is as it was
        """
        if self._graph is None:
            if self._warm_ups < WARM_UPS:
                self._warm_up(function)
                return
            self._graph = self._capture(function)
        self._graph.replay()

    def _warm_up(self, function: Callable[[], None]) -> None:
        """
        The last time it is watched for waiting on the device: found before a capture that does no harm, while a capture that
        fails leaves PyTorch in states that are not all known.
        """
        self._warm_ups += 1
        current = th.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with th.cuda.stream(self._stream):
            if self._warm_ups < WARM_UPS:
                function()
            else:
                with _watch() as self._waits:
                    function()
        current.wait_stream(self._stream)

    def _capture(self, function: Callable[[], None]) -> th.cuda.CUDAGraph:
        """:return: what it does on the device, where nothing is done yet"""
        if self._waits:
            raise CaptureError(f"it waits for the device at {', '.join(dict.fromkeys(self._waits))}")
        th.cuda.synchronize(self._stream.device)  # an error of what is under way is none of the capture
        graph = th.cuda.CUDAGraph()
        cause: Exception | None = None
        try:
            # stream() once more around it: graph() does not put the stream back when the end of the capture fails
            with th.cuda.stream(self._stream), th.cuda.graph(graph, stream=self._stream):
                try:
                    function()
                except Exception as error:
                    cause = error  # the end of the capture may fail for it, with a text that says less
                    raise
        except Exception as error:
            if error is not cause:
                self._free_generators()
            raise CaptureError(_first_line(cause or error)) from error
        return graph

    def _free_generators(self) -> None:
        """The end of a capture that fails may leave PyTorch's random numbers as if it went on, until another ends well."""
        with suppress(Exception), th.cuda.stream(self._stream), th.cuda.graph(th.cuda.CUDAGraph(), stream=self._stream):
            th.zeros((), device=self._stream.device)


class CapturedUpdate:
    """
    The updates of a model, and of its target network, on its CUDA device. The first :data:`WARM_UPS` of each are done one
    operation after another; from then on each is one graph: draws, loss, gradients, optimizer and what follows it; and the
    target network's at the moment that is the model's to choose.

    Draws are made by the device's default generator, which the model's seed seeds and
    :func:`~sb3_manygoals.checkpoint.learner.get_generators` saves; a graph continues its numbers where they stand.

    Where that cannot be, a warning says why and updates go on as they are done elsewhere, drawn on the host.

    The model is not kept: it keeps this, and graphs in a cycle would be freed by chance, perhaps while another is captured.

    :param model: on a CUDA device
    :param batch_size: transitions in an update
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        assert model.goal_buffer is not None
        self._batch_size = batch_size
        self._optimizer = model.policy.optimizer
        self._settings, self._objects = _settings(model), _objects(model)
        self._memory: DeviceMemory | None = None
        self._counts = th.zeros(model.goal_buffer.capacity, dtype=th.int64, device=model.device)
        obstacle = _obstacle(self._optimizer)
        if not isinstance(model.targets, TDTargets):
            obstacle = f"{type(model.targets).__name__} are made on the host"
        if model.goals_in_replay:
            obstacle = "with goals_in_replay goals are looked up on the host"
        if obstacle is not None:
            self._give_up(obstacle)
            return
        try:
            self._memory = DeviceMemory(model.replay_buffer, model.goal_buffer, model.device)
        except th.OutOfMemoryError as error:
            self._give_up(f"replay memory and goals do not fit on the device: {_first_line(error)}")
            return
        n_goals = batch_size if model.targets.goal_sampling == "behavior" else model.goal_batch_size
        ids = th.zeros(n_goals, dtype=th.int64, device=model.device)
        self._taught: Taught = (th.zeros((), device=model.device), ids, th.zeros(ids.shape, device=model.device))
        # a graph reads the step size where it is, so it must be in one place
        self._rates = [th.zeros((), device=model.device) for _ in self._optimizer.param_groups]
        self._rates_told: list[float] = []
        self._update_graph, self._target_graph = self._make_graphs(model.device)

    @staticmethod
    def _make_graphs(device: th.device) -> tuple[Graph, Graph]:
        stream = th.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return Graph(stream), Graph(stream)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # copies of a model capture anew

    def fits(self, model: Model, batch_size: int) -> bool:
        """
        :param model: that asks
        :param batch_size: transitions in an update
        :return: whether the model is as it was: a graph knows no other tensors or settings than those it was captured with
        """
        return (
            batch_size == self._batch_size
            and all(now is then for now, then in zip(_objects(model), self._objects, strict=True))
            and _settings(model) == self._settings
        )

    def update(self, model: Model) -> Taught:
        """
        :param model: that it fits
        :return: the loss, shape (), the ids of its goals and the loss of each, shape (G,), on the device, where the next
            update writes its own
        """
        if self._memory is None:
            return model._update_eagerly(self._batch_size)
        self._memory.sync()
        self._tell_rates()
        graph, replayed = self._update_graph, self._update_graph.captured
        try:
            with nullcontext() if replayed else self._capturable():
                graph.run(lambda: self._one_update(model))
        except CaptureError as error:
            self._give_up(str(error))
            return model._update_eagerly(self._batch_size)
        if replayed:
            self._count_a_step()
        return self._taught

    def add_counts(self, counts: NDArray[np.int64]) -> None:
        """
        Add how often each goal was in an update since the last call.

        :param counts: by id, shape (capacity of the goal buffer,)
        """
        counts += self._counts.cpu().numpy()
        self._counts.zero_()

    def move_target(self, model: Model) -> None:
        """
        Have the target network take over its share of the learning network.

        :param model: whose they are
        """
        if self._memory is None or not self.fits(model, self._batch_size):
            model.targets.move()
            return
        try:
            self._target_graph.run(model.targets.move)
        except CaptureError as error:
            self._give_up(str(error))
            model.targets.move()

    def _one_update(self, model: Model) -> None:
        assert self._memory is not None
        batch = self._memory.sample(self._batch_size)
        sampling = model.targets.goal_sampling
        if sampling == "behavior":
            assert batch.behavior_goal_ids is not None
            goals, ids = self._memory.goals(batch.behavior_goal_ids), batch.behavior_goal_ids
        elif sampling == "batch":
            goals, ids = self._memory.sample_goals(model.goal_batch_size, batch.next_ids, model.goal_batch_size)
        else:
            goals, ids = self._memory.sample_goals(model.goal_batch_size)
        taught = model._descend(Draw(batch, goals, ids))
        self._counts.index_add_(0, ids.clamp(min=0), (ids != UNKNOWN).long())
        for kept, tensor in zip(self._taught, taught, strict=True):
            kept.copy_(tensor)

    def _tell_rates(self) -> None:
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        if rates != self._rates_told:
            for tensor, rate in zip(self._rates, rates, strict=True):
                tensor.fill_(rate)
            self._rates_told = rates

    def _count_a_step(self) -> None:
        """What the optimizer counts on the host, a replay leaves alone."""
        for state in self._optimizer.state.values():
            if isinstance(state.get("step"), int):
                state["step"] += 1

    @contextmanager
    def _capturable(self) -> Iterator[None]:
        """
        The optimizer with its step sizes and counters on the device. It is saved without: there may be none where it is
        loaded.
        """
        groups = self._optimizer.param_groups
        on_device = self._counts.is_cuda  # elsewhere torch's refuse to be capturable
        before: list[dict[str, Any]] = [
            {name: group[name] for name in ("lr", "capturable") if name in group} for group in groups
        ]
        for parameter, state in self._optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, th.Tensor):
                    state[name] = value.to(parameter.device)
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
            if "capturable" in group:
                group["capturable"] = on_device
        try:
            with warnings.catch_warnings():
                # so say torch's optimizers while they are warmed up
                warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
                yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    def _give_up(self, reason: str) -> None:
        self._memory = None
        if not any(group.get("fused") for group in self._optimizer.param_groups):
            for state in self._optimizer.state.values():
                if isinstance(state.get("step"), th.Tensor):
                    # where torch's optimizers have it, which else fetch it from the device at each step
                    state["step"] = state["step"].cpu()
        text = f"updates are not captured as a CUDA graph, each operation is started by itself: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _obstacle(optimizer: th.optim.Optimizer) -> str | None:
    """:return: why steps of this optimizer cannot be captured, None if they can"""
    name = type(optimizer).__name__
    if isinstance(optimizer, ForeachRMSprop):
        return f"{name} with momentum, weight decay or centered takes step sizes from the host" if optimizer.is_sb3s else None
    if all("capturable" in group for group in optimizer.param_groups):
        return None
    return f"the optimizer {name} has no option capturable"


def _settings(model: Model) -> tuple[Any, ...]:
    of_targets = (getattr(model.targets, name, None) for name in _SETTINGS_OF_TARGETS)
    return (*(getattr(model, name) for name in _SETTINGS), *of_targets)


def _objects(model: Model) -> tuple[Any, ...]:
    """What must be the same and not only equal. Loading an optimizer gives it another state; weights stay where they are."""
    optimizer = model.policy.optimizer
    return model.targets, model.q_net, model.q_net_target, optimizer, optimizer.state, model.replay_buffer, model.goal_buffer


@contextmanager
def _watch() -> Iterator[list[str]]:
    """:return: where, in Python, what is done within waits for the device; full once it is left"""
    places: list[str] = []
    mode = th.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        th.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            th.cuda.set_sync_debug_mode(mode)
    for warning in seen:
        text = str(warning.message)
        if "called a synchronizing" in text:
            places.append(f"{warning.filename}:{warning.lineno}")
        elif "debug mode is a prototype" not in text:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
