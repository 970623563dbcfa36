"""Staging areas as the core knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from compaction.api.job.resource import CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.policy.staging_area import (
    METARANGE_REWRITE,
    STAGING_AREA,
    MetarangeParameters,
    MetarangeSources,
    StagingAreaSpec,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.text.formatting import format_bytes, plural
from compaction.core.kind import Kind, Measure, Nouns, StoreSecrets, Words, Work
from compaction.core.planning.candidates import Candidate
from compaction.core.planning.parts import Parts
from compaction.core.planning.planner import PlannedJob
from compaction.core.planning.reading import ScanResult
from compaction.staging import measures, words
from compaction.staging.doors import STAGING_DOORS
from compaction.staging.listing_cost import listing_costs
from compaction.staging.reasons import FATES
from compaction.staging.work import base_version_of, branch_of_target, format_rewrite, trees_of

if TYPE_CHECKING:
    from compaction.api.policy.resource import (  # it needs cronsim, which the worker does not have
        CompactionPolicyStatus,
        DebtStatus,
    )


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
        jobs=words.JOB_WORDS,
        policies=words.POLICY_WORDS,
        waits=words.WAIT_WORDS,
        left_out=words.LEFT_OUT_WORDS,
    )
    measures = (
        Measure(measures.TOMBSTONES, "tombstones", "Tombstones in the tokens of branches", "Tombstones"),
        Measure(measures.SEALED_TOKENS, "sealed_tokens", "Sealed tokens of branches", "Sealed tokens"),
        Measure(measures.STAGED_WRITES, "staged_writes", "Writes in the tokens of branches", "Staged writes"),
        Measure(measures.STAGED_BYTES, "staged_bytes", "Bytes in the tokens of branches", "Staged bytes", unit="bytes"),
        Measure(
            measures.MOST_TOMBSTONES,
            "branch_tombstones",
            "Tombstones of the branch that has the most: what a listing steps over at most",
            "Tombstones of one branch",
        ),
        Measure(
            measures.MOST_SEALED_TOKENS,
            "branch_sealed_tokens",
            "Sealed tokens of the branch that has the most: what a read asks one after another at most",
            "Sealed tokens of one branch",
        ),
        Measure(measures.BRANCHES, "branches", "Branches of staging areas", "Branches"),
    )
    overlap_remedy = "name different repositories"
    immutable_sources = True

    # -- planning ------------------------------------------------------------------------------------------------------

    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        """See `Kind`. Any threshold is enough."""
        thresholds = _area(store).thresholds
        least = {
            measures.TOMBSTONES: thresholds.tombstones,
            measures.SEALED_TOKENS: thresholds.sealed_tokens,
            measures.STAGED_WRITES: thresholds.staged_writes,
            measures.STAGED_BYTES: None if thresholds.staged_bytes is None else int(thresholds.staged_bytes),
            measures.AGE_REACHED: 1,
        }
        given = {name: amount for name, amount in least.items() if amount is not None}
        return lambda candidate: any(candidate.measure(name) >= amount for name, amount in given.items())

    def parameters(self, store: StoreSpec) -> JobParameters:
        """See `Kind`."""
        return JobParameters(metarange=MetarangeParameters(lakefs=_area(store).lakefs))

    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        """See `Kind`."""
        (group,) = job.groups
        commit, base = trees_of(job.base_version)
        sources = MetarangeSources(
            store=_area(store).reference,
            branch=branch_of_target(job.target),
            commit=commit,
            base=base,
            tokens=group.sources,
        )
        return Work(METARANGE_REWRITE, JobSources(metarange=sources), self.parameters(store))

    def parts(self, spec: CompactionJobSpec) -> Parts:
        """See `Kind`. Newer tokens hide what older ones say, so the tokens of a branch are one group."""
        return Parts(_version(_sources(spec)), (_sources(spec).tokens,))

    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        """See `Kind`: the branches of a repository have one."""
        return ""

    # -- which store ---------------------------------------------------------------------------------------------------

    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        """See `Kind`."""
        named = _sources(spec).store
        if named == _area(store).reference:
            return ""
        return (
            f"repository {named.repository}, with the Secrets that the job names, is not the store of policy {policy}"
        )

    def gone(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """See `Kind`: the branch is gone, or has another commit, base or tokens."""
        version = _version(_sources(spec))
        return not any(one.target == spec.target and one.base_version == version for one in scan.candidates)

    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        """See `Kind`."""
        area = _area(store)
        return (f"staging:{namespace}:{area.kv.secret_name}:{area.kv.key}/{area.table}/{area.repository}",)

    def overlap(self, one: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        """See `Kind`. Secrets are of a namespace: in two of them the same name may be of two databases."""
        mine, theirs = _area(one), _area(other)
        same = (mine.repository, mine.kv, mine.table) == (theirs.repository, theirs.kv, theirs.table)
        return same_namespace and same

    def secrets(self, store: StoreSpec) -> StoreSecrets:
        """See `Kind`. The key-value store is the driver's alone: tasks only read and write ranges."""
        area = _area(store)
        return StoreSecrets(driver=area.secret_names, tasks=area.object_secret_names)

    # -- words ---------------------------------------------------------------------------------------------------------

    def does(self, spec: CompactionJobSpec) -> str:
        """See `Kind`."""
        sources = _sources(spec)
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
        debt = _debt(status)
        where = f"{plural(debt.sources, 'token')} of {plural(debt.targets, 'branch', 'branches')}"
        return f"{format_bytes(debt.bytes)} in {where} could be compacted"

    def details(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """See `Kind`."""
        return listing_costs(_debt(status))

    def rows(self, status: CompactionPolicyStatus) -> tuple[tuple[str, str], ...]:
        """See `Kind`."""
        if status.debt is None or not status.debt.measures:
            return ()
        debt = status.debt
        staged = f"{debt.measure(measures.STAGED_WRITES):,g} writes"
        tombstones = f"{debt.measure(measures.TOMBSTONES):,g} of them tombstones"
        sealed = f"{debt.measure(measures.SEALED_TOKENS):,g} sealed tokens"
        branches = plural(int(debt.measure(measures.BRANCHES)), "branch", "branches")
        return (("Staged", f"{staged}, {tombstones}, and {sealed} in {branches}"),)


def _version(sources: MetarangeSources) -> str:
    return base_version_of(sources.store.repository, sources.branch, sources.commit, sources.base, sources.tokens)


def _debt(status: CompactionPolicyStatus) -> DebtStatus:
    assert status.debt is not None, "asked for debt that there is"
    return status.debt


def _area(store: StoreSpec) -> StagingAreaSpec:
    assert store.staging_area is not None, "the kind is chosen by this member"
    return store.staging_area


def _sources(spec: CompactionJobSpec) -> MetarangeSources:
    assert spec.sources.metarange is not None, "the kind is chosen by the job's type, which needs this member"
    return spec.sources.metarange


STAGING: Final = StagingAreaKind()
