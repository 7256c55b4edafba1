"""What `psgd bench ddp` verifies."""

import pytest
from harness.ddp import process_group

from psgd import collectives
from psgd.kernels.errors import Error

torch = pytest.importorskip("torch")


@pytest.mark.ranks(2, timeout=180)
def test_wrong_gradients_are_found(comm, tmp_path):
    from psgd.launch.bench.ddp import ranks

    def keeps(state, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    with process_group(comm, tmp_path), collectives.Communicator(comm) as ours, pytest.MonkeyPatch.context() as patch:
        steps = ranks._of_buckets(ours, 4096, 2)
        assert set(steps) == {ranks.GLOO, ranks.HOOK, ranks.ALONE}
        found = ranks._timed(comm, steps, 3)
        assert found["hook_seconds"] > 0 and found["psgd_seconds"] is None
        patch.setattr("psgd.torch.hooks.allreduce_hook", keeps)
        with pytest.raises(Error, match="hook: gradients of 4096 bytes are not the mean"):
            ranks._of_buckets(ours, 4096, 2)


@pytest.mark.ranks(2)
def test_other_losses_are_found(comm):
    from psgd.launch.bench.ddp import ranks

    ranks._compare(comm, {"gloo": lambda: 1.0, "hook": lambda: 1.0, "psgd": lambda: 1.0})
    with pytest.raises(Error, match=r"psgd: losses are up to 1.2e-07 from those of DDP over Gloo"):
        ranks._compare(comm, {"gloo": lambda: 1.0, "hook": lambda: 1.0, "psgd": lambda: 1.0 + 1.2e-7 * comm.rank})
