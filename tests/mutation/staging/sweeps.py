"""Defects of staging areas: what the sensor counts and when a branch is due, and what the sweep deletes."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_PAGE: Final = "design/staging-areas.md"
_SWEEP: Final = ("staging/test_sweep.py",)
_ADAPTER: Final = ("staging/test_adapter.py",)
_COUNTERS: Final = ("staging/staged/test_counters.py",)

SWEEP_DEFECTS: Final = (
    Defect(
        name="sensor: a token without counters counts as empty",
        promise=f"{_PAGE}#sensor",
        file="staging/sensor.py",
        old="        counts = area.counters.prime(token, store=store)",
        new="        counts = Counts()",
        killers=_ADAPTER,
    ),
    Defect(
        name="sensor: a token that its writer has counted is counted once more",
        promise=f"{_PAGE}#sensor",
        file="staging/staged/counters.py",
        old="        if counted := self.read([token]).get(token):\n            return counted\n",
        new="",
        killers=_COUNTERS,
    ),
    Defect(
        name="sensor: two who prime a token count it twice",
        promise="design/staging.md#counters",
        file="staging/staged/counters.py",
        old="self._kv.set_if(PARTITION, _key(token, PRIMED), counts.encode(), Presence.ABSENT)",
        new="self._kv.set(PARTITION, _key(token, uuid4().hex), counts.encode())",
        killers=_COUNTERS,
    ),
    Defect(
        name="sensor: what is counted while the store is away is lost",
        promise="design/staging.md#counters",
        file="staging/staged/counters.py",
        old="                    self._dirty |= dirty & self._totals.keys()\n",
        new="",
        killers=_COUNTERS,
    ),
    Defect(
        name="sensor: a writer that starts again forgets what it had counted",
        promise="design/staging.md#counters",
        file="staging/staged/counters.py",
        old="                key = _key(token, uuid4().hex)",
        new='                key = _key(token, "writer")',
        killers=_COUNTERS,
    ),
    Defect(
        name="sensor: a branch is due when it has reached every threshold",
        promise=f"{_PAGE}#sensor",
        file="staging/kind.py",
        old="        return lambda candidate: any(candidate.measure(name)",
        new="        return lambda candidate: all(candidate.measure(name)",
        killers=(*_ADAPTER, "core/test_kinds.py"),
    ),
    Defect(
        name="sensor: the cooldown does not run from the stored start",
        promise=f"{_PAGE}#sensor",
        file="staging/sensor.py",
        old="        compacted_at=debt.began_at,",
        new="        compacted_at=None,",
        killers=_ADAPTER,
    ),
    Defect(
        name="sensor: a branch that is committed all the time is compacted all the time",
        promise=f"{_PAGE}#sensor",
        file="staging/sensor.py",
        old="        return began + REST_SECONDS if began is not None and self.committed_at > began else None",
        new="        return None",
        killers=_ADAPTER,
    ),
    Defect(
        name="sensor: a scan that must change nothing writes counters",
        promise=f"{_PAGE}#sensor",
        file="staging/sensor.py",
        old="        counts = area.counters.prime(token, store=store)",
        new="        counts = area.counters.prime(token, store=True)",
        killers=_ADAPTER,
    ),
    Defect(
        name="sensor: the newest tokens of very many are compacted, not the oldest",
        promise=f"{_PAGE}#sensor",
        file="staging/sensor.py",
        old="        tokens = tokens[-MAX_TOKENS_PER_JOB:]",
        new="        tokens = tokens[:MAX_TOKENS_PER_JOB]",
        killers=_ADAPTER,
    ),
    Defect(
        name="sweep of tokens: one is dropped before its grace is over",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        if waited is None or waited < grace:",
        new="        if waited is None:",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of tokens: the grace runs from the journal, not from when a token was found unused",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="            _note(area, row, now)",
        new="            _note(area, row, row.entry.since)",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of tokens: one that a branch has is dropped",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        if row.entry.token in used:\n            continue\n        waited =",
        new="        waited =",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of tokens: the branches are not read once more before rows are deleted",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="    if any(token in branch.record.tokens for branch in area.branches.every()):",
        new="    if token not in row.entry.token:",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of tokens: the journal forgets a token before its rows are gone",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old=(
            "    count = area.tokens.drop(token)\n"
            "    area.counters.forget(token)\n"
            "    area.kv.delete(JOURNAL_PARTITION, row.key)\n"
        ),
        new=(
            "    area.kv.delete(JOURNAL_PARTITION, row.key)\n"
            "    count = area.tokens.drop(token)\n"
            "    area.counters.forget(token)\n"
        ),
        killers=("staging/test_sweep.py::test_a_deletion_that_ends_half_way_goes_on",),
    ),
    Defect(
        name="sweep of objects: one is deleted before its grace is over",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="    return now - epoch_of(modified)",
        new="    return now",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: what a standing claim has written is deleted",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="if age_of(item.modified, now) > grace and epoch_of(item.modified) < claimed]",
        new="if age_of(item.modified, now) > grace]",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: compacted bases do not count as trees",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="    trees |= {branch.record.compacted_base for branch in area.branches.every()}\n",
        new="",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: only the trees of branches count, not those of older commits",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        trees.add(commit.meta_range_id)\n        there.add(commit.id)\n        named",
        new="        trees |= {commit.meta_range_id} if commit.id in branches.values() else set()\n"
        "        there.add(commit.id)\n        named",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: pinned trees do not count",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        kept = frozenset(_with_ranges(area, pinned(area)))",
        new="        kept = frozenset(_with_ranges(area, ()))",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: one that was written again meanwhile is deleted",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        gone = [name for name in names if name not in kept and _still_old(area, name, grace)]",
        new="        gone = [name for name in names if name not in kept]",
        killers=_SWEEP,
    ),
    Defect(
        name="sweep of objects: nothing is marked before it is deleted",
        promise=f"{_PAGE}#sweep",
        file="staging/sweep.py",
        old="        mark(area.kv, area.repository.partition, names)\n        kept",
        new="        kept",
        killers=_SWEEP,
    ),
)
