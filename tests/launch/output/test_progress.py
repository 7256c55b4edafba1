import io

from psgd.launch.output.progress import Progress


class Bar(io.StringIO):
    """Can be read after it was closed."""

    def close(self):
        pass


def lines(stream):
    return [line.rsplit("  ", 1)[0] for line in stream.getvalue().splitlines()]


def test_plain_lines_are_one_an_epoch():
    out = io.StringIO()
    progress = Progress(lines=out)
    progress.start(300, 3)
    progress.update(50, 0, 2.0)
    progress.update(100, 1, 1.0)
    progress.update(100, 1, 1.0, 0.5)  # the evaluation of that epoch joins its line
    progress.update(150, 1, 0.9)
    progress.update(200, 2, 0.75)
    progress.update(250, 2, 0.7)  # no evaluation came
    progress.update(300, 3, 0.5, 0.75)
    progress.close()
    progress.close()
    assert "\r" not in out.getvalue()
    assert lines(out) == [
        "epoch 1/3  loss 1.0000  accuracy 0.5000",
        "epoch 2/3  loss 0.7500",
        "epoch 3/3  loss 0.5000  accuracy 0.7500",
    ]


def test_an_evaluation_that_comes_early_or_late_joins_its_epochs_line():
    out = io.StringIO()
    progress = Progress(lines=out)
    progress.start(300, 3)
    progress.update(96, 0, 2.0, 0.25)
    progress.update(104, 1, 1.0)
    progress.update(196, 1, 0.9)
    progress.update(200, 2, 0.75)
    progress.update(212, 2, 0.7, 0.5)
    progress.update(300, 3, 0.5)
    progress.close()
    assert lines(out) == [
        "epoch 1/3  loss 1.0000  accuracy 0.2500",
        "epoch 2/3  loss 0.7500  accuracy 0.5000",
        "epoch 3/3  loss 0.5000",
    ]


def test_a_line_does_not_wait_long(monkeypatch):
    out = io.StringIO()
    progress = Progress(lines=out)
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress.start(300, 3)
    progress.update(100, 1, 1.0)
    progress.update(110, 1, 1.0)
    assert out.getvalue() == ""
    now[0] = 1.5
    progress.update(120, 1, 1.0)
    assert lines(out) == ["epoch 1/3  loss 1.0000"]
    progress.update(130, 1, 1.0, 0.5)
    assert lines(out)[1:] == ["epoch 1/3  loss 1.0000  accuracy 0.5000"]


def test_a_note_within_the_run_has_a_line_of_its_own():
    bar = Bar()
    progress = Progress(bar=bar)
    progress.start(1000, 2)
    progress.update(500, 1, 1.0, 0.5)
    progress.note("saved: a")
    progress.update(1000, 2, 1.0, 0.5)
    progress.close()
    first, said, last, end = bar.getvalue().replace("\r", "|").replace("\n", "|\n").split("|")[1:5]
    assert first.startswith("epoch 2/2") and said.strip() == "saved: a" and len(said) >= len(first)
    assert last == "\n" and end.startswith("epoch 2/2")


def test_close_writes_the_line_that_waits():
    out = io.StringIO()
    progress = Progress(lines=out)
    progress.start(10, 1)
    progress.update(10, 1, 0.25)
    assert out.getvalue() == ""
    progress.close()
    assert lines(out) == ["epoch 1/1  loss 0.2500"]


def test_the_bar_is_one_line_and_draws_ten_times_a_second():
    bar = Bar()
    progress = Progress(bar=bar)
    progress.start(1000, 2)
    for samples in range(0, 1000, 2):
        progress.update(samples, samples // 500, 1.0)
    progress.update(1000, 2, 0.5, 0.875)
    progress.close()
    drawn = bar.getvalue()
    assert drawn.count("\n") == 1
    assert drawn.endswith("\n")
    assert 2 <= drawn.count("\r") < 50
    last = drawn.rsplit("\r", 1)[1]
    assert last.startswith("epoch 2/2 [################] 100%  0:00  loss 0.5000  accuracy 0.8750  ")
    assert last.endswith(" samples/s\n")


def test_the_bar_has_the_time_and_how_much_is_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = Bar()
    progress = Progress(bar=bar)
    progress.start(1000, 2, 200)  # resumed: those 200 took no time of this run
    progress.update(200, 0, 1.0)
    now[0] += 75
    progress.update(300, 0, 1.0)
    now[0] += 3600
    progress.update(900, 1, 1.0)
    progress.update(1000, 2, 1.0, 0.5)
    progress.close()
    first, early, late, last = bar.getvalue().split("\r")[1:]
    assert "  0:00  loss" in first
    assert "  1:15, 8:45 left  loss" in early
    assert "  1:01:15, 8:45 left  loss" in late
    assert "  1:01:15  loss" in last


def test_other_ranks_are_quiet(capfd):
    progress = Progress(shown=False)
    progress.start(10, 1)
    progress.update(10, 1, 0.25, 0.5)
    progress.close()
    assert capfd.readouterr() == ("", "")


def test_a_terminal_that_closed_does_not_end_the_run():
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    progress = Progress(bar=Gone())
    progress.start(10, 1)
    progress.update(5, 0, 0.25)
    progress.update(10, 1, 0.25)
    progress.close()


def test_a_run_that_goes_on_says_nothing_again_and_counts_its_own_samples(monkeypatch):
    now = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    progress = Progress(lines=out)
    progress.start(300, 3, 140)
    progress.update(150, 1, 0.9)
    progress.update(200, 2, 0.75, 0.5)
    progress.close()
    assert lines(out) == ["epoch 2/3  loss 0.7500  accuracy 0.5000"]
    bar = io.StringIO()
    progress = Progress(bar=bar)
    progress.start(300, 3, 140)
    progress.update(140, 1, 0.9)
    now[0] += 10
    progress.update(240, 2, 0.75)
    assert bar.getvalue().endswith("  10 samples/s")


def test_the_first_bar_knows_no_speed_yet(monkeypatch):
    now = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bar = io.StringIO()
    progress = Progress(bar=bar)
    progress.start(1000, 2)
    now[0] += 9.0  # start-up, in which the first samples were not timed
    progress.update(40, 0, 2.0)
    assert "samples/s" not in bar.getvalue() and "left" not in bar.getvalue()
    now[0] += 4.0
    progress.update(240, 0, 1.0)
    assert bar.getvalue().endswith("  0:04, 0:15 left  loss 1.0000  50 samples/s")
