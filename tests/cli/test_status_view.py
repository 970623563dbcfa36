"""What `kubectl compaction status NAME` says about workers."""

from __future__ import annotations

import pytest

from compaction.cli.status_view import show_policy
from support.explained import NOW, policy_with


def test_workers_of_which_there_is_more_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "logs-w-1", "state": "Pending", "reason": "ImagePull", "message": "manifest unknown"},
        {"name": "logs-w-2", "state": "Ready", "ui": "http://10.1.2.3:4040"},
        {"name": "logs-w-3", "state": "Ready"},
    ]
    show_policy(policy_with({"workerStatuses": rows, "driverMemoryBytes": 4 << 30}), (), NOW)
    said = capsys.readouterr().out
    assert "logs-w-1 waits (ImagePull): manifest unknown" in said
    assert "logs-w-2: http://10.1.2.3:4040" in said
    assert "logs-w-3" not in said, "it is among those that are counted"
    assert "drivers get 4Gi: one ran out of it" in said
