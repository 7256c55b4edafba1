"""Deaths as data: what stands for `psgd.runtime.ulfm.deaths.MpiDeaths` in one process."""


class FakeFailures:
    """Implements `psgd.runtime.ulfm.deaths.Deaths` for the only rank that there really is.

    Args:
        size: of the communicator that it stands for.
    """

    def __init__(self, size):
        self._living, self._dead = list(range(size)), set()
        self.acknowledged, self.revoked = set(), False

    def kill(self, rank):
        """That rank is dead from now on."""
        self._living.remove(rank)
        self._dead.add(rank)

    def failed(self):
        return set(self._dead)

    def ack(self):
        self.acknowledged = set(self._dead)

    def revoke(self):
        self.revoked = True

    def shrink(self):
        return list(self._living)

    def agree(self, bits):
        return bits
