"""Defects of staging areas: layers, what readers see, differences."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_PAGE: Final = "design/staging-areas.md"
_FORMAT: Final = "design/staging.md"
_STAGING: Final = "stores/staging"
_READING: Final = (f"{_STAGING}/flows/test_reading.py",)
_WRITING: Final = (f"{_STAGING}/flows/test_writing.py",)
_RESETTING: Final = (f"{_STAGING}/flows/test_resetting.py",)
_DIFFS: Final = (f"{_STAGING}/flows/test_diffs.py",)

READ_DEFECTS: Final = (
    Defect(
        name="layers: of equal keys the oldest layer wins",
        promise=f"{_FORMAT}#layers",
        file="staging/staged/rows.py",
        old="    first[1:] = pc.not_equal(",
        new="    first[:-1] = pc.not_equal(",
        killers=(f"{_STAGING}/staged/test_layers.py",),
    ),
    Defect(
        name="layers: a record is taken that a layer with more to come may still hide",
        promise=f"{_FORMAT}#layers",
        file="staging/staged/rows.py",
        old="        cut = min((layer.last_key for layer in left if not layer.ended), default=None)",
        new="        cut = max((layer.last_key for layer in left if not layer.ended), default=None)",
        killers=(f"{_STAGING}/staged/test_layers.py",),
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
        killers=(f"{_STAGING}/tree/test_diffing.py", f"{_STAGING}/tree/test_applying.py"),
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
