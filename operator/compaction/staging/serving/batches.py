"""A batch of changes as lines of JSON: read as a whole before any of it is carried out."""

from __future__ import annotations

from io import BytesIO

from compaction.staging.serving.messages import MOST_CHANGES, ChangeLine, ChangeOperation
from compaction.staging.serving.values import framed_value

Change = tuple[ChangeLine, bytes]
"""A line, and the framed value that it writes; b"" for a deletion."""


class BatchLineError(ValueError):
    """A line is no change. `number`: of the line, from 1. `error`: what is wrong with it."""

    def __init__(self, number: int, error: ValueError) -> None:
        super().__init__(f"line {number}: {error}")
        self.number = number
        self.error = error


def changes_in(body: bytes, *, now: float) -> list[Change]:
    """The changes of a batch in their order; empty lines are passed over. `now`: seconds since 1970.

    Raises BatchLineError for the first line that is wrong, ValueError for more than `MOST_CHANGES` changes.
    """
    found: list[Change] = []
    for number, text in enumerate(BytesIO(body), 1):
        if not text.strip():
            continue
        if len(found) == MOST_CHANGES:
            raise ValueError(f"a batch has at most {MOST_CHANGES} lines: send several")
        try:
            line = ChangeLine.model_validate_json(text, by_name=False, by_alias=True)
            framed = framed_value(line.content(), now=now) if line.op is ChangeOperation.PUT else b""
        except ValueError as error:  # pydantic's ValidationError among them
            raise BatchLineError(number, error) from None
        found.append((line, framed))
    return found
