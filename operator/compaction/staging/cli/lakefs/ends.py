"""`compactor staging lakefs undo-check`, `clean`, `stop` and `allow`: the ends of merges, and the kill switch."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from compaction.api.text.formatting import format_age, plural
from compaction.cli.errors import EXIT_DATA_ERROR
from compaction.cli.output import Column, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.lakefs.options import LivePlace, live_options
from compaction.staging.lakefs.cleaning import drop_deleted, drop_due, recover
from compaction.staging.lakefs.control import allow_merging, stop_merging, stopped_because
from compaction.staging.lakefs.repository import check_layout
from compaction.staging.lakefs.undoing import check_undo

_CHECKED: Final = (
    Column("branch", "Branch"),
    Column("possible", "Possible", lambda value: "yes" if value else "no"),
    Column("tokens", "Tokens", right=True),
    Column("dueIn", "Due in", lambda value: format_age(max(0.0, value)), right=True),
    Column("problems", "Problems", lambda value: "; ".join(value) or "-"),
    Column("fresh", "Merged token"),
)


@click.command("undo-check")
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@live_options()
@output_option()
@click.pass_context
def undo_check(context: click.Context, /, *, branches: tuple[str, ...], place: LivePlace, output: OutputFormat) -> None:
    """Check whether merges could be undone: whether the old tokens, in place of the merged one, show the same.

    Reads all their rows, and writes nothing. Merges whose old tokens are dropped are not listed. The exit code is 1
    when one of those listed cannot be undone.
    """
    with place.kv() as kv:
        live = place.repo(kv)
        every = branches or tuple(name for name, _ in live.branch_rows())
        items: list[dict[str, Any]] = [
            {
                "branch": one.branch,
                "fresh": one.fresh,
                "tokens": len(one.tokens),
                "oldTokens": list(one.tokens),
                "dueIn": one.due,
                "possible": one.possible,
                "problems": list(one.problems),
            }
            for name in every
            for one in check_undo(live, name)
        ]
    if output is not OutputFormat.TABLE:
        emit({"repository": place.repository, "items": items}, output)
    elif items:
        print_table(items, _CHECKED)
    else:
        click.echo("no merge has old tokens: nothing could be undone")
    if not all(one["possible"] for one in items):
        context.exit(EXIT_DATA_ERROR)


@click.command()
@live_options()
@output_option()
def clean(*, place: LivePlace, output: OutputFormat) -> None:
    """End what merges began: results that were never swapped in, and old tokens whose grace is over.

    A merge that another process works on is not touched, and no token that a branch names is dropped. Nothing is
    dropped while merging is stopped. Tokens of merges of repositories that have been deleted are dropped as well. At
    most 20,000 rows are deleted in a second: servers use the same table meanwhile.
    """
    with place.kv() as kv:
        check_layout(kv)
        deleted = drop_deleted(kv, clock=time.time, sleep=time.sleep)
        if deleted[0]:
            click.echo(
                f"deleted repositories: {plural(deleted[0], 'token')} with {plural(deleted[1], 'row')}", err=True
            )
        live = place.repo(kv)
        found, dropped, stopped = recover(live), drop_due(live), stopped_because(kv)
    if output is not OutputFormat.TABLE:
        ends: dict[str, Any] = {"discarded": found.discarded, "running": found.running, "waiting": found.waiting}
        ends |= {"droppedTokens": dropped.tokens, "droppedRows": dropped.rows, "inUse": list(dropped.in_use)}
        emit(ends | {"nextIn": dropped.next_in, "stopped": stopped}, output)
        return
    click.echo(f"discarded: {plural(found.discarded, 'merge')}; under way: {found.running}")
    click.echo(f"dropped: {plural(dropped.tokens, 'old token')} with {plural(dropped.rows, 'row')}")
    if stopped:
        click.echo(f"merging is stopped ({stopped}): old tokens stay")
    if dropped.next_in is not None:
        click.echo(f"the next token is due in {format_age(dropped.next_in)}")
    if dropped.in_use:
        click.echo(f"{plural(len(dropped.in_use), 'old token')} in use by a branch, which stay")


@click.command()
@live_options(repository=False, objects=False)
@click.option("--reason", default="stopped by a user", show_default=True, help="Shown where merges are refused.")
def stop(*, place: LivePlace, reason: str) -> None:
    """Stop all merges of all repositories of the key-value store; those that run end before their next step."""
    with place.kv() as kv:
        check_layout(kv)
        stop_merging(kv, reason)
    click.echo("merging is stopped")


@click.command()
@live_options(repository=False, objects=False)
def allow(*, place: LivePlace) -> None:
    """Allow merges again."""
    with place.kv() as kv:
        check_layout(kv)
        before = stopped_because(kv)
        allow_merging(kv)
    click.echo(f"merging is allowed (was stopped: {before})" if before else "merging was not stopped")
