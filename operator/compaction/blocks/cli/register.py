"""`compactor blocks register`: Parquet files that lie in the store become blocks that readers see."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from compaction.api.text.printing import plural, printable
from compaction.blocks.cli.options import SortKeyParameter, StorePlace, store_options
from compaction.blocks.errors import (
    BlockConflictError,
    BlockFormatError,
    BlockStoreError,
    ForeignFileError,
    NoBlockIdError,
    NoBlockStoreError,
    UnexpectedBlockError,
    UnknownOutputError,
    UnsuitableBlockError,
)
from compaction.blocks.index.claims import job_record
from compaction.blocks.index.registering import KnownPath, known_paths
from compaction.blocks.index.rows import MAX_LEVEL, chunks
from compaction.blocks.model import MAX_SHARD, Block, escape_tenant, parse_block_path
from compaction.blocks.store import DESCRIBED_AT_ONCE, BlockStore
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.storage.errors import ObjectMissingError, StorageError
from compaction.unexpected import defect, lack_of

if TYPE_CHECKING:
    from compaction.blocks.format.footer import BlockFooter
    from compaction.blocks.registration.describe import Described
    from compaction.blocks.registration.foreign import SkippedFiles
    from compaction.storage.objects.store import ObjectInfo

AT_ONCE: Final = 1000
"""Blocks in one transaction."""
COLUMNS: Final = (
    OutputColumn("id", "Block"),
    OutputColumn("path", "Path"),
    OutputColumn("order", "Order"),
    OutputColumn("outcome", "Outcome"),
)
OWNED: Final = (
    "note: the store owns these files now: after their compaction they are deleted, and their rows are in files below "
    "TENANT/SHARD/. Readers that list folders see rows twice, then not at all: let them read what `compactor blocks "
    "list` shows (docs/block-stores.md)"
)
OWN_OUTPUTS: Final = "written by compactions of this store"
NEW: Final = "registered"
Problem = BlockStoreError | StorageError


@click.command()
@click.argument("uris", metavar="URI...", nargs=-1, required=True)
@store_options(may_be_new=True)
@click.option("--tenant", required=True, help="Tenant of the blocks.")
@click.option("--shard", type=click.IntRange(0, MAX_SHARD), default=0, show_default=True, help="Shard of the blocks.")
@click.option("--level", type=click.IntRange(0, MAX_LEVEL), default=0, show_default=True, help="Level of the blocks.")
@click.option(
    "--time-column", default="", metavar="NAME", help="The column of time; default: the only timestamp column."
)
@click.option(
    "--sort-key",
    type=SortKeyParameter(),
    metavar="COLUMN,...",
    help="The order that the store is to have: rows that declare no other are compared by it. Default: the policy's.",
)
@click.option("--assign-ids", is_flag=True, help="Derive a ULID from the path for files that are not named by one.")
@click.option(
    "--drop-path-column",
    "given_up",
    metavar="NAME",
    multiple=True,
    help="Give up a column that only paths hold (NAME=VALUE/): merged blocks do not have it.",
)
@click.option("--verify", is_flag=True, help="Read all rows now instead of trusting the files' statistics.")
@click.option("--skip-bad", is_flag=True, help="Skip files that cannot be blocks, register the others.")
@click.option("-v", "--verbose", is_flag=True, help="Log on standard error, with the traceback of unexpected failures.")
@output_option()
@click.pass_context
def register(
    context: click.Context,
    *,
    uris: tuple[str, ...],
    place: StorePlace,
    tenant: str,
    shard: int,
    level: int,
    time_column: str,
    sort_key: tuple[str, ...] | None,
    assign_ids: bool,
    given_up: tuple[str, ...],
    verify: bool,
    skip_bad: bool,
    verbose: bool,
    output: OutputFormat,
) -> None:
    """Register Parquet files that lie in the store as live blocks, which wait for compaction from then on.

    URI is the path of a file or folder below the store, or its whole URL; of a folder, all Parquet files below it. They
    are read (footers, and rows where a footer does not tell enough), not copied. Repeating is harmless, and reads only
    what is new. They go in steps of 1000: a file that cannot be a block keeps its step and those behind it out
    (--skip-bad: only itself). Named, and kept out alone, is a file that was overwritten since its registration, whose
    id or path is that of another block, or that a compaction of another store wrote.

    Example: compactor blocks register --store s3://lake/blocks --tenant acme --assign-ids 2026/11/
    """
    # Here and in what follows: who asks for help waits for no import of what reads Parquet.
    from compaction.blocks.registration.foreign import SkippedFiles

    escape_tenant(tenant)
    if place.folder is not None and not place.folder.is_dir():
        raise NoBlockStoreError(f"{place.folder}: folder not found: blocks are registered in place")
    if verbose:
        logging.basicConfig(level=logging.INFO)
    known: dict[str, Any] = {
        "tenant": tenant,
        "shard": shard,
        "level": level,
        "time_column": time_column,
        "sort_key": _wanted(place, sort_key),
        "verify": verify,
        "given_up": given_up,
    }
    with place.open() as store:
        run = _Registration(store, known, assign_ids=assign_ids, skip_bad=skip_bad, skipped=SkippedFiles())
        for part in chunks(run.files(place, uris), AT_ONCE):
            if not run.take(part):
                break
    if output is not OutputFormat.TABLE:
        emit({"items": run.rows, "failures": [str(error) for error in run.errors]}, output)
    else:
        _print(run.rows)
    report_all(run.errors)
    for line in run.hints():
        click.echo(printable(line), err=True)
    if run.errors:
        context.exit(EXIT_DATA_ERROR)


@dataclass(slots=True)
class _Registration:
    """One run of the command: `rows` are what it shows, `errors` what it could not register. `known`: see `described`.
    `infos`: what is known of the files that are meant; `listed`: those that a folder held; `indexed`: of a step, those
    that the index knows. `stopped`: files of the step of which none was registered, and how many of them are sound.
    """

    store: BlockStore
    known: dict[str, Any]
    assign_ids: bool
    skip_bad: bool
    skipped: SkippedFiles
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    infos: dict[str, ObjectInfo] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    indexed: Mapping[str, KnownPath] = field(default_factory=dict)
    stopped: tuple[int, int] | None = None
    pairs: dict[bytes, bytes | None] = field(default_factory=dict)
    """What footers say beside their rows, by key; None where two files say different things."""
    without_copy: set[str] = field(default_factory=set)
    """What else of the files no merge keeps."""

    def files(self, place: StorePlace, uris: Sequence[str]) -> list[str]:
        """The files that are meant. Raises ObjectMissingError: a folder holds none."""
        from compaction.blocks.registration.foreign import parquet_among

        objects, found = self.store.objects, dict[str, None]()
        paths = [place.path_of(uri) for uri in uris]

        def head(path: str, uri: str) -> ObjectInfo | None:
            try:
                return objects.head(path) if path and not uri.endswith("/") else None
            except ObjectMissingError:
                # No object has this path, so it is that of a folder.
                return None

        with ThreadPoolExecutor(DESCRIBED_AT_ONCE) as pool:
            alone = list(pool.map(head, paths, uris))
        for path, uri, info in zip(paths, uris, alone, strict=True):
            listing = self.store.owners.noting(path, objects.list(path)) if info is None else ()
            # In order, so that they wait in the order in which they were made, if their names say it.
            infos = sorted(parquet_among(listing, self.skipped), key=lambda item: item.path)
            self.listed.update(info.path for info in infos)
            self.infos.update((item.path, item) for item in (infos if info is None else (info,)))
            if not infos and uri.endswith("/"):
                passed = "".join(f"; skipped: {line}" for line in self.skipped)
                raise ObjectMissingError(uri, f"no Parquet file lies below this folder{passed}")
            found.update(dict.fromkeys([info.path for info in infos] or (path,)))
        return list(found)

    def take(self, paths: Sequence[str]) -> bool:
        """Register the files, or what is new of them; whether to go on. Raises errors of the store and of the index."""
        from compaction.blocks.registration.describe import Described

        signs = self.store.owners.of(paths)
        for sign in dict.fromkeys(signs.values()):
            count = sum(item == sign for item in signs.values())
            path = next(path for path, item in signs.items() if item == sign)
            more = f" and {plural(count - 1, 'other file')}" if count > 1 else ""
            self.errors.append(ForeignFileError(f"{path}{more}", f"belongs to {sign}"))
        same, unread = self._known([path for path in paths if path not in signs])
        with ThreadPoolExecutor(DESCRIBED_AT_ONCE) as pool:
            found = [item for item in pool.map(self._described, unread) if item is not None]
        self.errors += [item for item in found if not isinstance(item, Described)]
        # One that no registration could take keeps none of the others out.
        bad = [item for item in found if not isinstance(item, Described | UnknownOutputError)]
        if (bad or signs) and not self.skip_bad:
            self.stopped = len(paths), len(unread) - len(bad)
            return False
        fresh = [item for item in found if isinstance(item, Described)]
        new = self._register([item.block for item in fresh])
        described = {item.block.path: item for item in fresh} | same
        self.rows += [_row(described[path], new) for path in paths if path in described]
        return True

    def _known(self, paths: Sequence[str]) -> tuple[dict[str, Described], list[str]]:
        """Those that are registered with these very bytes, and those that have to be read."""
        from compaction.blocks.registration.describe import Described
        from compaction.blocks.registration.foreign import FoundOrder, OrderSource, assigned_id, known_files

        self.indexed = known_paths(self.store.index, paths)
        if self.known["verify"]:
            return {}, list(paths)
        infos = [self.infos[path] for path in paths if path in self.infos]
        ids = {info.path: assigned_id(info) for info in infos} if self.assign_ids else {}
        found, overwritten = known_files(infos, self.indexed, ids)
        # This is about a block that is registered: it keeps none of those that are to be.
        self.errors += [UnsuitableBlockError(path, reason) for path, reason in overwritten.items()]
        wanted = (self.known["tenant"], self.known["shard"], self.known["level"])
        same: dict[str, Described] = {}
        done = set(overwritten)
        for path, block in ((path, item.block) for path, item in found.items()):
            if (block.tenant, block.shard, block.level) == wanted:
                same[path] = Described(block, FoundOrder(block.sort_key, OrderSource.DECLARED, "registered"))
            elif path in self.listed and parse_block_path(path) is not None:
                self.skipped.add(path, OWN_OUTPUTS)
                done.add(path)
        return same, [path for path in paths if path not in done and path not in same]

    def _described(self, path: str) -> Described | Problem | None:
        """The block, or what is wrong with the file; None for what a compaction wrote, in a folder that was listed."""
        from compaction.blocks.format.footer import read_footer
        from compaction.blocks.registration.describe import describe_footer, said_of
        from compaction.blocks.registration.foreign import assigned_id

        objects = self.store.objects
        try:
            footer = read_footer(objects, path)
            said = said_of(footer)
            if said.job and path in self.listed and parse_block_path(path) is not None:
                if path not in self.indexed and job_record(self.store.index, said.job) is None:
                    # Of another store, or of this one with another index: these rows are in no block that readers see.
                    return UnknownOutputError(path, said.job)
                self.skipped.add(path, OWN_OUTPUTS)
                return None
            self._note_losses(footer)
            block = assigned_id(footer.info) if self.assign_ids else ""
            return describe_footer(objects, footer, said, block=block, **self.known)
        except (BlockFormatError, StorageError) as error:
            return error
        except BlockStoreError as error:
            return UnsuitableBlockError(path, str(error))
        except Exception as error:  # noqa: BLE001
            # Whatever one file does to the libraries below, the others are registered or named.
            return lack_of(error, path) or UnexpectedBlockError(path, defect(error, path))

    def _note_losses(self, footer: BlockFooter) -> None:
        """Note the parts of a file that a merge drops, for `hints`: they are reported when the file is registered, not
        when they are gone.
        """
        from compaction.blocks.format.footer_keys import lost_where_different

        for key, value in lost_where_different(footer.parquet.metadata or {}).items():
            if self.pairs.setdefault(key, value) != value:
                self.pairs[key] = None
        if footer.parquet.num_row_groups:
            columns = [footer.parquet.row_group(0).column(n) for n in range(footer.parquet.num_columns)]
            if any(column.metadata for column in columns):
                self.without_copy.add("key-value pairs of single columns")
            if any(column.is_geo_stats_set for column in columns):
                self.without_copy.add("geospatial statistics of columns")

    def _register(self, blocks: Sequence[Block]) -> set[str]:
        """Ids of those that are new. One whose id or path is taken is named; in halves, because each half is a call."""
        try:
            return set(self.store.register_blocks(blocks).new)
        except BlockConflictError as error:
            if len(blocks) == 1:
                self.errors.append(error)
                return set()
        middle = len(blocks) // 2
        return self._register(blocks[:middle]) | self._register(blocks[middle:])

    def hints(self) -> Iterator[str]:
        """Yield hints: the files that were skipped, the meaning of registration, and the options that would help."""
        from compaction.blocks.registration.foreign import EXAMPLES

        yield from (f"skipped: {line}" for line in self.skipped)
        if any(row["outcome"] == NEW and parse_block_path(row["path"]) is None for row in self.rows):
            yield OWNED
            different = sorted(key.decode("utf-8", "replace") for key, value in self.pairs.items() if value is None)
            if different:
                names = ", ".join(different[:EXAMPLES]) + (", ..." if len(different) > EXAMPLES else "")
                yield f"note: these files differ in the footer keys {names}: a merge of files that differ drops them"
            for what in sorted(self.without_copy):
                yield f"note: a merge does not keep {what}"
        if nameless := sum(isinstance(error, NoBlockIdError) for error in self.errors):
            yield f"--assign-ids would give {plural(nameless, 'file')} an id made of the path"
        if self.stopped is not None and self.stopped[1]:
            count, sound = self.stopped
            nothing = f"nothing of these {plural(count, 'file')} was registered"
            yield f"{nothing}; --skip-bad would register the other {sound}"


def _wanted(place: StorePlace, sort_key: tuple[str, ...] | None) -> tuple[str, ...]:
    """The order that the store is to have. Raises click.UsageError: it is said twice."""
    store = place.policy.spec.store.block_store if place.policy is not None else None
    if store is not None and store.sort_key and sort_key is not None:
        raise click.UsageError("the policy says that: leave out --sort-key")
    return sort_key or (store.sort_key if store is not None else ())


def _row(found: Described, new: Collection[str]) -> dict[str, Any]:
    block, order = found.block, found.order
    return {
        "id": block.id,
        "path": block.path,
        "rows": block.rows,
        "bytes": block.bytes,
        "sortKey": list(order.key),
        "order": str(order),
        "outcome": NEW if block.id in new else "known before",
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        print_table(rows, COLUMNS)
    new = sum(row["outcome"] == NEW for row in rows)
    click.echo(f"{plural(new, 'block')} registered" + (f", {len(rows) - new} known before" if len(rows) > new else ""))
