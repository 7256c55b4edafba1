"""What others call an option leads to ours."""

import click
import pytest

from psgd.config import options
from psgd.launch.bench import bench
from psgd.launch.checkpoint import checkpoint
from psgd.launch.slurm.command import slurm
from psgd.launch.train import train
from psgd.launch.usage import synonyms

OURS = [word[2:] for param in train.params for word in param.opts if word.startswith("--")]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("learning-rate", "lr"),
        ("learning_rate", "lr"),
        ("batch", "batch-size"),
        ("num-workers", "workers"),
        ("nprocs", "workers"),
        ("np", "workers"),
        ("nproc_per_node", "workers"),
        ("ntasks", "workers"),
        ("ckpt-dir", "checkpoint-dir"),
        ("checkpoint", "checkpoint-dir"),
        ("save-every", "checkpoint-every"),
        ("arch", "model"),
        ("data", "dataset"),
        ("gpus", "device"),
        ("wd", "weight-decay"),
        ("gradient_accumulation_steps", "accumulate"),
        ("max-grad-norm", "clip-norm"),
        ("epoch", "epochs"),
        ("checkpint-dir", "checkpoint-dir"),
        ("BATCH-SIZE", "batch-size"),
        ("zzz", None),
        ("", None),
    ],
)
def test_what_users_of_other_programs_type(given, meant):
    assert synonyms.nearest(given, OURS) == meant


def _commands():
    for group in (bench, checkpoint, slurm):
        yield from group.commands.values()
    yield train


def test_every_synonym_is_of_an_option_and_means_one_of_a_command():
    there = {word[2:] for each in _commands() for param in each.params for word in param.opts}
    assert set(synonyms._OTHERS) <= there | {name.replace("_", "-") for name in options()}
    for option, others in synonyms._OTHERS.items():
        for other in others.split():
            assert other not in OURS or option not in OURS, f"{other} is an option itself"
            if option in OURS:
                assert synonyms.nearest(other, OURS) == option, f"{other} means two things"


def test_the_message_names_the_option():
    with pytest.raises(click.NoSuchOption) as caught:
        train.make_context("psgd train", ["--nprocs", "3"])
    assert synonyms.of(caught.value) == "no option '--nprocs'; did you mean --workers?"
    with pytest.raises(click.NoSuchOption) as caught:
        train.make_context("psgd train", ["--zzz"])
    assert synonyms.of(caught.value) == "no option '--zzz'; see psgd train --help"
    assert synonyms.of(click.NoSuchOption("--zzz")) == "No such option '--zzz'."


def test_words_that_are_left_over_point_to_the_help():
    with pytest.raises(click.UsageError) as caught:
        checkpoint.commands["export"].main(["a", "out.npz"], prog_name="psgd checkpoint export", standalone_mode=False)
    assert synonyms.with_help(caught.value) == (
        "Got unexpected extra argument (out.npz): see psgd checkpoint export --help"
    )
    assert synonyms.with_help(click.UsageError("another")) == "another"
