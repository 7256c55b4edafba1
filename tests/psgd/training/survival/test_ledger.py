"""Each sample of each epoch is applied exactly once, whoever dies when: the ledger beside the workers' courses."""

from collections import Counter

import numpy as np
import pytest

from psgd.data.sampler import Sampler
from psgd.training.survival.course import Course
from psgd.training.survival.ledger import Ledger

SAMPLES, EPOCHS, BATCH, SEED = 41, 3, 4, 7


class Play:
    """Workers that push in any order, a server that applies at once, and messages read with the next answer."""

    def __init__(self, workers, rng, behind=0):
        self.rng, self.ledger = rng, Ledger(SAMPLES, SEED, EPOCHS, workers, BATCH)
        self.courses = [Course(Sampler(SAMPLES, workers, w, BATCH, SEED), EPOCHS) for w in range(workers)]
        for worker, course in enumerate(self.courses):
            course.ends = lambda worker=worker: self.at_the_end(worker)
        self.steps = [course.after(behind) for course in self.courses]
        self.drawn, self.applied = [0] * workers, Counter()
        if behind:
            self.ledger.begin([course.sampler.drawn(behind) for course in self.courses])
        for epoch, step in (divmod(step, self.courses[0].steps) for step in range(behind)):
            for course in self.courses:
                self.applied.update(course.sampler.batch(epoch, step).tolist())
        self.inbox = [[] for _ in range(workers)]
        self.pushed = {}  # not answered yet
        self.living, self.done = set(range(workers)), set()

    def at_the_end(self, worker):
        """Not over where something has come that it did not know of."""
        if not self.inbox[worker]:
            self.done.add(worker)
            return True
        self.ledger.pushed(worker, self.drawn[worker])
        self.read(worker)
        return False

    def read(self, worker):
        for words in self.inbox[worker]:
            self.courses[worker].receive(words)
        self.inbox[worker] = []

    def push(self, worker):
        """Computes a gradient and sends it: the server has it then, and applies it with the answer."""
        step = next(self.steps[worker], None)
        if step is not None:
            self.drawn[worker] += len(step.samples)
            self.ledger.pushed(worker, self.drawn[worker])
            self.pushed[worker] = step.samples

    def answer(self, worker):
        self.applied.update(self.pushed.pop(worker).tolist())
        self.read(worker)

    def kill(self, worker):
        self.living.remove(worker)
        self.drawn[worker] -= len(self.pushed.pop(worker, ()))  # never applied
        applied = [drawn - len(self.pushed.get(each, ())) for each, drawn in enumerate(self.drawn)]
        waiting = {each: self.drawn[each] for each in self.pushed}
        takers = sorted(self.living - self.done)
        left, messages = self.ledger.lose(worker, applied, waiting, takers)
        assert sum(len(words) - 4 for words in messages.values()) == left
        assert len({int(words[3]) for words in messages.values()}) == 1
        for taker, words in messages.items():
            self.inbox[taker].append(words)

    def training(self):
        return sorted(self.living - self.done)


@pytest.mark.parametrize("seed", range(300))
def test_any_deaths_at_any_time(seed):
    rng = np.random.default_rng(seed)
    play = Play(int(rng.integers(2, 6)), rng, behind=int(rng.integers(0, 5)) * (seed % 2))
    kills = int(rng.integers(1, 4))
    while training := play.training():
        worker = int(rng.choice(training))
        if worker in play.pushed:
            play.answer(worker)
        else:
            play.push(worker)
        # One that is still training takes over; that all others are done is the server's loop's affair.
        if kills and len(play.training()) > 1 and rng.random() < 0.05:
            kills -= 1
            play.kill(int(rng.choice(play.training())))
    assert play.applied == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))


def test_in_step_all_stay_in_step():
    play = Play(3, None)
    for step in range(100):
        if not play.training():
            break
        for worker in play.training():
            play.push(worker)
        if step == 2:
            play.kill(1)
        for worker in list(play.pushed):
            play.answer(worker)
        assert len({course.steps for course in play.courses[::2]}) == 1
    assert play.applied == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))


class Periods:
    """Workers whose samples count once they exchange, some steps apart; those that live hear of a death at once."""

    def __init__(self, rng, workers, period):
        self.rng, self.period, self.ledger = rng, period, Ledger(SAMPLES, SEED, EPOCHS, workers, BATCH)
        self.courses = [Course(Sampler(SAMPLES, workers, w, BATCH, SEED), EPOCHS) for w in range(workers)]
        for worker, course in enumerate(self.courses):
            course.ends = lambda worker=worker: self.ends(worker)
        self.steps = [course.after(0) for course in self.courses]
        self.drawn, self.reached, self.taken = [0] * workers, [0] * workers, [0] * workers
        self.since, self.applied = [[] for _ in self.courses], Counter()
        self.living, self.done, self.deaths = set(range(workers)), set(), 0
        self.inside = 0  # calls of `next` that have not returned: those workers are at their end, and cannot go on yet

    def exchange(self, worker):
        self.applied.update(self.since[worker])
        self.since[worker], self.reached[worker] = [], self.drawn[worker]

    def ends(self, worker):
        """The others go on, until the run is over or one has died."""
        deaths = self.deaths
        if worker in self.living:
            self.exchange(worker)
            self.done.add(worker)
        while self.living - self.done and self.deaths == deaths:
            self.turn()
        return self.deaths == deaths

    def turn(self):
        if len(self.living) > 1 and self.inside < 2 and self.rng.random() < 0.04:
            self.kill(int(self.rng.choice(sorted(self.living))))
            return
        worker = int(self.rng.choice(sorted(self.living - self.done)))
        self.inside += 1
        step = next(self.steps[worker], None)
        self.inside -= 1
        if step is not None and worker in self.living:
            self.since[worker] += step.samples.tolist()
            self.drawn[worker] += len(step.samples)
            self.taken[worker] += 1
            if self.taken[worker] % self.period == 0:
                self.exchange(worker)

    def kill(self, worker):
        self.living.remove(worker)
        self.done, self.deaths = set(), self.deaths + 1
        takers = sorted(self.living)
        waiting = {each: self.drawn[each] for each in takers}
        for taker, words in self.ledger.lose(worker, list(self.reached), waiting, takers)[1].items():
            self.courses[taker].receive(words)


@pytest.mark.parametrize("seed", range(200))
def test_what_has_not_been_exchanged_is_taken_again(seed):
    rng = np.random.default_rng(seed)
    play = Periods(rng, int(rng.integers(2, 6)), int(rng.integers(1, 7)))
    while play.living - play.done:
        play.turn()
    assert play.applied == Counter(dict.fromkeys(range(SAMPLES), EPOCHS))
