"""Options that `compactor segments` commands share: the directory, what is live when no snapshot says it, how large a
new segment may be; and the request that they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from compaction.api.policy.segment_logs import Ownership
from compaction.cli.values import BytesParameter
from compaction.segments.checking.reading import is_log
from compaction.segments.errors import LiveSetSyntaxError
from compaction.segments.format.names import MAX_SOURCES
from compaction.segments.model import DEFAULT_MAX_COUNT, DEFAULT_MAX_SIZE, MAX_COUNT_LIMIT, MAX_INDEX
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits
from compaction.segments.rewriting.compact import CompactionRequest
from compaction.segments.snapshot.directories import LogSnapshot, newest_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

Command = TypeVar("Command", bound=Callable[..., Any])
HOLDER: Final = "cli"
"""The name that signs locks and claims."""

max_entries_option = click.option(
    "--max-entries",
    type=click.IntRange(1, MAX_COUNT_LIMIT),
    default=DEFAULT_MAX_COUNT,
    show_default=True,
    help="Maximum number of entries in a new segment.",
)
max_bytes_option = click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=DEFAULT_MAX_SIZE,
    show_default=True,
    help="Maximum payload bytes in a new segment.",
)
max_bytes_per_second_option = click.option(
    "--max-bytes-per-second",
    type=BytesParameter(),
    metavar="QUANTITY",
    help="Maximum bytes per second that the rewrite reads and writes, such as 64M. Default: no limit.",
)
indexes_missing_option = click.option(
    "--when-indexes-missing",
    type=click.Choice([policy.value for policy in IndexesMissing]),
    default=IndexesMissing.REFUSE.value,
    show_default=True,
    help="Meaning of a snapshot without its `indexes` file: unknown, or nothing is live.",
)
owner_stopped_option = click.option(
    "--owner-stopped",
    is_flag=True,
    help="The owner of the log is stopped and stays stopped: skip the check for a running owner.",
)


def ownership_of(*, owner_stopped: bool) -> Ownership:
    """Return the ownership that the flag --owner-stopped selects."""
    return Ownership.STOPPED if owner_stopped else Ownership.DETECT


def refuse_given(parameters: Iterable[str], reason: str) -> None:
    """Wrong usage: one of these parameters is on the command line. `reason`: the end of the message behind its name."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name in parameters:
            raise click.UsageError(f"{parameter.opts[0]} {reason}")


class LiveSetParameter(click.ParamType[LiveSet]):
    """`1-5,9,20-30` as a LiveSet; the empty text says that nothing is live."""

    name = "indexes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LiveSet:
        if isinstance(value, LiveSet):
            return value
        try:
            return LiveSet.parse(value)
        except LiveSetSyntaxError as error:
            self.fail(str(error), param, ctx)


def log_options(command: Command) -> Command:
    """Argument DIR, options --snapshot, --live and --wal-dir, passed as `directory`, `snapshot`, `live`, `wal_dir`
    (None when not given).
    """
    wal_dir = click.option(
        "--wal-dir",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="Directory of the write-ahead log, if it is not the one above the log (Ra's wal_data_dir).",
    )
    live = click.option(
        "--live",
        type=LiveSetParameter(),
        metavar="1-5,9,20-30",
        help="Live indexes at or below the snapshot; overrides the snapshot directory. '' means none.",
    )
    snapshot = click.option(
        "--snapshot",
        type=click.IntRange(0, MAX_INDEX),
        metavar="INDEX",
        help="The snapshot's index; overrides the snapshot directory.",
    )
    directory = click.argument(
        "directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False, exists=True)
    )
    return directory(snapshot(live(wal_dir(command))))


def described_snapshot(directory: Path, snapshot: int | None, live: LiveSet | None) -> LogSnapshot | None:
    """The snapshot that --snapshot and --live describe, to be taken for the log's own; None without them."""
    if snapshot is None and live is None:
        return None
    if not is_log(directory):
        raise click.UsageError(f"{directory} is a system of logs: --snapshot and --live describe one log")
    require_snapshot_for_live(directory, snapshot, live)
    own = newest_snapshot(directory)
    if own is not None and snapshot in (None, own.index):
        return own if live is None else replace(own, live=live, live_error=None)
    assert snapshot is not None
    return LogSnapshot(index=snapshot, term=0, live=live, path=directory)


def require_snapshot_for_live(directory: Path, snapshot: int | None, live: LiveSet | None) -> None:
    """Wrong usage: --live says what is live below a snapshot, so there must be one."""
    if live is not None and snapshot is None and newest_snapshot(directory) is None:
        raise click.UsageError(f"{directory} has no valid snapshot: --live needs --snapshot INDEX too")


def planning_options(command: Command) -> Command:
    """The limits of a plan, and what a missing `indexes` file means; passed as the one argument `options`."""
    for option in reversed(
        (
            max_entries_option,
            max_bytes_option,
            click.option(
                "--max-sources",
                type=click.IntRange(1, MAX_SOURCES),
                default=MAX_SOURCES,
                show_default=True,
                help="Maximum number of segments to merge into one.",
            ),
            indexes_missing_option,
        )
    ):
        command = option(command)
    return command


def request_of(
    snapshot: int | None, live: LiveSet | None, wal_dir: Path | None, options: dict[str, Any]
) -> CompactionRequest:
    """Return the request that the options of a log and of a plan make."""
    missing = IndexesMissing(options["when_indexes_missing"])
    return CompactionRequest(HOLDER, limits_of(options), snapshot, live, missing, wal_directory=wal_dir)


def limits_of(options: dict[str, Any]) -> SegmentLimits:
    """Return the limits that the options of a plan set."""
    return SegmentLimits(
        max_entries=options["max_entries"], max_bytes=options["max_bytes"], max_sources=options["max_sources"]
    )
