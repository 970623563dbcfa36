"""`compactor staging branch`, `tag`, `merge`, `revert`, `cherry-pick`, `commit`, `log` and `import`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.printing import plural
from compaction.cli.histories import STDIN, STDIN_NAME
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import PairParameter, StagingPlace, committer_option, staging_options
from compaction.staging.cli.tables import read_lines
from compaction.staging.cli.values import instant_text
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import CommitDraft, Committer, Importer, Merger
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.messages import CommitData
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.refs.branches import Branch
from compaction.staging.tree.diffing import MergeStrategy

# `compactor staging branch` and `tag`: names of commits, with and without uncommitted changes.

SHORT: Final = 16
"""Digits of an id in a table; a reference may have fewer."""
BRANCH_COLUMNS: Final = (
    OutputColumn("name", "Branch"),
    OutputColumn("commit", "Commit", lambda text: text[:SHORT]),
    OutputColumn("sealedTokens", "Sealed tokens", right=True),
    OutputColumn("compactedBase", "Compacted base", lambda text: text[:SHORT] if text else "-"),
)
TAG_COLUMNS: Final = (OutputColumn("name", "Tag"), OutputColumn("commit", "Commit", lambda text: text[:SHORT]))


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
        rows = [branch_object(item) for item in area.branches.every()]
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
        rows = [{"name": tag.id, "commit": tag.commit_id} for tag in area.commits.tags()]
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


# `compactor staging commit` and `log`.

LOG_COLUMNS: Final = (
    OutputColumn("id", "Commit", lambda text: text[:SHORT]),
    OutputColumn("creationDate", "Date", str),
    OutputColumn("committer", "Committer"),
    OutputColumn("message", "Message", lambda text: text.partition("\n")[0]),
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
    draft = CommitDraft(committer, message, dict(metadata))
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
        rows = [commit_object(item) for item in islice(area.commits.log(start.id), amount)]
    if output is OutputFormat.TABLE:
        print_table(rows, LOG_COLUMNS)
    elif output is OutputFormat.JSONL:
        emit(rows, output)
    else:
        emit({"items": rows}, output)


def show_commit(made: CommitData, where: str, output: OutputFormat) -> None:
    """Print the commit that a command has created."""
    if output is OutputFormat.TABLE:
        click.echo(f"{where} is on commit {made.id}")
    else:
        emit(commit_object(made), output)


def commit_object(data: CommitData) -> dict[str, Any]:
    """A commit with exact values."""
    return {
        "id": data.id,
        "committer": data.committer,
        "message": data.message,
        "creationDate": instant_text(data.creation_date),
        "metarange": data.meta_range_id,
        "metadata": dict(data.metadata),
        "parents": list(data.parents),
        "generation": data.generation,
    }


# `compactor staging merge`, `revert` and `cherry-pick`: a branch gets changes of another commit.

STRATEGIES: Final = {item.value or "none": item for item in MergeStrategy}
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
    draft = CommitDraft(committer, message_of_merge(source, into) if message is None else message, dict(metadata))
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
    draft = CommitDraft(committer, message_of_revert(reference) if message is None else message, dict(metadata))
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
    draft = None if message is None else CommitDraft(committer, message, dict(metadata))
    with place.area() as area:
        made = merger_of(area).cherry_pick(branch, reference, draft, parent=parent or 0)
    show_commit(made, f"branch {branch}", output)


def merger_of(area: Area) -> Merger:
    """Merges, and asks no hooks."""
    return Merger(area, Committer(area))


def message_of_merge(source: str, into: str) -> str:
    """Return the message of the commit of a merge when no other was given."""
    return f"Merge {source} into {into}"


def message_of_revert(reference: str) -> str:
    """Return the message of the commit of a revert when no other was given."""
    return f"Revert {reference}"


# `compactor staging import`: records of a file become a commit.


@click.command("import")
@click.argument("branch")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@click.option("--prefix", "prefixes", type=KeyParameter(), multiple=True, help="Delete what the branch has below it.")
@click.option("--sst", is_flag=True, help="FILE is a range, not lines of JSON.")
@click.option("-m", "--message", help="What the commit says; default: names the file.")
@metadata_option
@committer_option
@staging_options()
@output_option()
def import_command(
    *,
    branch: str,
    file: Path,
    prefixes: Sequence[bytes],
    sst: bool,
    message: str | None,
    metadata: Sequence[tuple[str, str]],
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Commit the records of FILE on a branch without uncommitted changes, in place of what it has below the prefixes.

    FILE (- is standard input) has a record per line as `compactor staging sst write` reads them, in the order of their
    keys; with --sst it is a range, such as `sst write` makes.

    Example: compactor staging import main records.jsonl --prefix logs/ --repo logs
    """
    if sst and str(file) == STDIN:
        raise click.UsageError("a range is read from a file, not from standard input")
    name = STDIN_NAME if str(file) == STDIN else str(file)
    said = f"Import {Path(name).name}" if message is None else message
    draft = CommitDraft(committer, said, dict(metadata))
    with _again(file) as path, place.area() as area:

        def records() -> Iterator[RecordColumns]:
            return _range(path) if sst else _lines(path, name)

        importer = Importer(area, merger_of(area))
        made = importer.import_records(branch, records, draft, prefixes=tuple(prefixes))
    show_commit(made, f"branch {branch}", output)


def _lines(path: Path, name: str) -> Iterator[RecordColumns]:
    with path.open("rb") as file:
        yield from read_lines(file, name=name)


def _range(path: Path) -> Iterator[RecordColumns]:
    with FileSource(path) as source:
        yield from TableReader(source).batches()


@contextmanager
def _again(file: Path) -> Iterator[Path]:
    """A file that can be read more than once."""
    if str(file) != STDIN:
        yield file
        return
    with tempfile.NamedTemporaryFile(prefix="compactor-import-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)
