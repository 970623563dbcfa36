"""`compactor staging repo`, `branch`, `tag` and `reset`: repositories, names of commits, changes taken back."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import plural
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.cli.places import Command, is_given
from compaction.staging.cli.branch_commands import merger_of
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import SHORT, StagingPlace, committer_option, staging_options
from compaction.staging.cli.values import shown_key
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.writing import Resetter, Writer
from compaction.staging.refs.branches import Branch, Repository

# `compactor staging repo`: repositories of a key-value store.

COLUMNS: Final = (
    OutputColumn("name", "Repository"),
    OutputColumn("namespace", "Namespace"),
    OutputColumn("defaultBranch", "Default branch"),
    OutputColumn("readOnly", "Read-only", lambda value: "yes" if value else "no"),
)


@click.command()
@click.argument("name", required=False)
@click.argument("namespace", metavar="[NAMESPACE_URL]", required=False)
@click.option("--default-branch", metavar="NAME", default="main", show_default=True, help="Its first branch.")
@committer_option
@staging_options(repository=False)
@output_option()
def repo(
    *,
    name: str | None,
    namespace: str | None,
    default_branch: str,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """List the repositories of a key-value store, or create NAME with its first branch.

    NAMESPACE_URL is where the objects of the new one are: s3://bucket/prefix, gs://..., az://..., or a folder. A
    key-value store without a table gets one. Repositories of a lakeFS in the same store are not listed.

    Example: compactor staging repo logs s3://lake/logs
    """
    if name is None:
        for option in ("default_branch", "committer"):
            if is_given(option):
                raise click.UsageError(f"--{option.replace('_', '-')} is of a new one: give NAME and NAMESPACE_URL")
        _list(place, output)
    elif namespace is None:
        raise click.UsageError("where are its objects? Give NAME and NAMESPACE_URL to create, nothing to list")
    else:
        _create(replace(place, may_be_new=True), name, namespace, default_branch, committer, output)


def _create(
    place: StagingPlace, name: str, namespace: str, default_branch: str, committer: str, output: OutputFormat
) -> None:
    # A path without a scheme is a folder of this machine, wherever a later command is run.
    url = namespace if urllib.parse.urlsplit(namespace).scheme else Path(namespace).absolute().as_uri()
    with place.open() as store:
        area = store.create(name, url, committer=committer, default_branch=default_branch)
    if output is OutputFormat.TABLE:
        click.echo(f"repository {name} created with branch {default_branch}")
    else:
        emit(repository_object(area.repository), output)


def _list(place: StagingPlace, output: OutputFormat) -> None:
    with place.open() as store:
        # A later layout could have repositories that this version does not find: none shown must mean none there.
        store.repositories.check_version()
        rows = [repository_object(item) for item in store.repositories.every()]
    _show_items(rows, COLUMNS, plural(len(rows), "repository", "repositories"), output)


def _show_items(
    rows: Sequence[dict[str, Any]], columns: Sequence[OutputColumn], words: str, output: OutputFormat
) -> None:
    """Print a list; `words` says below a table how many it has."""
    if output is not OutputFormat.TABLE:
        emit({"items": rows}, output)
        return
    if rows:
        print_table(rows, columns)
    click.echo(words)


def repository_object(repository: Repository) -> dict[str, object]:
    """A repository with exact values."""
    return {
        "name": repository.name,
        "namespace": repository.namespace,
        "defaultBranch": repository.default_branch,
        "readOnly": repository.read_only,
    }


# `compactor staging branch` and `tag`: names of commits, with and without uncommitted changes.

BRANCH_COLUMNS: Final = (
    OutputColumn("name", "Branch"),
    OutputColumn("commit", "Commit", lambda text: text[:SHORT]),
    OutputColumn("sealedTokens", "Sealed tokens", right=True),
    OutputColumn("compactedBase", "Compacted base", lambda text: text[:SHORT] if text else "-"),
)
TAG_COLUMNS: Final = (OutputColumn("name", "Tag"), OutputColumn("commit", "Commit", lambda text: text[:SHORT]))


def _delete(noun: str) -> Callable[[Command], Command]:
    return click.option("-d", "--delete", "deleted", metavar="NAME", help=f"Delete this {noun}.")


@click.command()
@click.argument("name", required=False)
@click.argument("source", required=False)
@_delete("branch")
@staging_options()
@output_option()
def branch(
    *, name: str | None, source: str | None, deleted: str | None, place: StagingPlace, output: OutputFormat
) -> None:
    """List the branches of a repository, create NAME on the commit of SOURCE, or delete one.

    SOURCE is a branch, a tag or a commit; uncommitted changes are not taken along. Deleting a branch discards what is
    uncommitted on it; its commits stay. `compactor staging inspect` shows what branches have uncommitted.

    Example: compactor staging branch etl main --repo logs
    """
    _check_names(name, source, deleted, "SOURCE")
    with place.area() as area:
        if deleted is not None:
            Brancher(area).delete(deleted)
            _show_deleted("branch", deleted, output)
        elif name is None or source is None:
            rows = [branch_object(item) for item in area.branches.every()]
            _show_items(rows, BRANCH_COLUMNS, plural(len(rows), "branch", "branches"), output)
        else:
            created = Brancher(area).create(name, source)
            _show_created("branch", branch_object(created), output)


@click.command()
@click.argument("name", required=False)
@click.argument("reference", metavar="[REF]", required=False)
@_delete("tag")
@staging_options()
@output_option()
def tag(
    *, name: str | None, reference: str | None, deleted: str | None, place: StagingPlace, output: OutputFormat
) -> None:
    """List the tags of a repository, name the commit of REF, or delete a tag.

    A tag is never changed; the commit of one that is deleted stays.

    Example: compactor staging tag v1 main --repo logs
    """
    _check_names(name, reference, deleted, "REF")
    with place.area() as area:
        if deleted is not None:
            area.repository.check_writable()
            area.commits.remove_tag(deleted)
            _show_deleted("tag", deleted, output)
        elif name is None or reference is None:
            rows = [{"name": item.id, "commit": item.commit_id} for item in area.commits.tags()]
            _show_items(rows, TAG_COLUMNS, plural(len(rows), "tag"), output)
        else:
            area.repository.check_writable()
            named = area.references.commit(reference)
            area.commits.tag(name, named.id)
            _show_created("tag", {"name": name, "commit": named.id}, output)


def _check_names(name: str | None, source: str | None, deleted: str | None, metavar: str) -> None:
    """Names that do not fit together are wrong usage."""
    if deleted is not None and name is not None:
        raise click.UsageError("--delete has the name itself: give it alone")
    if name is not None and source is None:
        raise click.UsageError(
            f"on which commit? Give NAME and {metavar} to create, --delete NAME to delete, nothing to list"
        )


def _show_created(noun: str, found: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        click.echo(f"{noun} {found['name']} created on commit {found['commit'][:SHORT]}")
    else:
        emit(found, output)


def _show_deleted(noun: str, name: str, output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        click.echo(f"{noun} {name} deleted")
    else:
        emit({"deleted": name}, output)


def branch_object(found: Branch) -> dict[str, Any]:
    """A branch with exact values."""
    record = found.record
    return {
        "name": record.id,
        "commit": record.commit_id,
        "stagingToken": record.staging_token,
        "sealedTokens": len(record.sealed_tokens),
        "compactedBase": record.compacted_base or None,
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
