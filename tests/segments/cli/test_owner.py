"""`compactor segments` beside a Ra server, and what it says of entries that are nowhere."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compaction.segments.checking import all_checks as checking_run
from compaction.segments.checking import checks, reading
from compaction.segments.checking.facts import CheckProblem, LogFacts
from compaction.segments.commit import fence, recovery
from compaction.segments.errors import InstallStoppedError, SegmentLogError, WriteRefusedError
from compaction.segments.format import etf
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.generate import corrupt_entry, generate_log
from compaction.segments.install.driver import install_snapshot
from compaction.segments.memtable import LogEntry
from compaction.segments.model import segment_name
from compaction.segments.scan import sense
from compaction.segments.scan.sense import SenseSettings, sense_root
from compaction.segments.snapshot.directories import (
    NO_CLUSTER,
    LogSnapshot,
    SnapshotOrigin,
    newest_snapshot,
    read_origin,
    write_snapshot,
)
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import LogCut, write_cut
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from support.faults.sudden_death import DyingFilesystem, SuddenDeath
from support.segments.ra_owner import META, RaOwner, dets_header, killed, running, stopped
from support.segments.segment_logs import VARIED_LIMITS, Run, compact_log, content, regular, write_wal


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "data" / "LOG"
    generate_log(directory, pattern="overwritten", segments=9, entries_per_segment=32, payload_bytes=64, sync=False)
    return directory


def test_compact_leaves_the_log_of_a_running_server_alone(run: Run, log: Path) -> None:
    before = regular(log)
    with running(log.parent):
        for command in (("compact",), ("sweep", "--apply", "--grace", "0")):
            result = run(*command, log)
            assert result.exit_code == 1
            assert result.stderr.startswith(f"error: {log}: the log's owner runs: process ")
            assert "Stop the owner" in result.stderr
            assert "--owner-stopped" in result.stderr
        shown = run("sweep", log)
        assert (shown.exit_code, "but it would be refused now: the log's owner runs" in shown.stdout) == (0, True)
    assert regular(log) == before
    assert not (log / fence.FENCE_FILE).exists()


def test_a_server_that_was_killed_needs_a_word(run: Run, log: Path) -> None:
    before = content(log)
    killed(log.parent)
    assert "or was killed" in run("compact", log).stderr
    planned = run("plan", log)
    assert planned.exit_code == 0
    refused = planned.stdout.splitlines()[-1]
    assert refused.startswith(f"but it would be refused now: {log.parent / META} was not closed")
    assert json.loads(run("plan", log, "-o", "json").stdout)["refused"].endswith("or was killed")
    assert run("compact", log, "--owner-stopped").exit_code == 0
    links = [path.name for path in log.glob("*.segment") if path.is_symlink()]
    assert json.loads(run("sweep", log, "--grace", "0", "-o", "json").stdout)["refused"].endswith("or was killed")
    assert run("sweep", log, "--apply", "--grace", "0").exit_code == 1
    assert all((log / name).is_symlink() for name in links)
    assert run("sweep", log, "--apply", "--grace", "0", "--owner-stopped").exit_code == 0
    assert links
    assert not any((log / name).is_symlink() for name in links)
    assert content(log) == before


def test_a_server_that_was_stopped_needs_none(run: Run, log: Path) -> None:
    before = content(log)
    stopped(log.parent)
    assert "refused" not in run("plan", log).stdout
    assert run("compact", log).exit_code == 0
    assert "refused" not in run("sweep", log).stdout
    assert run("sweep", log, "--apply", "--grace", "0").exit_code == 0
    assert content(log) == before


def test_a_sweep_settles_nothing_under_a_running_server(run: Run, log: Path) -> None:
    killed(log.parent)
    assert run("sweep", log, "--apply").stdout == "nothing is half-done\n"
    half_done = log / "0000000000000001.link"
    half_done.symlink_to(segment_name(2))
    assert "or was killed" in run("sweep", log, "--apply").stderr
    shown = run("sweep", log).stdout.splitlines()
    assert shown[0] == "would remove: 0000000000000001.link"
    assert shown[-1].startswith(f"but it would be refused now: {log.parent / META} was not closed")
    assert half_done.is_symlink()
    done = run("sweep", log, "--apply", "--owner-stopped").stdout.splitlines()
    assert done == ["removed: 0000000000000001.link", "swept: 0 names deleted, 0; 0 wait for their grace"]


def marker_alone(log: Path) -> None:
    """Killed between its marker and the copy."""
    members = [segment_name(number).encode() for number in range(1, 9)]
    (log / "0000000000000001.compaction_group").write_bytes(etf.encode([*members]))


def marker_and_copy(log: Path) -> None:
    marker_alone(log)
    (log / "0000000000000001.compacting").write_bytes(b"RASG")


def our_commit(log: Path) -> None:
    """Killed behind the commit point: the lowest name is the output, the higher ones are their own files still."""
    with DyingFilesystem() as counter:
        compact_log(Path(shutil.copytree(log, log.parent.parent / "copy")), VARIED_LIMITS, job="dying", now=0.0)
    at = next(number for number, call in enumerate(counter.calls) if call.startswith("symlink"))
    with DyingFilesystem(at=at), pytest.raises(SuddenDeath):
        compact_log(log, VARIED_LIMITS, job="dying", now=0.0)
    assert recovery.is_needed(log)


def our_partial(log: Path) -> None:
    (log / "0000000000000002-0000000000000003.job.1.partial").write_bytes(b"RASG")


@pytest.mark.parametrize("died", [marker_alone, marker_and_copy, our_commit, our_partial])
def test_what_the_message_says_about_a_killed_server_loses_nothing(
    run: Run, log: Path, died: Callable[[Path], None]
) -> None:
    """A start would believe the marker; so no message says to start it before what it says to run has been run."""
    before = content(log)
    died(log)
    killed(log.parent)
    said = [run("compact", log).stderr, run("inspect", log).stdout]
    said += (
        [run("plan", log).stderr, run("sweep", log, "--apply").stderr, run("sweep", log).stdout]
        if recovery.is_needed(log)
        else []
    )
    said += [run("verify", log).stderr] if died is not our_partial else []
    (refused,) = sense_root(log.parent, SenseSettings()).errors
    said.append(refused.message)
    for text in said:
        assert "start it and stop it" not in text
        assert "do not start" in text
    (command,) = {found for text in said for found in re.findall(r"`compactor segments (sweep [^`]*)`", text)}
    assert run(*shlex.split(command)).exit_code == 0
    assert "do not start" not in run("compact", log).stderr, "what the message asks for has been done"
    RaOwner(log).start()
    assert content(log) == before


def test_an_output_that_alone_holds_something_live_stays(run: Run, log: Path) -> None:
    lost = log / segment_name(8)
    lost.rename(log / "0000000000000008.job.1.partial")
    killed(log.parent)
    for options in ((), ("--apply",)):
        result = run("sweep", log, *options, "--owner-stopped")
        assert result.exit_code == 1
        assert "0000000000000008.job.1.partial: " in result.stderr
    assert (log / "0000000000000008.job.1.partial").exists()


def test_an_output_that_recovery_removes_is_not_deleted_twice(run: Run, log: Path) -> None:
    our_partial(log)
    (name,) = [path.name for path in log.glob("*.partial")]
    assert json.loads(run("sweep", log, "-o", "json").stdout)["swept"]["deleted"] == [name]
    shown = json.loads(run("sweep", log, "--owner-stopped", "-o", "json").stdout)
    assert (shown["recovered"]["removed"], shown["swept"]["deleted"]) == ([name], [])
    done = json.loads(run("sweep", log, "--owner-stopped", "--apply", "-o", "json").stdout)
    assert (done["recovered"]["removed"], done["swept"]["deleted"]) == ([name], [])


def test_a_start_that_no_message_asks_for_loses_keys(log: Path) -> None:
    """Else the test above would show nothing."""
    before = content(log)
    marker_alone(log)
    RaOwner(log).start()
    assert content(log) != before


def test_no_message_says_to_start_a_server_that_takes_an_unknown_live_set_for_an_empty_one(run: Run, log: Path) -> None:
    (snapshot,) = (log / "snapshots").iterdir()
    indexes = (snapshot / "indexes").read_bytes()
    (snapshot / "indexes").unlink()
    killed(log.parent)
    said = run("compact", log).stderr
    assert f"do not start it: snapshots/{snapshot.name} has no `indexes`: restore it first" in said
    assert (
        "say what is live with --live" in run("compact", log, "--clump", "--owner-stopped", "--owner-reads-maps").stderr
    )
    (snapshot / "indexes").write_bytes(indexes)
    assert "start it and stop it" in run("compact", log).stderr


def test_inspect_says_what_is_known_of_the_owner(run: Run, log: Path) -> None:
    assert json.loads(run("inspect", log, "-o", "json").stdout)["owner"] is None
    assert "Owner:" not in run("inspect", log).stdout
    stopped(log.parent)
    assert json.loads(run("inspect", log, "-o", "json").stdout)["owner"] == {"stopped": True, "reason": None}
    with running(log.parent, idle=True):
        said = run("inspect", log)
    assert said.exit_code == 0
    assert "has it open" in said.stdout or "open for writing" in said.stdout


def test_a_segment_is_readable_only_when_its_payloads_are(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "LOG"
    generate_log(log, segments=3, entries_per_segment=32, payload_bytes=64, sync=False)
    corrupt_entry(log, segment=segment_name(2), record=3)
    looked = json.loads(run("inspect", log, "-o", "json").stdout)
    assert [row["state"] for row in looked["segments"]] == ["Unverified"] * 3
    assert "Payloads:  not checked" in run("inspect", log).stdout
    result = run("inspect", log, "--verify", "-o", "json")
    assert result.exit_code == 1
    assert [row["state"] for row in json.loads(result.stdout)["segments"]] == ["Readable", "Corrupt", "Readable"]
    assert "Payloads:" not in run("inspect", log, "--verify").stdout


@pytest.fixture
def holey(tmp_path: Path) -> Path:
    directory = tmp_path / "holey" / "LOG"
    with LogWriter(directory, max_count=8) as writer:
        for index in [i for i in range(1, 41) if i not in (12, 13)]:
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(directory, index=32, term=1, live=LiveSet.parse("9,12-14,30"))
    return directory


@pytest.mark.parametrize("command", [("inspect", "--verify"), ("list", "--live-only")])
def test_entries_that_no_segment_holds_are_an_error_or_wait_in_a_write_ahead_log(
    run: Run, holey: Path, command: tuple[str, str]
) -> None:
    verb, option = command
    said = "2 live entries (first index 12) are in no segment that can be read"
    result = run(verb, holey, option)
    assert result.exit_code == 1
    assert f"error: {holey}: {said}, and no write-ahead log lies beside the log" in result.stderr
    stopped(holey.parent)
    result = run(verb, holey, option)
    assert result.exit_code == 1
    assert f"{said}, nor in the write-ahead log (1 file in {holey.parent})" in result.stderr
    write_wal(holey.parent, 2, [(holey.name.encode(), LogEntry(index, 1, b"waits")) for index in (12, 13)])
    result = run(verb, holey, option)
    assert (result.exit_code, result.stderr) == (0, "")


def test_inspect_counts_them_without_reading_payloads(run: Run, holey: Path) -> None:
    result = run("inspect", holey)
    assert result.exit_code == 0
    assert "Missing:   2 live entries in no readable segment" in result.stdout
    assert json.loads(run("inspect", holey, "-o", "json").stdout)["live"]["missing"] == 2


def of_a_cluster(log: Path) -> None:
    """The snapshot as the log's Ra server would have written it."""
    found = newest_snapshot(log)
    assert found is not None
    origin = SnapshotOrigin.of_members((("kv", "ra@host"),), 1)
    write_snapshot(log, index=found.index, term=found.term, live=found.live, origin=origin)


def test_a_write_ahead_log_elsewhere_is_named(run: Run, holey: Path, tmp_path: Path) -> None:
    of_a_cluster(holey)
    stopped(holey.parent, wal=False)
    elsewhere = tmp_path / "wal"
    elsewhere.mkdir()
    write_wal(elsewhere, 1, [(holey.name.encode(), LogEntry(index, 1, b"waits")) for index in (12, 13)])
    where = ("--wal-dir", elsewhere)
    for verb, *options in (("verify",), ("verify", "--rules"), ("inspect", "--verify"), ("list", "--live-only")):
        lost = run(verb, holey, *options)
        assert lost.exit_code == 1
        assert "is lost, or elsewhere" in lost.output
        assert "--wal-dir" in lost.output
        assert run(verb, holey, *options, *where).exit_code == 0, verb
    assert "LiveEntriesMissing" in run("plan", holey).stdout
    assert "LiveEntriesMissing" not in run("plan", holey, *where).stdout
    assert run("compact", holey).exit_code == 1
    # A group of which the entry waits elsewhere fails by name; what is dead goes.
    assert "first index 12" not in run("compact", holey, *where).output
    assert "first index 12" not in run("sweep", holey, "--apply", "--grace", "0", *where).output


def test_re_writing_at_the_head_of_a_ra_log_needs_its_own_confirmation(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "data" / "LOG"
    generate_log(log, segments=3, entries_per_segment=64, payload_bytes=64, sync=False)
    stopped(log.parent)
    before = regular(log)
    said = run("compact", log, "--clump", "--owner-stopped")
    assert said.exit_code == 1
    assert "a Ra server, which does not read the maps" in said.stderr
    assert regular(log) == before
    assert "but it would be refused now" in run("plan", log, "--clump").stdout
    assert run("compact", log, "--clump", "--owner-stopped", "--owner-reads-maps").exit_code == 0
    assert regular(log) != before


def test_a_torn_record_after_a_clean_stop_is_damage(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "LOG"
    generate_log(log, segments=2, entries_per_segment=8, payload_bytes=64, sync=False)
    of_a_cluster(log)
    stopped(tmp_path, wal=False)
    path = write_wal(tmp_path, 1, [(b"LOG", LogEntry(17, 1, b"whole")), (b"LOG", LogEntry(18, 1, b"torn"))])
    assert run("verify", tmp_path).exit_code == 0
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert "is torn" in result.stderr
    (tmp_path / META).write_bytes(dets_header(0))
    assert run("verify", tmp_path).exit_code == 0, "killed while it wrote"


def test_rules_note_what_a_ra_server_would_read_otherwise(run: Run, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "LOG", sync=False) as writer:
        writer.append(1, 1, b"x")
    assert "begins at index 1 without a snapshot" in run("verify", tmp_path, "--rules").stdout
    write_cut(tmp_path / "LOG", LogCut(2, None))
    write_snapshot(tmp_path / "LOG", index=1, term=1, live=LiveSet.empty())
    said = run("verify", tmp_path, "--rules")
    assert said.exit_code == 0
    assert "begins at index 1" not in said.stdout
    assert "log.cut: entries from index 2 on do not count" in said.stdout


def test_what_fails_at_one_log_is_named_and_its_siblings_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the program: in the reading, and in a check."""
    for name in ("a", "b", "c"):
        generate_log(tmp_path / name, segments=2, entries_per_segment=8, payload_bytes=64, sync=False)
    read, check = reading._cut, checks.links

    def broken(log: Path) -> object:
        return 1 / 0 if log.name == "a" else read(log)

    def broken_check(log: LogFacts) -> Iterator[CheckProblem]:
        if log.name == "b":
            raise ZeroDivisionError
        return check(log)

    monkeypatch.setattr(reading, "_cut", broken)
    monkeypatch.setattr(checking_run, "_LOG_CHECKS", (checks.names_and_headers, broken_check))
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    rows = dict(line.split()[:2] for line in result.stdout.splitlines()[1:4])
    assert rows == {"a": "WRONG", "b": "WRONG", "c": "right"}
    assert f"{tmp_path / 'a'}: an unexpected ZeroDivisionError at " in result.stderr
    monkeypatch.undo()
    original = sense.sense_log
    monkeypatch.setattr(
        sense, "sense_log", lambda path, *a, **k: 1 / 0 if path.name == "a" else original(path, *a, **k)
    )
    found = sense_root(tmp_path, SenseSettings())
    assert [log.path.name for log in found.logs] == ["b", "c"]
    assert [(error.path.name, "ZeroDivisionError" in error.message) for error in found.errors] == [("a", True)]


# A snapshot that is written for a Ra server: it stays in its own cluster, and its machine in its version.

VOTER: dict[etf.Term, etf.Term] = {etf.Atom("voter_status"): {etf.Atom("membership"): etf.Atom("voter")}}
MEMBERS: dict[etf.Term, etf.Term] = {(etf.Atom("kv1"), etf.Atom(f"ra@host{number}")): VOTER for number in (1, 2, 3)}
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
