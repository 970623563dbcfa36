"""Leases as frozen records, the fencing tokens in them, and when one has expired by this process's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from compaction.api.text.printing import cut
from compaction.errors import MalformedLeaseError, TokenExhaustedError

# `coordination.k8s.io/v1` Leases as frozen records: parse, change, build.
#
# `LeaseRecord` is the spec, `Lease` the parts of the object that this project uses. `leaseTransitions` is the counter
# that fencing tokens live in (docs/design/leases-and-tokens.md#tokens); times are informative only and are never
# compared with a local clock. Pure: no I/O, the wall clock is passed in.

_LONGEST_TIME: Final = 64
_LONGEST_QUOTE: Final = 80


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


def format_micro_time(moment: datetime) -> str:
    """Kubernetes MicroTime: UTC, always six fractional digits, `Z`. Raises ValueError for a naive datetime."""
    if moment.tzinfo is None:
        raise ValueError("a lease time must carry a time zone")
    # Not strftime: it writes years before 1000 with fewer than four digits.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_micro_time(text: str) -> datetime:
    """RFC 3339 with any number of fractional digits; more than six are cut. Raises ValueError."""
    if len(text) > _LONGEST_TIME:
        raise ValueError(f"a time has at most {_LONGEST_TIME} characters")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is before the year 1 or after the year 9999 in UTC") from error


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The spec of a Lease. `holder` is None when it is not held (released leases have an empty string)."""

    holder: str | None = None
    duration_seconds: int | None = None
    transitions: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None

    @classmethod
    def parse(cls, spec: Mapping[str, Any], *, name: str = "lease") -> LeaseRecord:
        """Read a Lease's spec. Raises MalformedLeaseError naming the lease and the field."""
        return cls(
            holder=_text(spec, "holderIdentity", name) or None,
            duration_seconds=_count(spec, "leaseDurationSeconds", name),
            transitions=_count(spec, "leaseTransitions", name) or 0,
            acquire_time=_time(spec, "acquireTime", name),
            renew_time=_time(spec, "renewTime", name),
        )

    def spec(self) -> dict[str, Any]:
        """The JSON form; absent values are left out, a missing holder is written as the empty string."""
        spec: dict[str, Any] = {"holderIdentity": self.holder or "", "leaseTransitions": self.transitions}
        if self.duration_seconds is not None:
            spec["leaseDurationSeconds"] = self.duration_seconds
        if self.acquire_time is not None:
            spec["acquireTime"] = format_micro_time(self.acquire_time)
        if self.renew_time is not None:
            spec["renewTime"] = format_micro_time(self.renew_time)
        return spec

    def acquired(self, holder: str, *, transitions: int, duration_seconds: int, now: datetime) -> LeaseRecord:
        """A new term: both times are `now`."""
        return LeaseRecord(holder, duration_seconds, transitions, acquire_time=now, renew_time=now)

    def renewed(self, *, now: datetime) -> LeaseRecord:
        """The same term, one renewal later."""
        return replace(self, renew_time=now)

    def released(self, *, now: datetime) -> LeaseRecord:
        """Released, so free at once: no holder, one second, the transitions kept (docs/design/leases-and-tokens.md)."""
        return LeaseRecord(None, 1, self.transitions, acquire_time=now, renew_time=now)


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease object: identity, the metadata this project reads or writes, and its record.

    `resource_version` None means it was not read from the server; `body()` then carries no precondition.
    """

    name: str
    namespace: str
    record: LeaseRecord = field(default_factory=LeaseRecord)
    uid: str | None = None
    resource_version: str | None = None
    labels: Mapping[str, str] = field(default_factory=_empty)
    annotations: Mapping[str, str] = field(default_factory=_empty)
    owner_references: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Lease:
        """Read an object of the API server. Raises MalformedLeaseError."""
        metadata = body.get("metadata")
        if not isinstance(metadata, Mapping):
            metadata = {}
        namespace, name = metadata.get("namespace"), metadata.get("name")
        if not (name and namespace and isinstance(name, str) and isinstance(namespace, str)):
            raise MalformedLeaseError("an object without metadata.name and metadata.namespace is not a Lease")
        full = f"{namespace}/{name}"
        spec, owners = body.get("spec") or {}, metadata.get("ownerReferences") or ()
        if not isinstance(spec, Mapping):
            raise MalformedLeaseError(f"lease {full}: spec must be an object, not {_brief(spec)}")
        if not isinstance(owners, Sequence) or not all(isinstance(owner, Mapping) for owner in owners):
            raise MalformedLeaseError(f"lease {full}: metadata.ownerReferences must be objects, not {_brief(owners)}")
        return cls(
            name=name,
            namespace=namespace,
            record=LeaseRecord.parse(spec, name=full),
            uid=_text(metadata, "uid", full, of="metadata"),
            resource_version=_text(metadata, "resourceVersion", full, of="metadata"),
            labels=_texts(metadata, "labels", full),
            annotations=_texts(metadata, "annotations", full),
            owner_references=tuple(owners),
        )

    def body(self) -> dict[str, Any]:
        """The object for a create or a whole PUT; labels, annotations and owners missing here are dropped by a PUT."""
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        if self.labels:
            metadata["labels"] = dict(self.labels)
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        if self.owner_references:
            metadata["ownerReferences"] = [dict(owner) for owner in self.owner_references]
        if self.uid is not None:
            metadata["uid"] = self.uid
        if self.resource_version is not None:
            metadata["resourceVersion"] = self.resource_version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": self.record.spec(),
        }

    def with_record(self, record: LeaseRecord) -> Lease:
        """The same object with another record."""
        return replace(self, record=record)

    def annotate(self, changes: Mapping[str, str | None]) -> Lease:
        """The same object with annotations set, or removed where the value is None."""
        merged = {key: value for key, value in {**self.annotations, **changes}.items() if value is not None}
        return replace(self, annotations=MappingProxyType(merged))


def _brief(value: object) -> str:
    return cut(ascii(value), _LONGEST_QUOTE)


def _text(holder: Mapping[str, Any], key: str, name: str, *, of: str = "spec") -> str | None:
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise MalformedLeaseError(f"lease {name}: {of}.{key} must be a string, not {_brief(value)}")
    return value


def _texts(metadata: Mapping[str, Any], key: str, name: str) -> Mapping[str, str]:
    value = metadata.get(key) or {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise MalformedLeaseError(f"lease {name}: metadata.{key} must map names to strings, not be {_brief(value)}")
    return MappingProxyType(dict(value))


def _count(spec: Mapping[str, Any], key: str, name: str) -> int | None:
    value = spec.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MalformedLeaseError(f"lease {name}: spec.{key} must be a non-negative integer, not {_brief(value)}")
    return value


def _time(spec: Mapping[str, Any], key: str, name: str) -> datetime | None:
    value = spec.get(key)
    if value is None:
        return None
    try:
        return parse_micro_time(value)
    except (TypeError, ValueError) as error:
        raise MalformedLeaseError(f"lease {name}: spec.{key} is not a time: {_brief(value)}") from error


# Fencing tokens: positive integers that grow at every assignment of a job (docs/design/leases-and-tokens.md#tokens).
#
# The token lives in `Lease.spec.leaseTransitions`, but a Lease can be deleted and a cluster restored from an old
# backup. So the next one is floored by every place that remembers: the job's status and, above all, the store itself.

#: `leaseTransitions` is an int32; one assignment per second would reach this after 68 years.
MAX_TOKEN = 2**31 - 1


def next_token(lease_transitions: int | None, status_token: int | None, high_water: int | None) -> int:
    """`max(Lease.leaseTransitions, status.fencingToken, the store's high water) + 1`; None means nothing is recorded.

    Strictly larger than every argument. Raises ValueError on a negative argument, TokenExhaustedError at int32's end.
    """
    known = [value for value in (lease_transitions, status_token, high_water) if value is not None]
    if any(value < 0 for value in known):
        raise ValueError(f"a token cannot be negative: {known}")
    token = max(known, default=0) + 1
    if token > MAX_TOKEN:
        raise TokenExhaustedError(
            f"the next fencing token would be {token}, above the largest a Lease can hold ({MAX_TOKEN}); "
            "create the job under another name"
        )
    return token


# The expiry of a lease: decided from what this process saw change, by its own monotonic clock, and nothing else.
#
# client-go's rule (docs/design/leases-and-tokens.md#expiry): remember the record and the local time at which it was
# last seen to *change*; the lease is expired once its own duration has passed since then without a change. Remote
# timestamps are never compared with a local clock, so clock skew does not matter, only clock rate. A process that has
# just started measures afresh: it may find a dead lease later than necessary, never a live one expired.
#
# The clock must not count time the machine was suspended, or everything would look expired on waking, before the
# first fresh observation: `time.monotonic` on Linux is right.

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """The last record seen for a key and the local time (seconds, own clock) at which it was first seen like this."""

    record: LeaseRecord
    changed_at: float


class LeaseObserver(Generic[Key]):
    """Keeps one observation per key. Not thread safe: one owner, one loop."""

    def __init__(self, *, default_duration: float = 15.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._default_duration = default_duration
        self._seen: dict[Key, LeaseObservation] = {}

    def observe(self, key: Key, record: LeaseRecord) -> bool:
        """Note a record read just now; True when it differs from the last one, which restarts the measure."""
        previous = self._seen.get(key)
        if previous is not None and previous.record == record:
            return False
        self._seen[key] = LeaseObservation(record, self._clock())
        return True

    def forget(self, key: Key) -> None:
        """The lease is gone, or no longer of interest."""
        self._seen.pop(key, None)

    def last(self, key: Key) -> LeaseObservation | None:
        """Return the last observation of the key, None when there is none."""
        return self._seen.get(key)

    def expires_at(self, key: Key) -> float | None:
        """Local time from which the lease counts as expired; None when it was never observed.

        A lease without a holder is free from the moment this was seen. The duration is the one its holder wrote; the
        default applies only to a record without one.
        """
        seen = self._seen.get(key)
        if seen is None:
            return None
        if seen.record.holder is None:
            return seen.changed_at
        duration = seen.record.duration_seconds
        return seen.changed_at + (self._default_duration if duration is None else duration)

    def expired(self, key: Key) -> bool:
        """True from the exact instant `expires_at`. A lease never observed is not expired: nothing was measured."""
        expires_at = self.expires_at(key)
        return expires_at is not None and self._clock() >= expires_at

    def remaining(self, key: Key) -> float | None:
        """Seconds until expiry, never negative; None when never observed. The natural delay for the next read."""
        expires_at = self.expires_at(key)
        return None if expires_at is None else max(0.0, expires_at - self._clock())

    def __contains__(self, key: Key) -> bool:
        return key in self._seen

    def keys(self) -> tuple[Key, ...]:
        """Every key with an observation."""
        return tuple(self._seen)
