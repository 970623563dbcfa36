"""Runs one LineRewrite job: its files become one, in one commit of the record."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from compaction.api.enums import JobReason
from compaction.api.job.job import JobReceipt, SkippedSource
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.errors import CompactionError, StaleTokenError
from compaction.storage.secrets import Secrets
from compaction.worker.attempt import RewriteAttempt
from compaction.worker.ports import Assignment, Engine, HeldLease, JobRunner
from compaction.worker.tasks import run_tasks
from conformance.lines import record
from conformance.lines.adapter import identity_of
from conformance.lines.kind import sources_of
from conformance.lines.record import LinesChangedError, LinesError

# Lines: what readers find, and the merge with its proof.

_DIGESTS: Final = 1 << 128


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Files of a directory that become one, `output`."""

    directory: str
    sources: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of them. `damaged`: what is wrong with each source that was left out. Nothing is written of none."""

    sources: tuple[str, ...]
    damaged: dict[str, str]
    records: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    before: str = ""
    after: str = ""


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file, each a JSON value. Raises ValueError: one of them is not."""
    lines = path.read_bytes().splitlines()
    for line in lines:
        json.loads(line)
    return lines


def content(directory: Path) -> list[bytes]:
    """Every line that readers find, in order."""
    names = record.read(directory).live(record.listing(directory))
    return sorted(line for name in names for line in lines_of(directory / name))


def fingerprint(lines: list[bytes]) -> str:
    """The same for the same lines in any order: their number, and the sum of their hashes."""
    total = sum(int.from_bytes(hashlib.sha256(line).digest()[:16]) for line in lines)
    return f"{len(lines)}:{total % _DIGESTS:032x}"


def merge(task: MergeTask) -> Merged:
    """What runs in a task: read, write, read back. Raises LinesError."""
    directory = Path(task.directory)
    found: dict[str, list[bytes]] = {}
    damaged: dict[str, str] = {}
    with record.errors(directory):
        for name in task.sources:
            try:
                found[name] = lines_of(directory / name)
            except FileNotFoundError as error:
                raise record.LinesChangedError(f"{directory / name} is not there any more") from error
            except ValueError as error:
                damaged[name] = f"{directory / name}: a line is no JSON: {error}"
        if not found:
            return Merged((), damaged)
        lines = [line for some in found.values() for line in some]
        record.put(directory / task.output, b"".join(line + b"\n" for line in lines))
        written = lines_of(directory / task.output)
        return Merged(
            tuple(found),
            damaged,
            records=len(written),
            bytes_before=sum((directory / name).stat().st_size for name in found),
            bytes_after=(directory / task.output).stat().st_size,
            before=fingerprint(lines),
            after=fingerprint(written),
        )


class LineRewriter:
    """Implements `JobRunner`."""

    def __init__(self, engine: Engine, *, holder: str) -> None:
        self._engine = engine
        self._holder = holder

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        sources = sources_of(assignment.spec)
        return LineAttempt(
            name=assignment.job_name,
            directory=Path(sources.path),
            sources=sources.files,
            worker=self._holder,
            token=assignment.token,
            lease=lease,
            engine=self._engine,
        ).run()


def open_rewriter(engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
    """See `ports.OpenRewriter`."""
    return LineRewriter(engine, holder=holder)


@dataclass(slots=True, kw_only=True)
class LineAttempt(RewriteAttempt):
    """See `RewriteAttempt`. Without a sound source nothing is committed."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (LinesError, StaleTokenError)

    name: str
    directory: Path
    sources: tuple[str, ...]
    worker: str
    receipt: JobReceipt | None = None
    skipped: list[SkippedSource] = field(default_factory=list)
    error: CompactionError | None = None

    @property
    def job_name(self) -> str:
        return self.name

    @property
    def output(self) -> str:
        return f"{self.tag}{record.MERGED}"

    def _work(self) -> None:
        self.lease.ensure_held()
        found = record.read(self.directory)
        found.check(self.directory, self.name, self.token)
        if self.name in found.receipts:
            # Committed before; what is missing is the report.
            self.receipt = JobReceipt.model_validate(found.receipts[self.name])
            return
        identities = {name: identity_of(self.directory / name) for name in self.sources}
        task = MergeTask(str(self.directory), self.sources, self.output)
        with closing(run_tasks(merge, [task], engine=self.engine, lease=self.lease, tag=self.tag)) as arriving:
            (merged,) = [result for arrived in arriving for _, result in arrived]
        self.skipped = [
            SkippedSource(source=name, reason=JobReason.SOURCE_CORRUPT, message=message, identity=identities[name])
            for name, message in merged.damaged.items()
        ]
        self.lease.set_progress(99)
        self.lease.ensure_held()
        if merged.sources:
            self._commit(merged)

    def _commit(self, merged: Merged) -> None:
        receipt = JobReceipt(
            token=self.token,
            worker=self.worker,
            groups=1,
            groups_committed=1,
            sources=merged.sources,
            outputs=(self.output,),
            records=merged.records,
            bytes_before=merged.bytes_before,
            bytes_after=merged.bytes_after,
            fingerprint_before=merged.before,
            fingerprint_after=merged.after,
        )
        committed = record.commit(
            self.directory,
            job=self.name,
            token=self.token,
            sources=merged.sources,
            output=self.output,
            receipt=receipt.to_object(),
        )
        self.receipt = JobReceipt.model_validate(committed)

    def _failed(self, error: CompactionError) -> None:
        self.error = error

    def _clean_up(self) -> None:
        """The commit may have been carried out although its answer was lost: the record says so."""
        with suppress(LinesError, OSError):
            if self.output not in record.read(self.directory).outputs:
                record.unlink(self.directory / self.output)

    def _report(self) -> JobReport:
        reason, outcome, message = JobReason.COMPLETED, ReportOutcome.SUCCEEDED, "files merged"
        match self.error:
            case StaleTokenError():
                reason, outcome = JobReason.STALE_TOKEN, ReportOutcome.FAILED
            case LinesChangedError():
                reason, outcome = JobReason.SOURCES_CHANGED, ReportOutcome.SKIPPED
            case LinesError():
                reason, outcome = JobReason.STORE_UNREADABLE, ReportOutcome.FAILED
            case _ if self.receipt is None:
                reason, outcome, message = JobReason.SOURCE_CORRUPT, ReportOutcome.FAILED, "no source can be read"
        return JobReport(
            token=self.token,
            outcome=outcome,
            reason=reason,
            message=message if self.error is None else str(self.error),
            charged=reason is not JobReason.STALE_TOKEN,
            skipped=tuple(self.skipped),
            receipt=self.receipt,
        )
