"""Datasets, normalization and sharding.

`load` reads or maps a dataset and checks its structure; it needs NumPy only, neither MPI nor Numba. The
values are checked and measured by `psgd.data.normalization`, the order of an epoch comes from
`psgd.data.sampler`, the batches from `psgd.data.batches`. Begin with `dataset.py`.
"""

from psgd.data.dataset import Dataset, Split
from psgd.data.sources import load

__all__ = ["Dataset", "Split", "load"]
