"""What does not go together with sharding, in the words of the library."""

from pathlib import Path

import pytest

from psgd.kernels.errors import UsageError
from psgd.strategies.on_shards import check


@pytest.mark.parametrize(
    ("name", "values", "sizes", "message"),
    [
        ("sync", {"shard": 1}, {}, "shard: expected strategy=allreduce with it, got sync"),
        ("allreduce", {"shard": 1, "workers": 1}, {}, "shard: a single worker has nobody to share with"),
        ("allreduce", {"shard": 2, "compress": "topk"}, {}, "compress: not with shard: gradients are sent whole"),
        ("allreduce", {"shard": 3}, {"pipe": 2, "data": 1}, "shard: a single worker has nobody to share with"),
        ("allreduce", {"shard": 3, "pipe_schedule": "pipedream"}, {"pipe": 2}, "pipe_schedule: not with shard"),
    ],
)
def test_refused(name, values, sizes, message):
    with pytest.raises(UsageError, match=message):
        check(name, values, sizes)


@pytest.mark.parametrize(
    ("name", "values", "sizes"),
    [
        ("sync", {"shard": None, "compress": "topk"}, {}),
        ("allreduce", {"shard": 1, "on_nan": "skip", "save": Path("w.pt")}, {"pipe": 2, "data": 2}),
        ("allreduce", {"shard": 3, "on_nan": "skip", "workers": 2, "save": Path("w.pt")}, {"tensor": 2, "data": 2}),
        ("allreduce", {"shard": 2, "device": "cuda"}, {"tensor": 2, "data": 2}),
    ],
)
def test_allowed(name, values, sizes):
    check(name, values, sizes)
