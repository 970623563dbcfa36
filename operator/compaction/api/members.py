"""What a kind of store is in the unions of the resources: its member of `spec.store`, and those of its jobs.

The unions themselves are `StoreSpec` (store_spec.py), `JobSources` and `JobParameters` (job_spec.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from compaction.api.base import ApiModel, PrinterColumn


class StoreModel(ApiModel):
    """A member of `spec.store`."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where the store is, as messages name it."""


class SourcesModel(ApiModel):
    """A member of a job's `spec.sources`."""

    @property
    @abstractmethod
    def target(self) -> str:
        """The target that the job's commits are to. Jobs of one target run one after another."""


@dataclass(frozen=True, slots=True)
class JobMember:
    """A type of job: its `name` is `spec.kind`, `member` the one of `spec.sources` and `spec.parameters` that belongs
    to it. `help` describes the sources, `needs` what the member must hold; `column` shows the target.
    """

    name: str
    member: str
    sources: type[SourcesModel]
    parameters: type[ApiModel]
    help: str
    needs: str
    column: PrinterColumn


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A kind of store: its `name` is `status.store`, `member` the one of `spec.store`."""

    name: str
    member: str
    model: type[StoreModel]
    help: str
    jobs: tuple[JobMember, ...]


Member = TypeVar("Member")


def member_of(chosen: Member | None) -> Member:
    """A member of one of the unions, for the kind that was found by it: `member_of(store.block_store)`."""
    assert chosen is not None, "the kind is chosen by this member, or by the job's type, which needs it"
    return chosen


class OneOf:
    """Field metadata: a string that is one of `names` at the time it is checked. Kinds may be added to the unions."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self._names())}

    def _check(self, value: str) -> str:
        names = tuple(self._names())
        if value not in names:
            raise PydanticCustomError("enum", "Input should be {names}", {"names": " or ".join(map(repr, names))})
        return value
