"""The limits of a node's memory, from made-up files and variables."""

import pytest

from psgd.launch.memory import limits
from psgd.launch.memory.limits import Limit

MACHINE = {"proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 12 kB\n"}  # 1 GiB
GIB = 1 << 30


def found(root, files, **environment):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return limits.of_node(environment, root)


def test_nothing_tells(tmp_path):
    assert limits.of_node({}, tmp_path) is None


def test_the_machine(tmp_path):
    assert found(tmp_path, MACHINE) == Limit(GIB, "this machine has")


@pytest.mark.parametrize(
    ("mine", "limit", "bytes_of"),
    [
        ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "1000\n"),
        ("0::/a/b\n", "sys/fs/cgroup/a/memory.max", "1000\n"),  # of the group above
        ("0::/../seen/from/within\n", "sys/fs/cgroup/memory.max", "1000\n"),
        ("9:cpu:/x\n4:memory:/a/b\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1000\n"),
        ("4:hugetlb,memory:/docker/7\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
    ],
)
def test_control_groups(tmp_path, mine, limit, bytes_of):
    files = {**MACHINE, "proc/self/cgroup": mine, limit: bytes_of}
    assert found(tmp_path, files) == Limit(1000, "its control group may use")


@pytest.mark.parametrize("unlimited", ["max\n", "9223372036854771712\n", "", "0\n"])
def test_groups_without_a_limit(tmp_path, unlimited):
    files = {**MACHINE, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": unlimited}
    assert found(tmp_path, files).nbytes == GIB


def test_slurm(tmp_path):
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4"}
    assert found(tmp_path, MACHINE, **job, SLURM_MEM_PER_NODE="512") == Limit(512 << 20, "SLURM allows")
    assert limits.of_node({**job, "SLURM_MEM_PER_CPU": "100"}, tmp_path).nbytes == 400 << 20
    assert limits.of_node({**job, "SLURM_MEM_PER_NODE": "0"}, tmp_path).nbytes == GIB  # all of it
    assert limits.of_node({"SLURM_MEM_PER_NODE": "512"}, tmp_path).nbytes == GIB  # no job's


def test_this_node_has_a_limit():
    assert limits.of_node().nbytes > 1 << 26
