"""The messages between a coordinator and a participant (docs/design/catalog-compaction.md#protocol)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import MAXIMUM, MINIMUM
from compaction.catalogs.participants.reports import (
    LONGEST_TEXT,
    Cause,
    IndexBuild,
    PartitionReport,
    Rebalance,
    Report,
    Role,
)
from compaction.serving.openapi import Wire

VERSION: Final = 1
MOST_REPORT_BYTES: Final = 4 << 20
"""Of the body of a report."""
MOST_MINIMUM_BYTES: Final = 4096
"""Of the body of a minimum."""
MOST_PARTITIONS: Final = 32_768
MOST_BUILDS: Final = 10_000
_DIGITS: Final = "0|[1-9][0-9]{0,18}"
_LARGEST_ID: Final = 2**31 - 1
_LARGEST_TOKEN: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class _Timestamp:
    """A text of decimal digits on the wire, and a number here; compiled, since a report has one for each partition."""

    least: int
    description: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        digits = core_schema.custom_error_schema(
            core_schema.str_schema(pattern=f"^({_DIGITS})$", strict=True),
            custom_error_type="digits",
            custom_error_message="a hybrid timestamp is a text of decimal digits",
        )
        number = core_schema.int_schema(ge=self.least, le=MAXIMUM, strict=False)
        return core_schema.chain_schema([digits, number], serialization=core_schema.to_string_ser_schema())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        pattern = f"^({_DIGITS})$" if self.least == UNDEFINED else "^[1-9][0-9]{0,18}$"
        return {"type": "string", "pattern": pattern, "description": self.description}


Time = Annotated[int, _Timestamp(MINIMUM, "A hybrid timestamp in decimal digits, 1 to 9223372036854775807.")]
"""A text, because a JSON number loses the counter of a hybrid timestamp in a language that reads it as a double."""
OptionalTime = Annotated[
    int,
    _Timestamp(UNDEFINED, "A hybrid timestamp in decimal digits, up to 9223372036854775807; 0 when there is none."),
]
Id = Annotated[int, Field(ge=0, le=_LARGEST_ID)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Token = Annotated[int, Field(ge=1, le=_LARGEST_TOKEN)]


class PartitionMessage(Wire):
    """A partition of a table that the participant holds."""

    table_id: Id
    partition: Id
    role: Role
    minimum: OptionalTime
    """Its published minimum."""


class IndexBuildMessage(Wire):
    """An index that the participant builds."""

    index_id: Id
    since: Time


class RebalanceMessage(Wire):
    """A zone whose partitions move."""

    zone_id: Id
    minimum: Time
    """The catalog is needed from there on."""
    since: Time


class ReportMessage(Wire):
    """From when on a participant needs the catalog, and why."""

    protocol: Literal[1]
    """Version of the protocol."""
    name: Text
    """Of the participant."""
    minimum: Time
    """The catalog is needed from there on."""
    cause: Cause
    subject: Text
    """The partition, the zone, or what is undefined."""
    transactions: Time
    """Activation time of the lowest version that an active read-write transaction holds; the clock without one."""
    oldest_transaction: OptionalTime
    """Begin time of the oldest one."""
    low_watermark: OptionalTime
    partitions: tuple[PartitionMessage, ...] = Field(max_length=MOST_PARTITIONS)
    index_builds: tuple[IndexBuildMessage, ...] = Field(max_length=MOST_BUILDS)
    rebalances: tuple[RebalanceMessage, ...] = Field(max_length=MOST_BUILDS)
    checkpoint: OptionalTime
    """Of the last finished one."""
    clock: Time
    """The participant's clock."""
    reads_old_rows: bool = True
    """Whether it may read rows that were written with an older column set of their table. Snapshots keep all column
    sets unless every participant declares false."""

    @classmethod
    def of(cls, report: Report) -> ReportMessage:
        """As it is sent; nothing is checked: a participant that is wrong is refused by the coordinator, by name."""
        return cls.model_construct(
            protocol=VERSION,
            name=report.name,
            minimum=report.minimum,
            cause=report.cause,
            subject=report.subject,
            transactions=report.transactions,
            oldest_transaction=report.oldest_transaction,
            low_watermark=report.low_watermark,
            partitions=tuple(
                PartitionMessage.model_construct(
                    table_id=partition.table_id,
                    partition=partition.partition,
                    role=partition.role,
                    minimum=partition.minimum,
                )
                for partition in report.partitions
            ),
            index_builds=tuple(
                IndexBuildMessage.model_construct(index_id=build.index_id, since=build.since)
                for build in report.index_builds
            ),
            rebalances=tuple(
                RebalanceMessage.model_construct(
                    zone_id=rebalance.zone_id, minimum=rebalance.minimum, since=rebalance.since
                )
                for rebalance in report.rebalances
            ),
            checkpoint=report.checkpoint,
            clock=report.clock,
            reads_old_rows=report.reads_old_rows,
        )

    def report(self) -> Report:
        """The report in it."""
        return Report(
            self.name,
            self.minimum,
            self.cause,
            self.subject,
            self.transactions,
            self.oldest_transaction,
            self.low_watermark,
            tuple(
                PartitionReport(partition.table_id, partition.partition, partition.role, partition.minimum)
                for partition in self.partitions
            ),
            tuple(IndexBuild(build.index_id, build.since) for build in self.index_builds),
            tuple(Rebalance(rebalance.zone_id, rebalance.minimum, rebalance.since) for rebalance in self.rebalances),
            self.checkpoint,
            self.clock,
            self.reads_old_rows,
        )


class MinimumMessage(Wire):
    """The minimum of the transactions of all participants, to be stored."""

    timestamp: Time
    token: Token
    """Fencing token of the coordinator: a participant that has seen a larger one refuses."""


class StoredMessage(Wire):
    """The minimum is in the logs of partitions."""

    partitions: Id
    """Number of partitions that the participant leads, and stored it in."""


class ParticipantProblem(StrEnum):
    """Why a request was refused."""

    BAD_REQUEST = "BadRequest"
    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    BUSY = "Busy"
    UNAVAILABLE = "Unavailable"
    FAILED = "Failed"
    STALE_TOKEN = "StaleToken"
    MINIMUM_AHEAD = "MinimumAhead"
    STATE = "State"


class ParticipantProblemMessage(Wire):
    """A refusal."""

    code: ParticipantProblem
    message: str
