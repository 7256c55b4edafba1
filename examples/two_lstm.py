"""Two texts, read by one LSTM on two ranks at the same time, and a third rank that compares what they have read.

    mpirun -n 3 python examples/two_lstm.py    # the two branches and the classifier: a rank each
    mpirun -n 2 python examples/two_lstm.py    # the classifier beside the first branch
    python examples/two_lstm.py                # all on one rank
    OPENBLAS_NUM_THREADS=1 mpirun -n 3 python examples/two_lstm.py --compare 50    # its speed beside one rank's

Each text has 140 characters out of 256; one of a pair is by the first author, and the classifier says which. The LSTM's
weights lie on both branches' ranks, with the same bits: their gradient is the sum of the branches' gradients, which
`reduction="sum"` makes of what each of the two workers has computed. The first three commands print the same losses,
bit for bit.
"""

import argparse
import contextlib
import sys
import time

import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives.mpi.wait import Waiter
from psgd.nn.layers.lstm import LSTM
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.stage import Stage

LENGTH, LETTERS, UNITS = 140, 256, 64
PLACES = {1: (0, 0, 0), 2: (0, 1, 0), 3: (0, 1, 2)}
"""By number of ranks: where the first text is read, where the second, and where the classifier is."""


def make_pairs(count):
    """Texts, (2, count, LENGTH), and which of a pair is by the first author. The same on every rank."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=count)
    favourites = rng.permutation(LETTERS)[: LETTERS // 8]  # of the first author, who uses the others too
    texts = rng.integers(LETTERS, size=(2, count, LENGTH), dtype=np.uint8)
    own = rng.random((count, LENGTH)) < 0.5
    texts[labels, np.arange(count)] = np.where(own, rng.choice(favourites, own.shape), texts[labels, np.arange(count)])
    return texts, labels


class Program:
    """What this rank has of the program: a branch or both, the classifier, or all."""

    def __init__(self, comm, batch):
        places = PLACES[comm.size]
        self.comm, self.head, self.batch = comm, places[2], batch
        self.places = places[:2]
        self.branches = [branch for branch in (0, 1) if places[branch] == comm.rank]
        self.classifies = comm.rank == self.head
        self.encoder = Stage([LSTM(UNITS)], (LENGTH, LETTERS))
        self.classifier = Model([Linear(2)], (2 * UNITS,))
        self.letters = np.eye(LETTERS, dtype=np.float32)
        self.x = {branch: np.empty((batch, LENGTH, LETTERS), np.float32) for branch in self.branches}
        self.read = {branch: self.encoder.context(batch) for branch in self.branches}
        self.judged = self.classifier.context(batch, wants_dx=True)
        self.states, self.dstates = np.empty((2, 2, batch, UNITS), np.float32)  # of both branches
        self.waiter = Waiter.for_node(comm)  # sleeps while it waits: another rank may need the core

    def forward(self, texts):
        """Both texts are read, at the same time if on two ranks. Returns the LSTM's states where the classifier is."""
        for branch in self.branches:
            np.take(self.letters, texts[branch], axis=0, out=self.x[branch], mode="clip")
            self.states[branch] = self.encoder.forward(self.read[branch], self.x[branch])
        self.move(self.states, to_head=True)
        return np.concatenate(list(self.states), axis=1) if self.classifies else None

    def move(self, values, to_head):
        """Sends each branch's rows between its rank and the classifier's, where these are two."""
        pending = []
        for branch, place in enumerate(self.places):
            if place != self.head and self.comm.rank in (place, self.head):
                sends = self.classifies != to_head
                start = self.comm.Isend if sends else self.comm.Irecv
                pending.append(start(values[branch], self.head if self.comm.rank == place else place, tag=branch))
        for request in pending:
            self.waiter.until(request.Test)

    def gradient(self, texts, labels):
        """Writes each part's gradient where it is; returns the mean loss on the classifier's rank, 0 elsewhere."""
        states, loss = self.forward(texts), 0.0
        if self.classifies:
            self.classifier.forward(self.judged, states)
            dlogits, loss = self.classifier.loss(self.judged, labels)
            self.dstates[...] = np.split(self.classifier.backward(self.judged, dlogits), 2, axis=1)
        self.move(self.dstates, to_head=False)
        for branch in self.branches:
            self.encoder.backward(self.read[branch], self.dstates[branch], accumulate=branch != self.branches[0])
        return loss


class Training:
    """A program whose parts are trained, each by all ranks that have it: their gradients are added."""

    def __init__(self, comm, batch, lr, stack):
        self.program, self.batch = Program(comm, batch), batch
        self.connections = []
        encodes, classifies = bool(self.program.branches), self.program.classifies
        for has, stage in ((encodes, self.program.encoder), (classifies, self.program.classifier)):
            part = comm.Split(0 if has else MPI.UNDEFINED)
            if has:
                options = {"strategy": "allreduce", "reduction": "sum", "rule": psgd.rules.adam(), "lr": lr}
                ps = stack.enter_context(psgd.connect(part, stage.init(0), **options))
                stage.bind(ps.params, ps.grads)
                self.connections.append(ps)

    def step(self, texts, labels):
        """One step of all parts; returns the mean loss on the classifier's rank, 0 elsewhere."""
        loss = self.program.gradient(texts, labels)
        for ps in self.connections:
            ps.step(samples=self.batch, loss=loss)
        return loss


def compare(world, training, options, texts, labels):
    """Seconds of a step of rank 0 alone, while the others sleep, and of all ranks: the medians, taken in turns."""
    waiter, seconds = training.program.waiter, {"alone": [], "together": []}
    with contextlib.ExitStack() as stack:
        alone = Training(MPI.COMM_SELF, options.batch, options.lr, stack) if world.rank == 0 else None
        for turn in range(2 * options.compare + 2):
            name, mine = ("together", training) if turn % 2 else ("alone", alone)
            waiter.until(world.Ibarrier().Test)
            start = time.perf_counter()
            if mine is not None:
                mine.step(texts, labels)
            if mine is not alone:  # until the last one is done
                waiter.until(world.Ibarrier().Test)
            if turn > 1:  # the first ones compile
                seconds[name].append(time.perf_counter() - start)
    return [float(np.median(values)) for values in seconds.values()]


def refuse(message):
    """Ends all ranks with one line from rank 0. All ranks must call it."""
    if MPI.COMM_WORLD.rank == 0:
        print(message, file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Barrier()  # a launcher may kill the others once the first has left
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=800, help="to train on (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="pairs of a step (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument(
        "--compare", type=int, default=0, metavar="STEPS", help="times so many steps against one rank's"
    )
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    psgd.abort_on_exception()
    if world.size not in PLACES:
        refuse(f"two_lstm.py: expected 1, 2 or 3 ranks, got {world.size}")
    steps = options.pairs // options.batch
    texts, labels = make_pairs((steps + 8) * options.batch)  # the last 8 batches are held out
    rows = [slice(i * options.batch, (i + 1) * options.batch) for i in range(steps + 8)]
    with contextlib.ExitStack() as stack:
        training = Training(world, options.batch, options.lr, stack)
        program = training.program
        losses = [training.step(texts[:, batch], labels[batch]) for batch in rows[:steps] * options.epochs]
        correct = 0
        for batch in rows[steps:]:
            states = program.forward(texts[:, batch])
            if program.classifies:
                correct += program.classifier.evaluate(program.judged, states, labels[batch])[0]
        ranks = f"{world.size} rank{'s' if world.size > 1 else ''}"
        if program.classifies:
            print(f"losses {losses[0].hex()} {losses[steps // 2].hex()} {losses[-1].hex()}")
            print(f"{ranks}: {correct / (8 * options.batch):.3f} of the pairs are told apart", flush=True)
        if options.compare:
            one, all_ = compare(world, training, options, texts[:, rows[0]], labels[rows[0]])
            if world.rank == 0:
                print(
                    f"a step: one rank {1e3 * one:.1f} ms, {ranks} {1e3 * all_:.1f} ms, {one / all_:.2f} times as fast"
                )


if __name__ == "__main__":
    main()
