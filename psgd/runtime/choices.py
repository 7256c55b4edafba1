"""Options of the ranks and their machines. Imports no MPI."""

from psgd.runtime.option import Option, one_of

DEVICE = one_of(("cpu", "cuda"), "cpu", "What workers compute on; cuda: one GPU each, by local rank.")
SERVER_DEVICE = one_of(("cpu", "cuda"), "cpu", "Where servers keep their state and take steps.")
DATA_DEVICE = one_of(("auto", "cpu", "cuda"), "auto", "Where the data is kept; auto: on the GPU if it fits.")
OFFLOAD = one_of(
    ("optimizer", "parameters"),
    None,
    "With --device cuda, keep on the host: the optimizer's state and steps; or those and all but two layers.",
)
OFFLOAD_STALENESS = Option(
    int,
    0,
    "With --offload optimizer: how many steps a gradient's parameters are behind; 1 hides the update in a whole step.",
    lambda steps: steps in (0, 1),
    "0 or 1",
)
PLACEMENT = one_of(
    ("auto", "dedicated", "spread", "colocated"),
    "auto",
    "Which ranks are servers: the first, one per node, or evenly among the workers; auto is spread on several nodes.",
)
