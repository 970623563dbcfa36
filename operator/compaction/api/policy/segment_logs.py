"""Segment logs in the resources: the member of `spec.store`, and the sources and parameters of their jobs."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, Count, PrinterColumn, Rule, list_atomic, list_set
from compaction.api.members import JobMember, SourcesModel, StoreMember, StoreModel
from compaction.api.policy.values import (
    ABSOLUTE_PATH,
    NOT_OF_THE_KERNEL,
    NOT_THE_FILE_SYSTEM,
    RELATIVE_DIRECTORY,
    RELATIVE_GLOB,
)
from compaction.api.text.printing import PATH_LIMIT
from compaction.api.text.quantities import Quantity

MAX_SOURCES_PER_GROUP: Final = 8
MAX_ENTRIES_PER_SEGMENT: Final = 65535
"""A segment file counts its index slots in 16 bits (docs/design/segment-files.md#header)."""
MAX_GROUPS_PER_JOB: Final = 1024
MAX_OBSOLETE_PER_JOB: Final = 4096
SEGMENT_REWRITE: Final = "SegmentRewrite"


class WhenIndexesMissing(StrEnum):
    """What a snapshot without its `indexes` file means."""

    REFUSE = "Refuse"
    TREAT_AS_EMPTY = "TreatAsEmpty"


class Ownership(StrEnum):
    """Whether the process that owns a log may be running while the log is compacted."""

    DETECT = "Detect"  # files are asked: a log whose owner is not stopped, and does not follow compactions, is refused
    STOPPED = "Stopped"  # somebody says that the owner is stopped: nothing is asked


_SEGMENT_NAME_LENGTH: Final = len("0000000000000001.segment")


def _is_segment_name(name: str) -> bool:
    digits, _, suffix = name.partition(".")
    return len(digits) == 16 and digits.isascii() and digits.isdecimal() and suffix == "segment"


SEGMENT_NAME: Final = Rule(
    cel="self.matches('^[0-9]{16}[.]segment$')",
    message="must be the name of a segment file: 16 digits and .segment, such as 0000000000000001.segment",
    holds=_is_segment_name,
)

SegmentName = Annotated[str, StringConstraints(max_length=_SEGMENT_NAME_LENGTH), Checked(SEGMENT_NAME)]
Glob = Annotated[str, StringConstraints(min_length=1, max_length=512), Checked(*RELATIVE_GLOB)]


class LogsVolume(ApiModel):
    """The volume that holds segment logs in a cluster."""

    claim_name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Name of the PersistentVolumeClaim in the policy's namespace. Pods of workers mount it at root, for reading and
    writing; the operator's pod needs it at the same path."""
    sub_path: Annotated[str, StringConstraints(max_length=1024), Checked(*RELATIVE_DIRECTORY)] = ""
    """Directory of the volume that is mounted at root, relative. Without it, the whole volume is."""


class SegmentThresholds(ApiModel):
    """How much debt makes a log due: all thresholds must be reached."""

    debt_bytes: Quantity = Quantity(0)
    """Bytes that compaction of a log would reclaim, as a quantity such as 64Mi, below which the log is left for
    later."""
    debt_segments: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Number of segments that compaction would remove or rewrite, below which a log is left for later."""


class SegmentLogsSpec(StoreModel):
    """Segment logs in Ra's on-disk format: directories of numbered segment files with snapshots."""

    root: Annotated[
        str,
        StringConstraints(min_length=1, max_length=PATH_LIMIT),
        Checked(*ABSOLUTE_PATH, NOT_THE_FILE_SYSTEM, NOT_OF_THE_KERNEL),
    ]
    """Directory below which the logs are, as an absolute path where the operator and its workers run."""
    volume: LogsVolume | None = None
    """Volume that workers in pods mount at root. Workers that are processes see what their machine has there."""
    include: Annotated[tuple[Glob, ...], Field(min_length=1, max_length=64), list_atomic()] = ("**",)
    """Patterns of the log directories to compact, relative to root: * within one name, ** over any depth. A directory
    is taken when it matches one of them and holds segment files."""
    exclude: Annotated[tuple[Glob, ...], Field(max_length=64), list_atomic()] = ()
    """Patterns of log directories to leave alone, relative to root. They win over include."""
    thresholds: SegmentThresholds = Field(default_factory=SegmentThresholds)
    """Debt that a log must have before it is compacted."""
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
    leaves the log alone and names it in status.targetErrors. TreatAsEmpty takes everything below the snapshot for dead:
    right only when the logs' owner keeps no live indexes."""
    ownership: Ownership = Ownership.DETECT
    """Whether the process that owns the logs may be running. Detect looks for the files of a Ra system (meta.dets,
    *.wal) in the directory above a log, and refuses the log with OwnerRunning unless its owner is stopped, or has left
    the marker of an owner that follows compactions (compaction.owner). Stopped says that the owner is stopped whenever
    the policy runs, and nothing is looked for."""

    @property
    def location(self) -> str:
        """See `StoreModel`."""
        return self.root


class SegmentGroup(ApiModel):
    """Adjacent segments that are rewritten into one; commits atomically."""

    segments: Annotated[tuple[SegmentName, ...], Field(min_length=1, max_length=MAX_SOURCES_PER_GROUP), list_set()]
    """Names of the segment files of the group, in ascending order."""

    RULES = (
        Rule(
            cel="self.segments.isSorted()",
            message="list the segments of a group in ascending order, each once",
            holds=lambda group: list(group.segments) == sorted(set(group.segments)),
            field=".segments",
        ),
    )


class ClumpRequest(ApiModel):
    """Live entries that became sparse, re-written side by side behind the last index of the log. They get new indexes,
    which the log's owner reads from the maps beside them: see docs/segment-logs.md before using it."""

    owner_stopped: bool
    """Whether the process that owns the log is stopped and stays so until the job has ended. Nothing but true is
    accepted: entries cannot be appended behind the back of a running owner."""
    owner_reads_maps: bool = False
    """Whether the owner of a log in a Ra system reads the maps of moved entries. Ra itself does not, and would find
    none of the moved entries: without this, such a log is refused."""
    shorter_than: Annotated[int, Field(ge=2, le=2**31 - 1)] = 8
    """Runs of fewer live neighbours than this are re-written."""
    min_ranges: Annotated[int, Field(ge=1, le=2**63 - 1)] = 16
    """Ranges by which the live set must become shorter. Nothing is re-written otherwise."""
    max_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)] = 2**30
    """Bytes of entry data that the job writes at most, over all its attempts."""

    RULES = (
        Rule(
            cel="self.ownerStopped",
            message="stop the process that owns the log, then say ownerStopped: true; a running owner has to append "
            "the entries itself",
            holds=lambda clump: clump.owner_stopped,
            field=".ownerStopped",
        ),
    )


class SegmentLogSources(SourcesModel):
    """Segments of one log."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT), Checked(*ABSOLUTE_PATH)]
    """Directory of the log, as an absolute path where the workers run."""
    snapshot_index: Count = 0
    """Index of the snapshot the plan was made from. The job runs only on a snapshot at this index or a later one."""
    groups: Annotated[tuple[SegmentGroup, ...], Field(max_length=MAX_GROUPS_PER_JOB), list_atomic()] = ()
    """Groups of adjacent segments, each rewritten into one segment and committed by itself."""
    obsolete: Annotated[tuple[SegmentName, ...], Field(max_length=MAX_OBSOLETE_PER_JOB), list_set()] = ()
    """Names of segment files without a live entry, to be deleted after the grace."""
    clump: ClumpRequest | None = None
    """Re-writing of sparse live entries at the head of the log. Only in jobs made by hand: no policy plans it."""

    RULES = (
        Rule(
            cel="self.groups.size() + self.obsolete.size() > 0 || has(self.clump)",
            message="give the job something to do: at least one group, one obsolete segment, or clump",
            holds=lambda sources: bool(sources.groups or sources.obsolete or sources.clump),
        ),
        Rule(
            cel="self.groups.size() + self.obsolete.size() == 0 || !has(self.clump)",
            message="leave groups and obsolete out of a job with clump: what it frees is planned afterwards",
            holds=lambda sources: not (sources.clump and (sources.groups or sources.obsolete)),
            field=".clump",
        ),
    )

    @property
    def target(self) -> str:
        """See `SourcesModel`: the directory of the log."""
        return self.path


class SegmentLogParameters(ApiModel):
    """How segments are rewritten."""

    max_entries_per_segment: Annotated[int, Field(ge=1, le=MAX_ENTRIES_PER_SEGMENT)] = 4096
    """Entries that a rewritten segment holds at most."""
    max_bytes_per_segment: Annotated[int, Field(ge=1, le=2**63 - 1)] = 64_000_000
    """Bytes of entry data that a rewritten segment holds at most."""
    when_indexes_missing: WhenIndexesMissing = WhenIndexesMissing.REFUSE
    """What a snapshot without its indexes file means. Refuse fails the job; TreatAsEmpty takes everything below the
    snapshot for dead."""
    ownership: Ownership = Ownership.DETECT
    """Whether the process that owns the log may be running. Detect refuses a log of a Ra system whose owner is not
    stopped; Stopped says that it is, and nothing is looked for."""


SEGMENT_LOGS: Final = StoreMember(
    name="SegmentLogs",
    member="segment_logs",
    model=SegmentLogsSpec,
    help="Segment logs in Ra's on-disk format: directories of numbered segment files with snapshots.",
    jobs=(
        JobMember(
            name=SEGMENT_REWRITE,
            member="segment_log",
            sources=SegmentLogSources,
            parameters=SegmentLogParameters,
            help="Segments of one log",
            needs="the path of a log, with groups, obsolete or clump",
            column=PrinterColumn("Log", ".spec.sources.segmentLog.path", "Directory of the log", wide=True),
        ),
    ),
)
