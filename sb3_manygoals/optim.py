"""RMSProp in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike


class InPlaceRMSprop(RMSpropTFLike):
    """
    SB3's RMSpropTFLike (TensorFlow's form, epsilon inside the root), to the last bit, but without new memory at each step:
    tensors as large as the weights, which on a CPU may be given back to the operating system at once, so that each step waits
    for fresh pages.

    With momentum, weight decay or ``centered`` it is SB3's. Otherwise the step size may also be a tensor, which is not fetched
    from its device.
    """

    @property
    def is_sb3s(self) -> bool:
        """Whether a step is SB3's own, for an option that is not done in place."""
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
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: th.Tensor, gradient: th.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["square_avg"] = th.ones_like(parameter, memory_format=th.preserve_format)
        state["step"] += 1
        square_avg = state["square_avg"]
        square_avg.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        root = self._scratch(square_avg)
        th.add(square_avg, group["eps"], out=root).sqrt_()
        if isinstance(group["lr"], th.Tensor):
            parameter.sub_(th.div(gradient, root, out=root).mul_(group["lr"]))
        else:
            parameter.addcdiv_(gradient, root, value=-group["lr"])

    def _scratch(self, like: th.Tensor) -> th.Tensor:
        """Memory for one tensor of this kind, used again for each."""
        scratch: dict[Any, th.Tensor] = self.__dict__.setdefault("_memory", {})
        key = (like.dtype, like.device)
        if key not in scratch or scratch[key].numel() < like.numel():
            scratch[key] = th.empty(like.numel(), dtype=like.dtype, device=like.device)
        return scratch[key][: like.numel()].view_as(like)
