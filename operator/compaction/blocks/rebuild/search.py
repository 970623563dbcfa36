"""The choice among sets of outputs that exclude each other (`lineage`), as a puzzle of numbers.

An exact cover: every missing source is to be accounted for, by one set. Such puzzles are small (the attempts at a few
jobs that were planned differently in the meantime), so all of it is tried, within a bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

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
        source = min(sorted(left), key=lambda one: len(options[one]))
        for number in sorted(options[source]):
            self._try(chosen | {number}, given_up)
        self._try(chosen, given_up | {source})

    def _cost(self, chosen: frozenset[int]) -> Cost:
        some = [self._candidates[number] for number in chosen]
        whole = frozenset().union(*(one.missing for one in some if not one.lacking))
        there = sum(len(one.sources - one.missing) for one in some)
        return len(self._wanted - whole), len(self._left(chosen)), there, sorted(chosen)
