import os

import pytest

from psgd.launch import startup


def rank(host, cpus, threads=1, gpus=0):
    return {"host": host, "node": f"{host} boot", "cpus": list(cpus), "threads": threads, "gpus": gpus}


TWO = [rank("a", [k], gpus=2) for k in range(4)] + [rank("b", [k]) for k in range(4)]


def test_one_line():
    assert startup.line(TWO) == "8 ranks on 2 nodes, 1 thread each, 2 GPUs each"
    assert startup.line(TWO, 1) == "8 ranks on 2 nodes (1 server, 7 workers), 1 thread each, 2 GPUs each"
    assert (
        startup.line([rank("a", [0, 1], threads=4)], 0)
        == "1 rank on 1 node (0 servers, 1 worker), 4 threads each, no GPU"
    )


def test_leaders():
    assert startup.leaders([rank("a", [0]), rank("b", [0]), rank("a", [1]), rank("c", [0]), rank("b", [1])]) == [
        0,
        1,
        3,
    ]


@pytest.mark.parametrize(
    ("everyone", "expected"),
    [
        (TWO, []),
        ([rank("a", range(8)) for _ in range(8)], []),
        ([rank("a", range(8)) for _ in range(9)], ["a: 9 ranks share CPUs 0-7"]),
        ([rank("a", [3])] * 3 + [rank("a", [4])], ["a: ranks 0, 1, 2 are all bound to CPU 3"]),
        ([rank("a", [0, 1])] * 3 + [rank("a", [2, 3])] * 2, ["a: ranks 0, 1, 2 are all bound to CPUs 0-1"]),
        ([rank("a", [0])] * 2, ["a: 2 ranks share CPU 0"]),
        ([rank("a", range(8), threads=4) for _ in range(4)], ["a: 16 threads of 4 ranks share CPUs 0-7"]),
        ([rank("a", [0]), rank("b", [0]), rank("b", [0])], ["b: 2 ranks share CPU 0"]),
        ([rank("a", [0, 1, 2, 5])], []),
    ],
)
def test_shared_cores(monkeypatch, everyone, expected):
    monkeypatch.delenv("PSGD_OUTCOME", raising=False)
    assert [text for text, _ in startup.crowded(everyone)] == expected


def test_our_own_launcher_means_to_oversubscribe(monkeypatch):
    monkeypatch.setenv("PSGD_OUTCOME", "/somewhere")
    assert startup.crowded([rank("a", range(2))] * 3) == []
    ((text, _),) = startup.crowded([rank("a", [0])] * 3 + [rank("a", [1])])
    assert text == "a: ranks 0, 1, 2 are all bound to CPU 0"


def test_table():
    everyone = [rank("node1", [0]), rank("n2", [0, 1, 2, 5]), rank("n2", [3])]
    assert startup.ranks_table(everyone, ["server 0", "worker 0", "worker 1"]).splitlines() == [
        "rank  host   role      cpus",
        "0     node1  server 0  0",
        "1     n2     worker 0  0-2,5",
        "2     n2     worker 1  3",
    ]


def test_gpus(monkeypatch, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    for told, count in ((None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("GPU-5a, GPU-7b", 2)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if told is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
        assert startup.gpus(str(tmp_path)) == count
    assert startup.gpus(str(tmp_path / "none")) == 0


@pytest.mark.parametrize(
    ("vendor", "variables", "foreign"),
    [
        ("Open MPI", {"PMIX_RANK": "0"}, False),
        ("MPICH", {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, True),
        ("MPICH", {"PMIX_RANK": "0"}, True),
        ("MPICH --with-pmix=/usr", {"PMIX_RANK": "0"}, False),
        ("Intel MPI", {"PMIX_RANK": "0"}, False),  # which does not say how it was built
        ("MPICH", {"PMIX_RANK": "0", "PMI_FD": "7"}, False),
        ("MPICH", {"PMI_RANK": "0"}, False),
    ],
)
def test_what_mpich_cannot_start_under(monkeypatch, vendor, variables, foreign):
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PMI_FD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    name, _, options = vendor.partition(" --")
    described = vendor if name == "Intel MPI" else f"MPICH configure: {options}"
    assert startup._other_launcher(name, described) == foreign


def test_facts():
    found = startup.facts()
    assert found["cpus"] == sorted(os.sched_getaffinity(0))
    assert found["threads"] >= 1


def test_only_what_applies_is_advised(monkeypatch):
    monkeypatch.delenv("PSGD_OUTCOME", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for everyone, advice in (
        ([rank("a", range(8)) for _ in range(9)], startup.ROOM),
        ([rank("a", [3])] * 3 + [rank("a", [4])], startup.UNBIND),
        ([rank("a", [3])] * 3, startup.UNBIND),
        ([rank("a", range(8), threads=4) for _ in range(4)], startup.FEWER_THREADS),
    ):
        assert [fix for _, fix in startup.crowded(everyone)] == [advice]
