"""A repository whose branches are put into any state, and a model of what they show."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import CommitDraft, Committer, Hook, Importer, Merger
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Resetter, Writer
from compaction.staging.format.columns import TOMBSTONE, RecordColumns
from compaction.staging.format.identity import frame_value, split_value
from compaction.staging.format.ranges import BreakRule
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import BranchRecord, Repositories
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.staged.rows import new_token
from compaction.staging.tree.applying import apply
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import DatabaseError

SMALL_RANGES = BreakRule(raggedness=3)
"""Ranges of three records on average, so that small trees have several."""
DRAFT = CommitDraft("tester", "a commit")

Content = Mapping[str, str | None]
"""Keys and what is at each: None is a tombstone."""


def framed(text: str) -> bytes:
    """A value whose identity is that of the part before a `#`; what follows is data that the identity leaves out."""
    return frame_value(hashlib.sha256(text.split("#")[0].encode()).digest(), text.encode())


def text_of(value: bytes | None) -> str | None:
    """What `framed` was made of."""
    return None if value is None else split_value(value)[1].decode()


def changes_of(content: Content) -> RecordColumns:
    """Content as sorted changes."""
    pairs = sorted((key.encode(), TOMBSTONE if text is None else framed(text)) for key, text in content.items())
    return RecordColumns.of(pairs)


@dataclass
class TestClock:
    """Seconds since 1970 that stand still; pauses let them pass."""

    __test__ = False
    now: float = 1_700_000_000.0
    pauses: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class StagingRepo:
    """One repository with all flows. Branch `main` is there, on the empty tree."""

    def __init__(
        self, kv: KeyValueStore, ranges: RangeStorage, *, name: str = "example", hooks: tuple[Hook, ...] = ()
    ) -> None:
        self.clock = TestClock()
        self._counters: set[TokenCounters] = set()
        repositories = Repositories(kv)
        repositories.prepare()
        repository = repositories.create(name, "s3://bucket/example", now=self.clock.now)
        self.area = Area.of(repository, kv, ranges, TokenCounters(kv), clock=self.clock.time, sleep=self.clock.sleep)
        self.use(self.area, hooks)
        self.brancher.begin("tester")

    def use(self, area: Area, hooks: tuple[Hook, ...] = ()) -> None:
        """Take another area: one whose store fails, for instance."""
        self.area = area
        self._counters.add(area.counters)
        self.reader, self.writer, self.brancher = Reader(area), Writer(area), Brancher(area)
        self.committer = Committer(area, hooks=hooks)
        self.merger = Merger(area, self.committer)
        self.resetter = Resetter(area, self.writer)
        self.importer = Importer(area, self.merger)

    def close(self) -> None:
        """End the counters of all areas: their threads try for good to write into a store that is gone."""
        for counters in self._counters:
            # What a test has broken on purpose stays uncounted.
            with suppress(DatabaseError):
                counters.close()

    def tree(self, content: Content) -> str:
        """A metarange of this content."""
        return apply(self.area.ranges, "", [changes_of(content)], allow_empty=True).metarange_id

    def put(
        self,
        head: Content,
        *,
        base: Content | None = None,
        sealed: Sequence[Content] = (),
        staging: Content | None = None,
        branch: str = "main",
    ) -> BranchRecord:
        """Put a branch into a state: tokens (`sealed`: the newest first) over a compacted base, over a commit."""
        area = self.area
        commit = area.commits.add(
            metarange_id=self.tree(head), parents=(), committer="t", message="head", metadata={}, now=area.clock()
        )
        tokens = [self.token(content, branch) for content in (staging or {}, *sealed)]
        found = area.branches.get(branch)
        record = BranchRecord(
            id=branch,
            commit_id=commit.id,
            staging_token=tokens[0],
            sealed_tokens=tuple(tokens[1:]),
            compacted_base="" if base is None else self.tree(base),
        )
        area.branches.swap(found, record)
        return record

    def token(self, content: Content, branch: str = "main") -> str:
        """A token with this content."""
        token = new_token(self.area.repository.name, branch)
        changes = changes_of(content)
        if len(changes):
            self.area.tokens.set_many(token, changes)
        return token

    # -- texts instead of framed values --------------------------------------------------------------------------------

    def get(self, key: str, reference: str = "main", *, stage_only: bool = False) -> str | None:
        return text_of(self.reader.get(reference, key.encode(), stage_only=stage_only))

    def set(self, key: str, text: str, branch: str = "main") -> None:
        self.writer.set(branch, key.encode(), framed(text))

    def delete(self, key: str, branch: str = "main") -> None:
        self.writer.delete(branch, key.encode())

    def shown(self, reference: str = "main") -> dict[str, str | None]:
        """All that a reference shows, by pages of three."""
        found: dict[str, str | None] = {}
        after = b""
        while True:
            page = self.reader.list(reference, after=after, amount=3)
            found |= {entry.key.decode(): text_of(entry.value) for entry in page.entries}
            if not page.more:
                return found
            after = page.entries[-1].key

    def names(self, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int = 1000) -> list[str]:
        """The keys and common prefixes of one page of `main`."""
        page = self.reader.list(
            "main", prefix=prefix.encode(), after=after.encode(), delimiter=delimiter.encode(), amount=amount
        )
        return [entry.key.decode() for entry in page.entries]

    def uncommitted(self, branch: str = "main") -> dict[str, str]:
        """Keys that differ from the commit, and how."""
        page = self.reader.uncommitted(branch)
        assert not page.more
        return {entry.key.decode(): entry.kind.name.lower() for entry in page.entries}


def overlaid(*layers: Content) -> dict[str, str]:
    """The model: what layers show, the newest first."""
    found: dict[str, str | None] = {}
    for layer in reversed(layers):
        found.update(layer)
    return {key: text for key, text in sorted(found.items()) if text is not None}


def differences(before: Content, after: Content) -> dict[str, str]:
    """The model: how one content differs from another, by identity."""
    kinds = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            kinds[key] = "added"
        elif old is not None and new is None:
            kinds[key] = "removed"
        elif old is not None and new is not None and old.split("#")[0] != new.split("#")[0]:
            kinds[key] = "changed"
    return kinds
