"""Every state that SLURM documents, in every way in which its programs write it."""

import pytest

from psgd.launch.slurm import job_states

# From the page "Job State Codes" of SLURM's manual, and squeue's: short, long, whether the job has ended for good.
STATES = [
    ("BF", "BOOT_FAIL", True),
    ("CA", "CANCELLED", True),
    ("CD", "COMPLETED", True),
    ("CF", "CONFIGURING", False),
    ("CG", "COMPLETING", False),
    ("DL", "DEADLINE", True),
    ("F", "FAILED", True),
    ("NF", "NODE_FAIL", True),
    ("OOM", "OUT_OF_MEMORY", True),
    ("PD", "PENDING", False),
    ("PR", "PREEMPTED", True),
    ("R", "RUNNING", False),
    ("RD", "RESV_DEL_HOLD", False),
    ("RF", "REQUEUE_FED", False),
    ("RH", "REQUEUE_HOLD", False),
    ("RQ", "REQUEUED", False),
    ("RS", "RESIZING", False),
    ("RV", "REVOKED", True),
    ("SI", "SIGNALING", False),
    ("SE", "SPECIAL_EXIT", False),
    ("SO", "STAGE_OUT", False),
    ("ST", "STOPPED", False),
    ("S", "SUSPENDED", False),
    ("TO", "TIMEOUT", True),
]


@pytest.mark.parametrize(("short", "name", "ended"), STATES)
def test_long_and_short_are_the_same(short, name, ended):
    for text in (name, short, name.lower(), f" {name}\n", f"{name}+"):
        assert job_states.read(text) == {name}, text
    assert job_states.ended(job_states.read(name)) == ended


@pytest.mark.parametrize(
    ("text", "states", "ended"),
    [
        ("CANCELLED by 1000", {"CANCELLED"}, True),
        ("CANCELLED BY 0", {"CANCELLED"}, True),
        ("CANCELLED+", {"CANCELLED"}, True),
        ("OUT_OF_ME+", {"OUT_OF_MEMORY"}, True),
        ("PREEMPT+", {"PREEMPTED"}, True),
        ("REQUEUE_+", {"REQUEUE_"}, False),  # could be two
        ("COMPLETED+COMPLETING", {"COMPLETED", "COMPLETING"}, False),
        ("COMPLETED,COMPLETING", {"COMPLETED", "COMPLETING"}, False),
        ("PENDING+REQUEUED", {"PENDING", "REQUEUED"}, False),
        ("FAILED+LAUNCH_FAILED", {"FAILED", "LAUNCH_FAILED"}, True),
        ("CANCELLED+SIGNALING+UPDATE_DB", {"CANCELLED", "SIGNALING", "UPDATE_DB"}, True),
        ("PENDING+REVOKED", {"PENDING", "REVOKED"}, True),
        ("RUNNING+EXPEDITING", {"RUNNING", "EXPEDITING"}, False),
        ("POWER_UP_NODE", {"POWER_UP_NODE"}, False),
        ("RECONFIG_FAIL", {"RECONFIG_FAIL"}, False),
        ("SOMETHING_NEW", {"SOMETHING_NEW"}, False),
        ("", set(), False),
    ],
)
def test_flags_users_and_narrow_columns(text, states, ended):
    assert job_states.read(text) == states
    assert job_states.ended(job_states.read(text)) == ended


def test_who_is_held():
    held = {name for _, name, _ in STATES if job_states.held(job_states.read(name))}
    assert held == {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
