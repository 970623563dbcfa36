"""Values of the update log: decode protocols 1 and 2, encode either; and the exact bytes again of what was decoded."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from compaction.catalogs.codec.nesting import ObjectReader, ObjectWriter
from compaction.catalogs.codec.registry import SERIALIZERS
from compaction.catalogs.codec.types import TypeId
from compaction.catalogs.codec.writer import Trace
from compaction.catalogs.errors import CatalogValueError
from compaction.catalogs.model.entries import Event, Snapshot

PROTOCOL_1: Final = 1
PROTOCOL_2: Final = 2
_EVENTS: Final = frozenset({TypeId.SNAPSHOT.value, TypeId.VERSIONED_UPDATE.value})


@dataclass(frozen=True, slots=True)
class Decoded:
    """An event, and what else its bytes held: enough to write them again as they were."""

    event: Event
    protocol: int
    headers: tuple[int, ...]
    residue: tuple[object, ...]

    def encode(self) -> bytes:
        """The bytes that were decoded."""
        return _encode(self.event, self.protocol, Trace(self.headers, self.residue))


def decode(data: bytes, name: str) -> Event:
    """The update or snapshot of a value. `name` is the file or key, for errors.

    Raises CorruptCatalogValueError for a damaged, truncated or overlong value, UnsupportedCatalogValueError for one
    of a protocol, type or version that is not known. Memory is bounded by the size of the value.
    """
    event, _ = _decode(data, name)
    return event


def decode_exact(data: bytes, name: str) -> Decoded:
    """As `decode`, with what the event itself does not keep."""
    event, reader = _decode(data, name)
    return Decoded(event, data[0], tuple(reader.headers), tuple(reader.residue))


def _decode(data: bytes, name: str) -> tuple[Event, ObjectReader]:
    reader = ObjectReader(data, name, SERIALIZERS.readers)
    try:
        protocol = data[0] | data[1] << 8
        reader.at = 2
        if protocol == PROTOCOL_2:
            event: Event = reader.object(_EVENTS)
        elif protocol == PROTOCOL_1:
            number = data[2] | data[3] << 8
            if number not in _EVENTS:
                reader.unexpected(number, 2)
            reader.at = 4
            event = reader.serializers[number][1](reader)
        else:
            reader.unsupported(f"protocol {protocol}", 0)
    except (IndexError, struct.error):
        reader.corrupt(f"the value ends after {len(data)} bytes, in the middle of an object")
    if reader.at != len(data):
        reader.corrupt(f"{len(data) - reader.at} bytes follow the value")
    return event, reader


def encode(event: Event, protocol: int = PROTOCOL_2) -> bytes:
    """The value of an event, with the newest serializers of a protocol. Lists are written in the order they have.

    Raises CatalogValueError when the protocol cannot hold the event.
    """
    return _encode(event, protocol, None)


def _encode(event: Event, protocol: int, trace: Trace | None) -> bytes:
    writer = ObjectWriter(SERIALIZERS.writers, trace)
    kind = TypeId.SNAPSHOT if isinstance(event, Snapshot) else TypeId.VERSIONED_UPDATE
    try:
        writer.packed("h", protocol)
        if protocol == PROTOCOL_1:
            writer.packed("h", kind)
            writer.serializers[kind][1](writer, event)
        else:
            writer.object(kind, event)
    except (ValueError, OverflowError, struct.error) as error:
        raise CatalogValueError(str(error)) from error
    return bytes(writer.out)
