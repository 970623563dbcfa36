"""What is said of block stores: blocks, batches, tenants and readers instead of segments and logs."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.api.catalog.catalog import PASSING, CatalogReason
from compaction.api.catalog.reasons import Process, Reason, Trigger
from compaction.api.job.job import CompactionJob, JobReceipt
from compaction.api.names import COORDINATOR_LEASE
from compaction.api.policy.policy import CompactionPolicy
from compaction.blocks.kind import BLOCKS
from compaction.catalogs.explaining import CATALOG_WORDS, CAUSE_WORDS, explain_catalog
from compaction.catalogs.participants.reports import Cause
from compaction.cli.cluster.status_view import job_data, policy_data, show_policy
from compaction.cli.main import COMMANDS
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from compaction.core.meaning import Meaning, Names
from support.cluster.explained import NOW, ago, catalog_status, catalog_with, condition, lease_with
from support.cluster.manifests import (
    BLOCK_1,
    BLOCK_2,
    block_job_object,
    block_policy_object,
    staging_job_object,
    staging_policy_object,
)

STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "store": "BlockStore",
    "debt": {
        "bytes": 3 << 20,
        "sources": 42,
        "targets": 2,
        "measures": [
            {"name": "liveBlocks", "value": 50},
            {"name": "windows", "value": 4},
            {"name": "readAmplification", "value": 12.5},
            {"name": "readAmplificationAfter", "value": 2.5},
        ],
        "levels": [{"level": 0, "bytes": 3 << 20, "sources": 42}],
        "tenants": [{"tenant": "acme", "bytes": 3 << 20, "sources": 40}, {"tenant": "b", "bytes": 1, "sources": 2}],
    },
    "oldestDebtAt": ago(90),
    "lastSenseTime": ago(5),
}
BEFORE, AFTER, DROPPED = f"3:{5:016x}", f"2:{3:016x}", f"1:{2:016x}"


def policy_with(**status: Any) -> CompactionPolicy:
    document = block_policy_object()
    document["metadata"] |= {"namespace": "storage", "generation": 1}
    return CompactionPolicy.from_object(document | {"status": STATUS | status})


def job_with(status: dict[str, Any] | None = None, **spec: Any) -> CompactionJob:
    document = block_job_object(**{"estimatedBytes": 3 << 20, "level": 1} | spec)
    document["metadata"] |= {"namespace": "storage", "generation": 1, "creationTimestamp": ago(600)}
    return CompactionJob.from_object(document | {"status": {"observedGeneration": 1} | (status or {})})


def test_the_debt_of_a_policy() -> None:
    told = explain_policy(policy_with(), (), None, NOW)
    assert told.debt[:4] == (
        "3Mi of 42 blocks in 2 batches could be merged; the oldest debt is 1m30s old.",
        "A query about one tenant, shard and window of time opens 12.5 blocks on average; 2.5 when that is done.",
        "Of tenant acme: 40 blocks wait to be merged.",
        "Of tenant b: 2 blocks wait to be merged.",
    )
    message = "2 schemas of `acme` cannot be merged: column v int8 | string"
    conflicts = [{"tenant": "acme", "classes": 2, "sources": 7, "message": message}]
    kept_apart = policy_with(conflicts=conflicts)
    assert f"{message} (7 blocks)." in explain_policy(kept_apart, (), None, NOW).debt
    nothing = explain_policy(policy_with(debt={"bytes": 0}), (), None, NOW)
    assert nothing.debt[0].startswith("None: ")


def test_what_a_job_does() -> None:
    parameters = {"blocks": {"deduplicateBy": ["service", "time"]}}
    told = explain_job(job_with(parameters=parameters), policy_with(), None, NOW)
    assert told.debt == (
        "The job merges 2 blocks, 3Mi, of tenant t, shard 0, into one of level 2; of rows with the same service, time "
        "only the last is kept.",
    )


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        ({"fingerprintAfter": BEFORE}, "3 rows. The live content read back is equal to that of the sources."),
        (
            {"fingerprintAfter": AFTER, "fingerprintDuplicates": DROPPED, "duplicates": 1},
            "3 rows, 1 duplicate left out. The live content read back is equal to that of the sources.",
        ),
        ({"fingerprintAfter": AFTER}, "3 rows. THE FINGERPRINTS DIFFER."),
        (
            {"fingerprintAfter": AFTER, "fingerprintDuplicates": AFTER, "duplicates": 1},
            "3 rows, 1 duplicate left out. THE FINGERPRINTS DIFFER.",
        ),
        ({"fingerprintAfter": "2:x", "fingerprintDuplicates": DROPPED}, "3 rows. THE FINGERPRINTS DIFFER."),
    ],
)
def test_what_a_receipt_proves(receipt: dict[str, Any], said: str) -> None:
    proof = {
        "token": 1,
        "worker": "w-1",
        "sources": [BLOCK_1, BLOCK_2],
        "outputs": [BLOCK_1],
        "records": 3,
        "bytesBefore": 2048,
        "bytesAfter": 1024,
        "fingerprintBefore": BEFORE,
    } | receipt
    told = explain_job(job_with({"state": "Succeeded", "finishedAt": ago(9), "receipt": proof}), None, None, NOW)
    assert f"2 blocks became 1, 2Ki became 1Ki, {said}" in told.state
    assert BLOCKS.proves_equal(JobReceipt.from_object(proof)) is ("DIFFER" not in said)


def test_the_status_of_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    ready = condition("Ready", "SourcesQuarantined", message="1 damaged blocks are set aside")
    aside = {"target": f"acme/0/L0/{BLOCK_1}", "source": BLOCK_1, "reason": "SourceCorrupt", "since": ago(60)}
    policy = policy_with(conditions=[ready], quarantined=[aside])
    show_policy(policy, (job_with(),), NOW)
    said = capsys.readouterr().out
    assert "3Mi in 42 blocks of 2 batches, the oldest for 1m30s" in said
    assert "50 live; a query opens 12.5 on average, 2.5 when the debt is worked off" in said
    assert "L0: 42 blocks" in said
    assert "acme: 40 blocks, b: 2 blocks" in said
    assert "1 block: kubectl compaction quarantine blocks -n storage" in said
    assert f"t/0/L0/{BLOCK_1}" in said


def test_the_same_as_data() -> None:
    data = policy_data(policy_with(), NOW)
    assert (data["debtSources"], data["debtTargets"], data["measures"]["readAmplification"]) == (42, 2, 12.5)
    assert [item["tenant"] for item in data["debtTenants"]] == ["acme", "b"]
    row = job_data(job_with(), NOW)
    assert (row["target"], row["level"]) == (f"t/0/L0/{BLOCK_1}", 1)


# What is said of staging areas: the branches that are behind, and what reads cost before and after a job.


def target(name: str, **measures: float) -> dict[str, Any]:
    return {"target": f"lake/{name}", "measures": [{"name": item, "value": value} for item, value in measures.items()]}


MAIN = target(
    "main", tombstones=999_999, sealedTokens=12, stagedWrites=1_200_000, tombstonesAfter=0, sealedTokensAfter=0
)
LIVE = target("etl", tombstones=4, sealedTokens=1, stagedWrites=1, tombstonesAfter=4, sealedTokensAfter=1)
MEASURES = [
    {"name": "tombstones", "before": 999_999},
    {"name": "sealedTokens", "before": 12},
    {"name": "ranges", "before": 3, "after": 2},
]
CHANGED = "tombstones 999,999 and 0, sealed tokens 12 and 0, ranges 3 and 2."


def staging_policy(**debt: Any) -> CompactionPolicy:
    document = staging_policy_object()
    document["metadata"] |= {"namespace": "storage", "generation": 1}
    status = {"observedGeneration": 1, "store": "StagingArea", "debt": debt, "lastSenseTime": ago(5)}
    return CompactionPolicy.from_object(document | {"status": status})


def done(name: str, finished: float, measures: list[dict[str, Any]]) -> CompactionJob:
    document = staging_job_object()
    document["metadata"] |= {"name": name, "namespace": "storage", "generation": 1, "creationTimestamp": ago(600)}
    receipt = {"token": 1, "worker": "w", "measures": measures}
    status = {"observedGeneration": 1, "state": "Succeeded", "finishedAt": ago(finished), "receipt": receipt}
    return CompactionJob.from_object(document | {"status": status})


def test_the_branches_that_are_behind_are_named() -> None:
    told = explain_policy(staging_policy(bytes=9, sources=13, targets=2, behind=[MAIN, LIVE]), [], None, NOW).debt
    assert (
        "Listing `main/` steps over 999,999 tombstones; 0 after compaction. It asks 12 sealed tokens; 0 after "
        "compaction. 1,200,000 writes are staged."
    ) in told
    assert (
        "Listing `etl/` steps over 4 tombstones; at most 4 after compaction. It asks 1 sealed token; 1 after "
        "compaction. 1 write is staged."
    ) in told


def test_branches_that_no_plan_takes_are_named_too() -> None:
    told = explain_policy(staging_policy(behind=[LIVE]), [], None, NOW).debt
    assert told[0].startswith("None to plan now")
    assert told[1].startswith("Listing `etl/`")
    (nothing,) = explain_policy(staging_policy(), [], None, NOW).debt
    assert nothing.startswith("None: the last scan, 5s ago")


def test_a_job_says_what_reads_cost_before_and_after() -> None:
    job = done("new", 10, MEASURES)
    assert f"Before and after it: {CHANGED}" in explain_job(job, None, None, NOW).state
    jobs = [done("old", 300, [{"name": "tombstones", "before": 1}]), job, done("bare", 1, [])]
    told = explain_policy(staging_policy(behind=[MAIN]), jobs, None, NOW).state
    assert [item for item in told if item.startswith("Before and after")] == [
        f"Before and after job new of {job.spec.target}: {CHANGED}"
    ]


# What `why` says about catalogs: every reason, every participant, and what happens next.

NAMES = Names("storage", catalog="orders")
SETS = (Reason, CatalogReason)
REASONS = [reason for kind in SETS for reason in kind]


def test_every_reason_has_words_and_no_word_is_left_over() -> None:
    assert set(CATALOG_WORDS) == {reason.value for reason in REASONS}
    assert set(CAUSE_WORDS) == set(Cause)


def test_no_two_reasons_are_said_alike() -> None:
    said = [meaning.says for meaning in CATALOG_WORDS.values()]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("meaning", CATALOG_WORDS.values(), ids=list(CATALOG_WORDS))
def test_words_are_sentences_whose_names_can_be_filled_in(meaning: Meaning) -> None:
    assert meaning.says.endswith(".")
    assert meaning.next.endswith(".")
    for text in (meaning.says, meaning.next, meaning.do):
        filled = NAMES.fill(text)
        assert not {"{catalog}", "POLICY", "JOB"} & set(filled.split())
        for program in ("kubectl compaction ", "compactor "):
            assert {command.split()[0] for command in filled.split(program)[1:]} <= set(COMMANDS)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in PASSING])
def test_what_does_not_end_by_itself_has_something_to_do(reason: Reason) -> None:
    """But for what only the API server can end."""
    succeeds = {Reason.PARTICIPANTS_UNKNOWN}
    assert bool(CATALOG_WORDS[reason].do) != (reason in succeeds)


@pytest.mark.parametrize("reason", REASONS)
def test_a_catalog_in_each_condition(reason: str) -> None:
    meaning = CATALOG_WORDS[reason]
    found = explain_catalog(catalog_with({"conditions": [condition("Ready", reason, message="why")]}), None, NOW)
    assert found.subject == f"CatalogCompaction storage/orders: {reason}"
    assert f"{reason}, for 2m10s: why." in found.state, "in the operator's words, once"
    assert NAMES.fill(meaning.next) in found.next
    assert bool(meaning.do) == (NAMES.fill(meaning.do) in found.actions)
    bare = explain_catalog(catalog_with({"conditions": [condition("Ready", reason)]}), None, NOW)
    assert f"{reason}, for 2m10s: {meaning.says}" in bare.state


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("process", Process)
def test_each_process_that_ended_for_each_reason(process: Process, reason: Reason) -> None:
    ended = {"outcome": "Failed", "reason": reason, "since": ago(3600), "finishedAt": ago(20), "message": "why"}
    found = explain_catalog(catalog_with({process.value.lower(): ended}), None, NOW)
    assert f"{process}: Failed, {reason}, for 1h, 20s ago: why." in found.state
    assert NAMES.fill(CATALOG_WORDS[reason].next) in found.next
    other = next(item for item in Process if item is not process)
    assert f"{other}: it has not ended yet." in found.state
    bare = explain_catalog(catalog_with({process.value.lower(): {**ended, "message": ""}}), None, NOW)
    assert f"{process}: Failed, {reason}, for 1h, 20s ago: {CATALOG_WORDS[reason].says}" in bare.state


def test_who_pins_what_since_when_and_how_long_the_history_is() -> None:
    found = explain_catalog(catalog_with(catalog_status()), None, NOW)
    assert found.debt == (
        "Versions 3 to 9 are kept: 5 versions beyond the two that always stay.",
        f"The catalog is needed from {ago(7200)} on, 2h ago: Transaction, transaction 77 of participant orders-1, "
        f"since {ago(3700)} (1h1m).",
        "12 versions, 5Ki of updates, were cut since the object was created; the last cut was 2h30m ago.",
    )


def test_both_processes_and_every_participant_are_named() -> None:
    found = explain_catalog(catalog_with(catalog_status()), None, NOW)
    assert found.state == (
        "Transaction, for 2m10s: the particulars.",
        "Compaction: Skipped, Transaction, for 1h, 20s ago.",
        "Propagation: Succeeded, Propagated, for 19s, 19s ago: every participant has the minimum.",
        "The last round was begun 21s ago by Interval: 2 of 2 participants answered.",
        "It was run by operator-0 with fencing token 4.",
        f"The low watermark of the coordinator is {ago(600)}.",
        f"The minimum that was propagated last is {ago(7200)}.",
        f"Participant orders-0 needs the catalog from {ago(600)} on, for its low watermark; 8 partitions (1 without a "
        "published minimum), last checkpoint 30s ago, 1 index build, 2 rebalances, clock 250 ms behind.",
        f"Participant orders-1 needs the catalog from {ago(7200)} on, for a replay of partition 3 of table 9; oldest "
        "transaction 1h1m old, 8 partitions.",
    )


def test_every_participant_is_there_however_many_there_are() -> None:
    rows = [{"name": f"orders-{n:02}", "reason": "NoAnswer", "message": "connection refused"} for n in range(60)]
    found = explain_catalog(catalog_with({"participants": rows}), None, NOW)
    for row in rows:
        assert f"Participant {row['name']}: NoAnswer. connection refused" in found.state


def test_a_participant_that_has_not_said_what_it_needs() -> None:
    row = {
        "name": "orders-0",
        "reason": "Answered",
        "cause": "NotReady",
        "subject": "the low watermark",
        "partitions": 1,
    }
    found = explain_catalog(catalog_with({"participants": [row]}), None, NOW)
    assert (
        "Participant orders-0 has not said from when on it needs the catalog, because it is not ready (the low "
        "watermark); 1 partition." in found.state
    )


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ({"reason": "LowWatermark"}, "10m ago: the low watermark of the coordinator."),
        ({"reason": "LowWatermark", "participant": "a"}, "10m ago: the low watermark of participant a."),
        ({"reason": "Rebalance", "participant": "a", "subject": "zone 3"}, "Rebalance, zone 3 of participant a."),
    ],
)
def test_other_pins(pin: dict[str, str], said: str) -> None:
    found = explain_catalog(catalog_with({"requiredTime": {"value": 1, "time": ago(600), **pin}}), None, NOW)
    assert any(sentence.endswith(said) for sentence in found.debt)


@pytest.mark.parametrize(
    ("earliest", "latest", "said"),
    [
        (None, None, "Unknown: no round has read the log yet."),
        (0, 0, "None: the log is empty."),
        (5, 6, "None: versions 5 to 6 are the shortest history there is."),
        (5, 7, "Versions 5 to 7 are kept: 1 version beyond the two that always stay."),
    ],
)
def test_the_length_of_a_history(earliest: int | None, latest: int | None, said: str) -> None:
    versions = {"earliestVersion": earliest, "latestVersion": latest} if earliest is not None else {}
    assert explain_catalog(catalog_with(versions), None, NOW).debt == (said,)


def test_a_required_time_that_is_not_known_is_said() -> None:
    status = catalog_status("NoAnswer")
    del status["requiredTime"]
    found = explain_catalog(catalog_with(status), None, NOW)
    assert (
        "From when on the catalog is needed is not known: a participant is missing, or has not said it." in found.debt
    )


def test_when_the_next_round_begins() -> None:
    found = explain_catalog(catalog_with(catalog_status()), None, NOW)
    assert found.next[-1].startswith("The next round begins in 40s, at 2026-11-21T12:00:40Z (spec.interval: 1m)")
    due = explain_catalog(catalog_with(catalog_status(nextRunTime=ago(5))), None, NOW)
    assert due.next[-1].startswith("The next round begins now")


def test_suspended_and_dry_run_are_said() -> None:
    suspended = explain_catalog(catalog_with(catalog_status("Suspended"), suspend=True), None, NOW)
    assert suspended.next[-1] == "spec.suspend is true: no round begins."
    assert not any("next round begins" in sentence for sentence in suspended.next)
    dry = explain_catalog(catalog_with(catalog_status("DryRun"), dryRun=True), None, NOW)
    assert dry.next[-1] == "spec.dryRun is true: rounds decide everything, and cut and propagate nothing."


@pytest.mark.parametrize("trigger", Trigger)
@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("Asking", "A round runs, begun 20s ago by {}: participants are asked."),
        ("Acting", "A round runs, begun 20s ago by {}: 1 of 2 participants answered."),
        ("Idle", "The last round was begun 20s ago by {}: 1 of 2 participants answered."),
    ],
)
def test_the_round(stage: str, said: str, trigger: Trigger) -> None:
    round = {"stage": stage, "trigger": trigger, "startedAt": ago(20), "participants": 2, "answered": 1}
    assert said.format(trigger) in explain_catalog(catalog_with({"round": round}), None, NOW).state


def test_without_an_operator_no_round_begins() -> None:
    silent = [lease_with(COORDINATOR_LEASE, holder="replica-a", seconds=300)]
    found = explain_catalog(catalog_with(catalog_status()), silent, NOW)
    assert found.state[0] == "No operator coordinates: replica-a last renewed its Lease 5m ago, by its own clock."
    assert found.next[0] == "No round begins until an operator leads; what was cut stays cut, and the history grows."
    assert not any("next round begins" in sentence for sentence in found.next), "nothing is promised"
    never = explain_catalog(catalog_with({"observedGeneration": -1}), None, NOW)
    assert never.state[0] == "No operator has observed it yet."
    assert never.next == ("The first round follows when an operator watches the namespace.",)


def test_a_spec_that_was_not_observed_is_said() -> None:
    found = explain_catalog(catalog_with(catalog_status(), generation=2), None, NOW)
    assert "The spec has changed since; the operator has not observed the change yet." in found.state


def test_a_reason_of_a_newer_operator_is_no_error() -> None:
    found = explain_catalog(catalog_with(catalog_status("Napping")), None, NOW)
    assert "Transaction" not in found.subject
    assert any("message beside it" in sentence for sentence in found.next)
