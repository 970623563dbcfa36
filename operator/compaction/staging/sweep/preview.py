"""What a sweep would delete, without changing anything (docs/design/staging-areas.md#sweep)."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.staging.flows.area import Area
from compaction.staging.flows.journal import journalled
from compaction.staging.sweep.objects import age_of, claimed_since, epoch_of, reachable


@dataclass(frozen=True, slots=True)
class UnusedToken:
    """A token that no branch has. `seconds`: since a sweep has seen that first, None: none has yet."""

    token: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class UnreachedObject:
    """An object that no tree has. `seconds`: since it was written. `claimed`: an attempt whose claim stands may have
    written it, so it stays.
    """

    id: str
    bytes: int
    seconds: float
    claimed: bool


def unused_tokens(area: Area) -> list[UnusedToken]:
    """Tokens of the journal that no branch has; each is dropped when the grace has passed since a sweep saw it."""
    entries = [one for one in journalled(area.kv) if one.repository == area.repository.name]
    used = {token for branch in area.branches.every() for token in branch.record.tokens}
    now = area.clock()
    return [
        UnusedToken(one.token, None if one.unused_since == 0 else max(0.0, now - max(0, one.unused_since) / 1000))
        for one in entries
        if one.token not in used
    ]


def unreached_objects(area: Area) -> list[UnreachedObject]:
    """Objects that no tree has, the oldest first. Raises as `sweep_objects`: a tree that cannot be read stops it."""
    found = list(area.ranges.stored())
    claimed = claimed_since(area)
    reached, now = reachable(area), area.clock()
    rows = [
        UnreachedObject(one.path, one.size, age_of(one.modified, now), epoch_of(one.modified) >= claimed)
        for one in found
        if one.path not in reached
    ]
    return sorted(rows, key=lambda one: (-one.seconds, one.id))
