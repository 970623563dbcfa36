"""`compactor segments exec`: a history of operations on a system of logs, with one line of result for each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from compaction.cli.histories.lines import STDIN, STDIN_NAME
from compaction.cli.histories.running import History
from compaction.segments.cli.exec.operations import FLOWING, carry_out, name_of
from compaction.segments.cli.exec.session import Session
from compaction.segments.cli.options import max_bytes_option, max_entries_option
from compaction.segments.errors import (
    FlushFailedError,
    LogNotReadableError,
    LogNotWritableError,
    StoreIOError,
    WalFailedError,
)
from compaction.segments.system.system import SystemLimits
from compaction.segments.wal.current import WalLimits
from compaction.segments.writer.flush import NewSegments

MAX_LINE_BYTES: Final = 256 << 20
_UNUSABLE: Final = (WalFailedError, FlushFailedError, LogNotReadableError, LogNotWritableError, StoreIOError, OSError)


@click.command("exec")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--stop-on-error", is_flag=True, help="End with the first operation that fails; the exit code is then 1.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="How many writes may wait for the disk at once: then one sync acknowledges many. Results keep their order.",
)
@click.option(
    "--wal-bytes",
    type=click.IntRange(1),
    default=WalLimits().max_size,
    show_default=True,
    help="A file of the write-ahead log is rolled once it is larger.",
)
@click.option("--wal-entries", type=click.IntRange(1), help="A file is rolled once it holds as many entries.")
@max_entries_option
@max_bytes_option
@click.option(
    "--snapshot-grace",
    type=click.FloatRange(0),
    default=SystemLimits().snapshot_grace,
    show_default=True,
    metavar="SECONDS",
    help="For so long a replaced snapshot stays.",
)
@click.option(
    "--lock-timeout",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait while another process owns the system.",
)
@click.pass_context
def exec_command(
    context: click.Context,
    /,
    *,
    directory: Path,
    file: Path,
    stop_on_error: bool,
    in_flight: int,
    wal_bytes: int,
    wal_entries: int | None,
    max_entries: int,
    max_bytes: int,
    snapshot_grace: float,
    lock_timeout: float,
) -> None:
    """Carry out the operations in FILE (- is standard input) on the system of logs in DIR, as its owner: one JSON
    object per line, in order. DIR is created if its parent exists.

    For each a line of result is printed when it is done: {"line": 1, "op": "append", "ok": true, "index": 3, "term":
    1}. One that fails says "ok": false with the error and its message, and does not end the history. It may be killed
    at any time: what was acknowledged is durable, and of what was not, at most --in-flight operations more. Operations:
    docs/segment-logs.md.

    Exit codes: 0 all lines were carried out, with or without success; 1 the system could not be opened or written, or
    --stop-on-error; 2 a line is no operation (named on stderr): the history ends before it.

    Example: compactor segments exec system history.jsonl
    """
    limits = SystemLimits(
        wal=WalLimits(max_size=wal_bytes, max_entries=wal_entries),
        segments=NewSegments(max_count=max_entries, max_size=max_bytes),
        snapshot_grace=snapshot_grace,
    )
    session = Session(directory, limits, lock_timeout)
    history = History(name_of, lambda name, given: carry_out(session, name, given), _UNUSABLE, MAX_LINE_BYTES, FLOWING)
    with click.open_file(str(file), "rb") as lines:
        session.start()
        try:
            name = STDIN_NAME if str(file) == STDIN else str(file)
            code = history.run(lines, name=name, stop_on_error=stop_on_error, in_flight=in_flight)
        finally:
            session.close()
    context.exit(code)
