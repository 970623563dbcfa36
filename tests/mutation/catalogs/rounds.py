"""Defects of rounds: which answers count, what is propagated and published, the order of the log, fencing tokens."""

from __future__ import annotations

from typing import Final

from mutation.defect import Defect

_ANSWERS: Final = "design/catalog-compaction.md#answers"
_DECISION: Final = "design/catalog-compaction.md#decision"
_FENCING: Final = "design/catalog-compaction.md#fencing"
_PROCESSES: Final = "design/catalog-compaction.md#processes"
_PUBLISHED: Final = "design/catalog-compaction.md#published-minimums"
_TRANSACTIONS: Final = "design/catalogs.md#transactions-of-the-log"
_FILE_ANSWERS: Final = "catalogs/compaction/deciding.py"
_DECIDING: Final = "catalogs/compaction/deciding.py"
_PUBLISHING: Final = "catalogs/participants/reference.py"
_REQUESTS: Final = "catalogs/log/layout.py"
_LOG: Final = "catalogs/log/etcd_log.py"
_RUNNER: Final = "catalogs/compaction/test_runner.py"
_TEST_ANSWERS: Final = ("catalogs/compaction/test_decision.py",)
_UNANSWERED: Final = (f"{_RUNNER}::test_a_participant_without_an_answer_ends_both_processes",)
_NOT_READY: Final = (
    "catalogs/compaction/test_decision.py::test_each_thing_that_is_not_known_yet_stops_the_cut_by_itself",
    f"{_RUNNER}::test_a_participant_that_is_not_ready_stops_the_cut_and_not_the_propagation",
)
_TEST_MINIMUMS: Final = ("catalogs/participants/test_minimums.py",)
_TEST_ROUNDS: Final = ("catalogs/compaction/test_rounds.py",)
_CLAIMS: Final = ("catalogs/log/test_update_log.py::test_no_token_is_taken_twice",)
_STALE: Final = ("catalogs/log/test_update_log.py::test_a_stale_token_cuts_nothing",)

ROUND_DEFECTS: Final = (
    Defect(
        name="catalog answers: a participant that did not answer is overlooked",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if failed:\n        first = failed[0]",
        new="    if failed and not round.answers:\n        first = failed[0]",
        killers=_UNANSWERED,
    ),
    Defect(
        name="catalog answers: a participant that was asked and of which nothing is known is overlooked",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="        if name not in answered:\n",
        new="        if name not in answered and not answered:\n",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: a late answer is reported as none",
        promise="design/catalog-compaction.md#failures",
        file="catalogs/serving/client.py",
        old="    ParticipantFailure.LATE: Reason.ANSWER_LATE,\n",
        new="    ParticipantFailure.LATE: Reason.NO_ANSWER,\n",
        killers=("catalogs/serving/test_participant_client.py",),
    ),
    Defect(
        name="catalog answers: an answer that is refused is reported as none",
        promise="design/catalog-compaction.md#failures",
        file="catalogs/serving/client.py",
        old="_REASONS.get(error.reason, Reason.ANSWER_REFUSED)",
        new="_REASONS.get(error.reason, Reason.NO_ANSWER)",
        killers=("catalogs/serving/test_participant_client.py",),
    ),
    Defect(
        name="catalog answers: of two participants with one name one counts",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if len(answered) < len(round.answers):\n        return _same_name(round)\n",
        new="",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: a clock that is behind counts",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if early <= clock <= late:\n",
        new="    if clock <= late:\n",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: a clock that is ahead counts",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if early <= clock <= late:\n",
        new="    if early <= clock:\n",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: too few participants",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if len(topology.asked) < topology.least:\n",
        new="    if len(topology.asked) < min(topology.least, 1):\n",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: an expected participant that was not found",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    for name in sorted(topology.expected - topology.asked):\n",
        new="    for name in sorted(topology.expected & topology.asked & frozenset()):\n",
        killers=_TEST_ANSWERS,
    ),
    Defect(
        name="catalog answers: a participant without a watermark",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if report.low_watermark == UNDEFINED:\n",
        new="    if report.low_watermark == UNDEFINED and not report.partitions:\n",
        killers=_NOT_READY,
    ),
    Defect(
        name="catalog answers: a partition that has published nothing",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if undefined:\n",
        new="    if undefined and len(undefined) == len(report.partitions):\n",
        killers=_NOT_READY,
    ),
    Defect(
        name="catalog answers: a participant that says it is not ready",
        promise=_ANSWERS,
        file=_FILE_ANSWERS,
        old="    if report.cause is Cause.NOT_READY:\n",
        new="    if report.cause is Cause.NOT_READY and report.subject:\n",
        killers=_NOT_READY,
    ),
    Defect(
        name="catalog order: a minimum is propagated although an answer is missing",
        promise=_DECISION,
        file=_DECIDING,
        old="    if found is not None:\n        return found\n    if round.topology.alone:\n",
        new="    if round.topology.alone:\n",
        killers=_UNANSWERED,
    ),
    Defect(
        name="catalog order: no minimum is propagated while a participant is not ready",
        promise=_DECISION,
        file=_DECIDING,
        old="    found = unanswered(round)\n    if found is not None:\n        return found\n    if round",
        new="    found = unusable(round)\n    if found is not None:\n        return found\n    if round",
        killers=_NOT_READY,
    ),
    Defect(
        name="catalog order: a catalog without participants has a minimum",
        promise=_ANSWERS,
        file=_DECIDING,
        old="    if not round.answers:\n",
        new="    if not round.answers and round.topology.least:\n",
        killers=(*_TEST_ANSWERS, _RUNNER),
    ),
    Defect(
        name="catalog order: the minimum is past what a participant that joins may begin",
        promise=_DECISION,
        file="catalogs/compaction/round.py",
        old="    return min(round.horizon, *(",
        new="    return min(*(round.answers and [2**62]), *(",
        killers=(f"{_RUNNER}::test_the_minimum_to_propagate_is_the_smallest_and_never_past_what_may_begin",),
    ),
    Defect(
        name="catalog order: a minimum is published before a checkpoint holds it",
        promise=_PUBLISHED,
        file=_PUBLISHING,
        old="            found.stored = max(found.stored, timestamp)\n            return True\n",
        new="            found.published = max(found.published, timestamp)\n            return True\n",
        killers=_TEST_MINIMUMS,
    ),
    Defect(
        name="catalog order: a checkpoint that failed publishes",
        promise=_PUBLISHED,
        file=_PUBLISHING,
        old="                if succeeded:\n",
        new="                if succeeded or found.published:\n",
        killers=_TEST_MINIMUMS,
    ),
    Defect(
        name="catalog order: a checkpoint publishes what was stored after it began",
        promise=_PUBLISHED,
        file=_PUBLISHING,
        old="                    found.published = max(found.published, timestamp)\n",
        new="                    found.published = max(found.published, timestamp, found.stored)\n",
        killers=_TEST_MINIMUMS,
    ),
    Defect(
        name="catalog order: a published minimum goes back",
        promise=_PUBLISHED,
        file=_PUBLISHING,
        old="                    found.published = max(found.published, timestamp)\n",
        new="                    found.published = timestamp\n",
        killers=_TEST_MINIMUMS,
    ),
    Defect(
        name="catalog order: versions are deleted before their snapshot is saved",
        promise=_TRANSACTIONS,
        file=_LOG,
        old="        answer = self._send(snapshot.version, layout.snapshot_transaction(",
        new=(
            "        swept = layout.sweep_transaction(self._keys, 0, snapshot.version)\n"
            "        self._client.transaction(type(swept)((), swept.success))\n"
            "        answer = self._send(snapshot.version, layout.snapshot_transaction("
        ),
        killers=_STALE,
    ),
    Defect(
        name="catalog order: a sweep deletes what no snapshot has replaced",
        promise=_TRANSACTIONS,
        file=_LOG,
        old="            page = self._client.range(layout.oldest_garbage(self._keys, found.snapshot))\n",
        new="            page = self._client.range(layout.oldest_garbage(self._keys, found.snapshot + 1))\n",
        killers=("catalogs/log/test_update_log.py::test_a_snapshot_of_the_last_version",),
    ),
    Defect(
        name="catalog order: an earlier snapshot replaces a later one",
        promise=_TRANSACTIONS,
        file=_REQUESTS,
        old="            Compare(keys.snapshot, Relation.LESS, number(version)),\n",
        new="",
        killers=("catalogs/log/test_update_log.py::test_a_smaller_snapshot_after_a_larger_one_is_refused",),
    ),
    Defect(
        name="catalog tokens: the snapshot does not compare the token",
        promise=_FENCING,
        file=_REQUESTS,
        old="            Compare(keys.token, Relation.LESS, number(token + 1)),\n            Compare(keys.version",
        new="            Compare(keys.version",
        killers=_STALE,
    ),
    Defect(
        name="catalog tokens: the snapshot leaves its token out",
        promise=_FENCING,
        file=_REQUESTS,
        old="            Put(keys.token, number(token)),\n            Put(keys.update(version), value),\n",
        new="            Put(keys.update(version), value),\n",
        killers=("catalogs/log/test_update_log.py::test_a_snapshot_raises_the_token",),
    ),
    Defect(
        name="catalog tokens: two claims have one token",
        promise=_FENCING,
        file=_LOG,
        old="            token = max(least, largest + 1)\n",
        new="            token = max(least, largest)\n",
        killers=_CLAIMS,
    ),
    Defect(
        name="catalog tokens: a claim lowers the token",
        promise=_FENCING,
        file=_LOG,
        old="            token = max(least, largest + 1)\n",
        new="            token = least\n",
        killers=_CLAIMS,
    ),
    Defect(
        name="catalog tokens: a claim does not compare the largest token",
        promise=_FENCING,
        file=_REQUESTS,
        old="        (Compare(keys.token, Relation.EQUAL, number(largest)),),\n",
        new="        (),\n",
        killers=("catalogs/log/test_lost_answers.py::test_a_claim_is_its_own",),
    ),
    Defect(
        name="catalog tokens: a round cuts although its claim was refused",
        promise=_FENCING,
        file=_DECIDING,
        old="    return Compaction(round.unclaimed or cut, pin)\n",
        new="    return Compaction(cut, pin)\n",
        killers=(*_TEST_ROUNDS, "catalogs/operator/test_working.py"),
    ),
    Defect(
        name="catalog tokens: a round does not claim the log before it asks",
        promise=_FENCING,
        file="catalogs/operator/working.py",
        old="        if not spec.dry_run:\n            try:\n",
        new="        if spec.dry_run:\n            try:\n",
        killers=("catalogs/operator/test_working.py::test_a_round_claims_the_log_before_it_asks",),
    ),
    Defect(
        name="catalog tokens: a snapshot is saved with the token of the round before",
        promise=_FENCING,
        file="catalogs/compaction/round_status.py",
        old='        changes["fencing_token"] = found.token\n',
        new='        changes["fencing_token"] = max(1, found.token - 1)\n',
        killers=_TEST_ROUNDS,
    ),
    Defect(
        name="catalog tokens: the token counts from the Lease alone",
        promise=_FENCING,
        file="catalogs/compaction/reconcile.py",
        old="    return max(transitions, written) + 1\n",
        new="    return transitions + 1\n",
        killers=("catalogs/compaction/test_decision.py::test_a_later_term_has_a_larger_token",),
    ),
    Defect(
        name="catalog tokens: a new term has the token of the last one",
        promise=_FENCING,
        file="catalogs/compaction/reconcile.py",
        old="    return max(transitions, written) + 1\n",
        new="    return max(transitions + 1, written)\n",
        killers=("catalogs/compaction/test_decision.py::test_a_later_term_has_a_larger_token",),
    ),
    Defect(
        name="catalog tokens: a replica that lost its Lease writes",
        promise=_FENCING,
        file="catalogs/operator/working.py",
        old="                    return Broken(RoundWork.SAVE, Reason.FENCED, _NOT_LEADING)\n",
        new="                    pass\n",
        killers=("catalogs/operator/test_working.py::test_a_replica_that_does_not_lead_writes_nothing",),
    ),
    Defect(
        name="catalog rounds: the end of one process ends the other",
        promise=_PROCESSES,
        file="api/catalog/reasons.py",
        old="        running = self.running - {process}\n",
        new="        running = frozenset[Process]()\n",
        killers=("catalogs/compaction/test_decision.py",),
    ),
    Defect(
        name="catalog rounds: a trigger during a round is forgotten",
        promise=_PROCESSES,
        file="api/catalog/reasons.py",
        old="        return ended if self.remembered is None else ended.triggered(self.remembered)\n",
        new="        return ended\n",
        killers=("catalogs/compaction/test_decision.py",),
    ),
    Defect(
        name="catalog rounds: what was remembered while participants are not found asks nothing",
        promise=_PROCESSES,
        file="catalogs/compaction/reconcile.py",
        old="            if memory.processes.stage is Stage.ASKING:  # a remembered",
        new="            if memory.processes.stage is Stage.ASKING and memory.round is not None:  # a remembered",
        killers=_TEST_ROUNDS,
    ),
    Defect(
        name="catalog rounds: a log that does not answer ends the propagation",
        promise=_DECISION,
        file="catalogs/compaction/steps.py",
        old="    process = Process.PROPAGATION if broken.work is RoundWork.SEND else Process.COMPACTION\n",
        new="    process = Process.COMPACTION if broken.work is RoundWork.SEND else Process.PROPAGATION\n",
        killers=_TEST_ROUNDS,
    ),
    Defect(
        name="catalog rounds: results of a forgotten round count",
        promise=_PROCESSES,
        file="catalogs/compaction/steps.py",
        old="        case Heard() if memory.processes.stage is Stage.ASKING:\n",
        new="        case Heard() if memory.processes.stage is not Stage.ACTING:\n",
        killers=_TEST_ROUNDS,
    ),
    Defect(
        name="catalog rounds: the watermark of the coordinator goes back with the clock",
        promise="design/catalog-compaction.md#the-watermark-of-the-coordinator",
        file="catalogs/compaction/round.py",
        old="    return max(watermark, candidate)\n",
        new="    return candidate\n",
        killers=("catalogs/compaction/test_decision.py",),
    ),
    Defect(
        name="catalog rounds: a suspended catalog begins a round",
        promise=_PROCESSES,
        file="catalogs/compaction/reconcile.py",
        old="    if catalog.spec.suspend:\n        # What",
        new="    if catalog.spec.suspend and not memory.watermark:\n        # What",
        killers=_TEST_ROUNDS,
    ),
)
