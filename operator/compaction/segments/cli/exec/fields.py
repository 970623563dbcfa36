"""The fields of an operation on a log: those of every history, entries and sets of indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from compaction.cli.histories import fields
from compaction.cli.histories.fields import BASE64
from compaction.errors import RecordTextError
from compaction.segments.errors import LiveSetSyntaxError
from compaction.segments.memtable.table import LogEntry
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.data_file import SnapshotOrigin
from compaction.segments.snapshot.seq import LiveSet

MAX_REPEATED: Final = 100_000
"""Entries that one `repeat` writes."""
_ENTRY: Final = ("index", "term", "payload", "payload" + BASE64)


@dataclass(frozen=True, slots=True)
class Fields(fields.Fields):
    """The fields of one operation, or of one entry of it (`what`). Every method raises RecordTextError."""

    of_bytes: ClassVar = frozenset({"payload", "state"})

    def index(self, name: str, default: int | None = None) -> int:
        """An index or a term; without a default it must be there."""
        return self.number(name, default, most=MAX_INDEX)

    def entry(self) -> LogEntry:
        """`index`, `term` and `payload` of these fields themselves."""
        return LogEntry(self.index("index"), self.index("term"), self.data("payload"))

    def entries(self) -> list[LogEntry]:
        """The list `entries`, or the one entry of the fields themselves, `repeat` times with ascending indexes."""
        if "entries" in self.given:
            if given := sorted(self.given.keys() & {*_ENTRY, "repeat"}):
                raise RecordTextError(f'{self.what} has "entries" or "{given[0]}", not both')
            each = [Fields(one, "an entry") for one in self.objects("entries")]
            for one in each:
                one.check(_ENTRY[:3])
            return [one.entry() for one in each]
        index, term, payload = self.entry()
        count = self.number("repeat", 1, least=1, most=MAX_REPEATED)
        return [LogEntry(index + position, term, payload) for position in range(count)]

    def indexes(self, name: str) -> LiveSet:
        """A set of indexes: text as `1-5,9`, or a list of numbers."""
        found = self.given.get(name)
        try:
            if isinstance(found, str):
                return LiveSet.parse(found)
            if isinstance(found, list) and all(type(one) is int and 0 <= one <= MAX_INDEX for one in found):
                return LiveSet.from_indexes(found)
        except LiveSetSyntaxError as error:
            raise RecordTextError(f'"{name}" of {self.what}: {error}') from None
        raise RecordTextError(f'{self.what} needs "{name}", indexes as "1-5,9" or as a list of numbers')

    def origin(self) -> SnapshotOrigin | None:
        """`cluster`, a list of members each with `name` and `node`, and `machine_version`; None without both."""
        if not self.has("cluster") and not self.has("machine_version"):
            return None
        if not (self.has("cluster") and self.has("machine_version")):
            raise RecordTextError(f'{self.what} has "cluster" and "machine_version", or neither')
        each = [Fields(one, "a member of the cluster") for one in self.objects("cluster")]
        for one in each:
            one.check(("name", "node"))
        members = tuple((one.text("name"), one.text("node")) for one in each)
        return SnapshotOrigin.of_members(members, self.number("machine_version", most=MAX_INDEX))
