"""No garbage is collected inside, and all is as before behind it."""

import gc
import weakref

import pytest

from psgd.kernels.memory.gc_paused import gc_paused


class Knot:
    def __init__(self):
        self.itself = self


def make_garbage():
    """A cycle that only the collector finds, and much more, so that it has reason to look for it."""
    knot = weakref.ref(Knot())
    kept = [[] for _ in range(100_000)]
    assert len(kept) == 100_000
    return knot() is not None


def test_garbage_is_left_until_it_is_over():
    assert not make_garbage()
    with gc_paused():
        assert make_garbage() and not gc.isenabled()
    assert gc.isenabled() and not make_garbage()


def test_it_stays_off_where_it_was_off_and_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), gc_paused():
        raise ZeroDivisionError
    assert gc.isenabled()
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
