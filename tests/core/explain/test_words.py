"""Every reason there is has words of its own, says what follows, and is found where a person asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from compaction.api.enums import JobReason, PolicyReason, WaitReason
from compaction.blocks.kind import BLOCKS
from compaction.blocks.planning.batches import BlockReason
from compaction.blocks.reasons import BlockJobReason
from compaction.cli.main import COMMANDS
from compaction.core.explain.why_job import explain_job
from compaction.core.explain.why_policy import explain_policy
from compaction.core.explain.words import (
    JOB_WORDS,
    POLICY_WORDS,
    TARGET_WORDS,
    WAIT_WORDS,
    job_words,
    left_out_words,
    policy_words,
    wait_words,
)
from compaction.core.meaning import Meaning, Names, meaning_of
from compaction.core.planning.candidates import LeftOutReason
from compaction.segments.kind import SEGMENTS
from compaction.segments.planning.plan import LeftAloneReason
from compaction.segments.reasons import SegmentReason
from support.cluster.explained import NOW, ago, attempt, condition, job_with, policy_with

TABLES: tuple[tuple[type[StrEnum], Mapping[str, Meaning]], ...] = (
    (PolicyReason, POLICY_WORDS),
    (WaitReason, WAIT_WORDS),
    (JobReason, JOB_WORDS),
    (LeftOutReason, TARGET_WORDS),
    (LeftAloneReason, SEGMENTS.words.left_alone),
    (BlockReason, BLOCKS.words.left_alone),
    (BlockJobReason, BLOCKS.words.jobs),
)
OF_SEGMENTS: Mapping[str, Meaning] = {
    **SEGMENTS.words.jobs,
    **{reason: word.meaning for reason, word in SEGMENTS.words.policies.items()},
    **SEGMENTS.words.waits,
    **SEGMENTS.words.left_out,
}
JOBS, POLICIES, WAITS = sorted(job_words()), sorted(policy_words()), sorted(wait_words())
ALL_WORDS = [
    *(meaning for _, words in TABLES for meaning in words.values()),
    *SEGMENTS.words.jobs.values(),
    *(word.meaning for word in SEGMENTS.words.policies.values()),
    *SEGMENTS.words.waits.values(),
    *SEGMENTS.words.left_out.values(),
]
NAMES = Names("storage", "logs", "logs-1")


@pytest.mark.parametrize(("reasons", "words"), TABLES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_reason_has_words_and_no_word_is_left_over(reasons: type[StrEnum], words: Mapping[str, Meaning]) -> None:
    assert set(words) == {reason.value for reason in reasons}


def test_every_reason_of_segment_logs_has_words() -> None:
    assert set(OF_SEGMENTS) == set(SegmentReason) - {SegmentReason.LIVE_ENTRIES_MISSING}, "the alarm of a measure"


def test_no_two_reasons_are_said_alike() -> None:
    said = [meaning.says for meaning in ALL_WORDS]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize("meaning", ALL_WORDS, ids=lambda meaning: meaning.says[:40])
def test_words_are_sentences_whose_names_can_be_filled_in(meaning: Meaning) -> None:
    assert meaning.says.endswith(".")
    assert meaning.next.endswith(".")
    for text in (meaning.says, meaning.next, meaning.do):
        filled = NAMES.fill(text)
        assert "{policy}" not in filled
        commands = filled.split("kubectl compaction ")[1:]
        assert {command.split()[0] for command in commands} <= set(COMMANDS)


@pytest.mark.parametrize("reason", POLICIES)
def test_a_policy_in_each_condition(reason: str) -> None:
    ready = condition("Ready", reason, status="False", message="the particulars")
    told = explain_policy(policy_with({"conditions": [ready]}), (), None, NOW)
    meaning = policy_words()[reason]
    assert f"{reason}, for 2m10s: the particulars." in told.state, "in the operator's words, once"
    bare = explain_policy(policy_with({"conditions": [condition("Ready", reason)]}), (), None, NOW)
    assert f"{reason}, for 2m10s: {meaning.says}" in bare.state
    assert NAMES.fill(meaning.next) in told.next
    assert bool(meaning.do) == (NAMES.fill(meaning.do) in told.actions)


@pytest.mark.parametrize("reason", WAITS)
def test_jobs_that_wait_for_each_thing(reason: str) -> None:
    waiting = {"reason": reason, "since": ago(125), "message": "the particulars"}
    counted = {**waiting, "count": 3, "example": "logs-2"}
    policy = policy_with({"queued": 3, "waiting": waiting, "waits": [counted]})
    told = explain_policy(policy, (), None, NOW)
    meaning = wait_words()[reason]
    (said,) = [sentence for sentence in told.state if str(reason) in sentence]
    what = "3 plans" if reason in (WaitReason.APPROVAL_PENDING, WaitReason.AWAITING_SCHEDULE) else "3 jobs"
    assert said == f"{what} waiting for {reason}, 2m5s by now, such as logs-2: the particulars."
    names = Names("storage", "logs")
    assert names.fill(meaning.next) in told.next
    alone = explain_policy(policy_with({"queued": 3, "waiting": waiting}), (), None, NOW)
    assert f"Waiting for {reason}, 2m5s by now: the particulars." in alone.state
    own = explain_job(job_with({"waiting": waiting}), policy_with(), None, NOW)
    assert f"It has waited 2m5s for {reason}: the particulars." in own.state
    assert NAMES.fill(meaning.next) in own.next
    shared = explain_job(job_with(), policy, None, NOW)
    assert any(f"most jobs of its policy wait for {reason}: the particulars." in sentence for sentence in shared.state)


@pytest.mark.parametrize("reason", JOBS)
def test_a_job_that_is_parked_or_tried_again_for_each_reason(reason: str) -> None:
    meaning = job_words()[reason]
    failed = condition("Failed", reason, message="the particulars")
    parked = explain_job(
        job_with({"state": "Faulty", "finishedAt": ago(90), "conditions": [failed]}), policy_with(), None, NOW
    )
    assert f"It has been parked for 1m30s, {reason}: {meaning.says} (the particulars)" in parked.state
    again = explain_job(
        job_with({"state": "Abandoned", "attempts": [attempt(reason, message="no space")]}), policy_with(), None, NOW
    )
    said = f"Attempt 1 on logs-w-1 failed 30s ago (charged), {reason}: {meaning.says} (no space)"
    assert said in again.state
    for told in (parked, again):
        assert NAMES.fill(meaning.next) in told.next
        assert bool(meaning.do) == (NAMES.fill(meaning.do) in told.actions)


@pytest.mark.parametrize("reason", [*LeftOutReason, *LeftAloneReason, *BlockReason, SegmentReason.OWNER_RUNNING])
def test_what_a_plan_leaves_out_for_each_reason(reason: StrEnum) -> None:
    left_out = {"reason": reason, "count": 2, "example": "/data/ra/a"}
    told = explain_policy(policy_with({"plan": {"leftOut": [left_out]}}), (), None, NOW)
    meaning = left_out_words()[reason]
    assert f"2 left out as {reason}, such as /data/ra/a: {meaning.says} {meaning.next}" in told.debt


def test_a_reason_of_a_newer_operator_is_no_error() -> None:
    told = explain_policy(policy_with({"conditions": [condition("Ready", "Napping")]}), (), None, NOW)
    assert any("Napping is not known to this version" in sentence for sentence in told.state)
    assert meaning_of(POLICY_WORDS, "Napping").next
