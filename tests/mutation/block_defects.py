"""Defects of block stores: the index, the cleanup, retention, orphans, the proof."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_GUARANTEES: Final = "block-stores.md#guarantees"
_DELETION: Final = "block-stores.md#deletion-retention-orphans"

BLOCK_DEFECTS: Final = (
    Defect(
        name="index: an attempt with an older token commits",
        promise=_GUARANTEES,
        file="blocks/index/registering.py",
        old="    if job.token != result.token:",
        new="    if job.token < result.token:",
        killers=("blocks/index/test_replacing.py::test_only_the_equal_token_commits",),
    ),
    Defect(
        name="index: a source that belongs to another job is replaced",
        promise=_GUARANTEES,
        file="blocks/index/registering.py",
        old="row.state != BlockState.LIVE or row.job != result.job:",
        new="row.state != BlockState.LIVE:",
        killers=("blocks/index/test_replacing.py::test_a_source_that_was_given_to_another_job_is_not_replaced",),
    ),
    Defect(
        name="index: a commit compares the number of rows, not the rows",
        promise=_GUARANTEES,
        file="blocks/index/registering.py",
        old="    if before != after:",
        new="    if before.rows != after.rows:",
        killers=("blocks/index/test_replacing.py::test_no_row_is_lost_or_invented",),
    ),
    Defect(
        name="index: two jobs claim one block",
        promise=_GUARANTEES,
        file="blocks/index/claims.py",
        old=(
            "        if row.job is not None and row.job != job:\n"
            "            raise _refused("
            'job, IndexRefusal.SOURCE_CLAIMED, f"source {row.id} belongs to job {row.job}")\n'
        ),
        new="",
        killers=("blocks/index/test_claims.py",),
    ),
    Defect(
        name="index: a local process takes a job that another one works on",
        promise=_GUARANTEES,
        file="blocks/index/claims.py",
        old="        _check_holder(before, job, holder)\n",
        new="",
        killers=("blocks/index/test_holders.py",),
    ),
    Defect(
        name="index: two blocks have one path",
        promise=_GUARANTEES,
        file="blocks/index/registering.py",
        old="    refuse_used_paths(change, new)\n",
        new="",
        killers=("blocks/index/test_registering.py",),
    ),
    Defect(
        name="cleanup: a tombstone is dropped before its object is deleted",
        promise=_DELETION,
        file="blocks/sweep/cleaning.py",
        old=(
            "        refused = {path: error.reason for path, error in objects.delete(item.path for item in free)}\n"
            "        gone = [item for item in free if item.path not in refused]\n"
            "        confirm(index, [item.block for item in gone], now=now)\n"
        ),
        new=(
            "        confirm(index, [item.block for item in free], now=now)\n"
            "        refused = {path: error.reason for path, error in objects.delete(item.path for item in free)}\n"
            "        gone = [item for item in free if item.path not in refused]\n"
        ),
        killers=("blocks/test_sweep.py", "crash/test_block_cleaning.py"),
    ),
    Defect(
        name="cleanup: sources go although what was made of them is missing",
        promise=_DELETION,
        file="blocks/sweep/cleaning.py",
        old='            return f"is not in the store ({successor.path})"',
        new='            return ""',
        killers=("blocks/test_sweep.py",),
    ),
    Defect(
        name="cleanup: files of a table format are deleted",
        promise=_DELETION,
        file="blocks/sweep/cleaning.py",
        old="for item in batch if item.path in signs}",
        new="for item in batch if item.path in ()}",
        killers=("blocks/test_owners.py",),
    ),
    Defect(
        name="orphans: files of a store inside this one are deleted",
        promise=_DELETION,
        file="blocks/sweep/orphan_collector.py",
        old="    return [orphan for orphan in orphans if orphan.path not in signs]",
        new="    return list(orphans)",
        killers=("blocks/test_owners.py",),
    ),
    Defect(
        name="cleanup: a table above the root of the store does not count",
        promise=_DELETION,
        file="blocks/owners.py",
        old='    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]',
        new='    return ["/".join(parts[:count]) for count in range(len(parts), len(parts) - 2, -1)]',
        killers=("blocks/test_owners.py",),
    ),
    Defect(
        name="registration: a column that only the path holds is lost",
        promise=_DELETION,
        file="blocks/registration/describe.py",
        old="    lost, instants = lost_columns(path, footer.schema.names, given_up), is_instant",
        new="    lost, instants = {}, is_instant",
        killers=("blocks/serving/test_registration.py", "blocks/cli/test_register.py"),
    ),
    Defect(
        name="cleanup: an object is deleted before its grace is over",
        promise=_DELETION,
        file="blocks/index/tombstones.py",
        old="        .where(TOMBSTONES.c.since <= now - grace, TOMBSTONES.c.not_before <= now, ~_HELD)",
        new="        .where(TOMBSTONES.c.not_before <= now, ~_HELD)",
        killers=("blocks/test_sweep.py",),
    ),
    Defect(
        name="retention: a block goes when its oldest row is too old",
        promise=_DELETION,
        file="blocks/index/tombstones.py",
        old="    return (BLOCKS.c.max_time < now - period)",
        new="    return (BLOCKS.c.min_time < now - period)",
        killers=("blocks/index/test_deletion.py",),
    ),
    Defect(
        name="orphans: the output of a running attempt is collected",
        promise=_DELETION,
        file="blocks/sweep/orphan_collector.py",
        old="(item.token is None or item.token >= tokens[item.job]))",
        new="(item.token is None or item.token > tokens[item.job]))",
        killers=("blocks/test_sweep.py",),
    ),
    Defect(
        name="proof: what was written is not compared with what was read",
        promise=_GUARANTEES,
        file="blocks/fingerprint/proof.py",
        old="    if total != expected:",
        new="    if total.rows != expected.rows:",
        killers=("blocks/fingerprint/test_texts.py",),
    ),
)
