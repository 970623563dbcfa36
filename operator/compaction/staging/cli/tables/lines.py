"""Records as lines of JSON: a record per line, its bytes as base64.

    {"key": "YQ==", "value": "..."}

`value` is the value as the table has it. Instead of it a line may have `identity` and `data` (the parts of a framed
value, base64), or `entry` (docs/design/staging.md#values). Lines that were read have all of them; then `value` counts.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from compaction.cli.histories.lines import object_of
from compaction.cli.histories.texts import bytes_of_base64, quoted, text_fields
from compaction.errors import RecordLineError, RecordTextError, shown_bytes
from compaction.staging.cli.values import entry_from, entry_object, entry_of, entry_value
from compaction.staging.errors import CorruptMessageError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.framing import FramingError, frame_value, split_value
from compaction.staging.format.messages import RangeData
from compaction.staging.format.ranges import TableKind
from compaction.staging.format.table_writer import MAX_KEY_BYTES, MAX_VALUE_BYTES

_BASE64: Final = "Base64"
FIELDS: Final = ("key", "value", "identity", "data", "entry", "range")
MAX_LINE_BYTES: Final = 4 * (MAX_KEY_BYTES + 3 * MAX_VALUE_BYTES)
BATCH_RECORDS: Final = 8192
BATCH_BYTES: Final = 8 << 20


def record_line(key: bytes, value: bytes, kind: TableKind | None) -> dict[str, Any]:
    """The line of a record; what its value means where it has that meaning. `kind`: of the table, None: unknown."""
    line: dict[str, Any] = {"key": _text(key), "value": _text(value)}
    try:
        identity, data = split_value(value)
    except FramingError:
        return line
    line |= {"identity": _text(identity), "data": _text(data)}
    if kind is TableKind.METARANGES:
        try:
            return line | {"range": _range_object(identity, RangeData.decode(data))}
        except CorruptMessageError:
            return line
    entry = entry_of(identity, data, strictly=False)
    return line if entry is None else line | {"entry": entry_object(entry)}


def read_lines(file: IO[bytes], *, name: str) -> Iterator[RecordColumns]:
    """The records of a file, in batches. OSError; RecordLineError names the first bad line: one that is no record, or
    whose key is not greater than the one before it.
    """
    batch: list[tuple[bytes, bytes]] = []
    size = number = 0
    last: bytes | None = None
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not raw.strip():
            continue
        try:
            key, value = _record(raw)
            _check_order(last, key)
        except RecordTextError as error:
            raise RecordLineError(name, number, str(error)) from None
        last = key
        batch.append((key, value))
        size += len(key) + len(value)
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield RecordColumns.of(batch)
            batch, size = [], 0
    if batch:
        yield RecordColumns.of(batch)


def properties_object(user: Mapping[bytes, bytes]) -> dict[str, str]:
    """The properties of a writer: texts, or under `<name>Base64` what is none."""
    shown: dict[str, str] = {}
    for name, value in sorted(user.items()):
        shown |= text_fields(name.decode(errors="backslashreplace"), value)
    return shown


def properties_of(path: Path) -> dict[bytes, bytes]:
    """The properties in a file that has what `sst read --properties -o json` prints. OSError, RecordTextError."""
    document = object_of(path.read_bytes(), most=MAX_LINE_BYTES)
    found = document.get("properties")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise RecordTextError(f'{path}: it has no "properties", an object of texts')
    return {
        name.removesuffix(_BASE64).encode(): bytes_of_base64(value, name) if name.endswith(_BASE64) else value.encode()
        for name, value in found.items()
    }


def _record(raw: bytes) -> tuple[bytes, bytes]:
    fields = object_of(raw, most=MAX_LINE_BYTES)
    if unknown := sorted(set(fields) - set(FIELDS)):
        raise RecordTextError(f"a record has no {quoted(unknown[0])}: write {', '.join(FIELDS)}")
    if "key" not in fields:
        raise RecordTextError('a record needs "key"')
    key, value = bytes_of_base64(fields["key"], "key"), _value(fields)
    if len(key) > MAX_KEY_BYTES:
        raise RecordTextError(f'"key" has {len(key)} bytes, more than {MAX_KEY_BYTES}')
    if len(value) > MAX_VALUE_BYTES:
        raise RecordTextError(f"the value has {len(value)} bytes, more than {MAX_VALUE_BYTES}")
    return key, value


def _value(fields: Mapping[str, Any]) -> bytes:
    if "value" in fields:
        return bytes_of_base64(fields["value"], "value")
    if "identity" in fields and "data" in fields:
        parts = (bytes_of_base64(fields[name], name) for name in ("identity", "data"))
        return frame_value(*parts)
    if isinstance(fields.get("entry"), dict):
        return entry_value(entry_from(fields["entry"]))
    raise RecordTextError('a record needs "value", or "identity" and "data", or "entry"')


def _check_order(last: bytes | None, key: bytes) -> None:
    if last is None or last < key:
        return
    wrong = "is there twice" if last == key else f"is not greater than {shown_bytes(last)} before it"
    raise RecordTextError(f"the key {shown_bytes(key)} {wrong}: sort the records by the bytes of their keys")


def _range_object(identity: bytes, data: RangeData) -> dict[str, Any]:
    return {
        "id": identity.decode("ascii", errors="backslashreplace"),
        "minKey": _text(data.min_key),
        "maxKey": _text(data.max_key),
        "count": data.count,
        "estimatedSize": data.estimated_size,
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
