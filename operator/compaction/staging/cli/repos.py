"""`compactor staging repo`: repositories of a key-value store."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Final

import click

from compaction.api.text.formatting import plural
from compaction.cli.output import Column, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.options import StagingPlace, committer_option, staging_options
from compaction.staging.refs.repositories import Repository

COLUMNS: Final = (
    Column("name", "Repository"),
    Column("namespace", "Namespace"),
    Column("defaultBranch", "Default branch"),
    Column("readOnly", "Read-only", lambda value: "yes" if value else "no"),
)


@click.group()
def group() -> None:
    """Create and list the repositories of a key-value store."""


@group.command("create")
@click.argument("name")
@click.argument("namespace", metavar="NAMESPACE_URL")
@click.option("--default-branch", metavar="NAME", default="main", show_default=True, help="Its first branch.")
@committer_option
@staging_options(repository=False, may_be_new=True)
@output_option()
def create(
    *, name: str, namespace: str, default_branch: str, committer: str, place: StagingPlace, output: OutputFormat
) -> None:
    """Create a repository with its first branch. A key-value store without a table gets one.

    NAMESPACE_URL is where its objects are: s3://bucket/prefix, gs://..., az://..., or a folder.

    Example: compactor staging repo create logs s3://lake/logs
    """
    url = namespace if urllib.parse.urlsplit(namespace).scheme else Path(namespace).absolute().as_uri()
    with place.open() as store:
        area = store.create(name, url, committer=committer, default_branch=default_branch)
    found = repository_object(area.repository)
    if output is OutputFormat.TABLE:
        click.echo(f"repository {name} created with branch {default_branch}")
    else:
        emit(found, output)


@group.command("list")
@staging_options(repository=False)
@output_option()
def list_command(*, place: StagingPlace, output: OutputFormat) -> None:
    """List the repositories of this project. Those of a lakeFS in the same store are not shown.

    Example: compactor staging repo list -o json
    """
    with place.open() as store:
        store.repositories.check_version()
        rows = [repository_object(one) for one in store.repositories.every()]
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    click.echo(plural(len(rows), "repository", "repositories"))


def repository_object(one: Repository) -> dict[str, object]:
    """A repository with exact values."""
    return {
        "name": one.name,
        "namespace": one.namespace,
        "defaultBranch": one.default_branch,
        "readOnly": one.read_only,
    }
