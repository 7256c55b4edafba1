"""What a step has changed is put back, once, and only where it was not to stay."""

import numpy as np

from psgd.compression.rollback import Rollback


def test_what_was_kept_is_put_back_in_place():
    residual, tau = np.arange(3.0), np.array([5], np.int64)
    before = Rollback([residual, tau])
    before.put_back()
    assert residual.tolist() == [0, 1, 2]
    before.keep()
    residual += 1
    tau[0] = 7
    before.put_back()
    assert residual.tolist() == [0, 1, 2] and tau.tolist() == [5]
    residual += 1
    before.put_back()
    assert residual.tolist() == [1, 2, 3]
    before.keep()
    residual += 1
    before.release()
    before.put_back()
    assert residual.tolist() == [2, 3, 4]
