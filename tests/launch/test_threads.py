import pytest

from psgd.launch import threads


@pytest.mark.parametrize(
    ("given", "others"),
    [
        ({}, "1"),
        ({"OMP_NUM_THREADS": "4"}, "4"),
        ({"OMP_NUM_THREADS": "3,2"}, "3"),
        ({"OMP_NUM_THREADS": "0"}, "1"),
    ],
)
def test_one_thread_unless_told(given, others):
    env = {**given, "MKL_NUM_THREADS": "7"}
    threads.limit(env)
    assert env == {
        "OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": others,
        "MKL_NUM_THREADS": "7",
        "NUMBA_NUM_THREADS": others,
    }
