"""Options of the ranks and their machines. Imports no MPI."""

from psgd.runtime.option import one_of

DEVICE = one_of(("cpu", "cuda"), "cpu", "What workers compute on; cuda: one GPU each, by local rank.")
SERVER_DEVICE = one_of(("cpu", "cuda"), "cpu", "Where servers keep their state and take steps.")
DATA_DEVICE = one_of(("auto", "cpu", "cuda"), "auto", "Where the data is kept; auto: on the GPU if it fits.")
PLACEMENT = one_of(
    ("auto", "dedicated", "spread", "colocated"),
    "auto",
    "Which ranks are servers: the first, one per node, or evenly among the workers; auto is spread on several nodes.",
)
