"""RMSProp for all parameters at once, on a CPU in one pass over them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch.optim.adagrad import adagrad

_SB3S_STEP = inspect.unwrap(RMSpropTFLike.step)
"""Without the hooks that torch adds to the class's own once there is one: those of the subclass have run already."""


class FusedRMSprop(RMSpropTFLike):
    r"""
    SB3's RMSpropTFLike (TensorFlow's form, epsilon inside the root), but for rounding, in fewer passes over weights, gradients
    and second moments, which bound the time of a step on a CPU. It is PyTorch's fused Adagrad, with a sum of squares that
    decays before each step. With :math:`v` the second moment,

    .. math:: u = \frac{v + \epsilon}{1 - \alpha}, \qquad u \leftarrow \alpha u + \epsilon + g^2, \qquad
        \theta \leftarrow \theta - \frac{\eta}{\sqrt{1 - \alpha}} \frac{g}{\sqrt u}

    is RMSProp. A parameter's state has ``scaled``, u, where it was last updated so, and else SB3's ``square_avg``, v. Updates
    go on from either. Tensors that are not contiguous or not on the CPU are updated as by SB3, to the last bit, but all in one
    call. With momentum, weight decay or ``centered`` the step is SB3's own.
    """

    @th.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if any(group["momentum"] or group["weight_decay"] or group["centered"] for group in self.param_groups):
            loss: float | None = _SB3S_STEP(self, closure)
            return loss
        loss = None
        if closure is not None:
            with th.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters]
            fusible = group["alpha"] < 1.0 and all(map(_is_plain, [*parameters, *gradients]))
            if parameters:
                (self._update_fused if fusible else self._update)(parameters, gradients, group)
        return loss

    def _update(self, parameters: list[th.Tensor], gradients: list[th.Tensor], group: dict[str, Any]) -> None:
        squares = []
        for parameter in parameters:
            state = self.state[parameter]
            if "scaled" in state:
                state["square_avg"] = state.pop("scaled") * (1.0 - group["alpha"]) - group["eps"]
            elif not state:
                state.update(step=0, square_avg=th.ones_like(parameter, memory_format=th.preserve_format))
            state["step"] += 1
            squares.append(state["square_avg"])
        th._foreach_mul_(squares, group["alpha"])
        th._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
        roots = th._foreach_add(squares, group["eps"])
        th._foreach_sqrt_(roots)
        th._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])

    def _update_fused(self, parameters: list[th.Tensor], gradients: list[th.Tensor], group: dict[str, Any]) -> None:
        alpha, eps = group["alpha"], group["eps"]
        floor = th.tensor(eps / (1.0 - alpha))
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state.update(step=0, scaled=th.full_like(parameter, (1.0 + eps) / (1.0 - alpha)))
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
            lr=group["lr"] * (1.0 - alpha) ** -0.5,
            lr_decay=0.0,
            weight_decay=0.0,
            eps=0.0,
            maximize=False,
        )


def _is_plain(tensor: th.Tensor) -> bool:
    """Whether its numbers lie side by side in the host's memory."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.is_floating_point()
