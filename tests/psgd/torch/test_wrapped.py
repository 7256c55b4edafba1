"""A wrapped module: views of two vectors, whatever its parameters and the loop around it are like."""

import copy

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def net(dtype=None):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def lies_in(tensor, vector):
    start = vector.ctypes.data
    return start <= tensor.data_ptr() < start + vector.nbytes


def assert_views(model, module):
    for p in module.parameters():
        assert lies_in(p, model.params) and lies_in(p.grad, model.grads)


def test_parameters_and_gradients_become_views_with_the_same_values_and_names():
    module, before = net(), {name: value.clone() for name, value in net().state_dict().items()}
    model = psgd.torch.wrap(module)
    assert_views(model, module)
    assert list(module.state_dict()) == list(before)
    views = model.layout.views(model.params)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        np.testing.assert_array_equal(views[name], before[name].numpy())
    module.load_state_dict({name: value + 1 for name, value in before.items()})
    np.testing.assert_array_equal(views["2.bias"], before["2.bias"].numpy() + 1)
    assert_views(model, module)


def test_parameters_in_any_order_of_memory():
    module = net()
    module[0].weight = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
    assert not module[0].weight.is_contiguous()
    model = psgd.torch.wrap(module)
    np.testing.assert_array_equal(model.layout.views(model.params)["0.weight"], np.arange(12.0).reshape(3, 4).T)


@pytest.mark.parametrize("zero", ["none", "zero", "model"])
def test_every_way_to_clear_gradients_leaves_right_ones_in_the_vector(zero):
    module = net()
    module.unused = nn.Linear(2, 2)
    model, reference = psgd.torch.wrap(module), net()
    for step in range(3):
        x = torch.randn(5, 3)
        if zero == "model":
            model.zero_grad()
        else:
            module.zero_grad(set_to_none=zero == "none")
        for _ in range(2):  # two backward passes add up
            module[:3](x)[:, step % 2].sum().backward()
        reference.zero_grad()
        for _ in range(2):
            reference(x)[:, step % 2].sum().backward()
        model.gather()
        views = model.layout.views(model.grads)
        for name, p in reference.named_parameters():
            np.testing.assert_array_equal(views[name], p.grad.numpy())
        assert not views["unused.weight"].any()
        assert_views(model, module)
        model.grads[:] = 7  # what it holds after a step is not defined


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_few_bits_are_rounded_from_a_vector_of_float32(dtype):
    module = net()
    module[2].to(dtype)
    model = psgd.torch.wrap(module)
    params, grads = model.prepare(), np.zeros(model.layout.size, np.float32)
    model.bind(params, grads)
    module.zero_grad()
    x = torch.randn(5, 4, dtype=dtype)
    module[2](x).float().sum().backward()
    exact = module[2].weight.grad.float().numpy()
    model.gather()
    np.testing.assert_array_equal(model.layout.views(grads)["2.weight"], exact)
    assert not model.layout.views(grads)["0.weight"].any()
    start = params.copy()
    for _ in range(4):  # steps too short for the parameters to show
        params += 2.0**-14
        model.scatter()
    ours = model.layout.views(params)["2.weight"]
    np.testing.assert_allclose(ours, model.layout.views(start)["2.weight"] + 2.0**-12, rtol=0, atol=1e-7)
    assert torch.equal(module[2].weight.detach(), torch.from_numpy(ours).to(dtype))
    model.unbind()
    np.testing.assert_array_equal(model.prepare(), params)  # nothing is lost by rounding
    nn.init.ones_(module[2].weight)
    assert (model.layout.views(model.prepare())["2.weight"] == 1).all()


def test_the_backward_pass_announces_final_ranges():
    module = net()
    module.unused = nn.Linear(2, 2)
    model, seen = psgd.torch.wrap(module), []

    def backward():
        module[:3](torch.ones(1, 3)).sum().backward()

    model.announce(seen.append)
    module.zero_grad()
    backward()
    assert seen == [], "the unused layer is the last one"
    model.gather()
    del module.unused
    model = psgd.torch.wrap(copy.deepcopy(module))
    module = model.module
    model.announce(lambda part: seen.append((part, model.grads[part.start : part.stop].copy())))
    module.zero_grad()
    backward()
    assert seen[0][0].stop == model.layout.size and seen[-1][0].start == 0
    np.testing.assert_array_equal(np.concatenate([values for _, values in reversed(seen)]), model.grads)
    assert model.grads.any()
    with pytest.raises(UsageError, match="got a second"):
        backward()
    model.unbind()
    backward()


def replaced(module):
    module[2].bias = nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced, "2.bias was replaced"),
        (lambda module: module.load_state_dict(net().state_dict(), strict=False, assign=True), "0.weight was replaced"),
        (lambda module: module.double(), "0.weight was moved or converted"),
        (lambda module: module[0].register_parameter("more", nn.Parameter(torch.ones(1))), "0.more was added"),
        (lambda module: module.frozen.requires_grad_(True), "frozen was made trainable"),
    ],
)
def test_a_changed_module_is_refused(change, message):
    module = net()
    module.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    model = psgd.torch.wrap(module)
    change(module)
    with pytest.raises(UsageError, match=message):
        model.prepare()


def test_what_cannot_be_wrapped_is_refused():
    with pytest.raises(UsageError, match=r"expected a torch.nn.Module, got list"):
        psgd.torch.wrap([])
    with pytest.raises(UsageError, match="buffers: expected one of average, broadcast, local, got 'mean'"):
        psgd.torch.wrap(net(), buffers="mean")
    module = net()
    model = psgd.torch.wrap(module)
    with pytest.raises(UsageError, match=r"0.weight is part of a wrapped module already"):
        psgd.torch.wrap(nn.Sequential(module))
    del model
    psgd.torch.wrap(module)


def test_a_sparse_gradient_is_refused():
    module = nn.Linear(2, 2, bias=False)
    model = psgd.torch.wrap(module)
    module.zero_grad()
    module.weight.grad = torch.eye(2).to_sparse()
    with pytest.raises(UsageError, match="weight: expected a dense gradient"):
        model.gather()


def test_moved_it_is_still_views_of_its_vectors():
    module = net()
    module[2].half()
    model = psgd.torch.wrap(module)
    model.params[:] += np.float32(2.0**-20)  # float16 does not show it
    before = model.params.copy()
    assert model.to("cpu") is model
    np.testing.assert_array_equal(model.params, before)
    assert lies_in(module[0].weight, model.params) and lies_in(module[0].weight.grad, model.grads)
    np.testing.assert_array_equal(model.prepare(), before)
    model.bind(before, np.zeros_like(before))
    with pytest.raises(UsageError, match=r"Wrapped\.to: the module is being trained in another block"):
        model.to("cpu")


def test_a_copy_is_a_module_of_its_own():
    module = net()
    model = psgd.torch.wrap(module)
    other = copy.deepcopy(module)
    model.params[:] = 0
    assert other[0].weight.abs().sum() > 0
    psgd.torch.wrap(other)


def test_gradients_of_few_bits_are_set_to_zero_too():
    module = nn.Linear(3, 2).bfloat16()
    model = psgd.torch.wrap(module)
    x = torch.ones(4, 3, dtype=torch.bfloat16)
    found = []
    for _ in range(2):
        model.zero_grad()
        module(x).sum().backward()
        found.append(module.weight.grad.clone())
    assert torch.equal(*found) and found[0].eq(4).all()
