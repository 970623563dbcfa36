"""What `kubectl compaction why` says: four lists of sentences about one object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from compaction.api.text.formatting import format_age
from compaction.kinds.meaning import Meaning, Names

MOST_NAMED: Final = 5
"""So many jobs, sources or targets are named; the rest is a number."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`subject` names the object and its state; `behind` what there is to do; `now` what is the case and since when;
    `next` what happens by itself; `todo` what a person can do. Each sentence occurs once.
    """

    subject: str
    behind: tuple[str, ...] = ()
    now: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()

    def to_object(self) -> dict[str, Any]:
        """The same for json and yaml."""
        lists = {"behind": self.behind, "now": self.now, "next": self.next, "todo": self.todo}
        return {"subject": self.subject} | {name: list(sentences) for name, sentences in lists.items()}


class Telling:
    """Collects sentences in order, each once, with the names of the object filled in."""

    def __init__(self, names: Names, now: datetime) -> None:
        self._names = names
        self._now = now
        self._messages: set[str] = set()
        self._lists: dict[str, dict[str, None]] = {"behind": {}, "now": {}, "next": {}, "todo": {}}

    def behind(self, *sentences: str) -> None:
        """What there is to do."""
        self._add("behind", sentences)

    def now(self, *sentences: str) -> None:
        """What is the case."""
        self._add("now", sentences)

    def next(self, *sentences: str) -> None:
        """What happens by itself."""
        self._add("next", sentences)

    def todo(self, *sentences: str) -> None:
        """What a person can do."""
        self._add("todo", sentences)

    def said(self, says: str, message: str) -> str:
        """A sentence and, behind it, what the operator says about the particular case, unless it was told already."""
        if not message or message in self._messages:
            return says
        self._messages.add(message)
        return f"{says} ({message})"

    def consequences(self, meaning: Meaning, *, names: Names | None = None) -> None:
        """What follows from a reason: `next` and `do`."""
        named = names or self._names
        self.next(named.fill(meaning.next))
        if meaning.do:
            self.todo(named.fill(meaning.do))

    def age(self, moment: datetime | None) -> str:
        """`2m10s` since that moment; a clock that is ahead of ours makes it 0s."""
        return format_age((self._now - moment).total_seconds()) if moment is not None else "an unknown time"

    def until(self, moment: datetime) -> str:
        """`in 2m10s`, or `now` when that moment has come."""
        seconds = (moment - self._now).total_seconds()
        return f"in {format_age(seconds)}" if seconds >= 1 else "now"

    def told(self, subject: str) -> Explanation:
        """All that was collected."""
        return Explanation(subject, *(tuple(self._lists[name]) for name in ("behind", "now", "next", "todo")))

    def _add(self, name: str, sentences: Iterable[str]) -> None:
        self._lists[name].update(dict.fromkeys(sentence for sentence in sentences if sentence))


def first_of(items: Mapping[str, str], noun: str) -> tuple[str, ...]:
    """One sentence per item, for the first few; then how many more there are."""
    sentences = [f"{name}: {text}" for name, text in list(items.items())[:MOST_NAMED]]
    more = len(items) - MOST_NAMED
    return (*sentences, f"And {more} more {noun}.") if more > 0 else tuple(sentences)
