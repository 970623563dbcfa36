"""Options that select a block store, and how times and sort keys are written; no secret is an option."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from compaction.api.text.printing import printable
from compaction.blocks.errors import NoBlockStoreError
from compaction.blocks.model import SECOND
from compaction.blocks.owners import IDENTITY_PATH, FolderOwners
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.cli.places import (
    PATIENCE,
    STORE_OPTIONS,
    Command,
    check_database,
    is_given,
    options_of,
    place_options,
    policy_options,
    refuse_password,
)
from compaction.storage.errors import ObjectPathError
from compaction.storage.objects.store import ObjectStorage, open_objects
from compaction.storage.opened import explaining

if TYPE_CHECKING:
    from compaction.api.policy.policy import CompactionPolicy


# Options that select a block store; secrets come from the environment and from files only.
#
# A folder needs nothing else: its index is SQLite at FOLDER/_compaction/index.db. Any other store needs the URL of
# its index too, or a policy that names the Secrets of both.

STORE_VARIABLE: Final = "COMPACTION_STORE_URL"
INDEX_VARIABLE: Final = "COMPACTION_INDEX_URL"
EMBEDDED_INDEX: Final = "_compaction/index.db"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The place of a store, and the policy that describes it, if any. `may_be_new`: the command may begin the store."""

    connection: BlockStoreConnection
    may_be_new: bool = False
    policy: CompactionPolicy | None = None

    @property
    def url(self) -> str:
        """Of the objects, without anything secret."""
        return self.connection.url

    @property
    def folder(self) -> Path | None:
        """The store's folder; None for an object store."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme == "file":
            return Path(urllib.parse.unquote(parts.path))
        return None if parts.scheme else Path(self.url).absolute()

    @property
    def uri(self) -> str:
        """The URL in full: a folder too has a scheme."""
        return self.url if self.folder is None else Path(os.path.normpath(self.folder)).as_uri()

    @contextmanager
    def open(self) -> Iterator[BlockStore]:
        """The store, closed at the end.

        Raises:
            NoBlockStoreError: there is none where a folder or file is named, and the command must not begin one.
            BlockStoreError: see `BlockStore.open`.
        """
        self.check()
        with explaining(self.connection.address):
            store = BlockStore.open(self.connection, patience=PATIENCE)
            try:
                yield store
            finally:
                store.close()
                tell_skipped(store.objects)

    def path_of(self, uri: str) -> str:
        """The path below the store's root that a URL or path means; of a folder without its last slash.

        Raises ObjectPathError: it lies elsewhere.
        """
        parts, folder = urllib.parse.urlsplit(uri), self.folder
        if folder is not None and (parts.scheme == "file" or uri.startswith("/")):
            target = Path(urllib.parse.unquote(parts.path) if parts.scheme else uri)
            if target.is_relative_to(folder):
                return "" if target == folder else str(target.relative_to(folder))
            raise ObjectPathError(uri, f"lies outside of the store {folder}: blocks are registered where they are")
        if not parts.scheme:
            return uri.rstrip("/")
        root = self.url.rstrip("/")
        if uri.rstrip("/") == root:
            return ""
        if not uri.startswith(f"{root}/"):
            raise ObjectPathError(uri, f"lies outside of the store {root}: blocks are registered where they are")
        return uri.removeprefix(f"{root}/").rstrip("/")

    def check(self) -> None:
        """A mistyped folder must not become a store, nor a mistyped index an empty one.

        Raises NoBlockStoreError; ForeignFileError, before anything is written, when a table or another store is there.
        """
        if self.may_be_new and self.folder is not None and not (self.folder / IDENTITY_PATH).exists():
            FolderOwners(open_objects(self.url)).refuse_new_store()
        check_database(
            self.connection.index_url,
            may_be_new=self.may_be_new,
            absent=NoBlockStoreError,
            remedy="there is no index here: name a store that has one, or begin one by registering blocks "
            "(`compactor blocks register`)",
        )


def tell_skipped(objects: ObjectStorage) -> None:
    """Name on standard error what listings of a folder have passed over."""
    for path, reason in sorted(objects.skipped.items()):
        click.echo(printable(f"skipped: {path}: {reason}"), err=True)


def store_options(*, may_be_new: bool = False) -> Callable[[Command], Command]:
    """The options that name a store, passed to the command as `place: StorePlace`."""

    def place_of(store: str | None, index: str | None, store_options: Path | None) -> StorePlace:
        return StorePlace(_connection(store, index, store_options), may_be_new)

    def place_of_policy(source: TextIO, *, wanted: str | None, directory: Path | None) -> StorePlace:
        # The models of policies take longer to import than a command without one takes to answer.
        from compaction.blocks.cli.policy import connection_of

        policy, connection = connection_of(source, wanted=wanted, directory=directory)
        return StorePlace(connection, may_be_new, policy)

    return place_options(_OPTIONS, place_of, place_of_policy, what="store")


_OPTIONS: Final = (
    click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        help=f"The store: a folder, or s3://bucket/prefix, gs://..., az://...; default: {STORE_VARIABLE}.",
    ),
    click.option(
        "--index",
        metavar="URL",
        envvar=INDEX_VARIABLE,
        help=f"Its index: sqlite:///FILE, or postgresql://HOST/DATABASE; with a password only in {INDEX_VARIABLE}. "
        f"Default for a folder: {EMBEDDED_INDEX} in it.",
    ),
    STORE_OPTIONS,
    *policy_options("store and index"),
)


def _connection(store: str | None, index: str | None, options: Path | None) -> BlockStoreConnection:
    if not store:
        raise click.UsageError(f"which store? Give --store FOLDER or --store URL, or set {STORE_VARIABLE}")
    if index:
        refuse_password("index", index, INDEX_VARIABLE)
    return BlockStoreConnection(
        store,
        index or _embedded_index(store),
        options_of(options),
        options_from=str(options or ""),
        index_from="--index" if is_given("index") else INDEX_VARIABLE,
    )


def _embedded_index(store: str) -> str:
    parts = urllib.parse.urlsplit(store)
    if parts.scheme not in {"", "file"}:
        raise click.UsageError(
            f"an object store has no place for its index: set {INDEX_VARIABLE}, or give --index without a password"
        )
    folder = Path(urllib.parse.unquote(parts.path) if parts.scheme else store).absolute()
    if "?" in str(folder):
        raise click.UsageError("an index cannot lie in a folder with '?' in its name: give --index too")
    return f"sqlite:///{folder / EMBEDDED_INDEX}"


# Times of data on the command line: epoch microseconds inside, RFC 3339 in UTC for people and for machines.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HELP: Final = (
    "write a date (2026-11-21), a time in UTC (2026-11-21T10:30:00Z, also with an offset such as +01:00) or epoch "
    "microseconds"
)


class TimeParameter(click.ParamType[int]):
    """`2026-11-21`, `2026-11-21T10:30:00.5Z`, `2026-11-21T11:30+01:00` or epoch microseconds; without an offset UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return microseconds_of(str(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: {_HELP}", param, ctx)


def microseconds_of(text: str) -> int:
    """Epoch microseconds. Raises ValueError, OverflowError."""
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        number = int(text) if len(text) < 20 else 1 << 63
        if abs(number) >= 1 << 63:
            raise ValueError("more than 64 bits")
        return number
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def time_text(microseconds: int | None) -> str | None:
    """`2026-11-21T10:30:00.500000Z`, exact; a number outside of the years 1 to 9999; None for None."""
    if microseconds is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        # The index holds 64-bit numbers, and `datetime` ends with the year 9999: the number itself is shown.
        return str(microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def short_time(text: str | None) -> str:
    """Return `time_text` as a table shows it: whole seconds; `-` for None."""
    return "-" if text is None else text.partition(".")[0] + ("Z" if "." in text else "")


def age(since: int, now: int) -> int:
    """Whole seconds between two times in microseconds, never negative."""
    return max(0, (now - since) // SECOND)


class SortKeyParameter(click.ParamType[tuple[str, ...]]):
    """`series,ts`: names of columns, each once, the first sorts first."""

    name = "columns"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(str(value).split(","))
        if not all(names) or len(set(names)) != len(names):
            self.fail("write names of columns, each once, such as series,ts", param, ctx)
        return names
