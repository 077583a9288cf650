"""What an update from a plan costs, beside the least that it could cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch as th
from torch import nn

from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig, rate
from benchmarks.worlds import World
from sb3_manygoals import ManyGoalsDQN, PlannedTargets

SIZES = ((64, 64), (128, 128), (128, 256), (256, 128), (256, 256))
"""Numbers of states and goals in an update."""


def name_of(kind: str, size: tuple[int, int]) -> str:
    """
    Return the name of a contender.

    :param kind: "planned", "float32" or "floor"
    :param size: numbers of states and goals
    :return: the name
    """
    return f"{kind} {size[0]} x {size[1]}"


RATIOS = (
    *(
        Ratio(
            f"share of the floor's speed, {size[0]} x {size[1]}",
            name_of("planned", size),
            name_of("floor", size),
        )
        for size in SIZES
    ),
    Ratio("updates/s: planned / in float32, 128 x 128", "planned 128 x 128", "float32 128 x 128"),
)
"""Ratios that are printed."""


@dataclass(frozen=True)
class PlannedConfig(SpeedConfig):
    """
    Time updates from a plan of the paper's map, of several sizes.

    The floor has the matrix products of an update, the optimizer's step and the moving average of
    the weights, and nothing else.
    """

    what = "planned"
    unit = "updates/s"
    ratios = RATIOS

    rounds: int = 5
    seconds: float = 0.5
    """Seconds for which each measurement goes on at least."""
    steps: int = 20_000
    """Steps in which the world is discovered before it is planned."""

    def contenders(self) -> Contenders:
        """
        Make what takes turns.

        :return: for each name a function that measures updates a second
        """
        model = planned_model(self.steps)
        found: dict[str, Callable[[], float]] = {}
        for size in SIZES:
            found[name_of("planned", size)] = partial(self._speed, model, size)
            found[name_of("floor", size)] = partial(rate, floor(model, *size), self.seconds)
        found["float32 128 x 128"] = partial(self._speed, model, (128, 128), False)
        return found

    def _speed(
        self, model: ManyGoalsDQN, size: tuple[int, int], mixed_precision: bool | None = None
    ) -> float:
        """Return updates a second, of so many states and goals."""
        batch_size, model.goal_batch_size = size
        model.policy.mixed_precision = mixed_precision
        n_at_a_time = 5
        calls = rate(lambda: model.train(n_at_a_time, batch_size), self.seconds)
        model.policy.mixed_precision = None
        return calls * n_at_a_time


def planned_model(steps: int) -> ManyGoalsDQN:
    """
    Return a model of the default that knows the paper's map, with a plan.

    :param steps: steps of training
    :return: the model
    """
    env = World("TwoRoomsSwitch-v0").make_many(64, seed=0)
    # After few steps, the default would bootstrap.
    model = ManyGoalsDQN("CnnPolicy", env, seed=0, device="cpu", target_class=PlannedTargets)
    return model.learn(steps)


def floor(model: ManyGoalsDQN, n_states: int, n_goals: int) -> Callable[[], None]:
    """
    Return a function that does only the work of an update that no implementation can leave out.

    :param model: the model whose update it is, with the distance head and a trunk of Linear layers
    :param n_states: number of states, S
    :param n_goals: number of goals, G
    :return: the function
    """
    policy = model.policy
    with policy.autocast():
        is_mixed = th.is_autocast_enabled("cpu")
    dtype = th.bfloat16 if is_mixed else th.float32
    layers = [
        (layer, n_states + n_goals)
        for layer in policy.q_net.trunk.modules()
        if isinstance(layer, nn.Linear)
    ]
    layers += [(policy.q_net.state_embedding, n_states), (policy.q_net.goal_embedding, n_goals)]
    products = []
    for number, (layer, n_rows) in enumerate(layers):
        weight = layer.weight.detach().to(dtype)
        inputs = th.randn(n_rows, layer.in_features).to(dtype)
        gradient = th.randn(n_rows, layer.out_features).to(dtype)
        products += [(inputs, weight.T), (gradient.T, inputs)]
        if number > 0:
            # Nothing needs the gradient of the first layer's inputs.
            products.append((gradient, weight))
    points = th.randn(n_states * policy.q_net.n_actions, policy.embedding_dim)
    goals = th.randn(n_goals, policy.embedding_dim)
    gradient = th.randn(len(points), n_goals)
    products += [(points, goals.T), (gradient, goals), (gradient.T, points)]

    def step() -> None:
        for left, right in products:
            th.mm(left, right)
        for parameter in policy.q_net.parameters():
            if parameter.grad is None:
                parameter.grad = th.zeros_like(parameter)
        policy.optimizer.step()
        policy.update_ema()

    return step
