"""All words by reason: those of the core, and those that the kinds of stores add."""

from __future__ import annotations

from collections.abc import Mapping

from compaction.core.explain.job_words import JOB_WORDS
from compaction.core.explain.left_out_words import TARGET_WORDS
from compaction.core.explain.policy_words import POLICY_WORDS, WAIT_WORDS
from compaction.core.meaning import Meaning
from compaction.registry import all_kinds


def job_words() -> Mapping[str, Meaning]:
    """Reasons of jobs and their attempts."""
    return {**JOB_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.jobs.items()}}


def policy_words() -> Mapping[str, Meaning]:
    """Reasons of the condition Ready of policies."""
    added = {reason: word.meaning for kind in all_kinds() for reason, word in kind.words.policies.items()}
    return {**POLICY_WORDS, **added}


def wait_words() -> Mapping[str, Meaning]:
    """What jobs and plans wait for."""
    return {**WAIT_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.waits.items()}}


def target_words() -> Mapping[str, Meaning]:
    """Why a plan leaves out whole targets."""
    return {**TARGET_WORDS, **{reason: word for kind in all_kinds() for reason, word in kind.words.left_out.items()}}


def left_out_words() -> Mapping[str, Meaning]:
    """Why a plan leaves out targets, or parts of them."""
    parts = {reason: word for kind in all_kinds() for reason, word in kind.words.left_alone.items()}
    return {**parts, **target_words()}
