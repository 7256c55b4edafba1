"""Buffers by turns."""

import numpy as np

from psgd.nn.buffers.pooled import PooledArrays


def test_two_users_get_the_same_buffers_and_one_user_none_twice():
    pool = {}
    one, other = PooledArrays(np, pool), PooledArrays(np, pool)
    a, b, c = one.empty((2, 3), np.float32), one.empty((2, 3), np.float32), one.empty((3, 2), np.float32)
    assert not np.shares_memory(a, b) and not np.shares_memory(a, c)
    assert other.empty((2, 3), np.float32) is a and other.empty((2, 3), np.float32) is b
    assert not np.shares_memory(other.empty((2, 3), np.float64), a)


def test_ones_stay_ones_and_zeros_are_not_shared():
    pool = {}
    one, other = PooledArrays(np, pool), PooledArrays(np, pool)
    one.empty(4, np.float32).fill(7)
    assert (one.ones(4, np.float32) == 1).all() and other.ones(4, np.float32) is pool[("ones", (4,), "<f4")][0]
    assert not np.shares_memory(one.zeros(4), other.zeros(4))
    assert one.float32 is np.float32


def test_what_is_apart_is_made_anew():
    pool = {}
    one, other = PooledArrays(np, pool), PooledArrays(PooledArrays(np, {}), pool)
    assert one.empty(3) is other.empty(3)
    assert one.apart is other.apart is np
