"""What a rank has of a model that several ranks hold together, and what it agrees on with those."""

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.manifest import PIECE
from psgd.checkpoint.pieces.parts import first_owners, placed
from psgd.collectives.mpi.liveness import Liveness
from psgd.collectives.mpi.request_cleanup import keep_for_ever
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.kernels.notice import in_mesh
from psgd.nn.layout import Layout
from psgd.runtime.agreement import gather


def name_of(coordinates: Mapping[str, int]) -> str:
    """The name of the piece at this place.

    Raises:
        UsageError: no axis, or one that a name of a shard cannot have.
    """
    name = "".join(f"{axis}{place}" for axis, place in coordinates.items())
    if not PIECE.fullmatch(name):
        raise UsageError(f"part: expected axes with lower-case names and a place along each, got {dict(coordinates)}")
    return name


class _Alarms:
    """All alarms of this process: those of its pipeline and of the ranks with the same part."""

    check = staticmethod(BACKGROUND.advance)


class ModelPart:
    """A rank's part of a model. Creating is collective over `world`, blocks.

    Args:
        world: all ranks of the run, the same in all parts; for collectives of psgd alone.
        replica: those that have one copy of the model together, in the order of their places; as `world`.
        coordinates: this rank's place along the axes along which the model is cut, all of them in the same order on all
            ranks; without that along which samples are.
        layout: of this rank's vector.
        whole: of the whole model, with its ties; no rank needs such a vector.

    Attributes:
        world, replica, layout, whole: as given.
        name: of the piece.
        place: the same for people to read, without axes along which all ranks are at one place.
        pieces: by name the layouts of all, in the order of their places.
        apart: set by the program while the ranks of a copy take the same step at different times, as in a pipeline
            that is never empty: requests for a checkpoint wait until they do not.

    Raises:
        AgreedUsageError: on all ranks: the parts are not those of the whole model.
    """

    def __init__(
        self,
        world: MPI.Intracomm,
        replica: MPI.Intracomm,
        *,
        coordinates: Mapping[str, int],
        layout: Layout,
        whole: Layout,
    ) -> None:
        self.world, self.replica, self.layout, self.whole = world, replica, layout, whole
        self.apart = False
        self._liveness = Liveness(world, _Alarms(), "model in pieces", "rank")
        self._waiter = Waiter.for_node(world, self._liveness.check)
        mine: dict[str, object] = {"complaint": None}
        try:
            self.name = name_of(coordinates)
            mine |= {"name": self.name, "place": list(coordinates.values()), "layout": layout.to_json()}
            mine["parts"] = placed(layout, whole)
        except UsageError as error:
            mine["complaint"] = str(error)
        everyone = gather(world, mine)
        self.pieces = _pieces(everyone)
        several = [len(set(along)) for along in zip(*(each["place"] for each in everyone), strict=False)]  # type: ignore[misc]
        self.place = in_mesh(coordinates, dict(zip(coordinates, several, strict=False)))
        first_owners([placed(each, whole) for each in self.pieces.values()], whole)

    @property
    def first(self) -> bool:
        """Whether this is the first of the pieces."""
        return self.name == next(iter(self.pieces))

    def largest(self, value: int) -> int:
        """The largest value of any rank of this copy of the model. Collective over `replica`, blocks."""
        if self.replica.Get_size() == 1:
            return value
        mine, found = np.array([value], np.int64), np.empty(1, np.int64)
        self.wait(self.replica.Iallreduce(mine, found, MPI.MAX))
        return int(found[0])

    def wait(self, request: MPI.Request) -> None:
        """Waits for a collective's request, and looks for all alarms of this process and for ranks that ended.

        Raises:
            PeerLostError: one will never come.
        """
        try:
            with self._liveness.guard():
                self._waiter.soon(request.Test)
        except BaseException:
            keep_for_ever(request)
            raise


def _pieces(everyone: list[dict[str, object]]) -> dict[str, Layout]:
    """Each piece's layout, in the order of their places.

    Raises:
        AgreedUsageError: a rank's complaint, or ranks at one place with different layouts.
    """
    texts: dict[str, str] = {}
    places: dict[str, list[int]] = {}
    for rank, answer in enumerate(everyone):
        if answer["complaint"]:
            raise AgreedUsageError(f"part of a model on rank {rank}: {answer['complaint']}")
        name, text = str(answer["name"]), str(answer["layout"])
        if texts.setdefault(name, text) != text:
            raise AgreedUsageError(f"part of a model on rank {rank}: another rank at {name} has another layout")
        places[name] = answer["place"]  # type: ignore[assignment]  # a list of whole numbers
    return {name: Layout.from_json(texts[name]) for name in sorted(texts, key=lambda name: places[name])}
