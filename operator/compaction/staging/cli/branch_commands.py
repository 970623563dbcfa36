"""`compactor staging commit`, `log`, `merge`, `revert` and `cherry-pick`: commits of a branch."""

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

from compaction.cli.histories import STDIN, STDIN_NAME
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import SHORT, PairParameter, StagingPlace, committer_option, staging_options
from compaction.staging.cli.tables import read_lines
from compaction.staging.cli.values import instant_text
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import CommitDraft, Committer, Importer, Merger
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.messages import CommitData
from compaction.staging.format.table_reader import FileSource, TableReader
from compaction.staging.tree.diffing import MergeStrategy

# `compactor staging commit` and `log`: what is staged, a tree, or the records of a file become a commit.

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
@click.option("-m", "--message", help="Message of the commit; default with --records: names the file.")
@metadata_option
@click.option("--allow-empty", is_flag=True, help="Commit also when nothing differs.")
@click.option("--metarange", metavar="ID", help="Commit this tree, on a branch without uncommitted changes.")
@click.option(
    "--records",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Commit the records of FILE (- is standard input), on a branch without uncommitted changes.",
)
@click.option(
    "--prefix",
    "prefixes",
    type=KeyParameter(),
    multiple=True,
    help="With --records: delete what the branch has below it and FILE has not.",
)
@click.option("--sst", is_flag=True, help="With --records: FILE is a range, not lines of JSON.")
@committer_option
@staging_options()
@output_option()
def commit(
    *,
    branch: str,
    message: str | None,
    metadata: Sequence[tuple[str, str]],
    records: Path | None,
    committer: str,
    place: StagingPlace,
    output: OutputFormat,
    **given: Any,
) -> None:
    """Commit what is staged on a branch, or the records of a file; what is written meanwhile stays staged.

    The FILE of --records has a record per line as `compactor staging debug sst` prints them, in the order of their
    keys; with --sst it is a range, such as `debug sst --write` makes.

    Example: compactor staging commit main -m "data of November" --metadata source=etl --repo logs
    """
    _check_commit(records, **given)
    if message is None and records is None:
        raise click.UsageError("what does the commit say? Give -m TEXT")
    said = f"Import {Path(_name_of(records)).name}" if message is None else message
    draft = CommitDraft(committer, said, dict(metadata))
    if records is not None:
        made = _commit_records(place, branch, records, draft, given["prefixes"], sst=given["sst"])
    else:
        with place.area() as area:
            made = Committer(area).commit(branch, draft, allow_empty=given["allow_empty"], tree=given["metarange"])
    show_commit(made, f"branch {branch}", output)


def _check_commit(
    records: Path | None, *, prefixes: Sequence[bytes], sst: bool, metarange: str | None, allow_empty: bool
) -> None:
    """Options that contradict each other, or lack the one that they are of, are wrong usage."""
    if records is None and (prefixes or sst):
        raise click.UsageError(f"{'--prefix' if prefixes else '--sst'} is of the records of a file: give --records too")
    if records is not None and (metarange is not None or allow_empty):
        other = "--allow-empty" if metarange is None else "--metarange"
        raise click.UsageError(f"the records of a file are all that is committed: leave out {other}, or --records")
    if sst and str(records) == STDIN:
        raise click.UsageError("a range is read from a file, not from standard input")


def _commit_records(
    place: StagingPlace, branch: str, file: Path, draft: CommitDraft, prefixes: Sequence[bytes], *, sst: bool
) -> CommitData:
    with _again(file) as path, place.area() as area:

        def records() -> Iterator[RecordColumns]:
            return _range(path) if sst else _lines(path, _name_of(file))

        importer = Importer(area, merger_of(area))
        return importer.import_records(branch, records, draft, prefixes=tuple(prefixes))


def _name_of(file: Path | None) -> str:
    return STDIN_NAME if str(file) == STDIN else str(file)


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
    with tempfile.NamedTemporaryFile(prefix="compactor-commit-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


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
@click.option("-m", "--message", help="Message of the commit; default: names both.")
@metadata_option
@click.option(
    "--strategy",
    type=click.Choice(list(STRATEGIES)),
    default="none",
    show_default=True,
    help="The side that wins where both changed a key differently; with none that is an error.",
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
@click.option("-m", "--message", help="Message of the commit; default: names the other one.")
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
@click.option("-m", "--message", help="Message of the commit; default: that of the other one.")
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
