"""Operations on records: set, delete, get, list, diff."""

from __future__ import annotations

from typing import Final

from compaction.cli.histories.running import Result
from compaction.errors import RecordTextError
from compaction.staging.cli.history.fields import Fields
from compaction.staging.cli.history.results import diff_result, page_result, value_fields
from compaction.staging.cli.history.session import OpenArea
from compaction.staging.cli.values import bytes_of_hex, raw_identity
from compaction.staging.flows.reading import MOST_LISTED
from compaction.staging.flows.writing import Condition

VALUE_FIELDS: Final = ("value", "entry", "identity")
PAGE_FIELDS: Final = ("prefix", "after", "amount")


def set_(opened: OpenArea, fields: Fields) -> Result:
    """Write a record."""
    opened.writer.set(fields.text("branch"), fields.data("key"), fields.value())
    return {}


def set_if(opened: OpenArea, fields: Fields) -> Result:
    """Write a record if the branch shows what is expected."""
    branch, key, value = fields.text("branch"), fields.data("key"), fields.value()
    opened.writer.set_if(branch, key, value, _condition(fields))
    return {}


def set_many(opened: OpenArea, fields: Fields) -> Result:
    """Write many records in one batch."""
    branch, records = fields.text("branch"), fields.records()
    opened.writer.set_many(branch, records)
    return {"records": len(records)}


def delete(opened: OpenArea, fields: Fields) -> Result:
    """Delete a record."""
    opened.writer.delete(fields.text("branch"), fields.data("key"))
    return {}


def delete_many(opened: OpenArea, fields: Fields) -> Result:
    """Delete up to 1,000 records in one batch."""
    branch, keys = fields.text("branch"), fields.many("keys")
    opened.writer.delete_many(branch, keys)
    return {"keys": len(keys)}


def get(opened: OpenArea, fields: Fields) -> Result:
    """Read a record."""
    reference, key = fields.text("ref"), fields.data("key")
    value = opened.reader.get(reference, key, stage_only=fields.flag("stage_only"))
    return {"found": False} if value is None else {"found": True, **value_fields(value)}


def list_(opened: OpenArea, fields: Fields) -> Result:
    """Read a page of a listing."""
    reference, delimiter = fields.text("ref"), fields.data("delimiter", b"")
    prefix, after, amount = _page(fields)
    return page_result(opened.reader.list(reference, prefix=prefix, after=after, delimiter=delimiter, amount=amount))


def diff_uncommitted(opened: OpenArea, fields: Fields) -> Result:
    """Read a page of what is uncommitted."""
    branch = fields.text("branch")
    prefix, after, amount = _page(fields)
    opened.area.branches.get(branch)
    return diff_result(opened.reader.uncommitted(branch, prefix=prefix, after=after, amount=amount))


def diff(opened: OpenArea, fields: Fields) -> Result:
    """Read a page of how a reference differs from the commit of another."""
    left, right = fields.text("left"), fields.text("right")
    prefix, after, amount = _page(fields)
    return diff_result(opened.reader.diff(left, right, prefix=prefix, after=after, amount=amount))


def _page(fields: Fields) -> tuple[bytes, bytes, int]:
    return fields.data("prefix", b""), fields.data("after", b""), fields.number("amount", MOST_LISTED, least=1)


def _condition(fields: Fields) -> Condition:
    given = [name for name in ("if_absent", "if_identity", "if_value", "if_value_base64") if fields.has(name)]
    if len(given) != 1 or (given == ["if_absent"] and not fields.flag("if_absent")):
        raise RecordTextError(f'{fields.what} needs one of "if_absent": true, "if_identity", "if_value"')
    if given == ["if_absent"]:
        return Condition(None)
    if given == ["if_identity"]:
        return Condition(bytes_of_hex(fields.given["if_identity"], "if_identity"))
    return Condition(raw_identity(fields.data("if_value")))
