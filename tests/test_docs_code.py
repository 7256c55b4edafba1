"""Code blocks of the documentation run: those in Python on two ranks, the tutorial's commands in their order."""

import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {
    "import psgd\nimport torch\nfrom mpi4py import MPI\n\ncomm = MPI.COMM_WORLD\nwith torch.device": "needs GPUs: "
    "tests/psgd/torch/sharded/test_module_on_gpu.py, and without them test_module.py beside it",
    'with psgd.connect(comm, params, strategy="allreduce", rule="adam", shard=1)': "a loop of dots: "
    "tests/psgd/strategies/sharded/test_sharded_worker.py",
    "from psgd.collectives import Communicator\nfrom psgd.parallel.sharded": "part of a program: "
    "tests/support/harness/sharded_runs.py",
    "psgd.connect(comm, params, *": "a signature: test_docs.py",
    "def allreduce(channel, send, recv, op):": "part of a file: tests/collectives/algorithms/test_catalog.py",
    "def test_across_hosts(hosts):": "a test: tests/support/test_hosts.py",
    "comm.Allreduce(MPI.IN_PLACE, grads)  # once": "needs GPUs: tests/collectives/peers",
    "from psgd.collectives.device.pick_gpu import": "needs GPUs: tests/psgd/torch/test_wrapped_on_gpu.py",
    "import torch\nfrom torch import nn\n\n\ndef make(data):": "a file: tests/launch/test_user_files.py",
    "from psgd.nn.linear import Linear\nfrom psgd.nn.model": "a file: tests/launch/test_user_files.py",
    "class Mlp(torch.nn.Module):": "needs exported weights: tests/psgd/nn/test_pytorch.py",
}
"""How a block begins that is not run here, and why."""

LOOP = """
import numpy as np, psgd
from mpi4py import MPI
comm, params = MPI.COMM_WORLD, np.ones(4)
my_shard = lambda worker, workers: [np.full((3, 4), float(i)) for i in range(worker, 6, workers)]
my_gradient = lambda params, batch: 0.1 * (params - batch.mean(axis=0))
"""
STEPS = f"""{LOOP}
steps, b = 5, 3
my_batch = lambda worker, step: np.full((3, 4), float(step))
my_gradient = lambda params, batch: (0.1 * (params - batch.mean(axis=0)), 1.0)
"""
COLLECTIVES = """
import numpy as np
from mpi4py import MPI
from psgd import collectives
comm = collectives.Communicator(MPI.COMM_WORLD)
array, gradient, a, b, n, batches = np.ones(3), np.ones(4), np.ones(3), np.zeros(3), 5, [1.0, 2.0]
compute = lambda batch: batch
"""
STAGE = """
import numpy as np
from psgd.nn.linear import Linear
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.residual import Residual
from psgd.nn.stage import Stage
tokens, features, batch = 3, 8, 4
x, dy = np.ones((batch, tokens, features), np.float32), np.ones((batch, 3), np.float32)
params, grads = np.ones(4592, np.float32), np.zeros(4592, np.float32)
"""
MODEL = """
import numpy as np
from psgd.nn.models import build
model, loss, parts = build("softmax", (1, 4, 4), 3), 0.0, [slice(0, 2), slice(2, 4)]
params = model.init(0)
model.bind(params, np.zeros_like(params))
x, y = np.ones((4, 1, 4, 4), np.float32), np.array([0, 1, 2, 0])
ctx = model.context(4)
"""
MODULE = """
import torch
module, criterion = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()
my_shard = lambda worker, workers: [(torch.ones(2, 4), torch.tensor([0, 2]))] * 3
"""
SEQUENTIAL = """
import torch
from torch import nn
make = lambda: nn.Sequential(nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
criterion = nn.CrossEntropyLoss()
my_shard = lambda worker, workers: [(torch.ones(10, 784), torch.arange(10))] * 3
"""
DDP = """
import tempfile, torch, psgd
from mpi4py import MPI
module, dataset, comm = torch.nn.Linear(4, 3), torch.arange(100.0), MPI.COMM_WORLD
meeting = "file://" + comm.bcast(tempfile.mktemp(), 0)
"""
PIPELINE = """
import numpy as np
from psgd.nn.linear import Linear
from psgd.nn.model import Model
model, cuts = Model((Linear(8, relu=True), Linear(3)), (4,)), (1,)
x, y = np.ones((100, 4), np.float32), np.zeros(100, np.int64)
"""
PYTREE = """
import jax.numpy as jnp
import numpy as np
params, predict = {"w": jnp.ones(4)}, lambda params, x: x @ params["w"]
my_shard = lambda worker, workers: [(np.ones((2, 4), np.float32), np.zeros(2, np.float32))] * 3
"""
EXISTING = """
import psgd, torch
from mpi4py import MPI
model, criterion = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()
my_shard = lambda worker, workers: [(torch.ones(2, 4), torch.tensor([0, 2]))] * 3
"""
SCHEDULED = f"""{EXISTING}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = psgd.torch.DistributedOptimizer(optimizer, MPI.COMM_WORLD, module=model, strategy="allreduce")
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
optimizer.__enter__()
"""
CALLED = f"""{LOOP}
from psgd.metrics import RunMetrics
workers, n = 1, 18
"""
VECTOR = """
import numpy as np
n = 1000
update, out = np.linspace(-1, 1, n, dtype=np.float32), np.zeros(n, np.float32)
"""
PIECES = """
import numpy as np
def my_batches(worker, workers):
    rng = np.random.default_rng(worker)
    return [(rng.random((n, 64), dtype=np.float32), rng.integers(10, size=n)) for n in (64, 64, 13)]
x_test, y_test = my_batches(0, 1)[0]
"""
BEFORE = {
    "import numpy as np, psgd\nfrom mpi4py": LOOP,
    "from psgd import collectives\n\ncomm": COLLECTIVES,
    "def init(params)": LOOP,
    "stage = Stage(": STAGE,
    "from mpi4py import MPI\nfrom psgd.collectives import Communicator": "",
    "for part in parts": MODEL,
    "with psgd.connect(comm, params, checkpoint_dir": STEPS,
    "from mpi4py import MPI\nfrom psgd import collectives": COLLECTIVES,
    "request = comm.Allreduce_init": COLLECTIVES,
    "from psgd.kernels import codecs": VECTOR,
    "optimizer = torch.optim.AdamW(": EXISTING,
    'if "scheduler" in optimizer.extra': SCHEDULED,
    "class Watch(psgd.Callback)": CALLED,
    "import numpy as np\nfrom mpi4py import MPI\n\nimport psgd\n\npsgd.abort": "",
    "import psgd\nimport torch\nfrom mpi4py import MPI\n\nmodel = psgd.torch.wrap(module)": MODULE,
    "import psgd\nimport torch\nfrom mpi4py import MPI\nfrom psgd.parallel.mesh import ProcessMesh\n": SEQUENTIAL,
    "import psgd\nfrom psgd import collectives\n\ncomm": DDP,
    "sampler = psgd.torch.Sampler(": DDP,
    "import numpy as np\nfrom mpi4py import MPI\nfrom psgd.optim.optimizer": PIPELINE,
    "from mpi4py import MPI\n\nimport psgd\nfrom psgd import collectives\nfrom psgd.checkpoint": PIECES,
    "import numpy as np\nfrom mpi4py import MPI\nfrom psgd.parallel.pipeline": PIPELINE,
    "import psgd\nfrom mpi4py import MPI\n\n\ndef loss_fn(params, x, y)": PYTREE,
}
"""How a block begins, and what it takes for granted."""


def blocks(page, language):
    found = re.findall(r"^```(\S*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def all_blocks():
    """Each block that is run, by page and place."""
    for page in PAGES:
        for number, block in enumerate(blocks(page, "python"), 1):
            if not any(block.startswith(begin) for begin in NOT_RUN):
                yield f"{page.name}-{number}", block


def needs(block):
    return next((name for name in ("torch", "jax") if f"psgd.{name}" in block), "numpy")


RUN = """
import os, sys
from pathlib import Path
for name in sys.argv[2:]:
    path = Path(sys.argv[1], name, "block.py")
    os.chdir(path.parent)
    exec(compile(path.read_text(), path, "exec"), {"__name__": "__main__", "__file__": str(path)})
    sys.stdout.write(f"\\n{name} has run\\n")
    sys.stdout.flush()
"""


@pytest.mark.one_mpi
@pytest.mark.job
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_python_blocks_run(job, tmp_path, library):
    """One job for all that need a library: a block's traceback names its file, a hang comes after the last that ran."""
    pytest.importorskip(library)
    chosen = {name: block for name, block in all_blocks() if needs(block) == library}
    for name, block in chosen.items():
        before = [code for begin, code in BEFORE.items() if block.startswith(begin)]
        assert len(before) == 1, f"add what it takes for granted to BEFORE:\n{block}"
        after = "optimizer.__exit__(None, None, None)\n" if "__enter__()" in before[0] else ""
        (tmp_path / name).mkdir()
        (tmp_path / name / "block.py").write_text(before[0] + block + after)
    (tmp_path / "run.py").write_text(RUN)
    program = [sys.executable, "-W", "error::DeprecationWarning", str(tmp_path / "run.py"), str(tmp_path), *chosen]
    said = job(2, program, check=True, timeout=110).stdout
    assert [said.count(f"{name} has run\n") for name in chosen] == [2] * len(chosen), said


@pytest.mark.parametrize("begin", [*NOT_RUN])
def test_what_is_not_run_is_still_there(begin):
    assert sum(block.startswith(begin) for page in PAGES for block in blocks(page, "python")) == 1


@pytest.mark.one_mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.job
def test_the_tutorial(job, psgd_command, tmp_path):
    page = ROOT / "docs/tutorial.md"
    (program,) = blocks(page, "python")
    (tmp_path / "fit.py").write_text(program)
    said, ran = {}, 0
    for line in "".join(blocks(page, "")).splitlines():
        words = shlex.split(line.replace("--epochs 4000", "--epochs 40"), comments=True)
        start = {"psgd": (None, psgd_command.argv), "python": (None, [sys.executable]), "mpirun": (3, [sys.executable])}
        if not words or words[0] not in start or "slurm" in words or "doctor" in words:
            continue
        n, argv = start[words[0]]
        rest = words[4:] if words[0] == "mpirun" else words[1:]
        said[line] = job(n, [*argv, *rest], check=True, cwd=tmp_path, timeout=60).stdout
        ran += 1
    assert ran == 10
    assert (tmp_path / "compared.png").stat().st_size > 10_000
    for line in ("python fit.py", "mpirun -n 3 python fit.py"):
        assert float(re.search(r"largest error of a parameter: ([\d.]+)\n", said[line])[1]) < 0.01
