"""`compactor staging inspect`: what branches have uncommitted, from the counters."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.policy.staging_area import StagingThresholds
from compaction.api.text.formatting import format_age, plural
from compaction.cli.errors import EXIT_DATA_ERROR, report_all
from compaction.cli.output import (
    Column,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_pairs,
    print_table,
)
from compaction.staging.cli.branches import SHORT
from compaction.staging.cli.maintenance.debt import scan_branches, token_counts
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.values import moment_text
from compaction.staging.flows.area import Area
from compaction.staging.sensor import BranchDebt

BRANCH_COLUMNS: Final = (
    Column("name", "Branch"),
    Column("commit", "Commit", lambda text: text[:SHORT]),
    Column("sealedTokens", "Sealed tokens", right=True),
    Column("writes", "Writes", right=True),
    Column("tombstones", "Tombstones", right=True),
    Column("bytes", "Bytes", optional_bytes, right=True),
    Column("compactedBase", "Compacted base", lambda text: text[:SHORT] if text else "-"),
    Column("claim", "Claimed by", lambda claim: claim["job"] if claim else "-"),
    Column("age", "Age", format_age, right=True),
)
TOKEN_COLUMNS: Final = (
    Column("token", "Token"),
    Column("state", "State"),
    Column("writes", "Writes", right=True),
    Column("tombstones", "Tombstones", right=True),
    Column("bytes", "Bytes", optional_bytes, right=True),
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
            "token": one.token,
            "state": "staging" if one.token == debt.record.staging_token else "sealed",
            "writes": one.counts.writes,
            "tombstones": one.counts.tombstones,
            "bytes": one.counts.nbytes,
        }
        for one in token_counts(area, debt.record.tokens)
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
