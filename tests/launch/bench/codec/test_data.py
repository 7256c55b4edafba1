import numpy as np

from psgd.launch.bench.codec import data


def test_random_updates_have_so_many_large_values():
    for update in (updates := data.random(10_000, 0.02, 3)):
        assert update.dtype == np.float32 and np.count_nonzero(np.abs(update) == 1) in range(190, 201)
        assert np.abs(update[np.abs(update) != 1]).max() < 0.01
    assert len({update.tobytes() for update in updates}) == data.UPDATES
    assert np.array_equal(data.random(100, 0.1, 1)[0], data.random(100, 0.1, 1)[0])


def test_recorded_updates_are_steps_of_a_training():
    updates = data.recorded(20_000)
    assert len(updates) == data.UPDATES and all(abs(each.size - 20_000) < 400 for each in updates)
    assert all(np.isfinite(each).all() and each.any() for each in updates)
    assert not np.array_equal(*updates[:2])
