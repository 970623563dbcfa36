"""`compactor staging put`, `get`, `rm`, `ls` and `diff`: records of a branch, and what references show."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, Protocol, TypeVar

import click

from compaction.api.text.printing import plural, printable
from compaction.cli.histories import text_fields
from compaction.cli.output import (
    OutputColumn,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
    stream,
)
from compaction.staging.cli.options import PairParameter, StagingPlace, staging_options
from compaction.staging.cli.values import (
    bytes_of_hex,
    entry_value,
    new_entry,
    parts_of,
    raw_value,
    shown_key,
    value_object,
)
from compaction.staging.errors import UnknownRefError
from compaction.staging.flows.area import Area
from compaction.staging.flows.reading import MOST_LISTED, Listed, Reader, RecordDifference
from compaction.staging.flows.writing import MOST_DELETED, WriteCondition, Writer
from compaction.staging.format.identity import MAX_PART_BYTES

# `compactor staging put`, `get` and `rm`: single records of a branch.

_READ: Final = 1 << 20


class KeyParameter(click.ParamType[bytes]):
    """The bytes of an argument, as the shell passes them; UTF-8 as a rule."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


@click.command()
@click.argument("branch")
@click.argument("key", type=KeyParameter())
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--text", help="The value, instead of a file.")
@click.option("--address", metavar="URL", help="Write an entry for the object at this address (URL, or path).")
@click.option("--size", type=click.IntRange(0), metavar="BYTES", help="Size of the object; default: that of FILE.")
@click.option("--etag", help="ETag of the object; default: MD5 of FILE.")
@click.option("--content-type", default="", metavar="TYPE", help="Content type of the object.")
@click.option("--metadata", type=PairParameter(), metavar="NAME=VALUE", multiple=True, help="Metadata of the object.")
@click.option("--identity", metavar="HEX", help="Identity of a value; default: its SHA-256.")
@click.option("--if-absent", is_flag=True, help="Only if the branch does not show the key.")
@click.option("--if-identity", metavar="HEX", help="Only if the branch shows a value of this identity.")
@staging_options()
@output_option()
def put(
    *,
    branch: str,
    key: bytes,
    file: BinaryIO | None,
    text: str | None,
    if_absent: bool,
    if_identity: str | None,
    place: StagingPlace,
    output: OutputFormat,
    **entry: Any,
) -> None:
    """Write a record into the staging token of a branch.

    The value is the content of FILE (- is standard input) or --text: any bytes, up to 40 MiB, with an identity. With
    --address it is an entry as of lakeFS for an object that exists there, whose size and ETag are given, or are those
    of FILE; the object is neither read nor copied.

    Example: compactor staging put main logs/1.json --text '{}' --repo logs
    """
    if if_absent and if_identity is not None:
        raise click.UsageError("give --if-absent or --if-identity, not both")
    if file is not None and text is not None:
        raise click.UsageError("give FILE or --text, not both")
    content = file if text is None else text.encode(errors="surrogateescape")
    value = _raw(content, entry) if entry["address"] is None else _entry(content, entry)
    condition = WriteCondition(None if if_identity is None else bytes_of_hex(if_identity, "--if-identity"))
    with place.area() as area:
        if if_absent or if_identity is not None:
            Writer(area).set_if(branch, key, value, condition)
        else:
            Writer(area).set(branch, key, value)
    identity = parts_of(value)[0].hex()
    if output is OutputFormat.TABLE:
        click.echo(printable(f"{shown_key(key)}: written on branch {branch}, identity {identity}"))
    else:
        emit({"branch": branch, **text_fields("key", key), "identity": identity}, output)


def _raw(content: BinaryIO | bytes | None, entry: dict[str, Any]) -> bytes:
    given = [name for name in ("size", "etag", "content_type", "metadata") if entry[name] not in (None, "", ())]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is of an entry: give --address too")
    if content is None:
        raise click.UsageError("which value? Give FILE (- is standard input), --text, or --address")
    data = content if isinstance(content, bytes) else content.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES:
        raise click.UsageError(
            f"the value is larger than {MAX_PART_BYTES} bytes: store it as an object, and write its entry (--address)"
        )
    identity = None if entry["identity"] is None else bytes_of_hex(entry["identity"], "--identity")
    return raw_value(data, identity)


def _entry(content: BinaryIO | bytes | None, entry: dict[str, Any]) -> bytes:
    if entry["identity"] is not None:
        raise click.UsageError("--identity is of a value: that of an entry is computed")
    if not entry["address"]:
        raise click.UsageError("--address is empty: give a URL, or a path below the storage namespace")
    size, etag = entry["size"], entry["etag"]
    if content is not None:
        digest, count = hashlib.md5(usedforsecurity=False), 0
        for part in _parts(content):
            digest.update(part)
            count += len(part)
        size = count if size is None else size
        etag = digest.hexdigest() if etag is None else etag
    if size is None or etag is None:
        raise click.UsageError("an entry needs --size and --etag, or FILE to compute them from")
    return entry_value(
        new_entry(
            entry["address"],
            size=size,
            e_tag=etag,
            metadata=dict(entry["metadata"]),
            content_type=entry["content_type"],
            modified=time.time(),
        )
    )


def _parts(content: BinaryIO | bytes) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    while part := content.read(_READ):
        yield part


@click.command()
@click.argument("reference", metavar="REF")
@click.argument("key", type=KeyParameter())
@click.option("--stage-only", is_flag=True, help="Only a value that differs from the commit's.")
@click.option("--raw", is_flag=True, help="Write the bytes of the value, and nothing else.")
@staging_options()
@output_option()
def get(*, reference: str, key: bytes, stage_only: bool, raw: bool, place: StagingPlace, output: OutputFormat) -> None:
    """Show a record of REF: `main` with its uncommitted changes, `main@` without, a tag, a commit, `v1~2`.

    Example: compactor staging get main logs/1.json --raw --repo logs
    """
    with place.area() as area:
        value = Reader(area).get(reference, key, stage_only=stage_only)
    if value is None:
        raise UnknownRefError("key", f"{shown_key(key)} of {reference}")
    if raw:
        sys.stdout.buffer.write(parts_of(value)[1])
    else:
        shown = {**text_fields("key", key), **value_object(value)}
        emit(shown | shown.pop("entry", {}) if output is OutputFormat.TABLE else shown, output)


@click.command("rm")
@click.argument("branch")
@click.argument("keys", metavar="[KEY]...", nargs=-1, type=KeyParameter())
@click.option("--prefix", type=KeyParameter(), help="All records whose key begins with this.")
@staging_options()
@output_option()
def remove(
    *, branch: str, keys: Sequence[bytes], prefix: bytes | None, place: StagingPlace, output: OutputFormat
) -> None:
    """Delete records of a branch. Keys that it does not show count as deleted.

    A prefix is deleted page by page, each at its own moment; what is written meanwhile may stay.

    Example: compactor staging rm main --prefix logs/2025/ --repo logs
    """
    if bool(keys) == (prefix is not None):
        raise click.UsageError("give keys, or --prefix")
    with place.area() as area:
        writer = Writer(area)
        deleted = 0
        pages = _chunks(keys) if prefix is None else _below(area, branch, prefix)
        for page in pages:
            writer.delete_many(branch, page)
            deleted += len(page)
    if output is OutputFormat.TABLE:
        click.echo(f"{plural(deleted, 'key')} deleted on branch {branch}")
    else:
        emit({"branch": branch, "deleted": deleted}, output)


def _chunks(keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    every = list(dict.fromkeys(keys))
    for begin in range(0, len(every), MOST_DELETED):
        yield every[begin : begin + MOST_DELETED]


def _below(area: Area, branch: str, prefix: bytes) -> Iterator[list[bytes]]:
    """The keys that a branch shows below a prefix, page by page."""
    area.branches.get(branch)
    reader, after = Reader(area), b""
    more = True
    while more:
        page = reader.list(branch, prefix=prefix, after=after, amount=min(MOST_LISTED, MOST_DELETED))
        more = page.more
        if page.entries:
            after = page.entries[-1].key
            yield [entry.key for entry in page.entries]


# `compactor staging ls` and `diff`: what references show, page by page.

DEFAULT_AMOUNT: Final = 1000
LIST_COLUMNS: Final = (
    OutputColumn("key", "Key"),
    OutputColumn("identity", "Identity", lambda text: text[:16] if text else "-"),
    OutputColumn("size", "Size", optional_bytes, right=True),
    OutputColumn("contentType", "Type", optional),
)
DIFF_COLUMNS: Final = (OutputColumn("kind", "Change"), OutputColumn("key", "Key"))


class EntryListing(Protocol):
    """A page of entries; each has a key."""

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def more(self) -> bool: ...


P = TypeVar("P", bound=EntryListing)

_prefix = click.option("--prefix", type=KeyParameter(), default=b"", help="Only keys that begin with this.")
_after = click.option("--after", type=KeyParameter(), default=b"", help="Only keys greater than this.")
_amount = click.option("--amount", type=click.IntRange(1), default=DEFAULT_AMOUNT, show_default=True, help="At most.")
_all = click.option("--all", "everything", is_flag=True, help="All of them, read page by page.")


@click.command("ls")
@click.argument("reference", metavar="REF")
@_prefix
@click.option("--delimiter", type=KeyParameter(), default=b"", help="Show keys with this behind the prefix as one.")
@_after
@_amount
@_all
@staging_options()
@output_option(jsonl=True)
def list_command(
    *,
    reference: str,
    prefix: bytes,
    delimiter: bytes,
    after: bytes,
    amount: int,
    everything: bool,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """List the records of REF in the order of their keys' bytes: `main` with its uncommitted changes, `main@` without.

    Each page of 1,000 is of one instant.

    Example: compactor staging ls main --prefix logs/ --delimiter / --repo logs
    """
    with place.area() as area:
        reader = Reader(area)

        def page(after: bytes, amount: int) -> Any:
            return reader.list(reference, prefix=prefix, delimiter=delimiter, after=after, amount=amount)

        pages = Pages(page, after, None if everything else amount)
        if output is OutputFormat.TABLE:
            rows = [_table_row(page) for page in pages]
            _show(rows, LIST_COLUMNS, plural(len(rows), "entry", "entries"), pages)
        else:
            _emit(map(listed_object, pages), output, pages)


@click.command()
@click.argument("left", metavar="BRANCH|LEFT")
@click.argument("right", required=False)
@_prefix
@_after
@_amount
@_all
@staging_options()
@output_option(jsonl=True)
def diff(
    *,
    left: str,
    right: str | None,
    prefix: bytes,
    after: bytes,
    amount: int,
    everything: bool,
    place: StagingPlace,
    output: OutputFormat,
) -> None:
    """Show what is uncommitted on BRANCH, or how what RIGHT shows differs from the commit of LEFT.

    Values are equal when their identities are.

    Example: compactor staging diff main etl --repo logs
    """
    with place.area() as area:
        reader = Reader(area)
        if right is None:
            area.branches.get(left)

        def page(after: bytes, amount: int) -> Any:
            if right is None:
                return reader.uncommitted(left, prefix=prefix, after=after, amount=amount)
            return reader.diff(left, right, prefix=prefix, after=after, amount=amount)

        pages = Pages(page, after, None if everything else amount)
        if output is OutputFormat.TABLE:
            rows = [{"kind": page.kind.name.lower(), "key": shown_key(page.key)} for page in pages]
            _show(rows, DIFF_COLUMNS, plural(len(rows), "difference"), pages)
        else:
            _emit(map(difference_object, pages), output, pages)


class Pages:
    """The entries of all pages of `read(after, amount)`, up to `most`; `more`: there are more behind `last`."""

    def __init__(self, read: Callable[[bytes, int], EntryListing], after: bytes, most: int | None) -> None:
        self._read = read
        self._most = most
        self.last = after
        self.more = False

    def __iter__(self) -> Iterator[Any]:
        left = self._most
        while left is None or left > 0:
            found = self._read(self.last, MOST_LISTED if left is None else min(left, MOST_LISTED))
            for entry in found.entries:
                self.last = entry.key
                yield entry
            self.more = found.more
            if not found.more or not found.entries:
                return
            left = None if left is None else left - len(found.entries)


def listed_object(listed: Listed) -> dict[str, Any]:
    """An entry of a listing with exact values: a record, or a common prefix."""
    if listed.value is None:
        return text_fields("prefix", listed.key)
    return {**text_fields("key", listed.key), **value_object(listed.value)}


def difference_object(difference: RecordDifference) -> dict[str, Any]:
    """A difference with exact values; a side without a value is None."""
    left, right = (None if value is None else value_object(value) for value in (difference.left, difference.right))
    return {**text_fields("key", difference.key), "kind": difference.kind.name.lower(), "left": left, "right": right}


def _table_row(listed: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"key": shown_key(listed.key)}
    if listed.value is None:
        return row
    shown = value_object(listed.value)
    entry = shown.get("entry")
    size = len(parts_of(listed.value)[1]) if entry is None else entry["size"]
    kind = "value" if entry is None else entry["contentType"] or "entry"
    return row | {"identity": shown["identity"], "size": size, "contentType": kind}


def _show(rows: list[dict[str, Any]], columns: Sequence[OutputColumn], words: str, pages: Pages) -> None:
    if rows:
        print_table(rows, columns)
    click.echo(f"{words}, more with --after {shown_key(pages.last)!r} or --all" if pages.more else words)


def _emit(rows: Iterator[dict[str, Any]], output: OutputFormat, pages: Pages) -> None:
    if output is OutputFormat.JSONL:
        stream(rows, output, columns=())
        return
    items = list(rows)
    emit({"items": items, "more": pages.more}, output)
