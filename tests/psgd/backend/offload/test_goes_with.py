"""What goes together with `--offload`."""

import pytest

from psgd.backend.offload import goes_with
from psgd.kernels.errors import UsageError
from psgd.strategies.requirements import LIBRARY


def values(**changed):
    return {"offload": None, "offload_staleness": 0, "device": "cpu", "mesh": None, "shard": None} | changed


def test_what_goes_together():
    for what in ("optimizer", "parameters"):
        goes_with.check(values(offload=what, device="cuda"), LIBRARY)
    goes_with.check(values(), LIBRARY)
    goes_with.check(values(offload="optimizer", offload_staleness=1, device="cuda"), LIBRARY)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"offload": "parameters"},
            "offload: expected device=cuda with it: workers on cores have everything on the host",
        ),
        ({"offload": "optimizer", "device": "cuda", "shard": 3}, "offload: not with shard; omit one of them"),
        ({"offload": "optimizer", "device": "cuda", "mesh": "pipe=2"}, "offload: not with mesh; omit one of them"),
        (
            {"offload_staleness": 1, "device": "cuda"},
            "offload_staleness: expected offload=optimizer with it",
        ),
        (
            {"offload_staleness": 1, "device": "cuda", "offload": "parameters"},
            "offload_staleness: expected offload=optimizer with it, got parameters: layers that stream in are the "
            "newest",
        ),
    ],
)
def test_refusals(changed, message):
    with pytest.raises(UsageError) as caught:
        goes_with.check(values(**changed), LIBRARY)
    assert str(caught.value) == message
