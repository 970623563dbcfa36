"""The verdict: for every claim of the demo one check, from the model, from the reader, from etcd, and from what the API
server says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.local.demo.catalog.history import Stored
from compaction.local.demo.catalog.prover import Prover
from compaction.local.demo.catalog.scenes import Shown
from compaction.local.demo.check import Check

KEPT: Final = 2
"""The last version and the one before it always stay."""


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that was seen, of which `checks` judges. `first`: the version that the history must begin with at the
    end; `leaks`: where the shared secret was found.
    """

    shown: Sequence[Shown]
    status: CatalogCompactionStatus
    first: int
    prover: Prover
    before: Stored
    after: Stored
    leaks: Sequence[str]
    replicas_alive: int

    @property
    def steps(self) -> list[int]:
        """The versions that history must have begun with, in order, each once."""
        found: list[int] = []
        for one in (*(each.scene.first for each in self.shown), self.first):
            if found[-1:] != [one]:
                found.append(one)
        return found


def checks(story: Story) -> list[Check]:
    """Everything the demo claims."""
    return [
        *(_pin(one) for one in story.shown),
        _not_one_further(story),
        _short(story),
        _equal(story.prover),
        _refused(story.prover),
        _bytes(story),
        Check(
            "the shared secret is in no object, log or process", not story.leaks, ", ".join(story.leaks) or "none found"
        ),
        Check(
            "one replica led while the other stood by",
            story.replicas_alive == 2 and bool(story.status.coordinator),
            f"led by {story.status.coordinator or 'none'}",
        ),
    ]


def _pin(one: Shown) -> Check:
    status, ended = one.status, one.status.compaction
    subject = f", {ended.subject}" if ended is not None and ended.subject else ""
    fact = f"versions {status.earliest_version} to {status.latest_version} through {one.rounds} rounds{subject}"
    if not one.holds:
        named = "nothing" if ended is None else f"{ended.reason} {ended.participant}"
        fact = f"{fact}; {named} is named, and version {one.needed} is asked for"
    return Check(f"{one.scene.title} is named, and holds version {one.scene.first}", one.holds, fact)


def _not_one_further(story: Story) -> Check:
    seen = story.prover.earliest
    return Check(
        "history begins where the rules say, and not one version further",
        seen == story.steps,
        " -> ".join(map(str, seen)) + ("" if seen == story.steps else f", expected {story.steps}"),
    )


def _short(story: Story) -> Check:
    status, left = story.status, story.after.versions
    holds = status.earliest_version == story.first and left == KEPT and status.versions_cut == story.first - 1
    return Check(
        "nothing is left but the two versions that always stay",
        holds,
        f"versions {status.earliest_version} to {status.latest_version}, {left} in etcd, {status.versions_cut} cut",
    )


def _equal(prover: Prover) -> Check:
    holds = prover.error is None and not prover.wrong and prover.proven > 0 and prover.started > 0
    fact = (
        f"{prover.proven} times equal, {prover.wrong} different; {prover.readings} readings, {prover.started} by new "
        "processes"
    )
    if not holds:
        fact = "; ".join([str(prover.error)] if prover.error is not None else prover.different) or fact
    return Check("active(t) is what was written, for every allowed t, all the time", holds, fact)


def _refused(prover: Prover) -> Check:
    holds = prover.refused > 0 and prover.error is None and not prover.wrong
    return Check("versions that were cut are refused by name", holds, f"{prover.refused} times CatalogNotFoundError")


def _bytes(story: Story) -> Check:
    before, after = story.before.bytes, story.after.bytes
    cut = story.status.bytes_cut
    return Check(
        "etcd holds fewer bytes",
        after < before and cut > 0,
        f"{before} -> {after} of keys and values; {cut} of updates were cut",
    )
