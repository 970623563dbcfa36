"""How far a watch of an update log has come, and what follows from that (docs/design/catalogs.md#watch-of-the-log)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from compaction.catalogs.errors import CatalogLogRewoundError, CorruptCatalogLogError
from compaction.catalogs.log.layout import Keys, Stored, shown
from compaction.catalogs.log.surveys import Survey
from compaction.catalogs.model.entries import Snapshot


@dataclass(frozen=True, slots=True)
class Position:
    """`revision`: everything up to it is delivered. `version` and `stamp`: of the last version, `snapshot`: of the last
    snapshot; None as long as that is not known.
    """

    revision: int
    version: int | None = None
    snapshot: int | None = None
    stamp: bytes = b""

    def past(self, stored: Stored, revision: int) -> Position:
        """After the delivery of an event; `revision` is that of the event, or an older one inside a listing."""
        version = stored.event.version
        newest = self.version is None or version >= self.version
        return Position(
            max(self.revision, revision),
            version if newest else self.version,
            version if isinstance(stored.event, Snapshot) else self.snapshot,
            stored.stamp if newest else self.stamp,
        )

    def at_revision(self, revision: int) -> Position:
        """The same events, delivered as of another revision of the store."""
        return replace(self, revision=revision)

    def follows(self, stored: Stored) -> bool:
        """Whether an event of a connection is the next one. Where it is not, the store has been replaced by a copy."""
        return self.version is None or isinstance(stored.event, Snapshot) or stored.event.version == self.version + 1

    def behind(self, survey: Survey) -> bool:
        """Whether the log holds something that is not delivered. Versions decide where they are known: after a
        restore of the store its revisions say nothing.
        """
        appended = survey.changed > self.revision if self.version is None else survey.version > self.version
        cut = survey.snapshot_changed > self.revision if self.snapshot is None else survey.snapshot > self.snapshot
        return appended or cut

    def missed_before(self, survey: Survey) -> bool:
        """Whether a connection that begins at the next revision leaves out what is not delivered: the store was
        restored, and counts its revisions from an earlier one.
        """
        return self.behind(survey) and survey.changed <= self.revision

    def missed(self, kept: Iterable[tuple[Stored, int]], survey: Survey, keys: Keys) -> list[Stored]:
        """Of what the log holds, what is not delivered yet: the snapshot first, then versions ascending.

        Raises CorruptCatalogLogError for a gap.
        """
        found: list[Stored] = []
        expected = survey.snapshot
        for stored, revision in kept:
            if stored.event.version != expected:
                break
            expected += 1
            if self._lacks(stored, revision):
                found.append(stored)
        if expected != survey.version + 1:
            raise CorruptCatalogLogError(shown(keys.update(expected)), f"is missing; the last is {survey.version}")
        return found

    def _lacks(self, stored: Stored, revision: int) -> bool:
        known = self.snapshot if isinstance(stored.event, Snapshot) else self.version
        return revision > self.revision if known is None else stored.event.version > known

    def require_same(self, survey: Survey, log: str) -> None:
        """Raises CatalogLogRewoundError when the log lacks what was delivered, or has something else in its place."""
        if self.version is None:
            if survey.revision < self.revision:
                raise CatalogLogRewoundError(log, "its revision is lower than one that was read before")
            return
        asked = survey.asked
        # A snapshot in the place of a version bears the stamp of its own writer.
        another = asked is not None and not isinstance(asked.event, Snapshot) and asked.stamp != self.stamp
        if survey.version < self.version or another:
            raise CatalogLogRewoundError(log, f"it no longer holds version {self.version} as it was delivered")
