"""Groups of commands that answer a wrong name with the names there are."""

import difflib
from typing import Any, NoReturn

import click


class Group(click.Group):
    """A click group; an unknown command is an error that lists the known ones, and help has their whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands, without cutting off what they do."""
        with formatter.section("Commands"):
            found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
            formatter.write_dl([(name, each.get_short_help_str(10_000)) for name, each in found if each is not None])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Suggests the nearest name for an unknown one."""
        if args and args[0] not in (known := self.list_commands(ctx)) and not args[0].startswith("-"):
            _refuse(args[0], known, ctx)
        return super().resolve_command(ctx, args)


def _refuse(name: str, known: list[str], ctx: click.Context) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}? expected" if near else "expected"
    raise click.UsageError(f"no command {name!r} of {ctx.command_path}; {meant} one of {', '.join(known)}", ctx)
