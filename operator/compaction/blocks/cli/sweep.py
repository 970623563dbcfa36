"""`compactor blocks sweep`: what is left over in a store, shown or deleted: blocks beyond their retention, replaced
blocks whose grace is over, objects of no block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import click

from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.api.text.quantities import Duration
from compaction.blocks.cli.options import StorePlace, store_options, time_text
from compaction.blocks.cli.shapes import (
    EXPIRED_COLUMNS,
    TOMBSTONE_COLUMNS,
    WIDE_TOMBSTONE_COLUMNS,
    expired_object,
    tombstone_object,
)
from compaction.blocks.index.tombstones import Expired, RetentionPeriods, standing, summary, would_expire
from compaction.blocks.model import SECOND, escape_tenant
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.cleaning import Cleaned, expire_all
from compaction.blocks.sweep.cleaning import sweep as sweep_tombstones
from compaction.blocks.sweep.orphan_collector import Collected, OrphanSearch, collect_orphans, find_orphans
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    apply_option,
    emit,
    optional_bytes,
    output_option,
    print_table,
)
from compaction.cli.places import is_given
from compaction.cli.values import DurationParameter
from compaction.errors import CompactionError
from compaction.storage.opened import explaining

SHOWN: Final = 1000


class SweepPart(StrEnum):
    """A part of a sweep, in the order in which they are done: what has expired is then a tombstone too."""

    RETENTION = "retention"
    TOMBSTONES = "tombstones"
    ORPHANS = "orphans"


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options of a sweep. `periods` and `grace` are None where neither an option nor a policy says them: a store
    does not know its policy. Times are microseconds.
    """

    applying: bool
    periods: RetentionPeriods | None
    grace: int | None
    older_than: int
    limit: int


@dataclass(frozen=True, slots=True)
class PartFound:
    """The result of a part: `data` as json has it, None for a part that was not done; for a table `rows` under
    `columns`, and `lines` below them. `failed`: the error that ended it, or each thing that could not be deleted.
    """

    data: dict[str, Any] | None
    lines: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Sequence[OutputColumn] = ()
    wide: Sequence[OutputColumn] = ()
    failed: Sequence[BaseException | str] = ()

    def show(self, output: OutputFormat) -> None:
        """Print it as a table."""
        if self.rows:
            print_table(self.rows, self.wide if output is OutputFormat.WIDE and self.wide else self.columns)
        for line in self.lines:
            click.echo(line)


# `compactor blocks sweep`: the options, and the parts one after the other.


class TenantDuration(click.ParamType[tuple[str, Duration]]):
    """`tenant=90d`; the last = divides, because a tenant's name may hold one."""

    name = "tenant=duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Duration]:
        if isinstance(value, tuple):
            return value
        tenant, sign, period = str(value).rpartition("=")
        if not sign or not tenant:
            self.fail("write TENANT=DURATION, such as acme=90d", param, ctx)
        escape_tenant(tenant)
        return tenant, DurationParameter().convert(period, param, ctx)


@click.command()
@store_options()
@apply_option
@click.option(
    "--only",
    type=click.Choice([part.value for part in SweepPart]),
    multiple=True,
    help="Limit to this part; repeatable. Default: all.",
)
@click.option(
    "--keep", type=DurationParameter(), help="Time for which data is kept, counted from a block's newest row."
)
@click.option(
    "--keep-tenant",
    "tenants",
    type=TenantDuration(),
    metavar="TENANT=DURATION",
    multiple=True,
    help="Time for which the data of a tenant is kept; 0s: for ever.",
)
@click.option(
    "--grace",
    type=DurationParameter(),
    help="Time for which replaced blocks stay readable; default: cleanup.delay of the policy (-f).",
)
@click.option(
    "--older-than",
    type=DurationParameter(),
    default="24h",
    show_default=True,
    help="Minimum age of objects of no block: longer than any writer takes between upload and registration.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="Maximum number to show, oldest first."
)
@output_option(wide=True)
@click.pass_context
def sweep(
    context: click.Context,
    *,
    place: StorePlace,
    applying: bool,
    only: tuple[str, ...],
    keep: Duration | None,
    tenants: Sequence[tuple[str, Duration]],
    grace: Duration | None,
    older_than: Duration,
    limit: int,
    output: OutputFormat,
) -> None:
    """Show what is left over; with --apply delete it: expired blocks, replaced blocks, objects of no block.

    The parts, in this order (--only leaves others out); when one fails the others are done, and the exit code is 1:

    retention: blocks all of whose rows are older than their tenant's data are kept. The periods are those of the policy
    (-f), or what --keep and --keep-tenant say. With --apply they end at once for readers, whatever job they are in.

    tombstones: blocks that are no longer live and wait for their deletion: since when, why, and when they are due by
    the policy or --grace. With --apply what is due is deleted, and the others are shown; what the store refuses to
    delete is named, stays and is tried again later.

    orphans: objects that belong to no block, left by writers and attempts that died. What an open job may still commit
    is no orphan, however old. Files that are not named as blocks are (TENANT/SHARD/ULID.parquet) are never touched.

    Example: compactor blocks sweep --store DIR --keep 90d --keep-tenant audit=365d --grace 10m --apply
    """
    periods, kept = _periods(place, keep, tenants), _grace(place, grace)
    request = SweepRequest(applying, periods, kept, int(older_than * SECOND), limit)
    parts = _parts(only, request)
    result: dict[str, Any] = {"applied": applying} | {part.value: None for part in SweepPart}
    failed = False
    with place.open() as store:
        for part in parts:
            found = _run(part, store, request, place)
            if output in (OutputFormat.TABLE, OutputFormat.WIDE):
                found.show(output)
            # Each part is reported as it ends, so that an interrupt of the next hides nothing that was done.
            report_all(found.failed)
            result[part.value], failed = found.data, failed or bool(found.failed)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit(result, output)
    if failed:
        context.exit(EXIT_DATA_ERROR)


def _periods(
    place: StorePlace, keep: Duration | None, tenants: Sequence[tuple[str, Duration]]
) -> RetentionPeriods | None:
    """Return the periods of the options, else of the policy; None without both."""
    if keep is not None or tenants:
        periods = {tenant: int(period * SECOND) for tenant, period in tenants}
        return RetentionPeriods(int((keep or 0.0) * SECOND), MappingProxyType(periods))
    store = place.policy.spec.store.block_store if place.policy is not None else None
    if store is None:
        return None
    # With a policy only: its models take longer to import than a command without one to answer.
    from compaction.blocks.adapter import retention_of

    return retention_of(store)


def _grace(place: StorePlace, given: Duration | None) -> int | None:
    """Return the grace of the option, else of the policy; None without both."""
    if given is None and place.policy is not None:
        given = place.policy.spec.cleanup.delay
    return None if given is None else int(given * SECOND)


_OPTIONS_OF_PARTS: Final = (
    ("keep", "--keep", {SweepPart.RETENTION}),
    ("tenants", "--keep-tenant", {SweepPart.RETENTION}),
    ("grace", "--grace", {SweepPart.TOMBSTONES}),
    ("older_than", "--older-than", {SweepPart.ORPHANS}),
    ("limit", "--limit", {SweepPart.RETENTION, SweepPart.TOMBSTONES}),
)


def _parts(only: Collection[str], request: SweepRequest) -> list[SweepPart]:
    """Return the parts that are asked for, in their order. Raises click.UsageError: one cannot be done without another
    option, or an option is about none of them.
    """
    parts = [part for part in SweepPart if not only or part.value in only]
    for name, flag, about in _OPTIONS_OF_PARTS:
        if is_given(name) and about.isdisjoint(parts):
            raise click.UsageError(f"{flag} is about {' and '.join(sorted(about))}, which --only leaves out")
    if only and SweepPart.RETENTION in parts and request.periods is None:
        raise click.UsageError("how long are data kept? Give --keep, --keep-tenant, or a policy (-f)")
    if request.applying and SweepPart.TOMBSTONES in parts and request.grace is None:
        raise click.UsageError("how long do replaced blocks stay readable? Give --grace, or a policy (-f)")
    return parts


def _run(part: SweepPart, store: BlockStore, request: SweepRequest, place: StorePlace) -> PartFound:
    try:
        with explaining(place.connection.address):
            return _PARTS[part](store, request)
    except (CompactionError, OSError) as error:
        # Of this part: the others do not depend on it, and are done all the same.
        return PartFound(None, failed=[error])


# Retention: blocks all of whose rows are older than their tenant's data are kept.


def _retention(store: BlockStore, request: SweepRequest) -> PartFound:
    periods, limit = request.periods, request.limit
    if periods is None:
        return PartFound(None, lines=["no retention: give --keep or a policy (-f)"])
    if request.applying:
        found = _end_all(store, periods)
    else:
        found = would_expire(store.index, periods, now=store.now(), limit=limit + 1)
    rows = [expired_object(item) for item in found[:limit]]
    more = len(found) > len(rows) and not request.applying
    blocks = f"{plural(len(found), 'block')} with {format_bytes(sum(item.bytes for item in found))}"
    if request.applying:
        line = f"{blocks} ended; their objects are deleted after the grace"
    else:
        many = f"more than {limit} blocks" if more else blocks
        line = f"{many} would end; nothing was changed (--apply does it)"
    data = {"ended": request.applying, "blocks": len(found), "more": more, "items": rows}
    return PartFound(data, [line], rows, EXPIRED_COLUMNS)


def _end_all(store: BlockStore, periods: RetentionPeriods) -> tuple[Expired, ...]:
    ended: list[Expired] = []
    while found := expire_all(store.index, periods, clock=store.now):
        ended += found
    return tuple(ended)


# Tombstones: blocks that are no longer live, whose objects are deleted when the grace is over.


def _tombstones(store: BlockStore, request: SweepRequest) -> PartFound:
    grace = request.grace
    swept = sweep_all(store, grace=grace) if request.applying and grace is not None else None
    now, total = store.now(), summary(store.index)
    waiting = standing(store.index, limit=request.limit)
    rows = [tombstone_object(item, grace=grace) for item in waiting]
    text = f"{plural(total.blocks, 'block')} with {format_bytes(total.bytes)} wait for their deletion"
    if grace is not None:
        text += f", {sum(item.since + grace <= now for item in waiting)} of those shown are due"
    elif rows:
        text += ", due when the policy says (give -f or --grace)"
    lines = [f"{text}; {total.failing} could not be deleted so far"]
    failed: list[BaseException | str] = []
    if swept is not None:
        lines.insert(0, f"deleted: {plural(swept.blocks, 'block')}, {format_bytes(swept.bytes)}")
        failed += [f"block {block} could not be deleted: {reason}" for block, reason in swept.failed.items()]
    data = {"blocks": total.blocks, "bytes": total.bytes, "failing": total.failing, "items": rows}
    data["swept"] = None if swept is None else swept_object(swept)
    return PartFound(data, lines, rows, TOMBSTONE_COLUMNS, WIDE_TOMBSTONE_COLUMNS, failed)


def sweep_all(store: BlockStore, *, grace: int) -> Cleaned:
    """Sweep until nothing is due any more, or only what the store refuses to delete."""
    blocks = size = 0
    failed: dict[str, str] = {}
    while True:
        swept = sweep_tombstones(store.objects, store.index, now=store.now(), grace=grace)
        blocks, size, failed = blocks + swept.blocks, size + swept.bytes, failed | dict(swept.failed)
        # Deleting sources lets their outputs be due, which another round finds.
        if not swept.blocks:
            return Cleaned(blocks, size, MappingProxyType(failed), swept.next, more=False)


def swept_object(swept: Cleaned) -> dict[str, Any]:
    """Return the blocks that a sweep deleted, those that it could not delete, and the time of the next sweep."""
    return {
        "blocks": swept.blocks,
        "bytes": swept.bytes,
        "failed": [{"block": block, "reason": reason} for block, reason in swept.failed.items()],
        "next": time_text(swept.next),
    }


# Orphans: objects that lie where blocks do and belong to none.

ORPHAN_COLUMNS: Final = (
    OutputColumn("path", "Path"),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("seconds", "Age", format_age, right=True),
)


def _orphans(store: BlockStore, request: SweepRequest) -> PartFound:
    if request.applying:
        return _collected(_collect_all(store, request.older_than))
    return _searched(find_orphans(store.objects, store.index, older_than=request.older_than))


def _collect_all(store: BlockStore, age: int) -> Collected:
    """Collect until nothing is left but what the store refuses to delete."""
    objects = size = 0
    failed: Mapping[str, str] = {}
    while True:
        collected = collect_orphans(store.objects, store.index, now=store.now(), older_than=age)
        objects, size, failed = objects + collected.objects, size + collected.bytes, collected.failed
        if not collected.more or not collected.objects:
            return Collected(objects, size, failed, collected.more)


def _collected(found: Collected) -> PartFound:
    failed = [{"path": path, "reason": reason} for path, reason in found.failed.items()]
    return PartFound(
        {"deleted": found.objects, "bytes": found.bytes, "failed": failed},
        [f"{plural(found.objects, 'orphan')} with {format_bytes(found.bytes)} deleted"],
        failed=[f"{path} could not be deleted: {reason}" for path, reason in found.failed.items()],
    )


def _searched(found: OrphanSearch) -> PartFound:
    rows = [{"path": item.path, "bytes": item.bytes, "seconds": item.age // SECOND} for item in found.orphans]
    more = "at least " if found.more else ""
    size = format_bytes(sum(orphan.bytes for orphan in found.orphans))
    lines = [f"{more}{plural(len(rows), 'orphan')} with {size}; nothing was changed (--apply does it)"]
    if found.protected:
        lines.append(f"{plural(found.protected, 'object')} kept: an open job may still commit them")
    if found.owned:
        path, reason = next(iter(found.owned.items()))
        lines.append(f"{plural(len(found.owned), 'object')} kept: {path}: {reason.removeprefix('it is kept: ')}")
    if found.waiting:
        lines.append(
            f"{plural(found.waiting, 'object')} kept for a week after the index was created: review them first"
        )
    data = {"protected": found.protected, "waiting": found.waiting, "more": found.more, "items": rows}
    owned = [{"path": path, "reason": reason} for path, reason in found.owned.items()]
    return PartFound(data | {"owned": owned}, lines, rows, ORPHAN_COLUMNS)


_PARTS: Final[Mapping[SweepPart, Callable[[BlockStore, SweepRequest], PartFound]]] = {
    SweepPart.RETENTION: _retention,
    SweepPart.TOMBSTONES: _tombstones,
    SweepPart.ORPHANS: _orphans,
}
