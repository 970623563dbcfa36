"""`compactor blocks register`: Parquet files that lie in the store become blocks that readers see."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from compaction.api.text.formatting import plural
from compaction.cli.blocks.options import StorePlace, store_options
from compaction.cli.blocks.policy.values import SortKeyParameter
from compaction.cli.errors import EXIT_DATA_ERROR, report_all
from compaction.cli.output import Column, OutputFormat, emit, output_option, print_table
from compaction.exceptions import (
    BlockFormatError,
    NoBlockIdError,
    NoBlockStoreError,
    ObjectError,
    ObjectMissingError,
    ObjectPathError,
)
from compaction.stores.blocks.index.rows import MAX_LEVEL, chunks
from compaction.stores.blocks.paths import MAX_SHARD, escape_tenant
from compaction.stores.blocks.registration.describe import Described, described
from compaction.stores.blocks.registration.foreign import assigned_id, parquet_files
from compaction.stores.blocks.store import DESCRIBED_AT_ONCE, BlockStore
from compaction.stores.objects.store import ObjectStorage

AT_ONCE: Final = 1000
"""Blocks in one transaction."""
COLUMNS: Final = (Column("id", "Block"), Column("path", "Path"), Column("order", "Order"), Column("outcome", "Outcome"))
Describe = Callable[[str], Described]


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
@click.option("--verify", is_flag=True, help="Read all rows now instead of trusting the files' statistics.")
@click.option("--skip-bad", is_flag=True, help="Skip files that cannot be blocks, register the others.")
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
    verify: bool,
    skip_bad: bool,
    output: OutputFormat,
) -> None:
    """Make Parquet files that lie in the store live blocks, which wait for compaction from then on.

    URI is the path of a file or folder below the store, or its whole URL; of a folder, all Parquet files below it. They
    are read (footers, and rows where a footer does not tell enough), not copied. Registered are all of them or none
    (of more than 1000: in steps of 1000); repeating is harmless.

    Example: compactor blocks register --store s3://lake/blocks --tenant acme --assign-ids 2026/11/
    """
    escape_tenant(tenant)
    if place.folder is not None and not place.folder.is_dir():
        raise NoBlockStoreError(f"{place.folder}: folder not found: blocks are registered in place")
    rows: list[dict[str, Any]] = []
    errors: list[BlockFormatError | ObjectError] = []
    read = 0
    with place.open() as store:
        known: dict[str, Any] = {
            "tenant": tenant,
            "shard": shard,
            "level": level,
            "time_column": time_column,
            "sort_key": _wanted(place, sort_key),
            "verify": verify,
        }
        one = partial(_described, store.objects, assign_ids=assign_ids, **known)
        for paths in chunks(list(_paths(place, store.objects, uris)), AT_ONCE):
            blocks, bad = _describe_all(paths, one)
            errors += bad
            read = len(paths)
            if bad and not skip_bad:
                break
            rows += _register(store, blocks)
    if output is not OutputFormat.TABLE:
        emit({"items": rows, "failures": [str(error) for error in errors]}, output)
    else:
        _print(rows)
    report_all(errors)
    for hint in _hints(errors, read=read, skip_bad=skip_bad):
        click.echo(hint, err=True)
    if errors:
        context.exit(EXIT_DATA_ERROR)


def _hints(errors: Sequence[BlockFormatError | ObjectError], *, read: int, skip_bad: bool) -> Iterator[str]:
    """What would help, of `read` files in which these errors were found."""
    nameless, sound = sum(isinstance(error, NoBlockIdError) for error in errors), read - len(errors)
    if nameless:
        yield f"--assign-ids would give {plural(nameless, 'file')} an id made of the path"
    if errors and sound and not skip_bad:
        yield f"nothing of these {plural(read, 'file')} was registered; --skip-bad would register the other {sound}"


def _wanted(place: StorePlace, sort_key: tuple[str, ...] | None) -> tuple[str, ...]:
    """The order that the store is to have. Raises click.UsageError: it is said twice."""
    store = place.policy.spec.store.block_store if place.policy is not None else None
    if store is not None and store.sort_key and sort_key is not None:
        raise click.UsageError("the policy says that: leave out --sort-key")
    return sort_key or (store.sort_key if store is not None else ())


def _described(objects: ObjectStorage, path: str, *, assign_ids: bool, **known: Any) -> Described:
    identity = assigned_id(objects.head(path)) if assign_ids else ""
    return described(objects, path, block=identity, **known)


def _describe_all(paths: Iterable[str], one: Describe) -> tuple[list[Described], list[BlockFormatError | ObjectError]]:
    """The blocks, and what is wrong with the files that cannot be any."""

    def attempt(path: str) -> Described | BlockFormatError | ObjectError:
        try:
            return one(path)
        except (BlockFormatError, ObjectError) as error:
            return error

    with ThreadPoolExecutor(DESCRIBED_AT_ONCE) as pool:
        found = list(pool.map(attempt, paths))
    blocks = [item for item in found if isinstance(item, Described)]
    return blocks, [item for item in found if not isinstance(item, Described)]


def _register(store: BlockStore, found: Sequence[Described]) -> Iterator[dict[str, Any]]:
    new = set(store.register_blocks([one.block for one in found]).new)
    for block, order in ((one.block, one.order) for one in found):
        yield {
            "id": block.id,
            "path": block.path,
            "rows": block.rows,
            "bytes": block.bytes,
            "sortKey": list(order.key),
            "order": str(order),
            "outcome": "registered" if block.id in new else "known before",
        }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        print_table(rows, COLUMNS)
    new = sum(row["outcome"] == "registered" for row in rows)
    click.echo(f"{plural(new, 'block')} registered" + (f", {len(rows) - new} known before" if len(rows) > new else ""))


def _paths(place: StorePlace, objects: ObjectStorage, uris: Sequence[str]) -> Iterator[str]:
    """The files that are meant. Raises ObjectMissingError: a folder holds none."""
    paths = [path_in_store(place, uri) for uri in uris]
    with ThreadPoolExecutor(DESCRIBED_AT_ONCE) as pool:
        is_file = list(pool.map(lambda path, uri: not uri.endswith("/") and _is_object(objects, path), paths, uris))
    for path, uri, single in zip(paths, uris, is_file, strict=True):
        # In order, so that they wait in the order in which they were made, as far as names tell.
        files = [] if single else sorted(info.path for info in parquet_files(objects, path))
        if not files and uri.endswith("/"):
            raise ObjectMissingError(uri, "no Parquet file lies below this folder")
        yield from files or (path,)


def _is_object(objects: ObjectStorage, path: str) -> bool:
    try:
        return bool(path) and objects.head(path) is not None
    except ObjectMissingError:
        return False


def path_in_store(place: StorePlace, uri: str) -> str:
    """The path below the store's root that a URL or path means; of a folder without its last slash.

    Raises ObjectPathError: it lies elsewhere.
    """
    parts = urllib.parse.urlsplit(uri)
    folder = place.folder
    if folder is not None and (parts.scheme == "file" or uri.startswith("/")):
        target = Path(urllib.parse.unquote(parts.path) if parts.scheme else uri)
        if target.is_relative_to(folder):
            return "" if target == folder else str(target.relative_to(folder))
        raise ObjectPathError(uri, f"lies outside of the store {folder}: blocks are registered where they are")
    if not parts.scheme:
        return uri.rstrip("/")
    root = place.url.rstrip("/")
    if uri.rstrip("/") == root:
        return ""
    if not uri.startswith(f"{root}/"):
        raise ObjectPathError(uri, f"lies outside of the store {root}: blocks are registered where they are")
    return uri.removeprefix(f"{root}/").rstrip("/")
