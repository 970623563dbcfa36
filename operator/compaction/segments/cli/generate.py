"""`compactor segments generate`: a log to try the other commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from compaction.api.text.formatting import format_bytes
from compaction.cli.output import OutputFormat, emit, output_option
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.model import MAX_COUNT_LIMIT

LARGEST_PAYLOAD = 64 << 20


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--segments", type=click.IntRange(1, 10_000), default=6, show_default=True, help="How many segments.")
@click.option(
    "--entries",
    type=click.IntRange(1, MAX_COUNT_LIMIT),
    default=512,
    show_default=True,
    help="Entries in each segment.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(7, LARGEST_PAYLOAD),
    default=256,
    show_default=True,
    help="Bytes of each entry.",
)
@click.option(
    "--live", type=click.FloatRange(0, 1), default=0.25, show_default=True, help="Fraction of the entries that live."
)
@click.option(
    "--pattern",
    type=click.Choice([one.value for one in Pattern]),
    default=Pattern.STRIDED.value,
    show_default=True,
    help="How live entries lie among dead ones.",
)
@output_option()
def generate(
    *,
    directory: Path,
    segments: int,
    entries: int,
    payload_bytes: int,
    live: float,
    pattern: str,
    output: OutputFormat,
) -> None:
    """Write a log with a snapshot into DIR, which holds no segment yet. The same options write the same bytes.

    Example: compactor segments generate log-a --segments 6
    """
    made = generate_log(
        directory,
        pattern=pattern,
        segments=segments,
        entries_per_segment=entries,
        payload_bytes=payload_bytes,
        live_fraction=live,
    )
    found: dict[str, Any] = {
        "log": str(directory),
        "segments": segments,
        "entries": made.entries,
        "payloadBytes": made.payload_bytes,
        "snapshotIndex": made.snapshot_index,
        "liveEntries": len(made.live),
    }
    if output is not OutputFormat.TABLE:
        emit(found, output)
        return
    click.echo(
        f"{directory}: {segments} segments with {made.entries} entries, {format_bytes(made.payload_bytes)}; "
        f"the snapshot at index {made.snapshot_index} keeps {len(made.live)} of them live"
    )
