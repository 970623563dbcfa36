"""Results of operations as plain objects."""

from __future__ import annotations

from typing import Any

from compaction.cli.histories.fields import BASE64
from compaction.cli.histories.running import Result
from compaction.cli.histories.texts import text_fields
from compaction.staging.cli.values import entry_object, entry_of, parts_of
from compaction.staging.flows.reading import DiffPage, Page
from compaction.staging.format.messages import CommitData


def key_fields(key: bytes, name: str = "key") -> dict[str, str]:
    """A key as text, or in base64 when it is none."""
    return text_fields(name, key, BASE64)


def value_fields(value: bytes) -> dict[str, Any]:
    """A framed value: identity, and the entry, or the data as text, or in base64."""
    identity, data = parts_of(value)
    entry = entry_of(identity, data)
    shown = text_fields("value", data, BASE64) if entry is None else {"entry": entry_object(entry)}
    return {"identity": identity.hex(), **shown}


def page_result(page: Page) -> Result:
    """A page of a listing: records, and common prefixes."""
    entries = [
        key_fields(one.key, "prefix") if one.value is None else {**key_fields(one.key), **value_fields(one.value)}
        for one in page.entries
    ]
    return {"entries": entries, "more": page.more}


def diff_result(page: DiffPage) -> Result:
    """A page of differences."""
    entries = [
        {
            **key_fields(one.key),
            "kind": one.kind.name.lower(),
            "left": None if one.left is None else value_fields(one.left),
            "right": None if one.right is None else value_fields(one.right),
        }
        for one in page.entries
    ]
    return {"entries": entries, "more": page.more}


def commit_result(commit: CommitData) -> Result:
    """A commit: its id and its tree."""
    return {"commit": commit.id, "metarange": commit.meta_range_id}
