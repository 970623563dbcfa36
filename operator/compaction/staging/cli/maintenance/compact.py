"""`compactor staging compact`: a branch, now, in this process."""

from __future__ import annotations

from typing import Any

import click

from compaction.api.text.formatting import format_bytes, plural
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.staging.cli.maintenance.branch_compaction import CompactedBranch, compact_branch
from compaction.staging.cli.options import StagingPlace, staging_options


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
            f"({format_bytes(sum(one.estimated_size for one in applied.written))}), {applied.reused} reused"
        )


def compacted_object(done: CompactedBranch) -> dict[str, Any]:
    """What became of a branch, with exact values."""
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
        "bytesWritten": sum(one.estimated_size for one in applied.written),
        "fingerprint": done.rewritten.fingerprint_after,
    }
