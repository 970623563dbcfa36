"""The actions that drive a reference participant over HTTP: one action per path under /v1/admin
(docs/design/catalog-compaction.md#reference-participant).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.participants.reference import ReferenceParticipant
from compaction.catalogs.participants.reports import Role
from compaction.catalogs.serving.messages import Id, OptionalTime, Time
from compaction.serving.openapi import Wire


class Nothing(Wire):
    """An action without arguments: {}."""


class ReadOnlyTransaction(Wire):
    """A read-only transaction."""

    timestamp: Time


class Begun(Wire):
    """A transaction by its begin time, or the timestamp that it reads at."""

    timestamp: Time


class NewPartition(Wire):
    """A partition with the role of the participant in it."""

    table_id: Id
    partition: Id
    role: Role


class OldPartition(Wire):
    """A partition."""

    table_id: Id
    partition: Id


class Paused(Wire):
    """Whether replication is paused."""

    paused: bool


class CheckpointEnd(Wire):
    """How a checkpoint ended."""

    succeeded: bool = True


class BuiltIndex(Wire):
    """An index."""

    index_id: Id


class MovingZone(Wire):
    """A zone whose partitions move, and from when on they need the catalog."""

    zone_id: Id
    minimum: Time


class SettledZone(Wire):
    """A zone."""

    zone_id: Id


class WatermarkTarget(Wire):
    """Where the low watermark goes."""

    timestamp: Time


class RestartOptions(Wire):
    """After a restart."""

    earliest: OptionalTime = UNDEFINED
    """Activation time of the earliest kept version, which the watermark is raised to."""


class ClockOffset(Wire):
    """Difference between the participant's clock and the machine's."""

    milliseconds: int = Field(ge=-(10**12), le=10**12)


class NewVersion(Wire):
    """A version of the catalog."""

    version: Id
    activation: Time


class DoneMessage(Wire):
    """The action is done."""

    timestamp: OptionalTime = UNDEFINED
    """The begin time of the transaction, the value of the watermark; 0 for other actions."""


class ActionName(StrEnum):
    """Names of the actions; with / in front of them, the end of their paths."""

    BEGIN = "begin"
    BEGIN_READ = "begin-read"
    FINISH = "finish"
    ADD_PARTITION = "add-partition"
    REMOVE_PARTITION = "remove-partition"
    PAUSE_REPLICATION = "pause-replication"
    BEGIN_CHECKPOINT = "begin-checkpoint"
    FINISH_CHECKPOINT = "finish-checkpoint"
    START_INDEX_BUILD = "start-index-build"
    END_INDEX_BUILD = "end-index-build"
    START_REBALANCE = "start-rebalance"
    END_REBALANCE = "end-rebalance"
    MOVE_WATERMARK = "move-watermark"
    RESTART = "restart"
    SET_CLOCK = "set-clock"
    ADD_VERSION = "add-version"


@dataclass(frozen=True, slots=True)
class Action:
    """One path. `run` returns a timestamp to answer with, or None."""

    name: ActionName
    summary: str
    body: type[Wire]
    run: Callable[[ReferenceParticipant, Any], int | None]

    @property
    def path(self) -> str:
        return f"/v1/admin/{self.name.value}"

    def on(self, participant: ReferenceParticipant, request: Wire) -> DoneMessage:
        """Carry it out. Raises the errors of the participant."""
        return DoneMessage.model_construct(timestamp=self.run(participant, request) or UNDEFINED)


ACTIONS: Final = (
    Action(ActionName.BEGIN, "Begin a read-write transaction.", Nothing, lambda item, _: item.begin()),
    Action(
        ActionName.BEGIN_READ,
        "Begin a read-only transaction, which holds the low watermark.",
        ReadOnlyTransaction,
        lambda item, it: item.begin_read(it.timestamp),
    ),
    Action(ActionName.FINISH, "End a transaction of either sort.", Begun, lambda item, it: item.finish(it.timestamp)),
    Action(
        ActionName.ADD_PARTITION,
        "Hold a partition from now on.",
        NewPartition,
        lambda item, it: item.add_partition(it.table_id, it.partition, it.role),
    ),
    Action(
        ActionName.REMOVE_PARTITION,
        "Hold it no longer.",
        OldPartition,
        lambda item, it: item.remove_partition(it.table_id, it.partition),
    ),
    Action(
        ActionName.PAUSE_REPLICATION,
        "Let commands of leaders elsewhere wait, or arrive again.",
        Paused,
        lambda item, it: item.replicate(not it.paused),
    ),
    Action(ActionName.BEGIN_CHECKPOINT, "Begin a checkpoint.", Nothing, lambda item, _: item.begin_checkpoint()),
    Action(
        ActionName.FINISH_CHECKPOINT,
        "End the checkpoint under way.",
        CheckpointEnd,
        lambda item, it: item.finish_checkpoint(it.succeeded),
    ),
    Action(
        ActionName.START_INDEX_BUILD,
        "Build an index from now on.",
        BuiltIndex,
        lambda item, it: item.start_index_build(it.index_id),
    ),
    Action(
        ActionName.END_INDEX_BUILD,
        "Build it no longer.",
        BuiltIndex,
        lambda item, it: item.end_index_build(it.index_id),
    ),
    Action(
        ActionName.START_REBALANCE,
        "Let partitions of a zone move.",
        MovingZone,
        lambda item, it: item.start_rebalance(it.zone_id, it.minimum),
    ),
    Action(
        ActionName.END_REBALANCE,
        "They are where they should be.",
        SettledZone,
        lambda item, it: item.end_rebalance(it.zone_id),
    ),
    Action(
        ActionName.MOVE_WATERMARK,
        "Raise the low watermark, once no reader is in the way.",
        WatermarkTarget,
        lambda item, it: item.move_watermark(it.timestamp),
    ),
    Action(
        ActionName.RESTART, "Forget what a crash forgets.", RestartOptions, lambda item, it: item.restart(it.earliest)
    ),
    Action(
        ActionName.SET_CLOCK,
        "Let the clock differ from the machine's.",
        ClockOffset,
        lambda item, it: item.set_clock_offset(it.milliseconds),
    ),
    Action(
        ActionName.ADD_VERSION,
        "A further version of the catalog is known.",
        NewVersion,
        lambda item, it: item.versions.add(it.version, it.activation),
    ),
)
