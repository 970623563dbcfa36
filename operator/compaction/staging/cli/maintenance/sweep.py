"""`compactor staging sweep`: tokens and objects that nothing leads to, and deleting them after the grace."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.text.formatting import format_age, format_bytes, plural
from compaction.api.text.values import Duration
from compaction.cli.durations import DurationParameter
from compaction.cli.output import Column, OutputFormat, emit, optional_bytes, output_option, print_table
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.flows.area import Area
from compaction.staging.sweep.objects import SweptObjects, sweep_objects
from compaction.staging.sweep.preview import unreached_objects, unused_tokens
from compaction.staging.sweep.tokens import SweptTokens, sweep_tokens

COLUMNS: Final = (
    Column("kind", "What"),
    Column("name", "Name"),
    Column("bytes", "Bytes", optional_bytes, right=True),
    Column("seconds", "Unused for", lambda seconds: "-" if seconds is None else format_age(seconds), right=True),
    Column("due", "Due", lambda due: "yes" if due else "no"),
)


@click.command()
@click.option("--delete", "deleting", is_flag=True, help="Apply (default: dry run).")
@click.option(
    "--grace",
    type=DurationParameter(),
    default="1h",
    show_default=True,
    help="How long they stay: longer than any listing, commit or compaction takes.",
)
@staging_options()
@output_option()
def sweep(*, deleting: bool, grace: Duration, place: StagingPlace, output: OutputFormat) -> None:
    """Tokens that no branch has, ranges and metaranges that no commit and no branch leads to. Changes nothing without
    --delete.

    The grace of a token runs from the sweep that first saw it unused, that of an object from when it was written. A
    tree that cannot be read stops the sweep, because it is not known what it has.

    Example: compactor staging sweep --grace 6h --delete --repo logs
    """
    with place.area() as area:
        if deleting:
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
    """What was deleted, with exact values."""
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
        emit(swept_object(tokens, objects), output)
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
            "name": one.token,
            "bytes": None,
            "seconds": one.seconds,
            "due": one.seconds is not None and one.seconds >= grace,
        }
        for one in unused_tokens(area)
    ]
    rows += [
        {
            "kind": "object",
            "name": one.id,
            "bytes": one.bytes,
            "seconds": one.seconds,
            "due": one.seconds > grace and not one.claimed,
        }
        for one in unreached_objects(area)
    ]
    return rows


def _show_found(rows: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    due = sum(row["due"] for row in rows)
    click.echo(f"{plural(len(rows), 'token or object', 'tokens and objects')} of no branch, {due} due; nothing changed")
