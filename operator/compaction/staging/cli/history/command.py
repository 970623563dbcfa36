"""`compactor staging exec`: a history of operations, with one line of result for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from compaction.cli.histories.lines import STDIN, STDIN_NAME
from compaction.cli.histories.running import History, Result
from compaction.staging.cli.history.operations import carry_out, name_of
from compaction.staging.cli.history.session import Session, SteppingClock
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.tables.lines import MAX_LINE_BYTES
from compaction.storage.errors import StorageError


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
    with click.open_file(str(file), "rb") as lines, place.open_unchecked(clock) as store:
        session = Session(place, store, place.repository)

        def carry_out_next(name: str, given: Mapping[str, Any]) -> Result:
            if clock is not None:
                clock.step()
            return carry_out(session, name, given)

        history = History(name_of, carry_out_next, (StorageError, OSError), MAX_LINE_BYTES)
        code = history.run(lines, name=name, stop_on_error=stop_on_error)
    context.exit(code)
