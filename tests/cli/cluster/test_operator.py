"""`compactor operator`: what is refused before anything starts."""

from pathlib import Path

import pytest

from compaction.cli.main import main


def test_the_scope_must_be_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator"]) == 2
    assert main(["operator", "-n", "team-a", "-A"]) == 2
    assert "--namespace NAME or --all-namespaces" in capsys.readouterr().err


def test_unsafe_election_times_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "-A", "--lease-duration", "10", "--renew-deadline", "10"]) == 2
    assert "lease duration > renew deadline" in capsys.readouterr().err


def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "-n", "x", "--kubeconfig", str(tmp_path / "absent")]) == 1
    error = capsys.readouterr().err
    assert "absent" in error
    assert "Traceback" not in error
