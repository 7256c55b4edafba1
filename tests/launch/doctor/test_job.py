"""What the doctor concludes of the hosts of a job."""

from psgd.launch.doctor import job
from psgd.launch.doctor.check import Check
from psgd.launch.doctor.pairs import Pair

HOSTS = ["a", "b", "c", "d", "e"]


def network(slow_hosts=(), slow_pairs=()):
    found = []
    for a in range(5):
        for b in range(a + 1, 5):
            slow = {HOSTS[a], HOSTS[b]} & set(slow_hosts) or (a, b) in slow_pairs
            found.append(Pair(a, b, 20e-6 + 1e-7 * (a + b), 1e7 if slow else 1.1e8 + 1e5 * a))
    return found


def test_a_slow_host():
    found = job.links("links between nodes", network(slow_hosts="c"), HOSTS)
    assert [check.name for check in found] == ["links between nodes", "slow host"]
    assert found[0].value == "20.1 to 20.7 us, 10 to 110 MB/s over 10 pairs"
    assert found[1].value.startswith("c: part of all 4 slow pairs, ")
    assert found[1].fix == "check c's link, or exclude it: --exclude=c"


def test_a_slow_pair():
    late = Pair(3, 4, 5e-3, 1.1e8)
    for found, name in (
        (network(slow_pairs=[(1, 3)]), "rank 1 (b) and rank 3 (d): 20.4 us, 10 MB/s"),
        ([p for p in network() if (p.a, p.b) != (3, 4)] + [late], "rank 3 (d) and rank 4 (e): 5e+03 us, 110 MB/s"),
    ):
        checks = job.links("links", found, HOSTS)
        assert [(check.name, check.value) for check in checks[1:]] == [("slow pair", name)]
        assert checks[1].state == "warning"


def test_nothing_slow():
    for found in (network(), network(slow_hosts=HOSTS), network()[:2] + [Pair(0, 3, 1e-6, 1.0)][:0]):
        assert len(job.links("links", found, HOSTS)) == 1
    assert len(job.links("links", network(slow_hosts="c"), HOSTS, judged=False)) == 1
    assert job.links("links", [], HOSTS) == []


def test_hosts_that_differ():
    one = [Check("numpy", "2.1"), Check("gpus", "none"), Check("psgd", "0.1")]
    two = [Check("numpy", "1.26"), Check("gpus", "none: no driver", "wrong", "ask for one"), Check("psgd", "0.1")]
    found = job.differing({"n1": one, "n2": two, "n3": one})
    assert [(check.name, check.value, check.state) for check in found] == [
        ("n2: gpus", "none: no driver", "wrong"),
        ("numpy differs", "2.1 on n1, n3; 1.26 on n2", "warning"),
    ]
    assert job.differing({"n1": one, "n3": one}) == []
