"""`compactor staging merge`, `revert` and `cherry-pick`: a branch gets changes of another commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from compaction.cli.output import OutputFormat, output_option
from compaction.staging.cli.commits import metadata_option, show_commit
from compaction.staging.cli.options import StagingPlace, committer_option, staging_options
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Committer, Draft
from compaction.staging.flows.merging import Merger
from compaction.staging.tree.merging import MergeStrategy

STRATEGIES: Final = {one.value or "none": one for one in MergeStrategy}
parent_option = click.option(
    "--parent", type=click.IntRange(1), metavar="N", help="Of a commit with several parents, the one to compare with."
)


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("into", metavar="INTO")
@click.option("-m", "--message", help="What the commit says; default: names both.")
@metadata_option
@click.option(
    "--strategy",
    type=click.Choice(list(STRATEGIES)),
    default="none",
    show_default=True,
    help="Which side wins where both changed a key differently; with none that is an error.",
)
@committer_option
@staging_options()
@output_option()
def merge(
    *,
    source: str,
    into: str,
    message: str | None,
    metadata: Sequence[tuple[str, str]],
    strategy: str,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Merge the commit of SOURCE into the branch INTO, which has no uncommitted changes.

    Example: compactor staging merge etl main --strategy source-wins --repo logs
    """
    draft = Draft(committer, message_of_merge(source, into) if message is None else message, dict(metadata))
    with place.area() as area:
        made = merger_of(area).merge(source, into, draft, STRATEGIES[strategy])
    show_commit(made, f"branch {into}", output)


@click.command()
@click.argument("branch")
@click.argument("reference", metavar="COMMIT")
@click.option("-m", "--message", help="What the commit says; default: names the other one.")
@metadata_option
@parent_option
@click.option("--allow-empty", is_flag=True, help="Commit also when nothing differs.")
@committer_option
@staging_options()
@output_option()
def revert(
    *,
    branch: str,
    reference: str,
    message: str | None,
    metadata: Sequence[tuple[str, str]],
    parent: int | None,
    allow_empty: bool,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Take back what COMMIT changed, with a new commit on a branch without uncommitted changes.

    Example: compactor staging revert main main~1 --repo logs
    """
    draft = Draft(committer, message_of_revert(reference) if message is None else message, dict(metadata))
    with place.area() as area:
        made = merger_of(area).revert(branch, reference, draft, parent=parent or 0, allow_empty=allow_empty)
    show_commit(made, f"branch {branch}", output)


@click.command("cherry-pick")
@click.argument("branch")
@click.argument("reference", metavar="COMMIT")
@click.option("-m", "--message", help="What the commit says; default: the same as the other one.")
@metadata_option
@parent_option
@committer_option
@staging_options()
@output_option()
def cherry_pick(
    *,
    branch: str,
    reference: str,
    message: str | None,
    metadata: Sequence[tuple[str, str]],
    parent: int | None,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Make the changes of COMMIT on a branch without uncommitted changes.

    Without -m the commit says what the other one does, with its committer and metadata.

    Example: compactor staging cherry-pick main etl --repo logs
    """
    if message is None and metadata:
        raise click.UsageError("--metadata is of a commit of its own: give -m too")
    draft = None if message is None else Draft(committer, message, dict(metadata))
    with place.area() as area:
        made = merger_of(area).cherry_pick(branch, reference, draft, parent=parent or 0)
    show_commit(made, f"branch {branch}", output)


def merger_of(area: Area) -> Merger:
    """Merges, and asks no hooks."""
    return Merger(area, Committer(area))


def message_of_merge(source: str, into: str) -> str:
    """What the commit of a merge says when nothing else was given."""
    return f"Merge {source} into {into}"


def message_of_revert(reference: str) -> str:
    """What the commit of a revert says when nothing else was given."""
    return f"Revert {reference}"
