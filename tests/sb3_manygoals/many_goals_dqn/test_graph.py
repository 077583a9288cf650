"""Warm-ups, capture and replay of a graph, with an imitation of torch.cuda."""

import contextlib
import inspect
import warnings
from types import SimpleNamespace

import pytest
import torch as th

from sb3_manygoals.many_goals_dqn.captured import WARM_UPS, CaptureError, Graph


class Cuda:
    """Streams, captures and the debug mode of torch.cuda, as far as :class:`Graph` asks for them, and what was asked."""

    def __init__(self, monkeypatch):
        self.calls, self.mode = [], 0
        self.stream_now = self.main = SimpleNamespace(name="main", wait_stream=lambda other: self.tell("main waits"))
        self.side = SimpleNamespace(name="side", device="cuda:0", wait_stream=lambda other: self.tell("side waits"))
        self.end_fails = False
        fakes = {
            "current_stream": lambda device: self.stream_now,
            "stream": self.stream,
            "synchronize": lambda device: self.tell("synchronize"),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.tell("replay")),
            "graph": self.graph,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": self.set_mode,
        }
        for name, fake in fakes.items():
            assert hasattr(th.cuda, name)
            monkeypatch.setattr(th.cuda, name, fake)

    def tell(self, what):
        self.calls.append(what)

    def set_mode(self, mode):
        self.tell(f"mode {mode}")
        self.mode = mode
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream
        try:
            yield
        finally:
            self.stream_now = before

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.tell("begin")
        self.stream_now = stream
        try:
            yield
        finally:
            self.tell("end")
            if self.end_fails:
                raise RuntimeError("capture invalidated\nand so on")  # and the stream is left where it is

    def function(self):
        self.tell(f"function on {self.stream_now.name}")


def test_warm_ups_then_one_capture_then_replays(monkeypatch):
    cuda = Cuda(monkeypatch)
    graph = Graph(cuda.side)
    warm_up = ["side waits", "function on side", "main waits"]
    watched = ["side waits", "mode warn", "function on side", "mode 0", "main waits"]
    for expected in (warm_up, warm_up, watched, ["synchronize", "begin", "function on side", "end", "replay"], ["replay"]):
        assert not graph.captured or expected == ["replay"]
        cuda.calls.clear()
        graph.run(cuda.function)
        assert cuda.calls == expected
        assert cuda.stream_now is cuda.main
    assert graph.captured


def test_what_waits_for_the_device_is_not_captured(monkeypatch):
    cuda = Cuda(monkeypatch)
    graph = Graph(cuda.side)

    def waits():
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at here)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    for _ in range(WARM_UPS - 1):
        graph.run(lambda: None)
    with pytest.warns(UserWarning, match="something else"):
        graph.run(waits)
    line = inspect.getsourcelines(waits)[1] + 1
    with pytest.raises(CaptureError, match=rf"it waits for the device at .*test_graph\.py:{line}$"):
        graph.run(waits)
    assert "begin" not in cuda.calls


@pytest.mark.parametrize("end_fails", [False, True])
def test_the_first_error_of_a_capture_is_its_reason(end_fails, monkeypatch):
    cuda = Cuda(monkeypatch)
    graph = Graph(cuda.side)

    def function():
        if "begin" in cuda.calls:
            raise ValueError("not in a capture\nbecause")

    for _ in range(WARM_UPS):
        graph.run(function)
    cuda.end_fails = end_fails
    with pytest.raises(CaptureError, match=r"^ValueError: not in a capture$"):
        graph.run(function)
    assert cuda.calls.count("begin") == (2 if end_fails else 1)  # one more to end well
    assert cuda.stream_now is cuda.main
    assert not graph.captured


def test_an_end_that_fails_alone_is_the_reason(monkeypatch):
    cuda = Cuda(monkeypatch)
    graph = Graph(cuda.side)
    for _ in range(WARM_UPS):
        graph.run(cuda.function)
    cuda.end_fails = True
    with pytest.raises(CaptureError, match=r"^RuntimeError: capture invalidated$"):
        graph.run(cuda.function)
    assert cuda.stream_now is cuda.main
