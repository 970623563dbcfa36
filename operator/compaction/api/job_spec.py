"""`spec` of a CompactionJob: one immutable unit of work.

`sources` and `parameters` are unions by the job's kind; another kind is another optional member beside `segment_log`.
"""

import re
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.block_store_spec import MAX_BLOCKS_PER_JOB, MAX_SHARD, BlockStoreReference, ColumnName, TenantName
from compaction.api.bounds import Count
from compaction.api.enums import JobKind, Ownership, WhenIndexesMissing
from compaction.api.names import MAX_POLICY_NAME
from compaction.api.rules import Checked, Rule
from compaction.api.schema_hints import list_atomic, list_set
from compaction.api.store_spec import ABSOLUTE_PATH, MAX_ENTRIES_PER_SEGMENT, MAX_SOURCES_PER_GROUP
from compaction.api.text import PATH_LIMIT

MAX_GROUPS_PER_JOB: Final = 1024
MAX_UNREFERENCED_PER_JOB: Final = 4096
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


_ULID: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
BLOCK_ID: Final = Rule(
    cel=f"self.matches('{_ULID}')",
    message="must be the id of a block, a ULID: 26 characters, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV",
    holds=lambda block: re.fullmatch(_ULID, block) is not None,
)

_BATCH: Final = "^.+/(0|[1-9][0-9]{0,9})/L[0-9]{1,3}/[0-7][0-9A-HJKMNP-TV-Z]{25}$"
BATCH_NAME: Final = Rule(
    cel=f"self.matches('{_BATCH}')",
    message="must be <tenant>/<shard>/L<level>/<id of a block>, such as t/0/L0/01ARZ3NDEKTSV4RRFFQ69G5FAV",
    holds=lambda batch: re.fullmatch(_BATCH[1:-1], batch) is not None,
)
BlockId = Annotated[str, StringConstraints(max_length=26), Checked(BLOCK_ID)]


class PolicyReference(ApiModel):
    """A CompactionPolicy in the same namespace."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_POLICY_NAME)]
    """Name of the CompactionPolicy, in the job's namespace, whose workers, limits and lease the job uses."""


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


class SegmentLogSources(ApiModel):
    """Segments of one log."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT), Checked(*ABSOLUTE_PATH)]
    """Directory of the log, as an absolute path where the workers run."""
    snapshot_index: Count = 0
    """Index of the snapshot the plan was made from. The job runs only on a snapshot at this index or a later one."""
    groups: Annotated[tuple[SegmentGroup, ...], Field(max_length=MAX_GROUPS_PER_JOB), list_atomic()] = ()
    """Groups of adjacent segments, each rewritten into one segment and committed by itself."""
    unreferenced: Annotated[tuple[SegmentName, ...], Field(max_length=MAX_UNREFERENCED_PER_JOB), list_set()] = ()
    """Names of segment files without a live entry, to be deleted after the grace."""
    clump: ClumpRequest | None = None
    """Re-writing of sparse live entries at the head of the log. Only in jobs made by hand: no policy plans it."""

    RULES = (
        Rule(
            cel="self.groups.size() + self.unreferenced.size() > 0 || has(self.clump)",
            message="give the job something to do: at least one group, one unreferenced segment, or clump",
            holds=lambda sources: bool(sources.groups or sources.unreferenced or sources.clump),
        ),
        Rule(
            cel="self.groups.size() + self.unreferenced.size() == 0 || !has(self.clump)",
            message="leave groups and unreferenced out of a job with clump: what it frees is planned afterwards",
            holds=lambda sources: not (sources.clump and (sources.groups or sources.unreferenced)),
            field=".clump",
        ),
    )


class BlockSources(ApiModel):
    """Blocks of one tenant and shard that are merged into one."""

    store: BlockStoreReference
    """The block store, as the policy has it: a job for another one is refused."""
    tenant: TenantName
    """Name of the tenant."""
    shard: Annotated[int, Field(ge=0, le=MAX_SHARD)]
    """Number of the shard."""
    batch: Annotated[str, StringConstraints(min_length=1, max_length=512), Checked(BATCH_NAME)]
    """Name of the batch that the blocks are of. Jobs of one batch run one after another: those that a job was split
    into because it failed."""
    blocks: Annotated[tuple[BlockId, ...], Field(min_length=1, max_length=MAX_BLOCKS_PER_JOB), list_set()]
    """Ids of the blocks (ULIDs), in ascending order. Those of a lower level than the job's have skipped some."""

    RULES = (
        Rule(
            cel="self.blocks.isSorted()",
            message="list the blocks in ascending order, each once",
            holds=lambda sources: list(sources.blocks) == sorted(set(sources.blocks)),
            field=".blocks",
        ),
    )


class JobSources(ApiModel):
    """What a job works on: the member that belongs to its kind."""

    segment_log: SegmentLogSources | None = None
    """Segments of one log, for a job of kind SegmentRewrite."""
    blocks: BlockSources | None = None
    """Blocks of one tenant and shard, for a job of kind BlockRewrite."""


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


class BlockParameters(ApiModel):
    """How blocks are merged."""

    memory_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)] = 1 << 29
    """Bytes of memory that the merge uses at most."""
    sort_key: Annotated[tuple[ColumnName, ...], Field(max_length=32), list_atomic()] = ()
    """Names of the columns by which the output is sorted. Without any, it has the order of most bytes of its blocks."""
    deduplicate_by: Annotated[tuple[ColumnName, ...], Field(max_length=32), list_atomic()] = ()
    """Names of the columns that make up the key of a row: of rows with the same key only the last is kept. Without
    any, all rows are kept."""


class JobParameters(ApiModel):
    """How a job works: the member that belongs to its kind."""

    segment_log: SegmentLogParameters | None = None
    """How segments are rewritten, for a job of kind SegmentRewrite. The defaults are Ra's."""
    blocks: BlockParameters | None = None
    """How blocks are merged, for a job of kind BlockRewrite."""


class CompactionJobSpec(ApiModel):
    """One unit of work: what to rewrite, and how."""

    policy_ref: PolicyReference
    """The policy, in the same namespace, whose workers, limits and lease the job uses."""
    kind: JobKind
    """Kind of the work. SegmentRewrite rewrites groups of segments of one log and drops unreferenced ones;
    BlockRewrite merges blocks into one of the next level."""
    level: Annotated[int, Field(ge=0, le=100)] = 0
    """Level of the job. Lower levels run first; jobs of segment logs are level 0. What a BlockRewrite makes
    is of the next level."""
    estimated_bytes: Count = 0
    """Bytes that the job is expected to copy. Used for progress and for the time of arrival."""
    sources: JobSources
    """What the job works on: the member that belongs to its kind must be set."""
    parameters: JobParameters = Field(default_factory=JobParameters)
    """How the job works: the member that belongs to its kind may be set."""

    RULES = (
        Rule(
            cel="self == oldSelf",
            message="spec is immutable, a job is one unit of work: delete this job and create another",
        ),
        Rule(
            cel="(self.kind == 'SegmentRewrite') == has(self.sources.segmentLog)",
            message="kind SegmentRewrite needs sources.segmentLog: the path of a log, with groups, unreferenced "
            "or clump",
            holds=lambda spec: (spec.kind is JobKind.SEGMENT_REWRITE) == (spec.sources.segment_log is not None),
            field=".sources",
        ),
        Rule(
            cel="(self.kind == 'BlockRewrite') == has(self.sources.blocks)",
            message="kind BlockRewrite needs sources.blocks: store, tenant, shard, batch and the ids of blocks",
            holds=lambda spec: (spec.kind is JobKind.BLOCK_REWRITE) == (spec.sources.blocks is not None),
            field=".sources",
        ),
    )

    @property
    def lane(self) -> str:
        """What the job's commits are to: the directory of its log, or the batch of its blocks. Jobs of one lane run one
        after another.
        """
        if self.sources.blocks is not None:
            return self.sources.blocks.batch
        return self.sources.segment_log.path if self.sources.segment_log is not None else ""

    @property
    def block_parameters(self) -> BlockParameters:
        """Parameters of a BlockRewrite, with the defaults where the job gives none."""
        return self.parameters.blocks or BlockParameters()

    @property
    def segment_log_parameters(self) -> SegmentLogParameters:
        """Parameters of a SegmentRewrite, with Ra's defaults where the job gives none."""
        return self.parameters.segment_log or SegmentLogParameters()
