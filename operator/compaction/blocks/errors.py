"""Errors of block stores. Arguments are positional and kept in `args`, so they survive pickling."""

from __future__ import annotations

from compaction.errors import CompactionError


class BlockIdError(CompactionError):
    """Ids of blocks that no job can be named or made of; says what an id looks like."""


class BlockStoreError(CompactionError):
    """Anything wrong with a block store: its objects, the format of its blocks, its index, a merge."""


class BlockFormatError(BlockStoreError):
    """An object (`path`) that cannot be a block as it is; `reason` says what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CorruptBlockError(BlockFormatError):
    """No Parquet file, or one that contradicts itself: truncated, damaged, or of another kind."""

    def __str__(self) -> str:
        return f"{self.path}: corrupt block: {self.reason}"


class UnsuitableBlockError(BlockFormatError):
    """A sound Parquet file that cannot be a block: no time column, a name twice, encrypted, too large a footer."""


class UnexpectedBlockError(UnsuitableBlockError):
    """A file that this program fails on for a reason that no code expects: a defect of ours, not of the store."""


class UnknownOutputError(UnsuitableBlockError):
    """A compaction (`job`) wrote the block, and the index knows neither: the block is of another store, or the index
    was lost.
    """

    def __init__(self, path: str, job: str) -> None:
        super().__init__(
            path,
            f"compaction {job[:80]!r} wrote it, the index of this store knows neither of them, so no reader sees its "
            f"rows: where the store was copied or its index lost, make an index of all that lies there with compactor "
            f"blocks rebuild-index and the URL of an empty database (docs/block-stores.md, The index is lost)",
        )


class ForeignFileError(UnsuitableBlockError):
    """A file that belongs to a table format or to another block store: its owner compacts and deletes it, never we."""


class NoBlockIdError(UnsuitableBlockError):
    """A file whose name is not that of a block, so that it needs an id of its own."""


class InvalidTenantError(BlockStoreError):
    """A tenant's name that cannot be part of a path: empty, or too long."""


class UnsupportedColumnError(BlockStoreError):
    """A column that blocks cannot have: `column` is its path, `reason` its type or what else is wrong with it."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"column {self.column[:200]!r} cannot be part of a block: {self.reason[:200]}"


class NoBlockStoreError(BlockStoreError):
    """There is no block store at the location given to a command."""


class IndexMismatchError(BlockStoreError):
    """The objects (`store`, a URL without credentials) and the index (`index`) do not belong together."""

    def __init__(self, store: str, index: str, reason: str) -> None:
        super().__init__(store, index, reason)
        self.store = store
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.store} and {self.index}: {self.reason}"


class SnapshotExpiredError(BlockStoreError):
    """The blocks that were live at that instant (of `what`: an index, or an object) are gone or forgotten: it is too
    long ago.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}: take a new snapshot"


class InvalidBlockError(BlockStoreError):
    """The file to be registered cannot be a block (`block`: its id). The message names the field."""

    def __init__(self, block: str, reason: str) -> None:
        super().__init__(block, reason)
        self.block = block
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.block}: {self.reason}"


class BlockConflictError(InvalidBlockError):
    """The id or the path is known already, with another content: blocks never change, so one of both is wrong."""


class UnknownBlockError(BlockStoreError):
    """No such block, or not in the state that the call is for (`state`)."""

    def __init__(self, block: str, state: str) -> None:
        super().__init__(block, state)
        self.block = block
        self.state = state

    def __str__(self) -> str:
        return f"block {self.block} is {self.state}"


class JobRefusedError(BlockStoreError):
    """The index refused something for a job, and nothing was changed; `reason` is a `Refusal`."""

    def __init__(self, job: str, reason: str, detail: str) -> None:
        super().__init__(job, reason, detail)
        self.job = job
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"job {self.job}: {self.detail}; nothing was changed"


class BlockClaimError(JobRefusedError):
    """A job cannot have the blocks it is to replace: plan again."""


class ReplaceRefusedError(JobRefusedError):
    """A result cannot be committed: the attempt is fenced, late, or not what was claimed. Its outputs are orphans."""


class MergeError(BlockStoreError):
    """Blocks cannot be merged, or not as asked."""


class SchemaConflictError(MergeError):
    """A column whose types in two blocks have no common one that holds both exactly."""

    def __init__(self, column: str, block: str, kind: str, other_block: str, other_kind: str) -> None:
        super().__init__(column, block, kind, other_block, other_kind)
        self.column = column
        self.block = block
        self.other_block = other_block

    def __str__(self) -> str:
        column, block, kind, other_block, other_kind = self.args
        return (
            f"column {column}: {block} has {kind}, {other_block} has {other_kind}: these cannot be merged; rewrite one "
            f"of the two with the type of the other, or keep them in different shards"
        )


class SortKeyError(MergeError):
    """The sort key cannot order the rows: a column that no block has, or of a type without an order."""


class UnreadableBlockError(MergeError):
    """A block (`block`) that cannot be read as Parquet, or not to its end; `reason`: what the reader said."""

    def __init__(self, block: str, reason: str) -> None:
        super().__init__(block, reason)
        self.block = block
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.block}: cannot be read as Parquet: {self.reason}"


class BlockNotSortedError(MergeError):
    """A block (`block`) that says it is sorted by the key, and is not: it can be merged when it is sorted first."""

    def __init__(self, block: str) -> None:
        super().__init__(block)
        self.block = block

    def __str__(self) -> str:
        return f"{self.block}: its rows are not in the order that its metadata says; it must be sorted before a merge"


class MergeMemoryError(MergeError):
    """The memory limit is too small for a merge of even two blocks: names the block, what it needs and the limit."""

    def __init__(self, block: str, needed: int, limit: int, purpose: str = "to read") -> None:
        super().__init__(block, needed, limit, purpose)
        self.block = block

    def __str__(self) -> str:
        block, needed, limit, purpose = self.args
        return f"{block}: takes {needed} bytes of memory {purpose}, {limit} are allowed for it: raise the memory limit"


class BlockVerificationError(MergeError):
    """The output that was written does not read back as the rows that were read; nothing is committed. The message has
    both fingerprints.
    """

    def __init__(self, output: str, expected: str, found: str) -> None:
        super().__init__(output, expected, found)
        self.output = output

    def __str__(self) -> str:
        output, expected, found = self.args
        return f"{output}: reads back as {found}, the sources are {expected} (rows:content): nothing is committed"


class LogicalTypeLostError(MergeError):
    """A column of a block (`block`) that would not mean what it does in there: says its logical type, and which."""

    def __init__(self, block: str, column: str, kind: str, written: str) -> None:
        super().__init__(block, column, kind, written)
        self.block = block
        self.reason = (
            f"column {column} is {kind} and would be written as {written}, so it cannot be merged: leave the file out, "
            f"or write the column as a type that is kept (docs/block-stores.md, Schemas)"
        )

    def __str__(self) -> str:
        return f"{self.block}: {self.reason}"
