"""The schemas of a store's blocks: from the index, and of older blocks from a footer.

Blocks that were registered before the index kept schemas have an id of theirs only. One footer tells what it means for
all of its blocks, and is read once: the index keeps it from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog

from compaction.blocks.errors import BlockFormatError
from compaction.blocks.format.footer import read_footer
from compaction.blocks.index.live_blocks import inspect
from compaction.blocks.index.rows import add_schemas, read_schemas
from compaction.blocks.schema.classes import schema_of_text, schema_text
from compaction.blocks.store import BlockStore
from compaction.errors import CompactionError
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectTruncatedError
from compaction.unexpected import defect, lack_of

log = structlog.get_logger(__name__)

READ_AT_ONCE: Final = 8
_OF_THE_OBJECT: Final = (BlockFormatError, ObjectChangedError, ObjectMissingError, ObjectTruncatedError)


@dataclass(slots=True)
class SchemaBook:
    """The schemas of one store. What was found is remembered; what was not is looked for again. `keeps`: what is learnt
    from footers goes into the index.
    """

    store: BlockStore
    keeps: bool = True
    _known: dict[str, pa.Schema] = field(default_factory=dict)

    def look_up(self, examples: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Schema]:
        """The schemas by id, those excepted that nothing tells. `examples`: ids of blocks that have each.

        Raises ObjectError for what is about the store as a whole, DatabaseError.
        """
        self._read_index([name for name in examples if name not in self._known])
        missing = {name: blocks for name, blocks in examples.items() if name not in self._known}
        if missing:
            with ThreadPoolExecutor(max(1, min(READ_AT_ONCE, len(missing)))) as pool:
                found = list(pool.map(lambda item: self._read_footer(*item), missing.items()))
            learnt = {name: schema for name, schema in zip(missing, found, strict=True) if schema is not None}
            self._known |= learnt
            if self.keeps:
                add_schemas(self.store.index, {name: schema_text(schema) for name, schema in learnt.items()})
        return {name: self._known[name] for name in examples if name in self._known}

    def _read_index(self, names: Sequence[str]) -> None:
        for name, text in read_schemas(self.store.index, names).items():
            try:
                self._known[name] = schema_of_text(text)
            except ValueError as error:
                log.warning("a schema in the index cannot be read; a footer is", schema=name, error=str(error))

    def _read_footer(self, name: str, blocks: Sequence[str]) -> pa.Schema | None:
        """The schema of the first of the blocks whose object still is what was registered."""
        for block in blocks:
            record = inspect(self.store.index, block)
            if record is None:
                continue
            try:
                footer = read_footer(self.store.objects, record.block.path)
            except _OF_THE_OBJECT as error:
                # Another block of the same schema may have a footer that can be read.
                log.info("a footer tells no schema", block=block, error=str(error))
                continue
            except CompactionError:
                # Of the store as a whole: the other blocks would fail the same.
                raise
            except Exception as error:
                if lack := lack_of(error, record.block.path):
                    raise lack from error
                log.info("a footer tells no schema", block=block, error=defect(error, record.block.path))
                continue
            if footer.schema_id == name:
                return footer.schema
        return None
