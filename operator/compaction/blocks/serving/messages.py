"""The messages that go over the wire, as models: the OpenAPI document consists of them, and requests are checked by
them.

Requests are strict: an unknown field is an error of the client, never ignored. Times are epoch
microseconds (UTC), sizes bytes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from compaction.blocks.index.rows import MAX_INTEGER, MAX_LEVEL, text_problem
from compaction.blocks.model import MAX_SHARD, Block
from compaction.serving.openapi import Wire
from compaction.storage.objects.store import MAX_PATH

MOST_BLOCKS: Final = 1000
"""Of one request and of one page."""
MAX_NAME: Final = 1024
MOST_PATH_COLUMNS: Final = 100
PathColumn = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Problem(StrEnum):
    """Why a request, or one block of it, was refused. A program decides by this word, never by the message."""

    BAD_REQUEST = "BadRequest"
    """No JSON, not of the documented form, or a query that makes no sense."""
    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    """The caller is known, and may not do this, or not for this tenant."""
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    BLOCKS_REFUSED = "BlocksRefused"
    """`blocks` says which ones, and why; none of the request was registered."""
    SNAPSHOT_EXPIRED = "SnapshotExpired"
    """The version of a listing is too long ago: take a new one."""
    BUSY = "Busy"
    UNAVAILABLE = "Unavailable"
    """Store, index or the review of tokens do not answer: try again. A registration may have happened."""
    FAILED = "Failed"

    OBJECT_MISSING = "ObjectMissing"
    CORRUPT = "Corrupt"
    UNSUITABLE = "Unsuitable"
    """A sound file that cannot be this block: another tenant's or shard's, without a time, encrypted."""
    INVALID = "Invalid"
    """A path, tenant or value that no block can have."""
    CONFLICT = "Conflict"
    """Its id or path is that of another content, or the object is being deleted: upload it under a new id."""


class RegistrationOutcome(StrEnum):
    """What became of one block."""

    REGISTERED = "Registered"
    KNOWN = "Known"
    """It had been registered before, with the same content."""
    REFUSED = "Refused"
    NOT_REGISTERED = "NotRegistered"
    """Nothing is wrong with it; another block of the request was refused."""


class BlockToRegister(Wire):
    """A block that lies in the store, complete."""

    path: str = Field(min_length=1, max_length=MAX_PATH)
    """Its key below the store's root, as a rule `<tenant>/<shard>/<ULID>.parquet`."""
    tenant: str = Field(min_length=1, max_length=MAX_NAME)
    shard: int = Field(ge=0, le=MAX_SHARD)
    level: int = Field(default=0, ge=0, le=MAX_LEVEL)
    time_column: str = Field(default="", max_length=MAX_NAME)
    """Which column says when a row was; empty: the one that the block names, or its only column of timestamps."""
    drop_path_columns: tuple[PathColumn, ...] = Field(default=(), max_length=MOST_PATH_COLUMNS)
    """Columns that only the path holds (`region=eu/`) and that merged blocks may lose."""


class RegisterRequest(Wire):
    """Blocks to register: all of them, or none."""

    blocks: tuple[BlockToRegister, ...] = Field(min_length=1, max_length=MOST_BLOCKS)


class BlockResult(Wire):
    """What became of one block, in the place it had in the request."""

    path: str
    outcome: RegistrationOutcome
    id: str | None = None
    code: Problem | None = None
    message: str | None = None


class RegisterAnswer(Wire):
    """All blocks are live."""

    blocks: tuple[BlockResult, ...]


class ProblemAnswer(Wire):
    """Why nothing was done."""

    code: Problem
    message: str
    blocks: tuple[BlockResult, ...] | None = None
    """Each block of the request, when some were refused."""


class LiveBlock(Wire):
    """A block that is live."""

    id: str
    tenant: str
    shard: int
    level: int
    path: str
    min_time: int
    max_time: int
    """Of its rows, both included, epoch microseconds."""
    rows: int
    bytes: int
    fingerprint: str
    """Of its rows, in whatever order: <rows>:<32 hexadecimal digits>."""
    sort_key: tuple[str, ...]
    schema_id: str

    @classmethod
    def of(cls, block: Block) -> LiveBlock:
        """As it is listed."""
        fields: dict[str, Any] = {name: getattr(block, name) for name in cls.model_fields}
        return cls(**fields | {"fingerprint": str(block.fingerprint)})


class ListingAnswer(Wire):
    """Live blocks of one instant, by id."""

    version: int
    """The instant: the last change of the index that the listing includes."""
    blocks: tuple[LiveBlock, ...]
    more: bool
    """Whether others follow: ask again with this `version` and the last id as `after`."""


def _moment(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip("-").isdecimal():
        return value
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone, such as 2026-01-31T12:00:00Z")
    return (moment - _EPOCH) // timedelta(microseconds=1)


Moment = Annotated[
    int,
    BeforeValidator(_moment),
    Field(ge=-MAX_INTEGER, le=MAX_INTEGER),
    WithJsonSchema({"type": "string", "description": "RFC 3339, or epoch microseconds; included"}),
]


def _key(value: str) -> str:
    if value and (problem := text_problem(value)):
        raise ValueError(problem)
    return value


Key = Annotated[str, AfterValidator(_key), Field(max_length=MAX_NAME)]


class ListingQuery(Wire):
    """Which blocks to list."""

    model_config = ConfigDict(strict=False)

    tenant: Key | None = None
    shard: int | None = Field(default=None, ge=0, le=MAX_SHARD)
    level: int | None = Field(default=None, ge=0, le=MAX_LEVEL)
    start: Moment | None = Field(default=None, alias="from")
    """Only blocks with rows at or after this time."""
    end: Moment | None = Field(default=None, alias="to")
    """Only blocks with rows at or before this time."""
    limit: int = Field(default=MOST_BLOCKS, ge=1, le=MOST_BLOCKS)
    version: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    """The instant of an earlier page; without it, now."""
    after: Key = ""
    """The last id of the page before."""
