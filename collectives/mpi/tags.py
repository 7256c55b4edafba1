"""Every message tag in one place. The standard promises tags up to 32767 only: nothing that grows is a tag."""

from enum import IntEnum


class Tag(IntEnum):
    """What a message on one of psgd's private communicators is."""

    PUSH = 1  # worker to server: header, with the gradient behind it when the shard is small
    GRADIENT = 2  # worker to server: one segment of a gradient
    REPLY = 3  # server to worker: header, with the parameters behind it when the shard is small
    PARAMETERS = 4  # server to worker: one segment of the parameters
    ORDER = 5  # server 0 to the other servers: one entry of the log
    ALARM = 6  # either way: the sender gives up
    DATA = 7  # one rank's part in a collective: a header before the first between two ranks
    CONTROL = 8  # to all ranks of a collective: the sender gives up, or has been waiting for long
    PAYLOAD = 9  # worker to server and back: a compressed update
    TRACE = 10  # to rank 0 and back: the clocks' times; to rank 0: what a rank has recorded
    LOSS = 11  # last stage of a pipeline to the others: loss, and what else is known there alone
    STEP_LOSS = 12  # last stage of a pipeline that is never empty to the others: the loss of a step
    VIEW = 13  # server to worker: who is gone, and what the receiver takes over
    REPLICA = 14  # server to server: a shard that the receiver is to hold too
    NORM = 15  # server to server: squares of the gradients of the shards that the sender holds
    LANE = 64  # and the tags behind it: a segment between GPUs, by lane
    TIED = 128  # and the tags behind it: a stage's gradient of a parameter that others hold too, by parameter
    EDGE = 256  # and the tags behind it: from one stage of a pipeline to its neighbour, by edge and direction
