"""A preview: another spec for an object, in an annotation, and the answer in its status: what that spec would do now.

The value of the annotation counts once (`api.requests`): `{"id": "...", "spec": {...}}`. Nothing is created for it, and
what is in force goes on. The answer has two columns of the same moment: what the spec in force would do, and what the
proposed one would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from compaction.api.base import (
    ApiModel,
    Count,
    Message,
    Timestamp,
    Word,
    cutting,
    first_problem,
    keeping_first,
    list_atomic,
)
from compaction.api.enums import PolicyReason
from compaction.api.requests import Answer, RequestReason, RequestStatus, answered_with

# The answer: the part of it that is the same for every kind of object.

MAX_CHANGES: Final = 64
MAX_VALUE: Final = 256
MAX_FIELD: Final = 512
MAX_ID: Final = 64


class BeginReason(StrEnum):
    """When the work of a preview would begin, beside the reasons for which a policy or a catalog waits."""

    DUE = "Due"  # nothing stands in the way
    NOTHING_DUE = "NothingDue"  # there is no work


class SpecChange(ApiModel):
    """A field that is another one in the proposed spec."""

    field: Annotated[str, StringConstraints(max_length=MAX_FIELD), cutting(MAX_FIELD)]
    """Path of the field, such as spec.trigger.interval."""
    before: Annotated[str, StringConstraints(max_length=MAX_VALUE), cutting(MAX_VALUE)] = ""
    """Value in force: a text as it is, everything else as JSON. Empty when the field is not set."""
    after: Annotated[str, StringConstraints(max_length=MAX_VALUE), cutting(MAX_VALUE)] = ""
    """Value in the proposed spec, in the same form."""


class BeginStatus(ApiModel):
    """When the work would begin."""

    reason: Word
    """Due, NothingDue, or what stands in the way first: Held, Suspended, AwaitingSchedule, ApprovalPending,
    OutsideWindow or DryRun."""
    message: Message = ""
    """Message for a person: everything that stands in the way."""
    at: Timestamp | None = None
    """Time at which the first obstacle ends by itself. Empty when it does not, and when there is none."""


class PreviewStatus(RequestStatus):
    """What a proposed spec would do now."""

    id: Annotated[str, StringConstraints(max_length=MAX_ID), cutting(MAX_ID)] = ""
    """The id in the annotation compaction.dev/preview."""
    generation: Count = 0
    """Generation of the spec in force that the proposed one is compared with."""
    changes: Annotated[
        tuple[SpecChange, ...], Field(max_length=MAX_CHANGES), keeping_first(MAX_CHANGES), list_atomic()
    ] = ()
    """Fields that differ, in the order of the spec; at most 64."""
    changed: Count = 0
    """Number of fields that differ."""


def changes_of(before: ApiModel, after: ApiModel) -> tuple[SpecChange, ...]:
    """The fields of two specs of one kind that differ, with defaults as they are in force."""
    return tuple(_changes("spec", before.to_object(), after.to_object()))


def _changes(path: str, before: Any, after: Any) -> Iterator[SpecChange]:
    # An object that is set for the first time is shown by its fields, as they will be written again.
    sides = [{} if side is None else side for side in (before, after)]
    if before != after and all(isinstance(side, Mapping) for side in sides):
        for key in dict.fromkeys((*sides[0], *sides[1])):
            yield from _changes(f"{path}.{key}", sides[0].get(key), sides[1].get(key))
    elif before != after:
        # A list is one value: its items have no names that would outlive an insertion.
        yield SpecChange(field=path, before=_text(before), after=_text(after))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


# The request, as anybody who may patch the object may have written it.

MAX_PREVIEW: Final = 65_536
"""Characters of a value: a quarter of what Kubernetes allows for all annotations of an object together."""

Spec = TypeVar("Spec", bound=ApiModel)


@dataclass(frozen=True, slots=True)
class PreviewRefusal:
    """The reason for which a preview is not made. `id`: of the request; "" when that cannot be read."""

    id: str
    reason: str
    message: str

    def answer(self, model: type[Answer], at: datetime, *, generation: int) -> Answer:
        """The answer in the status. ValueError when `at` is out of range."""
        return answered_with(model, at, self.reason, self.message, accepted=False, id=self.id, generation=generation)


@dataclass(frozen=True, slots=True)
class PreviewRequest(Generic[Spec]):
    """A spec that is valid."""

    id: str
    spec: Spec


def preview_value(id: str, spec: Mapping[str, Any]) -> str:
    """The value of the annotation."""
    return json.dumps({"id": id, "spec": spec}, separators=(",", ":"))


def too_long(value: str) -> str:
    """Say that a value has more characters than are read; "" when it has not."""
    if len(value) <= MAX_PREVIEW:
        return ""
    return f"the spec takes {len(value)} characters of JSON, and a preview {MAX_PREVIEW}: shorten its podTemplate"


def parse_preview(value: str, model: type[Spec]) -> PreviewRequest[Spec] | PreviewRefusal:
    """The request in a value of the annotation. What it says is checked as strictly as the API server checks a spec:
    an unknown field is no field that was left out.
    """
    if refused := too_long(value):
        return PreviewRefusal("", RequestReason.TOO_LONG, refused)
    # Bounded before it is parsed; numbers of thousands of digits and deep nesting are errors of the parser.
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return PreviewRefusal("", PolicyReason.INVALID_SPEC, f"the preview is not JSON: {_FORM}")
    if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
        return PreviewRefusal("", PolicyReason.INVALID_SPEC, f"the preview holds no spec: {_FORM}")
    id = str(found.get("id", ""))[:MAX_ID]
    try:
        return PreviewRequest(id, model.model_validate_json(json.dumps(found["spec"]), strict=True, extra="forbid"))
    except ValidationError as error:
        return PreviewRefusal(id, PolicyReason.INVALID_SPEC, f"spec.{first_problem(error)}")


_FORM: Final = 'write {"id": "...", "spec": {...}}, or let kubectl compaction plan -f FILE write it'
