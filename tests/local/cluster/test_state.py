"""The state file: a round trip, and clear errors for what is not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.local.cluster import control_plane
from compaction.local.cluster.control_plane import (
    LocalState,
    default_state_dir,
    read_state,
    remove_state,
    state_file,
    write_state,
)
from compaction.local.errors import LocalStateError
from compaction.local.processes.process import ProcessId

STATE = LocalState("https://127.0.0.1:1", Path("/k"), (ProcessId("etcd", 2**22 + 1, "boot:1"),))


def test_round_trip(tmp_path):
    write_state(tmp_path, STATE)
    assert read_state(tmp_path) == STATE
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


def test_dead_processes_do_not_run(tmp_path):
    assert not STATE.running
    assert STATE.survivors == ()
    assert not LocalState("https://127.0.0.1:1", Path("/k"), ()).running


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "url": "u", "kubeconfig": "k", "processes": [{"pid": "x"}]}',
        "\udcff",
    ],
)
def test_foreign_content_is_named(tmp_path, content):
    state_file(tmp_path).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LocalStateError, match=r"state\.json"):
        read_state(tmp_path)


def test_down_forgets_what_is_gone_and_says_so(tmp_path):
    write_state(tmp_path, STATE)
    assert control_plane.down(tmp_path) == STATE
    assert control_plane.down(tmp_path) is None
    assert control_plane.down(tmp_path / "never") is None


def test_default_place(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert default_state_dir() == Path("/s/compaction-operator")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert default_state_dir() == Path.home() / ".local" / "state" / "compaction-operator"
