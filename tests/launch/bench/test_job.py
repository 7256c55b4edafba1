"""A benchmark's ranks: started here, or found."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch import ranks, spawn
from psgd.launch.bench import job
from psgd.launch.output import exit_status


def test_where_there_is_no_job_ranks_are_started(monkeypatch):
    seen = []
    monkeypatch.setattr(ranks, "place", lambda: None)
    monkeypatch.setattr(
        spawn, "run", lambda _, count, words, bind, survives: seen.append((count, words, survives)) or 5
    )
    assert job.run("x", 3, lambda first: pytest.fail("no rank"), mpiexec_args="-v") == 5
    assert job.run("x", 2, lambda first: pytest.fail("no rank"), survives=True) == 5
    assert seen == [(3, "-v", False), (2, "", True)]


@pytest.mark.parametrize(("rank", "reports", "code"), [(0, True, 0), (0, False, 4), (1, True, 4)])
def test_a_rank_runs_its_part(monkeypatch, rank, reports, code):
    monkeypatch.setattr(ranks, "place", lambda: (rank, 2))
    monkeypatch.setattr(exit_status, "report", lambda given: reports and given == 4)
    firsts = []
    assert job.run("x", 2, lambda first: firsts.append(first) or 4) == code
    assert firsts == [rank == 0]


def test_another_number_of_ranks(monkeypatch):
    monkeypatch.setattr(ranks, "place", lambda: (0, 5))
    with pytest.raises(UsageError, match=r"bench x: expected a job of 2 ranks \(servers \+ workers\), got 5; use -n 2"):
        job.run("x", 2, lambda first: None)
    assert job.run("x", 2, lambda first: None, fixed=False) == 0
