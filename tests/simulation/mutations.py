"""Defects put into the production code, each of which breaks one invariant: a simulator that finds none proves nothing.

Each is a patch of the code that is built in for the time of a schedule. `finds`: the invariants whose violation is the
defect's own; another one may see it first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from compaction.core.reconcile.jobs import job, steps
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Allowance
from compaction.core.reconcile.status import announcing
from compaction.core.reconcile.workers import assigning
from compaction.kube.client.api import ApiClient
from compaction.kube.executor import executor
from compaction.leases.election import Election
from compaction.leases.record import LeaseObserver
from compaction.segments import sweep
from compaction.segments.commit import evidence, fence, records
from compaction.segments.commit.evidence import Likeness
from compaction.segments.commit.records import FenceRecord
from compaction.segments.directory import fs
from compaction.segments.format.names import parse_partial
from compaction.segments.model import FileIdentity
from compaction.segments.rewriting import kernel
from compaction.segments.store import SegmentLogStore
from simulation.invariants import Invariant

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect: what it is, the patches that make it, and what finds it."""

    what: str
    finds: frozenset[Invariant]
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The defect is in the code for the block."""
        with ExitStack() as stack:
            for target, name, value in self.patches():
                stack.enter_context(mock.patch.object(target, name, value))
            yield


def _commit_without_evidence() -> list[Patch]:
    return [(evidence, "_output", lambda *_: Likeness.SAME)]


def _recovery_trusts_names() -> list[Patch]:
    """L1: a commit is finished over what the log's owner has compacted since."""
    return [(evidence._Walk, "_why_not", lambda *_: None)]


def _copy_loses_an_entry() -> list[Patch]:
    pick = kernel._pick

    def short(*args: Any, **kwargs: Any) -> Any:
        picked = pick(*args, **kwargs)
        return replace(picked, rows=picked.rows[:-1]) if picked.rows.size > 1 else picked

    return [(kernel, "_pick", short)]


def _intent_stays() -> list[Patch]:
    promoted = fence.promoted
    return [(fence, "promoted", lambda r, *a, **k: replace(promoted(r, *a, **k), intents=r.intents))]


def _nobody_checks_tokens() -> list[Patch]:
    return [(fence, "check_token", lambda *_, **__: None)]


def _tokens_from_the_lease_alone() -> list[Patch]:
    return [
        (executor, "next_token", lambda lease, *_: lease + 1),
        (FenceRecord, "high_water", lambda *_: 0),
    ]


def _sources_are_moved_away() -> list[Patch]:
    def move(directory: Path, name: str, target: str, *, expected: FileIdentity) -> bool:
        fs.rename(directory / name, directory / f"{name}.old")
        return True

    return [(records, "put_symlink", move)]


def _no_grace() -> list[Patch]:
    original = SegmentLogStore.sweep

    def at_once(self: SegmentLogStore, log: Any, *, grace_seconds: float, **options: Any) -> Any:
        return original(self, log, grace_seconds=0.0, **options)

    return [(SegmentLogStore, "sweep", at_once)]


def _tombstones_go_first() -> list[Patch]:
    """The record is dropped before the deletion instead of after it."""
    delete = sweep.delete

    def forgetful(directory: Path, items: Any, *, held: Any) -> Any:
        record = fence.read(directory)
        fence.write(directory, fence.without_tombstones(record, [item.name for item in items]), held=held)
        return delete(directory, items, held=held)

    return [(sweep, "delete", forgetful)]


def _every_partial_is_an_orphan() -> list[Patch]:
    def all_of_them(directory: Path, *_: Any, **__: Any) -> list[Any]:
        return [sweep.Deleted(name, 0) for name in sorted(os.listdir(directory)) if parse_partial(name)]

    return [(sweep, "_orphan_partials", all_of_them)]


def _no_partial_is_an_orphan() -> list[Patch]:
    return [(sweep, "_orphan_partials", lambda *_, **__: [])]


def _status_is_written_every_time() -> list[Patch]:
    return [(JobStep, "changed", property(lambda _: True))]


def _new_jobs_wait_in_silence() -> list[Patch]:
    return [(announcing, "waits_of_new_jobs", lambda _: announcing.NO_WAITS)]


def _every_lease_is_expired() -> list[Patch]:
    return [(LeaseObserver, "expired", lambda *_: True)]


def _a_term_continues_its_predecessor() -> list[Patch]:
    take = Election._take
    return [(Election, "_take", lambda self, lease, _: take(self, lease, lease.record.transitions))]


def _status_is_written_with_the_object() -> list[Patch]:
    async def whole(self: ApiClient, resource: Any, body: Any, *, deadline: float | None = None) -> Any:
        return await self.replace(resource, body, deadline=deadline)

    return [(ApiClient, "replace_status", whole)]


def _no_second_attempt() -> list[Patch]:
    known = job.not_before
    return [(assigning, "not_before", lambda status, now: now.wall + 1e6 if status.attempts else known(status, now))]


def _everybody_takes_what_is_theirs_alone() -> list[Patch]:
    return [(Allowance, "workers_within", lambda self, own: own)]


def _raises_round_up() -> list[Patch]:
    return [(assigning, "topped_up", lambda granted, left: tuple(share + left + 1 for share in granted))]


def _an_error_nobody_foresaw() -> list[Patch]:
    def forgotten(lease: Any, **_: Any) -> Any:
        raise KeyError("worker")

    return [(steps, "lease_ending", forgotten)]


def _of(what: str, patches: Callable[[], list[Patch]], *finds: Invariant) -> Mutation:
    return Mutation(what, frozenset(finds), patches)


_ALL = (
    _of("recovery finishes a commit without evidence", _commit_without_evidence, Invariant.CONTENT),
    _of("recovery finishes a commit that the owner has compacted past", _recovery_trusts_names, Invariant.CONTENT),
    _of("the copy of a group loses an entry", _copy_loses_an_entry, Invariant.CONTENT),
    _of("the intent of a commit stays after its end", _intent_stays, Invariant.ONE_COMMIT),
    _of("no check of tokens at the commit", _nobody_checks_tokens, Invariant.FENCING),
    _of("tokens are counted in the Lease alone", _tokens_from_the_lease_alone, Invariant.TOKENS),
    _of("replaced names are moved away", _sources_are_moved_away, Invariant.OLD_NAMES),
    _of("replaced data is deleted at once", _no_grace, Invariant.DELETION),
    _of("tombstones are dropped before the deletion", _tombstones_go_first, Invariant.DELETION),
    _of("every unfinished output is an orphan", _every_partial_is_an_orphan, Invariant.ORPHANS),
    _of("orphans are never collected", _no_partial_is_an_orphan, Invariant.LEFTOVERS),
    _of("a job's status is written at every look", _status_is_written_every_time, Invariant.WRITES),
    _of("jobs that were just planned wait in silence", _new_jobs_wait_in_silence, Invariant.WAITS),
    _of("every lease counts as expired", _every_lease_is_expired, Invariant.ONE_LEADER),
    _of("a term has its predecessor's number", _a_term_continues_its_predecessor, Invariant.TERMS),
    _of("a status is written with the whole object", _status_is_written_with_the_object, Invariant.SPEC),
    _of("a job that failed once is never tried again", _no_second_attempt, Invariant.ENDS),
    _of("a policy overlooks the operator's limit", _everybody_takes_what_is_theirs_alone, Invariant.WORKERS),
    _of("a raised share is rounded up", _raises_round_up, Invariant.SHARES),
    _of("an error that nobody foresaw", _an_error_nobody_foresaw, Invariant.FORESEEN),
)
MUTATIONS = {mutation.what: mutation for mutation in _ALL}
