"""The words for how rounds of a catalog end, and for its conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compaction.api.catalog.reasons import Reason
from compaction.api.catalog.standing import CatalogReason
from compaction.catalogs.participants.report import Cause
from compaction.core.meaning import Meaning

_EDIT: Final = "kubectl edit ccat {catalog} {n}"
_AGAIN: Final = "The next round asks every participant again."
_UNKNOWN: Final = "Nothing is cut or propagated until it answers, because nothing else knows what it needs. " + _AGAIN
_READ: Final = "Nothing is cut until the log can be read; the next round reads it again."

CATALOG_WORDS: Final[Mapping[str, Meaning]] = {
    CatalogReason.STARTING: Meaning(
        "No round with the current spec has ended.",
        "The round that runs asks every participant, reads the log, and decides.",
        "If this persists, check that an operator runs: kubectl get lease -A | grep compaction-coordinator",
    ),
    CatalogReason.SUSPENDING: Meaning(
        "The catalog is being suspended: the round that ran when spec.suspend became true still runs.",
        "The catalog is Suspended when both processes of the round have ended; no other round begins.",
    ),
    CatalogReason.SUSPENDED: Meaning(
        "The catalog is suspended (spec.suspend is true).",
        "No round begins, and the history grows.",
        'Resume it: kubectl patch ccat {catalog} {n} --type=merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    CatalogReason.INVALID_SPEC: Meaning(
        "The object was stored under an older schema and is no longer valid.",
        "No round begins until it is corrected.",
        f"Correct the field that the message names: {_EDIT}",
    ),
    Reason.COMPACTED: Meaning(
        "Versions that no participant needs were cut.",
        "The next round cuts what is not needed by then.",
    ),
    Reason.PROPAGATED: Meaning(
        "Every participant has the minimum of all transactions.",
        "Partitions publish it after their next checkpoint, and later rounds may cut more.",
    ),
    Reason.NOTHING_TO_PROPAGATE: Meaning(
        "The catalog has no participants that could publish a minimum.",
        "History is cut by the low watermark alone.",
    ),
    Reason.NOTHING_TO_COMPACT: Meaning(
        "The history is as short as it can be: the last version and the one before it always stay.",
        "The next change of the catalog makes it longer; a round after that cuts it.",
    ),
    Reason.DRY_RUN: Meaning(
        "spec.dryRun is true: the round decided, and cut and propagated nothing.",
        "Each round decides again; the message says what it would do.",
        'Let it cut: kubectl patch ccat {catalog} {n} --type=merge -p \'{{"spec":{{"dryRun":false}}}}\'',
    ),
    Reason.NOT_NEWER: Meaning(
        "The log has a later snapshot than the one that was decided.",
        "Another coordinator, or a cut by hand, was faster; the next round reads what it left.",
    ),
    Reason.LOW_WATERMARK: Meaning(
        "Readers may use every version from the low watermark on.",
        "The watermark moves each spec.lowWatermark.updateInterval, and versions behind it are cut.",
    ),
    Reason.TRANSACTION: Meaning(
        "An active transaction uses an old version.",
        "The versions are cut in the first round after it has ended.",
        "If it should have ended, commit it or roll it back in the participant that is named.",
    ),
    Reason.REPLAY: Meaning(
        "A partition has published no later minimum: a restart of its participant would replay its log from there.",
        "The versions are cut in the first round after its next checkpoint.",
        "If checkpoints do not come, check the participant that is named: it reports the time of its last one.",
    ),
    Reason.REBALANCE: Meaning(
        "Partitions of a zone move, and their assignments are computed from an older version of it.",
        "The versions are cut in the first round after the partitions have moved.",
    ),
    Reason.NO_PARTICIPANTS: Meaning(
        "Fewer participants were found than spec.topology.minParticipants.",
        "Nothing is cut: a selector that finds no pod must not look like a catalog without users. " + _AGAIN,
        f"Compare the labels of the pods with spec.participants.selector, and start the participants: {_EDIT}",
    ),
    Reason.NO_ANSWER: Meaning(
        "A participant was asked and did not answer.",
        _UNKNOWN,
        "Check its process, the network between the operator and it, and its certificate.",
    ),
    Reason.ANSWER_LATE: Meaning(
        "The answer of a participant was not whole within spec.timeouts.answer.",
        _UNKNOWN,
        f"Check its load, or raise spec.timeouts.answer: {_EDIT}",
    ),
    Reason.ANSWER_REFUSED: Meaning(
        "The answer of a participant cannot be believed: it refuses the token, or its report breaks a rule.",
        _UNKNOWN,
        "Compare the Secret that spec.participants.token names with the one that the participant expects; check the "
        "implementation: compactor catalogs conformance URL",
    ),
    Reason.CLOCK_OFF: Meaning(
        "The clock of a participant differs from the coordinator's by more than spec.maxClockSkew.",
        "Its times compare with nothing, so nothing is cut or propagated. " + _AGAIN,
        "Synchronize the clocks of the participant and of the operator's node.",
    ),
    Reason.NO_WATERMARK: Meaning(
        "A participant has started and has no low watermark yet.",
        "Nothing is cut until it has one, after its first update interval.",
    ),
    Reason.UNDEFINED_PARTITION: Meaning(
        "A partition has published no minimum since its participant started.",
        "Nothing is cut until it has: after the next checkpoint of the participant.",
        "If checkpoints do not come, check the participant that is named.",
    ),
    Reason.NOT_READY: Meaning(
        "A participant says that it is not ready.",
        "Nothing is cut until it reports what it needs.",
        "If it should have started by now, read the log of the participant that is named.",
    ),
    Reason.INDEX_CONSTRUCTION: Meaning(
        "An index is built, and its construction needs the versions since it was registered.",
        "The versions are cut in the first round after the index is available or removed.",
        "If no participant builds it any more, drop the index.",
    ),
    Reason.MISSING_PARTICIPANT: Meaning(
        "A participant that spec.topology expects was not found.",
        "Nothing is cut until it is there; what others need is known, and is propagated.",
        f"Start it; if it is gone for good, take it out of spec.topology: {_EDIT}",
    ),
    Reason.MISSING_ZONE: Meaning(
        "spec.topology.assignments names a zone that no retained version of the catalog has.",
        "Nothing is cut until it does not: a zone with a wrong name would go without the check of its partitions.",
        f"Correct the name of the zone, or take the entry out of spec.topology.assignments: {_EDIT}",
    ),
    Reason.MISSING_ASSIGNMENT: Meaning(
        "A partition is assigned to no participant.",
        "Nothing is cut until spec.topology.assignments names its participants.",
        f"Name them: {_EDIT}",
    ),
    Reason.MISSING_PARTITION: Meaning(
        "A partition is not reported by the participants that must hold it.",
        "Nothing is cut until they report it, because a replay of it may need any version.",
        f"Check the participants; if the partition has moved, correct spec.topology.assignments: {_EDIT}",
    ),
    Reason.DELETED_TABLE_READABLE: Meaning(
        "A table was deleted, and readers at the low watermark still see it.",
        "The versions are cut when the watermark has passed its deletion.",
    ),
    Reason.FENCED: Meaning(
        "The log has seen a larger fencing token than that of the round.",
        "Nothing is cut while another coordinator has the log; the next round claims a larger token.",
        "Let one object and one operator compact a log; docs/runbooks/CompactionCatalogFencing.md has the cases.",
    ),
    Reason.LOG_UNAVAILABLE: Meaning(
        "No member of etcd answers, or it ends the requests.",
        _READ + " The minimum of the transactions is propagated meanwhile.",
        f"Check etcd, the network, and spec.catalog.endpoints: {_EDIT}",
    ),
    Reason.LOG_CORRUPT: Meaning(
        "The log holds what does not belong there: a value is missing, damaged, unknown, or of another log.",
        _READ,
        f"Restore the key that the message names from a backup, or correct spec.catalog.prefix: {_EDIT}",
    ),
    Reason.SNAPSHOT_REFUSED: Meaning(
        "The log does not take the snapshot: it is larger than a value may be, or cannot be written.",
        "Nothing is cut until it fits.",
        "Set --max-request-bytes of every etcd member above the size in the message, or drop tables, columns and "
        "indexes that no process needs.",
    ),
    Reason.NO_SPACE: Meaning(
        "etcd has no space left (its alarm NOSPACE): it reads and deletes, and writes nothing.",
        "Nothing is cut until it writes again; what earlier cuts left behind is deleted meanwhile.",
        "Compact the history of etcd (etcdctl compact REVISION), defragment each member (etcdctl defrag), then clear "
        "the alarm (etcdctl alarm disarm); the next round cuts.",
    ),
    Reason.NOT_DELIVERED: Meaning(
        "A participant did not take the minimum.",
        "Its partitions keep the last one that they have; the next round sends the minimum again.",
        "Check the participant that is named.",
    ),
    Reason.SECRET_MISSING: Meaning(
        "A Secret that the log or the participants need, or one of its keys, does not exist.",
        "The next round reads the Secrets again; nothing is cut until they are there.",
        "Create the Secret, add the key (kubectl create secret generic NAME {n} --from-literal=KEY=VALUE), or correct "
        f"the name: {_EDIT}",
    ),
    Reason.PERMISSION_DENIED: Meaning(
        "The operator may not read a Secret or list the participants, or etcd does not let its user use the log.",
        "The next round tries again; nothing is cut until it is allowed.",
        "Grant what the message names: Secrets with manifests/components/catalogs, pods with the role of the operator, "
        "the prefix of the log to the user of etcd.",
    ),
    Reason.PARTICIPANTS_UNKNOWN: Meaning(
        "The API server does not say where the participants are.",
        "The next round asks it again; nothing is cut until it answers.",
    ),
    Reason.INTERNAL_ERROR: Meaning(
        "The coordinator failed in an unexpected way.",
        "The next round tries again.",
        "Report the error that the operator's log has.",
    ),
}

CAUSE_WORDS: Final[Mapping[str, str]] = {
    Cause.LOW_WATERMARK: "its low watermark",
    Cause.PARTITION: "a replay",
    Cause.REBALANCE: "a rebalance",
    Cause.NOT_READY: "it is not ready",
}
"""Why a participant needs the catalog from its minimum on."""
