"""A snapshot that is written for a Ra server: it stays in its own cluster, and its machine in its version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.commands import Run
from compaction.segments.errors import InstallStoppedError, SegmentLogError, WriteRefusedError
from compaction.segments.format import etf
from compaction.segments.generate import generate_log
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry
from compaction.segments.snapshot.directories import (
    NO_CLUSTER,
    LogSnapshot,
    SnapshotOrigin,
    newest_snapshot,
    read_origin,
    write_snapshot,
)
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from support.stores.ra_system import META, stopped

VOTER = {etf.Atom("voter_status"): {etf.Atom("membership"): etf.Atom("voter")}}
MEMBERS = {(etf.Atom("kv1"), etf.Atom(f"ra@host{number}")): VOTER for number in (1, 2, 3)}
OF_RA = SnapshotOrigin(MEMBERS, 7)
CONFIG = b"""#{id =>
      {kv1,'ra@host2'},
  uid => <<"KV1">>,friendly_name => "id => {other,node}",
  initial_members => [{kv1,'ra@host1'}]}."""


def ra_log(system: Path) -> Path:
    """A log as its Ra server left it, with a snapshot at 2."""
    stopped(system)
    (system / "KV1").mkdir()
    (system / "KV1" / "config").write_bytes(CONFIG)
    write_snapshot(system / "KV1", index=2, term=1, live=LiveSet.parse("1"), origin=OF_RA, sync=False)
    return system / "KV1"


def taken(log: Log, index: int, origin: SnapshotOrigin | None = None) -> LogSnapshot:
    """A snapshot at `index`, with the entries that are not there yet."""
    first = 3 if log.last is None else log.last.index + 1
    log.append([LogEntry(number, 1, b"entry") for number in range(first, index + 1)]).result()
    return log.snapshot(index, 1, b"\x83j", LiveSet.parse(str(index)), origin=origin).result()


def test_each_snapshot_carries_cluster_and_machine_version_over(tmp_path: Path, run: Run) -> None:
    directory = ra_log(tmp_path)
    for index in (5, 9):
        with LogSystem(tmp_path) as system:
            assert read_origin(taken(system.open_log("KV1"), index).data) == OF_RA
            upgraded = SnapshotOrigin(MEMBERS, 8)
            assert read_origin(taken(system.open_log("KV1"), index + 1, upgraded).data) == upgraded
            assert read_origin(taken(system.open_log("KV1"), index + 2).data) == upgraded
        write_snapshot(directory, index=index + 3, term=1, live=LiveSet.empty(), origin=OF_RA, sync=False)
    assert run("verify", tmp_path, "--rules").exit_code == 0


def test_a_snapshot_of_no_cluster_is_not_written_where_a_ra_server_has_been(tmp_path: Path) -> None:
    with LogSystem(tmp_path / "ours") as ours:
        sent = ours.open_log("a")
        assert read_origin(taken(sent, 5).data) == NO_CLUSTER
        (tmp_path / "ra").mkdir()
        stopped(tmp_path / "ra")
        with LogSystem(tmp_path / "ra") as system:
            log = system.open_log("KV1")
            with pytest.raises(WriteRefusedError, match=r"KV1: refused: no snapshot says .* give both"):
                taken(log, 5)
            with pytest.raises(InstallStoppedError, match="of no cluster"):
                install_snapshot(sent, system.open_log("KV2"), term=1, transfer=1, applied=None)
            assert newest_snapshot(log.directory) is None
            assert read_origin(taken(log, 6, OF_RA).data) == OF_RA
    with pytest.raises(SegmentLogError, match="lies in the data directory of a Ra server"):
        generate_log(tmp_path / "ra" / "KV3", segments=2, entries_per_segment=8, payload_bytes=16)


@pytest.mark.parametrize(
    ("origin", "config", "said"),
    [
        (OF_RA, CONFIG, ""),
        (OF_RA, b"", ""),
        (NO_CLUSTER, CONFIG, "it names no cluster and no machine version"),
        (NO_CLUSTER, b"", "it names no cluster and no machine version"),
        (NO_CLUSTER, b"#{id => {log,nonode@nohost}}.", ""),
        (SnapshotOrigin({}, 7), CONFIG, "it names no cluster"),
        (
            SnapshotOrigin.of_members((("kv1", "ra@host9"),), 7),
            CONFIG,
            "the server's own id, kv1 on ra@host2, is not in",
        ),
    ],
)
def test_verify_and_its_rules_say_whose_snapshot_it_is_not(
    run: Run, tmp_path: Path, origin: SnapshotOrigin, config: bytes, said: str
) -> None:
    with LogSystem(tmp_path) as system:
        directory = system.open_log("KV1").directory
        taken(system.open_log("KV1"), 5)
    (directory / "config").write_bytes(config)
    write_snapshot(directory, index=5, term=1, live=LiveSet.parse("5"), origin=origin, sync=False)
    assert run("verify", tmp_path).exit_code == 0, "no Ra server has been here"
    stopped(tmp_path, wal=False)
    for options in ((), ("--rules",)):
        result = run("verify", tmp_path, *options)
        assert result.exit_code == (1 if said else 0), result.output
        assert said in result.output
    assert (tmp_path / META).is_file()


def test_a_history_says_whose_snapshot_it_writes(run: Run, tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    lines = [
        {"op": "open", "log": "KV1"},
        {"op": "append", "log": "KV1", "index": 1, "term": 1, "payload": "x"},
        {"op": "snapshot", "log": "KV1", "index": 1, "term": 1, "live": ""},
        {"op": "snapshot", "log": "KV1", "index": 1, "term": 1, "live": "", "machine_version": 7},
        {"op": "snapshot", "log": "KV1", "index": 1, "term": 1, "live": "", "machine_version": 7}
        | {"cluster": [{"name": "kv1", "node": "ra@host2"}]},
    ]
    history.write_text("\n".join(json.dumps(line) for line in lines))
    stopped(tmp_path / "system", wal=False)
    refused = run("debug", "exec", tmp_path / "system", history)
    assert 'has "cluster" and "machine_version", or neither' in refused.stderr
    history.write_text("\n".join(json.dumps(line) for line in (*lines[:3], lines[4])))
    results = [json.loads(line) for line in run("debug", "exec", tmp_path / "system", history).stdout.splitlines()]
    assert [result["ok"] for result in results] == [True, True, False, True], results
    assert results[2]["error"] == "WriteRefusedError"
    made = newest_snapshot(tmp_path / "system" / "KV1")
    assert made is not None
    assert read_origin(made.data) == SnapshotOrigin.of_members((("kv1", "ra@host2"),), 7)
