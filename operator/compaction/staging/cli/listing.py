"""`compactor staging ls` and `diff`: what references show, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import click

from compaction.api.text.formatting import plural
from compaction.cli.histories.texts import text_fields
from compaction.cli.output import (
    Column,
    OutputFormat,
    emit,
    optional,
    optional_bytes,
    output_option,
    print_table,
    stream,
)
from compaction.staging.cli.objects import KeyParameter
from compaction.staging.cli.options import StagingPlace, staging_options
from compaction.staging.cli.values import parts_of, shown_key, value_object
from compaction.staging.flows.reading import MOST_LISTED, Difference, Listed, Reader

DEFAULT_AMOUNT: Final = 1000
LIST_COLUMNS: Final = (
    Column("key", "Key"),
    Column("identity", "Identity", lambda text: text[:16] if text else "-"),
    Column("size", "Size", optional_bytes, right=True),
    Column("contentType", "Type", optional),
)
DIFF_COLUMNS: Final = (Column("kind", "Change"), Column("key", "Key"))


class Entries(Protocol):
    """A page of entries; each has a key."""

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def more(self) -> bool: ...


P = TypeVar("P", bound=Entries)

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
            rows = [_table_row(one) for one in pages]
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
            rows = [{"kind": one.kind.name.lower(), "key": shown_key(one.key)} for one in pages]
            _show(rows, DIFF_COLUMNS, plural(len(rows), "difference"), pages)
        else:
            _emit(map(difference_object, pages), output, pages)


class Pages:
    """The entries of all pages of `read(after, amount)`, up to `most`; `more`: there are more behind `last`."""

    def __init__(self, read: Callable[[bytes, int], Entries], after: bytes, most: int | None) -> None:
        self._read = read
        self._most = most
        self.last = after
        self.more = False

    def __iter__(self) -> Iterator[Any]:
        left = self._most
        while left is None or left > 0:
            found = self._read(self.last, MOST_LISTED if left is None else min(left, MOST_LISTED))
            for one in found.entries:
                self.last = one.key
                yield one
            self.more = found.more
            if not found.more or not found.entries:
                return
            left = None if left is None else left - len(found.entries)


def listed_object(one: Listed) -> dict[str, Any]:
    """An entry of a listing with exact values: a record, or a common prefix."""
    if one.value is None:
        return text_fields("prefix", one.key)
    return {**text_fields("key", one.key), **value_object(one.value)}


def difference_object(one: Difference) -> dict[str, Any]:
    """A difference with exact values; a side without a value is None."""
    left, right = (None if value is None else value_object(value) for value in (one.left, one.right))
    return {**text_fields("key", one.key), "kind": one.kind.name.lower(), "left": left, "right": right}


def _table_row(one: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"key": shown_key(one.key)}
    if one.value is None:
        return row
    shown = value_object(one.value)
    entry = shown.get("entry")
    size = len(parts_of(one.value)[1]) if entry is None else entry["size"]
    kind = "value" if entry is None else entry["contentType"] or "entry"
    return row | {"identity": shown["identity"], "size": size, "contentType": kind}


def _show(rows: list[dict[str, Any]], columns: Sequence[Column], words: str, pages: Pages) -> None:
    if rows:
        print_table(rows, columns)
    click.echo(f"{words}, more with --after {shown_key(pages.last)!r} or --all" if pages.more else words)


def _emit(rows: Iterator[dict[str, Any]], output: OutputFormat, pages: Pages) -> None:
    if output is OutputFormat.JSONL:
        stream(rows, output, columns=())
        return
    items = list(rows)
    emit({"items": items, "more": pages.more}, output)
