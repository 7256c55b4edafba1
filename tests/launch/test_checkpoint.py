import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from harness.saving import sharded

import psgd
from psgd.checkpoint import folder
from psgd.checkpoint.manifest import UNSEALED, Manifest
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer
from psgd.kernels.errors import CheckpointError, UsageError
from psgd.launch.checkpoint import checkpoint
from psgd.nn.layout import Layout

LAYOUT = Layout([("linear1.weight", (7, 3)), ("linear1.bias", (3,)), ("file", (2,))])
VECTOR = np.arange(LAYOUT.size, dtype=np.float32) + 0.5
NAMES = ["server-0", "server-1", "worker-0"]


@pytest.fixture
def directory(tmp_path):
    """Two checkpoints of two servers and a worker; the newest weights are VECTOR."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for step, layout in ((100, None), (200, LAYOUT)):
        told = Manifest(
            step,
            6400,
            200,
            0.91,
            {"strategy": "sync", "lr": 0.1, "log": None, "own": "[]", "none": "None", "more": {}},
            {"a": "ring"},
            layout=layout,
        )
        writers = [Writer(runs, "k", name, NAMES if name == NAMES[0] else None) for name in NAMES]
        weights = VECTOR + step - 200
        states = [
            sharded(part, VECTOR.size, {"params": weights[part.start : part.stop]})
            for part in (range(20), range(20, 64))
        ]
        states.append(State({"residual": VECTOR}, {"step": step}))
        for writer, state in reversed(list(zip(writers, states, strict=True))):
            writer.save(step, state, told if writer is writers[0] else None)
        for writer in writers:
            writer.wait()
    return runs


@pytest.fixture
def pieces(tmp_path):
    """A checkpoint of two pieces, each with a worker: columns of linear1, two and one, and both the rest."""
    layouts = {}
    for place, columns in enumerate((range(2), range(2, 3))):
        parts = {"linear1.weight": ((7, 3), (0, columns.start)), "linear1.bias": ((3,), (columns.start,))}
        shapes = [("linear1.weight", (7, len(columns))), ("linear1.bias", (len(columns),)), ("file", (2,))]
        layouts[f"tensor{place}"] = Layout(shapes, parts=parts)
    names = [f"{piece}worker-0" for piece in layouts]
    writers = [Writer(tmp_path, "k", name, names if name == names[0] else None) for name in names]
    told = Manifest(200, 6400, 200, layout=LAYOUT, pieces=layouts)
    for writer, layout in reversed(list(zip(writers, layouts.values(), strict=True))):
        vector = np.zeros(layout.size, np.float32)
        for parameter in layout.parameters:
            layout.views(vector)[parameter.name][...] = LAYOUT.views(VECTOR)[parameter.name][parameter.slices]
        writer.save(200, State({"params": vector}, {"version": 200}), told if writer is writers[0] else None)
    for writer in writers:
        writer.wait()
    return tmp_path


def test_pieces_are_shown_verified_and_exported_as_the_whole_model(pieces, tmp_path):
    output, _ = run("show", pieces)
    assert "tensor1worker-0" in output and "linear1.weight 7 x 3" in output
    assert run("verify", pieces)[1] == 0
    run("export", pieces, "-o", tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as file:
        assert set(file) == {"linear1.weight", "linear1.bias", "file"}
        for name, expected in LAYOUT.views(VECTOR).items():
            np.testing.assert_array_equal(file[name], expected)


def run(*arguments):
    """The command's output, and its code; errors are raised."""
    result = CliRunner().invoke(checkpoint, [str(argument) for argument in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output, result.return_value


def damage(path):
    file = path / "server-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")


def test_show(directory):
    for path in (directory, directory / "step-000000200"):
        text, _ = run("show", path)
        for line in ("step         200", "samples      6,400", "accuracy     0.9100", "strategy sync, lr 0.1"):
            assert line in text
        assert "linear1.weight 7 x 3" in text and "worker-0 " in text and "numpy" in text
        assert not any(word in text for word in ("log", "own", "none", "more", "None", "[]", "{}"))
    told = json.loads(run("show", directory, "--json")[0])
    assert told["step"] == 200 and told["path"].endswith("step-000000200")
    assert [shard["name"] for shard in told["shards"]] == NAMES and told["layout"]["parameters"][0]["shape"] == [7, 3]


def test_verify(directory):
    assert run("verify", directory) == (
        "step-000000200: intact, 3 shards\nstep-000000100: intact, 3 shards\n",
        0,
    )
    damage(directory / "step-000000200")
    text, code = run("verify", directory)
    assert code == 1 and "step-000000200: damaged" in text and "step-000000100: intact" in text
    assert run("verify", directory / "step-000000100")[1] == 0
    assert run("verify", directory / "step-000000200")[1] == 1


def test_what_is_damaged_is_not_shown_but_the_one_before(directory):
    damage(directory / "step-000000200")
    assert "step         100" in run("show", directory)[0]
    with pytest.raises(CheckpointError, match="SHA-256"):
        run("show", directory / "step-000000200")
    damage(directory / "step-000000100")
    for command in ("show", "export"):
        with pytest.raises(CheckpointError, match="found none"):
            run(command, directory)


def test_export_for_numpy(directory, tmp_path):
    target = tmp_path / "weights.npz"
    run("export", directory, "-o", target)
    with np.load(target, allow_pickle=False) as arrays:
        assert {name: arrays[name].shape for name in arrays} == {p.name: p.shape for p in LAYOUT.parameters}
        for name, view in LAYOUT.views(VECTOR).items():
            assert np.array_equal(arrays[name], view) and arrays[name].dtype == np.float32
    run("export", directory / "step-000000100", "-o", target)
    with np.load(target, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["params"], VECTOR - 100)


def test_export_for_pytorch(directory, tmp_path):
    torch = pytest.importorskip("torch")
    run("export", directory, "-o", tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert list(state) == [p.name for p in LAYOUT.parameters]
    for name, view in LAYOUT.views(VECTOR).items():
        assert np.array_equal(state[name].numpy(), view)


def test_without_pytorch_it_says_so(directory, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="needs PyTorch"):
        run("export", directory, "-o", tmp_path / "weights.pt")
    assert not (tmp_path / "weights.pt").exists()


@pytest.mark.parametrize("output", ["weights.txt", "no/such/weights.npz", "folder.npz"])
def test_what_cannot_be_written(directory, tmp_path, output):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UsageError, match="-o"):
        run("export", directory, "-o", tmp_path / output)


def test_names_that_a_file_cannot_have(directory, tmp_path):
    path = directory / "step-000000200" / "manifest.json"
    fields = json.loads(path.read_text().replace("linear1.bias", "../../linear1"))
    del fields["sha256"]
    path.write_text(json.dumps({**fields, "format": UNSEALED}))
    with pytest.raises(CheckpointError, match="cannot export"):
        run("export", directory, "-o", tmp_path / "weights.npz")


PROBE = """
import sys
from psgd.launch import cli
try:
    cli.main(sys.argv[1:])
finally:
    print("LOADED", *[name for name in ("mpi4py", "numba", "cupy", "torch") if name in sys.modules], file=sys.stderr)
"""


def command(*arguments):
    env = {**os.environ, "PYTHONPATH": str(Path(psgd.__file__).resolve().parent.parent)}
    return subprocess.run(
        [sys.executable, "-c", PROBE, "checkpoint", *map(str, arguments)],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_starts_no_mpi(directory, tmp_path):
    for arguments, code in (
        (["--help"], 0),
        (["export", "--help"], 0),
        (["show", tmp_path / "nothing"], 2),
        (["show", directory], 0),
        (["verify", directory], 0),
    ):
        done = command(*arguments)
        lines = done.stderr.splitlines()
        assert (done.returncode, lines[-1]) == (code, "LOADED"), done.stderr
        assert len(lines) == (2 if code else 1)
    damage(folder.ready_path(directory, 200))
    assert command("verify", directory).returncode == 1


def test_the_best_of_a_folder_is_named_and_found(directory):
    better = Manifest(300, 9600, 300, 0.95, {"strategy": "sync"})
    worse = Manifest(400, 12800, 400, 0.5, {"strategy": "sync"})
    for told in (better, worse):
        writer = Writer(directory, "k", "server-0", ["server-0"])
        writer.save(told.step, sharded(range(64), VECTOR.size, {"params": VECTOR}), told)
        writer.wait()
    shown = dict(line.split(maxsplit=1) for line in run("show", directory)[0].splitlines())
    assert (shown["step"], shown["best"]) == ("400", "step-000000300, accuracy 0.9500")
    shown = dict(line.split(maxsplit=1) for line in run("show", "--best", directory)[0].splitlines())
    assert (shown["step"], shown["best"]) == ("300", "this one")
    one = directory / "step-000000100"
    assert json.loads(run("show", "--json", one)[0])["best"] == str(directory / "step-000000300")
    exported, _ = run("export", "--best", directory, "-o", directory.parent / "w.npz")
    assert exported.startswith("wrote ")


def test_a_best_where_nothing_was_evaluated_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="--best: expected a folder of checkpoints that were evaluated"):
        run("show", "--best", tmp_path)


def test_a_users_files_are_shown_with_their_checksums_and_a_model_of_ones_own_without_hidden_units():
    from psgd.launch.checkpoint import _brief

    facts = {"model": "mine.py:make", "hidden": 128, "files": {"model": "ab" * 32}}
    assert _brief(facts) == "model mine.py:make, model file with SHA-256 abababababababab..."
    assert _brief({"model": "mlp", "hidden": 128, "files": {}}) == "model mlp, hidden 128"
    assert (
        _brief({"hidden": 8, "files": {"dataset": "0" * 64}})
        == "hidden 8, dataset file with SHA-256 0000000000000000..."
    )
