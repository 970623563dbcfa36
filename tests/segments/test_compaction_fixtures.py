"""Our compaction of the logs Ra compacted: the same readable content, within the limits, never more segments than
Ra.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence
from compaction.segments.format.segment_file import read_segment
from compaction.segments.planning.plan import LogPlan, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.live_indexes import LiveSet
from support.segments.ra_owner import RaOwner
from support.segments.segment_logs import append_random_steps, content, leftovers, live_set, regular, restore

pytestmark = pytest.mark.fixtures

Manifest = Callable[[str], dict[str, Any]]
JOB = "fixture"


def compact(directory: Path, *, snapshot: int, live: LiveSet, limits: SegmentLimits, phases: str = "13") -> LogPlan:
    """One whole job, then the sweep: what is left is the compacted log."""
    log = open_log(directory, snapshot_index=snapshot, live=live)
    plan = plan_log(log, limits)
    # A job's name is that of one plan; another plan is another job.
    job, token = f"{JOB}-{len(fence.read(directory).jobs)}", 1
    fence.claim(directory, job=job, token=token, holder="test")
    if "3" in phases:
        for group in plan.groups:
            rewritten = kernel.rewrite_group(
                directory,
                sources=group.sources,
                live=live,
                limits=limits,
                job=job,
                token=token,
                snapshot_index=snapshot,
            )
            assert rewritten.fingerprint_after == rewritten.fingerprint_before
            receipt = commit.commit_group(directory, job=job, token=token, group=rewritten, holder="test")
            assert receipt.bytes_after == (directory / receipt.output).stat().st_size == group.output_bytes
    commit.commit_unreferenced(
        directory,
        job=job,
        token=token,
        names=[u.name for u in plan.unreferenced],
        holder="test",
        snapshot_index=snapshot,
        live=live,
    )
    fence.retire(directory, job)
    sweep.sweep(directory, grace_seconds=0, snapshot_index=snapshot, live=live)
    return plan


def segments_of(files: list[dict[str, Any]]) -> int:
    return sum(1 for f in files if f["type"] == "regular" and f["name"].endswith(".segment"))


@pytest.mark.parametrize(
    ("name", "part", "limits", "snapshot"),
    [
        ("01b-version1", "dir", SegmentLimits(), None),
        ("02d-overwrite-then-major", "dir", SegmentLimits(max_entries=128, max_bytes=64_000_000), None),
        ("03a-major-module", "before", SegmentLimits(max_entries=128, max_bytes=64_000), 0x6B2),
    ],
)
def test_phase_3_has_ras_outcome_by_content(
    ra_fixtures: Path,
    manifest: Manifest,
    tmp_path: Path,
    name: str,
    part: str,
    limits: SegmentLimits,
    snapshot: int | None,
) -> None:
    expected = manifest(name)
    live = live_set(expected["live_indexes"])
    index = expected.get("snapshot_index", snapshot)
    assert index is not None
    ours = restore(ra_fixtures / name / part, tmp_path / "ours", expected["files"])
    theirs = restore(ra_fixtures / name / "after", tmp_path / "theirs", expected["after_files"])
    before = content(ours, snapshot_index=index, live=live)
    plan = compact(ours, snapshot=index, live=live, limits=limits)
    assert plan.groups
    after = content(ours, snapshot_index=index, live=live)
    assert after == before == content(theirs, snapshot_index=index, live=live)
    assert {i: after[i] for i in live} == {i: before[i] for i in live}
    for group in plan.groups:
        output = read_segment(ours / group.sources[0])
        assert output.version == 2
        assert output.max_count == output.count == group.live_entries <= limits.max_entries
        assert int(output.length.sum()) <= limits.max_bytes
    assert len(regular(ours)) <= segments_of(expected["after_files"])
    assert leftovers(ours) == []
    assert plan_log(open_log(ours, snapshot_index=index, live=live), limits).debt_segments == 0


def test_03a_makes_ras_groups_and_ras_bytes(ra_fixtures: Path, manifest: Manifest, tmp_path: Path) -> None:
    """No dead segment lies inside one of Ra's groups here, so the compacted files are Ra's to the byte."""
    expected = manifest("03a-major-module")
    limits = SegmentLimits(max_entries=128, max_bytes=64_000)
    ours = restore(ra_fixtures / "03a-major-module/before", tmp_path / "ours", expected["files"])
    live = live_set(expected["live_indexes"])
    plan = compact(ours, snapshot=0x6B2, live=live, limits=limits)
    result = expected["ra_compaction_result"]
    assert [g.sources[0] for g in plan.groups] == [c["file"] for c in result["compacted"]]
    assert sorted(n for g in plan.groups for n in (*g.sources[1:], *g.carried)) == sorted(result["linked"])
    theirs = {f["name"]: f.get("sha256") for f in expected["after_files"] if f["type"] == "regular"}
    for name in regular(ours):
        assert hashlib.sha256((ours / name).read_bytes()).hexdigest() == theirs[name], name


def test_03a_minor_marks_what_ra_deletes(ra_fixtures: Path, manifest: Manifest, tmp_path: Path) -> None:
    expected = manifest("03a-major-module")
    ours = restore(ra_fixtures / "03a-major-module/before", tmp_path / "ours", expected["files"])
    log = open_log(ours)
    assert log.live == live_set(expected["live_indexes"])
    plan = compact(ours, snapshot=0x6B2, live=log.live, limits=SegmentLimits(), phases="1")
    gone = {f["name"] for f in expected["files"]} - {
        p.name for p in (ra_fixtures / "03a-major-module/after_minor").glob("*.segment")
    }
    assert {u.name for u in plan.unreferenced} == {name for name in gone if name.endswith(".segment")}
    assert set(regular(ours)).isdisjoint(gone)


def test_06_random_histories_survive_and_shrink_like_ras(manifest: Manifest, tmp_path: Path) -> None:
    """All rounds of all cases: live entries before = after, sizes within limits, never more segments than Ra keeps.

    Every segment we keep is Ra's to the byte. Where Ra keeps more, it was a minor compaction, which leaves orphans of
    overwrites alone; our phase 1 deletes them.
    """
    identical = rounds = 0
    for case in manifest("06-random-cases")["cases"]:
        directory = tmp_path / str(case["id"])
        directory.mkdir()
        limits = SegmentLimits(max_entries=case["comp_max_count"], max_bytes=case["comp_max_size"])
        for number, turn in enumerate(case["rounds"]):
            where = f"case {case['id']}, round {number}"
            append_random_steps(directory, case, turn["steps"])
            live, snapshot = live_set(turn["live"]), turn["snapshot"]
            before = content(directory, snapshot_index=snapshot, live=live)
            phases = "13" if turn["op"] == "major" else "1"
            plan = compact(directory, snapshot=snapshot, live=live, limits=limits, phases=phases)
            assert content(directory, snapshot_index=snapshot, live=live) == before, where
            for group in plan.groups:
                assert group.live_entries <= limits.max_entries, where
                assert group.live_bytes <= limits.max_bytes, where
            theirs = {f[0]: f[3] for f in turn["files"] if f[1] == "regular"}
            ours = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in regular(directory)}
            assert ours.items() <= theirs.items(), where
            rounds += 1
            identical += ours == theirs
    assert identical > 0.8 * rounds


# The executable model of Ra's compaction makes what Ra made, file by file and byte by byte.


def files(directory: Path) -> dict[str, str]:
    """Target of a link, sha256 of a file, by name."""
    return {
        path.name: path.readlink().name if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("*.segment")
    }


def test_all_rounds_of_all_random_histories(manifest: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    rounds = 0
    for case in manifest("06-random-cases")["cases"]:
        directory = tmp_path / str(case["id"])
        directory.mkdir()
        owner = RaOwner(directory, case["comp_max_count"], case["comp_max_size"])
        for number, turn in enumerate(case["rounds"]):
            append_random_steps(directory, case, turn["steps"])
            compact = owner.major if turn["op"] == "major" else owner.minor
            compact(snapshot=turn["snapshot"], live=live_set(turn["live"]))
            assert files(directory) == {f[0]: f[-1] for f in turn["files"]}, f"case {case['id']}, round {number}"
            rounds += 1
    assert rounds == 182
