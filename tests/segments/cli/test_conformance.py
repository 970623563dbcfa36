"""`compactor segments verify`, and with `--rules`: what conforms passes, and each rule that is broken is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.segments.checking.facts import CHECKLIST, NUMBERS, OwnerRule, SeenFacts
from compaction.segments.commit import fence
from compaction.segments.directory.fs import regular_segments, segment_links
from compaction.segments.directory.owner import MARKER_FILE
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.generate import corrupt_entry
from compaction.segments.memtable import LogEntry
from compaction.segments.model import HEADER_BYTES, segment_name
from compaction.segments.snapshot.directories import newest_snapshot, write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet, encode_indexes
from compaction.segments.system.content import CUT_FILE
from compaction.segments.wal.codec import HEADER
from compaction.segments.wal.files import STOP_FILE, wal_files, wal_name, wal_number
from house.sources import ROOT
from support.segments.segment_logs import Run, live_set, restore, varied_system, write_wal
from support.timing import examples

SEEN_ONCE = sum(text.seen is SeenFacts.ONCE for text in CHECKLIST.values())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "system"
    varied_system(directory)
    return directory


@pytest.fixture
def system(original: Path, tmp_path: Path) -> Path:
    """A copy of one's own, with the links as they are."""
    return Path(shutil.copytree(original, tmp_path / "system", symlinks=True))


def check(run: Run, directory: Path, *, code: int) -> dict[str, dict[str, Any]]:
    """What `verify --rules` finds, by rule."""
    result = run("verify", directory, "--rules", "-o", "json")
    assert result.exit_code == code, result.output
    return {load["rule"]: load for load in json.loads(result.stdout)}


def test_a_system_that_the_library_wrote_conforms(run: Run, system: Path) -> None:
    before = {path: path.read_bytes() for path in system.rglob("*") if path.is_file()}
    found = check(run, system, code=0)
    assert list(found) == [str(rule) for rule in CHECKLIST]
    for rule, text in CHECKLIST.items():
        assert found[rule]["result"] == ("pass" if text.seen is SeenFacts.ONCE else "not seen"), found[rule]
    verified = run("verify", system)
    assert verified.exit_code == 0, verified.output
    assert "2 logs" in verified.stdout
    assert "0 problems" in verified.stdout
    assert verified.stderr == ""
    assert {path: path.read_bytes() for path in system.rglob("*") if path.is_file()} == before, "they only read"


def test_each_rule_is_a_line(run: Run, system: Path) -> None:
    result = run("verify", system, "--rules")
    lines = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in lines if line.startswith("pass")] == ["pass"] * SEEN_ONCE
    assert len(lines) == len(CHECKLIST)
    assert result.stderr == f"{SEEN_ONCE} of {SEEN_ONCE} rules that were seen hold\n"
    assert "(--while shows it)" in lines[SEEN_ONCE]
    assert "tests/" in lines[-1]


@pytest.mark.parametrize("option", [("--while", "1s"), ("--every", "1s")])
def test_options_of_rules_need_them(run: Run, system: Path, option: tuple[str, str]) -> None:
    result = run("verify", system, *option)
    assert (result.exit_code, f"{option[0]} needs --rules" in result.stderr) == (2, True)


def test_a_rule_that_no_scan_shows_names_a_test_of_ours() -> None:
    for rule, text in CHECKLIST.items():
        assert bool(text.test) == (text.seen is SeenFacts.TEST), rule
        assert not text.test or Path(text.test).is_file(), rule


def test_the_page_has_every_rule() -> None:
    page = (ROOT / "docs" / "segment-logs.md").read_text()
    rows = {
        number: row.split(" | ") for row in page.splitlines() if (number := row.partition(" | `")[0]).startswith("| ")
    }
    for rule, text in CHECKLIST.items():
        check = {SeenFacts.ONCE: "`verify --rules`", SeenFacts.WHILE: "`verify --rules --while`"}.get(
            text.seen, f"[a test](../{text.test})"
        )
        assert rows[f"| {NUMBERS[rule]}"][1:] == [f"`{rule}`", text.sentence, f"{check} |"]


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), data, offset)


def short_name(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[-2]).rename(system / "a" / "00000007.segment")


def foreign_header(system: Path) -> None:
    patch(system / "a" / regular_segments(system / "a")[1], 0, b"RASX")


def empty_old_segment(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[1]).write_bytes(b"")


def moved_record(system: Path) -> None:
    path = system / "a" / regular_segments(system / "a")[1]
    segment = read_segment(path)
    wrong = int(segment.offset[1]) + 1
    patch(path, HEADER_BYTES + segment.slot_bytes + 16, wrong.to_bytes(8, "big"))


def other_payload(system: Path) -> None:
    corrupt_entry(system / "a", segment=regular_segments(system / "a")[1], record=1)


def link_upwards(system: Path) -> None:
    link = system / "a" / segment_links(system / "a")[0]
    link.unlink()
    link.symlink_to(regular_segments(system / "a")[-1])


def link_outside(system: Path) -> None:
    link = system / "a" / segment_links(system / "a")[0]
    link.unlink()
    link.symlink_to(system / "b" / segment_name(1))


def newest(system: Path) -> Path:
    found = newest_snapshot(system / "a")
    assert found is not None
    return found.path


def torn_snapshot(system: Path) -> None:
    path = newest(system) / "snapshot.dat"
    path.write_bytes(path.read_bytes()[:-1])


def torn_indexes(system: Path) -> None:
    path = newest(system) / "indexes"
    path.write_bytes(path.read_bytes()[:-1])


def no_indexes(system: Path) -> None:
    (newest(system) / "indexes").unlink()


def revived_entry(system: Path) -> None:
    (newest(system) / "indexes").write_bytes(encode_indexes(LiveSet.parse("3,5,9,20,30")))


def lost_live_entry(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[0]).unlink()


def live_entry_without_record(system: Path) -> None:
    """In the range of a segment, which a compaction would take it from."""
    (newest(system) / "indexes").write_bytes(encode_indexes(LiveSet.parse("3,4,9,20,30")))


def lost_segment_above(system: Path) -> None:
    (system / "a" / regular_segments(system / "a")[-2]).unlink()


def named_wal(system: Path) -> None:
    (system / "7.wal").write_bytes(b"")


def lost_wal(system: Path) -> None:
    path = wal_files(system)[-1]
    path.rename(system / wal_name(wal_number(path.name) + 2))
    write_wal(system, wal_number(path.name), [])


def foreign_wal(system: Path) -> None:
    patch(wal_files(system)[-1], 0, b"RAWX")


def damaged_wal(system: Path) -> None:
    patch(wal_files(system)[-1], 30, b"\xff\xff\xff")


def shortened_wal(system: Path) -> None:
    """The system was stopped cleanly: not even the last record may be torn."""
    path = wal_files(system)[-1]
    path.write_bytes(path.read_bytes()[:-1])


def emptied_wal(system: Path) -> None:
    """To its header: that is no end of a record either, and nothing is torn."""
    path = wal_files(system)[-1]
    path.write_bytes(path.read_bytes()[: len(HEADER)])


def no_wal(system: Path) -> None:
    wal_files(system)[-1].unlink()


def foreign_stop(system: Path) -> None:
    (system / STOP_FILE).write_bytes(b"[]")


def next_wal(system: Path, writer: bytes, entry: LogEntry) -> None:
    write_wal(system, wal_number(wal_files(system)[-1].name) + 1, [(writer, entry)])


def impossible_writer(system: Path) -> None:
    next_wal(system, b"../a", LogEntry(1, 1, b"x"))


def other_entry(system: Path) -> None:
    next_wal(system, b"a", LogEntry(64, 2, b"another payload"))


def two_markers(system: Path) -> None:
    for name in regular_segments(system / "a")[:2]:
        (system / "a" / name.replace(".segment", ".compaction_group")).write_bytes(b"\x83j")


def marker_alone(system: Path) -> None:
    name = regular_segments(system / "a")[0]
    (system / "a" / name.replace(".segment", ".compaction_group")).write_bytes(b"\x83j")


def marker_and_copy(system: Path) -> None:
    marker_alone(system)
    name = regular_segments(system / "a")[0]
    shutil.copy(system / "a" / name, system / "a" / name.replace(".segment", ".compacting"))


def only_copy(system: Path) -> None:
    """`a-b.compacting` holds the live entries of a segment that is gone."""
    first, second = regular_segments(system / "a")[:2]
    stems = first.removesuffix(".segment"), second.removesuffix(".segment")
    (system / "a" / first).rename(system / "a" / f"{stems[0]}-{stems[1]}.compacting")


def foreign_fence(system: Path) -> None:
    (system / "a" / fence.FENCE_FILE).write_text("{}x")


def torn_cut(system: Path) -> None:
    path = system / "b" / CUT_FILE
    path.write_bytes(path.read_bytes()[:-1])


def foreign_marker(system: Path) -> None:
    (system / MARKER_FILE).write_text('{"owner": "LogSystem", "rules": 99}')


VIOLATIONS: list[tuple[OwnerRule, Callable[[Path], None], str]] = [
    (OwnerRule.SEGMENT_NAMES, short_name, "fail"),
    (OwnerRule.SEGMENT_HEADERS, foreign_header, "fail"),
    (OwnerRule.SEGMENT_HEADERS, empty_old_segment, "fail"),
    (OwnerRule.SEGMENT_RECORDS, moved_record, "fail"),
    (OwnerRule.PAYLOAD_CHECKSUMS, other_payload, "fail"),
    (OwnerRule.LINKS, link_upwards, "fail"),
    (OwnerRule.LINKS, link_outside, "fail"),
    (OwnerRule.SNAPSHOT_FILES, torn_snapshot, "fail"),
    (OwnerRule.LIVE_INDEXES, torn_indexes, "fail"),
    (OwnerRule.LIVE_INDEXES, no_indexes, "known W2"),
    (OwnerRule.LIVE_ONLY_SHRINKS, revived_entry, "fail"),
    (OwnerRule.LIVE_ENTRIES, lost_live_entry, "fail"),
    (OwnerRule.LIVE_ENTRIES, live_entry_without_record, "known W7"),
    (OwnerRule.ENTRIES_ABOVE, lost_segment_above, "fail"),
    (OwnerRule.WAL_FILES, named_wal, "fail"),
    (OwnerRule.WAL_FILES, lost_wal, "fail"),
    (OwnerRule.WAL_FILES, foreign_wal, "fail"),
    (OwnerRule.WAL_FILES, foreign_stop, "fail"),
    (OwnerRule.WAL_RECORDS, damaged_wal, "fail"),
    (OwnerRule.WAL_RECORDS, shortened_wal, "fail"),
    (OwnerRule.WAL_RECORDS, emptied_wal, "fail"),
    (OwnerRule.WAL_RECORDS, no_wal, "fail"),
    (OwnerRule.WAL_WRITERS, impossible_writer, "fail"),
    (OwnerRule.SAME_ENTRY, other_entry, "fail"),
    (OwnerRule.HALF_DONE, two_markers, "known W4"),
    (OwnerRule.HALF_DONE, marker_alone, "known W1"),
    (OwnerRule.HALF_DONE, marker_and_copy, "known W3"),
    (OwnerRule.HALF_DONE, only_copy, "fail"),
    (OwnerRule.COMPACTOR_FILES, foreign_fence, "fail"),
    (OwnerRule.LOG_CUT, torn_cut, "fail"),
    (OwnerRule.OWNER_MARKER, foreign_marker, "fail"),
]


@pytest.mark.parametrize(("rule", "violate", "result"), VIOLATIONS, ids=lambda item: getattr(item, "__name__", None))
def test_a_broken_rule_is_named(
    run: Run, system: Path, rule: OwnerRule, violate: Callable[[Path], None], result: str
) -> None:
    violate(system)
    found = check(run, system, code=1)[rule]
    windows = {str(item["window"]) for item in found["problems"]}
    assert result == (f"{found['result']} {windows.pop()}" if found["result"] == "known" else found["result"])
    sentences = [item["sentence"] for item in found["problems"]]
    assert all(sentence.startswith(str(system)) and "; " in sentence for sentence in sentences)
    verified = run("verify", system)
    assert verified.exit_code == 1
    assert {f"error: {sentence}" for sentence in sentences} <= set(verified.stderr.splitlines())
    assert "1 problem" in verified.stdout or re.search(r"\d problems", verified.stdout)
    assert sentences[0] in run("verify", system, "--rules").stdout


def test_every_rule_that_a_scan_shows_is_violated_here() -> None:
    assert {rule for rule, _, _ in VIOLATIONS} == {rule for rule in CHECKLIST if CHECKLIST[rule].seen is SeenFacts.ONCE}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_a_payload_is_found(original: Path, run: Run, data: st.DataObject) -> None:
    """Of dead entries too: then the disk is to blame, and no reader."""
    log = original / "a"
    path = log / data.draw(st.sampled_from(regular_segments(log)))
    segment = read_segment(path)
    offset = data.draw(st.integers(segment.data_start, segment.end_of_data - 1))
    kept = path.read_bytes()
    try:
        patch(path, offset, bytes((kept[offset] ^ data.draw(st.integers(1, 255)),)))
        result = run("verify", log, "-o", "json")
        assert result.exit_code == 1
        (problem,) = json.loads(result.stdout)["problems"]
        assert (problem["rule"], problem["path"]) == (OwnerRule.PAYLOAD_CHECKSUMS, str(path))
    finally:
        path.write_bytes(kept)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_the_write_ahead_log_is_found_or_was_not_acknowledged(
    original: Path, run: Run, data: st.DataObject
) -> None:
    """The header word of a record is under no checksum: there, a flag may change unseen."""
    path = wal_files(original)[-1]
    kept = path.read_bytes()
    offset = data.draw(st.integers(0, len(kept) - 1))
    try:
        patch(path, offset, bytes((kept[offset] ^ data.draw(st.integers(1, 255)),)))
        result = run("verify", original, "-o", "json")
        found = json.loads(result.stdout)
        rules = {item["rule"] for item in (*found["problems"], *found["notes"])}
        before = json.loads(run("debug", "wal", original, "-o", "json").stdout)
        assert rules & {"wal-files", "wal-records", "wal-writers"} or before["files"][0]["records"] == 11
    finally:
        path.write_bytes(kept)


def test_one_log_of_a_system_is_verified_with_what_the_system_has_of_it(run: Run, system: Path) -> None:
    (row,) = json.loads(run("verify", system / "a", "-o", "json").stdout)["logs"]
    assert (row["log"], row["waiting"], row["snapshotIndex"], row["liveEntries"]) == ("a", 6, 32, 4)
    for name in regular_segments(system / "a"):
        (system / "a" / name).unlink()
    result = run("verify", system / "a")
    assert result.exit_code == 1
    assert "4 live entries (first index 3) are in no segment and no write-ahead log file; restore the log" in (
        result.stderr
    )


def test_progress_is_shown_on_a_terminal_and_nowhere_else(system: Path) -> None:
    command = [sys.executable, "-m", "compaction.cli.main", "segments", "verify", str(system)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stderr == ""
    terminal, screen = os.openpty()
    try:
        shown = subprocess.run(command, stdout=subprocess.PIPE, stderr=screen, text=True, check=True)
        os.close(screen)
        screen = -1
        said = os.read(terminal, 1 << 16).decode()
    finally:
        for fd in {terminal, screen} - {-1}:
            os.close(fd)
    assert "scanning" in said or "reading payloads" in said
    assert shown.stdout == piped.stdout


def test_nothing_in_a_directory_steers_the_terminal(run: Run, system: Path) -> None:
    """Ids of writers, names of logs and targets of links are whatever others called them."""
    hostile = "evil\x1b[2J"
    next_wal(system, hostile.encode(), LogEntry(1, 1, b"x"))
    (system / "a").rename(system / hostile)
    link = system / hostile / segment_links(system / hostile)[0]
    link.unlink()
    link.symlink_to(f"/nowhere/{hostile}")
    debug = (["debug", "wal"], ["debug", "wal", "--records", "-o", "table"], ["debug", "follow", "--once"])
    for args in (["verify"], ["verify", "--rules"], *debug):
        output = run(*args, system).output
        assert "\x1b" not in output
        assert "evil" in output


@pytest.mark.parametrize("hostile", ["fifo", "link", "directory"])
def test_a_write_ahead_log_that_is_no_file_is_named(run: Run, system: Path, hostile: str) -> None:
    path = system / "0000000000000099.wal"
    match hostile:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    for command in (("verify",), ("debug", "wal"), ("debug", "wal", "--records"), ("verify", "--rules")):
        result = run(*command, system)
        assert result.exit_code == 1, result.output
        assert f"{path}: not a write-ahead log file: it is " in result.output
    followed = run("debug", "follow", system, "--once", "-o", "jsonl")
    assert "Written" in followed.stdout


def test_a_log_may_have_any_name(run: Run, tmp_path: Path) -> None:
    """Also that of the directory in which a log has its snapshots."""
    varied_system(tmp_path / "system")
    (tmp_path / "system" / "a").rename(tmp_path / "system" / "snapshots")
    logs = json.loads(run("verify", tmp_path / "system", "-o", "json").stdout)["logs"]
    assert [row["log"] for row in logs] == ["b", "snapshots"]


def test_what_is_no_log_is_refused(run: Run, tmp_path: Path) -> None:
    for options in ((), ("--rules",)):
        result = run("verify", tmp_path, *options)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path}: not a segment log directory: it holds no segment, no ")
        assert run("verify", tmp_path / "none", *options).exit_code == 2
    result = run("debug", "wal", tmp_path)
    assert result.exit_code == 1
    assert "it holds no write-ahead log file" in result.stderr


PARTS = {
    "dir": "files",
    "before": "files",
    "after": "after_files",
    "after_minor": "minor_files",
    "crashed": "crashed_files",
    "recovered": "recovered_files",
}
"""Directories of a fixture of Ra, and the list of its manifest that describes each."""


def of_ra(root: Path, target: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Every directory that Ra wrote, with its links, by the name of its fixture; and the options that say what is live
    where no snapshot does.
    """
    for manifest in sorted(root.rglob("manifest.json")):
        facts = json.loads(manifest.read_text())
        for part, key in PARTS.items():
            if (manifest.parent / part).is_dir():
                name = f"{manifest.parent.relative_to(root)}/{part}"
                directory = restore(manifest.parent / part, target / name, facts[key])
                yield name, directory, [] if (directory / "snapshots").is_dir() else _options(facts)
    for base in sorted(root.rglob("base-*")):
        name = str(base.relative_to(root))
        files = [{"name": item.name, "type": "regular"} for item in base.iterdir()]
        yield name, restore(base, target / name, files), []


def _options(facts: dict[str, Any]) -> list[str]:
    if "snapshot_index" not in facts:
        return []
    return ["--snapshot", str(facts["snapshot_index"]), "--live", str(live_set(facts["live_indexes"]))]


@pytest.mark.fixtures
def test_what_ra_wrote_conforms_or_is_one_of_its_windows(run: Run, shared_fixtures: Path, tmp_path: Path) -> None:
    """Before and after its compactions all rules hold; at its crash points they do not, in the ways that are known."""
    seen: dict[str, str] = {}
    for name, directory, options in of_ra(shared_fixtures / "ra", tmp_path):
        result = run("verify", directory, "--rules", *options, "-o", "json")
        problems = [problem for rule in json.loads(result.stdout) for problem in rule["problems"]]
        assert all(problem["window"] for problem in problems), (name, problems)
        assert result.exit_code == bool(problems)
        if problems:
            seen[name] = "".join(sorted({problem["window"] for problem in problems}))
    crashed = {name.removeprefix("04-crashed-compaction/").partition("-")[0]: seen[name] for name in seen}
    assert all(name.startswith("04-crashed-compaction/") and name.endswith("/crashed") for name in seen), seen
    # a, e, f, g, h, j: the copy is not there, or not any more, which a marker alone does not tell apart.
    assert crashed == dict.fromkeys(["a", "a3", "e", "f", "g", "h", "j"], "W1") | dict.fromkeys("bcdi", "W3")


def test_options_describe_one_log_that_no_snapshot_describes(run: Run, system: Path) -> None:
    shutil.rmtree(system / "a" / "snapshots")
    assert run("verify", system / "a").exit_code == 1, "its segments 2 and 3 are gone, and nothing says that they may"
    assert run("verify", system / "a", "--snapshot", "32", "--live", "3,9,20,30").exit_code == 0
    assert "index 4" in run("verify", system / "a", "--snapshot", "32", "--live", "3-4").stderr
    for options in ((), ("--rules",)):
        assert run("verify", system, *options, "--snapshot", "32").exit_code == 2
        assert run("verify", system / "a", *options, "--live", "3").exit_code == 2


def plain_log(directory: Path) -> Path:
    """Six segments of 8 entries and no write-ahead log; a snapshot at 20."""
    with LogWriter(directory, max_count=8, sync=False) as writer:
        for index in range(1, 49):
            writer.append(index, 1 + index // 30, b"entry %d" % index)
    write_snapshot(directory, index=20, term=1, live=LiveSet.parse("3,12"), sync=False)
    return directory


def rewrite(log: Path, entries: Iterable[tuple[int, int, bytes]]) -> None:
    """Segment 7, of these entries alone."""
    with LogWriter(log.parent / "elsewhere", max_count=64, sync=False) as writer:
        for index, term, payload in entries:
            writer.append(index, term, payload)
    (log.parent / "elsewhere" / segment_name(1)).rename(log / segment_name(7))


@pytest.mark.parametrize(
    ("entries", "rules", "said"),
    [
        # A copy of segment 1 hides all from its first index on; of what is dead below the snapshot nothing is said.
        ([(index, 1, b"entry %d" % index) for index in range(1, 9)], {"live-entries", "entries-above"}, "hides them"),
        # The same terms with another content, and a lower term.
        ([(48, 2, b"another")], {"same-entry"}, "has others at their indexes, of no later term"),
        ([(48, 1, b"entry 48")], {"same-entry"}, "has others at their indexes, of no later term"),
        # What a repeated flush writes, and what a new leader drops.
        ([(48, 2, b"entry 48")], set(), ""),
        ([(40, 3, b"of a new leader")], set(), ""),
        # A new leader writes first what it had of an older term, then entries of its own.
        ([(40, 1, b"older"), (41, 3, b"of a new leader")], set(), ""),
        # An installation brings live entries without anything of the leader's own term.
        ([(12, 0, b"older"), *((index, 1 + index // 30, b"entry %d" % index) for index in range(13, 49))], set(), ""),
    ],
)
def test_what_a_stale_segment_hides_is_named(
    run: Run, tmp_path: Path, entries: list[tuple[int, int, bytes]], rules: set[str], said: str
) -> None:
    log = plain_log(tmp_path / "system" / "log")
    rewrite(log, entries)
    found = check(run, log.parent, code=1 if rules else 0)
    assert {name for name, item in found.items() if item["result"] == "fail"} == rules
    for command in (("verify", log.parent), ("inspect", log, "--verify")):
        result = run(*command)
        assert result.exit_code == (1 if rules else 0), result.output
        assert said in result.stderr
    if rules:
        assert f"{log / segment_name(7)}: " in result.stderr
        (log / segment_name(7)).rename(tmp_path / "away")
        assert run("verify", log.parent).exit_code == 0, "the remedy that is named"


def test_what_is_hidden_and_waits_in_the_write_ahead_log_is_not_lost(run: Run, tmp_path: Path) -> None:
    """A flush that was interrupted, and is repeated."""
    log = plain_log(tmp_path / "system" / "log")
    rewrite(log, [(index, 2, b"entry %d" % index) for index in range(41, 45)])
    assert run("verify", log.parent).exit_code == 1
    entries = [LogEntry(index, 2, b"entry %d" % index) for index in range(41, 49)]
    write_wal(log.parent, 1, [(b"log", entry) for entry in entries])
    assert run("verify", log.parent).exit_code == 0
    assert run("inspect", log, "--verify").exit_code == 0


def test_a_hole_inside_a_file_is_reported(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "system" / "log"
    with LogWriter(log, max_count=8, sync=False) as writer:
        for index in (1, 2, 3, 7, 8, 12, 13):
            writer.append(index, 1, b"x")
    write_snapshot(log, index=7, term=1, live=LiveSet.parse("2"), sync=False)
    result = run("verify", log.parent)
    assert result.exit_code == 0
    assert result.stderr.count("no entry of indexes") == 1, "below the snapshot, gaps are what compaction leaves"
    assert f"warning: {log / segment_name(1)}: no entry of indexes 9-11, above the snapshot, is there" in result.stderr
