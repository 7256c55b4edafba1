import click
import pytest

from psgd.launch.whole_numbers import Whole


def test_whole_numbers():
    assert Whole(0).convert("7", None, None) == 7 and Whole(0).convert(0, None, None) == 0


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e11", "x", str(2**31), "9" * 400, "9" * 5000])
def test_what_is_none_or_too_large_is_one_short_line(text):
    with pytest.raises(click.UsageError) as caught:
        Whole(1).convert(text, click.Option(["--repeats"]), None)
    said = caught.value.format_message()
    assert said.startswith(
        ("--repeats: expected a whole number, at least 1, got ", "--repeats: expected at most 2147483647")
    )
    assert len(said) < 300


def commands(command, path=()):
    """All options that take a number, of all commands below."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))
    else:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield path, parameter


def test_no_command_takes_whole_numbers_without_a_bound():
    from psgd.launch.cli import psgd

    found = list(commands(psgd))
    assert sum(isinstance(parameter.type, Whole) for _, parameter in found) > 15
    loose = [path for path, each in found if each.type.name in ("integer", "integer range") and not each.count]
    assert loose == []
