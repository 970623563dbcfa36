"""`compactor staging inspect` and `plan`: branches that are due, why, and what compacting them would touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from pydantic import ValidationError

from compaction.api.policy.staging_area import KeyValueReference, StagingAreaSpec, StagingThresholds
from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_pairs,
    print_table,
)
from compaction.cli.places import is_given
from compaction.cli.values import DurationParameter
from compaction.staging.cli.options import SHORT, StagingPlace, staging_options

if TYPE_CHECKING:
    from compaction.staging.compaction import BranchWork
    from compaction.staging.errors import StagingStoreError
    from compaction.staging.flows.area import Area
    from compaction.staging.format.columns import RecordColumns
    from compaction.staging.sensor import BranchDebt
    from compaction.staging.staged.counters import Counts

# The debt of branches, and what compacting them would touch: from the counters, the tokens and the lists of ranges.
#
# What reads them is imported where it is used: who asks for help waits for the models of policies, which have the
# defaults, and for nothing else.


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """A token of a branch and what its counters say."""

    token: str
    counts: Counts


@dataclass(frozen=True, slots=True)
class TouchedRanges:
    """The cost of a compaction of a branch: its changes and the ranges that they touch, of `ranges`, which it reads and
    writes.
    """

    changes: int
    tombstones: int
    ranges: int
    touched: int
    bytes: int


def scan_branches(
    area: Area, thresholds: StagingThresholds, *, branch: str | None = None, policy: StagingAreaSpec | None = None
) -> tuple[list[BranchDebt], list[tuple[str, StagingStoreError]]]:
    """Return the debt of every branch, or of one, by what is staged on it; and branches that cannot be read. Nothing is
    written.

    policy: it selects the branches when none is named.

    Raises UnknownRefError.
    """
    from compaction.staging.sensor import BranchSensor

    if branch is not None:
        area.branches.get(branch)
    spec = policy if policy is not None and branch is None else _spec(area, thresholds, branch)
    scan = BranchSensor(spec).scan(area, store=False)
    return list(scan.branches), list(scan.damaged)


def token_counts(area: Area, tokens: Sequence[str]) -> list[TokenCounts]:
    """Return the counts of each token; a token without counters is counted."""
    counted = area.counters.read(tokens)
    return [TokenCounts(token, counted.get(token) or area.counters.prime(token, store=False)) for token in tokens]


def why_due(area: Area, debt: BranchDebt, thresholds: StagingThresholds) -> str:
    """The thresholds that a branch has reached, in words; "" when it is not due."""
    from compaction.api.policy.store import StoreSpec
    from compaction.staging.kind import STAGING
    from compaction.staging.sensor import candidate_of

    if debt.work is None:
        return ""
    spec, now = _spec(area, thresholds, None), area.clock()
    candidate = candidate_of(debt, debt.work, spec, sensed_at=0.0, now=now)
    if not STAGING.due(StoreSpec(staging_area=spec))(candidate):
        return ""
    counts, reached = debt.counts, []
    if thresholds.tombstones is not None and counts.tombstones >= thresholds.tombstones:
        reached.append(plural(counts.tombstones, "tombstone"))
    if thresholds.sealed_tokens is not None and len(debt.record.sealed_tokens) >= thresholds.sealed_tokens:
        reached.append(plural(len(debt.record.sealed_tokens), "sealed token"))
    if thresholds.staged_writes is not None and counts.writes >= thresholds.staged_writes:
        reached.append(plural(counts.writes, "write"))
    if thresholds.staged_bytes is not None and counts.nbytes >= int(thresholds.staged_bytes):
        reached.append(format_bytes(counts.nbytes))
    if thresholds.max_age is not None and now - debt.since >= float(thresholds.max_age):
        reached.append(f"staged for {format_age(now - debt.since)}")
    return ", ".join(reached)


def touched_by(area: Area, work: BranchWork) -> TouchedRanges:
    """Return the changes and the ranges that a compaction would touch. Reads the staged changes, and no range."""
    from compaction.staging.compaction import staged_changes
    from compaction.staging.format.columns import tombstones
    from compaction.staging.format.ranges import RangeInfo
    from compaction.staging.tree.applying import plan_parts

    head = area.commits.get(work.commit_id).meta_range_id
    ranges = list(area.ranges.ranges(work.base or head))
    changes, deleted = 0, 0

    def counted(batches: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
        nonlocal changes, deleted
        for batch in batches:
            changes += len(batch)
            deleted += int(tombstones(batch).sum())
            yield batch

    touched: dict[str, int] = {}
    for item in plan_parts(ranges, counted(staged_changes(area, work)), area.ranges.rule):
        if not isinstance(item, RangeInfo):
            touched |= {each.id: each.estimated_size for each in item.ranges}
    return TouchedRanges(changes, deleted, len(ranges), len(touched), sum(touched.values()))


def _spec(area: Area, thresholds: StagingThresholds, branch: str | None) -> StagingAreaSpec:
    return StagingAreaSpec(
        repository=area.repository.name,
        kv=KeyValueReference(secret_name="kv"),
        include=("*",) if branch is None else (branch,),
        thresholds=thresholds,
    )


# `compactor staging inspect`: what branches have uncommitted, from the counters.

BRANCH_COLUMNS: Final = (
    OutputColumn("name", "Branch"),
    OutputColumn("commit", "Commit", lambda text: text[:SHORT]),
    OutputColumn("sealedTokens", "Sealed tokens", right=True),
    OutputColumn("writes", "Writes", right=True),
    OutputColumn("tombstones", "Tombstones", right=True),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("compactedBase", "Compacted base", lambda text: text[:SHORT] if text else "-"),
    OutputColumn("claim", "Claimed by", lambda claim: claim["job"] if claim else "-"),
    OutputColumn("age", "Age", format_age, right=True),
)
TOKEN_COLUMNS: Final = (
    OutputColumn("token", "Token"),
    OutputColumn("state", "State"),
    OutputColumn("writes", "Writes", right=True),
    OutputColumn("tombstones", "Tombstones", right=True),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
)


@click.command()
@click.argument("branch", required=False)
@staging_options(policy=True)
@output_option()
@click.pass_context
def inspect(context: click.Context, /, *, branch: str | None, place: StagingPlace, output: OutputFormat) -> None:
    """Show what is staged on every branch, or one branch with its tokens: what a read has to step over.

    Figures are those of the counters of writers, which count a key that is written twice twice. AGE is the time since
    the last compaction began, or since the commit. Changes nothing.

    Example: compactor staging inspect main --repo logs
    """
    with place.area() as area:
        debts, damaged = scan_branches(area, StagingThresholds(), branch=branch, policy=place.spec)
        rows = [_branch(area, debt) for debt in debts]
        tokens = [_tokens(area, debt) for debt in debts] if branch is not None else []
    if branch is not None and rows:
        _show_one({**rows[0], "tokens": tokens[0]}, output)
    elif output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
    else:
        if rows:
            print_table(rows, BRANCH_COLUMNS)
        click.echo(plural(len(rows), "branch", "branches"))
    if damaged:
        report_all([error for _, error in damaged])
        context.exit(EXIT_DATA_ERROR)


def _branch(area: Area, debt: BranchDebt) -> dict[str, Any]:
    from compaction.staging.cli.values import moment_text

    record, counts = debt.record, debt.counts
    return {
        "name": debt.name,
        "commit": record.commit_id,
        "compactedBase": record.compacted_base or None,
        "sealedTokens": len(record.sealed_tokens),
        "writes": counts.writes,
        "tombstones": counts.tombstones,
        "bytes": counts.nbytes,
        "claim": {"job": record.claim_job, "token": record.claim_token} if record.claim_job else None,
        "compactedBy": {"job": record.compacted_job, "token": record.compacted_token} if record.compacted_job else None,
        "compactionStarted": None if debt.began_at is None else moment_text(debt.began_at),
        "age": max(0, int(area.clock() - debt.since)),
    }


def _tokens(area: Area, debt: BranchDebt) -> list[dict[str, Any]]:
    return [
        {
            "token": count.token,
            "state": "staging" if count.token == debt.record.staging_token else "sealed",
            "writes": count.counts.writes,
            "tombstones": count.counts.tombstones,
            "bytes": count.counts.nbytes,
        }
        for count in token_counts(area, debt.record.tokens)
    ]


def _show_one(found: dict[str, Any], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit(found, output)
        return
    texts = {
        "bytes": optional_bytes(found["bytes"]),
        "claim": "-" if found["claim"] is None else f"{found['claim']['job']}, token {found['claim']['token']}",
        "compactedBy": "-" if found["compactedBy"] is None else found["compactedBy"]["job"],
        "age": format_age(found["age"]),
    }
    print_pairs([(name, texts.get(name, optional(value))) for name, value in found.items() if name != "tokens"])
    click.echo()
    print_table(found["tokens"], TOKEN_COLUMNS)


# `compactor staging plan`: which branches are due, why, and what compacting them would touch.

_DEFAULTS: Final = StagingThresholds()
COLUMNS: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("due", "Due", lambda why: why or "no"),
    OutputColumn("tombstones", "Tombstones", right=True),
    OutputColumn("sealedTokens", "Sealed tokens", right=True),
    OutputColumn("writes", "Writes", right=True),
    OutputColumn("changes", "Changes", optional, right=True),
    OutputColumn("touched", "Touched ranges", optional, right=True),
    OutputColumn("touchedBytes", "Bytes", optional_bytes, right=True),
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
