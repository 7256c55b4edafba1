"""The errors that users meet: a small tree under `psgd.Error`."""


class Error(Exception):
    """Base of all errors that psgd raises on purpose."""


class UsageError(Error, ValueError):
    """A wrong option or argument. The message says what, where, expected, got, and how to fix it."""


class DataError(UsageError):
    """A dataset that is missing, truncated, mismatched, empty or holds values that cannot be."""


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, or cannot be read: damaged, unfinished, or of another version."""


class ContractError(Error):
    """Ranks that disagree on a call, a shape, a dtype or a version. Raised alike on all ranks involved."""


class PeerLostError(Error):
    """A peer died or closed its side while it was still needed."""


class DivergedError(Error):
    """A gradient that is not finite, where the run is to stop then. Raised alike on all ranks."""


class AgreedError(Error):
    """Marks an error that all ranks of a communicator raise alike, so that each may leave by itself."""


class AgreedUsageError(AgreedError, UsageError):
    """A wrong argument on some rank; all ranks raise it."""


class AgreedContractError(AgreedError, ContractError):
    """Ranks passed different arguments; all raise it."""


class CodecError(Error):
    """A compressed update that is damaged, or not for this vector."""
