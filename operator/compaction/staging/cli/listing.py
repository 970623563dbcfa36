"""`compactor staging list` and `diff`: what references show, page by page, and records in full."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import click

from compaction.api.text.printing import plural
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
from compaction.cli.places import is_given
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.values import parts_of, shown_key, value_object
from compaction.staging.errors import UnknownRefError
from compaction.staging.flows.reading import MOST_LISTED, Listed, Reader, RecordDifference

# Pages: a listing is read page by page, each of one instant.


class EntryListing(Protocol):
    """A page of entries; each has a key."""

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def more(self) -> bool: ...


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


# `compactor staging list` and `diff`.

DEFAULT_AMOUNT: Final = 1000
LIST_COLUMNS: Final = (
    OutputColumn("key", "Key"),
    OutputColumn("identity", "Identity", lambda text: text[:16] if text else "-"),
    OutputColumn("size", "Size", optional_bytes, right=True),
    OutputColumn("contentType", "Type", optional),
)
DIFF_COLUMNS: Final = (OutputColumn("kind", "Change"), OutputColumn("key", "Key"))

_prefix = click.option("--prefix", type=KeyParameter(), default=b"", help="Only keys that begin with this.")
_after = click.option("--after", type=KeyParameter(), default=b"", help="Only keys greater than this.")
_amount = click.option("--amount", type=click.IntRange(1), default=DEFAULT_AMOUNT, show_default=True, help="At most.")
_all = click.option("--all", "everything", is_flag=True, help="All of them, read page by page.")


@click.command("list")
@click.argument("reference", metavar="REF")
@click.argument("keys", metavar="[KEY]...", nargs=-1, type=KeyParameter())
@_prefix
@click.option("--delimiter", type=KeyParameter(), default=b"", help="Show keys with this behind the prefix as one.")
@_after
@_amount
@_all
@click.option("--stage-only", is_flag=True, help="With a KEY: only a value that differs from the commit's.")
@click.option("--raw", is_flag=True, help="With one KEY: write the bytes of the value, and nothing else.")
@staging_options()
@output_option(jsonl=True)
def list_command(
    *,
    reference: str,
    keys: Sequence[bytes],
    stage_only: bool,
    raw: bool,
    place: StagingPlace,
    output: OutputFormat,
    **page: Any,
) -> None:
    """List the records of REF in the order of their keys' bytes, or show the records of the KEYs in full.

    REF is `main` with its uncommitted changes, `main@` without, a tag, a commit, `v1~2`. Each page of 1,000 is of one
    instant.

    Example: compactor staging list main --prefix logs/ --delimiter / --repo logs
    """
    _check_list(keys, stage_only=stage_only, raw=raw)
    with place.area() as area:
        if keys:
            _show_records(Reader(area), reference, keys, output, stage_only=stage_only, raw=raw)
        else:
            _list(Reader(area), reference, output, **page)


def _check_list(keys: Sequence[bytes], *, stage_only: bool, raw: bool) -> None:
    """Options of a listing with keys, and those of records without them, are wrong usage."""
    if raw and len(keys) != 1:
        raise click.UsageError("--raw writes one value: give exactly one KEY")
    if stage_only and not keys:
        raise click.UsageError("--stage-only is of single records: give a KEY")
    flags = {"prefix": "prefix", "delimiter": "delimiter", "after": "after", "amount": "amount", "everything": "all"}
    for name, flag in flags.items():
        if keys and is_given(name):
            raise click.UsageError(f"--{flag} is of a listing: leave it out, or the KEYs")


def _list(
    reader: Reader,
    reference: str,
    output: OutputFormat,
    *,
    prefix: bytes,
    delimiter: bytes,
    after: bytes,
    amount: int,
    everything: bool,
) -> None:
    def page(after: bytes, amount: int) -> Any:
        return reader.list(reference, prefix=prefix, delimiter=delimiter, after=after, amount=amount)

    pages = Pages(page, after, None if everything else amount)
    if output is OutputFormat.TABLE:
        rows = [_table_row(page) for page in pages]
        _show(rows, LIST_COLUMNS, plural(len(rows), "entry", "entries"), pages)
    else:
        _emit(map(listed_object, pages), output, pages)


def _show_records(
    reader: Reader, reference: str, keys: Sequence[bytes], output: OutputFormat, *, stage_only: bool, raw: bool
) -> None:
    """Show records in full. UnknownRefError: one of the keys is not there; nothing is shown then."""
    # All are read before the first is shown: a script that reads the output gets all of them or none.
    values = [_value_of(reader, reference, key, stage_only=stage_only) for key in keys]
    if raw:
        # Bytes as they are stored: a text stream would encode them.
        sys.stdout.buffer.write(parts_of(values[0])[1])
        return
    rows = [{**text_fields("key", key), **value_object(value)} for key, value in zip(keys, values, strict=True)]
    if output is OutputFormat.TABLE:
        for number, row in enumerate(rows):
            if number:
                click.echo()
            emit(row | row.pop("entry", {}), output)
    elif output is OutputFormat.JSONL:
        emit(rows, output)
    else:
        emit(rows[0] if len(rows) == 1 else {"items": rows}, output)


def _value_of(reader: Reader, reference: str, key: bytes, *, stage_only: bool) -> bytes:
    value = reader.get(reference, key, stage_only=stage_only)
    if value is None:
        raise UnknownRefError("key", f"{shown_key(key)} of {reference}")
    return value


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
            # Only a branch has uncommitted changes: a tag or a commit here is named as no branch.
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
