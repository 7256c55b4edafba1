"""What goes together with `--offload`."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.strategies import on_offload


def values(**changed):
    return {"offload": None, "offload_staleness": 0, "device": "cpu"} | changed


def test_what_goes_together():
    for what in ("optimizer", "parameters"):
        on_offload.check(values(offload=what, device="cuda"))
    on_offload.check(values())
    on_offload.check(values(offload="optimizer", offload_staleness=1, device="cuda"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"offload": "parameters"},
            "offload: expected device=cuda with it: workers on cores have everything on the host",
        ),
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
        on_offload.check(values(**changed))
    assert str(caught.value) == message
