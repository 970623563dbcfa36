"""Models of the staging endpoint, and values of objects between the wire and the store."""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from compaction.serving.openapi import Wire
from compaction.staging.errors import CorruptMessageError
from compaction.staging.flows.writing import MOST_DELETED
from compaction.staging.format.identity import FramingError, entry_identity, frame_value, split_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.kv.port import MAX_KEY_BYTES

# Models of the data on the wire of the staging endpoint.
#
# Bytes are text under their name, or base64 under `<name>Base64` where they are not UTF-8. Identities are
# hexadecimal.

MOST_CHANGES: Final = MOST_DELETED
"""Lines of one batch."""
_MOST_METADATA: Final = 100
_LONGEST: Final = 8192
LONGEST_BASE64: Final = 4 * MAX_KEY_BYTES
_MAX_INT64: Final = (1 << 63) - 1


class StagingProblem(StrEnum):
    """Why a request was refused. A program decides by this word, never by the message."""

    BAD_REQUEST = "BadRequest"
    """No JSON, not of the documented form, or a query that makes no sense."""
    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    """The caller is known, and may not use this repository."""
    NOT_FOUND = "NotFound"
    """There is no such repository, branch, reference or object."""
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    BUSY = "Busy"
    """Too many requests are under way, or others changed the branch during every try: try again."""
    UNAVAILABLE = "Unavailable"
    """Store, database or the review of tokens do not answer: try again. A change may have happened."""
    FAILED = "Failed"

    CONDITION_FAILED = "ConditionFailed"
    """The branch does not show what the condition says; nothing was written."""
    CONFLICT = "Conflict"
    """The repository is read-only or another system's, or the branch is protected."""
    NO_CHANGES = "NoChanges"
    """There is nothing to commit."""
    INVALID = "Invalid"
    """A name, key or value that no store can have."""


class StagingProblemAnswer(Wire):
    """Why nothing was done."""

    code: StagingProblem
    message: str


def base64_text(text: str) -> str:
    """Raises ValueError."""
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no base64") from None
    return text


Base64 = Annotated[str, AfterValidator(base64_text)]
KeyText = Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES)]
KeyBase64 = Annotated[Base64, Field(min_length=1, max_length=LONGEST_BASE64)]
Identity = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,128}$")]
Instant = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$")]
Text = Annotated[str, Field(max_length=_LONGEST)]


def bytes_of(text: str | None, base64_: str | None) -> bytes:
    """The bytes of a text, or of base64; of neither none."""
    return base64.b64decode(base64_) if base64_ else (text or "").encode()


class ObjectKey(Wire):
    """The key of an object: one of the two."""

    key: KeyText | None = None
    key_base64: KeyBase64 | None = None

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if (self.key is None) == (self.key_base64 is None):
            raise ValueError("give key or keyBase64")
        return self

    @property
    def key_bytes(self) -> bytes:
        return bytes_of(self.key, self.key_base64)


class ObjectQuery(ObjectKey):
    """Which object."""

    model_config = ConfigDict(strict=False)


class ReadQuery(ObjectQuery):
    """Which object, and of what."""

    staged_only: bool = False
    """Only if it is staged with another identity than the commit has."""


class WriteQuery(ObjectQuery):
    """Which object, and under which condition: at most one of them."""

    if_absent: bool = False
    """Only if the branch does not show the key."""
    if_identity: Identity | None = None
    """Only if the branch shows an object of this identity."""

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        if self.if_absent and self.if_identity is not None:
            raise ValueError("give ifAbsent or ifIdentity, not both")
        return self


class WireEntry(Wire):
    """An object that lies in an object store. Its identity is of size, eTag, metadata and contentType."""

    address: str = Field(min_length=1, max_length=_LONGEST)
    """A URL, or a path below the storage namespace of the repository."""
    address_type: Literal["byPrefix", "relative", "full"] | None = None
    """Without it `full` for a URL, else `relative`."""
    size: int = Field(default=0, ge=0, le=_MAX_INT64)
    e_tag: Text = ""
    last_modified: Instant | None = None
    """UTC; without it the time of the request."""
    metadata: dict[Text, Text] = Field(default_factory=dict, max_length=_MOST_METADATA)
    content_type: Text = ""


class ShownEntry(Wire):
    """An object as any writer wrote it, lakeFS among them: no limit of this endpoint holds for it."""

    address: str
    address_type: Literal["byPrefix", "relative", "full"]
    size: int
    e_tag: str
    last_modified: str | None = None
    """UTC."""
    metadata: dict[str, str]
    content_type: str


class ObjectValue(Wire):
    """What is at a key: one of `entry`, `value` and `valueBase64`."""

    entry: WireEntry | None = None
    value: str | None = None
    value_base64: Base64 | None = None
    identity: Identity | None = None
    """Of a value; without it its SHA-256. That of an entry is computed."""

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        if sum(item is not None for item in (self.entry, self.value, self.value_base64)) != 1:
            raise ValueError("give one of entry, value and valueBase64")
        if self.entry is not None and self.identity is not None:
            raise ValueError("the identity of an entry is computed: leave identity out")
        return self


class ChangeOperation(StrEnum):
    """What a line of a batch does."""

    PUT = "put"
    DELETE = "delete"


class ChangeLine(ObjectKey):
    """One line of a batch. `put` has one of `entry`, `value` and `valueBase64`; `delete` has none."""

    op: ChangeOperation
    entry: WireEntry | None = None
    value: str | None = None
    value_base64: Base64 | None = None
    identity: Identity | None = None

    @model_validator(mode="after")
    def _has_its_value(self) -> Self:
        given = self.model_dump(include={"entry", "value", "value_base64", "identity"}, exclude_none=True)
        if self.op is ChangeOperation.DELETE and given:
            raise ValueError("a deletion has neither value nor identity")
        if self.op is ChangeOperation.PUT:
            self.content()
        return self

    def content(self) -> ObjectValue:
        """What a `put` writes. Raises pydantic's ValidationError."""
        return ObjectValue(entry=self.entry, value=self.value, value_base64=self.value_base64, identity=self.identity)


class WrittenAnswer(Wire):
    """The change is durable: it was staged on the branch while that took it."""

    identity: str
    """Of what was written."""


class DeletedAnswer(Wire):
    """The deletion is durable; an object that was not there counts as deleted."""


class ChangedAnswer(Wire):
    """All changes of the batch are durable."""

    written: int
    deleted: int


class ObjectAnswer(Wire):
    """One object: an entry, or other bytes."""

    identity: str
    entry: ShownEntry | None = None
    value: str | None = None
    value_base64: str | None = None


class CommitRequest(Wire):
    """What a commit says."""

    message: str = Field(min_length=1, max_length=_LONGEST)
    committer: str = Field(default="", max_length=256)
    """Without it the caller."""
    metadata: dict[Text, Text] = Field(default_factory=dict, max_length=_MOST_METADATA)
    allow_empty: bool = False


class CommitAnswer(Wire):
    """The branch is on this commit."""

    id: str
    metarange: str
    parents: tuple[str, ...]


class ResetRequest(Wire):
    """What to take back: one key, all keys with a prefix, or everything that is uncommitted."""

    key: KeyText | None = None
    key_base64: KeyBase64 | None = None
    prefix: KeyText | None = None
    prefix_base64: KeyBase64 | None = None
    all: bool = False

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        targets = (self.key, self.key_base64, self.prefix, self.prefix_base64, self.all or None)
        if sum(target is not None for target in targets) != 1:
            raise ValueError("give one of key, keyBase64, prefix, prefixBase64 and all: true")
        return self


class ResetAnswer(Wire):
    """The branch shows of these keys what its commit has."""


# Values of objects, between the wire and the store (docs/design/staging.md#values).

_TYPES: Final[tuple[Literal["byPrefix", "relative", "full"], ...]] = ("byPrefix", "relative", "full")


def framed_value(value: ObjectValue, *, now: float) -> bytes:
    """As the store has it. `now`: seconds since 1970. Raises ValueError for a time that there is not."""
    if value.entry is not None:
        entry = _entry(value.entry, now)
        return frame_value(entry_identity(entry), entry.encode())
    data = bytes_of(value.value, value.value_base64)
    identity = hashlib.sha256(data).digest() if value.identity is None else bytes.fromhex(value.identity)
    return frame_value(identity, data)


def identity_text(framed: bytes | None) -> str | None:
    """The identity of a value in hexadecimal digits."""
    return None if framed is None else _parts(framed)[0].hex()


def object_answer(framed: bytes) -> ObjectAnswer:
    """A value as it is sent."""
    identity, data = _parts(framed)
    entry = entry_of(identity, data)
    content = {"entry": entry} if entry is not None else text_or_base64("value", data)
    return ObjectAnswer(identity=identity.hex(), **content)


def listed_value(framed: bytes) -> dict[str, Any]:
    """Return a value as a listing shows it: other bytes than entries by their size."""
    identity, data = _parts(framed)
    entry = entry_of(identity, data)
    shown: dict[str, Any] = {"bytes": len(data)} if entry is None else {"entry": entry}
    return {"identity": identity.hex(), **shown}


def entry_of(identity: bytes, data: bytes) -> ShownEntry | None:
    """The entry that a value holds; None for other bytes: an entry has its own identity."""
    try:
        entry = CatalogEntry.decode(data)
    except CorruptMessageError:
        return None
    if entry_identity(entry) != identity or not 0 <= entry.address_type < len(_TYPES):
        return None
    return ShownEntry(
        address=entry.address,
        address_type=_TYPES[entry.address_type],
        size=entry.size,
        e_tag=entry.e_tag,
        last_modified=_instant_text(entry.last_modified),
        metadata=dict(entry.metadata),
        content_type=entry.content_type,
    )


def text_or_base64(name: str, data: bytes) -> dict[str, Any]:
    """Bytes as a field `name`, or `<name>_base64` where they are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _parts(framed: bytes) -> tuple[bytes, bytes]:
    """Identity and data; a value that is not framed, which only a foreign writer writes, is data."""
    try:
        return split_value(framed)
    except FramingError:
        return b"", framed


def _entry(entry: WireEntry, now: float) -> CatalogEntry:
    kind = entry.address_type or ("full" if "://" in entry.address else "relative")
    modified = _instant(entry.last_modified) if entry.last_modified else ProtoTimestamp(int(now), int(now % 1 * 1e9))
    metadata = dict(sorted(entry.metadata.items()))
    return CatalogEntry(
        entry.address, modified, entry.size, entry.e_tag, metadata, _TYPES.index(kind), entry.content_type
    )


def _instant(text: str) -> ProtoTimestamp:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    try:
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("lastModified is no time that there is") from None
    return ProtoTimestamp(int(moment.timestamp()), int(fraction.ljust(9, "0")) if fraction else 0)


def _instant_text(instant: ProtoTimestamp | None) -> str | None:
    if instant is None:
        return None
    try:
        moment = datetime.fromtimestamp(instant.seconds, UTC).replace(tzinfo=None).isoformat()
    except (OverflowError, ValueError, OSError):
        # `datetime` ends with the year 9999, a message does not: such a time is left out.
        return None
    fraction = f".{instant.nanos:09d}".rstrip("0") if 0 < instant.nanos < 10**9 else ""
    return f"{moment}{fraction}Z"
