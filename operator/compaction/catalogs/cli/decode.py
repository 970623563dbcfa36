"""`compactor catalogs decode`: values of an update log in the canonical form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from compaction.catalogs.codec import canonical
from compaction.catalogs.codec.codec import decode_exact, encode
from compaction.catalogs.errors import CatalogError, CatalogValueError, CatalogValueSizeError
from compaction.cli.errors import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, output_option, stream

LARGEST: Final = 64 << 20
"""Bytes of a value that are read: far beyond what a log accepts."""


@click.command("decode")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--reencode", is_flag=True, help="Encode each value again, with the newest serializers of its protocol.")
@output_option(default=OutputFormat.JSONL, jsonl=True)
@click.pass_context
def decode_command(context: click.Context, *, files: Sequence[Path], reencode: bool, output: OutputFormat) -> None:
    """Show each FILE, a value of an update log in protocol 1 or 2 of Apache Ignite 3, as a line of canonical JSON.

    A value that is damaged, of an unknown type or version, or that the newest serializers cannot hold (`reencoded` is
    null then), is named on stderr; the others are shown, and the exit code is 1.

    Example: compactor catalogs decode updates/*.bin --reencode
    """
    refused: list[Path] = []
    rows = _rows(files, reencode, refused)
    if output is OutputFormat.JSONL:
        for row in rows:
            click.echo(canonical.text(row))
    else:
        stream(rows, output, columns=())
    if refused:
        context.exit(EXIT_DATA_ERROR)


def _rows(files: Sequence[Path], reencode: bool, refused: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        try:
            found = decode_exact(_read(file), str(file))
        except (CatalogError, OSError, ValueError) as error:
            report(error)
            refused.append(file)
            continue
        row = {"file": str(file), "protocol": found.protocol, "value": canonical.event(found.event)}
        if reencode:
            try:
                row["reencoded"] = encode(found.event, found.protocol).hex()
            except CatalogValueError as error:
                report(f"{file}: {error}")
                refused.append(file)
                row["reencoded"] = None
        yield row


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise CatalogValueSizeError(str(file), LARGEST)
    return data
