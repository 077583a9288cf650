"""RMSProp, all parameters at once, and on a CPU in one pass over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch.optim.adagrad import adagrad


class ForeachRMSprop(RMSpropTFLike):
    """
    SB3's RMSpropTFLike (TensorFlow's form, epsilon inside the root), to the last bit, but with one call for all parameters
    where that makes one for each, as PyTorch's own optimizers with ``foreach=True``: less Python on a CPU, fewer kernels on a
    GPU.

    With momentum, weight decay or ``centered`` it is SB3's. Otherwise the step size may also be a tensor, which is not fetched
    from its device.
    """

    @property
    def is_sb3s(self) -> bool:
        """Whether a step is SB3's own, for an option that is not done for all parameters at once."""
        return any(group["momentum"] or group["weight_decay"] or group["centered"] for group in self.param_groups)

    @th.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """
        :param closure: computes the loss again, and the gradients; or None
        :return: its loss, None without one
        """
        if self.is_sb3s:
            return super().step(closure)
        loss = None
        if closure is not None:
            with th.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, [parameter.grad for parameter in parameters], group)
        return loss

    def _update(self, parameters: list[th.Tensor], gradients: list[th.Tensor], group: dict[str, Any]) -> None:
        squares = []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["square_avg"] = th.ones_like(parameter, memory_format=th.preserve_format)
            state["step"] += 1
            squares.append(state["square_avg"])
        th._foreach_mul_(squares, group["alpha"])
        th._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
        roots = th._foreach_add(squares, group["eps"])
        th._foreach_sqrt_(roots)
        if isinstance(group["lr"], th.Tensor):
            steps = th._foreach_div(gradients, roots)
            th._foreach_mul_(steps, group["lr"])
            th._foreach_sub_(parameters, steps)
        else:
            th._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])


class FusedRMSprop(ForeachRMSprop):
    r"""
    :class:`ForeachRMSprop`, but for rounding, in fewer passes over weights, gradients and second moments on a CPU, where a
    step is bound by memory: PyTorch's fused Adagrad, whose sum of squares decays before each step. With :math:`v` the second
    moment,

    .. math:: u = \frac{v + \epsilon}{1 - \alpha}, \qquad u \leftarrow \alpha u + \epsilon + g^2, \qquad
        \theta \leftarrow \theta - \frac{\eta}{\sqrt{1 - \alpha}} \frac{g}{\sqrt u}

    is RMSProp. The state of a parameter has ``scaled``, u, for ``square_avg``, v, where it was last updated so; it can go on
    with either. Elsewhere, and with a step size that is a tensor, it is :class:`ForeachRMSprop`.
    """

    def _update(self, parameters: list[th.Tensor], gradients: list[th.Tensor], group: dict[str, Any]) -> None:
        alpha, eps, rate = group["alpha"], group["eps"], group["lr"]
        states = [self.state[parameter] for parameter in parameters]
        if not _fusible([*parameters, *gradients]) or isinstance(rate, th.Tensor) or alpha == 1.0:
            for state in states:
                if "scaled" in state:
                    state["square_avg"] = state.pop("scaled") * (1.0 - alpha) - eps
            super()._update(parameters, gradients, group)
            return
        floor = th.tensor(eps / (1.0 - alpha))
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = 0
                state["scaled"] = th.full_like(parameter, (1.0 + eps) / (1.0 - alpha))
            elif "square_avg" in state:
                state["scaled"] = (state.pop("square_avg") + eps) / (1.0 - alpha)
            state["step"] += 1
            state["scaled"].lerp_(floor.to(parameter.dtype), 1.0 - alpha)
        adagrad(
            parameters,
            gradients,
            [state["scaled"] for state in states],
            [th.zeros(()) for _ in states],  # counted for a decay of the step size
            fused=True,
            lr=rate * (1.0 - alpha) ** -0.5,
            lr_decay=0.0,
            weight_decay=0.0,
            eps=0.0,
            maximize=False,
        )


def _fusible(tensors: list[th.Tensor]) -> bool:
    """Whether all are plain rows of numbers in the host's memory, which are gone through side by side."""
    return all(tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.is_floating_point() for tensor in tensors)
