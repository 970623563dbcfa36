"""How a command ends when something is wrong: one line on stderr, never a traceback.

Exit codes: 0 done, 1 an error in data or environment (named), 2 wrong usage (click's own).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import click

from compaction.api.text.safe import printable
from compaction.errors import CompactionError

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
