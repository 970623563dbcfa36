"""Explanations of `kubectl compaction why`: four lists of sentences about one object, and what they say of the
coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from compaction.api.names import COORDINATOR_LEASE
from compaction.api.text.printing import format_age
from compaction.core.meaning import Meaning, Names
from compaction.leases.record import Lease

LISTS: Final = ("state", "debt", "next", "actions")
"""The lists of an explanation, in the order of the output."""
MOST_NAMED: Final = 5
"""The number of jobs, sources or targets that are named; of the others only the count is shown."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`subject` names the object and its state; `state` says what holds now and since when; `debt` what waits to be
    compacted; `next` what the operator does without a user; `actions` what a user can do. Each sentence occurs once.
    """

    subject: str
    state: tuple[str, ...] = ()
    debt: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()

    def to_object(self) -> dict[str, Any]:
        """The same for json and yaml."""
        return {"subject": self.subject} | {name: list(getattr(self, name)) for name in LISTS}


class ExplanationBuilder:
    """Collects sentences in order, each once, with the names of the object filled in."""

    def __init__(self, names: Names, now: datetime) -> None:
        self._names = names
        self.now = now
        self._messages: set[str] = set()
        self._lists: dict[str, dict[str, None]] = {name: {} for name in LISTS}

    def state(self, *sentences: str) -> None:
        """Add sentences about what holds now."""
        self._add("state", sentences)

    def debt(self, *sentences: str) -> None:
        """Add sentences about what waits to be compacted."""
        self._add("debt", sentences)

    def next(self, *sentences: str) -> None:
        """Add sentences about what the operator does without a user."""
        self._add("next", sentences)

    def actions(self, *sentences: str) -> None:
        """Add sentences about what a user can do."""
        self._add("actions", sentences)

    def once(self, subject: str, says: str, message: str) -> str:
        """A condition in one sentence: the operator's own message, which has the particulars, or what the reason means
        when there is none. A message that was printed before is not repeated.
        """
        if not message:
            return f"{subject}: {says}"
        if message in self._messages:
            return f"{subject}."
        self._messages.add(message)
        return f"{subject}: {message}{'' if message.endswith(('.', '!')) else '.'}"

    def said(self, says: str, message: str) -> str:
        """A sentence, followed by the operator's own message in parentheses unless it was printed before."""
        if not message or message in self._messages:
            return says
        self._messages.add(message)
        return f"{says} ({message})"

    def consequences(self, meaning: Meaning, *, names: Names | None = None) -> None:
        """Add what follows from a reason: `next` and `do`."""
        named = names or self._names
        self.next(named.fill(meaning.next))
        if meaning.do:
            self.actions(named.fill(meaning.do))

    def age(self, moment: datetime | None) -> str:
        """`2m10s` since that moment; a clock that is ahead of ours makes it 0s."""
        return format_age((self.now - moment).total_seconds()) if moment is not None else "an unknown time"

    def until(self, moment: datetime) -> str:
        """`in 2m10s`, or `now` when that moment has come."""
        seconds = (moment - self.now).total_seconds()
        return f"in {format_age(seconds)}" if seconds >= 1 else "now"

    def told(self, subject: str) -> Explanation:
        """All that was collected."""
        return Explanation(subject, *(tuple(self._lists[name]) for name in LISTS))

    def _add(self, name: str, sentences: Iterable[str]) -> None:
        self._lists[name].update(dict.fromkeys(sentence for sentence in sentences if sentence))


def first_of(items: Mapping[str, str], noun: str) -> tuple[str, ...]:
    """One sentence per item, for the first few; then how many more there are."""
    sentences = [f"{name}: {text}" for name, text in list(items.items())[:MOST_NAMED]]
    more = len(items) - MOST_NAMED
    return (*sentences, f"And {more} more {noun}.") if more > 0 else tuple(sentences)


# The coordinator of the policies of a namespace, read from Leases. Shown to users; no decision depends on it.

SILENT_AFTER: Final = 4
"""A Lease without a renewal for so many of its durations, by the writer's clock, counts as silent."""
_DURATION: Final = 15


class Leadership(StrEnum):
    """The state of the leadership by a coordinator's Lease."""

    LEADS = "Leads"
    SILENT = "Silent"  # its holder has not renewed it for long
    RELEASED = "Released"  # the last holder ended in order
    ABSENT = "Absent"  # there is none: no operator has led yet
    UNKNOWN = "Unknown"  # Leases may not be read here


MISSING: Final = frozenset({Leadership.SILENT, Leadership.RELEASED, Leadership.ABSENT})
"""The states in which no operator coordinates."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The coordinator. `renewed`: the holder's own time of the last renewal."""

    state: Leadership = Leadership.UNKNOWN
    holder: str = ""
    renewed: datetime | None = None

    @property
    def is_missing(self) -> bool:
        """True when no operator coordinates: nothing happens until one does."""
        return self.state in MISSING

    def sentence(self, now: datetime) -> str:
        """The reason when no operator coordinates; "" when one does, or Leases cannot be read."""
        match self.state:
            case Leadership.SILENT:
                ago = format_age((now - self.renewed).total_seconds()) if self.renewed is not None else "long"
                return f"No operator coordinates: {self.holder} last renewed its Lease {ago} ago, by its own clock."
            case Leadership.RELEASED:
                return "No operator coordinates: the last one released its Lease."
            case Leadership.ABSENT:
                return "No operator coordinates: none has held the Lease yet."
        return ""


UNKNOWN: Final = Coordination()


def coordination(leases: Sequence[Lease] | None, namespace: str, now: datetime, *, complete: bool) -> Coordination:
    """The coordinator of the policies of a namespace: the coordinator of that namespace, else one of any other, because
    an operator may watch several.

    Args:
        leases: None when they may not be read; others than coordinators' do not matter.
        complete: whether these are the Leases of all namespaces.
    """
    found = [lease for lease in leases or () if lease.name == COORDINATOR_LEASE]
    own = [_of(item, now) for item in found if item.namespace == namespace]
    if own:
        return own[0]
    others = [_of(item, now) for item in found]
    leading = next((other for other in others if other.state is Leadership.LEADS), None)
    if leading is not None:
        return leading
    if leases is None or not complete:
        return UNKNOWN
    return max(others, key=lambda other: (other.renewed is not None, other.renewed or now), default=_ABSENT)


_ABSENT: Final = Coordination(Leadership.ABSENT)


def _of(lease: Lease, now: datetime) -> Coordination:
    record = lease.record
    if record.holder is None:
        return Coordination(Leadership.RELEASED, renewed=record.renew_time)
    patience = timedelta(seconds=SILENT_AFTER * (record.duration_seconds or _DURATION))
    silent = record.renew_time is not None and now - record.renew_time > patience
    return Coordination(Leadership.SILENT if silent else Leadership.LEADS, record.holder, record.renew_time)


# The sentences of `why` about the coordinator: without one nothing happens.

_WITHOUT: Final = "Nothing is planned or assigned until an operator leads; running workers finish their jobs."
_FIRST: Final = "The first scan follows when an operator watches the namespace."


def tell_coordinator(
    telling: ExplanationBuilder,
    leases: Sequence[Lease] | None,
    now: datetime,
    *,
    namespace: str,
    seen: bool,
    without: str = _WITHOUT,
    first: str = _FIRST,
) -> None:
    """Report that no operator coordinates.

    Args:
        leases: those of the object's namespace; None when they may not be read.
        seen: whether an operator has ever observed the object.
        without, first: what follows while none coordinates, and when the first one does.
    """
    found = coordination(leases, namespace, now, complete=False)
    if found.is_missing:
        telling.state(found.sentence(now))
        telling.next(without)
        telling.actions(f"Start the operator: compactor operator --namespace {namespace}")
    elif found.state is Leadership.UNKNOWN and not seen:
        telling.state("No operator has observed it yet.")
        telling.next(first)
        telling.actions(f"Start the operator: compactor operator --namespace {namespace}")
