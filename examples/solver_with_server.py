"""A host MPI program with a parameter server inside: a solver on some ranks, and others that learn from its answers.

    mpirun -n 5 python examples/solver_with_server.py              # 2 ranks solve, 1 serves, 2 learn

The first ranks solve the steady heat equation on a plate with a round inclusion, by conjugate gradients on their own
communicator. Each answer is the plate's effective conductivity. It goes to one of the learners, which together fit a
surrogate, a small network, while the solver goes on: `psgd.connect` gets their communicator, not MPI.COMM_WORLD. In the
end the solver asks the surrogate what it would otherwise have to compute. The command prints:

    2 ranks solved 300 cases; 1 server and 2 learners fitted the surrogate meanwhile
    on 20 new cases its error is 0.03, that of always answering the mean 0.42

Errors are of the conductivity's logarithm. The first varies a little, as workers do not wait for each other.
"""

import argparse
import sys
from typing import NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.stage import Stage

LEARNERS, NEW, GRID, BATCH, STEPS_PER_CASE = 3, 20, 32, 16, 20
Floats = NDArray[np.float64]


def conductivity(case: Floats, rows: range) -> Floats:
    """1 but in a round inclusion; this rank's rows and one more on each side. A case: (log conductivity, radius)."""
    centres = (np.arange(rows.start - 1, rows.stop + 1) + 0.5) / GRID - 0.5
    x = (np.arange(GRID) + 0.5) / GRID - 0.5
    distance = np.hypot(centres[:, None], x)
    return np.exp(case[0] / (1 + np.exp((distance - case[1]) / 0.03)))


def effective_conductivity(comm: MPI.Intracomm, case: Floats) -> float:
    """Solves with the left edge at 1, the right edge at 0, the others insulated. Collective over the solver's ranks."""
    rows = range(comm.rank * GRID // comm.size, (comm.rank + 1) * GRID // comm.size)
    above = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    k = conductivity(case, rows)
    vertical = 2 / (1 / k[1:] + 1 / k[:-1])  # between a row and the next
    vertical[[0, -1]] *= [[above != MPI.PROC_NULL], [below != MPI.PROC_NULL]]
    k = k[1:-1]
    horizontal = 2 / (1 / k[:, 1:] + 1 / k[:, :-1])
    field = np.zeros((len(rows) + 2, GRID))

    def flow(t: Floats) -> Floats:
        """What leaves each cell."""
        field[1:-1] = t
        comm.Sendrecv(field[1], above, recvbuf=field[-1], source=below)
        comm.Sendrecv(field[-2], below, recvbuf=field[0], source=above)
        down = vertical * (field[:-1] - field[1:])
        right = horizontal * (t[:, :-1] - t[:, 1:])
        out = down[1:] - down[:-1]
        out[:, :-1] += right
        out[:, 1:] -= right
        out[:, [0, -1]] += 2 * k[:, [0, -1]] * t[:, [0, -1]]
        return out

    def dot(a: Floats, b: Floats) -> float:
        return float(comm.allreduce(np.vdot(a, b)))

    temperature, residual = np.zeros((len(rows), GRID)), np.zeros((len(rows), GRID))
    residual[:, 0] = 2 * k[:, 0]
    direction, size = residual.copy(), dot(residual, residual)
    wanted = 1e-20 * size
    while size > wanted:
        image = flow(direction)
        step = size / dot(direction, image)
        temperature += step * direction
        residual -= step * image
        before, size = size, dot(residual, residual)
        direction = residual + size / before * direction
    return float(comm.allreduce((2 * k[:, 0] * (1 - temperature[:, 0])).sum()))


def cases(count: int) -> Floats:
    """Cases with inclusions that conduct 20 times better or worse than the plate, or anything between."""
    return np.random.default_rng(0).uniform([-3, 0.1], [3, 0.4], (count, 2))


def surrogate() -> Stage:
    """A network from a case to the logarithm of its effective conductivity."""
    return Stage([Linear(32), ReLU(), Linear(32), ReLU(), Linear(1)], (2,))


def inputs(some: Floats) -> NDArray[np.float32]:
    return ((some - [0, 0.25]) / [1.7, 0.087]).astype(np.float32)


def solve(world: MPI.Intracomm, comm: MPI.Intracomm, count: int) -> str:
    """The host's own work: cases one after the other. Answers go to the learners in turn."""
    answers = []
    for number, case in enumerate(cases(count + NEW)):
        answers.append(np.log(effective_conductivity(comm, case)))
        if comm.rank == 0 and number < count:
            learner = comm.size + 1 + number % (LEARNERS - 1)  # the first of those ranks is the server
            world.Send(np.array([*case, answers[-1]]), learner)
    if comm.rank:
        return ""
    stage, new = surrogate(), cases(count + NEW)[count:]
    params = np.empty(stage.layout.size, np.float32)
    world.Recv(params, comm.size)
    stage.bind(params)
    said = stage.forward(stage.context(NEW), inputs(new))[:, 0]
    error, spread = (np.sqrt(np.mean((guess - answers[count:]) ** 2)) for guess in (said, np.mean(answers[:count])))
    return (
        f"{comm.size} {'ranks' if comm.size > 1 else 'rank'} solved {count} cases; "
        f"1 server and {LEARNERS - 1} learners fitted the surrogate meanwhile\n"
        f"on {NEW} new cases its error is {error:.2f}, that of always answering the mean {spread:.2f}"
    )


def learn(world: MPI.Intracomm, comm: MPI.Intracomm, count: int) -> None:
    """A server and its workers: each takes some steps on what it knows whenever it hears of a new case."""
    stage = surrogate()
    params = stage.init(0)
    with psgd.connect(comm, params, strategy="async", rule="adam", lr=0.003) as ps:
        known: list[Floats] = []
        rng = np.random.default_rng(ps.worker)
        stage.bind(ps.params, ps.grads)
        context = stage.context(BATCH)
        for _ in range(ps.worker, count, ps.workers):
            known.append(np.empty(3))
            world.Recv(known[-1], 0)
            for _ in range(STEPS_PER_CASE):
                batch = np.array([known[row] for row in rng.integers(len(known), size=BATCH)])
                wrong = stage.forward(context, inputs(batch[:, :2]))[:, 0] - batch[:, 2].astype(np.float32)
                stage.backward(context, (2 / BATCH * wrong)[:, None])
                ps.step(samples=BATCH, loss=float(np.mean(wrong**2)))
    if ps.is_main:
        world.Send(params, 0)


def refuse(message: str) -> NoReturn:
    """Ends all ranks with one line from rank 0. All ranks must call it."""
    if MPI.COMM_WORLD.rank == 0:
        print(message, file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Barrier()  # a launcher may kill the others once the first has left
    sys.exit(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=300, help="that the surrogate learns from (300)")
    options = parser.parse_args()
    psgd.abort_on_exception()
    world = MPI.COMM_WORLD
    solvers = world.size - LEARNERS
    if not 1 <= solvers <= GRID or options.cases < 1:
        refuse(f"solver_with_server.py: expected {LEARNERS + 1} to {LEARNERS + GRID} ranks and 1 case or more")
    learns = world.rank >= solvers
    comm = world.Split(learns, world.rank)
    if learns:
        learn(world, comm, options.cases)
    elif said := solve(world, comm, options.cases):
        print(said, flush=True)


if __name__ == "__main__":
    main()
