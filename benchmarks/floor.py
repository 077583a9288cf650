"""The time below which an update cannot come on a machine: its matrix products and the bytes that it must move."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch as th
from torch import nn
from torch.nn import functional

from sb3_manygoals import ManyGoalsDQN

Shape = tuple[int, int, int]
"""Of a matrix product: (m, k) times (k, n)."""

OPTIMIZER_PASSES = 6
"""Numbers moved for each parameter: its gradient written and read, parameter and second moment read and written."""


@dataclass(frozen=True)
class Convolution:
    """
    A convolution, or one of its two gradients: on large images faster than the product of unfolded matrices.

    :ivar images: how many
    :ivar image: channels, height and width of one, with the zeros around it
    :ivar weight: shape of the filters
    :ivar stride: of their windows
    :ivar way: what is computed: the outputs, or the gradient of the filters or of the images
    """

    images: int
    image: tuple[int, int, int]
    weight: tuple[int, int, int, int]
    stride: tuple[int, int]
    way: Literal["outputs", "to weights", "to inputs"] = "outputs"

    def seconds(self, repeats: int) -> float:
        """
        :param repeats: of which the fastest counts
        :return: seconds
        """
        inputs, weight = th.randn(self.images, *self.image), th.randn(self.weight)
        outputs = th.nn.functional.conv2d(inputs, weight, stride=self.stride)
        if self.way == "outputs":
            return min(_timed(lambda: th.nn.functional.conv2d(inputs, weight, stride=self.stride)) for _ in range(repeats))
        none, wanted = [0, 0], [self.way == "to inputs", self.way == "to weights", False]
        settings = (None, self.stride, none, [1, 1], False, none, 1, wanted)
        backward = th.ops.aten.convolution_backward
        return min(_timed(lambda: backward(outputs, inputs, weight, *settings)) for _ in range(repeats))


@dataclass(frozen=True)
class Work:
    """
    What an update must do.

    :ivar products: the matrix products, as they are multiplied, convolutions unfolded
    :ivar moved: bytes of parameters, gradients and moments that go through the optimizer
    :ivar convolutions: those which give the same as a product, by its shape
    """

    products: tuple[Shape, ...]
    moved: int
    convolutions: Mapping[Shape, Convolution] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return sum(2 * m * k * n for m, k, n in self.products)


def work(model: ManyGoalsDQN, n_transitions: int, n_goals: int, n_shared: int = 0) -> Work:
    """
    :param model: with convolutional networks
    :param n_transitions: S
    :param n_goals: G
    :param n_shared: how many of the goals are next observations of the transitions too, which the target network need not
        see twice
    :return: what an update of S transitions x G goals must do
    """
    net, n_actions = model.q_net, model.q_net.head.out_features
    rows, target_rows = n_transitions + n_goals, n_transitions + n_goals - n_shared
    features, width = net.state_embedding.in_features, net.state_embedding.out_features
    embeddings = [(n_transitions, features, width), (n_goals, features, width)]
    trunk, layers = _trunk(model)
    forward = [(rows * m, k, n) for m, k, n in trunk]
    learnt = [*forward, *embeddings, (n_transitions, width, n_goals)]
    target = [(target_rows * m, k, n) for m, k, n in trunk]
    target += [*embeddings, (n_transitions, width, n_goals * n_actions)]
    to_weights = [(k, m, n) for m, k, n in learnt]
    to_inputs = [(m, n, k) for m, k, n in learnt[1:]]  # nobody asks for the gradient of a picture
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    convolutions: dict[Shape, Convolution] = {}
    for (m, k, n), layer in layers.items():
        convolutions[rows * m, k, n] = replace(layer, images=rows)
        convolutions[target_rows * m, k, n] = replace(layer, images=target_rows)
        convolutions[k, rows * m, n] = replace(layer, images=rows, way="to weights")
        convolutions[rows * m, n, k] = replace(layer, images=rows, way="to inputs")
    return Work((*learnt, *target, *to_weights, *to_inputs), OPTIMIZER_PASSES * 4 * n_parameters, convolutions)


def seconds(work: Work, repeats: int = 5) -> float:
    """
    Multiply matrices of just these shapes, by MKL or oneDNN, or convolve, whichever is faster, and copy just so many bytes,
    now and on this machine.

    :param work: of an update
    :param repeats: of which the fastest counts
    :return: seconds
    """
    total = 0.0
    for m, k, n in work.products:
        left, right, out = th.randn(m, k), th.randn(k, n), th.empty(m, n)
        fastest = min(_timed(lambda a=left, b=right, c=out: th.mm(a, b, out=c)) for _ in range(repeats))
        if th.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            inputs, weight = left.to_mkldnn(), right.T.contiguous()
            by_onednn = (_timed(lambda a=inputs, b=weight: functional.linear(a, b)) for _ in range(repeats))
            fastest = min(fastest, *by_onednn)
        convolution = work.convolutions.get((m, k, n))
        total += fastest if convolution is None else min(fastest, convolution.seconds(repeats))
    # A copy of b bytes moves 2 b: it reads and writes.
    source, target = th.zeros(work.moved // 2, dtype=th.uint8), th.zeros(work.moved // 2, dtype=th.uint8)
    return total + min(_timed(lambda: target.copy_(source)) for _ in range(repeats))


def _trunk(model: ManyGoalsDQN) -> tuple[list[Shape], dict[Shape, Convolution]]:
    """The products of one observation's way through the trunk, and which of them are convolutions."""
    products: list[Shape] = []
    layers: dict[Shape, Convolution] = {}
    hooks = []

    def note(module: nn.Module, inputs: tuple[th.Tensor, ...], output: th.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            per_window = module.in_channels * module.kernel_size[0] * module.kernel_size[1]
            products.append((output[0, 0].numel(), per_window, module.out_channels))
            _, channels, height, width = inputs[0].shape
            weight = (module.out_channels, module.in_channels, module.kernel_size[0], module.kernel_size[1])
            layers[products[-1]] = Convolution(1, (channels, height, width), weight, (module.stride[0], module.stride[1]))
        elif isinstance(module, nn.Linear):
            products.append((1, module.in_features, module.out_features))

    for module in model.q_net.trunk.modules():
        hooks.append(module.register_forward_hook(note))
    assert model.goal_buffer is not None
    with th.no_grad():
        model.q_net.trunk(th.as_tensor(model.goal_buffer.observations[:1].copy()))
    for hook in hooks:
        hook.remove()
    return products, layers


def _timed(function: object) -> float:
    begin = time.perf_counter()
    function()  # type: ignore[operator]
    return time.perf_counter() - begin
