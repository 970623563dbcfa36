"""`compactor staging lakefs plan` and `merge`, the ends of merges, and the kill switch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console

from compaction.api.text.printing import format_age, plural
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.lakefs.lakefs_options import LivePlace, live_options, merge_options
from compaction.staging.errors import StagingStoreError
from compaction.staging.lakefs.cleaning import check_undo, drop_deleted, drop_due, recover
from compaction.staging.lakefs.control import (
    MergeStep,
    TokenMergeSettings,
    allow_merging,
    stop_merging,
    stopped_because,
)
from compaction.staging.lakefs.merging import MergeEnd, TokenMergeOutcome, merge_branch
from compaction.staging.lakefs.planning import MergePlan, plan_merge
from compaction.staging.lakefs.repository import LiveRepository, check_layout
from compaction.storage.errors import StorageError
from compaction.unexpected import defect

# `compactor staging lakefs plan` and `merge`: what merges of sealed tokens would change, and merging them.

AT_ONCE: Final = 8
"""Branches that are merged at a time; each has a connection of its own."""
_PLANNED: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("tokens", "Tokens", right=True),
    OutputColumn("rowsBefore", "Rows", right=True),
    OutputColumn("rowsAfter", "After", right=True),
    OutputColumn("statementsBefore", "Statements", right=True),
    OutputColumn("statementsAfter", "After", right=True),
    OutputColumn("whyNot", "Why not", lambda value: value or "-"),
)
_MERGED: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("end", "End"),
    OutputColumn("tokens", "Tokens", right=True),
    OutputColumn("rowsBefore", "Rows", right=True),
    OutputColumn("rowsAfter", "After", right=True),
    OutputColumn("seconds", "Seconds", lambda value: f"{value:.1f}", right=True),
    OutputColumn("reason", "Reason", lambda value: value or "-"),
)


@click.command()
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@live_options()
@merge_options
@output_option()
@click.pass_context
def plan(
    context: click.Context,
    /,
    *,
    branches: tuple[str, ...],
    place: LivePlace,
    settings: TokenMergeSettings,
    output: OutputFormat,
) -> None:
    """What a merge would change: rows and the statements of one read, before and after, and why it would not begin.

    Reads all rows of the tokens; without a BRANCH those of all branches. Nothing is written.
    """
    with place.kv() as kv:
        items, problems = _plans(place.repo(kv), branches, settings)
    _report_plans(context, items, problems, output)


@click.command()
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@live_options()
@merge_options
@click.option("--apply", "applying", is_flag=True, help="Apply (default: dry run).")
@output_option()
@click.pass_context
def merge(
    context: click.Context,
    /,
    *,
    branches: tuple[str, ...],
    place: LivePlace,
    settings: TokenMergeSettings,
    applying: bool,
    output: OutputFormat,
) -> None:
    """Merge the sealed tokens of branches into one each; without --apply this is `plan`.

    Each branch waits for the quiet period first, up to 8 branches at a time. A branch that changes meanwhile is left as
    it is, and named with the reason; so is one that another merger works on. Old tokens are kept for the grace:
    `undo-check` says whether a merge could be undone, `clean` ends it.

    Example: compactor staging lakefs merge main --repo example --seal-staging --apply
    """
    with place.kv() as kv:
        live = place.repo(kv)
        if not applying:
            items, problems = _plans(live, branches, settings)
        else:
            items, problems = _merges(live, branches, settings)
    if not applying:
        _report_plans(context, items, problems, output)
        return
    if output is not OutputFormat.TABLE:
        emit({"repository": place.repository, "items": items, "problems": problems}, output)
    else:
        if items:
            print_table(items, _MERGED)
        merged = sum(item["end"] == MergeEnd.MERGED.name.lower() for item in items)
        click.echo(f"{plural(merged, 'branch', 'branches')} of {len(items) + len(problems)} merged")
    _end(context, problems)


def _plans(
    live: LiveRepository, branches: tuple[str, ...], settings: TokenMergeSettings
) -> tuple[list[dict[str, Any]], list[str]]:
    items, problems = [], []
    for name in branches or _every(live):
        try:
            items.append(plan_object(plan_merge(live, name, settings)))
        except StagingStoreError as error:
            # One damaged branch must not hide the plans of the others.
            problems.append(f"branch {name}: {error}")
    return items, problems


def _merges(
    live: LiveRepository, branches: tuple[str, ...], settings: TokenMergeSettings
) -> tuple[list[dict[str, Any]], list[str]]:
    """Several at a time: most of a merge is its quiet period."""
    items, problems = [], []
    names = branches or _every(live)
    interrupted = threading.Event()
    settings = replace(settings, stop=interrupted.is_set)
    with _progress(len(names), settings) as of, ThreadPoolExecutor(max(1, min(AT_ONCE, len(names)))) as pool:
        merges = [(name, pool.submit(merge_branch, live, name, of(name))) for name in names]
        try:
            for name, running in merges:
                try:
                    items.append(outcome_object(running.result()))
                except (StagingStoreError, StorageError) as error:
                    problems.append(f"branch {name}: {error}")
                except Exception as error:  # noqa: BLE001 - of one branch: what became of the others is said
                    problems.append(f"branch {name}: {defect(error, name)}")
        except BaseException:
            # An interrupt ends those that run before their next step, and begins none of the others.
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return items, problems


def _every(live: LiveRepository) -> tuple[str, ...]:
    return tuple(name for name, _ in live.branch_rows())


@contextmanager
def _progress(branches: int, settings: TokenMergeSettings) -> Iterator[Callable[[str], TokenMergeSettings]]:
    """The settings of a branch with a progress that is shown on standard error, when that is a terminal."""
    console = Console(stderr=True)
    with console.status(f"merging {plural(branches, 'branch', 'branches')}") as status:

        def of(branch: str) -> TokenMergeSettings:
            def show(step: MergeStep, rows: int) -> None:
                status.update(f"{branch}: {step.value}" + (f" ({plural(rows, 'row')})" if rows else ""))

            return settings.shown_by(show)

        yield of


def plan_object(item: MergePlan) -> dict[str, Any]:
    """A plan as `-o json` has it."""
    return {
        "repository": item.repository,
        "branch": item.branch,
        "commit": item.commit_id,
        "tokens": len(item.tokens),
        "rowsBefore": item.rows_before,
        "rowsAfter": item.rows_after,
        "hiddenRows": item.hidden_rows,
        "tombstones": item.tombstones,
        "idleTombstones": item.idle_tombstones,
        "rowBytesBefore": item.row_bytes_before,
        "rowBytesAfter": item.row_bytes_after,
        "statementsBefore": item.statements_before,
        "statementsAfter": item.statements_after,
        "whyNot": item.reason,
    }


def outcome_object(outcome: TokenMergeOutcome) -> dict[str, Any]:
    """A merge at its end as `-o json` has it."""
    return {
        "branch": outcome.branch,
        "end": outcome.end.name.lower(),
        "reason": outcome.reason,
        "fresh": outcome.fresh,
        "tokens": len(outcome.tokens),
        "rowsBefore": outcome.rows_before,
        "rowsAfter": outcome.rows_after,
        "idleTombstones": outcome.idle_tombstones,
        "rowBytesBefore": outcome.row_bytes_before,
        "rowBytesAfter": outcome.row_bytes_after,
        "seconds": outcome.seconds,
    }


def _report_plans(
    context: click.Context, items: list[dict[str, Any]], problems: list[str], output: OutputFormat
) -> None:
    due = [item for item in items if not item["whyNot"]]
    if output is not OutputFormat.TABLE:
        emit({"dryRun": True, "items": items, "problems": problems}, output)
    else:
        if items:
            print_table(items, _PLANNED)
        rows = sum(item["rowsBefore"] - item["rowsAfter"] for item in due)
        text = f"{plural(len(due), 'branch', 'branches')} would be merged, {plural(rows, 'row')} fewer"
        click.echo(f"{text}; nothing was changed (`merge --apply` does it)")
    _end(context, problems)


def _end(context: click.Context, problems: list[str]) -> None:
    if problems:
        report_all(problems)
        context.exit(EXIT_DATA_ERROR)


# `compactor staging lakefs undo-check`, `clean`, `stop` and `allow`: the ends of merges, and the kill switch.

_CHECKED: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("possible", "Possible", lambda value: "yes" if value else "no"),
    OutputColumn("tokens", "Tokens", right=True),
    OutputColumn("dueIn", "Due in", lambda value: format_age(max(0.0, value)), right=True),
    OutputColumn("problems", "Problems", lambda value: "; ".join(value) or "-"),
    OutputColumn("fresh", "Merged token"),
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
                "branch": item.branch,
                "fresh": item.fresh,
                "tokens": len(item.tokens),
                "oldTokens": list(item.tokens),
                "dueIn": item.due,
                "possible": item.possible,
                "problems": list(item.problems),
            }
            for name in every
            for item in check_undo(live, name)
        ]
    if output is not OutputFormat.TABLE:
        emit({"repository": place.repository, "items": items}, output)
    elif items:
        print_table(items, _CHECKED)
    else:
        click.echo("no merge has old tokens: nothing could be undone")
    if not all(item["possible"] for item in items):
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
