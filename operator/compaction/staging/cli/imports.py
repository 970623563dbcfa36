"""`compactor staging import`: records of a file become a commit."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from compaction.cli.histories.lines import STDIN, STDIN_NAME
from compaction.cli.output import OutputFormat, output_option
from compaction.staging.cli.commits import metadata_option, show_commit
from compaction.staging.cli.merges import merger_of
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import StagingPlace, committer_option, staging_options
from compaction.staging.cli.tables.lines import read_lines
from compaction.staging.flows.committing import Draft
from compaction.staging.flows.importing import Importer
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.sources import FileSource
from compaction.staging.format.table_reader import TableReader


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
    draft = Draft(committer, said, dict(metadata))
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
