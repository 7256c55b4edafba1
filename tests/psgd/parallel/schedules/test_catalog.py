"""Schedules by name: each can be made, and what there is not is said in one line."""

import subprocess
import sys

import pytest

from psgd.kernels.errors import UsageError
from psgd.parallel.schedules import catalog


@pytest.mark.parametrize("name", catalog.NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (4, 2), (2, 5)])
def test_each_is_made_as_its_entry_says(name, ranks, microbatches):
    entry = catalog.SCHEDULES[name]
    schedule = catalog.make(name, ranks, microbatches, 2 if entry.chunks else 1)
    assert (schedule.name, schedule.ranks, schedule.microbatches) == (name, ranks, microbatches)
    assert schedule.flushes == entry.flushes and len(schedule.programs) == ranks
    kinds = {each.kind for program in schedule.programs for each in program}
    assert entry.trains == (kinds != {"F"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gpipes", 2, 2), "expected one of gpipe, "),
        (("gpipe", 0, 2), "ranks: expected 1 or more, got 0"),
        (("gpipe", 2, 0), "microbatches: expected 1 or more, got 0"),
        (("1f1b", 2, 2, 0), "chunks: expected 1 or more, got 0"),
        (("1f1b", 2, 2, 2), "schedule 1f1b: expected 1 chunk a rank, got 2; interleaved takes more"),
        (("1f1b", 2, 2, 1, 3), "schedule 1f1b: .* every=3 goes with pipedream and pipedream-2bw"),
    ],
)
def test_what_there_is_not_is_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        catalog.make(*arguments)


def test_looking_at_the_names_loads_no_schedule():
    code = (
        "import sys; from psgd.parallel.schedules import catalog; print(any(m.endswith('gpipe') for m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.split()[-1] == "False", out


def test_a_step_of_a_run_has_as_many_microbatches_as_asked_for():
    def steps(name, every):
        return [each.microbatch for each in catalog.make(name, 2, 6, every=every).programs[0] if each.kind == "U"]

    assert [steps("pipedream", 0), steps("pipedream", 4)] == [[0, 1, 2, 3, 4, 5], [3, 5]]
    assert [steps("pipedream-2bw", 0), steps("pipedream-2bw", 3)] == [[1, 3, 5], [2, 5]]
