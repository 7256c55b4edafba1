"""Gradients that cannot be reduced."""

import re

import pytest

import psgd
from psgd.kernels.errors import PeerLostError, UsageError

torch = pytest.importorskip("torch")

nn = torch.nn


class Crossed(nn.Module):
    def __init__(self, order):
        super().__init__()
        self.order, self.parts = order, nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x):
        for index in self.order:
            x = self.parts[index](x)
        return x


@pytest.mark.ranks(3, timeout=120)
def test_a_gradient_that_cannot_be_reduced_is_told_on_all_ranks(comm):
    def trained(module, wrong, message, **options):
        model = psgd.torch.shard(module, comm, **options)
        with (
            pytest.raises((UsageError, PeerLostError)) as told,
            psgd.connect(comm, model, strategy="allreduce", lr=0.1) as ps,
        ):
            wrong(ps, module, torch.randn(2, 3))
        # A rank that is behind may hear first that another has left.
        errors = [str(error) for error in comm.allgather(told.value) if not isinstance(error, PeerLostError)]
        assert errors and all(re.search(message, error) for error in errors), errors

    def without_overlap(ps, module, x):
        module(x).sum().backward()

    def without_backward(ps, module, x):
        ps.step(2)

    def twice(ps, module, x):
        ps.overlap(2)
        module(x).sum().backward()
        module(x).sum().backward()

    def replaced(ps, module, x):
        ps.overlap(2)
        module(x).sum().backward()
        module.parts[0].weight = nn.Parameter(torch.ones(3, 3))
        ps.step(2)

    def right(ps, module, x):
        ps.overlap(2)
        module(x).sum().backward()
        ps.step(2)

    for stage in (2, 3):
        trained(Crossed([0, 1]), without_overlap, r"expected ps.overlap\(samples\) before backward", stage=stage)
        trained(Crossed([0, 1]), without_backward, r"expected ps.overlap\(samples\) before the backward", stage=stage)
        trained(Crossed([0, 1]), twice, "got a second", stage=stage)
        trained(Crossed([0, 1]), replaced, "parts.0.weight was replaced", stage=stage)

    def some_have_none(ps, module, x):
        right(ps, module, x) if comm.rank < 2 else ps.step(0)

    trained(Crossed([[0, 1], [1, 0], [0, 1]][comm.rank]), some_have_none, "in different orders")
    trained(Crossed([[0, 1], [1, 0], [0, 1]][comm.rank]), right, "in different orders")
