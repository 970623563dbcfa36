"""Block stores in the resources: the member of `spec.store` (where the blocks are, how they are merged, how long they
are kept), and the sources and parameters of their jobs.

Credentials are never here: the names of Secrets are.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Checked, PrinterColumn, Rule, list_atomic, list_map, list_set
from compaction.api.members import JobMember, SourcesModel, StoreMember, StoreModel
from compaction.api.policy.values import LASTING, NOT_OF_THE_KERNEL, SOME_BYTES, CaBundle, SecretKey, SecretName
from compaction.api.text.printing import UNPRINTABLE, printable
from compaction.api.text.quantities import DURATION_PATTERN, Duration, Quantity, milliseconds_in_cel

MAX_BLOCKS_PER_JOB: Final = 1000
MAX_TENANT: Final = 200
"""Bytes of a tenant's name in paths, where each byte but letters, digits, `_`, `-` and dots behind the first character
takes three.
"""
MAX_SHARD: Final = 2**31 - 1
BLOCK_REWRITE: Final = "BlockRewrite"
_URL: Final = "^(s3|gs|az|file)://[^@?# ]+$"

_ESCAPED: Final = "^file://.*%(2[dDeEfF]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aAeE])"
"""What needs no escape, and would hide `..` or the name of a directory (RFC 3986, 2.3)."""
STORE_URL: Final = (
    Rule(
        cel=f"self.matches('{_URL}')",
        message="must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory; "
        "credentials belong in credentialsSecretName",
        holds=lambda url: re.fullmatch(_URL, url) is not None,
    ),
    Rule(
        cel="!self.matches('(^|/)[.][.](/|$)')",
        message="must not contain '..': write the path it leads to",
        holds=lambda url: ".." not in url.split("/"),
    ),
    NOT_OF_THE_KERNEL,
    Rule(
        cel=f"!self.matches('{_ESCAPED}')",
        message="must not escape letters, digits or any of . - _ ~ /: write the characters themselves",
        holds=lambda url: re.match(_ESCAPED, url) is None,
    ),
)
_PLAIN: Final = "[A-Za-z0-9_.-]"
TENANT_NAME: Final = (
    Rule(
        cel=f"!self.matches('[{UNPRINTABLE}]')",
        message="must not contain control characters or marks of direction: leave them out",
        holds=lambda tenant: printable(tenant) == tenant,
    ),
    Rule(
        cel=f"3 * size(bytes(self)) - 2 * (size(self.findAll('{_PLAIN}')) - (self.startsWith('.') ? 1 : 0)) "
        f"<= {MAX_TENANT}",
        message=f"must not take more than {MAX_TENANT} bytes in paths, where letters, digits, _, - and . take one "
        "and all other bytes three: shorten it",
        holds=lambda tenant: (
            3 * len(tenant.encode()) - 2 * (len(re.findall(_PLAIN, tenant)) - tenant.startswith(".")) <= MAX_TENANT
        ),
    ),
)
TenantName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TENANT), Checked(*TENANT_NAME)]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class IndexReference(ApiModel):
    """Where the URL of the index is kept."""

    secret_name: SecretName
    """Name of a Secret in the policy's namespace."""
    key: SecretKey = "url"
    """Key of the Secret whose value is the URL of the index, such as postgresql://user:password@host/database."""


class BlockStoreReference(ApiModel):
    """Which block store: where its blocks are, and which database knows them."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=1024), Checked(*STORE_URL)]
    """Where the blocks are: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory."""
    credentials_secret_name: SecretName | None = None
    """Name of a Secret in the policy's namespace with the options of the object store, such as aws_access_key_id.
    Without it, the workers' own identity is used."""
    index: IndexReference
    """The database that knows the blocks."""
    ca_bundle: CaBundle | None = None
    """Authorities whose certificates the object store and the index have. Without it, those of the image are trusted.
    With it, the connection to an index in PostgreSQL is encrypted and the server's name is checked, unless the URL says
    another sslmode."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Names of the Secrets, and of the ConfigMap, that the store is opened with, each once."""
        return tuple(dict.fromkeys((*self.object_secret_names, self.index.secret_name)))

    @property
    def object_secret_names(self) -> tuple[str, ...]:
        """Of those, what the objects are read and written with: tasks have no other."""
        credentials = (self.credentials_secret_name,) if self.credentials_secret_name else ()
        return (*credentials, *((self.ca_bundle.source,) if self.ca_bundle is not None else ()))


class BlockLevel(ApiModel):
    """When the blocks of one level are merged into one of the next."""

    max_blocks: Annotated[int, Field(ge=2, le=MAX_BLOCKS_PER_JOB)]
    """Number of blocks that are merged as soon as so many wait."""
    max_age: Annotated[Duration, Checked(LASTING)]
    """Time after which blocks are merged however few they are, such as 36s. A single block is left alone and waits
    with those of the next level."""
    max_bytes: Annotated[Quantity, Checked(SOME_BYTES)] = Quantity("512Mi")
    """Bytes from which on blocks that wait are merged however few they are, as a quantity such as 512Mi. A block that
    alone has as many skips the level."""


AGES_RISE: Final = Rule(
    cel=f"!self.all(level, level.maxAge.matches('{DURATION_PATTERN}')) || "
    f"self.map(level, {milliseconds_in_cel('level.maxAge')}).isSorted()",
    message="maxAge must not fall from one level to the next: blocks of a higher level would be merged before those "
    "that are still to join them",
    holds=lambda levels: all(lower.max_age <= higher.max_age for lower, higher in pairwise(levels)),
)


class Deduplication(ApiModel):
    """Of rows with the same key, only the last one is kept."""

    columns: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=32), list_atomic()]
    """Names of the columns that make up the key."""


class TenantRetention(ApiModel):
    """How long the blocks of one tenant are kept."""

    tenant: TenantName
    """Name of the tenant."""
    keep: Annotated[Duration, Checked(LASTING)]
    """Time that data are kept, counted from the newest row of a block, such as 90d."""


class RetentionSpec(ApiModel):
    """How long blocks are kept."""

    default: Annotated[Duration, Checked(LASTING)] | None = None
    """Time that data of tenants without an entry of their own are kept, such as 90d. Without it, they are kept for
    ever."""
    tenants: Annotated[tuple[TenantRetention, ...], Field(max_length=256), list_map("tenant")] = ()
    """Tenants whose data are kept for another time."""


class BlockThresholds(ApiModel):
    """How much debt makes a batch of blocks due: all thresholds must be reached."""

    debt_bytes: Quantity = Quantity(0)
    """Bytes that a batch of blocks has, as a quantity such as 64Mi, below which it is left for later."""
    debt_blocks: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Number of blocks that compaction would remove, below which a batch of blocks is left for later."""


class BlockStoreSpec(BlockStoreReference, StoreModel):
    """Immutable Parquet blocks in an object store, with an index in a database."""

    levels: Annotated[tuple[BlockLevel, ...], Field(min_length=1, max_length=8), list_atomic(), Checked(AGES_RISE)] = (
        BlockLevel(max_blocks=20, max_age=Duration("36s")),
        BlockLevel(max_blocks=10, max_age=Duration("12m")),
        BlockLevel(max_blocks=10, max_age=Duration("3h")),
    )
    """Levels from the lowest up. New blocks are of level 0; what has come through all levels is left alone."""
    thresholds: BlockThresholds = Field(default_factory=BlockThresholds)
    """Debt that a batch of blocks must have before it is compacted."""
    span: Annotated[Duration, Checked(LASTING)] = Duration("3h")
    """Width of a window of time. Blocks are merged only with those whose data begin in the same window."""
    rewrite_single_blocks: bool = False
    """Whether a block that is still alone when its time has come is rewritten into one of the next level."""
    merge_memory: Annotated[Quantity, Checked(SOME_BYTES)] = Quantity("512Mi")
    """Memory that one merge uses at most, as a quantity such as 512Mi."""
    sort_key: Annotated[tuple[ColumnName, ...], Field(max_length=32), list_atomic()] = ()
    """Names of the columns by which merged blocks are sorted, ascending. Without any, a merge keeps the order that most
    bytes of its blocks have, and sorts by time when they have none."""
    deduplicate: Deduplication | None = None
    """Which rows are the same row. Without it, all rows are kept."""
    retention: RetentionSpec = Field(default_factory=RetentionSpec)
    """How long blocks are kept. Blocks that are older are deleted after the grace."""

    @property
    def reference(self) -> BlockStoreReference:
        """The part of it that a job receives."""
        return BlockStoreReference(
            url=self.url,
            credentials_secret_name=self.credentials_secret_name,
            index=self.index,
            ca_bundle=self.ca_bundle,
        )

    @property
    def location(self) -> str:
        """See `StoreModel`."""
        return self.url


_ULID: Final = "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
BLOCK_ID: Final = Rule(
    cel=f"self.matches('{_ULID}')",
    message="must be the id of a block, a ULID: 26 characters, such as 01ARZ3NDEKTSV4RRFFQ69G5FAV",
    holds=lambda block: re.fullmatch(_ULID, block) is not None,
)

_BATCH: Final = "(?s)^.+/(0|[1-9][0-9]{0,9})/L[0-9]{1,3}/[0-7][0-9A-HJKMNP-TV-Z]{25}$"
BATCH_NAME: Final = Rule(
    cel=f"self.matches('{_BATCH}')",
    message="must be <tenant>/<shard>/L<level>/<id of a block>, such as t/0/L0/01ARZ3NDEKTSV4RRFFQ69G5FAV",
    holds=lambda batch: re.fullmatch(_BATCH, batch) is not None,
)
BlockId = Annotated[str, StringConstraints(max_length=26), Checked(BLOCK_ID)]


class BlockSources(SourcesModel):
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

    @property
    def target(self) -> str:
        """See `SourcesModel`: the name of the batch."""
        return self.batch


class BlockParameters(ApiModel):
    """How blocks are merged."""

    memory_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)] = 1 << 29
    """Bytes of memory that the merge uses at most."""
    sort_key: Annotated[tuple[ColumnName, ...], Field(max_length=32), list_atomic()] = ()
    """Names of the columns by which the output is sorted. Without any, it has the order of most bytes of its blocks."""
    deduplicate_by: Annotated[tuple[ColumnName, ...], Field(max_length=32), list_atomic()] = ()
    """Names of the columns that make up the key of a row: of rows with the same key only the last is kept. Without
    any, all rows are kept."""


BLOCK_STORE: Final = StoreMember(
    name="BlockStore",
    member="block_store",
    model=BlockStoreSpec,
    help="Immutable Parquet blocks in an object store, with an index in a database.",
    jobs=(
        JobMember(
            name=BLOCK_REWRITE,
            member="blocks",
            sources=BlockSources,
            parameters=BlockParameters,
            help="Blocks of one tenant and shard",
            needs="store, tenant, shard, batch and the ids of blocks",
            column=PrinterColumn("Batch", ".spec.sources.blocks.batch", "Batch of the blocks", wide=True),
        ),
    ),
)
