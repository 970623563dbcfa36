"""`compactor blocks verify`: the objects are read again, row by row, and compared with what the index says of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import click

from compaction.api.text.printing import plural
from compaction.blocks.cli.options import StorePlace, store_options
from compaction.blocks.errors import BlockFormatError, MergeError, UnknownBlockError, UnsupportedColumnError
from compaction.blocks.index.live_blocks import BlockFilter
from compaction.blocks.index.tables import BlockState
from compaction.blocks.model import Block
from compaction.blocks.store import BlockStore
from compaction.cli.lazy import EXIT_DATA_ERROR, report_all
from compaction.cli.output import OutputColumn, OutputFormat, emit, output_option, print_table
from compaction.errors import CompactionError
from compaction.storage.errors import ObjectError, ObjectStoreUnavailableError
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import defect, lack_of

EQUAL, REPLACED, DIFFERENT, UNREADABLE = "equal", "replaced meanwhile", "DIFFERENT", "UNREADABLE"
READ_AT_ONCE: Final = 4
COLUMNS: Final = (
    OutputColumn("id", "Block"),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("rows", "Rows", right=True),
    OutputColumn("verified", "Verified"),
    OutputColumn("message", "Difference"),
)


@click.command()
@click.argument("blocks", metavar="[ID]...", nargs=-1)
@store_options()
@click.option("--tenant", help="Without ids: all live blocks of this tenant, not of all.")
@output_option()
@click.pass_context
def verify(
    context: click.Context, *, blocks: tuple[str, ...], place: StorePlace, tenant: str | None, output: OutputFormat
) -> None:
    """Read live blocks again, all of them or those named, and compare size, schema, rows and content with the index.

    Each difference is named, the other blocks are read all the same; the exit code is then 1. Nothing is changed.
    """
    if blocks and tenant is not None:
        raise click.UsageError("give ids or --tenant, not both")
    with place.open() as store:
        wanted = [_live(store, block) for block in blocks] if blocks else store.live(BlockFilter(tenant=tenant)).blocks
        with ThreadPoolExecutor(READ_AT_ONCE) as pool:
            rows = list(pool.map(partial(_verify, store), wanted))
    equal = sum(row["verified"] == EQUAL for row in rows)
    bad = [row for row in rows if row["verified"] in (DIFFERENT, UNREADABLE)]
    if output is not OutputFormat.TABLE:
        emit({"items": rows, "equal": equal, "bad": len(bad)}, output)
    else:
        if rows:
            print_table(rows, COLUMNS)
        click.echo(f"{plural(len(rows), 'block')} read, {equal} equal to the index, {len(bad)} not")
    report_all([f"block {row['id']}: {row['message']}" for row in bad])
    if bad:
        context.exit(EXIT_DATA_ERROR)


def _live(store: BlockStore, block: str) -> Block:
    record = store.inspect(block)
    if record is None or record.state is not BlockState.LIVE:
        raise UnknownBlockError(block, record.state.value if record is not None else "unknown")
    return record.block


def _verify(store: BlockStore, block: Block) -> dict[str, Any]:
    """Return the outcome of verifying one block. Raises ObjectStoreUnavailableError: then no block can be verified."""
    try:
        differences = _differences(store.objects, block)
        verified = DIFFERENT if differences else EQUAL
    except ObjectStoreUnavailableError:
        # Before ObjectError, which it is one of: an outage says nothing about the block.
        raise
    except (BlockFormatError, ObjectError, MergeError, UnsupportedColumnError) as error:
        differences, verified = [" ".join(str(error).split())], UNREADABLE
    except CompactionError:
        # Of the index or of the store as a whole, and not of this block.
        raise
    except Exception as error:
        # Libraries raise what they like for a damaged file, and the other blocks are to be verified all the same.
        if lack := lack_of(error, block.path):
            raise lack from error
        differences, verified = [defect(error, block.path)], UNREADABLE
    if differences and _ended(store, block):
        # Listed, then replaced, and its grace was over before it was its turn.
        differences, verified = [], REPLACED
    return {
        "id": block.id,
        "tenant": block.tenant,
        "path": block.path,
        "rows": block.rows,
        "verified": verified,
        "message": "; ".join(differences),
    }


def _ended(store: BlockStore, block: Block) -> bool:
    record = store.inspect(block.id)
    return record is None or record.state is not BlockState.LIVE


def _differences(objects: ObjectStorage, block: Block) -> list[str]:
    """Describe the differences between an object and its entry in the index. Raises BlockFormatError, ObjectError,
    UnreadableBlockError.
    """
    # Who asks for help waits for no import of what reads Parquet.
    from compaction.blocks.fingerprint.proof import read_back
    from compaction.blocks.format.footer import read_footer
    from compaction.blocks.format.logical import schema_id, without_readings

    footer = read_footer(objects, block.path)
    # Of a block that was registered before, the schema says nothing of how its INT96 is read.
    known = {footer.schema_id, schema_id(without_readings(footer.schema))}
    found = read_back(block.path, lambda: objects.reader(block.path))
    pairs = (
        ("bytes", footer.info.size, block.bytes),
        ("schema", block.schema_id if block.schema_id in known else footer.schema_id, block.schema_id),
        ("rows", found.rows, block.rows),
        ("content", found, block.fingerprint),
    )
    return [f"{name} {mine}, in the index {theirs}" for name, mine, theirs in pairs if mine != theirs]
