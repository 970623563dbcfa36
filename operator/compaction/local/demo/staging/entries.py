"""The records of the demo: a record is its number and the version of what is there, as key and value.

Numbers below `LOGS` are under the prefix `logs/`, the others under `tables/`; keys are in the order of their numbers.
Values are entries as lakeFS has them, all of one length, so a million of them are made and read by whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.local.errors import DemoError
from compaction.staging.format.columns import BINARY, RecordColumns, data_of, offsets_of
from compaction.staging.format.framing import frame_value
from compaction.staging.format.messages import CatalogEntry

Numbers = npt.NDArray[np.int64]
Versions = npt.NDArray[np.uint32]

LOGS: Final = 1_050_000
TABLES: Final = 120_000
TOTAL: Final = LOGS + TABLES
LOGS_PREFIX: Final = b"logs/"
TABLES_PREFIX: Final = b"tables/"
DIGITS: Final = 8
_TAG: Final = f"{0:0{DIGITS}d}.{0:0{DIGITS}d}"
"""Number and version of a record: its tag, which is identity, ETag and name of the object at once."""
_ENTRY: Final = CatalogEntry(address=f"data/{_TAG}", size=1024, e_tag=_TAG, address_type=1)
_TEMPLATE: Final = np.frombuffer(frame_value(_TAG.encode(), _ENTRY.encode()), np.uint8)
_POWERS: Final = 10 ** np.arange(DIGITS - 1, -1, -1, dtype=np.int64)


def _tags() -> tuple[int, ...]:
    """Where the tag is in a value."""
    value, found, at = _TEMPLATE.tobytes(), list[int](), 0
    while (at := value.find(_TAG.encode(), at)) >= 0:
        found.append(at)
        at += 1
    return tuple(found)


_AT: Final = _tags()


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Records that were read: their numbers, in order, and versions."""

    numbers: Numbers
    versions: Versions

    def __len__(self) -> int:
        return len(self.numbers)


def encode_entries(numbers: Numbers, versions: Versions) -> RecordColumns:
    """The records of these numbers, which ascend."""
    return RecordColumns(keys_of(numbers), _values(numbers, versions))


def keys_of(numbers: Numbers) -> Any:
    """Keys as a large_binary array."""
    cut = int(np.searchsorted(numbers, LOGS))
    return pa.concat_arrays([_keys(LOGS_PREFIX, numbers[:cut]), _keys(TABLES_PREFIX, numbers[cut:])])


def key_of(number: int) -> bytes:
    """The key of one record."""
    return (LOGS_PREFIX if number < LOGS else TABLES_PREFIX) + b"%0*d" % (DIGITS, number)


def decode_entries(records: RecordColumns) -> EntryColumns:
    """What was read. DemoError: a record is none of the demo's: its key or value has another form."""
    offsets, data = offsets_of(records.keys), data_of(records.keys)
    numbers = _numbers(data, offsets[1:] - DIGITS)
    begins, content = offsets_of(records.values)[:-1], data_of(records.values)
    if len(records) and (np.diff(offsets_of(records.values)) != _TEMPLATE.size).any():
        raise DemoError("a value has another length than those that were written")
    versions = _numbers(content, begins + _AT[0] + DIGITS + 1).astype(np.uint32)
    # Every byte counts, not only the digits that were read.
    again = encode_entries(numbers, versions)
    if not (again.keys.equals(records.keys) and again.values.equals(records.values)):
        raise DemoError("a key or a value is none of those that were written")
    return EntryColumns(numbers, versions)


def _keys(prefix: bytes, numbers: Numbers) -> Any:
    rows = np.tile(np.frombuffer(prefix + b"0" * DIGITS, np.uint8), (len(numbers), 1))
    rows[:, len(prefix) :] = _digits(numbers)
    return _rows(rows)


def _values(numbers: Numbers, versions: Versions) -> Any:
    rows = np.tile(_TEMPLATE, (len(numbers), 1))
    first, second = _digits(numbers), _digits(versions.astype(np.int64))
    for at in _AT:
        rows[:, at : at + DIGITS] = first
        rows[:, at + DIGITS + 1 : at + 2 * DIGITS + 1] = second
    return _rows(rows)


def _digits(numbers: Numbers) -> npt.NDArray[np.uint8]:
    digits: npt.NDArray[np.uint8] = (numbers[:, None] // _POWERS % 10 + ord("0")).astype(np.uint8)
    return digits


def _numbers(data: npt.NDArray[np.uint8], begins: Numbers) -> Numbers:
    digits = data[begins[:, None] + np.arange(DIGITS)].astype(np.int64) - ord("0")
    found: Numbers = digits @ _POWERS
    return found


def _rows(rows: npt.NDArray[np.uint8]) -> Any:
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(BINARY, len(rows), buffers)
