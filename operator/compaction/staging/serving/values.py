"""Values of objects, between the wire and the store (docs/design/staging.md#values)."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any, Final, Literal

from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.framing import FramingError, frame_value, split_value
from compaction.staging.format.identity import entry_identity
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp
from compaction.staging.serving.messages import ObjectAnswer, ObjectValue, ShownEntry, WireEntry, bytes_of

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
    """What a listing has of a value: other bytes than entries by their size."""
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
    modified = _instant(entry.last_modified) if entry.last_modified else _timestamp(now)
    metadata = dict(sorted(entry.metadata.items()))
    return CatalogEntry(
        entry.address, modified, entry.size, entry.e_tag, metadata, _TYPES.index(kind), entry.content_type
    )


def _timestamp(seconds: float) -> ProtoTimestamp:
    return ProtoTimestamp(int(seconds), int(seconds % 1 * 1e9))


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
        return None
    fraction = f".{instant.nanos:09d}".rstrip("0") if 0 < instant.nanos < 10**9 else ""
    return f"{moment}{fraction}Z"
