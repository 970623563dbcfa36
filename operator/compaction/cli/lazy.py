"""Groups of commands that are imported when they are named, and the end of a command when something is wrong."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from compaction.api.text.printing import printable
from compaction.errors import CompactionError
from compaction.local.errors import CommandMissingError

# The end of a command when something is wrong: one line on stderr, never a traceback.
#
# Exit codes: 0 done, 1 an error in data or environment (named), 2 wrong usage (click's own).

EXIT_DATA_ERROR = 1
EXIT_INTERRUPTED: Final = 130
MOST_REPORTED: Final = 20


def report(error: BaseException | str) -> None:
    """Print one error to stderr."""
    click.echo(f"error: {describe(error) if isinstance(error, BaseException) else printable(error)}", err=True)


def warn(message: str) -> None:
    """Print to stderr what is worth knowing and no error."""
    click.echo(f"warning: {printable(message)}", err=True)


def report_all(errors: Sequence[BaseException | str], *, most: int = MOST_REPORTED) -> None:
    """Print errors to stderr, and of many how many there are: -o json has all of them."""
    for error in errors[:most]:
        report(error)
    if len(errors) > most:
        click.echo(f"error: and {len(errors) - most} more (all of them with -o json)", err=True)


def end_interrupted() -> NoReturn:
    """End this process now, as interrupted: threads in native code cannot be ended. Python would wait for them, or take
    the interpreter down under them, which aborts. What is to be given up in order was before.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(EXIT_INTERRUPTED)


def describe(error: BaseException) -> str:
    """An error in one printable line: our own errors say it themselves; of an OSError the reason and the file."""
    if isinstance(error, OSError) and error.strerror:
        file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else ""
        return printable(f"{file}: {error.strerror}" if file else error.strerror)
    return printable(" ".join(str(error).split()) or type(error).__name__)


@contextmanager
def errors_as_exit_code() -> Iterator[None]:
    """Turn errors that are meant for a person into a line on stderr and exit code 1."""
    try:
        yield
    except BrokenPipeError:
        # The reader of our output went away (`| head`): click ends quietly on this one.
        raise
    except (CompactionError, OSError) as error:
        report(error)
        raise click.exceptions.Exit(EXIT_DATA_ERROR) from error


class ErrorGroup(click.Group):
    """A command group whose commands may raise CompactionError."""

    def invoke(self, ctx: click.Context) -> Any:
        with errors_as_exit_code():
            return super().invoke(ctx)


# Groups of commands that are imported when they are named, never before.


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


def freeze_modules() -> None:
    """A command that runs for days has imported all that it runs with: from here on garbage is not searched for among
    that either. In the caller's process the collector stays as it is.
    """
    if gc.get_freeze_count():
        gc.freeze()


def _is_here(where: str) -> bool:
    """Return whether the module of a command is installed. The package around it always is."""
    return importlib.util.find_spec(where.partition(":")[0]) is not None
