"""Runs test bodies on real MPI ranks, and whole MPI jobs, from a pytest process that is no rank itself.

How to use it:

    @pytest.mark.ranks(1, 3)                     # once on 1 rank, once on 3; timeout=60 is the default, in s
    @pytest.mark.parametrize("n", [0, 7])        # parameters must be JSON
    def test_sum(comm, n, tmp_path): ...         # tmp_path is the same on all ranks

    def test_death(job):                         # a job of its own, for what kills or aborts
        result = job(3, "from mpi4py import MPI; ...", timeout=20, ulfm=True)

    def test_help(psgd_command):                 # the command, alone or with n=3 under mpiexec
        assert psgd_command("--help").returncode == 0

The ranks of all `ranks` tests are one pool (PSGD_TEST_RANKS, 5), started on first need. A body is run
without pytest around it on the ranks: of the fixtures only tmp_path reaches it.
"""

from pathlib import Path

HARNESS = Path(__file__).resolve().parent
ROOT = HARNESS.parents[2]
