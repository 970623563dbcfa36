"""Sources that cannot be merged: which block an error is about, and what is wrong with it.

A source may have been fine when it was registered and be gone, cut off, damaged or another object now. The job that
compacts it quarantines it under the reason given here and goes on with its siblings. What is about the store as a whole
(access, no answer) is about no source.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from compaction.blocks.errors import BlockFormatError, BlockStoreError, MergeMemoryError, UnreadableBlockError
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.model import Block
from compaction.storage.errors import ObjectChangedError, ObjectMissingError, ObjectTruncatedError, StorageError
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import defect, lack_of


class SourceFault(StrEnum):
    """Why a source is quarantined; the reason that stands in the quarantine."""

    MISSING = "SourceMissing"
    CORRUPT = "SourceCorrupt"
    """Cut off, damaged, or no Parquet file."""
    FOREIGN = "SourceForeign"
    """A sound file, and not the one that was registered."""
    TOO_LARGE = "SourceTooLarge"
    """One of its row groups alone takes more memory than a merge may use: raise the limit and release it."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A source (`path`) that cannot be merged."""

    path: str
    fault: SourceFault
    message: str


def culprit_of(error: BlockStoreError | StorageError) -> Culprit | None:
    """The object that an error is about, if it is about one as it lies there."""
    match error:
        case ObjectMissingError():
            return Culprit(error.path, SourceFault.MISSING, str(error))
        case ObjectChangedError():
            return Culprit(error.path, SourceFault.FOREIGN, str(error))
        case ObjectTruncatedError() | BlockFormatError():
            return Culprit(error.path, SourceFault.CORRUPT, str(error))
        case UnreadableBlockError():
            return Culprit(error.block, SourceFault.CORRUPT, str(error))
        case MergeMemoryError():
            return Culprit(error.block, SourceFault.TOO_LARGE, str(error))
    return None


def read_source_footer(objects: ObjectStorage, block: Block) -> BlockFooter | Culprit:
    """The footer of a source, when the object is, by its size and footer, the one that was registered.

    Raises ObjectError for what is about the store as a whole.
    """
    try:
        footer = read_footer(objects, block.path, look=False)
    except (BlockStoreError, StorageError) as error:
        culprit = culprit_of(error)
        if culprit is None:
            raise
        return culprit
    except Exception as error:
        if lack := lack_of(error, block.path):
            raise lack from error
        return broken(block, error)
    if (footer.info.size, footer.rows) != (block.bytes, block.rows):
        found = f"{footer.info.size} bytes and {footer.rows} rows"
        return foreign(block, f"it has {found}, not {block.bytes} bytes and {block.rows} rows")
    return footer


def broken(block: Block, error: Exception) -> Culprit:
    """For a source on which reading fails for a reason that no code expects."""
    return Culprit(block.path, SourceFault.CORRUPT, f"{block.path}: cannot be read: {defect(error, block.path)}")


def foreign(block: Block, detail: str) -> Culprit:
    """For a sound file that is not the one that was registered."""
    return Culprit(block.path, SourceFault.FOREIGN, f"{block.path}: not the object that was registered: {detail}")
