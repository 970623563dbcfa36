"""`compactor staging lakefs merge`: what merges of sealed tokens would change, and merging them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import click

from compaction.api.text.printing import plural
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, apply_option, emit, output_option, print_table
from compaction.staging.cli.lakefs.lakefs_options import LivePlace, live_options, merge_options
from compaction.staging.errors import StagingStoreError
from compaction.staging.lakefs.control import MergeStep, TokenMergeSettings
from compaction.staging.lakefs.merging import MergeEnd, TokenMergeOutcome, merge_branch
from compaction.staging.lakefs.planning import MergePlan, plan_merge
from compaction.staging.lakefs.repository import LiveRepository
from compaction.storage.errors import StorageError
from compaction.unexpected import defect

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
@apply_option
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
    """Show what merging the sealed tokens of branches into one each would change, and why not; with --apply merge them.

    Without --apply nothing is written: all rows of the tokens are read, without a BRANCH those of all branches, and
    shown are rows and the statements of one read, before and after.

    With --apply each branch waits for the quiet period first, up to 8 branches at a time. A branch that changes
    meanwhile is left as it is, and named with the reason; so is one that another merger works on. Old tokens are kept
    for the grace: `verify` says whether a merge could be undone, `sweep` ends it.

    Example: compactor staging lakefs merge main --repo example --seal-staging --apply
    """
    with place.kv() as kv:
        live = place.repo(kv)
        items, problems = (_merges if applying else _plans)(live, branches, settings)
    if applying:
        _show_merges(place, items, problems, output)
    else:
        _show_plans(items, problems, output)
    if problems:
        report_all(problems)
        context.exit(EXIT_DATA_ERROR)


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
    from rich.console import Console  # only what merges shows a progress, and waits for it

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


def _show_plans(items: list[dict[str, Any]], problems: list[str], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit({"applied": False, "items": items, "problems": problems}, output)
        return
    if items:
        print_table(items, _PLANNED)
    due = [item for item in items if not item["whyNot"]]
    rows = sum(item["rowsBefore"] - item["rowsAfter"] for item in due)
    text = f"{plural(len(due), 'branch', 'branches')} would be merged, {plural(rows, 'row')} fewer"
    click.echo(f"{text}; nothing was changed (`merge --apply` does it)")


def _show_merges(place: LivePlace, items: list[dict[str, Any]], problems: list[str], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        emit({"applied": True, "repository": place.repository, "items": items, "problems": problems}, output)
        return
    if items:
        print_table(items, _MERGED)
    merged = sum(item["end"] == MergeEnd.MERGED.name.lower() for item in items)
    click.echo(f"{plural(merged, 'branch', 'branches')} of {len(items) + len(problems)} merged")
