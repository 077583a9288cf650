import mmap
import os
from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks import peak_memory
from benchmarks.cases import Case
from benchmarks.peak_memory import UnmeasuredError

SMALL = Case("pairwise", 32, 16)


@dataclass(frozen=True)
class Killed(Case):
    def update(self):
        os._exit(9)


@dataclass(frozen=True)
class Hungry(Case):
    def update(self):
        raise MemoryError("this takes too much")


needs_proc = pytest.mark.skipif(peak_memory.why_not() is not None, reason=str(peak_memory.why_not()))


@needs_proc
def test_a_peak_is_told_after_the_memory_is_given_back():
    peak_memory.reset_peak()
    with mmap.mmap(-1, 160_000_000) as big:  # of the kernel, as an allocator may have as much left over
        np.frombuffer(big, np.uint8)[:] = 1
    peak, resident = peak_memory.status("VmHWM"), peak_memory.status("VmRSS")
    assert 155e6 < peak - resident < 170e6
    assert peak_memory.why_not() is None  # which resets it
    peak, resident = peak_memory.reset_peak()
    assert peak - resident < 4e6


@needs_proc
def test_an_update_needs_its_gradients_at_least():
    parameters = 12 * 16 + 16 + 64 * 32 + 32 + 288 * 512 + 512 + 2 * (512 * 1024 + 1024) + 1024 * 5 + 5
    megabytes = peak_memory.of_update(SMALL, threads=1)
    # Beside them 48 + 48 rows of a few thousand numbers, the work space of convolutions, pages half used.
    assert 4 * parameters / 1e6 < megabytes < 25


def test_what_cannot_be_measured_is_left_out_with_the_reason(monkeypatch, capsys):
    with pytest.raises(UnmeasuredError, match="was ended"):
        peak_memory.of_update(Killed("pairwise", 2, 2), threads=1)
    with pytest.raises(UnmeasuredError, match="this takes too much"):
        peak_memory.of_update(Hungry("pairwise", 2, 2), threads=1)

    def measure(case, threads):
        if case.kind == "tiled":
            raise UnmeasuredError("for a reason")
        return 7.0

    monkeypatch.setattr(peak_memory, "of_update", measure)
    monkeypatch.setattr(peak_memory, "why_not", lambda: None)
    cuda, tiled = Case("pairwise", 32, 16, device="cuda"), Case("tiled", 32, 16)
    assert peak_memory.of_updates([SMALL, tiled, cuda], threads=1) == {SMALL: 7.0, cuda: 7.0}
    assert capsys.readouterr().out == "memory of tiled 32 x 16 is not measured: for a reason\n"
    monkeypatch.setattr(peak_memory, "why_not", lambda: "no such file")
    assert peak_memory.of_updates([SMALL, tiled, cuda], threads=1) == {cuda: 7.0}
    assert capsys.readouterr().out == "memory on the CPU is not measured: no such file\n"


def test_machines_that_do_not_tell_are_recognized(tmp_path):
    def process(**status):
        (tmp_path / "status").write_text("".join(f"{name}:\t{value}\n" for name, value in status.items()))
        return tmp_path

    assert "does not tell it" in peak_memory.why_not(tmp_path / "nowhere")
    assert "VmHWM" in peak_memory.why_not(process(VmRSS="200000 kB"))
    assert "does not reset the peak" in peak_memory.why_not(process(VmHWM="500000 kB", VmRSS="200000 kB"))
    assert peak_memory.why_not(process(VmHWM="200004 kB", VmRSS="200000 kB")) is None
    assert (tmp_path / "clear_refs").read_text() == "5"
    assert peak_memory.reset_peak(tmp_path) == (204_804_096, 204_800_000)
