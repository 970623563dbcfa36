"""`compactor staging lakefs verify`, `sweep` and `hold`: the ends of merges of sealed tokens, and the kill switch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.printing import format_age, plural
from compaction.cli.lazy import EXIT_DATA_ERROR
from compaction.cli.output import OutputColumn, OutputFormat, apply_option, emit, output_option, print_table
from compaction.staging.cli.lakefs.lakefs_options import LivePlace, live_options
from compaction.staging.lakefs.cleaning import (
    Dropped,
    MergeLeftover,
    RecoveredMerge,
    UndoCheck,
    check_undo,
    drop_deleted,
    drop_due,
    due_of_deleted,
    left_over,
    recover,
)
from compaction.staging.lakefs.control import allow_merging, stop_merging, stopped_because
from compaction.staging.lakefs.journal import MergeState
from compaction.staging.lakefs.repository import check_layout

if TYPE_CHECKING:
    from compaction.staging.kv.sql import SqlKeyValueStore

# `compactor staging lakefs verify`: both sides of merges are read again.


def _due_text(seconds: float | None) -> str:
    return "-" if seconds is None else format_age(max(0.0, seconds))


_CHECKED: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("possible", "Possible", lambda value: "yes" if value else "no"),
    OutputColumn("tokens", "Tokens", right=True),
    OutputColumn("dueIn", "Due in", _due_text, right=True),
    OutputColumn("problems", "Problems", lambda value: "; ".join(value) or "-"),
    OutputColumn("fresh", "Merged token"),
)


@click.command()
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@live_options()
@output_option()
@click.pass_context
def verify(context: click.Context, /, *, branches: tuple[str, ...], place: LivePlace, output: OutputFormat) -> None:
    """Read old and merged tokens again, and compare what they show: whether a merge could be undone. Changes nothing.

    Read are all rows of the old tokens and of the merged one that took their place. Merges whose old tokens are dropped
    are not listed. The exit code is 1 when one of those listed cannot be undone.

    Example: compactor staging lakefs verify main --repo example
    """
    with place.kv() as kv:
        live = place.repo(kv)
        every = branches or tuple(name for name, _ in live.branch_rows())
        items = [checked_object(item) for name in every for item in check_undo(live, name)]
    if output is not OutputFormat.TABLE:
        emit({"repository": place.repository, "items": items}, output)
    elif items:
        print_table(items, _CHECKED)
    else:
        click.echo("no merge has old tokens: nothing could be undone")
    if not all(item["possible"] for item in items):
        context.exit(EXIT_DATA_ERROR)


def checked_object(check: UndoCheck) -> dict[str, Any]:
    """A merge that was read again, as `-o json` has it."""
    return {
        "branch": check.branch,
        "fresh": check.fresh,
        "tokens": len(check.tokens),
        "oldTokens": list(check.tokens),
        "dueIn": check.due,
        "possible": check.possible,
        "problems": list(check.problems),
    }


# `compactor staging lakefs sweep`: what merges have left over, and deleting it.

_STATES: Final = {int(state): state.name.lower() for state in MergeState}
_LEFT_OVER: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("state", "State"),
    OutputColumn("tokens", "Tokens", lambda tokens: str(len(tokens)), right=True),
    OutputColumn("dueIn", "Due in", _due_text, right=True),
    OutputColumn("whyNot", "Why not", lambda value: value or "-"),
    OutputColumn("fresh", "Merged token"),
)


@click.command()
@live_options()
@apply_option
@output_option()
def sweep(*, place: LivePlace, applying: bool, output: OutputFormat) -> None:
    """Show results that were never swapped in, and old tokens whose grace is over; with --apply delete them.

    A merge that another process works on is not touched, and no token that a branch names is dropped. Nothing that was
    swapped in is dropped while merging is stopped. Tokens of merges of repositories that have been deleted are dropped
    as well. At most 20,000 rows are deleted in a second: servers use the same table meanwhile.

    Example: compactor staging lakefs sweep --repo example --apply
    """
    with place.kv() as kv:
        # What is not known is refused before the first write.
        check_layout(kv)
        # First, because a repository that is named may be gone as well: then theirs are dropped all the same.
        _sweep_deleted(kv, applying=applying)
        live = place.repo(kv)
        if applying:
            _show_ended(recover(live), drop_due(live), stopped_because(kv), output)
        else:
            _show_left_over(place.repository, left_over(live), stopped_because(kv), output)


def _sweep_deleted(kv: SqlKeyValueStore, *, applying: bool) -> None:
    """Tokens of merges of repositories that have been deleted, which no option names: standard error says how many."""
    if applying:
        tokens, rows = drop_deleted(kv, clock=time.time, sleep=time.sleep)
        words = f"{plural(tokens, 'token')} with {plural(rows, 'row')}"
    else:
        tokens = len(due_of_deleted(kv, clock=time.time))
        words = f"{plural(tokens, 'token')} would be dropped"
    if tokens:
        click.echo(f"deleted repositories: {words}", err=True)


def leftover_object(item: MergeLeftover) -> dict[str, Any]:
    """A merge that is not at its end, as `-o json` has it."""
    return {
        "branch": item.branch,
        "state": _STATES.get(item.state, str(item.state)),
        "fresh": item.fresh,
        "tokens": list(item.tokens),
        "dueIn": item.due,
        "whyNot": item.why_not,
    }


def _show_left_over(repository: str, found: list[MergeLeftover], stopped: str, output: OutputFormat) -> None:
    items = [leftover_object(item) for item in found]
    if output is not OutputFormat.TABLE:
        emit({"applied": False, "repository": repository, "items": items, "stopped": stopped}, output)
        return
    if items:
        print_table(items, _LEFT_OVER)
    ends = sum(not item.why_not for item in found)
    tokens = {token for item in found for token in item.tokens}
    text = f"{plural(ends, 'merge')} would end, {plural(len(tokens), 'token')} would be dropped"
    click.echo(f"{text}; nothing was changed (`sweep --apply` does it)")


def _show_ended(found: RecoveredMerge, dropped: Dropped, stopped: str, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        ends: dict[str, Any] = {
            "applied": True,
            "discarded": found.discarded,
            "running": found.running,
            "waiting": found.waiting,
        }
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


# `compactor staging lakefs hold`: the kill switch.


@click.command()
@live_options(repository=False, objects=False)
@click.option("--reason", metavar="TEXT", help="Stop all merges; TEXT is shown where merges are refused.")
@click.option("--release", is_flag=True, help="Allow merges again.")
@output_option()
def hold(*, place: LivePlace, reason: str | None, release: bool, output: OutputFormat) -> None:
    """Show whether merging is stopped, and why; with --reason stop all merges, with --release allow them again.

    Stopped are the merges of all repositories of the key-value store, those of policies too; what runs ends before its
    next step, and no old tokens are dropped.

    Example: compactor staging lakefs hold --reason "an upgrade"
    """
    if reason is not None and release:
        raise click.UsageError("give --reason or --release, not both")
    with place.kv() as kv:
        check_layout(kv)
        before = stopped_because(kv)
        if reason is not None:
            stop_merging(kv, reason)
        elif release:
            allow_merging(kv)
        stopped = stopped_because(kv)
    if output is not OutputFormat.TABLE:
        emit({"stopped": stopped}, output)
    elif release:
        click.echo(f"merging is allowed (was stopped: {before})" if before else "merging was not stopped")
    else:
        click.echo(f"merging is stopped ({stopped})" if stopped else "merging is not stopped")
