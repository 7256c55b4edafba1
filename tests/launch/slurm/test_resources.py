import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.resources import Resources, resources
from psgd.launch.slurm.templates import Template

ONE_NODE = Template("", workers=8, always=(), example=())
TWO_A_NODE = Template("", workers=4, always=(), example=(), per_node=2)
NOTHING = {"servers": None, "workers": None, "nodes": None, "gpus_per_node": 0, "serverless": False}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (ONE_NODE, {}, Resources(1, 1, 9, 9)),
        (ONE_NODE, {"serverless": True}, Resources(0, 1, 8, 8)),
        (ONE_NODE, {"servers": 2, "nodes": 3}, Resources(2, 3, 10, 4)),
        (ONE_NODE, {"nodes": 3, "gpus_per_node": 4}, Resources(1, 3, 13, 5)),
        (TWO_A_NODE, {}, Resources(1, 2, 5, 3)),
        (TWO_A_NODE, {"workers": 5}, Resources(1, 3, 6, 2)),
        (TWO_A_NODE, {"nodes": 4, "serverless": True}, Resources(0, 4, 8, 2)),
        (ONE_NODE, {"servers": 0, "workers": 1}, Resources(0, 1, 1, 1)),
        (TWO_A_NODE, {"idle": 3}, Resources(1, 4, 8, 2)),
    ],
)
def test_what_is_not_given_follows(kind, given, expected):
    assert resources(kind, **(NOTHING | given)) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "--workers 0: expected at least 1"),
        ({"gpus_per_node": -1}, "--gpus-per-node -1: expected at least 0"),
        ({"servers": 1, "serverless": True}, "--servers 1: the strategy has no servers"),
        ({"servers": 0}, "--servers 0: expected --workers 1 with it, got 8"),
        ({"nodes": 10}, "--nodes 10: expected at most one per rank, got 9 ranks"),
        ({"nodes": 1, "workers": 3, "gpus_per_node": 2}, "--workers 3: expected at most one per GPU"),
    ],
)
def test_what_does_not_go_together_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        resources(ONE_NODE, **(NOTHING | given))
