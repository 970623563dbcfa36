"""What `kubectl compaction why` prints: four lists of sentences about one object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from compaction.api.text.formatting import format_age
from compaction.core.meaning import Meaning, Names

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
        """What holds now."""
        self._add("state", sentences)

    def debt(self, *sentences: str) -> None:
        """What waits to be compacted."""
        self._add("debt", sentences)

    def next(self, *sentences: str) -> None:
        """What the operator does without a user."""
        self._add("next", sentences)

    def actions(self, *sentences: str) -> None:
        """What a user can do."""
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
        """What follows from a reason: `next` and `do`."""
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
