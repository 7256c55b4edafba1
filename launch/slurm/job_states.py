"""The states of a job as SLURM's programs write them: in full, in short, cut off, with flags."""

import re

_FINAL = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PR": "PREEMPTED",
    "TO": "TIMEOUT",
}
_HELD = {
    "RD": "RESV_DEL_HOLD",
    "RH": "REQUEUE_HOLD",
    "SE": "SPECIAL_EXIT",
}
_CONTINUES = _HELD | {
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "PD": "PENDING",
    "R": "RUNNING",
    "RF": "REQUEUE_FED",
    "RQ": "REQUEUED",
    "S": "SUSPENDED",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
}
# Beside another state these say nothing about the end, as EXPEDITING, LAUNCH_FAILED, POWER_UP_NODE, RECONFIG_FAIL and
# UPDATE_DB, which have no short form.
_FLAGS = {"RS": "RESIZING", "SI": "SIGNALING"}
_REVOKED = "REVOKED"  # another cluster of the federation runs the job
_SHORT = _FINAL | _CONTINUES | _FLAGS | {"RV": _REVOKED}


def read(text: str) -> frozenset[str]:
    """Returns the states in a text: one, or a state and its flags. A name that is not known stays as it is.

    `RUNNING`, `R`, `CANCELLED by 1000`, `OUT_OF_ME+` (of a narrow column) and `COMPLETED+COMPLETING` are understood.
    """
    words = re.findall(r"[A-Z_]+", re.sub(r"\sBY\s.*", "", text.upper()))
    states = [_SHORT.get(word, word) for word in words]
    if states and text.rstrip().endswith("+"):
        whole = [name for name in _SHORT.values() if name.startswith(states[-1])]
        if states[-1] not in whole and len(whole) == 1:
            states[-1] = whole[0]
    return frozenset(states)


def ended(states: frozenset[str]) -> bool:
    """Whether a job in these states does not run again, on this cluster."""
    return _REVOKED in states or (not states.isdisjoint(_FINAL.values()) and states.isdisjoint(_CONTINUES.values()))


def held(states: frozenset[str]) -> bool:
    """Whether the job waits in the queue until somebody releases it."""
    return not states.isdisjoint(_HELD.values())
