"""The journal of tokens that a branch is about to lose; the sweep drops those that no branch has any more.

docs/design/staging-areas.md#swaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from compaction.staging.flows.area import Area
from compaction.staging.format.messages import SIGNED, TEXT, StagingMessage, wire_at
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.names import JOURNAL_PARTITION

DROPPING: Final = -1
"""`unused_since` of a token whose rows are being deleted: no branch gets it any more."""


@dataclass(frozen=True)
class JournalledToken(StagingMessage):
    """A token that its branch was about to lose at `since` (milliseconds since 1970). `unused_since`: when a sweep saw
    for the first time that no branch has it; the grace runs from there. 0: not yet.
    """

    NAME: ClassVar[str] = "JournalledToken"
    token: str = field(default="", metadata=wire_at(1, TEXT))
    repository: str = field(default="", metadata=wire_at(2, TEXT))
    since: int = field(default=0, metadata=wire_at(3, SIGNED))
    unused_since: int = field(default=0, metadata=wire_at(4, SIGNED))


def journal(area: Area, tokens: Iterable[str]) -> None:
    """Write down that a branch is about to lose tokens."""
    now = int(area.clock() * 1000)
    rows = [
        (token.encode(), JournalledToken(token=token, repository=area.repository.name, since=now).encode())
        for token in tokens
    ]
    if rows:
        area.kv.set_many(JOURNAL_PARTITION, rows)


def was_dropped(area: Area, tokens: Iterable[str]) -> bool:
    """Whether the sweep had begun to delete one of the tokens before a branch got it."""
    for token in tokens:
        row = area.kv.get(JOURNAL_PARTITION, token.encode())
        if row is not None and JournalledToken.decode(row, name=f"journal of token {token}").unused_since == DROPPING:
            return True
    return False


def journalled(kv: KeyValueStore) -> Iterator[JournalledToken]:
    """All tokens of the journal."""
    for page in kv.scan(JOURNAL_PARTITION):
        for key, row in page:
            yield JournalledToken.decode(row, name=f"journal of token {key.decode(errors='replace')}")
