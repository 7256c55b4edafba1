"""A group of commands, and a name that is none of them."""

import click
import pytest
from click.testing import CliRunner

from psgd.launch.usage.groups import Group


@pytest.fixture
def group():
    @click.group(cls=Group)
    def tool():
        pass

    @tool.command()
    def render():
        """Render what was asked for, in a sentence longer than any line that help has room for: all of it. More."""
        click.echo("rendered")

    @tool.command()
    def submit():
        pass

    return tool


def test_known_commands_and_options_are_clicks(group):
    assert CliRunner().invoke(group, ["render"]).output == "rendered\n"
    said = CliRunner().invoke(group, ["--help"]).output
    assert "Commands:" in said and "help has room for: all of it" in " ".join(said.split()) and "More" not in said
    assert "No such option" in CliRunner().invoke(group, ["--nothing"]).output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("foo", "no command 'foo' of tool; expected one of render, submit"),
        ("sumbit", "no command 'sumbit' of tool; did you mean submit? expected one of render, submit"),
    ],
)
def test_an_unknown_one_lists_the_known(group, name, said):
    error = CliRunner().invoke(group, [name], standalone_mode=False).exception
    assert isinstance(error, click.UsageError) and error.format_message() == said
