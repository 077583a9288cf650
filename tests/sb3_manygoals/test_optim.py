import copy
import importlib.util

import pytest
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from sb3_manygoals import optim
from sb3_manygoals.optim import FusedRMSprop


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


SB3S = [{"momentum": 0.9}, {"weight_decay": 0.1}, {"centered": True}]


@pytest.mark.parametrize("kwargs", [{}, *SB3S])
def test_where_it_is_not_fused_it_is_sb3s_to_the_last_bit(kwargs, monkeypatch):
    if not kwargs:
        monkeypatch.setattr(optim, "_is_plain", lambda tensor: False)  # as on a GPU
    ours, theirs = train(FusedRMSprop, **kwargs), train(RMSpropTFLike, **kwargs)
    assert all(th.equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
    left, right = (optimizer.state_dict() for optimizer, _ in (ours, theirs))
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys()
    for index, state in left["state"].items():
        assert state.keys() == right["state"][index].keys()
        assert all(th.equal(th.as_tensor(state[name]), th.as_tensor(right["state"][index][name])) for name in state)


@pytest.mark.parametrize("kwargs", [{}, *SB3S])
def test_hooks_run_once_a_step_also_when_there_is_one_of_sb3s(kwargs):
    """torch adds the hooks to a class when its first optimizer is made."""
    parameter, calls = th.nn.Parameter(th.ones(3)), []
    RMSpropTFLike([parameter])
    spec = importlib.util.spec_from_file_location("imported_after_it", optim.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    optimizer = module.FusedRMSprop([parameter], lr=0.1, **kwargs)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    parameter.grad = th.ones(3)
    optimizer.step()
    assert calls == ["before", "after"]
    assert not th.equal(parameter, th.ones(3))


@pytest.mark.parametrize("kwargs", [{}, SB3S[0]])
def test_closures(kwargs):
    parameter = th.nn.Parameter(th.ones(2, 3, 4, 5).contiguous(memory_format=th.channels_last))
    optimizer = FusedRMSprop([parameter], lr=0.1, **kwargs)

    def closure():
        optimizer.zero_grad()
        loss = parameter.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 120.0
    assert th.allclose(parameter, parameter.flatten()[0].expand_as(parameter))
    assert parameter.sum().item() < 120.0


@pytest.mark.parametrize("kwargs", [{}, {"eps": 1e-2}, {"eps": 1e-12}])
def test_in_one_pass_it_is_sb3s_but_for_rounding(kwargs):
    ours, theirs = train(FusedRMSprop, **kwargs), train(RMSpropTFLike, **kwargs)
    for left, right in zip(ours[1], theirs[1], strict=True):
        th.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)
    for parameter, expected in zip(ours[1], theirs[1], strict=True):
        state, sb3s = ours[0].state[parameter], theirs[0].state[expected]
        assert state["step"] == sb3s["step"]
        eps = kwargs.get("eps", 1e-5)
        th.testing.assert_close(state["scaled"] * 0.1 - eps, sb3s["square_avg"], rtol=1e-4, atol=1e-7)


def test_it_goes_on_from_either_form_of_its_state():
    """Every other step in one pass, and every other as elsewhere: in another memory layout."""
    th.manual_seed(0)
    start, gradients = th.randn(4, 5), th.randn(9, 4, 5)
    mixed, plain = th.nn.Parameter(start.clone()), th.nn.Parameter(start.clone())
    ours, theirs = FusedRMSprop([mixed], lr=1e-2, eps=0.1), RMSpropTFLike([plain], lr=1e-2, eps=0.1)
    for number, gradient in enumerate(gradients):
        plain.grad, mixed.grad = gradient.clone(), gradient.clone()
        theirs.step()
        if number % 2:
            mixed.grad = gradient.T.contiguous().T
        ours.step()
        assert ("scaled" in ours.state[mixed]) == (number % 2 == 0)
        th.testing.assert_close(mixed, plain, rtol=1e-4, atol=1e-6)


def test_rarely_used_weights_leave_no_denormal_numbers():
    parameter = th.nn.Parameter(th.ones(3))
    optimizer = FusedRMSprop([parameter], lr=1e-3, alpha=0.9, eps=1e-5)
    for _ in range(2_000):
        parameter.grad = th.zeros(3)
        optimizer.step()
    th.testing.assert_close(optimizer.state[parameter]["scaled"], th.full((3,), 1e-4))
    assert th.equal(parameter, th.ones(3))
