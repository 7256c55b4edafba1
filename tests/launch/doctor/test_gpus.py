"""What the doctor finds of GPUs, with a stand-in for what it asks."""

import json

import pytest

from psgd.launch.doctor import child, gpus


def test_missing_gpus(monkeypatch, tmp_path):
    driver, devices = tmp_path / "version", tmp_path / "dev"
    devices.mkdir()

    def missing():
        return gpus.missing(str(devices), str(driver))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert missing() == "no NVIDIA driver here"
    driver.touch()
    assert "no /dev/nvidia0 is here: the container or the job was given no GPU" in missing()
    (devices / "nvidia0").touch()
    assert missing() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert missing() == "CUDA_VISIBLE_DEVICES hides them all"


@pytest.mark.parametrize(
    ("cupy", "cause", "wanted", "state"),
    [
        (None, "no driver", None, "ok"),
        (None, "no driver", True, "wrong"),
        (None, "", None, "ok"),
        (None, "", True, "wrong"),
        ("13.6", "no driver", None, "wrong"),
        ("13.6", "no driver", False, "ok"),
        ("13.6", "", None, "wrong"),  # the second process prints nothing here
    ],
)
def test_whether_gpus_are_wanted(monkeypatch, cupy, cause, wanted, state):
    monkeypatch.setattr(gpus, "installed", lambda: cupy)
    monkeypatch.setattr(gpus, "missing", lambda: cause)
    monkeypatch.setattr(child, "output", lambda code, timeout_s: None)
    (found,) = gpus.checks(wanted)
    assert (found.state, bool(found.fix)) == (state, state == "wrong")
    assert cause in found.value


def test_gpus_that_are_there(monkeypatch):
    told = {"names": ["H1 (80 GiB)"] * 2, "reach": [[True, False], [True, True]], "ipc": "not permitted", "sum": 6.0}
    monkeypatch.setattr(gpus, "installed", lambda: "13.6")
    monkeypatch.setattr(gpus, "missing", lambda: "")
    monkeypatch.setattr(gpus, "nvlinks", lambda: "4 NVLinks active")
    monkeypatch.setattr(child, "output", lambda code, timeout_s: json.dumps(told))
    cards, ipc, peers = gpus.checks()
    assert cards.value == "H1 (80 GiB), H1 (80 GiB); CuPy 13.6"
    assert (ipc.state, ipc.value) == ("warning", "no: not permitted")
    assert (peers.state, peers.value) == ("warning", "GPUs 0-1 do not, 4 NVLinks active")
