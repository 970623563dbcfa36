"""The adapter of directories of lines: each sub directory of the root is a target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from compaction.api.enums import PolicyReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.text.printing import plural
from compaction.cli.output import OutputColumn
from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftAlonePart
from compaction.core.planning.debt import ScanResult, TargetProblem, total_debt
from compaction.core.planning.planner import LeftOut, Plan, PlannedJob
from compaction.errors import ClaimRefusal, ClaimRefusedError
from compaction.local.run.job import LocalJob, RunResult
from compaction.storage.adapter import SWEEP_AGAIN, OpenRequest, Sensed, SenseRequest, StoreAdapter, Swept
from conformance.lines import record
from conformance.lines.kind import FILES, QUARANTINED, LineStore, store_of
from conformance.lines.record import LinesError


class LineAdapter:
    """Implements `StoreAdapter`."""

    def __init__(self, spec: LineStore, *, grace: float, clock: Callable[[], float]) -> None:
        self._root = Path(spec.root)
        self._small = spec.small_bytes
        self._grace = grace
        self._clock = clock

    def sense(self, request: SenseRequest) -> Sensed:
        problem, problems, candidates, due, live = None, [], [], [], 0
        targets = self._targets()
        if not self._root.is_dir():
            problem = TargetProblem(str(self._root), PolicyReason.SENSE_FAILED, f"{self._root} is not a directory")
        for target in targets:
            try:
                found, names = record.read(target), record.listing(target)
                aside = request.quarantined.get(str(target), frozenset())
                candidates.append(self._candidate(target, found.live(names), aside, request.asked))
            except (LinesError, OSError) as error:
                problems.append(TargetProblem(str(target), PolicyReason.SENSE_FAILED, str(error)))
                continue
            live += len(found.live(names))
            due += [max(0.0, since + self._grace - time.time()) for since in found.replaced.values()]
            due += [0.0 for _ in found.leftovers(names)]
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=time.time(),
            candidates=tuple(candidates),
            problems=tuple(problems),
            problem=problem,
            targets=frozenset(map(str, targets)),
            identities=MappingProxyType(
                {
                    (target, name): identity_of(Path(target) / name)
                    for target, names in request.quarantined.items()
                    for name in names
                }
            ),
            measures=MappingProxyType({FILES.name: live}),
        )
        return Sensed(reading, min(due, default=None))

    def _candidate(self, target: Path, live: list[str], aside: frozenset[str], sensed_at: float) -> Candidate:
        """The small files of a target, if there are two to merge."""
        sizes = {name: (target / name).stat().st_size for name in live if name not in aside}
        small = tuple(name for name, size in sizes.items() if size < self._small)
        groups: tuple[GroupCandidate, ...] = ()
        if len(small) > 1:
            total = sum(sizes[name] for name in small)
            identities = tuple(identity_of(target / name) for name in small)
            groups = (GroupCandidate(small, identities, copy_bytes=total, gain_bytes=total),)
        return Candidate(
            target=str(target),
            tenant="",
            base_version="",
            groups=groups,
            obsolete=(),
            debt_bytes=sum(group.gain_bytes for group in groups),
            debt_sources=len(small) if groups else 0,
            sensed_at=sensed_at,
            left_alone=tuple(LeftAlonePart(name, QUARANTINED) for name in live if name in aside),
        )

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        deleted, problems = 0, []
        for target in self._targets():
            try:
                deleted += record.sweep(target, grace=self._grace, active=active)
            except LinesError as error:
                problems.append(TargetProblem(str(target), "SweepFailed", str(error)))
        return Swept(deleted, 0, tuple(problems), SWEEP_AGAIN if problems else None)

    def high_water(self, target: str, job: str) -> int:
        with _claiming(target):
            return record.read(Path(target)).tokens.get(job, 0)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        with _claiming(spec.target):
            record.claim(Path(spec.target), job=job, token=token)

    def retire(self, target: str, job: str) -> None:
        record.retire(Path(target), job)

    def close(self) -> None:
        """Files are open only while something is done with them."""

    def _targets(self) -> list[Path]:
        return sorted(path for path in self._root.glob("*") if path.is_dir())


def open_adapter(request: OpenRequest) -> StoreAdapter:
    """See `storage.adapter.OpenAdapter`."""
    return LineAdapter(store_of(request.spec.store), grace=request.grace, clock=request.clock)


def identity_of(path: Path) -> str:
    """What tells one version of a file from another; "" when it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


@contextmanager
def _claiming(target: str) -> Iterator[None]:
    try:
        yield
    except LinesError as error:
        refusal = ClaimRefusal.ERROR if Path(target).is_dir() else ClaimRefusal.GONE
        raise ClaimRefusedError(refusal, str(error)) from error


# What `compactor run` shows of directories of lines; implements `cli.local.run_view.RunTables`.

Data = dict[str, Any]
PLANNED: Final = (
    OutputColumn("name", "Job"),
    OutputColumn("target", "Directory"),
    OutputColumn("files", "Files", right=True),
)
RECEIPTS: Final = (OutputColumn("job", "Job"), OutputColumn("target", "Directory"), OutputColumn("state", "State"))
QUARANTINED_LINES: Final = (
    OutputColumn("target", "Directory"),
    OutputColumn("source", "Quarantined"),
    OutputColumn("reason", "Reason"),
)


def planned_job(job: PlannedJob) -> Data:
    return {"name": job.name, "target": job.target, "files": sum(len(group.sources) for group in job.groups)}


def planned_rows(data: Data, plan: Plan) -> Iterable[Data]:
    rows: list[Data] = data["jobs"]
    return rows


def debt_of(scan: ScanResult) -> Data:
    debt = total_debt(scan.candidates)
    return {"bytes": debt.bytes, "sources": debt.sources, "targets": debt.targets}


def more_of(scan: ScanResult) -> Data:
    return {}


def left_out(row: LeftOut) -> Data:
    return {"reason": row.reason, "count": row.count, "example": row.example}


def rows_after(result: RunResult) -> Sequence[LeftOut]:
    return result.left_out


def summary(data: Data, plan: Plan) -> str:
    return f"{plural(data['debt']['sources'], 'file')} would be merged"


def show_rest(data: Data) -> None:
    """What was left out is in the data."""


def receipt_row(job: LocalJob) -> Data:
    return {"job": job.name, "target": job.target, "state": str(job.state)}


def outcome(data: Data, result: RunResult) -> str:
    return f"{plural(len(data['jobs']), 'job')} ended"


def undone(result: RunResult) -> list[str]:
    return []
