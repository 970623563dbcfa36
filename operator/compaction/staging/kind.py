"""Staging areas as the core knows them: targets, measures, reasons, and jobs in their words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from compaction.api.job.job import CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.members import member_of
from compaction.api.policy.staging_area import (
    METARANGE_REWRITE,
    STAGING_AREA,
    MetarangeParameters,
    MetarangeSources,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.text.printing import format_bytes, plural
from compaction.core.kind import Kind, Measure, Nouns, StoreSecrets, Words, Work, debt_of
from compaction.core.planning.candidates import Candidate, Parts
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import PlannedJob
from compaction.staging import reasons
from compaction.staging.doors import STAGING_DOORS
from compaction.staging.reasons import FATES

if TYPE_CHECKING:
    from compaction.api.policy.policy import (  # they need cronsim, see `kind`
        CompactionPolicyStatus,
        DebtStatus,
        TargetDebtStatus,
    )


# Measures of branches, for the whole store and for each candidate.

TOMBSTONES: Final = "tombstones"
SEALED_TOKENS: Final = "sealedTokens"
STAGED_WRITES: Final = "stagedWrites"
STAGED_BYTES: Final = "stagedBytes"
BRANCHES: Final = "branches"
MOST_TOMBSTONES: Final = "branchTombstones"
MOST_SEALED_TOKENS: Final = "branchSealedTokens"

TOMBSTONES_AFTER: Final = "tombstonesAfter"
SEALED_TOKENS_AFTER: Final = "sealedTokensAfter"
"""Of a branch that is behind: what compaction would leave; of tombstones under a live lakeFS, at most."""
RANGES: Final = "ranges"
"""Of a receipt alone: ranges that the changes touched, and those written instead."""

AGE_REACHED: Final = "ageReached"
"""Of a candidate alone: 1 when the last compaction of its branch began longer ago than the threshold."""


# The targets of a staging area, and the version of a branch that a plan is made from.


def target_name(repository: str, branch: str) -> str:
    """The name of a target: a branch of a repository. Neither name has a slash."""
    return f"{repository}/{branch}"


def branch_of_target(target: str) -> str:
    """The branch of a target; the whole text for a name in another form."""
    return target.rpartition("/")[2]


def base_version_of(repository: str, branch: str, commit: str, base: str, tokens: Sequence[str]) -> str:
    """Return the version that a plan is computed from: the two trees, and a hash of the tokens above them. Another one
    means that the plan is outdated. `base`: the compacted base, "" when that is the tree of the commit. `tokens`: the
    newest first.
    """
    content = hashlib.sha256()
    for part in (repository, branch, *tokens):
        content.update(b"%d:" % len(part.encode()) + part.encode())
    return f"{commit}/{base}/{content.hexdigest()}"


def trees_of(base_version: str) -> tuple[str, str]:
    """Commit and compacted base of a base version; the base is "" where there is none."""
    commit, base, _ = base_version.split("/")
    return commit, base


def format_rewrite(receipt: JobReceipt) -> str:
    """Format the result of a job on a branch: `3 tokens compacted, 2 ranges written, 40 left as they are`."""
    if receipt.metarange is None and receipt.outputs:
        return f"{plural(len(receipt.sources), 'token')} merged into one with {plural(receipt.records, 'row')}"
    done = [f"{plural(len(receipt.sources), 'token')} compacted"]
    if receipt.metarange is not None:
        done.append(f"{plural(receipt.metarange.ranges_written, 'range')} written")
        if receipt.metarange.ranges_reused:
            done.append(f"{receipt.metarange.ranges_reused} left as they are")
        if receipt.metarange.tombstones:
            done.append(f"{plural(receipt.metarange.tombstones, 'tombstone')} removed")
    return ", ".join(done)


# Costs of reads of the branches that are furthest behind, now and after compaction, in sentences.
#
# docs/design/staging-areas.md#sensor.


def listing_costs(debt: DebtStatus) -> tuple[str, ...]:
    """One sentence per branch that the status names, the worst first; none when it names none."""
    return tuple(_cost(item) for item in debt.behind)


def _cost(target: TargetDebtStatus) -> str:
    """`Listing `main/` steps over 999,999 tombstones; 0 after compaction. It asks 12 sealed tokens; 0 after
    compaction. 1,200,000 writes are staged.`
    """
    tombstones, left = target.measure(TOMBSTONES), target.measure(TOMBSTONES_AFTER)
    tokens, tokens_left = target.measure(SEALED_TOKENS), target.measure(SEALED_TOKENS_AFTER)
    writes = int(target.measure(STAGED_WRITES))
    at_most = "at most " if left else ""
    return (
        f"Listing `{branch_of_target(target.target)}/` steps over {_counted(tombstones, 'tombstone')}; "
        f"{at_most}{left:,.0f} after compaction. It asks {_counted(tokens, 'sealed token')}; {tokens_left:,.0f} after "
        f"compaction. {_counted(writes, 'write')} {'is' if writes == 1 else 'are'} staged."
    )


def _counted(amount: float, noun: str) -> str:
    return f"{amount:,.0f} {noun if amount == 1 else noun + 's'}"


# Staging areas as the core knows them.


class StagingAreaKind(Kind):
    """See `Kind`. A target is a branch; its base version is a hash of commit, compacted base and tokens."""

    member = STAGING_AREA
    nouns = Nouns(
        source="sealed token",
        target="branch",
        targets="branches",
        gain="to compact",
        compacted="compacted",
        deleted="token or range",
        ends_quarantine="restore the range or the row",
        damaged="source",
    )
    doors = STAGING_DOORS
    fates = FATES
    words = Words(
        jobs=reasons.JOB_WORDS,
        policies=reasons.POLICY_WORDS,
        waits=reasons.WAIT_WORDS,
        left_out=reasons.LEFT_OUT_WORDS,
    )
    measures = (
        Measure(TOMBSTONES, "tombstones", "Tombstones in the tokens of branches", "Tombstones"),
        Measure(SEALED_TOKENS, "sealed_tokens", "Sealed tokens of branches", "Sealed tokens"),
        Measure(STAGED_WRITES, "staged_writes", "Writes in the tokens of branches", "Staged writes"),
        Measure(STAGED_BYTES, "staged_bytes", "Bytes in the tokens of branches", "Staged bytes", unit="bytes"),
        Measure(
            MOST_TOMBSTONES,
            "branch_tombstones",
            "Tombstones of the branch that has the most: what a listing steps over at most",
            "Tombstones of one branch",
        ),
        Measure(
            MOST_SEALED_TOKENS,
            "branch_sealed_tokens",
            "Sealed tokens of the branch that has the most: what a read asks one after another at most",
            "Sealed tokens of one branch",
        ),
        Measure(BRANCHES, "branches", "Branches of staging areas", "Branches"),
    )
    overlap_remedy = "name different repositories"
    immutable_sources = True

    # -- planning ------------------------------------------------------------------------------------------------------

    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        """See `Kind`. Any threshold is enough."""
        thresholds = member_of(store.staging_area).thresholds
        least = {
            TOMBSTONES: thresholds.tombstones,
            SEALED_TOKENS: thresholds.sealed_tokens,
            STAGED_WRITES: thresholds.staged_writes,
            STAGED_BYTES: None if thresholds.staged_bytes is None else int(thresholds.staged_bytes),
            AGE_REACHED: 1,
        }
        given = {name: amount for name, amount in least.items() if amount is not None}
        return lambda candidate: any(candidate.measure(name) >= amount for name, amount in given.items())

    def parameters(self, store: StoreSpec) -> JobParameters:
        """See `Kind`."""
        return JobParameters(metarange=MetarangeParameters(lakefs=member_of(store.staging_area).lakefs))

    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        """See `Kind`."""
        (group,) = job.groups
        commit, base = trees_of(job.base_version)
        sources = MetarangeSources(
            store=member_of(store.staging_area).reference,
            branch=branch_of_target(job.target),
            commit=commit,
            base=base,
            tokens=group.sources,
        )
        return Work(METARANGE_REWRITE, JobSources(metarange=sources), self.parameters(store))

    def parts(self, spec: CompactionJobSpec) -> Parts:
        """See `Kind`. Newer tokens hide what older ones say, so the tokens of a branch are one group."""
        return Parts(_version(member_of(spec.sources.metarange)), (member_of(spec.sources.metarange).tokens,))

    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        """See `Kind`: the branches of a repository have one."""
        return ""

    # -- which store ---------------------------------------------------------------------------------------------------

    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        """See `Kind`."""
        named = member_of(spec.sources.metarange).store
        if named == member_of(store.staging_area).reference:
            return ""
        return (
            f"repository {named.repository}, with the Secrets that the job names, is not the store of policy {policy}"
        )

    def gone(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """See `Kind`: the branch is gone, or has another commit, base or tokens."""
        version = _version(member_of(spec.sources.metarange))
        return not any(
            candidate.target == spec.target and candidate.base_version == version for candidate in scan.candidates
        )

    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        """See `Kind`."""
        area = member_of(store.staging_area)
        return (f"staging:{namespace}:{area.kv.secret_name}:{area.kv.key}/{area.table}/{area.repository}",)

    def overlap(self, spec: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        """See `Kind`. Secrets are of a namespace: in two of them the same name may be of two databases."""
        mine, theirs = member_of(spec.staging_area), member_of(other.staging_area)
        same = (mine.repository, mine.kv, mine.table) == (theirs.repository, theirs.kv, theirs.table)
        return same_namespace and same

    def secrets(self, store: StoreSpec) -> StoreSecrets:
        """See `Kind`. The key-value store is the driver's alone: tasks only read and write ranges."""
        area = member_of(store.staging_area)
        return StoreSecrets(driver=area.secret_names, tasks=area.object_secret_names)

    # -- words ---------------------------------------------------------------------------------------------------------

    def does(self, spec: CompactionJobSpec) -> str:
        """See `Kind`."""
        sources = member_of(spec.sources.metarange)
        size = f", {format_bytes(spec.estimated_bytes)}," if spec.estimated_bytes else ""
        tokens = plural(len(sources.tokens), "token")
        if spec.metarange_parameters.lakefs is not None:
            return f"The job merges {tokens}{size} of branch {sources.branch} into one."
        return f"The job makes {tokens}{size} of branch {sources.branch} part of its base."

    def did(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        return format_rewrite(receipt)

    def became(self, receipt: JobReceipt) -> str:
        """See `Kind`."""
        tokens = f"{plural(len(receipt.sources), 'token')} with {format_bytes(receipt.bytes_before)}"
        tree = receipt.metarange
        if tree is None and not receipt.outputs:
            return f"{tokens} became part of the base."
        if tree is None:
            rows = plural(receipt.records, "row")
            return f"{tokens} became one with {format_bytes(receipt.bytes_after)}; it has {rows}."
        written = f"{plural(tree.ranges_written, 'range')} with {format_bytes(receipt.bytes_after)}"
        records = f"the written ranges hold {plural(receipt.records, 'record')}"
        return f"{tokens} became {written}; {records}, and {plural(tree.ranges_reused, 'range')} stayed as they were."

    def debt(self, status: CompactionPolicyStatus) -> str:
        """See `Kind`."""
        debt = debt_of(status)
        where = f"{plural(debt.sources, 'token')} of {plural(debt.targets, 'branch', 'branches')}"
        return f"{format_bytes(debt.bytes)} in {where} could be compacted"

    def details(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """See `Kind`."""
        return listing_costs(debt_of(status))

    def rows(self, status: CompactionPolicyStatus) -> tuple[tuple[str, str], ...]:
        """See `Kind`."""
        if status.debt is None or not status.debt.measures:
            return ()
        debt = status.debt
        staged = f"{debt.measure(STAGED_WRITES):,g} writes"
        tombstones = f"{debt.measure(TOMBSTONES):,g} of them tombstones"
        sealed = f"{debt.measure(SEALED_TOKENS):,g} sealed tokens"
        branches = plural(int(debt.measure(BRANCHES)), "branch", "branches")
        return (("Staged", f"{staged}, {tombstones}, and {sealed} in {branches}"),)


def _version(sources: MetarangeSources) -> str:
    return base_version_of(sources.store.repository, sources.branch, sources.commit, sources.base, sources.tokens)


STAGING: Final = StagingAreaKind()
