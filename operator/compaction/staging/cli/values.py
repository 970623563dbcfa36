"""Values of records as people write and read them: objects (entries as of lakeFS), or any bytes with an identity.

docs/design/staging.md#identities has the identity of an entry; that of other bytes is their SHA-256, unless another one
is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from compaction.cli.histories import quoted, text_fields
from compaction.errors import RecordTextError
from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.identity import FramingError, entry_identity, frame_value, split_value
from compaction.staging.format.messages import CatalogEntry, ProtoTimestamp

RELATIVE, FULL = 1, 2
"""Types of an address: below the storage namespace, or a URL."""
_ADDRESS_TYPES: Final = {0: "byPrefix", RELATIVE: "relative", FULL: "full"}
_INT64: Final = 1 << 63


def raw_value(data: bytes, identity: bytes | None = None) -> bytes:
    """The framed value of any bytes."""
    return frame_value(raw_identity(data) if identity is None else identity, data)


def raw_identity(data: bytes) -> bytes:
    """The identity that bytes have when none is given."""
    return hashlib.sha256(data).digest()


def entry_value(entry: CatalogEntry) -> bytes:
    """The framed value of an object."""
    return frame_value(entry_identity(entry), entry.encode())


def new_entry(
    address: str, *, size: int, e_tag: str, metadata: Mapping[str, str], content_type: str, modified: float
) -> CatalogEntry:
    """An object that is somewhere: `address` is a URL, or a path below the storage namespace. `modified`: seconds."""
    kind = FULL if "://" in address else RELATIVE
    when = ProtoTimestamp(int(modified), int(modified % 1 * 1e9))
    return CatalogEntry(address, when, size, e_tag, dict(sorted(metadata.items())), kind, content_type)


def entry_of(identity: bytes, data: bytes, *, strictly: bool = True) -> CatalogEntry | None:
    """The object that a value holds, None when it holds other bytes. `strictly`: the identity is the entry's."""
    try:
        entry = CatalogEntry.decode(data)
    except CorruptMessageError:
        return None
    if strictly:
        return entry if entry_identity(entry) == identity else None
    return entry if entry.address and not entry.unknown else None


def entry_object(entry: CatalogEntry) -> dict[str, Any]:
    """An entry with exact values."""
    return {
        "address": entry.address,
        "addressType": _ADDRESS_TYPES.get(entry.address_type, entry.address_type),
        "size": entry.size,
        "eTag": entry.e_tag,
        "lastModified": instant_text(entry.last_modified),
        "metadata": dict(entry.metadata),
        "contentType": entry.content_type,
    }


def entry_from(fields: Mapping[str, Any]) -> CatalogEntry:
    """The entry that `entry_object` shows; all but `address` may be left out. RecordTextError: it is none."""
    known = {"address", "addressType", "size", "eTag", "lastModified", "metadata", "contentType"}
    if unknown := sorted(set(fields) - known):
        raise RecordTextError(f"an entry has no {quoted(unknown[0])}: write {', '.join(sorted(known))}")
    address, size, metadata = fields.get("address", ""), fields.get("size", 0), fields.get("metadata", {})
    texts = address, fields.get("eTag", ""), fields.get("contentType", "")
    if not address or not all(isinstance(text, str) for text in texts):
        raise RecordTextError('"address" (not empty), "eTag" and "contentType" of an entry are texts')
    if type(size) is not int or not -_INT64 <= size < _INT64:
        raise RecordTextError('"size" of an entry is a number of bytes')
    if not isinstance(metadata, dict) or not all(isinstance(item, str) for item in metadata.values()):
        raise RecordTextError('"metadata" of an entry is an object of texts')
    kinds = {name: number for number, name in _ADDRESS_TYPES.items()}
    kind = fields.get("addressType", "full" if "://" in address else "relative")
    if kind not in kinds:
        raise RecordTextError(f'"addressType" of an entry is one of {", ".join(kinds)}')
    modified = _instant(fields.get("lastModified"))
    return CatalogEntry(address, modified, size, texts[1], metadata, kinds[kind], texts[2])


def value_object(value: bytes) -> dict[str, Any]:
    """A framed value: its identity, and the entry, or the data as text or base64."""
    identity, data = parts_of(value)
    shown: dict[str, Any] = {"identity": identity.hex()}
    if (entry := entry_of(identity, data)) is not None:
        return shown | {"entry": entry_object(entry)}
    return shown | text_fields("value", data)


def parts_of(value: bytes) -> tuple[bytes, bytes]:
    """Identity and data of a framed value; one that is not framed, which only a foreign writer writes, is data."""
    try:
        return split_value(value)
    except FramingError:
        return b"", value


def shown_key(key: bytes) -> str:
    """A key for people; stray bytes are written out by whatever prints it."""
    return key.decode(errors="surrogateescape")


def bytes_of_hex(text: object, name: str) -> bytes:
    """RecordTextError: no hexadecimal digits, or none at all."""
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        # Refused below, in the words for an empty one.
        found = b""
    if not found:
        raise RecordTextError(f'"{name}" is an identity in hexadecimal digits')
    return found


def instant_text(instant: ProtoTimestamp | None) -> str | None:
    """`2026-11-21T10:30:00Z`, with the fraction that there is, exact; seconds outside of the years 1 to 9999."""
    if instant is None:
        return None
    try:
        moment = datetime.fromtimestamp(instant.seconds, UTC).replace(tzinfo=None).isoformat()
    except (OverflowError, ValueError, OSError):
        # `datetime` ends with the year 9999, a message does not: the number itself is shown.
        return str(instant.seconds)
    fraction = f".{instant.nanos:09d}".rstrip("0") if instant.nanos > 0 else ""
    return f"{moment}{fraction}Z"


def moment_text(seconds: float) -> str | None:
    """The same of seconds since 1970, with milliseconds."""
    return instant_text(ProtoTimestamp(int(seconds), round(seconds % 1 * 1000) * 1_000_000))


def _instant(text: object) -> ProtoTimestamp | None:
    if text is None:
        return None
    try:
        whole, _, fraction = str(text).removesuffix("Z").partition(".")
        moment = datetime.fromisoformat(whole + "+00:00")
        nanos = int(fraction.ljust(9, "0")) if fraction else 0
    except ValueError:
        raise RecordTextError('"lastModified" of an entry is a time in UTC such as 2026-11-21T10:30:00.5Z') from None
    if not 0 <= nanos < 10**9 or not str(text).endswith("Z"):
        raise RecordTextError('"lastModified" of an entry is a time in UTC such as 2026-11-21T10:30:00.5Z')
    return ProtoTimestamp(int(moment.timestamp()), nanos)
