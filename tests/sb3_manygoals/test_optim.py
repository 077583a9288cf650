import copy

import pytest
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from sb3_manygoals.optim import ForeachRMSprop, FusedRMSprop


def train(optimizer_class, steps=20, **kwargs):
    th.manual_seed(0)
    net = th.nn.Sequential(th.nn.Conv2d(3, 4, 2), th.nn.Flatten(), th.nn.Linear(16, 8), th.nn.ReLU(), th.nn.Linear(8, 1))
    unused = th.nn.Linear(2, 2)
    settings = {"lr": 1e-2, "alpha": 0.9, "eps": 1e-5} | kwargs
    optimizer = optimizer_class([*net.parameters(), *unused.parameters()], **settings)
    for step in range(steps):
        images = th.randn(5, 3, 3, 3) * 10.0 ** (step % 5 - 2)
        optimizer.zero_grad()
        net(images).square().mean().backward()
        optimizer.step()
        if step == steps // 2:
            optimizer.param_groups[0]["lr"] *= 0.3
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return optimizer, list(net.parameters())


@pytest.mark.parametrize("kwargs", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"centered": True}])
def test_it_is_sb3s_to_the_last_bit(kwargs):
    ours, theirs = train(ForeachRMSprop, **kwargs), train(RMSpropTFLike, **kwargs)
    assert all(th.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
    states = [optimizer.state_dict() for optimizer, _ in (ours, theirs)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for index, state in states[0]["state"].items():
        assert state.keys() == states[1]["state"][index].keys()
        assert th.equal(state["square_avg"], states[1]["state"][index]["square_avg"])
        assert state["step"] == states[1]["state"][index]["step"]


def test_other_memory_layouts_and_closures():
    parameter = th.nn.Parameter(th.ones(2, 3, 4, 5).contiguous(memory_format=th.channels_last))
    optimizer = ForeachRMSprop([parameter], lr=0.1)
    parameter.grad = th.ones_like(parameter)
    assert optimizer.step(lambda: 3.5) == 3.5
    assert th.allclose(parameter, parameter.flatten()[0].expand_as(parameter))
    assert copy.deepcopy(optimizer).state_dict().keys() == optimizer.state_dict().keys()


def test_the_step_size_may_be_a_tensor():
    (_, floats), (optimizer, tensors) = train(ForeachRMSprop), train(ForeachRMSprop, lr=th.tensor(1e-2))
    for left, right in zip(floats, tensors, strict=True):
        th.testing.assert_close(left, right)
    # a device that gives no values to the host
    parameter = th.nn.Parameter(th.ones(3, device="meta"))
    parameter.grad = th.ones_like(parameter)
    on_device = ForeachRMSprop([parameter])
    on_device.param_groups[0]["lr"] = th.ones((), device="meta")
    on_device.step()
    assert not optimizer.is_sb3s
    assert ForeachRMSprop(tensors, momentum=0.5).is_sb3s


@pytest.mark.parametrize(
    "kwargs", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"centered": True}, {"eps": 1e-2}, {"eps": 1e-12}]
)
def test_in_one_pass_it_is_sb3s_but_for_rounding(kwargs):
    ours, theirs = train(FusedRMSprop, **kwargs), train(RMSpropTFLike, **kwargs)
    for left, right in zip(ours[1], theirs[1], strict=True):
        th.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    for parameter, expected in zip(ours[1], theirs[1], strict=True):
        state, sb3s = ours[0].state[parameter], theirs[0].state[expected]
        assert state["step"] == sb3s["step"]
        if "scaled" in state:
            eps = kwargs.get("eps", 1e-5)
            th.testing.assert_close(state["scaled"] * 0.1 - eps, sb3s["square_avg"], rtol=1e-4, atol=1e-7)
    assert ("scaled" in state) == (not kwargs or "eps" in kwargs)


def test_it_goes_on_from_either_form_of_its_state():
    """Every other step in one pass, and every other as elsewhere: with a step size in a tensor, or another memory layout."""
    th.manual_seed(0)
    start, gradients = th.randn(4, 5), th.randn(9, 4, 5)
    mixed, plain = th.nn.Parameter(start.clone()), th.nn.Parameter(start.clone())
    ours, theirs = FusedRMSprop([mixed], lr=1e-2), RMSpropTFLike([plain], lr=1e-2)
    for number, gradient in enumerate(gradients):
        plain.grad, mixed.grad = gradient.clone(), gradient.clone()
        theirs.step()
        ours.param_groups[0]["lr"] = th.tensor(1e-2) if number % 3 == 1 else 1e-2
        if number % 3 == 2:
            mixed.grad = gradient.T.contiguous().T
        ours.step()
        assert ("scaled" in ours.state[mixed]) == (number % 3 == 0)
        th.testing.assert_close(mixed, plain, rtol=1e-4, atol=1e-6)


def test_rarely_used_weights_leave_no_denormal_numbers():
    parameter = th.nn.Parameter(th.ones(3))
    optimizer = FusedRMSprop([parameter], lr=1e-3, alpha=0.9, eps=1e-5)
    for _ in range(2_000):
        parameter.grad = th.zeros(3)
        optimizer.step()
    th.testing.assert_close(optimizer.state[parameter]["scaled"], th.full((3,), 1e-4))
    assert th.equal(parameter, th.ones(3))
