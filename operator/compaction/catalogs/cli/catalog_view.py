"""The rows of `status` about catalogs: one for each catalog, or all about one. Data with exact values first, text from
it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from compaction.api.catalog.catalog import ANSWERED, CatalogCompaction, ParticipantStatus, ProcessStatus
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType
from compaction.api.text.printing import format_age, format_bytes, plural
from compaction.cli.cluster.status_view import (
    NAMESPACE,
    Data,
    age_text,
    coordinator_data,
    is_observed,
    outdated_pairs,
    seconds_between,
    since_text,
    time_text,
)
from compaction.cli.output import OutputColumn, optional, optional_bytes, print_pairs, print_table
from compaction.core.explain.explanation import MISSING, UNKNOWN, Coordination, Leadership


def catalog_data(catalog: CatalogCompaction, now: datetime, coordinator: Coordination = UNKNOWN) -> Data:
    """One catalog: versions, seconds and RFC 3339 times; None for what is not known. Without a coordinator, or before
    it has seen the spec, the status is of a former time: `coordinator` and `observed` say so.
    """
    meta, spec, status = catalog.metadata, catalog.spec, catalog.status
    ready = get_condition(status.conditions, ConditionType.READY)
    pin, known = status.required_time, status.earliest_version is not None
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "ready": ready.status.value if ready is not None else None,
        "reason": ready.reason if ready is not None else None,
        "message": ready.message if ready is not None else None,
        "reasonSince": time_text(status.reason_since),
        "observed": is_observed(catalog),
        "coordinator": coordinator_data(coordinator, now),
        "suspended": spec.suspend,
        "dryRun": spec.dry_run,
        "earliestVersion": status.earliest_version,
        "latestVersion": status.latest_version,
        "behindVersions": status.debt_versions if known else None,
        "pin": None
        if pin is None
        else {
            "reason": pin.reason,
            "participant": pin.participant or None,
            "subject": pin.subject or None,
            "requiredAt": time_text(pin.time),
            "requiredSeconds": seconds_between(pin.time, now),
            "since": time_text(pin.since),
            "sinceSeconds": seconds_between(pin.since, now),
        },
        "compaction": _process(status.compaction, now),
        "propagation": _process(status.propagation, now),
        "participants": status.round.participants if status.round is not None else None,
        "answered": status.round.answered if status.round is not None else None,
        "nextRunAt": time_text(status.next_run_time),
        "nextRunSeconds": seconds_between(now, status.next_run_time),
        "versionsCut": status.versions_cut,
        "bytesCut": status.bytes_cut,
        "lastCutAt": time_text(status.last_compaction_time),
        "lastCutSeconds": seconds_between(status.last_compaction_time, now),
        "etcd": ",".join(spec.catalog.endpoints),
        "prefix": spec.catalog.prefix,
        "ageSeconds": seconds_between(meta.creation_timestamp, now),
    }


def _process(ended: ProcessStatus | None, now: datetime) -> Data | None:
    if ended is None:
        return None
    return {
        "outcome": ended.outcome.value,
        "reason": ended.reason,
        "message": ended.message or None,
        "sinceSeconds": seconds_between(ended.since, now),
        "finishedSeconds": seconds_between(ended.finished_at, now),
    }


def _pin(pin: Data | None) -> str:
    """`Transaction of orders-1 (1h1m)`: how long it has pinned, where that is known."""
    if pin is None:
        return "-"
    who = f" of {pin['participant']}" if pin["participant"] else ""
    since = f" ({format_age(pin['sinceSeconds'])})" if pin["sinceSeconds"] is not None else ""
    return f"{pin['reason']}{who}{since}"


def _answers(data: Data) -> str:
    return "-" if data["participants"] is None else f"{data['answered']}/{data['participants']}"


def _next(data: Data) -> str:
    """Until when: nothing while no operator coordinates or the catalog is suspended; else the next round."""
    if Leadership(data["coordinator"]["state"]) in MISSING:
        return "no coordinator"
    if data["suspended"]:
        return "suspended"
    if not data["observed"]:
        return "spec not observed"
    return "-" if data["nextRunSeconds"] is None else f"round in {format_age(data['nextRunSeconds'])}"


def _version(value: int | None) -> str:
    return "-" if value is None else str(value)


_CATALOGS = (
    OutputColumn("name", "Catalog"),
    OutputColumn("ready", "Ready", optional),
    OutputColumn("reason", "Reason", optional),
    OutputColumn("earliestVersion", "Earliest", _version),
    OutputColumn("latestVersion", "Latest", _version),
    OutputColumn("behindVersions", "Behind", _version),
    OutputColumn("pin", "Pinned by", _pin),
    OutputColumn("answers", "Answers"),
    OutputColumn("next", "Next"),
    OutputColumn("lastCutSeconds", "Last cut", age_text),
    OutputColumn("versionsCut", "Cut"),
)
_WIDE = (
    OutputColumn("bytesCut", "Bytes cut", optional_bytes),
    OutputColumn("propagationReason", "Propagation", optional),
    OutputColumn("etcd", "Etcd"),
    OutputColumn("prefix", "Prefix"),
    OutputColumn("message", "Message", optional),
)
_PARTICIPANTS = (
    OutputColumn("name", "Participant"),
    OutputColumn("reason", "Answer"),
    OutputColumn("neededSeconds", "Needs from", age_text),
    OutputColumn("cause", "Cause", optional),
    OutputColumn("transactionSeconds", "Transaction", age_text),
    OutputColumn("checkpointSeconds", "Checkpoint", age_text),
    OutputColumn("partitions", "Partitions"),
    OutputColumn("indexBuilds", "Builds"),
    OutputColumn("rebalances", "Rebalances"),
    OutputColumn("detail", "Detail", optional),
)


def catalog_row(data: Data) -> Data:
    """A row of the table over all catalogs, from `catalog_data`."""
    propagation = data["propagation"]
    reason = propagation["reason"] if propagation is not None else None
    return data | {"next": _next(data), "answers": _answers(data), "propagationReason": reason}


def catalog_columns(*, namespaces: bool, wide: bool) -> tuple[OutputColumn, ...]:
    """Columns of the table over all catalogs."""
    return ((NAMESPACE,) if namespaces else ()) + _CATALOGS + (_WIDE if wide else ())


def participant_data(status: ParticipantStatus, now: datetime) -> Data:
    """One participant, in exact values."""
    return {
        "name": status.name,
        "reason": status.reason,
        "message": status.message or None,
        "neededAt": time_text(status.minimum),
        "neededSeconds": seconds_between(status.minimum, now),
        "cause": status.cause or None,
        "subject": status.subject or None,
        "transactionSeconds": seconds_between(status.oldest_transaction, now),
        "checkpointSeconds": seconds_between(status.checkpoint, now),
        "partitions": status.partitions,
        "undefinedPartitions": status.undefined_partitions,
        "indexBuilds": status.index_builds,
        "rebalances": status.rebalances,
        "clockSkewMilliseconds": status.clock_skew_milliseconds,
    }


def show_catalog(catalog: CatalogCompaction, now: datetime, coordinator: Coordination = UNKNOWN) -> None:
    """All about one catalog as text."""
    data = catalog_data(catalog, now, coordinator)
    first, *more = _pairs(catalog, data, now)
    print_pairs([first, *outdated_pairs(catalog, "catalog", coordinator, now), *more])
    if catalog.status.participants:
        click.echo()
        rows = [participant_data(participant, now) for participant in catalog.status.participants]
        print_table([row | {"detail": row["message"] or row["subject"]} for row in rows], _PARTICIPANTS)


def _pairs(catalog: CatalogCompaction, data: Data, now: datetime) -> list[tuple[str, str]]:
    said = f": {data['message']}" if data["message"] else ""
    status = catalog.status
    pairs = [
        ("Catalog", f"{data['namespace']}/{data['name']} ({data['prefix']} in {data['etcd']})"),
        ("State", f"{data['reason'] or 'unknown'}{since_text(status, now)}{said}"),
        ("History", _history(data)),
        ("Pinned by", _pin(data["pin"])),
    ]
    if data["pin"] is not None:
        pairs.append(("Needed from", f"{data['pin']['requiredAt']}, {age_text(data['pin']['requiredSeconds'])} ago"))
    pairs += [(name.capitalize(), _ended(data[name], data["message"])) for name in ("compaction", "propagation")]
    silent = [participant.name for participant in status.participants if participant.reason != ANSWERED]
    pairs.append(("Answers", _answers(data) + (f"; without one: {', '.join(silent)}" if silent else "")))
    pairs.append(("Next", _next(data)))
    if data["dryRun"]:
        pairs.append(("Dry run", "rounds decide, and cut and propagate nothing"))
    last = f", the last {age_text(data['lastCutSeconds'])} ago" if data["lastCutSeconds"] is not None else ""
    pairs.append(
        ("Cut", f"{plural(data['versionsCut'], 'version')}, {format_bytes(data['bytesCut'])} of updates{last}")
    )
    return pairs


def _history(data: Data) -> str:
    if data["earliestVersion"] is None:
        return "unknown"
    return f"versions {data['earliestVersion']} to {data['latestVersion']}, {data['behindVersions']} behind"


def _ended(ended: dict[str, Any] | None, shown: str | None) -> str:
    """Describe how a process ended, with its message only where the state does not have it already."""
    if ended is None:
        return "-"
    message = f": {ended['message']}" if ended["message"] and ended["message"] != shown else ""
    return f"{ended['outcome']}, {ended['reason']}, {age_text(ended['finishedSeconds'])} ago{message}"
