"""Kills writers of checkpoints at random moments, again and again, and looks at what is left.

    python tests/support/harness/saving.py DIRECTORY ROUNDS [SEED]

Two processes save together as fast as they can; then one, and at once or a little later the other, gets SIGKILL. Each
time the newest complete checkpoint must load, be the one that was published last or the next, and hold its numbers.
"""

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from psgd.checkpoint import folder, vectors
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer

N, HALF = 300_001, 120_000


def vector(step):
    """All that a step saves: no two steps and no two elements alike."""
    return np.arange(N, dtype=np.float64) + step / 1024


def sharded(part, n, tensors):
    """A server's state: its tensors are elements `part` of vectors of `n` elements."""
    return State(dict(tensors), {"range": [part.start, part.stop, n], "cut": sorted(tensors)})


def save(directory, key, index, first, told):
    """One process: saves step after step, and tells what was published."""
    part = range(0, HALF) if index == 0 else range(HALF, N)
    writer = Writer(directory, key, f"server-{index}", ["server-0", "server-1"] if index == 0 else None, keep=2)
    for step in range(first, first + 10**6):
        state = sharded(part, N, {"params": vector(step)[part.start : part.stop]})
        state.facts["step"] = step
        writer.save(step, state, Manifest(step, 7 * step, accuracy=(step % 5) / 5) if index == 0 else None)
        writer.wait()
        if index == 0:
            os.write(told, step.to_bytes(8, "little"))
        while index == 1 and not folder.ready_path(directory, step).exists():
            time.sleep(0.0005)


def fork(function, *arguments):
    """A child that runs the function; its id."""
    child = os.fork()
    if child:
        return child
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def newest(directory, warnings):
    """Step of the newest complete checkpoint, 0 if none; it is looked at whole."""
    for found in folder.complete(directory, warnings.append):
        step = found.manifest.step
        states = [found.state(name) for name in found.manifest.names()]
        assert [state.facts["step"] for state in states] == [step, step], "two steps in one checkpoint"
        assert np.array_equal(vectors.weights(states), vector(step)), f"step {step} holds other numbers"
        assert found.manifest.samples == 7 * step
        return step
    return 0


def main(directory, rounds, seed):
    """Returns how the rounds ended."""
    rng, at, warnings, half = random.Random(seed), 0, [], 0
    for number in range(rounds):
        claim = folder.claim(directory)
        assert not list(directory.glob("*.part")), "what a dead run left is still there"
        read, write = os.pipe()
        key = f"run{number}"
        children = [fork(save, directory, key, index, at + 1, write) for index in range(2)]
        os.close(write)
        told = at
        for _ in range(rng.randrange(3)):
            told = int.from_bytes(os.read(read, 8), "little")
        time.sleep(rng.random() * 0.03)
        rng.shuffle(children)
        os.kill(children[0], signal.SIGKILL)
        time.sleep(rng.choice((0, 0.002, 0.02)))
        os.kill(children[1], signal.SIGKILL)
        for child in children:
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "a writer failed by itself"
        while data := os.read(read, 8):
            told = int.from_bytes(data, "little")
        os.close(read)
        claim.close()
        half += bool(list(directory.glob("*.part")))
        found = newest(directory, warnings)
        assert told <= found <= told + 1, f"round {number}: step {told} was published, {found} is found"
        at = found
    assert not warnings, warnings
    return f"{rounds} kills, {half} of them in the middle of a checkpoint; {at} checkpoints published, none damaged"


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
