"""Groups of commands that are imported when they are named, never before."""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Mapping

import click
from click.shell_completion import CompletionItem

from compaction.local.errors import CommandMissingError


class LazyGroup(click.Group):
    """Knows its commands by name: where each lives, and what `--help` shows without importing it.

    The images hold none of what only a workstation needs (.dockerignore): a command whose module is not there is not
    listed, and raises CommandMissingError when it is named.
    """

    commands_by_name: Mapping[str, tuple[str, str]] = {}

    def summaries(self) -> dict[str, str]:
        """Those of this installation, in order; imports none."""
        return {name: summary for name, (where, summary) in self.commands_by_name.items() if _is_here(where)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_by_name:
            return None
        where, _ = self.commands_by_name[cmd_name]
        if not _is_here(where):
            raise CommandMissingError(f"{ctx.command_path} {cmd_name}")
        module, attribute = where.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, LazyGroup):
            resume_collector()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            # click's own suggestion knows only commands that are imported.
            raise click.NoSuchCommand(error.command_name, possibilities=self.summaries(), ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version imports every command only to read its help text.
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # As above: completing a name must not cost the import of Spark.
        named = [
            CompletionItem(name, help=summary)
            for name, summary in self.summaries().items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)


def pause_collector() -> None:
    """For a process that runs one command, before its imports: modules stay, and looking through them for garbage again
    and again is a sixth of the CPU time that they take.
    """
    gc.disable()


def resume_collector() -> None:
    """All is imported: from here on garbage is looked for, but not among what is there already."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _is_here(where: str) -> bool:
    """Whether the module of a command is installed. The package around it always is."""
    return importlib.util.find_spec(where.partition(":")[0]) is not None
