"""A worker's loop over its part of the data."""

import time
from collections import deque
from functools import partial

from psgd.backend.interface import Repeats
from psgd.checkpoint.extra import OWN
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.data.sampler import Sampler
from psgd.kernels.array import Array
from psgd.runtime.faults import Injector
from psgd.runtime.ulfm.options import last_epoch
from psgd.training.survival.course import Course, CourseStep
from psgd.training.task import Task

_BEFORE = f"{OWN}steps_before"
"""What is saved with a worker that has begun at a checkpoint of other workers, and counts its clock from there."""


class Trainer:
    """A worker's loop over its part of the data."""

    def __init__(self, config: TrainConfig, task: Task, params: Array, injector: Injector) -> None:
        assert task.dataset is not None
        self._injector = injector
        self._config = config
        self._dataset, self._model = task.dataset, task.model
        self._together = getattr(task.model, "evaluates_together", False)
        self.backend = task.model.backend(config, task.dataset, task.statistics)
        self.backend.prepare(params)
        self._course: Course | None = None
        # Steps whose gradients may have to be computed again: those that make one update.
        self._newest: deque[CourseStep] = deque(maxlen=config.own.get("accumulate") or 1)

    def course(self, workers: int, worker: int) -> Course:
        """The batches of this worker, one of so many. Made once."""
        if self._course is None:
            config, samples = self._config, self._dataset.train.samples
            self._course = Course(Sampler(samples, workers, worker, config.batch_size, config.seed), config.epochs)
        return self._course

    def train(self, ps: Connection) -> None:
        """All epochs; a worker that has run out of samples in an epoch pushes none and keeps pace."""
        config, backend, injector = self._config, self.backend, self._injector
        injects, poisons = bool(config.inject), "nan" in config.inject
        may_stop = bool(config.target_accuracy or config.early_stop or config.checkpoint_dir)
        backend.bind(ps.params, ps.grads)
        course = self.course(ps.workers, ps.worker)
        done = self._done(ps, course.sampler)
        if ps.resumed_from is not None and ps.mesh.survival is not None:
            ps.mesh.survival.resume_at(min(done, config.epochs * course.steps))
        if done and self._reports(course) and self._due(done, course.steps):
            self._report(ps)  # it came after the checkpoint
        leaves = course.steps * last_epoch(config.grow, ps.workers, config.epochs)
        course.again = partial(self._again, ps.worker)
        for newest in course.after(done):
            self._newest.append(newest)
            epoch, step, number, indices, planned = newest
            loss = 0.0
            injector.begin(number)
            self._model.begin(config.seed, ps.worker, epoch, step)
            if len(indices):
                start = time.perf_counter()
                touch = partial(injector.poison, number) if poisons else None
                loss = backend.gradient(indices, ps.overlap(len(indices)), touch)
                if injects:
                    backend.wait()
                    injector.sleep(number, time.perf_counter() - start)
            ends = planned and step + 1 == course.steps
            if (leaves and number + 1 >= leaves) or (ends and course.shrunk and config.spares):
                leaves = 0  # for more workers to join; where workers keep pace, at the epoch's end
                ps.save(stop=True)
            ps.step(len(indices), loss)
            if self._model.agreed(ps.stop) if may_stop else ps.stop:
                return
            if self._reports(course) and planned and self._due(epoch * course.steps + step + 1, course.steps):
                self._report(ps)

    def _again(self, worker: int, before: int) -> None:
        """Computes the gradient of the newest step, or of so many before it, again, on the same parameters."""
        epoch, step, number, indices, _ = self._newest[-1 - before]
        self._model.begin(self._config.seed, worker, epoch, step)
        touch = partial(self._injector.poison, number) if "nan" in self._config.inject else None
        if isinstance(self.backend, Repeats):
            self.backend.again(indices, touch)
        else:
            self.backend.gradient(indices, None, touch)
        self.backend.wait()

    def _done(self, ps: Connection, sampler: Sampler) -> int:
        """This worker's steps before a checkpoint; with other workers as many as made its samples, rounded down."""
        found = ps.resumed_from
        if found is None or ps.clock or _BEFORE in ps.extra:
            return ps.clock + int(ps.extra.get(_BEFORE, 0))
        ps.extra[_BEFORE] = done = sampler.steps_behind(found.manifest.samples)
        return done

    def _report(self, ps: Connection) -> None:
        """Evaluates what there is, on the whole test part."""
        backend, course = self.backend, self.course(ps.workers, ps.worker)
        backend.bind(ps.evaluated_params, ps.grads)
        course.evaluates = True
        correct, loss_sum = backend.evaluate(0, 1)
        course.evaluates = False
        backend.bind(ps.params, ps.grads)
        count = max(1, self._dataset.test.samples)
        if course.leads:
            ps.report(correct / count, loss_sum / count)

    def _reports(self, course: Course) -> bool:
        """Whether this worker takes part in evaluations: the one that leads, and all that it needs for them."""
        return course.leads or self._together

    def _due(self, done: int, steps: int) -> bool:
        """Whether an evaluation is due after so many steps, of `steps` an epoch; the last one is made elsewhere."""
        every = self._config.eval_every * steps
        return bool(every) and done < self._config.epochs * steps and done // every > (done - 1) // every
