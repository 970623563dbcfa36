"""Defects of staging areas: layers, what readers see, differences."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_PAGE: Final = "design/staging-areas.md"
_FORMAT: Final = "design/staging.md"
_READING: Final = ("staging/flows/test_reading.py",)
_WRITING: Final = ("staging/flows/test_writing.py",)
_RESETTING: Final = ("staging/flows/test_writing.py",)
_DIFFS: Final = ("staging/flows/test_reading.py",)

READ_DEFECTS: Final = (
    Defect(
        name="layers: of equal keys the oldest layer wins",
        promise=f"{_FORMAT}#layers",
        file="staging/staged/rows.py",
        old="    first[1:] = pc.not_equal(",
        new="    first[:-1] = pc.not_equal(",
        killers=("staging/staged/test_tokens.py",),
    ),
    Defect(
        name="layers: a record is taken that a layer with more to come may still hide",
        promise=f"{_FORMAT}#layers",
        file="staging/staged/rows.py",
        old="        cut = min((layer.last_key for layer in left if not layer.ended), default=None)",
        new="        cut = max((layer.last_key for layer in left if not layer.ended), default=None)",
        killers=("staging/staged/test_tokens.py",),
    ),
    Defect(
        name="reading: one record is looked up in the oldest token first",
        promise=f"{_PAGE}#reading",
        file="staging/flows/reading.py",
        old="        for token in view.tokens:",
        new="        for token in reversed(view.tokens):",
        killers=_READING,
    ),
    Defect(
        name="reading: a tombstone shows what is below it",
        promise=f"{_PAGE}#reading",
        file="staging/flows/reading.py",
        old="            if value is not None:\n                return None if value == TOMBSTONE else value\n",
        new="            if value is not None and value != TOMBSTONE:\n                return value\n",
        killers=_READING,
    ),
    Defect(
        name="reading: a listing shows the layers in the wrong order",
        promise=f"{_PAGE}#reading",
        file="staging/flows/reading.py",
        old="    for batch in layered([*layers, area.ranges.records(view.metarange_id, start, stop)]):",
        new="    for batch in layered([area.ranges.records(view.metarange_id, start, stop), *layers]):",
        killers=_READING,
    ),
    Defect(
        name="reading: a key that only the commit has shows through a compacted base",
        promise=f"{_PAGE}#views",
        file="staging/flows/reading.py",
        old="    return RecordView(record.compacted_base or head, head,",
        new="    return RecordView(head, head,",
        killers=_READING,
    ),
    Defect(
        name="reading: tokens that went away during a read are not missed",
        promise=f"{_PAGE}#views",
        file="staging/flows/reading.py",
        old="        if branch is None or still_holds(",
        new="        if branch is None or branch or still_holds(",
        killers=_READING,
    ),
    Defect(
        name="reading: a base that the branch has left behind is called lost",
        promise=f"{_PAGE}#views",
        file="staging/flows/reading.py",
        old="            found = error\n",
        new="            raise\n",
        killers=("staging/test_sweep.py",),
    ),
    Defect(
        name="reading: a base goes at once when the branch has lost it",
        promise=f"{_PAGE}#sweep",
        file="staging/flows/branching.py",
        old='        journal(area, lost, base=base if base != record.compacted_base else "")\n',
        new="        journal(area, lost)\n",
        killers=("staging/test_sweep.py",),
    ),
    Defect(
        name="reading: a commit that came during a read is not missed",
        promise=f"{_PAGE}#views",
        file="staging/flows/reading.py",
        old="    return same_tokens and (now.commit_id, now.compacted_base) == (before.commit_id,",
        new="    return same_tokens and (before.commit_id, now.compacted_base) == (before.commit_id,",
        killers=_WRITING,
    ),
    Defect(
        name="diff: a change of the compacted base shows through a token that takes it back",
        promise=f"{_PAGE}#reading",
        file="staging/flows/reading.py",
        old="    return _until(stop, layered(layers))",
        new="    return _until(stop, layered([*layers[len(view.tokens) :], *layers[: len(view.tokens)]]))",
        killers=(*_DIFFS, *_RESETTING),
    ),
    Defect(
        name="diff: two values differ although they have one identity",
        promise=f"{_FORMAT}#diff",
        file="staging/tree/aligning.py",
        old="        alike[~alike] = _flags(pc.equal(identities_of(left), identities_of(right)))\n",
        new="",
        killers=("staging/tree/test_merging.py", "staging/tree/test_applying.py"),
    ),
    Defect(
        name="reading: what is staged alone is compared as a whole, not by identity",
        promise=f"{_PAGE}#reading",
        file="staging/flows/reading.py",
        old="split_value(committed)[0] == split_value(value)[0]",
        new="committed == value",
        killers=_READING,
    ),
)


# Defects of staging areas: swaps of a branch, and writes.

_COMMITTING: Final = ("staging/flows/test_committing.py",)

WRITE_DEFECTS: Final = (
    Defect(
        name="swap: the record of a branch is written over whatever is there",
        promise=f"{_PAGE}#branch-record",
        file="staging/refs/branches.py",
        old="_key(branch.name), row, branch.row)",
        new="_key(branch.name), row, Presence.PRESENT)",
        killers=("staging/compaction/test_claims.py", *_COMMITTING),
    ),
    Defect(
        name="swap: the key-value store does not compare the bytes that were read",
        promise=f"{_FORMAT}#key-value-store",
        file="staging/kv/sql.py",
        old="WHERE {row} AND value = :old",
        new="WHERE {row}",
        killers=("staging/kv/test_rows.py", "staging/kv/test_rows.py"),
    ),
    Defect(
        name="swap: a swap whose answer was lost counts as lost to another writer",
        promise=f"{_FORMAT}#key-value-store",
        file="staging/kv/sql.py",
        old="            return tries > 1 and _value(",
        new="            return tries > 2 and _value(",
        killers=("staging/kv/test_faults.py", "staging/kv/test_rows.py"),
    ),
    Defect(
        name="swap: tokens leave a branch without an entry in the journal",
        promise=f"{_PAGE}#swaps",
        file="staging/flows/branching.py",
        old="        journal(area, lost, base=base if base",
        new="        journal(area, (), base=base if base",
        killers=("staging/test_sweep.py", "crash/test_staging_branch.py"),
    ),
    Defect(
        name="swap: a tree is named whose objects the sweep is deleting",
        promise=f"{_PAGE}#sweep",
        file="staging/flows/branching.py",
        old="        if not _swept(area, branch.record, record):\n",
        new="        if record is not None:\n",
        killers=("staging/test_sweep.py",),
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


# Defects of the formats of staging areas.


FORMAT_DEFECTS: Final = (
    Defect(
        name="format: ranges break where the hash has another remainder",
        promise=f"{_FORMAT}#where-ranges-end",
        file="staging/format/ranges.py",
        old="hashes % np.uint64(raggedness) == 0]",
        new="hashes % np.uint64(raggedness) == 1]",
        killers=("staging/format/test_ranges.py",),
    ),
    Defect(
        name="format: a range ends below its least size",
        promise=f"{_FORMAT}#where-ranges-end",
        file="staging/format/ranges.py",
        old="            if size >= rule.min_bytes and (size >= rule.max_bytes or hashed):",
        new="            if size >= rule.max_bytes or hashed:",
        killers=("staging/format/test_ranges.py",),
    ),
    Defect(
        name="format: an index key of equal length is not shortened",
        promise=f"{_FORMAT}#index",
        file="staging/format/table_parts.py",
        old="if len(short) <= len(last) and short > last",
        new="if len(short) < len(last) and short > last",
        killers=("staging/format/test_tables.py",),
    ),
    Defect(
        name="format: index blocks are judged by the true size of a handle",
        promise=f"{_FORMAT}#index",
        file="staging/format/table_parts.py",
        old="_ASSUMED_HANDLE: Final = 20",
        new="_ASSUMED_HANDLE: Final = 4",
        killers=("staging/format/test_tables.py",),
    ),
    Defect(
        name="format: checksums are not masked",
        promise=f"{_FORMAT}#blocks",
        file="staging/format/table_parts.py",
        old="    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF",
        new="    return crc",
        killers=("staging/format/test_tables.py",),
    ),
    Defect(
        name="format: a wrong checksum is not noticed",
        promise=f"{_FORMAT}#blocks",
        file="staging/format/table_parts.py",
        old="    wrong = expected != found\n",
        new="    wrong = expected != expected\n",
        killers=("staging/format/test_tables.py",),
    ),
    Defect(
        name="format: a block stays compressed that saves less than an eighth",
        promise=f"{_FORMAT}#compression",
        file="staging/format/table_parts.py",
        old="        if len(packed) < size - size // 8:",
        new="        if len(packed) < size:",
        killers=("staging/format/test_tables.py",),
    ),
    Defect(
        name="format: the id of a table leaves its kind out",
        promise=f"{_FORMAT}#identities",
        file="staging/format/identity.py",
        old="        return self._identity.mapping(user).digest().hex()",
        new="        return self._identity.mapping({}).digest().hex()",
        killers=("staging/format/test_lakefs_fixtures.py", "staging/format/test_ranges.py"),
    ),
    Defect(
        name="format: the identity of an entry hashes an empty content type",
        promise=f"{_FORMAT}#identities",
        file="staging/format/identity.py",
        old="    if entry.content_type:\n        identity.string(entry.content_type)\n",
        new="    identity.string(entry.content_type)\n",
        killers=("staging/format/test_lakefs_fixtures.py", "staging/format/test_lakefs_fixtures.py"),
    ),
    Defect(
        name="format: a message loses the fields that are not known",
        promise=f"{_FORMAT}#messages",
        file="staging/format/messages.py",
        old='        return b"".join(parts) + self.unknown',
        new='        return b"".join(parts)',
        killers=("staging/format/test_lakefs_fixtures.py",),
    ),
    Defect(
        name="format: ranges of a metarange overlap",
        promise=f"{_FORMAT}#ranges-and-metaranges",
        file="staging/format/ranges.py",
        old="        if other.min_key <= item.max_key:",
        new="        if other.min_key < item.min_key:",
        killers=("staging/format/test_ranges.py",),
    ),
)
