"""`compactor staging commit` and `log`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import click

from compaction.cli.output import Column, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.branches import SHORT
from compaction.staging.cli.options import StagingPlace, committer_option, staging_options
from compaction.staging.cli.pairs import PairParameter
from compaction.staging.cli.values import instant_text
from compaction.staging.flows.committing import Committer, Draft
from compaction.staging.format.messages import CommitData

LOG_COLUMNS: Final = (
    Column("id", "Commit", lambda text: text[:SHORT]),
    Column("creationDate", "Date", str),
    Column("committer", "Committer"),
    Column("message", "Message", lambda text: text.partition("\n")[0]),
)
metadata_option = click.option(
    "--metadata", type=PairParameter(), metavar="NAME=VALUE", multiple=True, help="Metadata of the commit."
)


@click.command()
@click.argument("branch")
@click.option("-m", "--message", required=True, help="What the commit says.")
@metadata_option
@click.option("--allow-empty", is_flag=True, help="Commit also when nothing differs.")
@click.option("--metarange", metavar="ID", help="Commit this tree, on a branch without uncommitted changes.")
@committer_option
@staging_options()
@output_option()
def commit(
    *,
    branch: str,
    message: str,
    metadata: Sequence[tuple[str, str]],
    allow_empty: bool,
    metarange: str | None,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Commit what is staged on a branch; what is written meanwhile stays staged.

    Example: compactor staging commit main -m "data of November" --metadata source=etl --repo logs
    """
    draft = Draft(committer, message, dict(metadata))
    with place.area() as area:
        made = Committer(area).commit(branch, draft, allow_empty=allow_empty, tree=metarange)
    show_commit(made, f"branch {branch}", output)


@click.command()
@click.argument("reference", metavar="REF")
@click.option("--amount", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@staging_options()
@output_option(jsonl=True)
def log(*, reference: str, amount: int, place: StagingPlace, output: OutputFormat) -> None:
    """Show the commits that REF comes from, children before parents.

    Example: compactor staging log main --amount 10 --repo logs
    """
    with place.area() as area:
        start = area.references.commit(reference)
        rows = [commit_object(one) for one in islice(area.commits.log(start.id), amount)]
    if output is OutputFormat.TABLE:
        print_table(rows, LOG_COLUMNS)
    elif output is OutputFormat.JSONL:
        emit(rows, output)
    else:
        emit({"items": rows}, output)


def show_commit(made: CommitData, where: str, output: OutputFormat) -> None:
    """What a command has committed."""
    if output is OutputFormat.TABLE:
        click.echo(f"{where} is on commit {made.id}")
    else:
        emit(commit_object(made), output)


def commit_object(one: CommitData) -> dict[str, Any]:
    """A commit with exact values."""
    return {
        "id": one.id,
        "committer": one.committer,
        "message": one.message,
        "creationDate": instant_text(one.creation_date),
        "metarange": one.meta_range_id,
        "metadata": dict(one.metadata),
        "parents": list(one.parents),
        "generation": one.generation,
    }
