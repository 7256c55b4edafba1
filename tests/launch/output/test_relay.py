import errno
import os
import threading

import pytest

from psgd.launch.output.relay import Relay, Relays, WithoutDeaths


def through(target, *pieces):
    relay = Relay(target)
    end = os.dup(relay.end)
    relay.start()
    for piece in pieces:
        os.write(end, piece)
    os.close(end)
    return relay


def test_all_is_passed_on(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        assert through(file.fileno(), b"a" * 50_000, b"\xff\n", b"end").finish() is None
    assert (tmp_path / "out").read_bytes() == b"a" * 50_000 + b"\xff\nend"


def test_what_cannot_be_written_is_drained():
    with open("/dev/full", "wb", buffering=0) as full:
        relay = through(full.fileno(), *[b"x" * 50_000] * 5)  # more than the pipe holds
        assert relay.finish().errno == errno.ENOSPC
        assert relay.finish() is None


def test_of_a_job_stdout_must_get_through_stderr_need_not(capfd):
    kept = [os.dup(1), os.dup(2)]
    for target, broken, wanted in ((2, None, [0, 85]), (1, "no space left on device", [1, 85])):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, target)
        os.close(full)
        codes = []
        for code in (0, 85):
            relays = Relays()
            ends = [os.dup(end) for end in relays.ends]
            relays.start()
            for end in ends:
                os.write(end, b"said\n")
                os.close(end)
            codes.append(relays.finish(code))
            os.dup2(os.open("/dev/full", os.O_WRONLY), target)
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
        out, err = capfd.readouterr()
        assert codes == wanted
        if broken:
            assert err.lower().splitlines() == 2 * [
                "said",
                f"psgd: error: stdout: the output could not be written: {broken}",
            ]
        else:
            assert (out, err) == ("said\nsaid\n", "")
    for descriptor in kept:
        os.close(descriptor)


def test_a_process_left_behind_does_not_hold_us(monkeypatch):
    monkeypatch.setattr("psgd.launch.output.relay._PATIENCE_S", 0.05)
    read, write = os.pipe()
    relay = Relay(write)
    held = os.dup(relay.end)
    relay.start()
    assert relay.finish() is None
    os.close(held)
    for descriptor in (read, write):
        os.close(descriptor)


def test_a_slow_reader_gets_all(monkeypatch):
    monkeypatch.setattr("psgd.launch.output.relay._PATIENCE_S", 0.01)
    read, write = os.pipe()
    relay = through(write, b"x" * 60_000, b"y" * 60_000)  # the second waits for room
    got = 0

    def take():
        nonlocal got
        while got < 120_000:
            got += len(os.read(read, 1 << 12))

    taker = threading.Timer(0.2, take)
    taker.start()
    assert relay.finish() is None
    taker.join()
    assert got == 120_000
    for descriptor in (read, write):
        os.close(descriptor)


SAID = b"NBC_Progress: an error 77 was found during schedule 0x55aec8d2d200 at row-offset 0 - aborting the schedule\n\n"


@pytest.mark.parametrize("length", [1, 3, 7, 1000])
def test_what_mpi_says_of_ended_calls_is_left_out_however_it_comes(length):
    other = SAID.replace(b"77", b"16")  # of another error
    text = (
        b"epoch 1\r" + SAID + b"\nN NBC_ NBC_x\n" + SAID.replace(b"77", b"75") + SAID + other + b"half NBC_Progress: an"
    )
    left = WithoutDeaths()
    pieces = [left.take(text[i : i + length]) for i in range(0, len(text), length)]
    assert b"".join([*pieces, left.rest()]) == b"epoch 1\r\nN NBC_ NBC_x\n" + other + b"half NBC_Progress: an"


def test_what_begins_no_such_line_is_passed_on_at_once():
    left = WithoutDeaths()
    assert [left.take(piece) for piece in (b"epoch 1", b"\rNBC_x", b"NBC_Progress of 1")] == [
        b"epoch 1",
        b"\rNBC_x",
        b"NBC_Progress of 1",
    ]
