import json
import os
import shutil

import numpy as np
import pytest

from psgd.checkpoint import folder, manifest, shards
from psgd.checkpoint.manifest import FILE, UNSEALED, Manifest
from psgd.kernels.errors import CheckpointError, UsageError


def make(directory, step, accuracy=None, names=("server-0", "worker-0")):
    part = folder.part_path(directory, step, "k3y")
    part.mkdir(parents=True)
    written = [shards.write(part, name, {"params": np.full(50, step + i)}, "{}") for i, name in enumerate(names)]
    return folder.publish(directory, part, Manifest(step, 7 * step, accuracy=accuracy), written)


def steps(directory):
    warnings = []
    found = [checkpoint.manifest.step for checkpoint in folder.complete(directory, warnings.append)]
    return found, warnings


def test_newest_first(tmp_path):
    for step in (5, 1_000_000_000_000, 10, 200):
        make(tmp_path, step)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "notes.txt").touch()
    folder.part_path(tmp_path, 300, "dead").mkdir()
    assert steps(tmp_path) == ([1_000_000_000_000, 200, 10, 5], [])
    assert steps(tmp_path / "missing") == ([], [])
    found = next(folder.complete(tmp_path, print))
    assert found.path.name == "step-1000000000000"
    assert found.state("worker-0").tensors["params"][7] == 1_000_000_000_001


def test_the_same_step_again_replaces(tmp_path):
    make(tmp_path, 5)
    path = make(tmp_path, 5, names=("server-0", "server-1", "server-2"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000005"]
    assert len(folder.open_checkpoint(path).manifest.shards) == 3


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def moved(path):
    other = path.parent / "step-000000005"
    shutil.rmtree(path)
    shutil.copytree(other, path)


DAMAGE = {
    "flipped": (lambda path: flip(path / "worker-0.safetensors"), "SHA-256"),
    "truncated": (lambda path: (path / "worker-0.safetensors").write_bytes(b"12"), "truncated"),
    "missing": (lambda path: (path / "server-0.safetensors").unlink(), "cannot be read"),
    "no manifest": (lambda path: (path / FILE).unlink(), "cannot be read"),
    "half a manifest": (lambda path: (path / FILE).write_text((path / FILE).read_text()[:99]), "not JSON"),
    "another's": (moved, "its manifest says step 5"),
    "empty": (lambda path: [file.unlink() for file in path.iterdir()], "cannot be read"),
    "a file": (lambda path: (shutil.rmtree(path), path.write_text("x")), "cannot be read"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_damaged_is_passed_over_with_a_warning(tmp_path, how):
    for step in (5, 10, 15):
        path = make(tmp_path, step)
    damage, said = DAMAGE[how]
    damage(path)
    found, warnings = steps(tmp_path)
    assert found == [10, 5]
    assert len(warnings) == 1 and "\n" not in warnings[0]
    assert warnings[0].startswith("checkpoint step-000000015 is skipped") and said in warnings[0]


def test_no_manifest_leads_out_of_its_folder(tmp_path):
    """The file outside is there and its checksum is right."""
    path = make(tmp_path, 5)
    manifest = json.loads((path / FILE).read_text())
    outside = shards.write(tmp_path, "secret", {"x": np.ones(3)}, "{}")
    manifest["shards"].append({"name": "../secret", "size": outside.size, "sha256": outside.sha256})
    del manifest["sha256"]
    (path / FILE).write_text(json.dumps({**manifest, "format": UNSEALED}))
    with pytest.raises(CheckpointError, match="expected a name such as"):
        folder.open_checkpoint(path)


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.9), (4, None), (5, 0.7), (6, 0.1)):
        make(tmp_path, step, accuracy)
    (folder.ready_path(tmp_path, 4) / FILE).write_text("{")
    folder.prune(tmp_path, 2)
    assert [path.name[-1] for path in folder.folders(tmp_path)] == ["6", "5", "4", "2"]  # 4 cannot be read
    folder.prune(tmp_path, 0)
    assert [path.name[-1] for path in folder.folders(tmp_path)] == [
        "6",
        "4",
        "2",
    ]  # of two as good, the nearer one to its evaluation
    assert not list(tmp_path.glob("*.part"))


def test_the_newest_that_can_be_read(tmp_path):
    """What an interrupted run says, and what is compared before anything starts."""
    assert folder.newest(tmp_path / "missing") is None
    assert folder.how_to_resume(None).startswith("nothing was saved; --checkpoint-dir")
    assert folder.how_to_resume(tmp_path).startswith(f"there is no complete checkpoint in {tmp_path}")
    make(tmp_path, 5)
    (make(tmp_path, 2_000) / FILE).write_text("{")
    assert folder.newest(tmp_path).manifest.step == 5
    said = folder.how_to_resume(tmp_path)
    assert (
        said.startswith(f"the newest checkpoint is {tmp_path / 'step-000000005'}, at step 5; ") and "--resume" in said
    )
    folder.refuse_occupied(tmp_path / "missing", {})
    with pytest.raises(UsageError, match="step-000002000 from another run"):
        folder.refuse_occupied(tmp_path, {})


def test_whether_a_directory_can_be_taken_is_seen_without_making_it(tmp_path):
    folder.check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UsageError, match=r"cannot be written: .*file is a file"):
            folder.check_writable(path)
    claim = folder.claim(tmp_path / "runs")
    with pytest.raises(UsageError, match="another run is writing to"):
        folder.check_writable(tmp_path / "runs")
    claim.close()
    folder.check_writable(tmp_path / "runs")
    folder.claim(tmp_path / "runs").close()


def test_a_run_removes_what_it_left_incomplete_and_nothing_of_others(tmp_path):
    make(tmp_path, 5)
    for step, key in ((4, "mine"), (5, "mine"), (6, "mine"), (4, "other")):
        folder.part_path(tmp_path, step, key).mkdir()
    folder.part_path(tmp_path, 3, "mine").symlink_to(tmp_path)
    folder.remove_parts(tmp_path, "mine", 5)
    left = {"step-000000005.mine.part", "step-000000006.mine.part"}
    kept = {"step-000000005", "step-000000003.mine.part", "step-000000004.other.part"}
    assert {path.name for path in tmp_path.iterdir()} == left | kept
    folder.remove_parts(tmp_path, "mine")
    folder.remove_parts(tmp_path / "gone", "mine")
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_claim_removes_leftovers_and_is_for_one(tmp_path):
    directory = tmp_path / "new" / "runs"
    claim = folder.claim(directory)
    make(directory, 5)
    part = folder.part_path(directory, 6, "dead")
    part.mkdir()
    (part / "worker-0.safetensors").write_bytes(b"half")
    (directory / "mine.part").mkdir()
    (tmp_path / "elsewhere").mkdir()
    link = folder.part_path(directory, 7, "link")
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="another run is writing to"):
        folder.claim(directory)
    with pytest.raises(UsageError, match="another run is writing to"):
        folder.hold(directory)
    assert part.exists()
    claim.close()
    claim.close()
    folder.hold(directory).close()
    assert part.exists()
    with_it = folder.claim(directory)
    assert {path.name for path in directory.iterdir()} == {".lock", "step-000000005", "mine.part", link.name}
    with_it.close()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        folder.claim(tmp_path / "file" / "runs")
    with pytest.raises(UsageError, match="cannot be written"):
        folder.claim(tmp_path / "a\0b")


def test_nobody_else_can_hold_the_lock(tmp_path):
    lock = tmp_path / ".lock"
    lock.touch()
    lock.chmod(0o666)
    folder.claim(tmp_path).close()
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink()
    lock.symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="cannot be written"):
        folder.claim(tmp_path)
    assert not (tmp_path / "victim").exists()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_plain_file_is_refused_and_not_waited_for(tmp_path, make):
    make(tmp_path / ".lock")
    folder.check_writable(tmp_path)
    with pytest.raises(UsageError, match=r"cannot be written: (\.lock in it is not a plain file|Is a directory)"):
        folder.claim(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_no_directory_is_reached_through_a_link_of_another_user(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "tmp" / "runs").symlink_to(tmp_path / "mine")
    os.lchown(tmp_path / "tmp" / "runs", 65534, 65534)
    with pytest.raises(UsageError, match=r"tmp/runs is a symbolic link that another user made"):
        folder.claim(tmp_path / "tmp" / "runs")
    assert list((tmp_path / "mine").iterdir()) == []


def test_one_whose_weights_are_not_numbers_is_passed_over(tmp_path):
    """As an earlier version could save it; its checksums are right."""
    make(tmp_path, 5)
    newest = make(tmp_path, 6)
    whole = folder.open_checkpoint(newest).manifest
    name = whole.names()[0]
    state = folder.open_checkpoint(newest).state(name)
    state.tensors["params"] = np.array([1.0, np.nan])
    spoiled = shards.write(newest, name, state.tensors, json.dumps(state.facts))
    manifest.write(newest, whole, [spoiled, *(shard for shard in whole.shards if shard.name != name)])
    said = []
    assert next(folder.complete(tmp_path, said.append)).manifest.step == 5
    assert len(said) == 1 and "step-000000006 is skipped" in said[0] and "NaN or infinity" in said[0]
