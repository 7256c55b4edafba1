"""How the trial with device pointers is judged, with a stand-in for mpiexec."""

import sys

import pytest

from psgd.collectives.device import probe


@pytest.fixture
def mpiexec(monkeypatch, tmp_path):
    """Sets what the only mpiexec there does."""

    def made(text):
        program = tmp_path / "mpiexec"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return program

    return made


def test_both_ranks_must_be_right(mpiexec):
    mpiexec('[ "$1 $2" = "-n 2" ] && echo right && echo right')
    assert probe.run() == (True, "a trial with device pointers succeeded")
    mpiexec("echo right")
    assert probe.run() == (False, "a trial with device pointers ended with exit code 0")
    mpiexec("echo right; echo right; exit 11")
    assert probe.run() == (False, "a trial with device pointers ended with exit code 11")


def test_one_that_hangs_is_no_success(mpiexec, monkeypatch):
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.2)
    mpiexec("exec sleep 30")
    assert probe.run() == (False, "a trial with device pointers failed: TimeoutExpired")


def test_a_rank_of_this_job_is_none_of_the_trial(mpiexec, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "1")
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    mpiexec('[ -z "$PMIX_RANK" ] && [ "$OMPI_MCA_pml" = ucx ] && echo right && echo right')
    assert probe.run()[0]


def test_without_mpiexec_it_says_how_to_decide(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(probe.shutil, "which", lambda name: None)
    fine, why = probe.run()
    assert not fine and "no mpiexec" in why and "PSGD_CUDA_AWARE=1" in why


def test_settings_are_those_that_matter_in_order(monkeypatch):
    for name in list(probe.os.environ):
        if name.startswith(("OMPI_", "UCX_", "LD_LIBRARY", "CUDA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("UCX_TLS", "sm,cuda")
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert probe.settings() == ["OMPI_MCA_pml=ucx", "UCX_TLS=sm,cuda"]
