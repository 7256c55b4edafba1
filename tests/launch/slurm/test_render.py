"""The text of batch scripts: equal to the bundled ones, and what each option changes in it."""

import re
import subprocess

import pytest
from harness import ROOT

from psgd.kernels.errors import UsageError
from psgd.launch.slurm.render import render
from psgd.launch.slurm.templates import KINDS, TRIALS

FOLDERS = ("psgd", "collectives", "kernels", "launch")
BUNDLED = ROOT / "slurm"


def asked(text):
    """The #SBATCH lines, as a dictionary."""
    return dict(
        line[8:].partition(" #")[0].lstrip("-").partition("=")[::2]
        for line in text.splitlines()
        if line.startswith("#SBATCH ")
    )


def options(text):
    return re.search(r"^OPTIONS=\((.*)\)$", text, re.M)[1].split()


def test_the_bundled_scripts_are_its_output():
    assert {path.name: path.read_text() for path in BUNDLED.glob("*.sbatch")} == {
        f"{kind}.sbatch": render(kind) for kind in KINDS
    }


def test_the_containers_recipe_takes_what_the_wheel_needs():
    recipe = (BUNDLED / "psgd.def").read_text()
    copied = re.findall(r"^    (\S+) /source/\1$", recipe, re.M)
    assert sorted(copied) == sorted([*FOLDERS, "setup.py", "pyproject.toml", "README.md", "LICENSE"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_it_is_a_script(kind, launcher):
    text = render(kind, launcher=launcher, container="a folder/image.sif", module=["gcc", "openmpi/5.0"], account="lab")
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).stderr == ""
    lines = text.splitlines()
    first_command = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # sbatch would not read them
    assert asked(text)["open-mode"] == "append"
    assert "export PYTHONSAFEPATH=1" in text
    assert "module load gcc openmpi/5.0" in text
    image = "--nv 'a folder/image.sif'" if KINDS[kind].gpus_per_node else "'a folder/image.sif'"
    assert f"VENV=\nRUN=(apptainer exec {image})" in text
    assert asked(text)["account"] == "lab"
    assert "##SBATCH --partition=PARTITION" in text
    if launcher == "srun":
        start = re.search(r"^start=\((srun .*)\)$", text, re.M)[1]
        assert '--cpus-per-task="$threads"' in start
        assert "--kill-on-bad-exit=1" in start
        assert ("--gpu-bind=none" in start) == bool(KINDS[kind].gpus_per_node)
        assert "no-kill" not in asked(text)
    else:
        assert "no-kill" in asked(text)
        assert 'start=(mpirun -n "$SLURM_NTASKS")' in text
        assert not any(line.strip().startswith("srun") for line in lines)
    assert "gpus-per-task=" not in text


@pytest.mark.parametrize(
    ("kind", "given", "expected"),  # nodes, tasks, the most on a node
    [
        ("cpu_parameter_server", {}, (1, 9, None)),
        ("cpu_parameter_server", {"workers": 3}, (1, 4, None)),
        ("cpu_parameter_server", {"servers": 2, "workers": 5, "nodes": 3}, (3, 7, 3)),
        ("cpu_parameter_server", {"servers": 0, "workers": 1}, (1, 1, None)),
        ("cpu_parameter_server", {"train": ["--strategy", "allreduce"]}, (1, 8, None)),
        ("cpu_parameter_server", {"train": ["--servers", "2", "--workers=6"]}, (1, 8, None)),
        ("decentralized_slow_network", {"workers": 7}, (7, 7, 1)),
        ("decentralized_slow_network", {"nodes": 3}, (3, 3, 1)),
        ("decentralized_slow_network", {"nodes": 3, "workers": 7}, (3, 7, 3)),
        ("gpu_allreduce", {}, (2, 8, 4)),
        ("gpu_allreduce", {"workers": 9}, (3, 9, 3)),
        ("gpu_allreduce", {"nodes": 3, "gpus_per_node": 8}, (3, 24, 8)),
        ("gpu_allreduce", {"train": ["--strategy", "sync"], "nodes": 2}, (2, 9, 5)),
        ("cpu_parameter_server", {"gpus_per_node": 2, "workers": 4}, (2, 5, 3)),
    ],
)
def test_resources_follow_from_servers_workers_and_gpus(kind, given, expected):
    got = asked(render(kind, **given))
    assert (int(got["nodes"]), int(got["ntasks"])) == expected[:2]
    assert got.get("ntasks-per-node") == (str(expected[2]) if expected[2] else None)
    assert expected[0] * (expected[2] or expected[1]) >= expected[1]


def test_trains_options_replace_the_example_and_keep_the_kind():
    kept = ["--strategy", "allreduce", "--device", "cuda"]
    assert options(render("gpu_allreduce", ["--epochs", "3"])) == [*kept, "--epochs", "3"]
    assert options(render("gpu_allreduce", ["--device=cpu"])) == ["--strategy", "allreduce", "--device=cpu"]
    assert options(render("cpu_parameter_server", [], servers=2)) == ["--strategy", "sync", "--servers", "2"]
    assert options(render("cpu_parameter_server", [], servers=1)) == ["--strategy", "sync"]
    assert options(render("cpu_parameter_server", [], gpus_per_node=2))[2:] == ["--device", "cuda"]
    assert "gpus-per-node" not in asked(render("gpu_allreduce", ["--device", "cpu"]))
    assert asked(render("cpu_parameter_server", ["--server-device", "cuda"], gpus_per_node=1))["gpus-per-node"] == "1"
    assert "OPTIONS=(--strategy sync --dataset 'my data; rm x')" in render("array", ["--dataset", "my data; rm x"])


def test_a_files_options_count_and_are_not_repeated():
    file = ["--strategy", "allreduce", "--mesh", "pipe=2", "--workers", "3", "--grow", "0.5:1,1:3"]
    text = render("long_job", ["--config", "x.toml"], file[:4] + file[4:6], launcher="mpirun")
    assert options(text) == ["--config", "x.toml"] and asked(text)["ntasks"] == "6"
    with pytest.raises(UsageError, match="--grow says how many workers there are"):
        render("long_job", ["--config", "x.toml"], file, launcher="mpirun", workers=2)
    assert asked(render("long_job", [], ["--spares", "2"], launcher="mpirun", workers=3))["ntasks"] == "6"
    on_gpus = render("cpu_parameter_server", ["--config", "x.toml"], ["--device", "cuda"], gpus_per_node=2)
    assert options(on_gpus) == ["--strategy", "sync", "--config", "x.toml"]
    assert "Trains with --strategy easgd on CPUs." in render("cpu_parameter_server", [], ["--strategy", "easgd"])
    with pytest.raises(UsageError, match="--log: the script sets it"):
        render("array", None, ["--log", "a.jsonl"])
    with pytest.raises(UsageError, match="nothing is left to try"):
        render("array", [], ["--lr", "0.1", "--batch-size", "32"])


def test_numbers_and_names_reach_sbatch():
    text = render(
        "long_job",
        cpus_per_task=6,
        mem_per_cpu_mb=1500,
        time_min=90,
        job_name="mine",
        partition="long",
        sbatch=["--qos=high", "-x", "--constraint=a&b"][::2],
        venv="/home/me/my env",
        mpi="pmi2",
        signal_delay_s=300,
        max_restarts=7,
    )
    got = asked(text)
    wanted = ("cpus-per-task", "mem-per-cpu", "time", "job-name", "partition", "qos", "constraint", "signal")
    assert [got[name] for name in wanted] == ["6", "1500", "90", "mine", "long", "high", "a&b", "B:USR2@300"]
    assert "requeue" in got
    for line in ("VENV='/home/me/my env' # where psgd is installed", "MAX_RESTARTS=7"):
        assert line in text.splitlines()
    assert "\nMPI=pmi2 " in text


def test_an_array_has_a_job_for_each_trial():
    assert asked(render("array"))["array"] == f"0-{len(TRIALS) - 1}"
    text = render("array", trial=["--lr 1", "--lr 2 --seed 3"])
    assert asked(text)["array"] == "0-1"
    assert "    '--lr 1'\n    '--lr 2 --seed 3'\n)" in text
    assert asked(text)["output"] == "%x-%A-%a.out"
    text = render("array", ["--lr=0.3"])  # which would change nothing if the trials named it too
    assert asked(text)["array"] == "0-2"
    assert re.findall(r"^    '(.*)'$", text, re.M) == [f"--batch-size {size}" for size in (16, 32, 64)]


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("cpu_parameter_server", {}, KINDS["cpu_parameter_server"].what),
        ("cpu_parameter_server", {"train": ["--strategy", "allreduce"]}, "Trains with --strategy allreduce on CPUs."),
        ("cpu_parameter_server", {"gpus_per_node": 2}, "Trains with --strategy sync on GPUs."),
        ("array", {"train": ["--strategy", "allreduce"]}, KINDS["array"].what),
    ],
)
def test_its_first_line_says_what_it_trains(kind, given, said):
    assert render(kind, **given).splitlines()[1] == f"# {said}"


WRONG = [
    ("gpu", {}, "kind 'gpu': expected one of cpu_parameter_server"),
    ("array", {"launcher": "ssh"}, "--launcher 'ssh': expected one of srun, mpirun"),
    ("array", {"mpi": "openmpi"}, "--mpi 'openmpi': expected one of pmix, pmi2"),
    ("array", {"nodes": 9}, "--nodes 9: expected at most one per rank, got 4 ranks"),
    ("array", {"workers": 0}, "--workers 0: expected at least 1"),
    ("array", {"servers": 0}, "--servers 0: expected --workers 1 with it, got 3"),
    ("array", {"time_min": 0}, "--time-min 0: expected at least 1"),
    ("array", {"job_name": "two words"}, "got '--job-name=two words'"),
    ("array", {"sbatch": ["--qos=a\n#SBATCH"]}, "expected one option without spaces"),
    ("array", {"train": ["--log", "x"]}, "--log: the script sets it"),
    ("array", {"train": ["--workers", "x"]}, "--workers: expected a whole number, got 'x'"),
    ("array", {"train": ["--workers", "2"], "workers": 3}, "--workers: 3 before --, 2 after it"),
    ("decentralized_slow_network", {"servers": 1}, "--servers 1: the strategy has no servers"),
    ("gpu_allreduce", {"nodes": 2, "workers": 9}, "--workers 9: expected at most one per GPU, got 2 nodes with 4 each"),
    ("long_job", {"train": ["--resume"]}, "--resume: the script sets it"),
    ("long_job", {"signal_delay_s": 0}, "--signal-delay-s"),
    ("long_job", {"time_min": 1}, "--signal-delay-s 120: expected at most 59 with a time limit of 1 min, or a longer"),
    ("long_job", {"signal_delay_s": 99999999, "time_min": 10**7}, "--signal-delay-s 99999999: expected at most 65535"),
    ("array", {"signal_delay_s": 60}, "--signal-delay-s: kind array does not take it, expected kind long_job"),
    ("gpu_allreduce", {"max_restarts": 3}, "--max-restarts: kind gpu_allreduce does not take it"),
    ("long_job", {"trial": ["--lr 1"]}, "--trial: kind long_job does not take it, expected kind array"),
    ("array", {"trial": ["--log x"]}, "--log: the script sets it"),
    ("array", {"trial": ["--device cuda"]}, "--trial '--device cuda': --device cuda needs GPUs"),
    ("array", {"train": ["--lr", "1", "--batch-size=8"]}, "nothing is left to try; expected --trial"),
    ("array", {"train": ["--device", "cuda"]}, "--device cuda: expected --gpus-per-node N"),
    ("gpu_allreduce", {"gpus_per_node": 0}, "--device cuda: expected --gpus-per-node N"),
    ("array", {"train": ["--device=cpu"], "gpus_per_node": 2}, "--gpus-per-node 2: --device cpu uses no GPUs"),
    ("array", {"venv": "a", "container": "b"}, "--venv, --container: expected one of the two"),
]


@pytest.mark.parametrize(("kind", "given", "message"), WRONG)
def test_what_does_not_go_together_is_refused(kind, given, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        render(kind, **given)


@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ("--spares 2", 11),
        ("--grow 0.25:2,1:4", 5),
        ("--grow 0.25:2,1:4 --spares=1", 6),
        ("--strategy allreduce --grow 0.5:2,1:3 --mesh pipe=2 --spares 1", 7),
    ],
)
def test_ranks_that_stand_by_are_tasks_too(words, tasks):
    text = render("long_job", words.split(), launcher="mpirun")
    assert asked(text)["ntasks"] == str(tasks)
    assert 'start=(mpirun -n "$SLURM_NTASKS" --with-ft ulfm)' in text
    with pytest.raises(UsageError, match="--spares, --grow: expected --launcher mpirun"):
        render("long_job", words.split())


@pytest.mark.parametrize("option", ["--replicas", "--drop-straggler-after"])
@pytest.mark.parametrize("where", ["words", "file", "trial"])
def test_runs_that_outlive_a_rank_are_started_so(option, where):
    given = {"array": {"trial": [f"--lr 0.1 {option} 1"]}} if where == "trial" else {"long_job": {}}
    kind, more = next(iter(given.items()))
    words = [option, "1", "--servers", "2"]
    said = {"words": (words, ()), "file": (["--config", "x.toml"], words), "trial": (["--servers", "2"], ())}[where]
    assert 'start=(mpirun -n "$SLURM_NTASKS" --with-ft ulfm)' in render(kind, *said, launcher="mpirun", **more)
    with pytest.raises(UsageError, match=f"{option}: expected --launcher mpirun, as srun ends"):
        render(kind, *said, **more)


def test_so_is_one_that_is_asked_to_survive():
    text = render("cpu_parameter_server", ["--survive"], launcher="mpirun")
    assert 'start=(mpirun -n "$SLURM_NTASKS" --with-ft ulfm)' in text
    with pytest.raises(UsageError, match="--survive: expected --launcher mpirun, as srun ends"):
        render("cpu_parameter_server", ["--survive"])


def test_no_replicas_need_no_such_start():
    file = ["--replicas", "1", "--servers", "2"]
    text = render("long_job", ["--config", "x.toml", "--replicas", "0"], file)
    assert "start=(srun " in text and "with-ft" not in text
    assert "with-ft" not in render("long_job", ["--replicas=0"], launcher="mpirun")


@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ("--strategy allreduce --workers 3 --mesh pipe=2", 6),
        ("--strategy sync --workers 3 --servers 2 --mesh tensor=2,pipe=2", 20),
        ("--strategy allreduce --mesh data=3,pipe=2", 6),
        ("--strategy allreduce --mesh pipe=2", 8),  # as many ranks as without
    ],
)
def test_a_worker_in_pieces_is_several_tasks(words, tasks):
    assert asked(render("long_job", words.split()))["ntasks"] == str(tasks)


def test_who_joins_when_is_said_once():
    with pytest.raises(UsageError, match="--workers 3: --grow says how many"):
        render("long_job", ["--grow", "0.5:2,1:3"], workers=3, launcher="mpirun")
    with pytest.raises(UsageError, match="all jobs of an array have the same ranks"):
        render("array", trial=["--spares 1"], launcher="mpirun")
