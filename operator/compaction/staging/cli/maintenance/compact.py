"""`compactor staging compact`, `verify` and `sweep`: one branch or repository, now, in this process."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import click

from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.api.text.quantities import Duration
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
from compaction.cli.values import DurationParameter
from compaction.errors import CompactionError
from compaction.staging import verifying
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.compaction import BranchWork, Rewritten, claim, retire, rewrite, swap_base, work_on
from compaction.staging.errors import BranchClaimedError
from compaction.staging.flows.area import Area
from compaction.staging.sweep import (
    SweptObjects,
    SweptTokens,
    sweep_objects,
    sweep_tokens,
    unreached_objects,
    unused_tokens,
)

# A compaction of one branch in this process: claim, rewrite, proof, swap (docs/design/staging-areas.md#compaction).

TOKEN: Final = 1
"""A job of the command line has one attempt."""


@dataclass(frozen=True, slots=True)
class CompactedBranch:
    """The result of a compaction of a branch."""

    job: str
    work: BranchWork
    rewritten: Rewritten


def compact_branch(area: Area, name: str, *, take_over: bool = False) -> CompactedBranch | None:
    """Compact all that a branch has staged; None when there is nothing.

    A branch that another job has claimed is refused, unless it is taken over: that job commits nothing then. After an
    error the claim is retired, and the branch shows what it did.

    Raises UnknownRefError, BranchClaimedError, RepositoryReadOnlyError, WorkOutdatedError, StaleTokenError,
    OutputSweptError, TooManyTriesError, and as `rewrite`.
    """
    area.repository.check_writable()
    record = area.branches.get(name).record
    work = work_on(area.repository.name, record, staged=area.tokens.has_rows(record.staging_token))
    if not work.tokens:
        return None
    if record.claim_job and not take_over:
        raise BranchClaimedError(name, record.claim_job)
    job = f"cli-{socket.gethostname()[:40]}-{os.getpid()}-{uuid4().hex[:12]}"
    with ExitStack() as undo:
        undo.callback(_retire, area, name, job)
        claim(area, work, job=job, token=TOKEN)
        rewritten = rewrite(area, work)
        written = (rewritten.tree, *(item.id for item in rewritten.applied.written))
        swap_base(area, work, rewritten.tree, job=job, token=TOKEN, written=written)
        undo.pop_all()
    return CompactedBranch(job, work, rewritten)


def _retire(area: Area, name: str, job: str) -> None:
    # What went wrong before is the error to report.
    with suppress(CompactionError):
        retire(area, name, job)


# `compactor staging compact`: a branch, now, in this process.


@click.command()
@click.argument("branch")
@click.option("--take-over", is_flag=True, help="Also a branch that another compaction has claimed.")
@staging_options(policy=True)
@output_option()
def compact(*, branch: str, take_over: bool, place: StagingPlace, output: OutputFormat) -> None:
    """Compact all that is staged on a branch into its compacted base: claim, rewrite, prove, swap.

    Readers see the same before and after. Only ranges that changes touch are written again. The tokens and ranges that
    are no more needed stay until `compactor staging sweep` deletes them after the grace.

    Example: compactor staging compact main --repo logs
    """
    with place.area() as area:
        done = compact_branch(area, branch, take_over=take_over)
    if output is not OutputFormat.TABLE:
        emit({"branch": branch, "compacted": None if done is None else compacted_object(done)}, output)
    elif done is None:
        click.echo(f"branch {branch}: nothing is staged")
    else:
        applied = done.rewritten.applied
        counts = applied.counts
        click.echo(
            f"branch {branch}: {plural(len(done.work.tokens), 'token')} compacted: {counts.added} added, "
            f"{counts.changed} changed, {counts.removed} removed; {plural(len(applied.written), 'range')} written "
            f"({format_bytes(sum(item.estimated_size for item in applied.written))}), {applied.reused} reused"
        )


def compacted_object(done: CompactedBranch) -> dict[str, Any]:
    """Return the result of a compaction, with exact values."""
    applied = done.rewritten.applied
    return {
        "job": done.job,
        "tokens": len(done.work.tokens),
        "compactedBase": applied.metarange_id,
        "added": applied.counts.added,
        "changed": applied.counts.changed,
        "removed": applied.counts.removed,
        "rangesWritten": len(applied.written),
        "rangesReused": applied.reused,
        "bytesWritten": sum(item.estimated_size for item in applied.written),
        "fingerprint": done.rewritten.fingerprint_after,
    }


# `compactor staging verify`: everything is read again.


@click.command()
@click.argument("reference", metavar="[REF]", required=False)
@staging_options(policy=True)
@output_option()
@click.pass_context
def verify(context: click.Context, /, *, reference: str | None, place: StagingPlace, output: OutputFormat) -> None:
    """Read every range of all commits and compacted bases, or of what REF shows, and every row of the tokens.

    Checked are the checksums of all blocks, the ids of ranges, metaranges and commits (computed again from what was
    read), counts, bounds, and that rows are what they should be. A line on stderr names each thing that is wrong; the
    exit code is then 1. Changes nothing.

    Example: compactor staging verify --repo logs
    """
    with place.area() as area:
        found = verifying.verify(area, reference)
    if output is not OutputFormat.TABLE:
        counts = {name: getattr(found, name) for name in ("commits", "trees", "ranges", "records", "tokens", "rows")}
        emit({**counts, "problems": list(found.problems)}, output)
    else:
        click.echo(
            f"{plural(found.commits, 'commit')}, {plural(found.trees, 'tree')}, {plural(found.ranges, 'range')} with "
            f"{plural(found.records, 'record')}, {plural(found.tokens, 'token')} with {plural(found.rows, 'row')}: "
            f"{plural(len(found.problems), 'problem')}"
        )
    if found.problems:
        report_all(found.problems)
        context.exit(EXIT_DATA_ERROR)


# `compactor staging sweep`: tokens and objects that nothing leads to, and deleting them after the grace.

COLUMNS: Final = (
    OutputColumn("kind", "What"),
    OutputColumn("name", "Name"),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("seconds", "Unused for", lambda seconds: "-" if seconds is None else format_age(seconds), right=True),
    OutputColumn("due", "Due", lambda due: "yes" if due else "no"),
)


@click.command()
@apply_option
@click.option(
    "--grace",
    type=DurationParameter(),
    default="1h",
    show_default=True,
    help="Keep them for so long: longer than any listing, commit or compaction takes.",
)
@staging_options()
@output_option()
def sweep(*, applying: bool, grace: Duration, place: StagingPlace, output: OutputFormat) -> None:
    """Show tokens that no branch has, and ranges and metaranges that nothing leads to; with --apply delete them.

    The grace of a token runs from the sweep that first saw it unused, that of an object from when it was written. A
    tree that cannot be read stops the sweep, because it is not known what it has.

    Example: compactor staging sweep --grace 6h --apply --repo logs
    """
    with place.area() as area:
        if applying:
            # Before anything is noted: a first look at unused tokens writes since when they are.
            area.repository.check_writable()
            _show_swept(*sweep_all(area, float(grace)), output)
        else:
            _show_found(_found(area, float(grace)), output)


def sweep_all(area: Area, grace: float) -> tuple[SweptTokens, SweptObjects]:
    """Sweep tokens, then objects. Without a grace what is noted is due at once, so the tokens are swept once more."""
    tokens = sweep_tokens(area, grace=grace)
    if tokens.next_in == 0:
        again = sweep_tokens(area, grace=grace)
        tokens = SweptTokens(tokens.tokens + again.tokens, tokens.rows + again.rows, again.next_in)
    return tokens, sweep_objects(area, grace=grace)


def swept_object(tokens: SweptTokens, objects: SweptObjects) -> dict[str, Any]:
    """Return the tokens and objects that a sweep deleted, with exact values."""
    return {
        "tokens": tokens.tokens,
        "rows": tokens.rows,
        "objects": objects.objects,
        "bytes": objects.bytes,
        "objectsWaiting": objects.unreached,
        "nextTokenInSeconds": tokens.next_in,
    }


def _show_swept(tokens: SweptTokens, objects: SweptObjects, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit({"applied": True} | swept_object(tokens, objects), output)
        return
    waiting = f"; {plural(objects.unreached, 'object')} of no tree wait for the grace" if objects.unreached else ""
    if tokens.next_in is not None:
        waiting += f"; the next token is due in {format_age(tokens.next_in)}"
    click.echo(
        f"deleted: {plural(tokens.tokens, 'token')} with {plural(tokens.rows, 'row')}, "
        f"{plural(objects.objects, 'object')} with {format_bytes(objects.bytes)}{waiting}"
    )


def _found(area: Area, grace: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "kind": "token",
            "name": token.token,
            "bytes": None,
            "seconds": token.seconds,
            "due": token.seconds is not None and token.seconds >= grace,
        }
        for token in unused_tokens(area)
    ]
    rows += [
        {
            "kind": "object",
            "name": item.id,
            "bytes": item.bytes,
            "seconds": item.seconds,
            "due": item.seconds > grace and not item.claimed,
        }
        for item in unreached_objects(area)
    ]
    return rows


def _show_found(rows: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit({"applied": False, "items": rows}, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    due = sum(row["due"] for row in rows)
    click.echo(f"{plural(len(rows), 'token or object', 'tokens and objects')} of no branch, {due} due; nothing changed")
