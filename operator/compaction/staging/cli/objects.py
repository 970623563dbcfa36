"""`compactor staging put` and `rm`: records of a branch are written and deleted."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

import click

from compaction.api.text.printing import plural, printable
from compaction.cli.histories import text_fields
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.staging.cli.options import PairParameter, StagingPlace, staging_options
from compaction.staging.cli.values import bytes_of_hex, entry_value, new_entry, parts_of, raw_value, shown_key
from compaction.staging.flows.area import Area
from compaction.staging.flows.reading import MOST_LISTED, Reader
from compaction.staging.flows.writing import MOST_DELETED, WriteCondition, Writer
from compaction.staging.format.identity import MAX_PART_BYTES

# `compactor staging put` and `rm`: single records of a branch.

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
