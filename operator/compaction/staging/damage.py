"""Damaged sources of a branch: which one an error is about, and whether it is still what was found damaged.

A source is a range or metarange, by its id, or a token. docs/design/staging-areas.md#damage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compaction.errors import CompactionError
from compaction.staging.errors import CorruptMessageError, CorruptRangeError, MissingRangeError, UnsupportedRangeError
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import BranchRecord
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import ObjectMissingError

MISSING: Final = "missing"
"""The identity of an object that does not exist."""
_RANGE: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHOWN: Final = 32
_REST: Final = 10


@dataclass(frozen=True, slots=True)
class DamagedSource:
    """The source that an error is about. `offset`: of the first damaged byte, None where it is not known."""

    name: str
    offset: int | None = None


def damaged_source(error: CompactionError, tokens: Sequence[str]) -> DamagedSource | None:
    """The source that an error names; `tokens` are those of the work. None: it is about something else, or says not
    which.
    """
    if isinstance(error, CorruptRangeError | UnsupportedRangeError):
        return _range_of(error.path, error.offset)
    if isinstance(error, MissingRangeError):
        return _range_of(error.path, None)
    if isinstance(error, CorruptMessageError):
        token = next((token for token in tokens if error.name.startswith(f"{token}:")), None)
        return None if token is None else DamagedSource(token)
    return None


def _range_of(path: str, offset: int | None) -> DamagedSource | None:
    name = path.rpartition("/")[2]
    return DamagedSource(name, offset) if _RANGE.fullmatch(name) else None


def identity_of(kv: KeyValueStore, ranges: RangeStorage, record: BranchRecord, source: str) -> str:
    """Changes when the source is repaired, and when the branch has another commit or base; "" when it has the source no
    more. All rows of a token are read.

    Raises DatabaseError, ObjectError.
    """
    if _RANGE.fullmatch(source):
        return f"{record.commit_id[:_SHOWN]}/{record.compacted_base[:_SHOWN]}/{_version_of(ranges, source)}"
    if source not in record.tokens:
        return ""
    content = hashlib.sha256()
    for page in kv.scan(source):
        for key, row in page:
            content.update(b"%d %d " % (len(key), len(row)) + key + row)
    return content.hexdigest()[:_SHOWN]


class DamageChecks:
    """The findings of scans about sources in quarantine. To check a large token takes time: it is checked again after
    ten times as long. `clock`: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], _Check] = {}

    def identities(
        self,
        kv: KeyValueStore,
        ranges: RangeStorage,
        records: Mapping[str, BranchRecord],
        quarantined: Mapping[str, frozenset[str]],
    ) -> Mapping[tuple[str, str], str]:
        """Of sources by target, as a scan has them (`ScanResult.identities`). `records`: of branches by target; one
        that is gone has no sources. Raises DatabaseError, ObjectError.
        """
        checked = {}
        for target, sources in quarantined.items():
            for source in sources:
                checked[target, source] = self._check(kv, ranges, records.get(target), (target, source))
        self._known = checked
        return {place: check.identity for place, check in checked.items()}

    def _check(
        self, kv: KeyValueStore, ranges: RangeStorage, record: BranchRecord | None, place: tuple[str, str]
    ) -> _Check:
        began, known = self._clock(), self._known.get(place)
        if record is None:
            return _Check("", began, record)
        if known is not None and known.record == record and began < known.again_at:
            return known
        identity = identity_of(kv, ranges, record, place[1])
        ended = self._clock()
        return _Check(identity, ended + _REST * (ended - began), record)


@dataclass(frozen=True, slots=True)
class _Check:
    """One check. `record`: of the branch then."""

    identity: str
    again_at: float
    record: BranchRecord | None


def _version_of(ranges: RangeStorage, source: str) -> str:
    try:
        found = ranges.objects.head(ranges.path(source))
    except ObjectMissingError:
        return MISSING
    return hashlib.sha256(f"{found.etag} {found.size}".encode()).hexdigest()[:_SHOWN]
