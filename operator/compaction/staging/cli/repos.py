"""`compactor staging repo` and `reset`: repositories, and uncommitted changes taken back."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from compaction.api.text.printing import plural
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.branch_commands import SHORT, merger_of
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import StagingPlace, committer_option, staging_options
from compaction.staging.cli.values import shown_key
from compaction.staging.flows.writing import Resetter, Writer
from compaction.staging.refs.branches import Repository

# `compactor staging repo`: repositories of a key-value store.

COLUMNS: Final = (
    OutputColumn("name", "Repository"),
    OutputColumn("namespace", "Namespace"),
    OutputColumn("defaultBranch", "Default branch"),
    OutputColumn("readOnly", "Read-only", lambda value: "yes" if value else "no"),
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
        rows = [repository_object(item) for item in store.repositories.every()]
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, COLUMNS)
    click.echo(plural(len(rows), "repository", "repositories"))


def repository_object(repository: Repository) -> dict[str, object]:
    """A repository with exact values."""
    return {
        "name": repository.name,
        "namespace": repository.namespace,
        "defaultBranch": repository.default_branch,
        "readOnly": repository.read_only,
    }


# `compactor staging reset`: uncommitted changes go, or the branch goes to another commit.


@click.command()
@click.argument("branch")
@click.option("--key", "keys", type=KeyParameter(), multiple=True, help="Discard the changes of this key.")
@click.option("--prefix", type=KeyParameter(), help="Discard the changes of all keys that begin with this.")
@click.option("--all", "everything", is_flag=True, help="Discard all uncommitted changes.")
@click.option("--hard", metavar="REF", help="Go to the commit of REF, on a branch without uncommitted changes.")
@staging_options()
def reset(
    *,
    branch: str,
    keys: Sequence[bytes],
    prefix: bytes | None,
    everything: bool,
    hard: str | None,
    place: StagingPlace,
) -> None:
    """Discard uncommitted changes of a branch: of keys, below a prefix, or --all of them; --hard moves the branch.

    Example: compactor staging reset main --prefix logs/tmp/ --repo logs
    """
    if sum((bool(keys), prefix is not None, everything, hard is not None)) != 1:
        raise click.UsageError("what is to be reset? Give one of --key, --prefix, --all, --hard")
    if prefix == b"":
        raise click.UsageError("an empty --prefix would discard all changes: give --all")
    with place.area() as area:
        if hard is not None:
            commit = merger_of(area).hard_reset(branch, hard)
            click.echo(f"branch {branch} is on commit {commit.id}")
            return
        resetter = Resetter(area, Writer(area))
        if everything:
            resetter.reset(branch)
            words = "all uncommitted changes"
        elif prefix is not None:
            resetter.reset_prefix(branch, prefix)
            words = f"uncommitted changes below {ascii_key(prefix)}"
        else:
            for key in keys:
                resetter.reset_key(branch, key)
            words = f"uncommitted changes of {', '.join(map(ascii_key, keys))}"
        head = area.branches.get(branch).record.commit_id
    click.echo(f"{words} discarded: branch {branch} is on commit {head[:SHORT]}")


def ascii_key(key: bytes) -> str:
    """A key in a sentence."""
    return ascii(shown_key(key))
