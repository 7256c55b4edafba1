"""How strongly the centre of EASGD pulls, and which settings are stable."""

from psgd.kernels.errors import UsageError
from psgd.optim.schedules import Schedule

BETA = 0.9
_SLACK = 1e-9  # of rounding in lr * rho
_OCTAVES, _LOOKS = 50, 16


class Force:
    """The rate of the elastic pull: a = lr * rho, or a = 0.9 / workers where rho is None.

    Bounds: the synchronous order needs workers * a <= 1 (beta of Zhang, Choromanska and LeCun 2015). Where workers
    exchange one by one, 0 <= lr <= 2 and 0 <= a <= (4 - 2 lr) / (4 - lr) is what keeps each exchange from stretching
    anything at unit curvature (the same paper, on the round-robin order); curvature h makes lr h of lr.

    Args:
        workers: how many there are.
        rho: more than 0, or None.
        order: its name, for messages.
        together: it is the synchronous one.
    """

    def __init__(self, workers: int, rho: float | None, order: str, together: bool) -> None:
        self._workers = workers
        self._rho = rho
        self._order, self._together = order, together

    def rate(self, lr: float) -> float:
        """a, at a learning rate."""
        return BETA / self._workers if self._rho is None else lr * self._rho

    def largest(self, lr: float) -> float:
        """The largest stable a at a learning rate; less than 0 where there is none."""
        if self._together:
            return 1.0 / self._workers
        return (4.0 - 2.0 * lr) / (4.0 - lr) if 0.0 <= lr <= 2.0 else -1.0

    def check(self, lr: float) -> None:
        """Refuses what is not stable at this learning rate.

        Raises:
            UsageError: names the bound.
        """
        rate, largest = self.rate(lr), self.largest(lr)
        if rate <= largest * (1.0 + _SLACK):
            return
        if largest < 0.0:
            raise UsageError(
                f"easgd: expected a learning rate of 0 to 2 (the bound of order {self._order} at unit curvature), "
                f"got {lr:g}: lower it, or use order sync"
            )
        bound = f"1 / workers = {largest:g}" if self._together else f"(4 - 2 lr) / (4 - lr) = {largest:g}"
        if self._rho is None:
            what, fix = f"a = {BETA:g} / workers = {rate:g}", "lower the learning rate, or pass a rho"
        else:
            what = f"a = lr * rho = {lr:g} * {self._rho:g} = {rate:g}"
            fix = f"pass a rho of at most {largest / lr:g}, or none"
        raise UsageError(
            f"easgd: {what} would make order {self._order} unstable: expected a <= {bound} "
            f"with {self._workers} workers: {fix}"
        )

    def check_all(self, schedule: Schedule) -> None:
        """The same over a whole schedule, at 0 and at 16 positions an octave of samples.

        Raises:
            UsageError: names the bound.
        """
        self.check(schedule(0))
        for look in range(_OCTAVES * _LOOKS):
            self.check(schedule(2.0 ** (look / _LOOKS)))
