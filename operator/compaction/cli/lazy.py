"""Groups of commands that are imported when they are named, never before."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Knows its commands by name: where each lives, and what `--help` shows without importing it."""

    commands_by_name: Mapping[str, tuple[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_by_name:
            return None
        module, attribute = self.commands_by_name[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # click's own suggestion knows only commands that are imported.
            raise click.NoSuchCommand(error.command_name, possibilities=self.commands_by_name, ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version imports every command only to read its help text.
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.commands_by_name.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # As above: completing a name must not cost the import of Spark.
        named = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in self.commands_by_name.items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)
