"""Messages that lakeFS keeps in its key-value store and in values of ranges, and Protocol Buffers on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, Final, Self

from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.columns import decode_varint, encode_varint

# Protocol Buffers on the wire, for the few messages of a staging area: fields known and unknown, in bounded memory.
#
# A message is a list of fields (`WireField`), as they came. docs/design/staging.md#messages has the messages.

MAX_FIELD: Final = (1 << 29) - 1
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


class WireType(IntEnum):
    """The form in which a field's value is written. The two group types of old are refused."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


_KINDS: Final = {kind.value: kind for kind in WireType}
_FIXED: Final = {WireType.FIXED64: 8, WireType.FIXED32: 4}
"""Bytes of a value without a length of its own."""


class WireError(ValueError):
    """The message is wrong: the reason, and the offset of the byte."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


@dataclass(frozen=True, slots=True)
class WireField:
    """One field. `value`: an unsigned number for VARINT, else the bytes. `raw`: the field as it was read."""

    number: int
    kind: WireType
    value: int | bytes
    raw: bytes
    offset: int

    def number_value(self) -> int:
        """A number of a VARINT field, unsigned. WireError for another kind."""
        if not isinstance(self.value, int):
            raise WireError(self.offset, f"field {self.number} is no number")
        return self.value

    def signed_value(self) -> int:
        """A number of a VARINT field, of 64 bits with a sign."""
        value = self.number_value()
        return value - _WRAP if value >= _SIGN else value

    def bytes_value(self) -> bytes:
        """The bytes of a BYTES field. WireError for another kind."""
        if self.kind is not WireType.BYTES or not isinstance(self.value, bytes):
            raise WireError(self.offset, f"field {self.number} is no bytes")
        return self.value

    def text_value(self) -> str:
        """The bytes of a BYTES field as UTF-8. WireError when they are not."""
        try:
            return self.bytes_value().decode()
        except UnicodeDecodeError:
            raise WireError(self.offset, f"field {self.number} is not UTF-8") from None


def read_fields(data: bytes) -> Iterator[WireField]:
    """The fields of a message in order. Raises WireError."""
    at = 0
    while at < len(data):
        begin = at
        try:
            key, at = decode_varint(data, at)
            number, low = key >> 3, key & 7
            kind = _KINDS.get(low)
            if kind is None or not 0 < number <= MAX_FIELD:
                raise WireError(begin, f"field {min(number, MAX_FIELD)} of type {low}")
            if kind is WireType.VARINT:
                value: int | bytes
                value, at = decode_varint(data, at)
            else:
                length = _FIXED.get(kind)
                if length is None:
                    length, at = decode_varint(data, at)
                if length > len(data) - at:
                    raise WireError(begin, f"field {number} claims {length} bytes of {len(data) - at}")
                value, at = data[at : at + length], at + length
        except (IndexError, OverflowError):
            raise WireError(begin, "it is cut off") from None
        except ValueError as error:
            # A WireError is a ValueError too, and knows its own offset.
            raise error if isinstance(error, WireError) else WireError(begin, str(error)) from None
        yield WireField(number, kind, value, data[begin:at], begin)


def number_field(number: int, value: int) -> bytes:
    """A VARINT field; nothing for 0, the default. Negative numbers take ten bytes."""
    return encode_varint(number << 3 | WireType.VARINT) + encode_varint(value % _WRAP) if value else b""


def bytes_field(number: int, value: bytes, *, always: bool = False) -> bytes:
    """A BYTES field; nothing for an empty one unless `always`."""
    if not value and not always:
        return b""
    return encode_varint(number << 3 | WireType.BYTES) + encode_varint(len(value)) + value


# The messages that lakeFS keeps in its key-value store and in values of ranges (docs/design/staging.md#messages).
#
# Fields that this version does not know are kept in `unknown`, as they came, and are written again behind the known
# ones: a message that passes through loses nothing.


@dataclass(frozen=True, slots=True, eq=False)
class FieldKind:
    """The functions that read one field, given the value before, and that write it."""

    read: Callable[[Any, WireField], Any]
    write: Callable[[int, Any], bytes]


def _read_map(before: Mapping[str, str], item: WireField) -> dict[str, str]:
    key = value = ""
    for part in read_fields(item.bytes_value()):
        if part.number == 1:
            key = part.text_value()
        elif part.number == 2:
            value = part.text_value()
    # In place: a copy for each pair would cost the square of their number. `_decode` owns the dict.
    found = before if isinstance(before, dict) else dict(before)
    found[key] = value
    return found


def _write_map(number: int, pairs: Mapping[str, str]) -> bytes:
    return b"".join(
        bytes_field(number, bytes_field(1, key.encode(), always=True) + bytes_field(2, value.encode(), always=True))
        for key, value in pairs.items()
    )


def _read_numbers(before: Mapping[str, int], item: WireField) -> dict[str, int]:
    key, value = "", 0
    for part in read_fields(item.bytes_value()):
        if part.number == 1:
            key = part.text_value()
        elif part.number == 2:
            value = part.signed_value()
    found = before if isinstance(before, dict) else dict(before)
    found[key] = value
    return found


def _write_numbers(number: int, pairs: Mapping[str, int]) -> bytes:
    return b"".join(
        bytes_field(number, bytes_field(1, key.encode(), always=True) + number_field(2, value), always=True)
        for key, value in pairs.items()
    )


def _read_texts(before: list[str] | tuple[str, ...], item: WireField) -> list[str]:
    found = before if isinstance(before, list) else list(before)
    found.append(item.text_value())
    return found


def _write_texts(number: int, values: tuple[str, ...]) -> bytes:
    return b"".join(bytes_field(number, value.encode(), always=True) for value in values)


TEXT: Final = FieldKind(lambda _, item: item.text_value(), lambda number, value: bytes_field(number, value.encode()))
DATA: Final = FieldKind(lambda _, item: item.bytes_value(), bytes_field)
SIGNED: Final = FieldKind(lambda _, item: item.signed_value(), number_field)
UNSIGNED: Final = FieldKind(lambda _, item: item.number_value(), number_field)
TRUTH: Final = FieldKind(lambda _, item: bool(item.number_value()), number_field)
TEXTS: Final = FieldKind(_read_texts, _write_texts)
MAP: Final = FieldKind(_read_map, _write_map)
NUMBERS: Final = FieldKind(_read_numbers, _write_numbers)
_MAPS: Final = (MAP, NUMBERS)


def wire_at(number: int, kind: FieldKind) -> dict[str, Any]:
    """Of a dataclass field: its number on the wire, and its kind."""
    return {"number": number, "kind": kind}


def count_field(number: int) -> Any:
    """A field of a message that another module defines: a number from 0 on; absent for 0."""
    return field(default=0, metadata=wire_at(number, UNSIGNED))


_NUMBERED: Final[dict[type, Mapping[int, Field[Any]]]] = {}


def _numbered(message: type[StagingMessage]) -> Mapping[int, Field[Any]]:
    """The fields of a message that are on the wire, by their numbers in order; found once."""
    found = _NUMBERED.get(message)
    if found is None:
        known = {item.metadata["number"]: item for item in fields(message) if "number" in item.metadata}
        found = _NUMBERED[message] = dict(sorted(known.items()))
    return found


@dataclass(frozen=True)
class StagingMessage:
    """Base of all messages. `unknown`: the fields that are not known, as bytes."""

    NAME: ClassVar[str]
    unknown: bytes = field(default=b"", kw_only=True)

    @classmethod
    def decode(cls, data: bytes, *, name: str = "value") -> Self:
        """The message in `data`; `name` says in errors whose value it is. CorruptMessageError when there is none."""
        try:
            return cls._decode(data)
        except WireError as error:
            raise CorruptMessageError(name, cls.NAME, error.offset, error.reason) from None

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        known = _numbered(cls)
        values: dict[str, Any] = {}
        unknown = []
        for item in read_fields(data):
            found = known.get(item.number)
            if found is None:
                unknown.append(item.raw)
                continue
            before = values.get(found.name, ())
            if before == () and found.metadata["kind"] in _MAPS:
                before = {}
            values[found.name] = found.metadata["kind"].read(before, item)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values, unknown=b"".join(unknown))

    def encode(self) -> bytes:
        """Known fields by number, then the unknown ones; maps in the order they have. Defaults are not written."""
        parts = [
            item.metadata["kind"].write(number, getattr(self, item.name))
            for number, item in _numbered(type(self)).items()
        ]
        return b"".join(parts) + self.unknown


@dataclass(frozen=True)
class ProtoTimestamp(StagingMessage):
    """An instant: seconds since 1970 (UTC), and nanoseconds from 0 on."""

    NAME: ClassVar[str] = "Timestamp"
    seconds: int = field(default=0, metadata=wire_at(1, SIGNED))
    nanos: int = field(default=0, metadata=wire_at(2, SIGNED))


def _read_instant(before: Any, item: WireField) -> ProtoTimestamp:
    """Two fields of one message are one: what both say of each part, the later of it."""
    earlier = before.encode() if isinstance(before, ProtoTimestamp) else b""
    try:
        return ProtoTimestamp._decode(earlier + item.bytes_value())
    except WireError as error:
        raise WireError(item.offset, f"field {item.number}: {error.reason}") from None


INSTANT: Final = FieldKind(
    _read_instant, lambda number, value: b"" if value is None else bytes_field(number, value.encode(), always=True)
)


@dataclass(frozen=True)
class BranchData(StagingMessage):
    """A branch. `sealed_tokens` are the newest first."""

    NAME: ClassVar[str] = "BranchData"
    id: str = field(default="", metadata=wire_at(1, TEXT))
    commit_id: str = field(default="", metadata=wire_at(2, TEXT))
    staging_token: str = field(default="", metadata=wire_at(3, TEXT))
    sealed_tokens: tuple[str, ...] = field(default=(), metadata=wire_at(4, TEXTS))
    hidden: bool = field(default=False, metadata=wire_at(5, TRUTH))


@dataclass(frozen=True)
class StagedEntryData(StagingMessage):
    """A staged change of the object `key`: its new entry, or a tombstone."""

    NAME: ClassVar[str] = "StagedEntryData"
    key: bytes = field(default=b"", metadata=wire_at(1, DATA))
    identity: bytes = field(default=b"", metadata=wire_at(2, DATA))
    data: bytes = field(default=b"", metadata=wire_at(3, DATA))

    @property
    def tombstone(self) -> bool:
        """Return whether the object was deleted: there is no identity."""
        return not self.identity


@dataclass(frozen=True)
class CommitData(StagingMessage):
    """A commit. An empty `meta_range_id` is the empty tree of a repository's first commit."""

    NAME: ClassVar[str] = "CommitData"
    id: str = field(default="", metadata=wire_at(1, TEXT))
    committer: str = field(default="", metadata=wire_at(2, TEXT))
    message: str = field(default="", metadata=wire_at(3, TEXT))
    creation_date: ProtoTimestamp = field(default=ProtoTimestamp(), metadata=wire_at(4, INSTANT))
    meta_range_id: str = field(default="", metadata=wire_at(5, TEXT))
    metadata: Mapping[str, str] = field(default_factory=dict, metadata=wire_at(6, MAP))
    parents: tuple[str, ...] = field(default=(), metadata=wire_at(7, TEXTS))
    version: int = field(default=0, metadata=wire_at(8, SIGNED))
    generation: int = field(default=0, metadata=wire_at(9, SIGNED))


@dataclass(frozen=True)
class RepositoryData(StagingMessage):
    """A repository. `state`: 0 active, 1 in deletion."""

    NAME: ClassVar[str] = "RepositoryData"
    id: str = field(default="", metadata=wire_at(1, TEXT))
    storage_namespace: str = field(default="", metadata=wire_at(2, TEXT))
    default_branch_id: str = field(default="", metadata=wire_at(3, TEXT))
    creation_date: ProtoTimestamp | None = field(default=None, metadata=wire_at(4, INSTANT))
    state: int = field(default=0, metadata=wire_at(5, SIGNED))
    instance_uid: str = field(default="", metadata=wire_at(6, TEXT))
    read_only: bool = field(default=False, metadata=wire_at(7, TRUTH))
    storage_id: str = field(default="", metadata=wire_at(8, TEXT))


@dataclass(frozen=True)
class TagData(StagingMessage):
    """A tag."""

    NAME: ClassVar[str] = "TagData"
    id: str = field(default="", metadata=wire_at(1, TEXT))
    commit_id: str = field(default="", metadata=wire_at(2, TEXT))


@dataclass(frozen=True)
class RangeData(StagingMessage):
    """The statements of a metarange about a range: its keys' bounds, both included, bytes (estimated) and records."""

    NAME: ClassVar[str] = "RangeData"
    min_key: bytes = field(default=b"", metadata=wire_at(1, DATA))
    max_key: bytes = field(default=b"", metadata=wire_at(2, DATA))
    estimated_size: int = field(default=0, metadata=wire_at(3, UNSIGNED))
    count: int = field(default=0, metadata=wire_at(4, SIGNED))


@dataclass(frozen=True)
class CatalogEntry(StagingMessage):
    """An object: the data of a range's value. `address_type`: 1 relative to the storage namespace, 2 a full address."""

    NAME: ClassVar[str] = "Entry"
    address: str = field(default="", metadata=wire_at(1, TEXT))
    last_modified: ProtoTimestamp | None = field(default=None, metadata=wire_at(2, INSTANT))
    size: int = field(default=0, metadata=wire_at(3, SIGNED))
    e_tag: str = field(default="", metadata=wire_at(4, TEXT))
    metadata: Mapping[str, str] = field(default_factory=dict, metadata=wire_at(5, MAP))
    address_type: int = field(default=0, metadata=wire_at(6, SIGNED))
    content_type: str = field(default="", metadata=wire_at(7, TEXT))
