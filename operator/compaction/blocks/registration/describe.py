"""From an object to the block it is: what the index needs to know, each word of it checked or counted.

The footer says most of it. The fingerprint is believed when the block carries one that its number of rows does not
contradict (or never, with `verify`), else all rows are read and it is computed; so are times when the footer has no
statistics. A block that says it is another one (id, tenant, shard, level) is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ulid import ULID

from compaction.api.text.printing import cut
from compaction.blocks.errors import (
    BlockStoreError,
    CorruptBlockError,
    ForeignFileError,
    LogicalTypeLostError,
    NoBlockIdError,
    UnsuitableBlockError,
    UnsupportedColumnError,
)
from compaction.blocks.fingerprint.row_hashes import Fingerprinter
from compaction.blocks.format.footer import (
    LIBRARY_FAILURES,
    BlockFooter,
    is_instant,
    read_footer,
    scale_of,
    short,
    time_column_of,
    times_of_footer,
)
from compaction.blocks.format.int96 import Int96Error, check_spark
from compaction.blocks.format.metadata import BlockMetadata, decode
from compaction.blocks.merge.columns import SteadyDictionaries, coded_texts, not_repeating
from compaction.blocks.merge.meanings import check_writable
from compaction.blocks.merge.runs import RowsTooLargeError, decoded_row
from compaction.blocks.model import SUFFIX, ULID_TEXT, Block, RowFingerprint, parse_block_path, shard_prefix
from compaction.blocks.owners import owner_by_footer
from compaction.blocks.registration.foreign import (
    FoundOrder,
    OrderCheck,
    checks_of,
    declared_order,
    is_proved,
    lost_columns,
    order_of_footer,
    order_of_rows,
    refuse_lost_columns,
)
from compaction.blocks.schema.classes import schema_text
from compaction.storage.errors import StorageError
from compaction.storage.objects.reader import ObjectReader
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import lack_of

BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 64 << 20
"""Of rows that are decoded at a time, about; what is computed on them takes some times as much."""
MOST_BYTES: Final = 256 << 20
"""Of a single row or page: who has larger ones needs a limit of memory for which no merge is made."""


@dataclass(frozen=True, slots=True)
class Described:
    """A block, and what was found out about the order of its rows."""

    block: Block
    order: FoundOrder


def describe(objects: ObjectStorage, path: str, **known: Any) -> Block:
    """The block that lies at `path`: see `described`."""
    return described(objects, path, **known).block


def described(objects: ObjectStorage, path: str, **known: Any) -> Described:
    """The block that lies at `path`: see `describe_footer`. Raises also the errors of objects."""
    footer = read_footer(objects, path)
    return describe_footer(objects, footer, said_of(footer), **known)


def said_of(footer: BlockFooter) -> BlockMetadata:
    """Return the statements of the block about itself. Raises CorruptBlockError."""
    try:
        return decode(footer.metadata)
    except ValueError as error:
        raise CorruptBlockError(footer.info.path, str(error)) from None


def describe_footer(
    objects: ObjectStorage,
    footer: BlockFooter,
    said: BlockMetadata,
    *,
    tenant: str,
    shard: int,
    level: int,
    block: str = "",
    time_column: str = "",
    sort_key: tuple[str, ...] = (),
    verify: bool = False,
    given_up: Collection[str] = (),
) -> Described:
    """The block whose footer was read. Its id is the one its path says, or `block` for a path of another layout.

    `time_column`: else the one the block names, else its only column of timestamps, else one named timestamp, time or
    ts of 64-bit integers, which are microseconds. `sort_key`: the order that the store is to have; rows that declare
    no other are compared by it. `given_up`: columns of the path alone (`region=eu/`) that a merge may lose.

    Raises CorruptBlockError, UnsuitableBlockError (also when it says it is of another tenant, shard or level),
    ForeignFileError.
    """
    path = footer.info.path
    if (owned := owner_by_footer(footer.parquet.metadata or {}, footer.schema.names)) is not None:
        owner, shown_by = owned
        raise ForeignFileError(path, f"it belongs to {owner.what} ({shown_by}): {owner.remedy}")
    _check_meanings(footer)
    identity = _identity(path, said, tenant=tenant, shard=shard, level=level, block=block)
    column = time_column_of(footer, time_column or said.time_column or "")
    times = times_of_footer(footer, column) if footer.rows else _times_of_id(identity)
    lost, instants = lost_columns(path, footer.schema.names, given_up), is_instant(footer.schema.field(column).type)
    # Refused here where the footer knows the times, because reading all rows is what takes long.
    if lost and times is not None:
        refuse_lost_columns(path, lost, times, instants)
    fingerprint = said.fingerprint
    if fingerprint is not None and fingerprint.rows != footer.rows:
        raise CorruptBlockError(path, f"says it was made of {fingerprint.rows} rows and has {footer.rows}")
    declared = declared_order(footer, said)
    if unknown := [name for name in declared if name not in footer.schema.names]:
        raise CorruptBlockError(path, f"says it is sorted by {unknown[0][:100]!r}, which it does not have")
    order = order_of_footer(footer, said)
    # The rows are read only for what the footer leaves open, or when the caller asks for it.
    if fingerprint is None or times is None or verify or not is_proved(footer, said):
        checks = checks_of(footer, said, wanted=sort_key, time_column=column)
        counted, read_times = _read(objects, footer, column, checks)
        order = order_of_rows(footer, said, checks, wanted=sort_key, time_column=column)
        if fingerprint is not None and counted != fingerprint:
            raise CorruptBlockError(path, f"its rows are not those it was made of: {counted}, not {fingerprint}")
        if times is not None and footer.rows and (read_times[0] < times[0] or read_times[1] > times[1]):
            raise CorruptBlockError(path, f"times in {column[:100]!r} are outside of what its statistics say")
        fingerprint, times = counted, times or read_times
    if lost:
        refuse_lost_columns(path, lost, times, instants)
    found = Block(
        id=identity,
        tenant=tenant,
        shard=shard,
        level=level,
        path=path,
        min_time=times[0],
        max_time=times[1],
        rows=footer.rows,
        bytes=footer.info.size,
        fingerprint=fingerprint,
        sort_key=order.key,
        schema_id=footer.schema_id,
        schema=schema_text(footer.schema),
    )
    return Described(found, order)


def _check_meanings(footer: BlockFooter) -> None:
    """Check that a merge would keep the meanings of the columns. Raises UnsuitableBlockError."""
    path = footer.info.path
    try:
        check_writable(path, footer.schema, footer.meanings)
        check_spark(footer.parquet, footer.int96)
    except LogicalTypeLostError as error:
        raise UnsuitableBlockError(path, error.reason) from None
    except Int96Error as error:
        raise UnsuitableBlockError(path, str(error)) from None
    except (BlockStoreError, StorageError):
        raise
    except LIBRARY_FAILURES as error:
        if lack := lack_of(error, path):
            raise lack from error
        raise CorruptBlockError(path, f"its rows cannot be read ({short(error)})") from None


def _batches(reader: ObjectReader, footer: BlockFooter) -> Iterator[pa.RecordBatch]:
    """One row group after the other: a batch of two has two dictionaries, which the library cannot nest."""
    options: dict[str, Any] = {"pre_buffer": False, "page_checksum_verification": True}
    options |= {"metadata": footer.parquet, **footer.int96.options}
    coded = coded_texts(footer.parquet)
    file = pq.ParquetFile(reader, read_dictionary=coded, **options)
    if many := not_repeating(file, 0, [name for name in coded if name in footer.schema.names]):
        file = pq.ParquetFile(reader, read_dictionary=[name for name in coded if name not in many], **options)
    steady = SteadyDictionaries()
    for group in range(file.num_row_groups):
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES // decoded_row(file, group, reader, room=MOST_BYTES)))
        for batch in file.iter_batches(batch_size=rows, row_groups=[group], use_threads=False):
            yield steady.of(footer.int96.decoded(batch, footer.schema))


def _identity(path: str, said: BlockMetadata, *, tenant: str, shard: int, level: int, block: str) -> str:
    place = parse_block_path(path)
    wanted: dict[str, str | int | None] = {
        "id": block or (place.id if place else said.id),
        "tenant": tenant,
        "shard": shard,
        "level": level,
    }
    claims = {"id": said.id, "tenant": said.tenant, "shard": said.shard, "level": said.level}
    if place is not None:
        for name, value in (("id", place.id), ("tenant", place.tenant), ("shard", place.shard)):
            if wanted[name] != value:
                raise UnsuitableBlockError(path, f"lies where {name} is {value!r}, not {wanted[name]!r}")
    for name, claim in claims.items():
        if claim is not None and claim != wanted[name]:
            raise UnsuitableBlockError(path, f"says that its {name} is {cut(repr(claim), 100)}, not {wanted[name]!r}")
    identity = wanted["id"]
    if isinstance(identity, str) and ULID_TEXT.fullmatch(identity):
        return identity
    if ULID_TEXT.fullmatch(path.rpartition("/")[2].removesuffix(SUFFIX)):
        wanted_at = f"{shard_prefix(tenant, shard)}/"
        raise NoBlockIdError(path, f"is named by a ULID, but lies elsewhere than in {wanted_at}, where that is its id")
    raise NoBlockIdError(path, "has no id: neither its name nor what was given is a ULID in upper case")


def _times_of_id(block: str) -> tuple[int, int]:
    """An empty block is of the time at which it was made, so that neither span nor retention takes it for ancient."""
    made = ULID.from_str(block).milliseconds * 1000
    return made, made


def _read(
    objects: ObjectStorage, footer: BlockFooter, column: str, checks: Sequence[OrderCheck]
) -> tuple[RowFingerprint, tuple[int, int]]:
    """Fingerprint and times of all rows, batch by batch; `checks` see them too."""
    path, fingerprinter = footer.info.path, Fingerprinter()
    low: int | None = None
    high: int | None = None
    scale = scale_of(footer.schema.field(column).type)
    try:
        with objects.reader(path, info=footer.info) as reader:
            for batch in _batches(reader, footer):
                # Texts that are none, indices outside of their dictionary: readers do not look.
                batch.validate(full=True)
                fingerprinter.update(batch)
                for check in checks:
                    check.update(batch)
                times = batch.column(column).cast(pa.int64())
                if times.null_count:
                    raise UnsuitableBlockError(path, f"rows have no time in {column[:100]!r}")
                edges = pc.min_max(times)
                low = min(edges["min"].as_py(), low) if low is not None else edges["min"].as_py()
                high = max(edges["max"].as_py(), high) if high is not None else edges["max"].as_py()
    except UnsupportedColumnError as error:
        raise UnsuitableBlockError(path, str(error)) from None
    except RowsTooLargeError as error:
        what = f"a row or page of column {error.column[:100]!r} takes {error.needed} bytes of memory"
        reason = f"{what}, {MOST_BYTES} are allowed: write it with smaller pages and values, or leave it out"
        raise UnsuitableBlockError(path, reason) from None
    except (BlockStoreError, StorageError):
        raise
    except LIBRARY_FAILURES as error:
        if lack := lack_of(error, path):
            raise lack from error
        raise CorruptBlockError(path, f"its rows cannot be read ({short(error)})") from None
    if fingerprinter.value.rows != footer.rows:
        raise CorruptBlockError(path, f"has {fingerprinter.value.rows} rows, its footer says {footer.rows}")
    return fingerprinter.value, (scale.microseconds(low or 0), scale.microseconds(high or 0))
