"""Whether the MPI has ULFM, and whether a job was started with it."""

from harness import mpi

from psgd.runtime.ulfm import switch


def test_a_job_says_whether_it_has_it(job):
    code = (
        "from psgd.runtime.ulfm import switch\n"
        "from mpi4py import MPI\n"
        "print(switch.built_in(), switch.enabled(), MPI.get_vendor()[0])"
    )
    plain = job(2, code, check=True).stdout.split()
    assert plain[:2] == [str(mpi.is_open_mpi()), "False"]
    if mpi.is_open_mpi():
        assert job(2, code, ulfm=True, check=True).stdout.split()[:2] == ["True", "True"]


def test_the_environment_tells():
    assert switch.enabled({switch.VARIABLE: "1"}) and switch.enabled({switch.VARIABLE: "True"})
    assert not switch.enabled({switch.VARIABLE: "0"}) and not switch.enabled({})
