"""Names of directories and files are whatever somebody called them: none of them steers the reader's terminal."""

from __future__ import annotations

import pytest

from compaction.cli.cluster.why import show
from compaction.cli.output import print_pairs
from compaction.core.explain.why_policy import explain_policy
from support.cluster.explained import NOW, policy_with

HOSTILE = "/ra/\x1b]0;evil\x07\x1b[2J"


def test_a_path_in_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"hash": "4d5e", "jobs": 1, "leftOut": [{"reason": "Cooldown", "count": 1, "example": HOSTILE}]}
    show(explain_policy(policy_with({"plan": plan}), (), None, NOW))
    told = capsys.readouterr().out
    assert "\\x1b[2J" in told
    assert "\x1b" not in told


def test_a_value_beside_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("Log", HOSTILE)])
    told = capsys.readouterr().out
    assert "\\x1b[2J" in told
    assert "\x1b" not in told
