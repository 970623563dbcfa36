"""What fires the alerts of catalogs: series as the metrics of a coordinator have them, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime

from compaction.api.catalog.catalog import CatalogCompactionStatus, HybridTime, RequiredTime, standing_of
from compaction.api.catalog.reasons import Ended, Finding, Process, Reason
from compaction.api.policy.store import conditions_for
from compaction.catalogs.compaction.observations import CatalogDecision, CatalogMemory
from compaction.kube.informer.cache import CatalogKey
from compaction.kube.metrics.registry import Metrics
from manifests.promrules import Case

CATALOG = CatalogKey("storage", "orders")
SUBJECT = (("namespace", CATALOG.namespace), ("catalog", CATALOG.name))
WATERMARK_LAG = 600
"""Seconds by which the coordinator's watermark is behind its clock."""


def rounds(
    metrics: Metrics,
    minute: int,
    reason: str,
    *,
    behind: int = 3,
    pin: tuple[str, str, int] = ("LowWatermark", "", WATERMARK_LAG),
    lasts: bool = True,
    fenced: bool = False,
) -> None:
    """One round in this minute. `pin`: reason, participant, and how many seconds it is behind the clock."""
    now = datetime.fromtimestamp(minute * 60 + 3 * 86_400, UTC)
    kind, participant, age = pin
    status = CatalogCompactionStatus(
        conditions=conditions_for(
            (), reason=reason, message="", observed_generation=1, now=now, standing=standing_of(reason, lasts=lasts)
        ),
        earliest_version=10,
        latest_version=11 + behind,
        low_watermark=HybridTime(value=1, time=moment(now, WATERMARK_LAG)),
        required_time=RequiredTime(value=1, time=moment(now, age), reason=kind, participant=participant),
    )
    ended = (Ended(Process.COMPACTION, Finding(Reason.FENCED, "")),) if fenced else ()
    decision = CatalogDecision(CatalogMemory(status=status), ended=ended)
    metrics.catalogs.measure(CATALOG, status, decision)


def moment(now: datetime, seconds: int) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - seconds, UTC)


def healthy_catalog(metrics: Metrics, minute: int) -> None:
    """Pins come and go, a participant restarts now and then, a day of history is kept for a while by the watermark."""
    if minute % 90 < 60:
        rounds(metrics, minute, "Transaction", pin=("Transaction", "a", 7200))
    elif minute % 90 < 65:
        rounds(metrics, minute, "NoAnswer", lasts=minute % 2 == 0)
    elif minute % 90 < 67:
        rounds(metrics, minute, "LogUnavailable", lasts=False)
    else:
        rounds(metrics, minute, "LowWatermark", behind=40)


def history_pinned(metrics: Metrics, minute: int) -> None:
    """One pin takes turns with the next."""
    reason = ("Transaction", "Replay", "IndexConstruction", "UndefinedPartition")[minute % 4]
    if minute < 10:
        rounds(metrics, minute, "Compacted", behind=0)
    else:
        rounds(metrics, minute, reason, behind=7, pin=("Transaction", "a", 60 * minute))


def watermark_locked(metrics: Metrics, minute: int) -> None:
    """A participant's watermark stays: it is an hour behind the coordinator's after minute 70."""
    late = 60 * max(0, minute - 10)
    rounds(metrics, minute, "LowWatermark", behind=2, pin=("LowWatermark", "a", WATERMARK_LAG + late))


def pinned_and_short(metrics: Metrics, minute: int) -> None:
    """A participant is not ready for long, and there is nothing to cut."""
    rounds(metrics, minute, "NotReady", behind=0)


def participant_silent(metrics: Metrics, minute: int) -> None:
    reason = ("NoAnswer", "AnswerLate", "MissingParticipant")[minute % 3]
    rounds(metrics, minute, reason if minute >= 10 else "Compacted", lasts=minute > 11)


def log_does_not_answer(metrics: Metrics, minute: int) -> None:
    reason = "LogUnavailable" if minute % 2 else "SecretMissing"
    rounds(metrics, minute, reason if minute >= 10 else "Compacted")


def log_damaged(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "LogCorrupt" if minute >= 10 else "Compacted", lasts=minute > 11)


def snapshot_too_large(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "SnapshotRefused" if minute >= 10 else "Compacted")


def token_refused(metrics: Metrics, minute: int) -> None:
    rounds(metrics, minute, "Compacted" if minute != 11 else "Fenced", lasts=False, fenced=minute == 11)


def suspended(metrics: Metrics, minute: int) -> None:
    """What was wrong before the suspension is not wrong now."""
    rounds(metrics, minute, "NoAnswer" if minute < 5 else "Suspended")


_ANSWER = "storage/orders: a participant is missing, or has no answer that counts"
_LOG = "storage/orders: the update log cannot be read, or takes no snapshot"
_PINNED = "storage/orders: {} versions are kept that the watermark allows to cut"
CATALOG_CASES = [
    Case("CompactionCatalogPinned", history_pinned, 129, 130, _PINNED.format(7), SUBJECT),
    Case("CompactionCatalogPinned", watermark_locked, 190, 191, _PINNED.format(2), SUBJECT),
    Case("CompactionCatalogParticipantSilent", participant_silent, 19, 20, _ANSWER, SUBJECT),
    Case(
        "CompactionCatalogStalled",
        log_does_not_answer,
        19,
        20,
        "storage/orders: rounds fail, its condition Stalled is True",
        SUBJECT,
    ),
    Case("CompactionCatalogLogUnusable", log_damaged, 14, 15, _LOG, SUBJECT),
    Case("CompactionCatalogLogUnusable", snapshot_too_large, 14, 15, _LOG, SUBJECT),
    Case(
        "CompactionCatalogFencing",
        token_refused,
        10,
        11,
        "storage/orders: the log refused a coordinator's fencing token",
        SUBJECT,
    ),
]
ALONE = (participant_silent, log_damaged, snapshot_too_large, suspended)
"""Causes with an alert of their own, or none: they do not fire CompactionCatalogStalled."""
QUIET = (pinned_and_short, suspended)
"""What fires no alert at all."""
