"""Before a run's clock starts all is compiled that it needs: every strategy, codec, model and rule is tried."""

import json
import sys

import numpy as np
import pytest

from psgd.kernels.codecs.catalog import CODECS
from psgd.nn.catalog import MODELS
from psgd.optim.catalog import RULES
from psgd.strategies.catalog import STRATEGIES

pytestmark = pytest.mark.one_mpi

JOB = """
import gc, json, sys, time
from mpi4py import MPI
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher
from psgd import training
from psgd.config import configure
from psgd.kernels import reduce
from psgd.metrics.run_metrics import RunMetrics

clock = time.perf_counter  # the same on all ranks of a node
made, timed = [], [0.0, 0.0]

def watch(kind):
    plain = kind.compile
    def compile_(self, *signature):
        known, start = len(getattr(self, "overloads", ())), clock()
        found = plain(self, *signature)
        if kind is CFunc or len(self.overloads) > known:
            made.append((start, clock(), getattr(self, "__name__", None) or self.py_func.__name__))
        return found
    kind.compile = compile_

def restarted(self):
    restart(self)
    timed[0] = clock()

def collected(*arguments):
    timed[1] = clock()
    return collect(*arguments)

watch(Dispatcher)
watch(CFunc)
restart, collect = RunMetrics.restart, training.result.collect
RunMetrics.restart, training.result.collect = restarted, collected

def forget():
    reduce.arithmetic.cache_clear()
    for each in gc.get_objects():
        if Dispatcher in type(each).__mro__:
            each._reset_overloads()
            each.overloads.clear()
    made.clear()

world = MPI.COMM_WORLD
for case in json.loads(sys.argv[1]):
    forget()
    alone = case.pop("alone", False)
    comm = MPI.COMM_SELF if alone else world
    options = {"epochs": 2, "eval_every": 0.5, "batch_size": 8, "hidden": 8, "dataset": sys.argv[2]} | case
    training.run(configure(**options), comm)
    first, last = comm.bcast(timed)
    late = [name for start, end, name in made if end > first and start < last]
    found = world.gather((len(made), late))
    if world.rank == 0:
        print(json.dumps([min(count for count, _ in found), sum((late for _, late in found), [])]), flush=True)
"""


def cases():
    """Every strategy with every codec, and its own ways; models, rules and options take turns."""
    found = []
    for name, strategy in STRATEGIES.items():
        codecs = [None, *CODECS] if strategy.compressible else [None]
        found += [{"strategy": name} | ({"compress": codec} if codec else {}) for codec in codecs]
    found += [{"strategy": "easgd", "easgd_order": order} for order in ("round-robin", "async", "hogwild")]
    found += [{"strategy": "decentralized", "peers": peers} for peers in ("ring", "pairs")]
    found += [{"strategy": "averaging", "outer_momentum": 0.9}, {"strategy": "sync", "servers": 2}]
    found += [{"strategy": name, "alone": True, "servers": 0} for name in ("sync", "hogwild")]
    models = [name for name, entry in MODELS.items() if not entry.tokens]
    for index, case in enumerate(found):
        encodes = case.get("compress") or (case["strategy"] == "decentralized" and case.get("peers") != "pairs")
        rules = [rule for rule, entry in RULES.items() if entry.before_codec or not encodes]
        case.update({"model": models[index % len(models)], "optimizer": rules[index % len(rules)]})
        case.update([{}, {"accumulate": 2}, {"clip_norm": 1.0, "weight_decay": 0.01}][index % 3])
        if case.get("compress") and index % 2:
            case.update({"compress_warmup": 1.0, "compress_sync": 5})
    return found


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_is_compiled_before_the_clock_starts(job, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (72, 1, 8, 8), np.uint8), np.arange(72, dtype=np.uint8) % 3
    np.savez(tmp_path / "small.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    (tmp_path / "job.py").write_text(JOB)
    tried = cases()
    words = [sys.executable, str(tmp_path / "job.py"), json.dumps(tried), str(tmp_path / "small.npz")]
    done = job(3, words, timeout=390, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(tried)
    for case, (made, late) in zip(tried, found, strict=True):
        assert made > 0, case
        assert late == [], case
