"""`compactor blocks tombstones`, `retention` and `orphans`: what ends, when it is deleted, and deleting it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from compaction.blocks.sweep.cleaning import Cleaned, expire_all, sweep
from compaction.blocks.sweep.orphan_collector import Collected, OrphanSearch, collect_orphans, find_orphans
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional_bytes, output_option, print_table
from compaction.cli.values import DurationParameter

# `compactor blocks tombstones` and `retention`: which blocks end, when their objects are deleted, and doing it now.

grace_option: Final = click.option(
    "--grace",
    type=DurationParameter(),
    help="How long replaced blocks stay readable; default: cleanup.delay of the policy (-f).",
)
SHOWN: Final = 1000


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


def grace_of(place: StorePlace, given: Duration | None) -> int | None:
    """Microseconds, from the option, else from the policy; None without both: a store does not know its policy."""
    if given is None and place.policy is not None:
        given = place.policy.spec.cleanup.delay
    return None if given is None else int(given * SECOND)


@click.command()
@store_options()
@click.option("--sweep", "sweeping", is_flag=True, help="Delete the blocks whose grace is over.")
@grace_option
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="Maximum number, oldest first.")
@output_option(wide=True)
@click.pass_context
def tombstones(
    context: click.Context,
    *,
    place: StorePlace,
    sweeping: bool,
    grace: Duration | None,
    limit: int,
    output: OutputFormat,
) -> None:
    """What is no longer live and waits for its deletion: since when, why, and when it is due.

    When it is due says the policy (-f) or --grace. With --sweep what is due is deleted first, from the store and then
    from the list; what the store refuses to delete is named, stays in the list and is tried again later. The exit code
    is then 1.

    Example: compactor blocks tombstones --store DIR --sweep --grace 0s
    """
    kept = grace_of(place, grace)
    if sweeping and kept is None:
        raise click.UsageError("how long do replaced blocks stay readable? Give --grace, or a policy (-f)")
    with place.open() as store:
        swept = sweep_all(store, grace=kept) if sweeping and kept is not None else None
        now, total = store.now(), summary(store.index)
        waiting = standing(store.index, limit=limit)
    rows: list[dict[str, Any]] = [tombstone_object(item, grace=kept) for item in waiting]
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        data = {"blocks": total.blocks, "bytes": total.bytes, "failing": total.failing, "items": rows}
        emit(data | {"swept": None if swept is None else swept_object(swept)}, output)
    else:
        if rows:
            print_table(rows, WIDE_TOMBSTONE_COLUMNS if output is OutputFormat.WIDE else TOMBSTONE_COLUMNS)
        if swept is not None:
            click.echo(f"deleted: {plural(swept.blocks, 'block')}, {format_bytes(swept.bytes)}")
        text = f"{plural(total.blocks, 'block')} with {format_bytes(total.bytes)} wait for their deletion"
        if kept is not None:
            text += f", {sum(item.since + kept <= now for item in waiting)} of those shown are due"
        elif rows:
            text += ", due when the policy says (give -f or --grace)"
        click.echo(f"{text}; {total.failing} could not be deleted so far")
    if swept is not None and swept.failed:
        report_all([f"block {block} could not be deleted: {reason}" for block, reason in swept.failed.items()])
        context.exit(EXIT_DATA_ERROR)


def sweep_all(store: BlockStore, *, grace: int) -> Cleaned:
    """Sweep until nothing is due any more, or only what the store refuses to delete."""
    blocks = size = 0
    failed: dict[str, str] = {}
    while True:
        swept = sweep(store.objects, store.index, now=store.now(), grace=grace)
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


@click.command()
@store_options()
@click.option("--keep", type=DurationParameter(), help="How long data is kept, counted from a block's newest row.")
@click.option(
    "--keep-tenant",
    "tenants",
    type=TenantDuration(),
    metavar="TENANT=DURATION",
    multiple=True,
    help="How long the data of one tenant is kept; 0s: for ever.",
)
@click.option("--delete", "ending", is_flag=True, help="Apply (default: dry run).")
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="Maximum number, oldest first.")
@output_option()
def retention(
    *,
    place: StorePlace,
    keep: Duration | None,
    tenants: Sequence[tuple[str, Duration]],
    ending: bool,
    limit: int,
    output: OutputFormat,
) -> None:
    """Blocks all of whose rows are older than their tenant's data are kept. Changes nothing without --delete.

    The periods are those of the policy (-f), or what --keep and --keep-tenant say. With --delete the blocks end at once
    for readers, whatever job they are in; their objects are deleted after the grace (`compactor blocks tombstones`).

    Example: compactor blocks retention --store DIR --keep 90d --keep-tenant audit=365d
    """
    rule = _rule(place, keep, tenants)
    with place.open() as store:
        found = _end_all(store, rule) if ending else would_expire(store.index, rule, now=store.now(), limit=limit + 1)
    rows = [expired_object(item) for item in found[:limit]]
    more, size = len(found) - len(rows), format_bytes(sum(item.bytes for item in found))
    if output is not OutputFormat.TABLE:
        emit({"ended": ending, "blocks": len(found), "more": more > 0 and not ending, "items": rows}, output)
        return
    if rows:
        print_table(rows, EXPIRED_COLUMNS)
    if ending:
        click.echo(f"{plural(len(found), 'block')} with {size} ended; their objects are deleted after the grace")
    else:
        many = f"more than {limit} blocks" if more else f"{plural(len(found), 'block')} with {size}"
        click.echo(f"{many} would end; nothing was changed (--delete does it)")


def _rule(place: StorePlace, keep: Duration | None, tenants: Sequence[tuple[str, Duration]]) -> RetentionPeriods:
    if keep is not None or tenants:
        periods = {tenant: int(period * SECOND) for tenant, period in tenants}
        return RetentionPeriods(int((keep or 0.0) * SECOND), MappingProxyType(periods))
    store = place.policy.spec.store.block_store if place.policy is not None else None
    if store is None:
        raise click.UsageError("how long are data kept? Give --keep, --keep-tenant, or a policy (-f)")
    # With a policy only: its models take longer to import than a command without one to answer.
    from compaction.blocks.adapter import retention_of

    return retention_of(store)


def _end_all(store: BlockStore, rule: RetentionPeriods) -> tuple[Expired, ...]:
    ended: list[Expired] = []
    while found := expire_all(store.index, rule, now=store.now()):
        ended += found
    return tuple(ended)


# `compactor blocks orphans`: objects that lie where blocks do and belong to none.

COLUMNS: Final = (
    OutputColumn("path", "Path"),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("seconds", "Age", format_age, right=True),
)


@click.command()
@store_options()
@click.option("--delete", "deleting", is_flag=True, help="Apply (default: dry run).")
@click.option(
    "--older-than",
    type=DurationParameter(),
    default="24h",
    show_default=True,
    help="Minimum age of objects: longer than any writer takes between upload and registration.",
)
@output_option()
@click.pass_context
def orphans(
    context: click.Context, *, place: StorePlace, deleting: bool, older_than: Duration, output: OutputFormat
) -> None:
    """Objects that belong to no block: left by writers and attempts that died. Changes nothing without --delete.

    What an open job may still commit is no orphan, however old. Files that are not named as blocks are
    (TENANT/SHARD/ULID.parquet) are never touched.

    Example: compactor blocks orphans --store DIR --older-than 48h --delete
    """
    age = int(older_than * SECOND)
    with place.open() as store:
        if deleting:
            _show_collected(context, _collect_all(store, age), output)
        else:
            _show_found(find_orphans(store.objects, store.index, older_than=age), output)


def _collect_all(store: BlockStore, age: int) -> Collected:
    """Collect until nothing is left but what the store refuses to delete."""
    objects = size = 0
    failed: Mapping[str, str] = {}
    while True:
        collected = collect_orphans(store.objects, store.index, now=store.now(), older_than=age)
        objects, size, failed = objects + collected.objects, size + collected.bytes, collected.failed
        if not collected.more or not collected.objects:
            return Collected(objects, size, failed, collected.more)


def _show_found(found: OrphanSearch, output: OutputFormat) -> None:
    rows: list[dict[str, Any]] = [
        {"path": orphan.path, "bytes": orphan.bytes, "seconds": orphan.age // SECOND} for orphan in found.orphans
    ]
    if output is not OutputFormat.TABLE:
        data = {"protected": found.protected, "waiting": found.waiting, "more": found.more, "items": rows}
        data["owned"] = [{"path": path, "reason": reason} for path, reason in found.owned.items()]
        emit(data, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    more = "at least " if found.more else ""
    size = format_bytes(sum(orphan.bytes for orphan in found.orphans))
    click.echo(f"{more}{plural(len(rows), 'orphan')} with {size}; nothing was changed (--delete does it)")
    if found.protected:
        click.echo(f"{plural(found.protected, 'object')} kept: an open job may still commit them")
    if found.owned:
        path, reason = next(iter(found.owned.items()))
        click.echo(f"{plural(len(found.owned), 'object')} kept: {path}: {reason.removeprefix('it is kept: ')}")
    if found.waiting:
        click.echo(f"{plural(found.waiting, 'object')} kept for a week after the index was created: review them first")


def _show_collected(context: click.Context, found: Collected, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        failed = [{"path": path, "reason": reason} for path, reason in found.failed.items()]
        emit({"deleted": found.objects, "bytes": found.bytes, "failed": failed}, output)
    else:
        click.echo(f"{plural(found.objects, 'orphan')} with {format_bytes(found.bytes)} deleted")
    if found.failed:
        report_all([f"{path} could not be deleted: {reason}" for path, reason in found.failed.items()])
        context.exit(EXIT_DATA_ERROR)
