"""The modules of `psgd bench ddp`."""

import pytest

torch = pytest.importorskip("torch")


def test_the_gradient_of_a_vector_is_its_weight():
    from psgd.launch.bench.ddp.modules import Vectors

    module = Vectors(3, 400)
    module(torch.tensor([1.0, 5.0, 7.0])).backward()
    assert [v.grad.unique().tolist() for v in module.vectors] == [[1.0], [5.0], [7.0]]
    assert [v.numel() for v in module.vectors] == [100] * 3


def test_the_resnet_has_one_start_and_batchnorm():
    from psgd.launch.bench.ddp.modules import resnet

    one, other = resnet(4), resnet(4)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert one(torch.randn(2, 3, 8, 8)).shape == (2, 10)
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in one.modules())


def test_resnet18_is_that_of_cifar():
    from psgd.launch.bench.ddp.modules import resnet18

    module = resnet18()
    assert 11.1e6 < sum(p.numel() for p in module.parameters()) < 11.2e6
    assert len([part for part in module.modules() if isinstance(part, torch.nn.Conv2d)]) == 20
    assert module(torch.randn(2, 3, 32, 32)).shape == (2, 10)
