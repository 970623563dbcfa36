"""`compactor staging exec`: a history of operations, with one line of result for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from compaction.cli.errors import EXIT_DATA_ERROR, describe, report
from compaction.cli.staging.history.operations import carry_out, name_of
from compaction.cli.staging.history.session import Session, SteppingClock
from compaction.cli.staging.options import StagingPlace, staging_options
from compaction.cli.staging.tables.lines import MAX_LINE_BYTES, STDIN, STDIN_NAME, object_of
from compaction.exceptions import CompactionError, RecordTextError, StorageError

EXIT_USAGE = 2


@click.command("exec")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--stop-on-error", is_flag=True, help="End with the first operation that fails; the exit code is then 1.")
@click.option(
    "--clock",
    "start",
    type=click.IntRange(0),
    metavar="SECONDS",
    help="Begin at this time (since 1970), and let each operation take a second: ids of commits depend on it.",
)
@staging_options(required=False)
@click.pass_context
def exec_command(
    context: click.Context,
    /,
    *,
    file: Path,
    stop_on_error: bool,
    start: int | None,
    place: StagingPlace,
) -> None:
    """Carry out the operations in FILE (- is standard input), one JSON object per line, in order.

    For each a line of result is printed when it is done: {"line": 1, "op": "set", "ok": true}. One that fails says
    "ok": false with the error and its message, and does not end the history. It may be killed at any time: what was
    acknowledged is done, and at most one operation more.

    Exit codes: 0 all lines were carried out, with or without success; 1 a store could not be used, or --stop-on-error;
    2 a line is no operation (named on stderr): the history ends before it.

    Example: compactor staging exec history.jsonl --repo logs
    """
    name = STDIN_NAME if str(file) == STDIN else str(file)
    clock = None if start is None else SteppingClock(start)
    code = 0
    with click.open_file(str(file), "rb") as lines, place.open_unchecked(clock) as store:
        session = Session(place, store, place.repository)
        for number, raw in _lines(lines):
            if clock is not None:
                clock.step()
            try:
                result, failure = _result(session, number, raw)
            except RecordTextError as error:
                report(f"{name}: line {number}: {error}")
                code = EXIT_USAGE
                break
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
            if isinstance(failure, StorageError | OSError):
                code = EXIT_DATA_ERROR
            if failure is not None and stop_on_error:
                code = EXIT_DATA_ERROR
                break
    context.exit(code)


def _result(session: Session, number: int, raw: bytes) -> tuple[dict[str, Any], Exception | None]:
    """The result of a line, and what made it fail. Raises RecordTextError: it is no operation."""
    given = object_of(raw)
    name = name_of(given)
    head: dict[str, Any] = {"line": number, "op": name}
    try:
        return {**head, "ok": True, **carry_out(session, name, given)}, None
    except RecordTextError:
        raise
    except (CompactionError, OSError) as error:
        return {**head, "ok": False, "error": type(error).__name__, "message": describe(error)}, error


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Numbered from 1; empty lines are passed over."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if raw.strip():
            yield number, raw
