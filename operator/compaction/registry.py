"""All kinds of stores, and which of them a store, a job or a reason belongs to.

A kind that lives elsewhere is registered before anything is read:

    from compaction.registry import register
    register(MY_KIND)

This adds its members to the unions of the resources (`api.extend`), so that policies, jobs and generated resource
definitions have them, and its reasons to those that are known. A process that starts another one (a worker) has to see
to it that this one registers the kind, too: `python -c "import mine; mine.register(); from compaction.cli.main import
main; main([...])"`.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.api.policy.store import PolicyStanding, StoreSpec, standing_of
from compaction.blocks.kind import BLOCKS
from compaction.core.kind import Kind
from compaction.core.meaning import FATES, Fate
from compaction.segments.kind import SEGMENTS
from compaction.staging.kind import STAGING

KINDS: tuple[Kind, ...] = (SEGMENTS, BLOCKS, STAGING)


def register(kind: Kind) -> None:
    """Add a kind. Adding it twice does nothing.

    Raises:
        ValueError: a name of it is taken, or a reason of it has another fate already.
    """
    global KINDS
    if kind in KINDS:
        return
    known = {reason: fate for kind in KINDS for reason, fate in kind.fates.items()} | dict(FATES)
    for reason, fate in kind.fates.items():
        if known.get(reason, fate) is not fate:
            raise ValueError(
                f"kind of store {kind.name}: reason {reason} is {known[reason]} for every kind, not {fate}"
            )
    # Here and not above: the models of policies need cronsim, which the worker's image does not have.
    from compaction.api.extend import add_member

    add_member(kind.member)
    KINDS = (*KINDS, kind)


def all_kinds() -> tuple[Kind, ...]:
    """Those that are registered now."""
    return KINDS


def kind_of(store: StoreSpec) -> Kind:
    """The kind of a policy's store."""
    return kind_named(store.name)


def kind_named(name: str) -> Kind:
    """The kind with that name, as in `status.store`."""
    return next(kind for kind in KINDS if kind.name == name)


def kind_of_job(job_type: str) -> Kind:
    """The kind that a type of job (`spec.kind`) is of."""
    for kind in KINDS:  # loops, not generators: every reconcile asks this of every job
        for job in kind.member.jobs:
            if job.name == job_type:
                return kind
    raise LookupError(f"no kind of store has jobs of type {job_type}")


def fate_of(reason: str) -> Fate:
    """Return what becomes of a job whose attempt ends for that reason, whatever kind it is of."""
    fates = (kind.fates[reason] for kind in KINDS if reason in kind.fates)
    return FATES.get(reason) or next(fates, Fate.SPLIT)


def any_fate(reasons: Iterable[str], *fates: Fate) -> bool:
    """Return whether one of the reasons has one of the fates."""
    return any(fate_of(reason) in fates for reason in reasons)


def policy_standing(reason: str) -> PolicyStanding:
    """Return how a policy stands for that reason of its condition Ready."""
    added = (kind.words.policies[reason].standing for kind in KINDS if reason in kind.words.policies)
    return next(added, standing_of(reason))
