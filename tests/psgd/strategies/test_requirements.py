"""Which options go together with a strategy, in the spelling of the library and of the command."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.strategies import catalog, requirements
from psgd.strategies.requirements import Spelling

NONE = {
    "servers": None,
    "staleness_lr": "none",
    "record": None,
    "replay": None,
    "compress": None,
    "density": None,
    "compress_warmup": 0.0,
    "compress_sync": 0,
    "optimizer": "sgd",
    "resume": False,
}
COMMAND = Spelling(
    lambda name: "--" + name.replace("_", "-"),
    lambda name, value: f"--{name} {value}",
    lambda name, value: f"--{name} {value}",
)


@pytest.mark.parametrize("name", catalog.STRATEGIES)
def test_defaults_go_with_every_strategy(name):
    requirements.check(name, NONE, {})


@pytest.mark.parametrize("name", catalog.compressible())
def test_whatever_compresses_takes_every_codec(name):
    for codec in ("threshold", "onebit", "topk"):
        requirements.check(name, NONE | {"compress": codec, "density": 0.1, "compress_sync": 3}, {})


@pytest.mark.parametrize(
    ("name", "values", "own", "message"),
    [
        ("allreduce", {"servers": 2}, {}, "servers: strategy allreduce has none; omit it"),
        ("hogwild", {"record": "x"}, {}, "staleness_lr, record, replay: strategy hogwild has no servers to do that"),
        ("easgd", {"staleness_lr": "inverse"}, {}, "strategy easgd has no servers to do that"),
        ("averaging", {"compress": "topk"}, {}, "compress: strategy averaging averages parameters, expected one of"),
        ("decentralized", {"compress": "topk"}, {"peers": "pairs"}, "compress: peers=pairs averages whole parameters"),
        ("sync", {"density": 0.1}, {}, "density: expected compress=threshold, onebit or topk with it"),
        ("sync", {"compress": "none", "optimizer": "adam", "compress_sync": 2}, {}, ""),
        (
            "sync",
            {"compress": "topk", "optimizer": "adam"},
            {},
            "compress: expected optimizer=sgd or momentum, got adam",
        ),
        ("decentralized", {"optimizer": "nesterov"}, {}, "strategy: expected optimizer=sgd or momentum, got nesterov"),
        ("decentralized", {"optimizer": "nesterov"}, {"peers": "pairs"}, ""),
    ],
)
def test_what_does_not_go_together(name, values, own, message):
    if not message:
        requirements.check(name, NONE | values, own)
        return
    with pytest.raises(UsageError, match=message):
        requirements.check(name, NONE | values, own)


def test_the_command_writes_options_its_way():
    with pytest.raises(UsageError, match=r"^--servers 2: strategy allreduce has none; omit it$"):
        requirements.check("allreduce", NONE | {"servers": 2}, {}, COMMAND)
    with pytest.raises(UsageError, match=r"^--compress-warmup: expected --compress threshold, onebit or topk with it$"):
        requirements.check("sync", NONE | {"compress_warmup": 1.0}, {}, COMMAND)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compress": "topk"}, "--compress topk: a single rank sends nothing that could be compressed: omit it, or"),
        ({"density": 0.5}, "--density 0.5: a single rank sends nothing"),
        ({"compress_warmup": 1.0}, "--compress_warmup 1.0: a single rank sends nothing"),
        ({"compress_sync": 3}, "--compress_sync 3: a single rank sends nothing"),
        ({"record": "x"}, "--record: a single rank's pushes have one order only: omit it, or start more ranks"),
        ({"replay": "x"}, "--replay: a single rank's pushes have one order only"),
    ],
)
def test_what_a_single_rank_has_no_use_for(values, message):
    requirements.check_alone(NONE | {"compress": "none"})
    with pytest.raises(UsageError, match=f"^{message}"):
        requirements.check_alone(NONE | values, COMMAND)
    resumed = NONE | values | {"resume": True}
    if "record" in values or "replay" in values:
        with pytest.raises(UsageError, match=f"^{message}"):
            requirements.check_alone(resumed, COMMAND)
    else:  # it has the options of the run that it resumes, which had more ranks
        requirements.check_alone(resumed, COMMAND)
