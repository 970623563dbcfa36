"""Defects of staging areas: swaps of a branch, and writes."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_PAGE: Final = "design/staging-areas.md"
_FORMAT: Final = "design/staging.md"
_STAGING: Final = "stores/staging"
_WRITING: Final = (f"{_STAGING}/flows/test_writing.py",)
_COMMITTING: Final = (f"{_STAGING}/flows/test_committing.py",)

WRITE_DEFECTS: Final = (
    Defect(
        name="swap: the record of a branch is written over whatever is there",
        promise=f"{_PAGE}#branch-record",
        file="staging/refs/branches.py",
        old="_key(branch.name), row, branch.row)",
        new="_key(branch.name), row, Presence.PRESENT)",
        killers=(f"{_STAGING}/compaction/test_claims.py", *_COMMITTING),
    ),
    Defect(
        name="swap: the key-value store does not compare the bytes that were read",
        promise=f"{_FORMAT}#key-value-store",
        file="staging/kv/sql.py",
        old="WHERE {row} AND value = :old",
        new="WHERE {row}",
        killers=(f"{_STAGING}/kv/test_rows.py", f"{_STAGING}/kv/test_model.py"),
    ),
    Defect(
        name="swap: a swap whose answer was lost counts as lost to another writer",
        promise=f"{_FORMAT}#key-value-store",
        file="staging/kv/sql.py",
        old="            return tries > 1 and _value(",
        new="            return tries > 2 and _value(",
        killers=(f"{_STAGING}/kv/test_faults.py", f"{_STAGING}/kv/test_rows.py"),
    ),
    Defect(
        name="swap: tokens leave a branch without an entry in the journal",
        promise=f"{_PAGE}#swaps",
        file="staging/flows/branching.py",
        old="        journal(area, _gone(branch.record, record))\n",
        new="",
        killers=(f"{_STAGING}/sweep/test_sweep.py", "crash/test_staging_branch.py"),
    ),
    Defect(
        name="swap: a tree is named whose objects the sweep is deleting",
        promise=f"{_PAGE}#sweep",
        file="staging/flows/branching.py",
        old="        if not _swept(area, branch.record, record):\n",
        new="        if record is not None:\n",
        killers=(f"{_STAGING}/sweep/test_sweep.py",),
    ),
    Defect(
        name="swap: a token without rows is sealed",
        promise=f"{_PAGE}#commits",
        file="staging/flows/branching.py",
        old="        if not area.tokens.has_rows(branch.record.staging_token):\n            return None\n",
        new="",
        killers=_COMMITTING,
    ),
    Defect(
        name="writing: a change is acknowledged in a token that was sealed",
        promise=f"{_PAGE}#writing",
        file="staging/flows/writing.py",
        old="            if same_token and (not relied",
        new="            if (same_token or not relied) and (not relied",
        killers=_WRITING,
    ),
    Defect(
        name="writing: a deletion relies on tokens that went away while they were searched",
        promise=f"{_PAGE}#a-lost-deletion",
        file="staging/flows/writing.py",
        old="            return len(chosen) < len(keys)\n",
        new="            return False\n",
        killers=_WRITING,
    ),
    Defect(
        name="writing: a tombstone in a sealed token is enough for a deletion",
        promise=f"{_PAGE}#a-lost-deletion",
        file="staging/flows/writing.py",
        old=(
            "            chosen |= self._tokens.get_many(token, left).keys()\n"
            "            left = [key for key in left if key not in chosen]\n"
        ),
        new=(
            "            found = self._tokens.get_many(token, left)\n"
            "            chosen |= {key for key, value in found.items() if value != TOMBSTONE}\n"
            "            left = [key for key in left if key not in found]\n"
        ),
        killers=_WRITING,
    ),
    Defect(
        name="writing: a deletion of a key that only the base has writes no tombstone",
        promise=f"{_PAGE}#writing",
        file="staging/flows/writing.py",
        old="        return sorted(chosen | self._area.ranges.get_many(view.metarange_id, left).keys())",
        new="        return sorted(chosen)",
        killers=_WRITING,
    ),
    Defect(
        name="writing: a deletion does not see the compacted base",
        promise=f"{_PAGE}#views",
        file="staging/flows/writing.py",
        old="        return sorted(chosen | self._area.ranges.get_many(view.metarange_id, left).keys())",
        new="        return sorted(chosen | self._area.ranges.get_many(view.head_id, left).keys())",
        killers=_WRITING,
    ),
    Defect(
        name="writing: a conditional write ignores what came between its read and its write",
        promise=f"{_PAGE}#writing",
        file="staging/flows/writing.py",
        old="key, value, Presence.ABSENT if row is None else row.raw)\n",
        new="key, value, Presence.ABSENT if row is None else Presence.PRESENT)\n",
        killers=_WRITING,
    ),
    Defect(
        name="writing: a conditional write meets its own first try",
        promise=f"{_PAGE}#writing",
        file="staging/flows/writing.py",
        old="own[token] if token in own and row.raw == mine else row.value",
        new="row.value",
        killers=_WRITING,
    ),
)
