from psgd.launch.output import summary

RESULT = {
    "dataset": "digits",
    "model": "mlp",
    "strategy": "async",
    "servers": 1,
    "workers": 2,
    "train_samples": 1497,
    "test_samples": 300,
    "test_accuracy": 0.96667,
    "test_f1": 0.96,
    "test_precision": 0.95004,
    "test_recall": 0.97,
    "train_loss": 0.05,
    "samples_per_second": 41234.4,
    "seconds": 3.21,
    "bytes_sent": 12_340_000,
    "bytes_received": 999,
    "staleness": {"mean": 0.984, "max": 3, "histogram": {"0": 1}},
    "waited_seconds": [0.25, 0.75],
    "computed_seconds": [3.0, 1.0],
    "lost_ranks": [],
    "checkpoint": None,
}


def test_aligned_lines():
    assert summary.text(RESULT).splitlines() == [
        "run          digits, mlp, async, 1 server, 2 workers",
        "samples      1,497 to train on, 300 to test on",
        "accuracy     0.9667 on the test samples",
        "F1           0.9600, precision 0.9500, recall 0.9700: means over the classes",
        "loss         0.0500 in training",
        "samples/s    41,234",
        "time         3.21 s",
        "bytes moved  12.3 MB sent, 999 B received",
        "staleness    mean 0.98, largest 3",
        "waiting      20 % of the workers' time, most worker 1 (0.75 s)",
    ]


def test_what_is_missing_gives_no_line():
    assert (
        summary.text({"train_loss": 1.0, "test_accuracy": None, "staleness": None}) == "loss         1.0000 in training"
    )
    assert summary.text({"seconds": 1.0}) == "time         1.00 s"
    assert summary.text({"waited_seconds": [0.0, 0.0], "computed_seconds": [1.0, 1.0]}) == ""


def test_a_diverged_run_is_called_that():
    assert summary.text({"train_loss": None}) == "loss         not finite: the run diverged; try a lower --lr"


def test_bytes():
    got = [summary.format_nbytes(n) for n in (0, 999, 1000, 999_400, 999_600, 5.5e9, 1.25e12, 2e15)]
    assert got == ["0 B", "999 B", "1 kB", "999 kB", "1 MB", "5.5 GB", "1.25 TB", "2e+03 TB"]


def test_the_bubble_of_a_pipeline():
    bubble = {"share": 0.213, "expected": 3 / 11, "schedule": "1f1b", "ranks": 4, "microbatches": 8}
    assert summary.text({**RESULT, "bubble": bubble}).splitlines()[-1] == (
        "bubble       21 % of the pipeline's time; 1f1b with 4 ranks and 8 microbatches: 27 % if all passes are equal"
    )
