"""The forms in which blocks are shown: columns for tables, objects for json and yaml."""

from __future__ import annotations

from typing import Any

from compaction.api.text.printing import plural
from compaction.blocks.cli.options import short_time, time_text
from compaction.blocks.index.live_blocks import BlockRecord
from compaction.blocks.index.tombstones import BlockTombstone, Expired
from compaction.blocks.model import Block
from compaction.blocks.planning.batches import SchemaConflict
from compaction.cli.output import OutputColumn, optional, optional_bytes

BLOCK_COLUMNS = (
    OutputColumn("id", "Block"),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("shard", "Shard", right=True),
    OutputColumn("level", "Level", right=True),
    OutputColumn("minTime", "From", short_time),
    OutputColumn("maxTime", "To", short_time),
    OutputColumn("rows", "Rows", right=True),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
)
WIDE_COLUMNS = (
    *BLOCK_COLUMNS,
    OutputColumn("path", "Path"),
    OutputColumn("sortKey", "Sorted by", lambda names: ",".join(names) or "-"),
    OutputColumn("schema", "Schema"),
    OutputColumn("fingerprint", "Content"),
)
TOMBSTONE_COLUMNS = (
    OutputColumn("block", "Block"),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("reason", "Reason"),
    OutputColumn("job", "Job", optional),
    OutputColumn("since", "Since", short_time),
    OutputColumn("due", "Due", short_time),
    OutputColumn("attempts", "Failed", right=True),
)
WIDE_TOMBSTONE_COLUMNS = (*TOMBSTONE_COLUMNS, OutputColumn("path", "Path"), OutputColumn("error", "Error", optional))
EXPIRED_COLUMNS = (
    OutputColumn("block", "Block"),
    OutputColumn("tenant", "Tenant"),
    OutputColumn("bytes", "Bytes", optional_bytes, right=True),
    OutputColumn("job", "Taken from", optional),
)


def block_object(block: Block) -> dict[str, Any]:
    """A block with exact values."""
    return {
        "id": block.id,
        "tenant": block.tenant,
        "shard": block.shard,
        "level": block.level,
        "path": block.path,
        "minTime": time_text(block.min_time),
        "maxTime": time_text(block.max_time),
        "rows": block.rows,
        "bytes": block.bytes,
        "fingerprint": str(block.fingerprint),
        "sortKey": list(block.sort_key),
        "schema": block.schema_id,
    }


def record_object(record: BlockRecord) -> dict[str, Any]:
    """All that the index knows about a block."""
    reason, message = record.quarantined or (None, None)
    return {
        **block_object(record.block),
        "state": record.state.value,
        "queuedAt": time_text(record.queued_at),
        "job": record.job,
        "changedAt": time_text(record.changed_at),
        "quarantine": None if reason is None else {"reason": reason, "message": message},
        "ended": record.ended,
    }


def conflict_object(conflict: SchemaConflict) -> dict[str, Any]:
    """Blocks that their schemas keep apart, with exact values."""
    return {
        "tenant": conflict.tenant,
        "schemas": conflict.schemas,
        "columns": list(conflict.columns),
        "blocks": conflict.blocks,
        "alone": conflict.alone,
        "message": str(conflict),
    }


def at_rest(alone: int) -> str:
    """Blocks that no merge is for until others come."""
    stay = "stays as it is" if alone == 1 else "stay as they are"
    return f"{plural(alone, 'block')} {stay} until others come to be merged with"


def tombstone_object(tombstone: BlockTombstone, *, grace: int | None) -> dict[str, Any]:
    """A block that waits for its deletion; `grace` in microseconds, None: unknown."""
    return {
        "block": tombstone.block,
        "path": tombstone.path,
        "tenant": tombstone.tenant,
        "bytes": tombstone.bytes,
        "reason": tombstone.reason.value,
        "job": tombstone.job,
        "since": time_text(tombstone.since),
        "due": None if grace is None else time_text(tombstone.since + grace),
        "attempts": tombstone.attempts,
        "error": tombstone.error,
    }


def expired_object(expired: Expired) -> dict[str, Any]:
    """A block that is older than it is kept; `job`: the open job that it is taken from."""
    return {"block": expired.block, "tenant": expired.tenant, "bytes": expired.bytes, "job": expired.job}
