"""The blocks that live, derived only from what blocks say of each other: for the day on which the index is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

# The choice among sets of outputs that exclude each other (`lineage`), as a puzzle of numbers.
#
# An exact cover: every missing source is to be accounted for, by one set. Such puzzles are small (the attempts at a
# few jobs that were planned differently in the meantime), so all of it is tried, within a bound.

STEPS: Final = 20_000
"""Tries for one group; after that the best so far is taken. It is the first that accounts for everything, if any was
found.
"""

Cost: TypeAlias = tuple[int, int, int, list[int]]
"""The smaller the better: missing sources that no whole set accounts for, that none does at all, sources that would
still be there, and the numbers of the sets.
"""


@dataclass(frozen=True, slots=True)
class RebuildCandidate:
    """A set that may have been committed: its `sources`, those of them that are gone (`missing`, at least one), and
    whether it lacks parts. Of equals the first is taken.
    """

    sources: frozenset[str]
    missing: frozenset[str]
    lacking: bool


class SearchResult(NamedTuple):
    """For candidates that exclude each other, by their numbers. `unaccounted`: missing sources that no chosen one has;
    `doubtful`: there was a choice, and none accounts for everything.
    """

    chosen: frozenset[int]
    rejected: frozenset[int]
    unaccounted: frozenset[str]
    doubtful: bool


def choose(candidates: Sequence[RebuildCandidate]) -> Iterator[SearchResult]:
    """One outcome for each group of candidates that have to do with each other."""
    for group in _groups(candidates):
        if len(group) == 1:
            yield SearchResult(group, frozenset(), frozenset(), doubtful=False)
        else:
            yield _Search(candidates, group).run()


def _groups(candidates: Sequence[RebuildCandidate]) -> Iterator[frozenset[int]]:
    """Candidates that share sources, directly or by way of others."""
    users: defaultdict[str, list[int]] = defaultdict(list)
    for number, candidate in enumerate(candidates):
        for source in candidate.sources:
            users[source].append(number)
    seen: set[int] = set()
    for number in range(len(candidates)):
        if number in seen:
            continue
        group, waiting = {number}, [number]
        while waiting:
            new = {user for source in candidates[waiting.pop()].sources for user in users[source]} - group
            group |= new
            waiting += new
        seen |= group
        yield frozenset(group)


class _Search:
    """Tries, for each missing source in turn, every candidate that accounts for it, and none."""

    def __init__(self, candidates: Sequence[RebuildCandidate], group: frozenset[int]) -> None:
        self._candidates = candidates
        self._group = group
        self._wanted = frozenset().union(*(candidates[number].missing for number in group))
        self._steps = STEPS
        self._best: tuple[Cost, frozenset[int]] | None = None

    def run(self) -> SearchResult:
        self._try(frozenset(), frozenset())
        assert self._best is not None, "to choose nothing is always possible"
        chosen = self._best[1]
        left = self._left(chosen)
        return SearchResult(chosen, self._group - chosen, left, doubtful=bool(left))

    def _left(self, chosen: frozenset[int]) -> frozenset[str]:
        return self._wanted.difference(*(self._candidates[number].missing for number in chosen))

    def _try(self, chosen: frozenset[int], given_up: frozenset[str]) -> None:
        self._steps -= 1
        lacking = frozenset().union(*(self._candidates[n].missing for n in chosen if self._candidates[n].lacking))
        if self._best is not None and (self._steps <= 0 or len(given_up | lacking) > self._best[0][0]):
            return
        left = self._left(chosen) - given_up
        if not left:
            cost = self._cost(chosen)
            if self._best is None or cost < self._best[0]:
                self._best = (cost, chosen)
            return
        used = frozenset().union(*(self._candidates[number].sources for number in chosen))
        free = [n for n in self._group - chosen if used.isdisjoint(self._candidates[n].sources)]
        options = {source: [n for n in free if source in self._candidates[n].missing] for source in left}
        source = min(sorted(left), key=lambda item: len(options[item]))
        for number in sorted(options[source]):
            self._try(chosen | {number}, given_up)
        self._try(chosen, given_up | {source})

    def _cost(self, chosen: frozenset[int]) -> Cost:
        some = [self._candidates[number] for number in chosen]
        whole = frozenset().union(*(item.missing for item in some if not item.lacking))
        there = sum(len(item.sources - item.missing) for item in some)
        return len(self._wanted - whole), len(self._left(chosen)), there, sorted(chosen)


# The blocks that live, derived only from what they say of each other: for the day on which the index is lost.
#
# Pure decisions on plain data. A *set* is what one attempt at a job made of its sources: it was committed, or never
# lived. What is certain:
#
# * Only live blocks are ever made into others. So whatever a block names as a source has lived, and the set that it
#   belongs to was committed, also when the block that names it never was.
# * Everything that a committed block was made of is dead. So all `ancestors` that anybody names are dead.
# * A block is replaced at most once. So of sets that have a source in common at most one was committed.
# * Nothing live was ever deleted. So what is missing is dead.
# * An object is deleted after its own sources (`index.tombstones`). So a set that lacks a part which no block names,
#   while one of its sources is still there, was never committed.
#
# What remains are sets of which no block names a part. Where all sources are there, the set is skipped, committed or
# not: the sources hold the same rows, and are compacted once more. Where a source is gone, the set is taken for
# committed, or its rows would be missing. If such sets exclude each other, those are taken that account for every
# missing source, each once. When none do, a source was expired, dropped, or deleted by another program: then the
# choice may be wrong, and is named as a doubt.

IDS_NAMED: Final = 5


class Made(NamedTuple):
    """The statements of an output about its origin. `outputs`: ids of its whole set, empty when it does not say;
    `ancestors`: hashes (`hash`) of the ids of what its sources were made of, which take less memory than the ids.
    `modified`: the time of its upload.
    """

    job: str
    token: int
    part: int
    parts: int
    sources: tuple[str, ...]
    outputs: tuple[str, ...]
    ancestors: Sequence[int]
    modified: float


class Relative(NamedTuple):
    """A block that is there. `made` None: a writer's block, that was not made of others."""

    id: str
    level: int
    made: Made | None


@dataclass(frozen=True, slots=True)
class LineageVerdict:
    """`live`: ids that a rebuilt index holds. `dead`: those that were replaced. `unused`: outputs that were never
    committed, or whose sources are taken instead. `doubts`: sentences about what cannot be known.
    """

    live: frozenset[str]
    dead: frozenset[str]
    unused: frozenset[str]
    doubts: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Set:
    rank: tuple[float, int]
    sources: frozenset[str]
    parts: int
    outputs: frozenset[str]
    """All ids of it that are known."""
    present: dict[int, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return len(self.present) >= self.parts

    @property
    def told(self) -> bool:
        """Return whether the ids of all parts are known."""
        return len(self.outputs) >= self.parts


def decide(blocks: Iterable[Relative]) -> LineageVerdict:
    """Judge all blocks of one shard; blocks of different shards are never related."""
    known = {block.id: block for block in blocks}
    sets = _sets(known.values())
    doubts: list[str] = []
    ancestors = _ancestors(sets, known.values())
    proven = _proven(sets, ancestors, doubts)
    dead = ancestors.union(*(item.sources for item in proven))
    settled = set(proven)
    lived = proven + _taken([item for item in sets if item not in settled], dead, known.keys(), doubts)
    dead = dead.union(*(item.sources for item in lived))
    outputs = {block for item in sets for block in item.present.values()}
    committed = {block for item in lived for block in item.present.values()}
    live = frozenset(block for block in known if block not in dead and (block in committed or block not in outputs))
    gone = frozenset(dead & known.keys())
    return LineageVerdict(live, gone, frozenset(known.keys() - live - gone), tuple(doubts))


def _sets(blocks: Iterable[Relative]) -> list[_Set]:
    found: dict[tuple[object, ...], _Set] = {}
    for block in blocks:
        made = block.made
        if made is None:
            continue
        sources = frozenset(made.sources)
        key = (made.job, made.token, block.level, sources, made.parts, made.outputs)
        members = found.setdefault(key, _Set((0.0, 0), sources, made.parts, frozenset(made.outputs)))
        members.rank = max(members.rank, (made.modified, made.token))
        members.present[made.part] = block.id
        members.outputs |= {block.id}
    # The latest first: it is taken where nothing else decides, for what failed is followed by what did not.
    ordered = sorted(found.values(), key=lambda item: sorted(item.outputs))
    return sorted(ordered, key=lambda item: item.rank, reverse=True)


def _ancestors(sets: Sequence[_Set], blocks: Collection[Relative]) -> frozenset[str]:
    """The ids, of those that matter here, that anybody was made of at second hand."""
    named = {hash(block): block for item in sets for block in (*item.sources, *item.outputs)}
    named |= {hash(block.id): block.id for block in blocks}
    made = (block.made for block in blocks if block.made)
    return frozenset(named[mark] for item in made for mark in item.ancestors if mark in named)


def _proven(sets: Sequence[_Set], ancestors: frozenset[str], doubts: list[str]) -> list[_Set]:
    """Sets from which another block was merged."""
    named = ancestors.union(*(item.sources for item in sets))
    found: list[_Set] = []
    used: set[str] = set()
    for item in sets:
        if item.outputs.isdisjoint(named):
            continue
        if not item.sources.isdisjoint(used):
            doubts.append(f"source {_some(item.sources & used)} was replaced twice; not used: {_some(item.outputs)}")
            continue
        used |= item.sources
        found.append(item)
    return found


def _taken(sets: Sequence[_Set], dead: frozenset[str], known: Iterable[str], doubts: list[str]) -> list[_Set]:
    """Of the sets from which no block was merged, those without which rows would be missing."""
    there = frozenset(known)
    candidates: list[RebuildCandidate] = []
    possible: list[_Set] = []
    for item in sets:
        # What replaced a dead source was another set; unless it may be this one, by a part whose id it does not tell.
        late = not item.sources.isdisjoint(dead) and (item.whole or item.told)
        missing = item.sources - there
        if late or not missing or not (item.whole or item.sources.isdisjoint(there)):
            continue
        possible.append(item)
        candidates.append(RebuildCandidate(item.sources, missing, lacking=not item.whole))
    taken: list[_Set] = []
    for outcome in choose(candidates):
        taken += [possible[number] for number in outcome.chosen]
        if outcome.doubtful:
            refused = {block for n in outcome.rejected for block in possible[n].present.values()}
            doubts.append(
                f"sources {_some(outcome.unaccounted)} are gone, and no choice among the sets that name them accounts "
                f"for all of them; not used: {_some(refused)}"
            )
    return taken


def _some(ids: Iterable[str]) -> str:
    named = sorted(ids)
    more = f" and {len(named) - IDS_NAMED} more" if len(named) > IDS_NAMED else ""
    return (", ".join(named[:IDS_NAMED]) or "none") + more
