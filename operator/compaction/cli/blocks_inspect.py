"""`compactor blocks inspect`: all that is known about one block."""

from __future__ import annotations

from typing import Any

import click

from compaction.api.formatting import format_bytes, plural
from compaction.api.text import cut
from compaction.cli.blocks_options import StorePlace, store_options
from compaction.cli.blocks_shapes import record_object
from compaction.cli.blocks_times import time_text
from compaction.cli.blocks_why import why_not_merged
from compaction.cli.errors import EXIT_DATA_ERROR, report
from compaction.cli.output import OutputFormat, emit, output_option, print_pairs
from compaction.exceptions import BlockFormatError, ObjectError, UnknownBlockError
from compaction.stores.blocks.footer import Footer, read_footer
from compaction.stores.blocks.index.listing import BlockRecord
from compaction.stores.blocks.index.tables import BlockState
from compaction.stores.blocks.model import SECOND
from compaction.stores.blocks.objects import Objects

_SHOWN_COLUMNS = 40
_SHOWN_TEXT = 120


@click.command()
@click.argument("block", metavar="ID")
@store_options()
@output_option()
@click.pass_context
def inspect(context: click.Context, *, block: str, place: StorePlace, output: OutputFormat) -> None:
    """Show what the index knows about a block, why it is not merged now, and what its object says: row groups, columns,
    who made it of what. The rules are those of the policy (-f), or the defaults.

    An object that is missing or damaged is named; the exit code is then 1.
    """
    with place.open() as store:
        record = store.inspect(block)
        if record is None:
            raise UnknownBlockError(block, "unknown: it was never registered, or is forgotten since its deletion")
        found, problem = _object(store.objects, record)
        why = why_not_merged(store, record, place.policy)
    data = record_object(record) | {"notMerged": why, "object": found}
    if output is OutputFormat.TABLE:
        _print(data)
    else:
        emit(data, output)
    if problem is not None:
        report(problem)
        context.exit(EXIT_DATA_ERROR)


def _object(
    objects: Objects, record: BlockRecord
) -> tuple[dict[str, Any] | None, BlockFormatError | ObjectError | None]:
    """What lies at the block's path. That nothing does is right once the block is tombstoned."""
    try:
        return _footer(read_footer(objects, record.block.path)), None
    except (BlockFormatError, ObjectError) as error:
        return None, error if record.state is BlockState.LIVE else None


def _footer(footer: Footer) -> dict[str, Any]:
    return {
        "bytes": footer.info.size,
        "modified": time_text(int(footer.info.modified.timestamp() * SECOND)),
        "etag": footer.info.etag,
        "rows": footer.rows,
        "rowGroups": len(footer.row_groups),
        "schema": footer.schema_id,
        "columns": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in footer.schema
        ],
        "metadata": dict(sorted(footer.metadata.items())),
    }


def _print(data: dict[str, Any]) -> None:
    found, quarantine, why = data.pop("object"), data.pop("quarantine"), data.pop("notMerged")
    data["sortKey"] = ", ".join(data["sortKey"]) or None
    pairs = [(name, "-" if value is None else str(value)) for name, value in data.items()]
    if quarantine is not None:
        pairs.append(("quarantine", f"{quarantine['reason']}: {quarantine['message']}"))
    if why is not None:
        pairs.append(("notMerged", f"{why['reason']}: {why['message']}"))
    if found is None:
        print_pairs([*pairs, ("object", "not readable")])
        return
    pairs += [("object", f"{format_bytes(found['bytes'])}, {plural(found['rowGroups'], 'row group')}")]
    shown = [f"{one['name']} {one['type']}" for one in found["columns"][:_SHOWN_COLUMNS]]
    more = len(found["columns"]) - len(shown)
    pairs.append(("columns", ", ".join(shown) + (f" and {more} more" if more else "")))
    pairs += [(name, cut(value, _SHOWN_TEXT)) for name, value in found["metadata"].items()]
    print_pairs(pairs)
