"""`spec.store` of a policy: which store is compacted, and its own limits.

A union of which exactly one member is set. Another kind of store is another optional member here, its name in `STORES`,
and its kind in `StoreKind`; nothing is declared before it works.
"""

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.block_store_spec import BlockStore
from compaction.api.enums import Ownership, StoreKind, WhenIndexesMissing
from compaction.api.rules import Checked, Rule, exactly_one_of
from compaction.api.schema_hints import list_atomic
from compaction.api.text import PATH_LIMIT
from compaction.api.values import Quantity

MAX_SOURCES_PER_GROUP: Final = 8
MAX_ENTRIES_PER_SEGMENT: Final = 65535
"""A segment file counts its index slots in 16 bits (research/ra.md §1.1)."""


def _no_parent_step(message: str) -> Rule:
    return Rule(
        cel="!self.matches('(^|/)[.][.](/|$)')", message=message, holds=lambda path: ".." not in path.split("/")
    )


def _relative_to(what: str) -> Rule:
    return Rule(
        cel="!self.startsWith('/')",
        message=f"must be relative to {what}: leave out the leading '/'",
        holds=lambda path: not path.startswith("/"),
    )


_CLOSED_SETS: Final = r"^([^\x5b]|\x5b[^\x5d/]+\x5d)*$"
"""Every [ (5b) begins a set that ends before the next / : the same text is a regular expression for CEL and Python."""
NO_NUL: Final = Rule(
    cel="!self.contains('\\u0000')",
    message="must not contain a NUL character: no path can",
    holds=lambda path: "\0" not in path,
)
ABSOLUTE_PATH: Final = (
    NO_NUL,
    Rule(
        cel="self.startsWith('/')",
        message="must be an absolute path, such as /data/ra",
        holds=lambda path: path.startswith("/"),
    ),
    _no_parent_step("must not contain '..': write the path it leads to"),
)
NOT_THE_FILE_SYSTEM: Final = Rule(
    cel="self.matches('[^/.]')",
    message="must name a directory below /: the whole file system is not a store",
    holds=lambda path: any(character not in "/." for character in path),
)
RELATIVE_GLOB: Final = (
    NO_NUL,
    _relative_to("root"),
    _no_parent_step("must not contain '..': only directories below root are compacted"),
    Rule(
        cel="!self.contains('***')",
        message="must not contain '***': write ** for any depth, * within one name",
        holds=lambda glob: "***" not in glob,
    ),
    Rule(
        cel=f"self.matches('{_CLOSED_SETS}')",
        message="must close every '[' with a ']' in the same name, as in log-[0-9]: write [[] for the character itself",
        holds=lambda glob: re.fullmatch(_CLOSED_SETS, glob) is not None,
    ),
)
RELATIVE_DIRECTORY: Final = (
    NO_NUL,
    _relative_to("the volume"),
    _no_parent_step("must not contain '..'"),
)

Glob = Annotated[str, StringConstraints(min_length=1, max_length=512), Checked(*RELATIVE_GLOB)]


class LogsVolume(ApiModel):
    """The volume that holds segment logs in a cluster."""

    claim_name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Name of the PersistentVolumeClaim in the policy's namespace. Pods of workers mount it at root, for reading and
    writing; the operator's pod needs it at the same path."""
    sub_path: Annotated[str, StringConstraints(max_length=1024), Checked(*RELATIVE_DIRECTORY)] = ""
    """Directory of the volume that is mounted at root, relative. Without it, the whole volume is."""


class SegmentLogsStore(ApiModel):
    """Segment logs in Ra's on-disk format: directories of numbered segment files with snapshots."""

    root: Annotated[
        str, StringConstraints(min_length=1, max_length=PATH_LIMIT), Checked(*ABSOLUTE_PATH, NOT_THE_FILE_SYSTEM)
    ]
    """Directory below which the logs are, as an absolute path where the operator and its workers run."""
    volume: LogsVolume | None = None
    """Volume that workers in pods mount at root. Workers that are processes see what their machine has there."""
    include: Annotated[tuple[Glob, ...], Field(min_length=1, max_length=64), list_atomic()] = ("**",)
    """Patterns of the log directories to compact, relative to root: * within one name, ** over any depth. A directory
    is taken when it matches one of them and holds segment files."""
    exclude: Annotated[tuple[Glob, ...], Field(max_length=64), list_atomic()] = ()
    """Patterns of log directories to leave alone, relative to root. They win over include."""
    max_entries_per_segment: Annotated[int, Field(ge=1, le=MAX_ENTRIES_PER_SEGMENT)] = 4096
    """Entries that a rewritten segment holds at most. Use the value the logs' owner uses for its own segments."""
    max_bytes_per_segment: Annotated[
        Quantity,
        Checked(
            Rule(
                cel="type(self) == int ? self > 0 : !self.matches('^[0.]+[a-zA-Z]*$')",
                message="must be more than 0, such as 64M",
                holds=lambda quantity: quantity > 0,
            )
        ),
    ] = Quantity(64_000_000)
    """Bytes of entry data that a rewritten segment holds at most, as a quantity such as 64M. Use the value the logs'
    owner uses for its own segments."""
    max_sources_per_group: Annotated[int, Field(ge=1, le=MAX_SOURCES_PER_GROUP)] = MAX_SOURCES_PER_GROUP
    """Number of adjacent segments that are rewritten into one at most."""
    when_indexes_missing: WhenIndexesMissing = WhenIndexesMissing.REFUSE
    """What to do with a log whose snapshot has no indexes file, so that what is live below it is unknown. Refuse
    leaves the log alone and names it in status.logErrors. TreatAsEmpty takes everything below the snapshot for dead:
    right only when the logs' owner keeps no live indexes."""
    ownership: Ownership = Ownership.DETECT
    """Whether the process that owns the logs may be running. Detect looks for the files of a Ra system (meta.dets,
    *.wal) in the directory above a log, and refuses the log with OwnerRunning unless its owner is stopped. Stopped says
    that the owner is stopped whenever the policy runs, and nothing is looked for."""


STORES: Final = {"segment_logs": StoreKind.SEGMENT_LOGS, "block_store": StoreKind.BLOCK_STORE}


class StoreSpec(ApiModel):
    """The store a policy compacts: exactly one member."""

    segment_logs: SegmentLogsStore | None = None
    """Segment logs in Ra's on-disk format: directories of numbered segment files with snapshots."""
    block_store: BlockStore | None = None
    """Immutable Parquet blocks in an object store, with an index in a database."""

    RULES = (exactly_one_of(("segmentLogs", "blockStore"), tuple(STORES), what="store"),)

    @property
    def location(self) -> str:
        """Where the store is, as messages name it."""
        if self.block_store is not None:
            return self.block_store.url
        return self.segment_logs.root if self.segment_logs is not None else ""

    @property
    def kind(self) -> StoreKind:
        """Which store this is."""
        return next(kind for member, kind in STORES.items() if getattr(self, member) is not None)
