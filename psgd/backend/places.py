"""Which ranks of a run use which GPUs."""

from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.runtime.agreement import agree, gather


def check(comm: MPI.Intracomm, uses: bool) -> None:
    """Looks whether each rank that is to use a GPU has one; chooses none. Collective, blocks.

    Raises:
        AgreedUsageError: CuPy or a GPU is missing on some rank; on all ranks.
    """
    from psgd.collectives.device.pick_gpu import visible_devices

    complaint = None
    try:
        if uses:
            visible_devices()
    except UsageError as error:
        complaint = str(error)
    agree(comm, "", {}, complaint)


def choose(comm: MPI.Intracomm, uses: bool) -> None:
    """Gives each rank that uses one its GPU: those of a node take the visible ones in turn. Collective, blocks.

    Where some share one, rank 0 says so in a line on stderr.

    Raises:
        AgreedUsageError: CuPy or a GPU is missing on some rank; on all ranks.
    """
    from psgd.collectives.device.pick_gpu import choose_device, visible_devices

    complaint, shared = None, 0
    users: MPI.Intracomm = comm.Split(0 if uses else MPI.UNDEFINED, comm.rank)  # type: ignore[assignment]
    if uses:
        node = users.Split_type(MPI.COMM_TYPE_SHARED)
        try:
            choose_device(users)
            devices = visible_devices()
            shared = node.size if node.size > devices else 0
        except UsageError as error:
            complaint = str(error)
        node.Free()
        users.Free()
    agree(comm, "", {}, complaint)
    most = max(int(each["shared"]) for each in gather(comm, {"shared": shared}))
    if most and comm.rank == 0:
        say(f"{most} ranks of a node share its GPUs, which are fewer")
