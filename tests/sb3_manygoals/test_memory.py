"""What is freed stays with the process. In a process of its own: the allocator adapts once and for all."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FAULTS = """
import resource, sys
import torch as th
from sb3_manygoals.memory import keep_freed_memory
th.set_num_threads(1)
if sys.argv[1] == "kept":
    keep_freed_memory()
def rounds(pages):
    for size in pages:
        # as gradients are: all at once, and all freed. Always a page more: what is larger than all that was freed is never
        # taken from the heap, whose end may or may not be given back, as some small block lies above it or not
        held = [th.ones(size, 1024) for _ in range(4)]
        del held
rounds(range(512, 515))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds(range(515, 535))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


def faults(mode):
    done = subprocess.run([sys.executable, "-c", FAULTS, mode], cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_freed_memory_is_kept_for_the_next_time():
    assert faults("kept") < 20
    if not (HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text()):  # of which these 8 MiB would be four
        assert faults("given back") > 300
