"""A whole compaction of one log: look, plan, claim, rewrite, verify, commit, retire (docs/benchmarks.md).

64 compactable segments of 4096 entries of 1030 bytes, a quarter live; a fresh, synced copy of the directory each round.
Rivals: a C program that copies the same bytes into the same files, and knows beforehand which (`bench.copier`), the
patterns in turn; and a copier that works as Ra does (one pread and one pwrite per entry, the same syncs, no checksum
verified, nothing read back). Rates are of live payload.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench import copier
from bench.harness import Fact, Race, Sample, Side, Workspace, in_child, sample
from compaction.segments.commit import fence, recovery
from compaction.segments.commit.records import GroupReceipt
from compaction.segments.format.names import group_key
from compaction.segments.format.segment_file import encode_header, encode_records, read_segment
from compaction.segments.generate import generate_log
from compaction.segments.model import data_start
from compaction.segments.planning.plan import GroupCheck, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting.compact import compact_groups

LIMITS: Final = SegmentLimits()
RA_MB_PER_SECOND: Final = {"strided": 43, "runs": 108, "random": 32}
"""Live MB per second of Ra 3.1.10's major compaction of this case: two shared cores (AMD EPYC), ext4, warm cache."""
MEGA: Final = 1e6


def compact(directory: Path) -> tuple[GroupReceipt, ...]:
    """Ours, as `compactor segments compact` does it; the receipts are in the order of the plan's groups."""
    recovery.recover(directory)
    log = open_log(directory)
    assert log.live is not None
    plan = plan_log(log, LIMITS)
    fence.claim(directory, job="bench", token=1, holder="bench")
    outcomes = compact_groups(
        directory,
        groups=[group.sources for group in plan.groups],
        check=GroupCheck(log, log.live),
        live=log.live,
        limits=LIMITS,
        job="bench",
        token=1,
        holder="bench",
    )
    fence.retire(directory, "bench")
    receipts = tuple(outcome for outcome in outcomes if isinstance(outcome, GroupReceipt))
    assert len(receipts) == len(plan.groups)
    return receipts


def compact_by_entry(directory: Path) -> None:
    """As Ra does it (docs/design/segment-commit.md#the-protocol-of-ra): system calls per entry, a sync after each
    source.
    """
    log = open_log(directory)
    assert log.live is not None
    for group in plan_log(log, LIMITS).groups:
        marker = directory / f"{group_key(group.sources)[:16]}.compaction_group"
        output = directory / f"{group_key(group.sources)[:16]}.compacting"
        with marker.open("wb") as file:
            file.write("\n".join(group.sources).encode())
            file.flush()
            os.fsync(file.fileno())
        out = os.open(output, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.pwrite(out, encode_header(max_count=group.live_entries), 0)
        os.fsync(out)
        slot, at = 0, data_start(2, group.live_entries)
        for name in group.sources:
            segment = read_segment(directory / name)
            rows = segment.effective.nonzero()[0]
            rows = rows[log.live.mask(segment.idx[rows])]
            source = os.open(directory / name, os.O_RDONLY)
            begin = at
            for offset, length in zip(segment.offset[rows].tolist(), segment.length[rows].tolist(), strict=True):
                at += os.pwrite(out, os.pread(source, length, offset), at)
            os.close(source)
            lengths = segment.length[rows].astype("u8")
            records = encode_records(
                idx=segment.idx[rows],
                term=segment.term[rows],
                offset=begin + lengths.cumsum() - lengths,
                length=segment.length[rows],
                crc=segment.crc[rows],
            )
            os.pwrite(out, records, 8 + 32 * slot)
            slot += rows.size
            os.fsync(out)
        os.fsync(out)
        os.close(out)
        output.rename(directory / group.sources[0])
        for name in group.sources[1:]:
            link = directory / f"{name[:16]}.link"
            link.symlink_to(directory / group.sources[0])
            link.rename(directory / name)
        marker.unlink()
        sync(directory)


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


@dataclass
class Case:
    """One pattern of live entries, and where the competitors work."""

    workspace: Path
    pattern: str
    template: Path
    outputs: list[Path] = field(default_factory=list)
    live_bytes: int = 0
    seconds: list[float] = field(default_factory=list)

    def fresh(self) -> None:
        """A copy of the log that is on the disk, so that no write-back of it disturbs what is measured."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(self.template, self.workspace)
        for path in self.workspace.rglob("*"):
            sync(path)

    def compacted_once(self) -> None:
        """The reference: what comes out, kept for the C copier's headers."""
        self.fresh()
        receipts = compact(self.workspace)
        kept = self.template.with_name(f"{self.pattern}-outputs")
        kept.mkdir()
        self.outputs = [Path(shutil.copy(self.workspace / receipt.output, kept)) for receipt in receipts]
        self.live_bytes = sum(receipt.live_bytes for receipt in receipts)
        for path in self.outputs:
            sync(path)

    def check_copies(self) -> None:
        """The copier has just worked here: its files are those of the reference, byte for byte, and alone."""
        copies = [path for path in sorted(self.workspace.glob("*.segment")) if path.name not in self.untouched]
        assert [path.read_bytes() for path in copies] == [path.read_bytes() for path in self.outputs]

    @property
    def untouched(self) -> set[str]:
        """Names of segments that no group has."""
        groups = plan_log(open_log(self.template), LIMITS).groups
        return {path.name for path in self.template.glob("*.segment")} - {
            name for group in groups for name in group.sources
        }

    def ours(self) -> None:
        began = time.perf_counter()
        compact(self.workspace)
        self.seconds.append(time.perf_counter() - began)

    def plan(self) -> Path:
        """What the C program has to do."""
        path = self.template.with_name(f"{self.pattern}.plan")
        copier.write_plan(path, self.template, LIMITS, self.outputs)
        return path


def measure(workspace: Workspace) -> Iterator[Race | Fact]:
    """See the module."""
    segments, entries = workspace.pick(65, 5), workspace.pick(4096, 64)
    cases = []
    for pattern in RA_MB_PER_SECOND:
        template = workspace.directory / pattern
        generate_log(template, pattern=pattern, segments=segments, entries_per_segment=entries, payload_bytes=1030)
        cases.append(Case(workspace.directory / "work", pattern, template))
        cases[-1].compacted_once()
    yield from _beside_the_limit(workspace, cases, rounds=workspace.pick(7, 1))
    for case in cases:
        live = case.live_bytes / MEGA
        yield Race(
            f"{case.pattern}: compaction beside a copier of entries",
            "MB",
            live,
            Side("compact", case.ours, case.fresh),
            Side("by entry, as Ra does", partial(compact_by_entry, case.workspace), case.fresh),
            rounds=3,
        )
        yield _rate(case, live, RA_MB_PER_SECOND[case.pattern])
        yield _memory(case)


def _beside_the_limit(workspace: Workspace, cases: list[Case], *, rounds: int) -> Iterator[Fact]:
    """All patterns in each round, so that they meet the same neighbours; who begins changes with each."""
    program = copier.build(workspace.directory)
    if program is None:
        yield Fact("compaction beside the C copier", "not measured: there is no C compiler (cc)")
        return
    plans = {case.pattern: case.plan() for case in cases}
    taken: dict[str, list[tuple[Sample, Sample]]] = {case.pattern: [] for case in cases}
    for number in range(rounds):
        for case in cases:

            def limit(case: Case = case) -> None:
                copier.copy(program, case.workspace, plans[case.pattern])

            order: list[Callable[[], object]] = [case.ours, limit] if number % 2 == 0 else [limit, case.ours]
            samples = []
            for side in order:
                case.fresh()
                samples.append(sample(side))
            ours, rival = samples if number % 2 == 0 else samples[::-1]
            taken[case.pattern].append((ours, rival))
            if number == 0 and side is limit:
                case.check_copies()
    for case in cases:
        yield _ratio(case, taken[case.pattern])


def _ratio(case: Case, rounds: list[tuple[Sample, Sample]]) -> Fact:
    """The median of the rounds' ratios of wall time, and of CPU time beside it."""
    wall = statistics.median(rival.wall / ours.wall for ours, rival in rounds)
    cpu = statistics.median(rival.cpu / ours.cpu for ours, rival in rounds)
    rates = [case.live_bytes / MEGA / statistics.median(item[side].wall for item in rounds) for side in (0, 1)]
    return Fact(
        f"{case.pattern}: compaction beside the C copier",
        f"{wall:.2f} of it (CPU {cpu:.2f}): {rates[0]:,.0f} MB/s, the copier {rates[1]:,.0f} MB/s",
        ">= 0.7 of it",
        wall >= 0.7,
    )


def _rate(case: Case, live: float, ra: int) -> Fact:
    """Beside Ra's own figure, which was taken on a quiet machine: the ratio to the C copier is the better measure."""
    rate = live / statistics.median(case.seconds)
    return Fact(
        f"{case.pattern}: live data per second, all rounds' median",
        f"{rate:,.0f} MB/s ({rate / ra:.1f}x Ra's {ra}); best {live / min(case.seconds):,.0f}",
        f">= {ra} MB/s",
        rate >= ra,
    )


def _memory(case: Case) -> Fact:
    """Beside the same process that has only looked at the log and planned."""
    peaks = []
    for run in (_look, compact):
        case.fresh()
        action: Callable[[Path], object] = run
        peaks.append(in_child(partial(action, case.workspace)).peak)
    looked, compacted = (peak / 2**20 for peak in peaks)
    return Fact(
        f"{case.pattern}: peak memory",
        f"{compacted:.0f} MiB, {max(0.0, compacted - looked):.0f} MiB more than to look and plan",
    )


def _look(directory: Path) -> object:
    return plan_log(open_log(directory), LIMITS)
