"""`compactor staging plan`: which branches are due, why, and what compacting them would touch."""

from __future__ import annotations

from typing import Any, Final

import click
from pydantic import ValidationError

from compaction.api.policy.staging_area import StagingAreaSpec, StagingThresholds
from compaction.api.text.formatting import plural
from compaction.cli.durations import DurationParameter
from compaction.cli.errors import EXIT_DATA_ERROR, report_all
from compaction.cli.output import Column, OutputFormat, emit, optional, optional_bytes, output_option, print_table
from compaction.cli.places import is_given
from compaction.staging.cli.maintenance.debt import scan_branches, touched_by, why_due
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.flows.area import Area
from compaction.staging.sensor import BranchDebt

_DEFAULTS: Final = StagingThresholds()
COLUMNS: Final = (
    Column("branch", "Branch"),
    Column("due", "Due", lambda why: why or "no"),
    Column("tombstones", "Tombstones", right=True),
    Column("sealedTokens", "Sealed tokens", right=True),
    Column("writes", "Writes", right=True),
    Column("changes", "Changes", optional, right=True),
    Column("touched", "Touched ranges", optional, right=True),
    Column("touchedBytes", "Bytes", optional_bytes, right=True),
)


@click.command()
@click.argument("branch", required=False)
@click.option("--all", "everything", is_flag=True, help="Say of every branch what would be touched.")
@click.option(
    "--tombstones", type=click.IntRange(1), default=_DEFAULTS.tombstones, show_default=True, help="Threshold."
)
@click.option(
    "--sealed-tokens", type=click.IntRange(1), default=_DEFAULTS.sealed_tokens, show_default=True, help="Threshold."
)
@click.option("--writes", type=click.IntRange(1), default=_DEFAULTS.staged_writes, show_default=True, help="Threshold.")
@click.option("--bytes", "nbytes", metavar="QUANTITY", help="Threshold, such as 64Mi; default: none.")
@click.option("--age", type=DurationParameter(), help="Threshold, such as 1d; default: none.")
@staging_options(policy=True)
@output_option()
@click.pass_context
def plan(
    context: click.Context,
    /,
    *,
    branch: str | None,
    everything: bool,
    place: StagingPlace,
    output: OutputFormat,
    **thresholds: Any,
) -> None:
    """Show which branches reach a threshold, and what compacting them would touch. Changes nothing.

    Thresholds are those of a policy, and any that is reached makes a branch due. For a branch that is due the staged
    changes are read. TOUCHED RANGES are those that would be written again, of all that the branch has. With -f the
    policy says the thresholds and the branches.

    Example: compactor staging plan --tombstones 100 --repo logs
    """
    least = _thresholds(thresholds) if place.spec is None else _of_policy(place.spec)
    with place.area() as area:
        debts, damaged = scan_branches(area, least, branch=branch, policy=place.spec)
        rows = [_row(area, debt, why_due(area, debt, least), everything or branch is not None) for debt in debts]
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
    else:
        if rows:
            print_table([_table_row(row) for row in rows], COLUMNS)
        click.echo(f"{plural(sum(bool(row['due']) for row in rows), 'branch', 'branches')} of {len(rows)} due")
    if damaged:
        report_all([error for _, error in damaged])
        context.exit(EXIT_DATA_ERROR)


def _of_policy(spec: StagingAreaSpec) -> StagingThresholds:
    flags = {"tombstones": "tombstones", "sealed_tokens": "sealed-tokens", "writes": "writes", "nbytes": "bytes"}
    for name, flag in (flags | {"age": "age"}).items():
        if is_given(name):
            raise click.UsageError(f"the policy says that: leave out --{flag}")
    return spec.thresholds


def _thresholds(given: dict[str, Any]) -> StagingThresholds:
    try:
        return StagingThresholds(
            tombstones=given["tombstones"],
            sealed_tokens=given["sealed_tokens"],
            staged_writes=given["writes"],
            staged_bytes=given["nbytes"],
            max_age=given["age"],
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise click.UsageError(f"threshold {first['loc'][0]}: {first['msg']}") from None


def _row(area: Area, debt: BranchDebt, why: str, asked: bool) -> dict[str, Any]:
    touched = touched_by(area, debt.work) if debt.work is not None and (why or asked) else None
    return {
        "branch": debt.name,
        "due": why or None,
        "tombstones": debt.counts.tombstones,
        "sealedTokens": len(debt.record.sealed_tokens),
        "writes": debt.counts.writes,
        "bytes": debt.counts.nbytes,
        "work": None
        if touched is None
        else {
            "changes": touched.changes,
            "tombstones": touched.tombstones,
            "ranges": touched.ranges,
            "touchedRanges": touched.touched,
            "touchedBytes": touched.bytes,
        },
    }


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    work = row["work"]
    if work is None:
        return row
    touched = f"{work['touchedRanges']} of {work['ranges']}"
    return row | {"changes": work["changes"], "touched": touched, "touchedBytes": work["touchedBytes"]}
