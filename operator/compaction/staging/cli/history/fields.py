"""The fields of an operation on a staging area: those of every history, and records with their framed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from compaction.cli.histories import fields
from compaction.cli.histories.fields import BASE64
from compaction.errors import RecordTextError
from compaction.staging.cli.values import bytes_of_hex, entry_from, entry_value, raw_value

_VALUE: Final = ("value", "value" + BASE64, "entry", "identity")
_RECORD: Final = frozenset({"key", "key" + BASE64, *_VALUE})


@dataclass(frozen=True, slots=True)
class Fields(fields.Fields):
    """The fields of one operation, or of one record of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar = frozenset({"key", "keys", "value", "prefix", "prefixes", "after", "delimiter", "if_value"})

    def value(self) -> bytes:
        """A framed value: of `value` (with its `identity`, or that of its bytes), or of an `entry`."""
        if "entry" in self.given:
            if not isinstance(self.given["entry"], dict) or self.given.keys() & {"value", "value" + BASE64, "identity"}:
                raise RecordTextError(f'"entry" of {self.what} is an object, without a value or identity beside it')
            return entry_value(entry_from(self.given["entry"]))
        identity = bytes_of_hex(self.given["identity"], "identity") if self.has("identity") else None
        return raw_value(self.data("value"), identity)

    def records(self) -> list[tuple[bytes, bytes]]:
        """Keys and framed values of `values` (an object of texts), or of `records` (a list with a value each)."""
        if "values" in self.given:
            if "records" in self.given:
                raise RecordTextError(f'{self.what} has "values" or "records", not both')
            pairs = self.texts("values").items()
            one = [Fields({"key": key, "value": value}, self.what) for key, value in pairs]
        else:
            one = [Fields(record, "a record") for record in self.objects("records")]
        for record in one:
            record.check(_RECORD)
        return [(record.data("key"), record.value()) for record in one]
