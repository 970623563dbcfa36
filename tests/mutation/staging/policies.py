"""Defects of staging areas: branches in quarantine, and policies over a live lakeFS."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_DAMAGE: Final = "design/staging-areas.md#damage"
_LIVE: Final = "design/staging-areas.md#live-lakefs"
_POLICIES: Final = ("stores/staging/lakefs/test_policies.py",)
_CONFORMANCE: Final = ("conformance/test_damage.py",)

POLICY_DEFECTS: Final = (
    Defect(
        name="damage: a branch with a damaged token is planned again and again",
        promise=_DAMAGE,
        file="staging/adapter.py",
        old="            if debt.work is None or request.quarantined.get(target_name(repository, debt.name)):\n",
        new="            if debt.work is None:\n",
        killers=_CONFORMANCE,
    ),
    Defect(
        name="damage: a repaired token has the identity of the damaged one",
        promise=_DAMAGE,
        file="staging/damage.py",
        old='            content.update(b"%d %d " % (len(key), len(row)) + key + row)\n',
        new='            content.update(b"%d " % len(key) + key)\n',
        killers=_CONFORMANCE,
    ),
    Defect(
        name="live lakeFS: the swap of a branch does not compare the claim",
        promise=_LIVE,
        file="staging/lakefs/journal.py",
        old="            *also,\n",
        new="",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: an attempt whose claim was taken merges",
        promise=_LIVE,
        file="staging/lakefs/control.py",
        old="        if (found.claim_job, found.claim_token) != (self.job, self.token):\n",
        new="        if found.claim_job != self.job:\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: a job merges what servers sealed after its plan",
        promise=_LIVE,
        file="staging/lakefs/merging.py",
        old="        return row.sealed if self._warrant is None else self._warrant.tokens\n",
        new="        return row.sealed\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: newer tokens are lost with the swap",
        promise=_LIVE,
        file="staging/lakefs/repository.py",
        old="        return self.with_sealed((*self.sealed[: len(self.sealed) - len(old)], fresh))\n",
        new="        return self.with_sealed((fresh,))\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: a dry run makes jobs",
        promise=_LIVE,
        file="staging/lakefs/lakefs_adapter.py",
        old="            candidates=() if aside else tuple(ready),\n",
        new="            candidates=tuple(ready),\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: a job that says dry run merges",
        promise=_LIVE,
        file="staging/rewriting/rewriter.py",
        old="        if job.lakefs is not None and job.lakefs.dry_run:\n",
        new="        if job.lakefs is None and job.store is None:\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: a branch that servers use is planned",
        promise=_LIVE,
        file="staging/lakefs/lakefs_adapter.py",
        old="            if debt.work is not None and debt.name not in found.rests\n",
        new="            if debt.work is not None\n",
        killers=_POLICIES,
    ),
    Defect(
        name="live lakeFS: an attempt waits for the lease of the killed one before it",
        promise=_LIVE,
        file="staging/lakefs/control.py",
        old="row.until > live.clock() * 1000 and not fenced:",
        new="row.until > live.clock() * 1000:",
        killers=_POLICIES,
    ),
)
