"""`compactor staging branch` and `tag`: names of commits, with and without uncommitted changes."""

from __future__ import annotations

from typing import Any, Final

import click

from compaction.api.text.formatting import plural
from compaction.cli.output import Column, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.flows.branching import Brancher
from compaction.staging.refs.branches import Branch

SHORT: Final = 16
"""Digits of an id in a table; a reference may have fewer."""
BRANCH_COLUMNS: Final = (
    Column("name", "Branch"),
    Column("commit", "Commit", lambda text: text[:SHORT]),
    Column("sealedTokens", "Sealed tokens", right=True),
    Column("compactedBase", "Compacted base", lambda text: text[:SHORT] if text else "-"),
)
TAG_COLUMNS: Final = (Column("name", "Tag"), Column("commit", "Commit", lambda text: text[:SHORT]))


@click.group("branch")
def branch_group() -> None:
    """Create, list and delete branches."""


@branch_group.command("create")
@click.argument("name")
@click.argument("source")
@staging_options()
@output_option()
def create_branch(*, name: str, source: str, place: StagingPlace, output: OutputFormat) -> None:
    """Create a branch on the commit of SOURCE: a branch, a tag, or a commit. Uncommitted changes are not taken along.

    Example: compactor staging branch create etl main --repo logs
    """
    with place.area() as area:
        branch = Brancher(area).create(name, source)
    if output is OutputFormat.TABLE:
        click.echo(f"branch {name} created on commit {branch.record.commit_id[:SHORT]}")
    else:
        emit(branch_object(branch), output)


@branch_group.command("list")
@staging_options()
@output_option()
def list_branches(*, place: StagingPlace, output: OutputFormat) -> None:
    """List the branches of a repository. `compactor staging inspect` shows what they have uncommitted.

    Example: compactor staging branch list --repo logs
    """
    with place.area() as area:
        rows = [branch_object(one) for one in area.branches.every()]
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, BRANCH_COLUMNS)
    click.echo(plural(len(rows), "branch", "branches"))


@branch_group.command("delete")
@click.argument("name")
@staging_options()
def delete_branch(*, name: str, place: StagingPlace) -> None:
    """Delete a branch and what is uncommitted on it; its commits stay.

    Example: compactor staging branch delete etl --repo logs
    """
    with place.area() as area:
        Brancher(area).delete(name)
    click.echo(f"branch {name} deleted")


@click.group("tag")
def tag_group() -> None:
    """Create, list and delete tags."""


@tag_group.command("create")
@click.argument("name")
@click.argument("reference", metavar="REF")
@staging_options()
@output_option()
def create_tag(*, name: str, reference: str, place: StagingPlace, output: OutputFormat) -> None:
    """Name the commit of REF; a tag is never changed.

    Example: compactor staging tag create v1 main --repo logs
    """
    with place.area() as area:
        area.repository.check_writable()
        commit = area.references.commit(reference)
        area.commits.tag(name, commit.id)
    if output is OutputFormat.TABLE:
        click.echo(f"tag {name} created on commit {commit.id[:SHORT]}")
    else:
        emit({"name": name, "commit": commit.id}, output)


@tag_group.command("list")
@staging_options()
@output_option()
def list_tags(*, place: StagingPlace, output: OutputFormat) -> None:
    """List the tags of a repository.

    Example: compactor staging tag list --repo logs
    """
    with place.area() as area:
        rows = [{"name": one.id, "commit": one.commit_id} for one in area.commits.tags()]
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, TAG_COLUMNS)
    click.echo(plural(len(rows), "tag"))


@tag_group.command("delete")
@click.argument("name")
@staging_options()
def delete_tag(*, name: str, place: StagingPlace) -> None:
    """Delete a tag; its commit stays.

    Example: compactor staging tag delete v1 --repo logs
    """
    with place.area() as area:
        area.repository.check_writable()
        area.commits.remove_tag(name)
    click.echo(f"tag {name} deleted")


def branch_object(branch: Branch) -> dict[str, Any]:
    """A branch with exact values."""
    record = branch.record
    return {
        "name": record.id,
        "commit": record.commit_id,
        "stagingToken": record.staging_token,
        "sealedTokens": len(record.sealed_tokens),
        "compactedBase": record.compacted_base or None,
    }
