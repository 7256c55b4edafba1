"""The walks in docs/design.md, function by function, against traces of real calls."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from harness import ROOT

Trace = list[tuple[str, str]]


def tables(heading):
    """The tables of a section, each a list of (file, function)."""
    section = re.split(r"^## ", (ROOT / "docs/design.md").read_text(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(heading))
    found = [[]]
    for line in text.splitlines():
        if row := re.match(r"\| `([\w.]+)` \| `([\w./]+)` \|", line):
            found[-1].append((row[2], row[1]))
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


class Tracer:
    """Notes each call of a Python function of this checkout, or of the package where it is installed."""

    def __init__(self):
        import psgd

        self.calls: Trace = []
        self.before = None
        nested = importlib.util.find_spec("psgd.collectives").origin.startswith(f"{psgd.__path__[0]}/")
        self.roots = {psgd.__path__[0]: "psgd"}
        if not nested:
            self.roots = {str(ROOT / folder): folder for folder in ("psgd", "collectives", "kernels")}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event == "call":
            for root, folder in self.roots.items():
                if code.co_filename.startswith(f"{root}/"):
                    inner = code.co_filename[len(root) + 1 :]
                    inner = inner if re.match(r"(collectives|kernels)/", inner) else f"{folder}/{inner}"
                    self.calls.append((inner, getattr(code, "co_qualname", code.co_name)))

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self)
        return self.calls

    def __exit__(self, *error):
        sys.setprofile(self.before)


def follows(walk, calls):
    """The first function of the walk that the calls do not have in its place, or None."""
    calls = iter(calls)
    for file, name in walk:
        short = name.rpartition(".")[2]  # all that Python 3.10 knows
        if not any(each == file and (f".{called}".endswith(f".{name}") or called == short) for each, called in calls):
            return file, name
    return None


@pytest.mark.ranks(3)
def test_one_gradient(comm):
    import psgd

    worker, server = tables("The path of one gradient")
    params, trace = np.zeros(100_000, np.float32), Tracer()
    if comm.rank == 0:  # it serves in here
        trace.__enter__()
    try:
        with psgd.connect(comm, params, strategy="sync") as ps:
            for step in range(4):
                ps.grads[:] = 1
                if step == 2:
                    trace.__enter__()
                ps.step()
                trace.__exit__()
    finally:
        trace.__exit__()
    if comm.rank:
        assert follows(worker, trace.calls) is None
        return
    # One look at MPI may find several headers, so a walk begins at some `next` and ends before the second step from it.
    execute, missing = ("psgd/server/server.py", "Server._execute"), []
    for start in (at for at, call in enumerate(trace.calls) if call == server[0]):
        steps = [at for at in range(start, len(trace.calls)) if trace.calls[at] == execute]
        missing.append(follows(server, trace.calls[start : steps[1] if steps[1:] else None]))
    assert missing.count(None) >= 4, missing


@pytest.mark.ranks(2)
def test_one_allreduce(comm):
    from psgd import collectives

    fast, general = tables("The path of one Allreduce")
    with collectives.Communicator(comm) as ours:
        for walk, size, options in ((fast, 1000, {}), (general, 500_000, {"algorithm": "ring"})):
            array = np.ones(size, np.float32)
            ours.Allreduce(array.copy(), array, **options)
            with Tracer() as calls:
                ours.Allreduce(array.copy(), array, **options)
            assert follows(walk, calls) is None
            assert len(set(calls)) >= len(walk)


def test_a_missing_function_is_found():
    calls = [("a.py", "f"), ("b.py", "C.g"), ("a.py", "h")]
    assert follows([("a.py", "f"), ("b.py", "C.g"), ("a.py", "h")], calls) is None
    assert follows([("b.py", "C.g"), ("a.py", "f")], calls) == ("a.py", "f")
    assert follows([("b.py", "D.g")], calls) == ("b.py", "D.g")
