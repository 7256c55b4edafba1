"""A log that is still being written: read on, over torn lines, and from the start where another run has replaced it."""

import json

import pytest

from psgd.kernels.errors import DataError
from psgd.launch.view import job_log
from psgd.launch.view.job_log import JobLog


def write(path, *events, mode="a"):
    with path.open(mode) as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


START = {"event": "start", "workers": 2, "strategy": "sync"}


def progress(samples):
    return {"event": "progress", "time": samples / 10, "samples": samples, "loss": 1.0, "lr": 0.1}


def test_each_look_reads_what_is_new(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path, START, progress(10), mode="w")
    job = JobLog(path)
    job.look()
    assert (job.start["strategy"], job.progress["samples"], job.ended) == ("sync", 10, False)
    write(path, progress(20), {"event": "eval", "accuracy": 0.75}, {"event": "eval", "accuracy": 0.5})
    write(path, {"event": "workers", "pushes": [1, 2]})
    job.look()
    assert (job.progress["samples"], job.best, job.tested["accuracy"]) == (20, 0.75, 0.5)
    assert job.workers["pushes"] == [1, 2]
    write(path, {"event": "end", "seconds": 2.0})
    job.look()
    assert job.ended and job.skipped == 0


def test_a_line_that_is_half_written_is_taken_when_it_is_whole(tmp_path):
    path = tmp_path / "run.jsonl"
    text = json.dumps(progress(30))
    path.write_text(json.dumps(START) + "\n" + text[:20])
    job = JobLog(path)
    job.look()
    assert job.progress == {} and job.skipped == 0
    with path.open("a") as file:
        file.write(text[20:] + "\n")
    job.look()
    assert job.progress["samples"] == 30 and job.skipped == 0


def test_torn_lines_are_skipped_and_counted(tmp_path):
    path = tmp_path / "run.jsonl"
    torn = json.dumps(progress(5))[:20]
    path.write_text(f"{torn}\n{torn}{json.dumps(progress(30))}\n[1]\n\nnull\nx\n")
    job = JobLog(path)
    job.look()
    assert job.progress["samples"] == 30 and job.skipped == 4


def test_another_run_in_the_file_begins_again_and_one_that_resumes_forgets_the_end(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path, START, *(progress(n) for n in range(20)), {"event": "end"}, mode="w")
    job = JobLog(path)
    job.look()
    assert job.ended
    write(path, START | {"strategy": "ssp"}, progress(7))
    job.look()
    assert not job.ended and job.progress["samples"] == 7
    write(path, START | {"strategy": "async"}, mode="w")
    job.look()
    assert (job.start["strategy"], job.progress) == ("async", {})


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(job_log, "_LARGEST_LOOK", 1000)
    path = tmp_path / "run.jsonl"
    write(path, START, *(progress(n) for n in range(1000)), mode="w")
    job = JobLog(path)
    job.look()
    assert (job.start["strategy"], job.progress["samples"]) == ("sync", 999)
    assert job.skipped <= 1


def test_a_missing_file_is_one_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        JobLog(tmp_path / "none").look()
