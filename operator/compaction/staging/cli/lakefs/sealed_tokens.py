"""`compactor staging lakefs inspect`: tokens of branches, how recently they changed, why none would merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.printing import format_age, plural
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, output_option, print_table
from compaction.staging.cli.lakefs.lakefs_options import LivePlace, live_options, merge_options
from compaction.staging.errors import StagingStoreError
from compaction.staging.lakefs.control import TokenMergeSettings, stopped_because
from compaction.staging.lakefs.planning import COUNTED, BranchInspection, TokenInspection, inspect_branches
from compaction.staging.lakefs.repository import live_repositories

if TYPE_CHECKING:
    from compaction.staging.kv.sql import SqlKeyValueStore

_COLUMNS: Final = (
    OutputColumn("repository", "Repository"),
    OutputColumn("branch", "Branch"),
    OutputColumn("sealedTokens", "Sealed", right=True),
    OutputColumn("sealedRows", "Rows", right=True),
    OutputColumn("tombstones", "Tombstones", right=True),
    OutputColumn("stagingRows", "Staging", right=True),
    OutputColumn("statements", "Statements", right=True),
    OutputColumn(
        "unchangedSeconds", "Unchanged", lambda value: "-" if value is None else format_age(value), right=True
    ),
    OutputColumn("whyNot", "Why not", lambda value: value or "-"),
)
_TOKEN_COLUMNS: Final = (
    OutputColumn("branch", "Branch"),
    OutputColumn("kind", "Kind"),
    OutputColumn("rows", "Rows", right=True),
    OutputColumn("tombstones", "Tombstones", right=True),
    OutputColumn("token", "Token", optional),
)


@click.command()
@click.argument("repository", required=False)
@live_options(repository=False)
@merge_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=COUNTED,
    show_default=True,
    help="Rows of each token that are counted at most; a + marks tokens that have more.",
)
@output_option(wide=True)
@click.pass_context
def inspect(
    context: click.Context,
    /,
    *,
    repository: str | None,
    place: LivePlace,
    settings: TokenMergeSettings,
    limit: int,
    output: OutputFormat,
) -> None:
    """Show the branches of a repository, or of all: tokens, rows, statements of one read, and why none would merge.

    Repositories and branches that are refused are named, the others are reported; the exit code is then 1. -o wide
    lists each token.
    """
    problems: list[str] = []
    with place.kv() as kv:
        items = list(_branches(place, kv, repository, settings, limit, problems))
        stopped = stopped_because(kv)
    if output in (OutputFormat.JSON, OutputFormat.YAML):
        emit({"stopped": stopped, "items": items, "problems": problems}, output)
    elif items:
        _show(items, wide=output is OutputFormat.WIDE)
    if stopped and output not in (OutputFormat.JSON, OutputFormat.YAML):
        click.echo(f"merging is stopped ({stopped}); `compactor staging lakefs hold --release` allows it")
    if problems:
        report_all(problems)
        context.exit(EXIT_DATA_ERROR)


def _branches(
    place: LivePlace,
    kv: SqlKeyValueStore,
    wanted: str | None,
    settings: TokenMergeSettings,
    limit: int,
    problems: list[str],
) -> Iterator[dict[str, Any]]:
    for name in [wanted] if wanted is not None else list(live_repositories(kv)):
        try:
            for branch in inspect_branches(place.repo(kv, name), limit=limit, settings=settings):
                if branch.problem:
                    problems.append(branch.problem)
                yield branch_object(name, branch)
        except StagingStoreError as error:
            problems.append(str(error))


def branch_object(repository: str, inspection: BranchInspection) -> dict[str, Any]:
    """A branch as `-o json` has it."""
    sealed = inspection.sealed
    return {
        "repository": repository,
        "branch": inspection.branch,
        "commit": inspection.commit_id,
        "hidden": inspection.hidden,
        "sealedTokens": len(sealed),
        "sealedRows": sum(token.rows for token in sealed),
        "tombstones": sum(token.tombstones for token in sealed),
        "stagingRows": 0 if inspection.staging is None else inspection.staging.rows,
        "more": any(token.more for token in (*sealed, *([inspection.staging] if inspection.staging else []))),
        "rowBytes": inspection.row_bytes,
        "statements": inspection.statements_per_get if not inspection.problem else None,
        "unchangedSeconds": inspection.unchanged_seconds,
        "whyNot": inspection.problem or inspection.reason,
        "staging": None if inspection.staging is None else _token(inspection.staging),
        "sealed": [_token(token) for token in sealed],
    }


def _token(token: TokenInspection) -> dict[str, Any]:
    return {"token": token.token, "rows": token.rows, "tombstones": token.tombstones, "more": token.more}


def _show(items: list[dict[str, Any]], *, wide: bool) -> None:
    print_table([item | _counted(item) for item in items], _COLUMNS)
    if wide:
        rows = [
            {"branch": f"{item['repository']}/{item['branch']}", "kind": kind} | token | _counted(token, ("rows",))
            for item in items
            for kind, token in [("staging", item["staging"]), *(("sealed", token) for token in item["sealed"])]
            if token is not None
        ]
        click.echo()
        print_table(rows, _TOKEN_COLUMNS)
    tokens = sum(item["sealedTokens"] for item in items)
    click.echo(f"{plural(len(items), 'branch', 'branches')} with {plural(tokens, 'sealed token')}")


def _counted(item: dict[str, Any], keys: tuple[str, ...] = ("sealedRows", "stagingRows")) -> dict[str, str]:
    """Counts that are lower bounds have a `+`."""
    return {key: f"{item[key]}+" if item["more"] else str(item[key]) for key in keys}
