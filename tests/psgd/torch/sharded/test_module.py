"""Runs of sharded modules on ranks: the bits of all-reduce, the bytes and the memory by formula."""

import gc

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

nn = torch.nn
TWICE = {"encoder": ["layers.layers.0"]}
"""Blocks that run twice forward, and are gathered twice there."""


def same_state(got, wanted):
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(got[name], value), name


@pytest.mark.ranks(2, 3, timeout=240)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_losses_and_weights_are_those_of_allreduce_and_bytes_those_of_the_formula(comm, kind):
    whole = cases.run(comm, kind, 0, 50)
    for stage in (1, 2, 3):
        ran = cases.run(comm, kind, stage, 50)
        assert ran.losses == whole.losses
        same_state(ran.state, whole.state)
        if stage > 1:
            units = [
                len(part) - len(own) for part, own in zip(ran.model.slices.units, ran.model.slices.own, strict=True)
            ]
            again = sum(units[unit.index] for unit in ran.model.units if unit.owner in TWICE.get(kind, ()))
            assert set(np.diff([0, *ran.nbytes])) == {4 * (stage * sum(units) + (stage == 3) * again)}
        ran.model.close()


@pytest.mark.ranks(3, timeout=240)
def test_ranks_without_samples_take_part(comm):
    for kind in cases.KINDS:
        whole = cases.run(comm, kind, 0, 9, uneven=2, empty=True)
        for stage in (2, 3):
            ran = cases.run(comm, kind, stage, 9, uneven=2, empty=True)
            assert ran.losses == whole.losses
            same_state(ran.state, whole.state)
            ran.model.close()


@pytest.mark.ranks(2, timeout=240)
def test_accumulated_steps_units_by_name_and_few_bits(comm):
    def mixed():
        module = cases.made("encoder", comm.rank)
        return module.to(torch.bfloat16)

    units = {"units": ["layers.layers.*.self_attn", "embed", "layers.layers.*.linear?"]}
    for options, sharding, make in (
        ({"accumulate": 3}, {"accumulate": 3}, lambda: None),
        ({}, units, lambda: None),
        ({"rule": "momentum", "weight_decay": 0.01}, {}, mixed),
    ):
        whole = cases.run(comm, "encoder", 0, 8, uneven=1, module=make(), **options)
        for stage in (2, 3):
            ran = cases.run(comm, "encoder", stage, 8, uneven=1, module=make(), sharding=sharding, **options)
            assert ran.losses == whole.losses
            same_state(ran.state, whole.state)
            ran.model.close()


@pytest.mark.ranks(3, timeout=120)
def test_a_rank_keeps_its_part_of_everything(comm):
    module = nn.Sequential(*(nn.Linear(40, 40) for _ in range(6)))
    model = psgd.torch.shard(module, comm, stage=3)
    size, unit = model.layout.size, len(model.units[0].part)
    with psgd.connect(comm, model, strategy="allreduce", rule="adam", lr=0.01) as ps:
        for _ in range(3):
            ps.overlap(2)
            module(torch.randn(2, 40)).sum().backward()
            ps.step(2)
        state = ps._client._optimizer.state
        vectors = [ps.params, ps.grads, *state]
        assert [len(each) for each in vectors] == [model.slices.size] * 4
        assert abs(model.slices.size - size / 3) <= len(model.units)
        gc.collect()
        assert sum(p.untyped_storage().nbytes() for p in module.parameters()) == 4 * len(list(module.parameters()))
        assert all(p.grad is None for p in module.parameters())
    assert model.buffer_bytes == 4 * 4 * unit, "two units' parameters and gradients"
    assert model.most_elements == (1 + model.sharding.overlaps) * unit, "the next one comes while one is used"
    model.close()


@pytest.mark.ranks(2, timeout=120)
def test_states_evaluation_and_what_is_no_forward_pass(comm):
    for stage in (1, 2, 3):
        module = cases.made("resnet", comm.rank)
        first, other = cases.made("resnet", 0), cases.made("resnet", 7)
        with psgd.torch.shard(module, comm, stage=stage) as model:
            x = cases.batch("resnet", comm.rank, 0)[0]
            with psgd.connect(comm, model, strategy="allreduce", lr=0.0):
                module.eval()
                with torch.no_grad():
                    assert torch.equal(module(x), first.eval()(x))
            state = model.state_dict()
            assert (state == {}) == (comm.rank > 0)
            if comm.rank == 0:
                same_state(state, first.state_dict())
            model.load_state_dict(other.state_dict() if stage == 1 or comm.rank == 0 else None)
            same_state(model.state_dict(None), other.state_dict())
            with model.gathered() as whole:
                for p, q in zip(whole.parameters(), other.parameters(), strict=True):
                    assert torch.equal(p, q)
            if stage == 3:
                refused = "the module is sharded, and this rank has a part of it"
                with pytest.raises(UsageError, match=refused):
                    module.state_dict()
                with pytest.raises(UsageError, match=refused):
                    module.load_state_dict({})
                wrong = other.state_dict() | {"stem.bias": torch.zeros(4)}
                with pytest.raises(UsageError, match=r"stem.bias: expected shape \(3,\), got \(4,\)"):
                    model.load_state_dict(wrong if comm.rank == 0 else None)


class Crossed(nn.Module):
    def __init__(self, order):
        super().__init__()
        self.order, self.parts = order, nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x):
        for index in self.order:
            x = self.parts[index](x)
        return x


@pytest.mark.ranks(2, timeout=120)
def test_wrong_use_is_told_on_all_ranks(comm):
    def trained(module, wrong, message, **options):
        model = psgd.torch.shard(module, comm, **options)
        with (
            pytest.raises(UsageError, match=message),
            psgd.connect(comm, model, strategy="allreduce", lr=0.1) as ps,
        ):
            wrong(ps, module, torch.randn(2, 3))

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

    def nothing_first(ps, module, x):
        ps.step(0)

    for stage in (2, 3):
        trained(Crossed([0, 1]), without_overlap, r"expected ps.overlap\(samples\) before backward", stage=stage)
        trained(Crossed([0, 1]), without_backward, r"expected ps.overlap\(samples\) before the backward", stage=stage)
        trained(Crossed([0, 1]), twice, "got a second", stage=stage)
        trained(Crossed([0, 1]), replaced, "parts.0.weight was replaced", stage=stage)
        trained(Crossed([0, 1]), nothing_first, "expected samples on each rank in its first step", stage=stage)
    trained(Crossed([[0, 1], [1, 0]][comm.rank]), right, "in different orders")
    for options, message in (
        ({"stage": 4}, "expected 1, 2 or 3, got 4"),
        ({"accumulate": 0}, "accumulate: expected a whole number"),
        ({"units": ["nowhere"]}, "'nowhere', which matches none"),
        ({"seed": comm.rank}, "seed"),
    ):
        with pytest.raises(UsageError, match=message):
            psgd.torch.shard(Crossed([0]), comm, **options)
    with pytest.raises(UsageError, match="strategy allreduce"):
        psgd.connect(comm, psgd.torch.shard(Crossed([0]), comm), strategy="sync")


@pytest.mark.ranks(1, 2, timeout=120)
def test_first_values_of_a_module_on_the_meta_device(comm):
    states = []
    for stage in (1, 2, 3):
        with torch.device("meta"):
            module = cases.made("encoder")
            module.layers.layers[1] = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(6))
        before = torch.random.get_rng_state()
        model = psgd.torch.shard(module, comm, stage=stage, init=cases.values, seed=5)
        assert torch.equal(before, torch.random.get_rng_state())
        states.append(model.state_dict(None))
        assert module.head.weight is module.embed.weight
        model.close()
    same_state(states[1], states[0])
    same_state(states[2], states[0])
    assert all(value.isfinite().all() for value in states[0].values())
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model = psgd.torch.shard(module, comm, seed=1)
    assert model.state_dict(None)["1.running_var"].eq(1).all()
    weight = model.state_dict(None)["0.weight"]
    assert 0 < weight.abs().max() <= 3**-0.5
    model.close()
