"""Runs of sharded modules on ranks: the bits of all-reduce, the bytes and the memory by formula."""

import gc

import numpy as np
import pytest

import psgd
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

nn = torch.nn
TWICE = {"encoder": ["layers.layers.0"]}
"""Blocks that run twice forward, and are gathered twice there."""


def stage_vectors(stage):
    """How many times the whole vector travels in a step, of which each of N ranks moves (N - 1)/N."""
    return (2, 2, 3)[stage - 1]


@pytest.mark.ranks(2, 3, timeout=240)
@pytest.mark.parametrize("kind", cases.KINDS)
def test_losses_and_weights_are_those_of_allreduce_and_bytes_those_of_the_formula(comm, kind):
    whole = cases.run(comm, kind, 0, 50, clip_norm=0.5)
    for stage in (1, 2, 3):
        ran = cases.run(comm, kind, stage, 50, clip_norm=0.5)
        assert ran.losses == whole.losses
        cases.same_state(ran.state, whole.state)
        each = np.diff([0, *(comm.allreduce(n) for n in ran.nbytes)])
        if stage < 3 or kind not in TWICE:
            assert set(each) == {4 * stage_vectors(stage) * (comm.size - 1) * ran.model.layout.size}
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
            cases.same_state(ran.state, whole.state)
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
            if "accumulate" in options:  # each step is reduced by itself
                none = cases.batch("encoder", 0, 1)
                none = none[0][:0], none[1][:0]
                batches = [[cases.batch("encoder", r, s) if s < 8 + r else none for s in range(9)] for r in range(2)]
                adam = OptimizerOptions(rules.create("adam", 0.9, 0.0), constant(0.01))
                one = cases.step_by_step(cases.made("encoder", 0), batches, 3, cases.loss_of, adam)
                cases.same_state(ran.state, one)
                ran.model.close()
                continue
            assert ran.losses == whole.losses
            cases.same_state(ran.state, whole.state)
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


@pytest.mark.ranks(3, timeout=240)
def test_a_checkpoint_is_resumed_in_every_stage_by_other_numbers_of_ranks(comm, tmp_path):
    folder = comm.bcast(str(tmp_path))
    for kind, dtype in (("resnet", torch.float32), ("encoder", torch.bfloat16)):

        def run(ranks, stage, steps, where, kind=kind, dtype=dtype, **options):
            module = cases.made(kind, ranks.rank).to(dtype)
            where = {"checkpoint_dir": f"{folder}/{kind}{where}"}
            ran = cases.run(ranks, kind, stage, steps, module=module, clip_norm=0.5, **where, **options)
            if stage:
                ran.model.close()
            return ran

        for stage in (0, 2, 3):
            run(comm, stage, 3, stage, checkpoint_every=3)
        for count in (3, 2, 1):
            part = comm.Split(comm.rank < count)
            if comm.rank < count:
                whole = run(part, 0, 6, 0, resume=True)
                assert len(whole.losses) == (3 if count == 3 else 6), "others count steps anew"
                for before, stage in ((0, 3), (3, 0), (2, 3), (3, 2), (3, 1)):
                    ran = run(part, stage, 6, before, resume=True)
                    assert ran.losses == whole.losses, (before, stage)
                    cases.same_state(ran.state, whole.state)
            part.Free()
