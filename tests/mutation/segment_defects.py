"""Defects of segment logs: commit, fence, sweep, plan, proof."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_CRASH: Final = "segment-logs.md#at-a-crash"
_FENCING: Final = "segment-logs.md#fencing"
_DELETING: Final = "segment-logs.md#deleting"
_STEPS: Final = "segment-logs.md#what-a-compaction-does"
_FENCE_AND_SWEEP: Final = "segments/commit/test_fence_and_sweep.py"

SEGMENT_DEFECTS: Final = (
    Defect(
        name="commit: an output gets its name before its content is durable",
        promise=_CRASH,
        file="segments/rewriting/kernel.py",
        old="        fs.sync(fd)\n        identity = ",
        new="        identity = ",
        killers=("crash/test_segment_commit.py::test_content_is_synced_before_it_gets_its_name",),
    ),
    Defect(
        name="commit: higher sources are replaced before the commit point is durable",
        promise=_CRASH,
        file="segments/commit/commit.py",
        old="    fs.sync_directory(directory)\n    placed = ",
        new="    placed = ",
        killers=("crash/test_segment_batches.py",),
    ),
    Defect(
        name="commit: nobody looks once more whether a name still is the file that was read",
        promise="segment-logs.md#when-others-act-in-between",
        file="segments/commit/records.py",
        old="    if regular_identity(name) != expected:\n        return False\n",
        new="",
        killers=(
            "crash/test_segment_foreign.py::test_an_owner_that_starts_while_a_commit_sleeps_is_noticed_at_each_name",
        ),
    ),
    Defect(
        name="recovery: the fence alone proves that a higher source is still the one that was read",
        promise="segment-logs.md#when-others-act-in-between",
        file="segments/commit/evidence.py",
        old="        if self.trusted and found is Likeness.SAME:",
        new="        if self.trusted and known is not None:",
        killers=(
            "crash/test_segment_foreign.py::test_it_ends_below_the_first_name_that_changed",
            "segments/commit/test_recovery_evidence.py",
        ),
    ),
    Defect(
        name="plan: a damaged segment is dead",
        promise=_DELETING,
        file="segments/planning/unreferenced.py",
        old="        if name not in stranded and name not in damaged\n",
        new="        if name not in stranded\n",
        killers=("segments/planning/test_damage.py::test_damage_is_never_dead",),
    ),
    Defect(
        name="plan: segments are dead while live entries are missing",
        promise=_DELETING,
        file="segments/planning/unreferenced.py",
        old="    if log.snapshot_index is None or log.missing or torn_newest(log):",
        new="    if log.snapshot_index is None or torn_newest(log):",
        killers=("segments/planning/test_damage.py",),
    ),
    Defect(
        name="fence: an attempt with an older token commits",
        promise=_FENCING,
        file="segments/commit/fence.py",
        old="    if token != claimed:",
        new="    if claimed is None or token > claimed:",
        killers=(_FENCE_AND_SWEEP, "segments/rewriting/test_compact.py"),
    ),
    Defect(
        name="fence: a token is accepted twice",
        promise=_FENCING,
        file="segments/commit/fence.py",
        old="        if token <= record.high_water(job):",
        new="        if token < record.high_water(job):",
        killers=(_FENCE_AND_SWEEP,),
    ),
    Defect(
        name="fence: jobs that are forgotten do not raise the floor",
        promise=_FENCING,
        file="segments/commit/fence.py",
        old="    floor = max([record.floor, *(jobs[name].token for name in dropped)])",
        new="    floor = record.floor",
        killers=(_FENCE_AND_SWEEP,),
    ),
    Defect(
        name="sweep: the grace is ignored",
        promise=_DELETING,
        file="segments/sweep.py",
        old="    due = [t for t in record.tombstones if t.since + grace_seconds <= now]",
        new="    due = [t for t in record.tombstones if t.since <= now]",
        killers=(_FENCE_AND_SWEEP,),
    ),
    Defect(
        name="sweep: a dead segment that is needed again is deleted",
        promise=_DELETING,
        file="segments/sweep.py",
        old="        elif name not in dead:",
        new="        elif not dead:",
        killers=(_FENCE_AND_SWEEP,),
    ),
    Defect(
        name="sweep: the output of a running attempt is collected",
        promise=_DELETING,
        file="segments/sweep.py",
        old="found is None or (parsed.job, parsed.token) in running:",
        new="found is None:",
        killers=(_FENCE_AND_SWEEP,),
    ),
    Defect(
        name="plan: a quarantined segment is planned",
        promise="resources.md#reasons-in-statusplanleftout",
        file="segments/planning/plan.py",
        old=(
            "    if name in quarantined:\n"
            '        return LeftAloneSegment(name, LeftAloneReason.QUARANTINED, "a rewrite found it corrupt")\n'
        ),
        new="",
        killers=("segments/planning/test_plan.py",),
    ),
    Defect(
        name="plan: a job does not say from which version of its log it was made",
        promise="control-plane.md#5-the-life-of-a-job",
        file="core/planning/planner.py",
        old="        said = [self.owner_uid, candidate.target, candidate.base_version]",
        new="        said = [self.owner_uid, candidate.target]",
        killers=("core/planning/test_planner.py",),
    ),
    Defect(
        name="proof: an output is not compared with what was copied",
        promise=_STEPS,
        file="segments/rewriting/kernel.py",
        old="    if after.hexdigest() != before.hexdigest():",
        new="    if output.identity != identity:",
        killers=("segments/scan/test_sense_and_store.py",),
    ),
    Defect(
        name="proof: the bytes of an output are not those that were written",
        promise=_STEPS,
        file="segments/rewriting/kernel.py",
        old="digest == copied.digest and ",
        new="",
        killers=("segments/rewriting/test_compact.py",),
    ),
    Defect(
        name="proof: an index may point elsewhere than to its payloads",
        promise=_STEPS,
        file="segments/rewriting/kernel.py",
        old="_is_gapless(output) and ",
        new="",
        killers=("segments/rewriting/test_compact.py",),
    ),
    Defect(
        name="recovery: after a clean stop, an end of the write-ahead log that was zeroed is none that was cut",
        promise="design/segment-wal.md#damage",
        file="segments/wal/wal_reader.py",
        old="end < before.whole or ",
        new="",
        killers=("segments/system/test_restarts.py",),
    ),
    Defect(
        name="recovery: after a clean stop, a write-ahead log file that is gone is none that was there",
        promise="design/segment-wal.md#damage",
        file="segments/system/opening.py",
        old="    for lost in lost_since_stop(directory):\n        raise lost\n",
        new="",
        killers=("segments/system/test_restarts.py",),
    ),
)
