"""Directories of JSON lines as the core knows them: a kind of store that is not in the package.

Small files `*.jsonl` of one directory are merged into one. Writers add files of new names, each at once (by a rename);
readers read those that the record of the directory counts (`record`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field, StringConstraints

from compaction import registry
from compaction.api import extend
from compaction.api.base import ApiModel, PrinterColumn, list_atomic
from compaction.api.job.job import CompactionJob, CompactionJobSpec, JobParameters, JobReceipt, JobSources
from compaction.api.members import JobMember, SourcesModel, StoreMember, StoreModel
from compaction.api.policy.store import STORES, StoreSpec
from compaction.api.text.printing import plural
from compaction.core.doors import Door, Doors
from compaction.core.kind import Kind, Measure, Nouns, Words, Work
from compaction.core.meaning import Meaning
from compaction.core.planning.candidates import Candidate, Parts
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.overlap import relative_to
from compaction.core.planning.planner import PlannedJob

if TYPE_CHECKING:
    from compaction.api.policy.policy import CompactionPolicyStatus

LINE_REWRITE: Final = "LineRewrite"
QUARANTINED: Final = "Quarantined"
FILES: Final = Measure("lineFiles", "line_files", "Files that a reader of all lines opens", "Files with lines")
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class LineStore(StoreModel):
    """Directories with files of JSON lines."""

    root: Text
    """Directory whose sub directories hold files of lines, as an absolute path."""
    small_bytes: Annotated[int, Field(ge=1)] = 1024
    """Bytes below which a file is merged with others."""
    min_files: Annotated[int, Field(ge=2)] = 2
    """Number of small files below which a directory is left for later."""

    @property
    def location(self) -> str:
        return self.root


class LineSources(SourcesModel):
    """Files of one directory."""

    path: Text
    """Directory of the files."""
    files: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1024), list_atomic()]
    """Names of the files that become one."""

    @property
    def target(self) -> str:
        return self.path


class LineParameters(ApiModel):
    """How lines are rewritten: there is nothing to choose."""


LINE_STORE: Final = StoreMember(
    name="LineStore",
    member="line_store",
    model=LineStore,
    help="Directories with files of JSON lines.",
    jobs=(
        JobMember(
            name=LINE_REWRITE,
            member="lines",
            sources=LineSources,
            parameters=LineParameters,
            help="Files of one directory",
            needs="the path of a directory, and files",
            column=PrinterColumn("Lines", ".spec.sources.lines.path", "Directory of the files", wide=True),
        ),
    ),
)


class LineKind(Kind):
    """See `Kind`. A target is a directory. A file never changes, but another may get its name: identities tell."""

    member = LINE_STORE
    nouns = Nouns(
        source="file",
        target="directory",
        targets="directories",
        gain="to merge",
        compacted="merged",
        deleted="replaced file",
        ends_quarantine="restore the file",
    )
    doors = Doors(
        adapter=Door("conformance.lines.adapter:open_adapter"),
        rewriters={LINE_REWRITE: Door("conformance.lines.rewriter:open_rewriter")},
        tables=Door("conformance.lines.adapter"),
    )
    words = Words(
        left_alone={QUARANTINED: Meaning("The file is damaged.", "It is merged once another file has its name.")}
    )
    measures = (FILES,)

    def due(self, store: StoreSpec) -> Callable[[Candidate], bool]:
        fewest = store_of(store).min_files
        return lambda candidate: candidate.debt_sources >= fewest

    def parameters(self, store: StoreSpec) -> JobParameters:
        return JobParameters()

    def work(self, job: PlannedJob, store: StoreSpec) -> Work:
        (group,) = job.groups
        sources = LineSources(path=job.target, files=group.sources)
        return Work(LINE_REWRITE, JobSources.model_validate({"lines": sources}), self.parameters(store))

    def parts(self, spec: CompactionJobSpec) -> Parts:
        return Parts(groups=(sources_of(spec).files,))

    def tenant(self, spec: CompactionJobSpec, store: StoreSpec) -> str:
        return ""

    def stranger(self, spec: CompactionJobSpec, store: StoreSpec, policy: str) -> str:
        if relative_to(store.location, spec.target) is not None:
            return ""
        return f"{spec.target} is not below {store.location}, the root of policy {policy}"

    def places(self, store: StoreSpec, namespace: str) -> tuple[str, ...]:
        return (f"lines:{store.location}",)

    def overlap(self, one: StoreSpec, other: StoreSpec, *, same_namespace: bool) -> bool:
        return any(relative_to(*pair) is not None for pair in _both_ways(one.location, other.location))

    def scanned(self, scan: ScanResult) -> str:
        return plural(int(scan.measures.get(FILES.name, 0)), "file")

    def does(self, spec: CompactionJobSpec) -> str:
        return f"The job merges {plural(len(sources_of(spec).files), 'file')} of {spec.target} into one."

    def did(self, receipt: JobReceipt) -> str:
        return f"{plural(len(receipt.sources), 'file')} merged into {len(receipt.outputs)}"

    def became(self, receipt: JobReceipt) -> str:
        return f"{plural(len(receipt.sources), 'file')} became {len(receipt.outputs)}, {receipt.records} lines."

    def debt(self, status: CompactionPolicyStatus) -> str:
        return f"{plural(status.debt.sources if status.debt else 0, 'file')} could be merged"


def _both_ways(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (one, other), (other, one)


def store_of(store: StoreSpec) -> LineStore:
    """The member of a policy of this kind."""
    assert isinstance(store.chosen, LineStore)
    return store.chosen


def sources_of(spec: CompactionJobSpec) -> LineSources:
    """The member of a job of this kind."""
    assert isinstance(spec.sources.chosen, LineSources)
    return spec.sources.chosen


LINES: Final = LineKind()


# The kind in the registry of this process, for a while: the models are the same objects for all tests of it.


@contextmanager
def registered() -> Iterator[None]:
    """Register the kind, and take it out of the unions again."""
    kinds, stores, info = registry.KINDS, list(STORES), CompactionJob.INFO
    rules = StoreSpec.RULES, CompactionJobSpec.RULES
    fields = {union: dict(union.__pydantic_fields__) for union in (StoreSpec, JobSources, JobParameters)}
    registry.register(LINES)
    try:
        yield
    finally:
        registry.KINDS, STORES[:], CompactionJob.INFO = kinds, stores, info
        StoreSpec.RULES, CompactionJobSpec.RULES = rules
        for union, before in fields.items():
            union.__pydantic_fields__.clear()
            union.__pydantic_fields__.update(before)
        for model in extend._REBUILT:
            model.model_rebuild(force=True)
