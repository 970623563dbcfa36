"""`compactor segments sweep`: what a crash left half-done and what replaced data waits, shown; or settled and deleted.

The same library path that a coordinator takes before each plan and after each grace, on one directory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.policy.segment_logs import Ownership
from compaction.api.text.printing import format_bytes, plural
from compaction.cli.lazy import EXIT_DATA_ERROR, report
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    apply_option,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
)
from compaction.cli.values import DurationParameter
from compaction.errors import CompactionError
from compaction.segments import sweep
from compaction.segments.cli.options import (
    HOLDER,
    indexes_missing_option,
    log_options,
    owner_stopped_option,
    ownership_of,
    require_snapshot_for_live,
)
from compaction.segments.cli.shapes import recovery_object, swept_object
from compaction.segments.commit import recovery
from compaction.segments.commit.records import SegmentTombstone
from compaction.segments.directory.owner import doubt_of, hazard_in, look_for_owner
from compaction.segments.errors import RecoveryBlockedError
from compaction.segments.planning.unreferenced import IndexesMissing, ToldOfLive
from compaction.segments.snapshot.live_indexes import LiveSet

_COLUMNS: Final = (
    OutputColumn("name", "name"),
    OutputColumn("action", "action"),
    OutputColumn("bytes", "bytes", optional_bytes, right=True),
    OutputColumn("detail", "detail", optional),
)
_ACTIONS: Final = {
    "finished": "finish",
    "discarded": "undo",
    "removed": "remove",
    "raCompactions": "settle",
    "stayed": "leave",
    "kept": "keep",
}


@click.command("sweep")
@log_options
@indexes_missing_option
@click.option(
    "--grace",
    type=DurationParameter(),
    default="10m",
    show_default=True,
    help="Grace: how long replaced names stay readable.",
)
@owner_stopped_option
@apply_option
@output_option()
@click.pass_context
def sweep_command(
    context: click.Context,
    /,
    *,
    directory: Path,
    snapshot: int | None,
    live: LiveSet | None,
    wal_dir: Path | None,
    when_indexes_missing: str,
    grace: float,
    owner_stopped: bool,
    applying: bool,
    output: OutputFormat,
) -> None:
    """Show what a crash left half-done in the log in DIR, ours or Ra's own, and what replaced data waits for its grace.

    With --apply what is half-done is finished or undone, then replaced names whose grace is over are deleted. Harmless
    on a healthy log. A log of a Ra system is refused unless its server was stopped cleanly. With --owner-stopped,
    outputs of attempts (.partial) go as well: an attempt that still runs ends there. A segment that another process has
    changed since stays as it is. A file that may hold the only copy of an entry is kept and named; then nothing is
    deleted, and the exit code is 1.

    Example: compactor segments sweep /data/ra/LOG --apply --grace 0
    """
    require_snapshot_for_live(directory, snapshot, live)
    told = ToldOfLive(
        snapshot_index=snapshot,
        live=live,
        indexes_missing=IndexesMissing(when_indexes_missing),
        wal_directory=wal_dir,
    )
    log = SweptLog(directory, float(grace), told, ownership_of(owner_stopped=owner_stopped))
    found, errors = log.settle() if applying else log.look()
    if output is not OutputFormat.TABLE:
        emit(found, output)
    elif applying:
        _print_done(found)
    else:
        _print_outlook(found)
    for error in errors:
        report(error)
    if errors:
        context.exit(EXIT_DATA_ERROR)


Found = tuple[dict[str, Any], list[CompactionError]]
"""What is shown, and what is wrong."""


@dataclass(frozen=True, slots=True)
class SweptLog:
    """The log to sweep, and what is said about it."""

    directory: Path
    grace: float
    told: ToldOfLive
    ownership: Ownership

    def settle(self) -> Found:
        """Settle what is half-done, and delete what is due; nothing where something has to be kept."""
        discard = self.ownership is Ownership.STOPPED
        # First: a sweep that met a half-done commit would judge names whose fate is not decided.
        done = recovery.recover(self.directory, holder=HOLDER, ownership=self.ownership, discard_partials=discard)
        found: dict[str, Any] = {"log": str(self.directory), "applied": True, "recovered": recovery_object(done)}
        errors = self._blocked(done)
        swept = None
        # What is kept may be the only copy of an entry, and a name that is due the one it was made of.
        if not errors:
            try:
                swept = sweep.sweep(
                    self.directory,
                    grace_seconds=self.grace,
                    ownership=self.ownership,
                    holder=HOLDER,
                    **self.told,
                )
            except CompactionError as error:
                # What was settled is shown all the same.
                errors.append(error)
        shown = None if swept is None else swept_object(swept.deleted, swept.blocked, swept.waiting)
        return {**found, "swept": shown}, errors

    def look(self) -> Found:
        """Return what `settle` would do, without a change."""
        discard = self.ownership is Ownership.STOPPED
        half_done, undecided = recovery.whole_outlook(self.directory, discard_partials=discard)
        found: dict[str, Any] = {
            "log": str(self.directory),
            "applied": False,
            "recovered": recovery_object(half_done),
            "undecided": list(undecided),
        }
        errors = self._blocked(half_done)
        outlook = None
        if not errors:
            try:
                outlook = sweep.outlook(
                    self.directory,
                    # That of this machine: a look claims nothing, so no clock of the file system is asked.
                    now=time.time(),
                    grace_seconds=self.grace,
                    **self.told,
                )
            except CompactionError as error:
                # What is half-done is shown all the same.
                errors.append(error)
        found |= {"swept": None, "waits": []} if outlook is None else self._outlook_object(outlook, half_done)
        return {**found, "refused": self._refusal()}, errors

    def _outlook_object(self, outlook: sweep.SweepOutlook, half_done: recovery.RecoveryReport) -> dict[str, Any]:
        # Outputs of attempts that recovery removes are gone when the sweep comes.
        left = [item for item in outlook.delete if item.name not in half_done.removed]
        sizes = {item.name: item.bytes for item in left}
        swept = swept_object(left, outlook.blocked, len(outlook.waits))
        return {"swept": {**swept, "sizes": sizes}, "waits": [self._waiting(item) for item in outlook.waits]}

    def _waiting(self, tombstone: SegmentTombstone) -> dict[str, Any]:
        since, due = (timestamp_from_epoch(at) for at in (tombstone.since, tombstone.since + self.grace))
        return {
            "name": tombstone.name,
            "kind": tombstone.kind.value,
            "since": format_timestamp(since),
            "due": format_timestamp(due),
        }

    def _blocked(self, done: recovery.RecoveryReport) -> list[CompactionError]:
        return [RecoveryBlockedError(str(self.directory / kept.name), kept.reason) for kept in done.kept]

    def _refusal(self) -> str | None:
        """The reason for which --apply would be refused now."""
        # Who says that the owner is stopped is believed by `settle` as well.
        if self.ownership is Ownership.STOPPED or not (doubt := doubt_of(look_for_owner(self.directory))):
            return None
        hazard = hazard_in(self.directory)
        return f"{doubt}; do not start it: {hazard}" if hazard else doubt


def _items(recovered: dict[str, list[Any]]) -> list[tuple[str, str]]:
    """(word, text) for each action of a recovery."""
    return [
        (word, item if isinstance(item, str) else " ".join(map(str, item.values())))
        for word, items in recovered.items()
        for item in items
    ]


def _print_done(found: dict[str, Any]) -> None:
    for word, text in _items(found["recovered"]):
        click.echo(f"{word}: {text}")
    if not any(found["recovered"].values()):
        click.echo("nothing is half-done")
    swept = found["swept"]
    if swept is not None:
        gained = format_bytes(swept["bytesReclaimed"])
        click.echo(
            f"swept: {plural(len(swept['deleted']), 'name')} deleted, {gained}; {swept['waiting']} wait for their grace"
        )
        for item in swept["blocked"]:
            click.echo(f"kept: {item['name']}: {item['reason']}")


def _print_outlook(found: dict[str, Any]) -> None:
    for word, text in _items(found["recovered"]):
        click.echo(f"would {_ACTIONS[word]}: {text}")
    for name in found["undecided"]:
        click.echo(f"would finish or undo: {name}")
    swept = found["swept"]
    if swept is not None:
        if rows := _outlook_rows(swept, found["waits"]):
            print_table(rows, _COLUMNS)
        click.echo(
            f"{plural(len(swept['deleted']), 'name')} to delete, {format_bytes(swept['bytesReclaimed'])}; "
            f"{swept['waiting']} wait for their grace; nothing is changed without --apply"
        )
    if found["refused"]:
        click.echo(f"but it would be refused now: {found['refused']}")


def _outlook_rows(swept: dict[str, Any], waits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per name, in name order."""
    sizes = swept["sizes"]
    rows: list[dict[str, Any]] = [{"name": n, "action": "delete", "bytes": sizes[n]} for n in swept["deleted"]]
    blocked = {item["name"]: item["reason"] for item in swept["blocked"]}
    rows += [{"name": name, "action": "keep", "detail": reason} for name, reason in blocked.items()]
    rows += [
        {"name": item["name"], "action": "wait", "detail": f"until {item['due']}"}
        for item in waits
        if item["name"] not in blocked
    ]
    return sorted(rows, key=lambda row: str(row["name"]))
