"""PyTorch's RPC peer: timings of verified parameters, an end in any case."""

import subprocess
import sys
import time

import pytest

from psgd.launch.bench.peers import processes
from psgd.launch.bench.peers.torch_rpc import RpcPeer

pytestmark = pytest.mark.job


@pytest.fixture(autouse=True)
def torch():
    return pytest.importorskip("torch")


def pids(peer):
    return [process.pid for process in peer._processes]


def test_measure():
    with RpcPeer() as peer:
        folder = peer._folder.name
        first, second = peer.measure(4096, 7), peer.measure(4 * 100003, 2)
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (7, 2)
    assert min(first + second) > 0
    assert peer.measure(4096, 1) is None
    assert subprocess.run(["ls", folder], capture_output=True, check=False).returncode != 0


def test_killed_worker_is_no_result():
    with RpcPeer() as peer:
        assert peer.measure(4096, 1) is not None
        peer._processes[1].signal(9)
        start = time.monotonic()
        assert peer.measure(4096, 1) is None
        assert time.monotonic() - start < 20


def test_ends_with_whoever_started_it():
    code = (
        "import os\n"
        "from psgd.launch.bench.peers.torch_rpc import RpcPeer\n"
        "peer = RpcPeer()\n"
        "assert peer.measure(4096, 1)\n"
        "print(*[p.pid for p in peer._processes], flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == -9, result.stderr
    left = [int(pid) for pid in result.stdout.split()]
    assert len(left) == 2
    end = time.monotonic() + 20
    while left and time.monotonic() < end:
        left = [
            pid
            for pid in left
            if subprocess.run(["kill", "-0", str(pid)], capture_output=True, check=False).returncode == 0
        ]
        time.sleep(0.1)
    assert not left
