"""Paths that nobody would type: every command ends with an exit code and a line, never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.cluster.by_kubectl import exit_code

COMMANDS = (
    ("segments", "inspect"),
    ("segments", "plan"),
    ("segments", "list"),
    ("segments", "compact"),
    ("segments", "sweep", "--apply"),
    ("blocks", "list", "--store"),
    ("blocks", "list", "-f"),
    ("blocks", "list", "--store", "s3://bucket", "--index", "sqlite:///index.db", "--store-options"),
    ("blocks", "compact", "--store"),
    ("blocks", "register", "x", "--tenant", "t", "--store"),
    ("staging", "debug", "sst"),
    ("staging", "debug", "sst", "file", "--type", "ranges", "--write"),
    ("staging", "debug", "exec", "--kv", "sqlite:///kv.db"),
    ("staging", "commit", "main", "--kv", "sqlite:///kv.db", "--repo", "example", "--records"),
    ("staging", "repo", "--kv"),
    ("staging", "repo", "example", "--kv", "sqlite:///kv.db"),
    ("staging", "list", "main", "--kv", "sqlite:///kv.db", "--repo", "example", "--store-options"),
    ("catalogs", "debug", "decode"),
    ("catalogs", "debug", "replay"),
    ("run", "--dry-run", "-f"),
    ("local", "--state-dir"),
    ("local", "down", "--state-dir"),
    ("status", "--kubeconfig"),
)
PATHS: dict[str, str] = {
    "empty": "",
    "too long": "x" * 5000,
    "too deep": "/".join("y" * 3000),
    "bytes": os.fsdecode(b"\xff\xfe"),
    "bytes in text": "log-" + os.fsdecode(b"\xe4"),
    "escape": "\x1b[31m",
    "newline": "a\nb",
    "bidi": "gpj.\u202etxt",
    "circle": "circle",
    "a file": "file",
    "a device": "/dev/null",
    "below a file": "file/below",
    "memory": "/proc/self/mem",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own working directory: some commands create what they are given."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_any_path_ends_in_an_exit_code(command: tuple[str, ...], path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code([*command, PATHS[path]])
    output = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in output.err
    assert code == 0 or output.err or output.out, "an error says something"
    assert "\x1b[31m" not in output.out + output.err
