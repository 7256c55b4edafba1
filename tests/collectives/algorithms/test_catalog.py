"""The catalog of algorithms: entries lead to functions, the documentation has them all, and a new one is one file."""

import contextlib
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import ROOT
from harness.oracle import SHARED, VERBS, check, communicator, same_error
from mpi4py import MPI

from psgd.collectives.algorithms import catalog
from psgd.collectives.dispatch import dispatch
from psgd.kernels.errors import ContractError, UsageError


@pytest.mark.parametrize("name", catalog.ALGORITHMS)
def test_every_entry_leads_to_a_function(name):
    entry = catalog.ALGORITHMS[name]
    assert entry.verbs and set(entry.verbs) <= set(VERBS)
    for verb in entry.verbs:
        function, wanted = catalog.load(name, verb)
        assert function.__module__ == entry.module and set(wanted) <= set(dispatch._ARGUMENTS)
    assert catalog.name_of(catalog.number(name)) == name


def test_names_by_verb_and_need():
    assert catalog.names("Bcast", catalog.NODE) == list(SHARED)
    assert catalog.names("Bcast") == [*SHARED, "binomial", "chain", "native"]
    assert catalog.names("Barrier") == [] and catalog.name_of(0) == catalog.name_of(99) == "?"


def test_the_documentation_has_every_entry():
    text = (ROOT / "docs/collectives.md").read_text()
    for name, entry in catalog.ALGORITHMS.items():
        assert f"| `{name}` | {entry.use} | {entry.needs} | {entry.how} |" in text, name


def test_it_is_light():
    code = (
        "import sys; from psgd.collectives.algorithms import catalog; "
        "assert not {'numpy', 'mpi4py.MPI', 'numba', 'psgd.collectives.algorithms.ring'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


STAR = '''
"""All-reduce through rank 0, which combines in rank order: 2 (P - 1) messages of S bytes."""

import numpy as np


def allreduce(channel, send, recv, op):
    if channel.rank:
        yield channel.send(0, send)
        yield channel.receive(0, recv)
        return
    if recv is not send:
        recv[:] = send
    theirs = np.empty_like(recv)
    for rank in range(1, channel.size):
        yield channel.receive(rank, theirs)
        op.combine(recv, recv, theirs)
    op.finish(recv, channel.size)
    for rank in range(1, channel.size):
        yield channel.send(rank, recv)
'''


@contextlib.contextmanager
def star():
    """A catalog with one more algorithm: a file and an entry."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "psgd_test_star.py").write_text(STAR)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        functions = {"Allreduce": "allreduce"}
        catalog.ALGORITHMS["star"] = catalog.Algorithm("psgd_test_star", functions, catalog.MESSAGES, "tests", "a star")
        try:
            yield
        finally:
            del catalog.ALGORITHMS["star"]
            sys.path.remove(folder)


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("shared", ["0", "1"])
def test_a_new_algorithm_is_one_file_and_one_entry(comm, shared):
    with star(), communicator(comm, PSGD_SHARED=shared) as c:
        for n in (0, 1, comm.size + 1, 1023):
            for op in ("SUM", "mean", "MIN"):
                check(c, "Allreduce", n, "float32", op, algorithm="star")
                assert c.last == ("star", "messages")
        values = np.full(100, comm.rank + 1.0)
        c.Iallreduce(MPI.IN_PLACE, values, algorithm="star").Wait()
        assert (values == comm.size * (comm.size + 1) / 2).all()


@pytest.mark.ranks(2, 3)
def test_a_new_algorithm_has_the_errors_of_the_others(comm):
    values = np.ones(100)
    with star(), communicator(comm) as c:
        wrong = ("expected one of ", "native, star, got 'start'")
        same_error(comm, lambda: c.Allreduce(MPI.IN_PLACE, values, algorithm="start"), UsageError, *wrong)
        asked = "star" if comm.rank else "ring"
        words = ("algorithm star", "algorithm ring")
        same_error(comm, lambda: c.Allreduce(MPI.IN_PLACE, values, algorithm=asked), ContractError, *words)
        same_error(
            comm,
            lambda: c.Bcast(values, algorithm="star"),
            UsageError,
            "got 'star', which does not support this collective",
        )
