"""How it is decided whether MPI takes device pointers, without giving it any."""

import json
from pathlib import Path

import pytest

from psgd.collectives.device import detect, probe
from psgd.kernels.errors import UsageError

UCX = Path("/opt/ucx/lib/libucp.so.0")


@pytest.fixture
def unset(monkeypatch):
    """No variable of this machine's has a say, and this process has loaded no library that does."""
    for name in ("PSGD_CUDA_AWARE", "MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA", "MVP_USE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(detect, "loaded", lambda: [])
    return monkeypatch


def never():
    raise AssertionError("tried although it was known")


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_variable_decides_first(unset, value):
    unset.setenv("PSGD_CUDA_AWARE", value)
    assert detect.decide(never) == (value == "1", f"PSGD_CUDA_AWARE={value}")


def test_the_variable_must_mean_something(unset):
    unset.setenv("PSGD_CUDA_AWARE", "yes")
    with pytest.raises(UsageError, match="PSGD_CUDA_AWARE: expected 0 or 1, got 'yes'"):
        detect.decide(never)


def test_without_ucx_an_mpi_that_does_not_say_so_is_not(unset):
    verdict, why = detect.decide(never)
    assert not verdict and "UCX is not loaded" in why


@pytest.mark.parametrize(
    ("parts", "loads", "verdict", "word"),
    [
        (False, False, False, "neither has UCX"),
        (True, False, False, "--mca pml ucx"),
        (True, True, True, "a trial"),
    ],
)
def test_ucx_with_its_cuda_parts_in_use_is_tried(unset, tmp_path, parts, loads, verdict, word):
    ucx = tmp_path / "libucp.so.0"
    cuda = tmp_path / "ucx" / "libuct_cuda.so.0"
    if parts:
        cuda.parent.mkdir()
        cuda.touch()
    unset.setattr(detect, "loaded", lambda: [ucx, *([cuda] if loads else [])])
    went, why = detect.decide(lambda: (True, "a trial went well"))
    assert went == verdict and word in why


def test_what_a_trial_showed_is_kept(unset, tmp_path):
    unset.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []
    unset.setattr(probe, "run", lambda: runs.append(1) or (True, "it went well"))
    assert detect._tried(UCX) == detect._tried(UCX) == (True, "it went well")
    assert len(runs) == 1
    (kept,) = (tmp_path / "psgd").iterdir()
    for damaged in ("", "{", "[]", json.dumps({"aware": True})):
        kept.write_text(damaged)
        assert detect._tried(UCX) == (True, "it went well")
    assert len(runs) == 5
    unset.setenv("UCX_TLS", "tcp")  # another setting is another trial
    detect._tried(UCX)
    assert len(runs) == 6


def test_a_trial_that_crashes_harms_nobody(unset):
    """There is no GPU here, or an MPI that takes no device pointers: the ranks of the trial end with an error."""
    went, why = probe.run()
    assert isinstance(went, bool) and "trial" in why


@pytest.mark.ranks(2)
def test_all_ranks_agree(comm):
    import os

    from psgd.collectives.device.detect import cuda_aware

    before = os.environ.pop("PSGD_CUDA_AWARE", None)
    if comm.rank == 0:
        os.environ["PSGD_CUDA_AWARE"] = "1"
    try:
        assert cuda_aware(comm) == (True, "PSGD_CUDA_AWARE=1")
        os.environ["PSGD_CUDA_AWARE"] = "perhaps" if comm.rank == 0 else "1"
        with pytest.raises(UsageError, match="expected 0 or 1"):
            cuda_aware(comm)
    finally:
        os.environ.pop("PSGD_CUDA_AWARE")
        if before is not None:
            os.environ["PSGD_CUDA_AWARE"] = before
