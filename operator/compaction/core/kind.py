"""The one object that tells the core everything it may know about a kind of store.

The core asks the `Kind` of a store or of a job (`registry`) and never which kind it is. A kind is pure: it decides from
specs, candidates, scans and status; what touches a store, Spark or a terminal is behind its `doors`.

Source: Kueue's GenericJob (pkg/controller/jobframework/interface.go), one contract between a scheduler and every type
of job that it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from compaction.api.job.job import CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.members import StoreMember
from compaction.api.policy.store import PolicyStanding, StoreSpec
from compaction.api.text.printing import plural
from compaction.core.doors import Doors
from compaction.core.meaning import Fate, Meaning
from compaction.core.planning.candidates import Candidate, Parts
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import PlannedJob

if TYPE_CHECKING:
    from compaction.api.policy.policy import CompactionPolicyStatus, DebtStatus


@dataclass(frozen=True, slots=True)
class Nouns:
    """The words for what a kind works on. `gain`: what becomes of the bytes of debt, as in `12Mi to merge`;
    `compacted`: what becomes of sources, as in `3 blocks wait to be merged`. `deleted`: what a sweep deletes, in the
    singular. `ends_quarantine`: what a person does about a source in quarantine; `damaged`: what is there, where that
    may be something else than a source of a plan.
    """

    source: str
    target: str
    targets: str
    gain: str
    compacted: str
    deleted: str
    ends_quarantine: str
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """The Event of a measure that is no longer 0: its reason, and the sentence about what is counted."""

    reason: str
    noun: str
    nouns: str
    message: str


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that the kind's scans bring: a row of `status.debt.measures`, a gauge `compaction_<metric>`, and a panel
    of the dashboard with the `title`. `unit` is Grafana's.
    """

    name: str
    metric: str
    help: str
    title: str
    unit: str = "short"
    alarm: Alarm | None = None


@dataclass(frozen=True, slots=True)
class PolicyWord:
    """A reason that the kind adds to the condition Ready of policies."""

    standing: PolicyStanding
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class Words:
    """The reasons that the kind adds to those of the core, with their words. `left_out`: of targets that a plan leaves
    out; `left_alone`: of parts of them.
    """

    jobs: Mapping[str, Meaning] = field(default_factory=lambda: MappingProxyType({}))
    policies: Mapping[str, PolicyWord] = field(default_factory=lambda: MappingProxyType({}))
    waits: Mapping[str, Meaning] = field(default_factory=lambda: MappingProxyType({}))
    left_out: Mapping[str, Meaning] = field(default_factory=lambda: MappingProxyType({}))
    left_alone: Mapping[str, Meaning] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class StoreSecrets:
    """Names of the Secrets of a store: what a driver needs, and what the tasks do, wherever they run."""

    driver: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()


NO_SECRETS: Final = StoreSecrets()


@dataclass(frozen=True, slots=True)
class StoreVolume:
    """A PersistentVolumeClaim that pods of workers mount at `path`; `sub_path`: the directory of it."""

    path: str
    claim_name: str
    sub_path: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """A planned job as the spec of an object: the name of its type, its sources, and its parameters."""

    job_type: str
    sources: JobSources
    parameters: JobParameters


@dataclass(frozen=True, slots=True)
class ReasonMessage:
    """A reason and what to say about it."""

    reason: str
    message: str


class Kind(ABC):
    """One kind of store.

    immutable_sources: sources never change, and no other source of the store ever has the same name: a source is named
        by it alone, a job is never planned twice under one name, one whose source was repaired keeps its name and is
        tried again, and work that another process did first is no failure.
    keeps_quarantine: the store itself keeps damaged sources out of plans until they are released.
    has_tenants: debt is shown by tenant.
    overlap_remedy: what to do about two policies over one store.
    """

    member: StoreMember
    nouns: Nouns
    doors: Doors
    words: Words
    measures: tuple[Measure, ...] = ()
    fates: Mapping[str, Fate] = MappingProxyType({})
    immutable_sources: bool = False
    keeps_quarantine: bool = False
    has_tenants: bool = False
    overlap_remedy: str = "correct the store"

    @property
    def name(self) -> str:
        """As in `status.store`."""
        return self.member.name

    # -- planning ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        """Return the rule for enough debt: the thresholds of the spec, ANDed or ORed as the kind does."""

    @abstractmethod
    def parameters(self, store: StoreSpec) -> JobParameters:
        """Return what every job of the store is given besides its sources; plans with other ones have another hash."""

    @abstractmethod
    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        """A planned job as the spec of an object."""

    @abstractmethod
    def parts(self, spec: CompactionJobSpec) -> Parts:
        """Return the parts of which a job is made; nothing for a job that no plan makes."""

    @abstractmethod
    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        """Return the tenant that the job belongs to."""

    # -- which store ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        """Return the reason for which the sources of a job of this kind are not in the store of the policy of that
        name; "" when they are.
        """

    def gone(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """Return whether a scan shows that the sources of a job, whose claim was refused as gone, are not there."""
        return spec.target not in scan.targets

    def unclaimable(self, job: str, spec: CompactionJobSpec, scan: ScanResult) -> bool:
        """Return whether such a job can never run although its sources are there."""
        return False

    @abstractmethod
    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        """Return the places of the store, in paths of parts between slashes. A store that shares sources with it has
        a place that is the same, around or inside one of these.
        """

    @abstractmethod
    def overlap(self, spec: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        """Return whether two stores of this kind may hold the same source."""

    def secrets(self, store: StoreSpec) -> StoreSecrets:
        """The Secrets that the store is opened with."""
        return NO_SECRETS

    def volume(self, store: StoreSpec) -> StoreVolume | None:
        """The volume that workers in pods need to see the store."""
        return None

    # -- words ---------------------------------------------------------------------------------------------------------

    def nothing_found(self, store: StoreSpec, scan: ScanResult) -> ReasonMessage | None:
        """Return the meaning of an empty store; None when there is nothing to say about it."""
        return None

    def scanned(self, scan: ScanResult) -> str:
        """Say what a scan went through, such as `3 logs`."""
        return plural(len(scan.targets), self.nouns.target, self.nouns.targets)

    def proves_equal(self, receipt: JobReceipt) -> bool:
        """Return whether a receipt proves that the outputs hold what the sources held."""
        return receipt.fingerprint_before == receipt.fingerprint_after

    @abstractmethod
    def does(self, spec: CompactionJobSpec) -> str:
        """Say what a job does, in one sentence."""

    @abstractmethod
    def did(self, receipt: JobReceipt) -> str:
        """Say what a job did: `2 groups committed`."""

    @abstractmethod
    def became(self, receipt: JobReceipt) -> str:
        """Say what became of the sources, in one sentence."""

    @abstractmethod
    def debt(self, status: CompactionPolicyStatus) -> str:
        """Say what the debt is, in one clause, such as `12Mi could be reclaimed by 3 segments of 2 logs`."""

    def details(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """Sentences about the measures, for `why`."""
        return ()

    def warnings(self, status: CompactionPolicyStatus) -> tuple[str, ...]:
        """Sentences about measures that a user has to check, for `why`."""
        return ()

    def rows(self, status: CompactionPolicyStatus) -> tuple[tuple[str, str], ...]:
        """Labelled lines about the measures, for `status`."""
        return ()


def debt_of(status: CompactionPolicyStatus) -> DebtStatus:
    """The debt, for what is asked only where there is some."""
    assert status.debt is not None, "asked for debt that there is"
    return status.debt
