import contextlib
import importlib
import inspect
from pathlib import Path

import pytest

from psgd.config import TrainConfig
from psgd.config import options as config_options
from psgd.kernels.errors import DataError, UsageError
from psgd.launch import options
from psgd.optim import schedules
from psgd.optim.catalog import RULES
from psgd.strategies.catalog import STRATEGIES

KINDS = config_options()


def test_each_field_is_an_option_with_a_good_default():
    assert set(KINDS) == set(TrainConfig().flat())
    for name, value in TrainConfig().flat().items():
        if value is not None:
            assert KINDS[name].allowed(value), name
            assert type(value) is KINDS[name].type, name


def test_names_are_those_of_the_library():
    assert tuple(KINDS["strategy"].names) == tuple(STRATEGIES)
    assert tuple(KINDS["optimizer"].names) == tuple(RULES)
    assert KINDS["schedule"].names == schedules.NAMES


def test_defaults():
    assert options.build({}) == TrainConfig()


def test_flags_are_given_their_types():
    got = options.build({"epochs": "3", "lr": "1e-2", "seed": "9", "log": "a/b.jsonl", "scale_lr": True})
    assert got == TrainConfig(epochs=3, lr=0.01, seed=9, log=Path("a/b.jsonl"), scale_lr=True)


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('batch-size = 64\nlr = 1\nmodel = "cnn"\nscale_lr = true\n')
    got = options.build({"lr": "0.5", "scale_lr": False, "model": None}, str(file))
    assert got == TrainConfig(batch_size=64, lr=0.5, model="cnn")


WRONG_VALUES = {
    "dataset": [""],
    "model": ["MLP", ""],
    "strategy": ["bsp"],
    "workers": ["0", "-1", "1.5", "two"],
    "servers": ["-1"],
    "epochs": ["0", "1e3"],
    "batch_size": ["0", "-32"],
    "lr": ["0", "-0.1", "nan", "inf", "x"],
    "optimizer": ["adamw"],
    "momentum": ["1", "-0.1", "nan"],
    "weight_decay": ["-1", "inf"],
    "schedule": ["linear"],
    "warmup_epochs": ["-1", "nan"],
    "step_epochs": ["0"],
    "step_factor": ["0", "nan"],
    "clip_norm": ["-1", "nan"],
    "reduction": ["max"],
    "seed": ["-1", str(2**63)],
    "eval_every": ["-1"],
    "early_stop": ["-1", "1.5"],
    "target_accuracy": ["1.01", "-0.1", "nan"],
    "drop_straggler_after": ["0", "inf"],
    "softsync": ["0", "x"],
    "staleness": ["-1", "1.5"],
    "period": ["0"],
    "local_from": ["-1", "nan"],
    "outer_lr": ["0", "inf"],
    "outer_momentum": ["1", "-0.1"],
    "easgd_order": ["tree"],
    "rho": ["0", "nan"],
    "accumulate": ["0"],
    "staleness_lr": ["linear"],
    "on_nan": ["ignore", ""],
    "hidden": ["0", "1.5"],
    "layers": ["0", "1.5"],
    "width": ["0", "x"],
    "heads": ["0", "2.5"],
    "context": ["0", "-1"],
    "peers": ["", "random", "random:x", "random:1", "some"],
    "window": ["0"],
    "compress": ["zip"],
    "dropout": ["1", "-0.1", "nan"],
    "density": ["0", "1.01", "nan"],
    "compress_warmup": ["-1", "inf"],
    "compress_sync": ["-1", "0.5"],
    "record": [""],
    "replay": [""],
    "log": [""],
    "tensorboard": [""],
    "trace": [""],
    "save": ["", "weights.txt"],
    "checkpoint_dir": [""],
    "checkpoint_every": ["-1", "1.5"],
    "checkpoint_minutes": ["-1", "nan"],
    "checkpoint_keep": ["0"],
    "replicas": ["-1", "2"],
    "spares": ["-1", "1.5"],
    "grow": ["", "4", "0.5:2", "0.5:4,1:2"],
    "save_signal": ["", "USR1", "KILL", "12"],
    "recompute": ["", "some", "-1"],
    "mesh": ["", "pipe", "rows=2", "pipe=0", "pipe=2,pipe=2"],
    "cut": ["", "a", "3,", "3.5"],
    "shard": ["0", "4", "x"],
    "pipe_schedule": ["inference", "gpip"],
    "microbatches": ["0", "1.5"],
    "placement": ["first"],
    "log_dir": [""],
    "device": ["gpu"],
    "server_device": ["gpu"],
    "data_device": ["gpu"],
    "offload": ["gradients", "all"],
    "offload_staleness": ["2", "-1"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, all_ in WRONG_VALUES.items() for text in all_])
def test_a_wrong_flag_names_itself_and_what_it_expects(name, text):
    with pytest.raises(UsageError) as caught:
        options.build({name: text})
    message = str(caught.value)
    assert message.startswith(f"--{name.replace('_', '-')}: expected ")
    assert "got" in message


def test_every_option_that_can_be_wrong_is_tested():
    assert set(WRONG_VALUES) == set(KINDS) - {
        *("scale_lr", "average_momentum", "inject", "resume", "check_data", "keep_best", "survive"),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lr = '0.1'", "lr in FILE: expected a finite number above 0, got '0.1'"),
        ("epochs = 2.0", "epochs in FILE: expected a whole number, at least 1, got 2.0"),
        ("epochs = true", "epochs in FILE: expected a whole number, at least 1, got True"),
        ("lr = true", "lr in FILE: expected a finite number above 0, got True"),
        ("lr = nan", "lr in FILE: expected a finite number above 0, got nan"),
        ("scale-lr = 1", "scale-lr in FILE: expected true or false, got 1"),
        ("model = ['mlp']", "model in FILE: expected one of softmax, mlp, cnn, lecture-cnn, resmlp, gpt or "),
        ("log = 3", "log in FILE: expected a file's path, got 3"),
        ("batchsize = 3", "unknown option 'batchsize'; did you mean batch-size?"),
        ("xyzzy = 3", "unknown option 'xyzzy'; see psgd train --help"),
        ("[train]\nlr = 1", "unknown option 'train'"),
        ("batch-size = 3\nbatch_size = 3", "'batch_size' is given twice"),
        ("lr = ", "not TOML"),
    ],
)
def test_a_wrong_file(text, said, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        options.build({}, str(file))
    assert said.replace("FILE", str(file)) in str(caught.value)
    assert not isinstance(caught.value, options.UnreadableError)


@pytest.mark.parametrize("path", ["missing.toml", ".", "with\0nul"])
def test_an_unreadable_file_is_told_apart(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(options.UnreadableError, match="cannot be read"):
        options.build({}, path)


def test_binary_is_not_toml(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not TOML"):
        options.build({}, str(file))


@pytest.mark.parametrize(("workers", "fine"), [(None, True), ("1", True), ("2", False)])
def test_no_server_needs_one_worker(workers, fine):
    flags = {"servers": "0", "workers": workers}
    if fine:
        assert options.build(flags).servers == 0
    else:
        with pytest.raises(UsageError, match="--servers 0"):
            options.build(flags)


@pytest.mark.parametrize("name", ["log", "record"])
def test_what_is_written_must_be_writable_and_is_not_created(tmp_path, name):
    file = tmp_path / "run.jsonl"
    options.check_files(TrainConfig(**{name: file}))
    assert not file.exists()
    with pytest.raises(UsageError, match="existing folder"):
        options.check_files(TrainConfig(**{name: tmp_path / "no" / "run.jsonl"}))
    with pytest.raises(UsageError, match=f"--{name}"):
        options.check_files(TrainConfig(**{name: tmp_path}))


def test_weights_must_be_writable_and_are_not_created(tmp_path):
    options.check_files(TrainConfig(save=tmp_path / "a.npz"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "folder.npz").mkdir()
    for path in (tmp_path / "folder.npz", tmp_path / "no" / "a.npz", tmp_path / "a.txt"):
        with pytest.raises(UsageError, match=r"--save .*: expected a"):
            options.check_files(TrainConfig(save=path))


def test_checkpoint_options_need_a_folder_and_only_those_given_are_named():
    with pytest.raises(UsageError) as caught:
        options.build({"checkpoint_keep": "3", "save_signal": "TERM", "resume": False})
    assert str(caught.value) == "--checkpoint-keep, --save-signal: expected --checkpoint-dir with them"
    with pytest.raises(UsageError, match=r"^--resume: expected --checkpoint-dir with it$"):
        options.build({"resume": True})
    with pytest.raises(UsageError, match="USR2, TERM, HUP or any other but USR1, INT, KILL, STOP"):
        options.build({"save_signal": "KILL", "checkpoint_dir": "a"})


def test_an_order_to_follow_must_be_there(tmp_path):
    with pytest.raises(UsageError, match=r"--replay .*none: expected a file that --record wrote"):
        options.check_files(TrainConfig(replay=tmp_path / "none"))


def test_each_strategy_has_the_options_that_it_says():
    assert {name for name, each in STRATEGIES.items() if not each.servers} == {
        *("allreduce", "averaging", "easgd", "hogwild", "decentralized")
    }
    assert {name for name, each in STRATEGIES.items() if each.compressible} == {
        *("sync", "async", "softsync", "ssp", "allreduce", "decentralized")
    }
    for name, strategy in STRATEGIES.items():
        create = importlib.import_module(strategy.module).create
        assert [*inspect.signature(create).parameters][1:] == [*strategy.own], name
        hidden = {"hogwild": {"count_lost"}}.get(name, set())
        assert {key for key, each in strategy.options.items() if each.hidden} == hidden, name


@pytest.mark.parametrize(
    ("strategy", "name"), [(s, n) for s, each in STRATEGIES.items() for n, o in each.options.items() if not o.hidden]
)
def test_a_strategy_takes_its_own_options(strategy, name):
    option = STRATEGIES[strategy].options[name]
    value = 0.5 if option.default is None else option.default
    given = value if isinstance(value, bool) else str(value)
    assert options.build({"strategy": strategy, name: given}).own == {name: value}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"staleness": "3"}, "--staleness: strategy sync does not take it, expected --strategy ssp"),
        (
            {"strategy": "ssp", "period": "3"},
            "--period: strategy ssp does not take it, expected --strategy averaging or",
        ),
        ({"strategy": "hogwild", "servers": "1"}, "--servers 1: strategy hogwild has none"),
        ({"strategy": "hogwild", "placement": "spread"}, "--placement spread: there are no servers to place"),
        ({"servers": "0", "workers": "1", "placement": "spread"}, "--placement spread: there are no servers"),
        ({"data_device": "cpu"}, "--data-device cpu: expected --device cuda with it"),
        ({"offload": "optimizer"}, "--offload optimizer: expected --device cuda with it"),
        ({"offload_staleness": "1", "device": "cuda"}, "--offload-staleness 1: expected --offload optimizer with it"),
        ({"strategy": "allreduce", "record": "x"}, "strategy allreduce has no servers to do that"),
        ({"strategy": "easgd", "staleness_lr": "inverse"}, "strategy easgd has no servers to do that"),
        ({"replay": "x", "target_accuracy": "0.9"}, "--target-accuracy: when it is reached depends on timing"),
        (
            {"strategy": "easgd", "compress": "topk"},
            "--compress topk: strategy easgd averages parameters, expected one of sync",
        ),
        ({"compress": "topk", "optimizer": "adam"}, "--compress topk: expected --optimizer sgd or momentum, got adam"),
        ({"strategy": "decentralized", "optimizer": "adam"}, "expected --optimizer sgd or momentum, got adam"),
        ({"compress_warmup": "1"}, "--compress-warmup: expected --compress threshold, onebit or topk with it"),
        (
            {"strategy": "decentralized", "peers": "pairs", "compress": "onebit"},
            "--peers pairs averages whole parameters",
        ),
        ({"spares": "1"}, "--spares: expected --checkpoint-dir with it"),
        ({"grow": "0.5:1,1:2"}, "--grow: expected --checkpoint-dir with it"),
        ({"grow": "0.5:1,1:2", "checkpoint_dir": "x", "workers": "2"}, "--grow 0.5:1,1:2: .* omit --workers"),
        (
            {"grow": "0.5:1,1:2", "checkpoint_dir": "x", "mesh": "pipe=2", "pipe_schedule": "pipedream"},
            "--grow 0.5:1,1:2: .*got --pipe-schedule pipedream",
        ),
        ({"spares": "1", "checkpoint_dir": "x", "device": "cuda"}, "--spares: expected ranks without GPUs"),
        ({"spares": "1", "checkpoint_dir": "x", "trace": "y"}, "--spares: a trace is of ranks that stay"),
        ({"strategy": "asinc"}, "did you mean async"),
    ],
)
def test_options_that_do_not_go_together(flags, message):
    with pytest.raises(UsageError, match=message):
        options.build(flags)


def test_a_users_file_is_looked_at_but_not_run(tmp_path):
    (tmp_path / "net.py").write_text("raise RuntimeError\ndef make(): ...\n")
    options.check_here(TrainConfig(model=f"{tmp_path}/net.py:make", dataset=f"{tmp_path}/net.py:make"))
    for name in ("model", "dataset"):
        with pytest.raises(UsageError, match=f"^--{name} .*net.py has no function nope; it defines make$"):
            options.check_here(TrainConfig(**{name: f"{tmp_path}/net.py:nope"}))
    with pytest.raises(DataError):
        options.check_here(TrainConfig(model=f"{tmp_path}/net.py:make", dataset=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"model": "net.py"},
            "^--model: expected one of softmax, mlp, cnn, lecture-cnn, resmlp, gpt or FILE.py:FUNCTION, got 'net.py'$",
        ),
        ({"model": "mpl"}, r"^--model: expected .*, got 'mpl'; did you mean mlp\?$"),
        ({"dataset": "data.py"}, "^--dataset: expected a name, a path or FILE.py:FUNCTION, got 'data.py'$"),
        ({"model": "net.py:make", "hidden": "8"}, "^--hidden: expected a model by name with it, got --model net.py:"),
        ({"model": "net.py:make", "width": "8"}, "^--width: model net.py:make does not take it, expected --model gpt$"),
        ({"layers": "8"}, "^--layers: model mlp does not take it, expected --model gpt$"),
        ({"model": "cnn", "heads": "8"}, "^--heads: model cnn does not take it, expected --model gpt$"),
        ({"model": "cnn", "context": "8"}, "^--context: model cnn does not take it, expected --model gpt$"),
        ({"model": "gpt", "hidden": "8"}, "^--hidden: model gpt does not take it; it has --layers, --width, --heads$"),
    ],
)
def test_models_and_datasets_by_file(flags, message):
    with pytest.raises(UsageError, match=message):
        options.build(flags)


def test_options_of_a_model_belong_to_runs_with_it():
    run = options.build({"model": "gpt", "context": "32", "heads": "2"}).of_the_run()
    assert (run["layers"], run["width"], run["heads"], run["context"]) == (4, 128, 2, 32)
    assert "heads" not in options.build({}).of_the_run()
    assert options.build({"model": "net.py:make", "context": "8"}).context == 8


def test_a_model_for_text_and_one_for_samples_with_a_class_each():
    options.check_here(TrainConfig(dataset="genesis", model="gpt"))
    with pytest.raises(UsageError, match=r"^model mlp: the dataset has text.*; expected --model gpt$"):
        options.check_here(TrainConfig(dataset="genesis"))
    with pytest.raises(UsageError, match=r"^model gpt: .* not text; expected --model softmax, .* --dataset genesis"):
        options.check_here(TrainConfig(model="gpt"))
    with pytest.raises(UsageError, match="expected a width that is a multiple of its 3 heads, got 128"):
        options.check_here(TrainConfig(dataset="genesis", model="gpt", heads=3))


def test_the_dataset_must_open(tmp_path):
    options.check_here(TrainConfig())
    with pytest.raises(DataError):
        options.check_here(TrainConfig(dataset=str(tmp_path / "none")))


def test_a_cnn_needs_images(tmp_path):
    import numpy as np

    pytest.importorskip("psgd.nn.models")
    file = tmp_path / "flat.npz"
    np.savez(file, x=np.ones((12, 5), np.float32), y=np.arange(12) % 2)
    options.check_here(TrainConfig(dataset=str(file)))
    with pytest.raises(UsageError, match="cnn"):
        options.check_here(TrainConfig(dataset=str(file), model="cnn"))


def test_a_resmlp_needs_images_or_tokens(tmp_path):
    import numpy as np

    for shape, fits in (((5,), False), ((3, 5), True), ((1, 4, 5), True)):
        file = tmp_path / f"{len(shape)}.npz"
        np.savez(file, x=np.ones((12, *shape), np.float32), y=np.arange(12) % 2)
        config = TrainConfig(dataset=str(file), model="resmlp")
        if fits:
            options.check_here(config)
        else:
            with pytest.raises(UsageError, match=r"resmlp needs images .* or samples \(tokens, features\)"):
                options.check_here(config)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_may_say_its_encoding(encoding, tmp_path):
    mark = "\ufeff" if encoding.endswith("e") else ""  # the others write one themselves
    (tmp_path / "a.toml").write_bytes((mark + 'dataset = "données.npz"\r\nlr = 0.5\r\n').encode(encoding))
    assert options.read_file(str(tmp_path / "a.toml")) == {"dataset": "données.npz", "lr": 0.5}


@pytest.mark.parametrize(
    "text", [b"\xff\xfel\0r", b"\xff\xfe\0", "lr = 0.5".encode("utf-16-le"), b"lr = 1" + b"0" * 5000]
)
def test_a_file_that_is_no_text_is_one_message(text, tmp_path):
    (tmp_path / "a.toml").write_bytes(text)
    with pytest.raises(UsageError, match=r"^--config .*a.toml: not TOML|expected a finite number"):
        options.read_file(str(tmp_path / "a.toml"))


@pytest.mark.parametrize("name", [name for name, each in config_options().items() if each.type in (int, float)])
def test_giant_numbers_are_taken_or_refused(name):
    for value in ("1e11", "1e308", "1e400", "nan", str(2**31), "9" * 400, "9" * 5000, 10**400, 10**5000, 2.0**70):
        with contextlib.suppress(UsageError):
            options.build({name: value})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"early_stop": "2", "eval_every": "0"}, "--early-stop: expected evaluations: --eval-every above 0"),
        ({"keep_best": True, "eval_every": "0", "checkpoint_dir": "runs"}, "--keep-best: expected evaluations"),
        ({"keep_best": True}, "--keep-best: expected --checkpoint-dir with it"),
        ({"early_stop": "2", "record": "order"}, "--early-stop: when a run stops depends on timing"),
    ],
)
def test_what_evaluations_decide_needs_them(flags, message):
    with pytest.raises(UsageError, match=message):
        options.build(flags)


@pytest.mark.parametrize("strategy", ["sync", "ssp", "allreduce"])
def test_a_device_of_servers_that_there_are_not(strategy):
    alone = {"servers": "0", "workers": "1"}
    options.build(alone | {"strategy": strategy, "server_device": "cpu"})
    with pytest.raises(UsageError, match=r"^--server-device.*omit it$"):
        options.build(alone | {"strategy": strategy, "server_device": "cuda"})


def test_dropout_is_an_option_of_models_that_have_it():
    assert options.build({"model": "lecture-cnn", "dropout": "0.4"}).of_the_run()["dropout"] == 0.4
    with pytest.raises(UsageError, match=r"^--dropout: model cnn does not take it, expected --model lecture-cnn$"):
        options.build({"model": "cnn", "dropout": "0.4"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"cut": "3"}, "--cut: expected --mesh with it"),
        ({"microbatches": "3"}, "--microbatches: expected --mesh with it"),
        ({"mesh": "data=2", "cut": "1"}, "--cut: expected --mesh with pipe of 2 or more, got data=2"),
        (
            {"mesh": "pipe=2", "pipe_schedule": "pipedream", "clip_norm": "1"},
            "--pipe-schedule pipedream: expected --clip-norm 0: stages take their steps at different times",
        ),
        ({"mesh": "tensor=2", "pipe_schedule": "gpipe"}, "--pipe-schedule: expected --mesh with pipe of 2 or more"),
        ({"schedule": "gpipe"}, "--schedule gpipe: that is a pipeline's; expected --pipe-schedule gpipe"),
        ({"mesh": "pipe=2,data=2", "workers": "3"}, "--workers 3: expected data=3 in --mesh, got pipe=2,data=2"),
        ({"mesh": "pipe=2", "strategy": "softsync"}, "--mesh pipe=2: expected another strategy than softsync: "),
        ({"mesh": "tensor=2", "strategy": "async"}, "--mesh tensor=2: expected another strategy than async: "),
        ({"mesh": "pipe=2", "on_nan": "skip"}, "--on-nan skip: not with --mesh pipe=2: a rank sees its own part"),
    ],
)
def test_what_does_not_go_together_with_a_mesh(flags, message):
    with pytest.raises(UsageError, match=message):
        options.build(flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"shard": "1", "strategy": "sync"}, "--shard 1: expected --strategy allreduce with it, got sync"),
        ({"shard": "3", "workers": "1"}, "--shard 3: a single worker has nobody to share with"),
        ({"shard": "3", "mesh": "pipe=2,data=1"}, "--shard 3: a single worker has nobody to share with"),
    ],
)
def test_what_does_not_go_together_with_sharding(flags, message):
    with pytest.raises(UsageError, match=message):
        options.build(flags)


def test_sharding_has_its_own_default_strategy():
    assert options.build({"shard": "2"}).strategy == "allreduce"
    assert options.build({"shard": "1", "mesh": "pipe=2,data=2"}).shard == 1
    assert options.build({"shard": "3", "mesh": "pipe=2,data=2", "device": "cuda"}).shard == 3


def test_a_mesh_says_how_many_workers_there_are_and_has_its_own_default_strategy():
    got = options.build({"mesh": "pipe=2, tensor=2,data=3"})
    assert (got.workers, got.strategy, got.parts) == (3, "allreduce", 4)
    assert options.build({"mesh": "pipe=2"}).workers is None
    assert options.build({"mesh": "pipe=2", "strategy": "sync"}).strategy == "sync"
    assert options.build({"mesh": "data=2", "strategy": "softsync"}).parts == 1  # nothing is cut
