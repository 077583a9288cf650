"""The roofline of an update: the time below which it cannot come on a machine, by its matrix products and bytes moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch as th
from torch import nn
from torch.nn import functional

from sb3_manygoals import ManyGoalsDQN

Way = Literal["outputs", "to weights", "to inputs"]

OPTIMIZER_PASSES = 6
"""Numbers moved for each parameter: its gradient written and read, parameter and second moment read and written."""


@dataclass(frozen=True)
class Convolution:
    """
    A convolution, or one of its gradients: on large images faster than the product of unfolded matrices.

    :ivar images: how many
    :ivar image: channels, height and width of one, with the zeros around it
    :ivar weight: shape of the filters
    :ivar stride: of their windows
    """

    images: int
    image: tuple[int, int, int]
    weight: tuple[int, int, int, int]
    stride: tuple[int, int]

    def compute(self, way: Way) -> Callable[[], object]:
        """
        :param way: the outputs, or the gradient of the filters or of the images
        :return: a function that computes it
        """
        inputs, weight = th.randn(self.images, *self.image), th.randn(self.weight)
        if way == "outputs":
            return lambda: functional.conv2d(inputs, weight, stride=self.stride)
        outputs = functional.conv2d(inputs, weight, stride=self.stride)
        wanted = [way == "to inputs", way == "to weights", False]
        backward, none = th.ops.aten.convolution_backward, [0, 0]
        return lambda: backward(outputs, inputs, weight, None, self.stride, none, [1, 1], False, none, 1, wanted)


@dataclass(frozen=True)
class Product:
    """
    A product of matrices (m, k) and (k, n).

    :ivar shape: (m, k, n); of a convolution that of the unfolded matrices
    :ivar convolution: that gives the same, if one does
    :ivar way: in which it does
    """

    shape: tuple[int, int, int]
    convolution: Convolution | None = None
    way: Way = "outputs"

    def rows(self, images: int) -> Product:
        """
        :param images: how many
        :return: the product for them, this one being for one
        """
        m, k, n = self.shape
        convolution = None if self.convolution is None else replace(self.convolution, images=images)
        return Product((images * m, k, n), convolution)

    def gradient(self, way: Way) -> Product:
        """
        :param way: to weights or to inputs
        :return: the product of that gradient
        """
        m, k, n = self.shape
        return Product((k, m, n) if way == "to weights" else (m, n, k), self.convolution, way)

    def candidates(self) -> list[Callable[[], object]]:
        """:return: ways to compute it: by MKL, by oneDNN, by a convolution"""
        m, k, n = self.shape
        left, right, out = th.randn(m, k), th.randn(k, n), th.empty(m, n)
        found: list[Callable[[], object]] = [lambda: th.mm(left, right, out=out)]
        if th.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            inputs, weight = left.to_mkldnn(), right.T.contiguous()
            found.append(lambda: functional.linear(inputs, weight))
        return found if self.convolution is None else [*found, self.convolution.compute(self.way)]


@dataclass(frozen=True)
class Work:
    """
    What an update must do.

    :ivar products: of matrices
    :ivar moved: bytes of parameters, gradients and moments that go through the optimizer
    """

    products: tuple[Product, ...]
    moved: int

    @property
    def operations(self) -> int:
        """Floating-point operations."""
        return sum(2 * m * k * n for m, k, n in (product.shape for product in self.products))

    def speed(self, repeats: int = 5) -> float:
        """
        Multiply just these matrices, each in the fastest way, and copy just so many bytes, now and on this machine.

        :param repeats: of which the fastest counts
        :return: updates a second
        """
        total = sum(min(_seconds(way, repeats) for way in product.candidates()) for product in self.products)
        # A copy of b bytes moves 2 b: it reads and writes.
        source, target = th.zeros(self.moved // 2, dtype=th.uint8), th.zeros(self.moved // 2, dtype=th.uint8)
        return 1 / (total + _seconds(lambda: target.copy_(source), repeats))


def work(model: ManyGoalsDQN, n_transitions: int, n_goals: int, n_shared: int = 0) -> Work:
    """
    :param model: with convolutional networks
    :param n_transitions: S
    :param n_goals: G
    :param n_shared: how many of the goals are next observations of the transitions too, which the target network need not
        see twice
    :return: what an update of S transitions x G goals must do
    """
    net, trunk = model.q_net, _trunk(model)
    features, width = net.state_embedding.in_features, net.state_embedding.out_features
    rows = n_transitions + n_goals
    embeddings = [Product((n, features, width)) for n in (n_transitions, n_goals)]
    learnt = [*(layer.rows(rows) for layer in trunk), *embeddings, Product((n_transitions, width, n_goals))]
    target = [*(layer.rows(rows - n_shared) for layer in trunk), *embeddings]
    target.append(Product((n_transitions, width, n_goals * net.head.out_features)))
    gradients = [product.gradient("to weights") for product in learnt]
    gradients += [product.gradient("to inputs") for product in learnt[1:]]  # the gradient of a picture is not needed
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    return Work((*learnt, *target, *gradients), OPTIMIZER_PASSES * 4 * n_parameters)


def _trunk(model: ManyGoalsDQN) -> list[Product]:
    """The products of one observation's way through the trunk."""
    products: list[Product] = []

    def note(module: nn.Module, inputs: tuple[th.Tensor, ...], output: th.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            n, channels, height, width = module.weight.shape
            convolution = Convolution(1, tuple(inputs[0].shape[1:]), (n, channels, height, width), module.stride)  # type: ignore[arg-type]
            products.append(Product((output[0, 0].numel(), channels * height * width, n), convolution))
        elif isinstance(module, nn.Linear):
            products.append(Product((1, module.in_features, module.out_features)))

    hooks = [module.register_forward_hook(note) for module in model.q_net.trunk.modules()]
    assert model.goal_buffer is not None
    with th.no_grad():
        model.q_net.trunk(th.as_tensor(model.goal_buffer.observations[:1].copy()))
    for hook in hooks:
        hook.remove()
    return products


def _seconds(function: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)
