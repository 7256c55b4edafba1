"""Where things lie in the memory that a node's ranks share. Plain numbers: compiled code has them as constants."""

from psgd.collectives.mpi import split

ALIGN_BYTES = split.ALIGN_BYTES

# A call's descriptor: what a rank is about to do, as 64-bit words. The first four decide whether ranks agree.
DESCRIPTOR_WORDS = 16
DESCRIPTOR_BYTES = 8 * DESCRIPTOR_WORDS
SIGNATURE = 0
COUNT = 1
SHAPE = 2
ERROR = 3
CALL = 4
SEND = 5  # address in the owner's process
SEND_ID = 6  # registration that it lies in, or -1
SEND_OFFSET = 7
RECEIVE = 8
RECEIVE_ID = 9
RECEIVE_OFFSET = 10
DIMENSIONS = 11  # how many, then the first four extents: for reports

# What a kernel needs to know of a call: its descriptor, then these words.
CALL_WORDS = 32
FROM = 16  # address of this rank's values
INTO = 17  # address of the whole result, also where a rank keeps only its chunk of it
CHUNK = 18  # address of the place of this rank's own chunk of a result
METHOD = 19
PARTS = 20  # address of two words for each rank, first element and length of its chunk; 0: near-equal chunks
ACTIONS = 21
OP = 22
DIVISOR = 23
ROOT = 24  # of what is gathered, or -1 for all
ITEM = 25  # bytes of an element
ARITHMETIC = 26  # address of the dtype's arithmetic

# Actions.
REDUCES = 1
GATHERS = 2

# Methods, and what became of them.
AGREE = 0  # exchange descriptors only
INLINE = 1
SLOTS = 2
DIRECT = 3
REGISTERED = 4
CHUNKED = 5
BEHIND = (INLINE, CHUNKED)  # the data travels behind the descriptors

# One region for each rank: its step, then two calls' descriptors with their inline data, then two kinds of slots.
STEP_AT = 0
ABORT_AT = 64
WAITS_AT = 72  # two words: a call that the rank has been waiting in for long, and how many it started of the other kind
DESCRIPTORS_AT = 128
INLINE_BYTES = 64 * 1024
DESCRIPTOR_STRIDE = DESCRIPTOR_BYTES + INLINE_BYTES
SLOTS_AT = 256 * 1024
SLOT_COUNT = 8  # together more than a core's second cache: writing to a line that its reader still caches is slow
INPUT_BYTES = 256 * 1024
RESULT_BYTES = 128 * 1024
EXCHANGE_BYTES = 128 * 1024  # of a piece where all values go through slots
EXCHANGE_COUNT = SLOT_COUNT * INPUT_BYTES // EXCHANGE_BYTES
RESULTS_AT = SLOTS_AT + SLOT_COUNT * INPUT_BYTES
REGION_BYTES = RESULTS_AT + SLOT_COUNT * RESULT_BYTES

FETCH_BYTES = 128 * 1024  # read from a peer's private memory at a time: fits the second-level cache
BLOCK_BYTES = 16 * 1024  # reduced at a time where all is mapped: fits the first-level cache
AHEAD_BYTES = 1024  # of what a peer has published, asked for while others are waited for
AHEAD_RANKS = 4  # whose steps are asked for while one is waited for

# A node's table of words: its number of ranks, this rank, the scratch memory, then for each rank the region's address
# and then the process.
SIZE = 0
RANK = 1
SCRATCH = 2
REGIONS = 8

# What a kernel keeps between its calls.
STATE_WORDS = 8
STEP = 0  # steps published so far, over all calls
CALLS = 1  # descriptors exchanged so far
PHASE = 2
PEER = 3  # the next one to look at in a wait over all
POSITION = 4
PATH = 5  # the method that the last call took
GOAL = 6  # a step to wait for
TURN = 7  # the slot that the next call begins with

# What a kernel returns.
DONE = 0
WAIT = 1
MISMATCH = 2
FAILED = 3

# Where the ranks' arrays lie, filled by `locate`: four words for each rank.
WHERE_WORDS = 4
WHERE_SEND = 0
WHERE_SEND_MAPPED = 1
WHERE_RECEIVE = 2
WHERE_RECEIVE_MAPPED = 3
