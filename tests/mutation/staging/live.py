"""Defects of the merge of tokens of a live lakeFS: at least one for each of its ten rules."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_RULES: Final = "design/staging.md#live-lakefs"
_CHECKS: Final = ("staging/lakefs/test_checks.py",)
_MERGES: Final = ("staging/lakefs/test_rules.py",)
_ENDS: Final = ("staging/lakefs/test_ends.py",)

LIVE_DEFECTS: Final = (
    Defect(
        name="lakefs: rule 1, the schema is not checked again",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="        Repositories(self.kv).check_version()\n        if",
        new="        if",
        killers=_CHECKS,
    ),
    Defect(
        name="lakefs: rule 1, a repository that is being deleted is merged",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="    if data.state != _ACTIVE:",
        new="    if data.state < _ACTIVE:",
        killers=_CHECKS,
    ),
    Defect(
        name="lakefs: rule 1, a repository that is read-only is merged",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="    if data.read_only:\n        raise RepositoryReadOnlyError(name)\n",
        new="",
        killers=_CHECKS,
    ),
    Defect(
        name="lakefs: rule 1, a branch row that no server writes is merged",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="    if not all(tokens) or len(set(tokens)) < len(tokens):",
        new="    if not all(tokens):",
        killers=_CHECKS,
    ),
    Defect(
        name="lakefs: rule 2, the staging token is merged too",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        first = TokenScan(self._live, journal.entry.old)",
        new="        first = TokenScan(self._live, (row.data.staging_token, *journal.entry.old))",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 2, a branch is sealed more than once a minute",
        promise=_RULES,
        file="staging/lakefs/control.py",
        old="    if now - notes.sealed < every * 1000:\n        return None\n",
        new="",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 3, there is no quiet period",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        live.sleep(settings.quiet)\n",
        new="",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 3, a branch that changes in the quiet period is merged as it was",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old=(
            "        if live.branch_bytes(self._branch) != row.raw:\n"
            '            raise TokenMergeStoppedError(self._branch, "the branch changed during the quiet period")\n'
        ),
        new="",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 3, a late write after the scan is lost",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        if again.fingerprints != first.fingerprints:",
        new="        if again.rows < 0:",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 4, all tombstones are left out",
        promise=_RULES,
        file="staging/lakefs/planning.py",
        old="            kept = ~deleted | pc.is_in(",
        new="            kept = ~deleted & ~pc.is_in(",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 4, a row with fields that are not known is merged",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="    strange = sorted(counts.keys() - _KNOWN)\n",
        new="    strange = list[int]()\n",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 4, the oldest token wins",
        promise=_RULES,
        file="staging/lakefs/planning.py",
        old="        yield from layered(list(streams))",
        new="        yield from layered(list(streams)[::-1])",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 5, the swap does not compare the bytes that were read",
        promise=_RULES,
        file="staging/lakefs/journal.py",
        old="branch.with_merged(entry.old, entry.fresh), branch.raw),",
        new="branch.with_merged(entry.old, entry.fresh), Presence.PRESENT),",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 5, unknown fields of a branch are lost",
        promise=_RULES,
        file="staging/lakefs/repository.py",
        old="        elif item.number != _SEALED:",
        new="        elif item.number in _KNOWN and item.number != _SEALED:",
        killers=_CHECKS,
    ),
    Defect(
        name="lakefs: rule 6, a branch in use is merged",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        reason = busy(live, row, settings.yields)\n",
        new='        reason = ""\n',
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 6, a merge goes on beside a commit",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        if self._live.branch_bytes(self._branch) != row.raw:",
        new="        if not row.raw:",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 7, old tokens are dropped before the grace is over",
        promise=_RULES,
        file="staging/lakefs/cleaning.py",
        old="    return entry.state == MergeState.DROPPING or entry.due / 1000 <= live.clock()",
        new="    return entry.state != MergeState.DISCARDED or entry.due / 1000 <= live.clock()",
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 7, tokens that another merge keeps go with the first grace",
        promise=_RULES,
        file="staging/lakefs/cleaning.py",
        old="    tokens = [token for token in row.entry.old if token not in keep]",
        new="    tokens = [*row.entry.old]",
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 7, a token that a branch names is dropped",
        promise=_RULES,
        file="staging/lakefs/cleaning.py",
        old="        if used:\n            in_use += used\n            continue\n",
        new="",
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 8, rows are written before the journal knows their token",
        promise=_RULES,
        file="staging/lakefs/journal.py",
        old="    live.kv.set_if(MERGE_PARTITION, entry.key, raw, Presence.ABSENT)\n    return",
        new="    return",
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 8, the journal learns of a swap after it",
        promise=_RULES,
        file="staging/lakefs/journal.py",
        old=(
            "            (MERGE_PARTITION, entry.key, raw, row.raw),\n"
            "            *also,\n"
            "            (live.partition, branch_key(branch.name), "
            "branch.with_merged(entry.old, entry.fresh), branch.raw),\n"
            "        ]\n"
            "    )\n"
        ),
        new=(
            "            *also,\n"
            "            (live.partition, branch_key(branch.name), "
            "branch.with_merged(entry.old, entry.fresh), branch.raw),\n"
            "        ]\n"
            "    )\n"
            "    live.kv.set_if(MERGE_PARTITION, entry.key, raw, row.raw)\n"
        ),
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 8, a merge that runs is taken for dead",
        promise=_RULES,
        file="staging/lakefs/cleaning.py",
        old="holder_of(live, row.entry.branch) == row.entry.holder:",
        new="not row.entry.holder:",
        killers=_ENDS,
    ),
    Defect(
        name="lakefs: rule 9, two mergers hold the lease of a branch",
        promise=_RULES,
        file="staging/lakefs/control.py",
        old="        if row is not None and row.until > live.clock() * 1000 and not fenced:",
        new="        if row is not None and row.until < 0 and not fenced:",
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 10, the kill switch does not end a merge",
        promise=_RULES,
        file="staging/lakefs/control.py",
        old='        reason = stopped_because(self._live.kv) or ("the process ends"',
        new='        reason = "" or ("the process ends"',
        killers=_MERGES,
    ),
    Defect(
        name="lakefs: rule 10, a result that shows something else is swapped in",
        promise=_RULES,
        file="staging/lakefs/merging.py",
        old="        if before != after or fresh.rows != written:",
        new="        if fresh.rows != written:",
        killers=_MERGES,
    ),
)


# Defects of staging areas: branches in quarantine, and policies over a live lakeFS.

_DAMAGE: Final = "design/staging-areas.md#damage"
_LIVE: Final = "design/staging-areas.md#live-lakefs"
_POLICIES: Final = ("staging/lakefs/test_policies.py",)
_CONFORMANCE: Final = ("conformance/test_jobs.py",)

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
