"""Linear maps, by oneDNN where MKL leaves half of the processor unused."""

from __future__ import annotations

import platform
from pathlib import Path

import torch as th
from torch import nn
from torch.nn import functional

SMALLEST = 2**23
"""Multiplications from which on it pays: the way there and back, through layouts of oneDNN's, costs tens of microseconds."""


def mkl_is_slow(processors: Path = Path("/proc/cpuinfo")) -> bool:
    """
    MKL, by which PyTorch multiplies matrices of 32-bit numbers, does without AVX-512 on processors of AMD. oneDNN, which is
    part of PyTorch too, uses it.

    :param processors: Linux's description of them
    :return: whether this is such a machine. Never decided by a measurement: numbers must not depend on chance
    """
    try:
        described = processors.read_text(encoding="utf-8")
    except OSError:
        described = platform.processor()
    has_both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_both and "AuthenticAMD" in described and th.backends.cpu.get_cpu_capability() == "AVX512"


BY_ONEDNN = mkl_is_slow()
"""Whether large products are oneDNN's on the CPU."""


def linear(inputs: th.Tensor, weight: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """
    As torch.nn.functional.linear, up to rounding.

    :param inputs: shape (B, n)
    :param weight: shape (m, n)
    :param bias: shape (m,), None for none
    :return: shape (B, m)
    """
    if BY_ONEDNN and inputs.device.type == "cpu" and inputs.dtype == th.float32 and len(inputs) * weight.numel() >= SMALLEST:
        return functional.linear(inputs.to_mkldnn(), weight.contiguous(), bias).to_dense()
    return functional.linear(inputs, weight, bias)


class Linear(nn.Linear):
    """torch.nn.Linear, by :func:`linear`."""

    def forward(self, inputs: th.Tensor) -> th.Tensor:
        """
        :param inputs: shape (B, in_features)
        :return: shape (B, out_features)
        """
        return linear(inputs, self.weight, self.bias)
