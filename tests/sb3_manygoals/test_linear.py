import pytest
import torch as th
from torch.nn import functional

from sb3_manygoals import linear

AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\n"
by_onednn = pytest.mark.skipif(not th.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")


@by_onednn
@pytest.mark.parametrize("bias", [True, False])
def test_both_ways_give_the_same_up_to_rounding(bias, monkeypatch):
    th.manual_seed(0)
    inputs, weight = th.randn(64, 288, requires_grad=True), th.randn(288, 512).T.requires_grad_()  # not contiguous
    arguments = (inputs, weight, th.randn(512, requires_grad=True)) if bias else (inputs, weight)
    target = th.randn(64, 512)
    found = []
    for way in (True, False):
        monkeypatch.setattr(linear, "BY_ONEDNN", way)
        outputs = linear.linear(*arguments)
        assert outputs.layout == th.strided
        assert ("ToDense" in outputs.grad_fn.name()) == way
        gradients = th.autograd.grad((outputs - target).square().mean(), arguments)
        assert all(gradient.layout == th.strided for gradient in gradients)
        found.append((outputs, *gradients))
    for ours, theirs in zip(*found, strict=True):
        th.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    th.testing.assert_close(found[0][0], functional.linear(*arguments), rtol=1e-4, atol=1e-4)


@by_onednn
@pytest.mark.parametrize(("rows", "dtype"), [(2, th.float32), (0, th.float32), (64, th.float64)])
def test_what_is_small_or_of_another_dtype_is_left_to_torch(rows, dtype, monkeypatch):
    monkeypatch.setattr(linear, "BY_ONEDNN", True)
    inputs, weight = th.randn(rows, 300, dtype=dtype), th.randn(500, 300, dtype=dtype)
    assert th.equal(linear.linear(inputs, weight), functional.linear(inputs, weight))


def test_which_machines_it_is_for(tmp_path, monkeypatch):
    described = tmp_path / "cpuinfo"
    described.write_text(AMD)
    for capability, vendor, expected in (("AVX512", AMD, True), ("AVX2", AMD, False), ("AVX512", "GenuineIntel", False)):
        described.write_text(vendor)
        monkeypatch.setattr(th.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        monkeypatch.setattr(th.backends.mkl, "is_available", lambda: True)
        monkeypatch.setattr(th.backends.mkldnn, "is_available", lambda: True)
        assert linear.mkl_is_slow(described) == expected
    monkeypatch.setattr(linear.platform, "processor", lambda: "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD")
    monkeypatch.setattr(th.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert linear.mkl_is_slow(tmp_path / "not there")
    monkeypatch.setattr(th.backends.mkl, "is_available", lambda: False)
    assert not linear.mkl_is_slow(tmp_path / "not there")


def test_a_layer_is_torchs_up_to_rounding():
    th.manual_seed(0)
    layer = linear.Linear(288, 512)
    inputs = th.randn(64, 288)
    th.testing.assert_close(layer(inputs), functional.linear(inputs, layer.weight, layer.bias), rtol=1e-4, atol=1e-4)
    assert isinstance(layer, th.nn.Linear)
