"""`compactor segments debug exec`: one result for each operation, in order; killed anywhere, then verified."""

from __future__ import annotations

import json
import random
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.segments.cli.commands import group
from compaction.segments.cli.exec import OPERATIONS
from house.sources import ROOT
from support.segments.log_owners import owner_process
from support.segments.segment_logs import Run
from support.timing import at_depth, examples

SMALL = ("--wal-entries", "20", "--max-entries", "8")


def exec_(directory: Path, *lines: dict[str, Any] | str, options: tuple[str, ...] = ()) -> Result:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    result = CliRunner().invoke(group, ["debug", "exec", str(directory), "-", *options], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def carry_out(directory: Path, *lines: dict[str, Any], options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    result = exec_(directory, *lines, options=options)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def a(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "log": "a", **fields}


def test_each_operation_has_its_result(tmp_path: Path) -> None:
    found = carry_out(
        tmp_path / "system",
        a("open"),
        a("append", index=1, term=1, payload="x", repeat=5),
        a(
            "append",
            entries=[{"index": 6, "term": 1, "payload": "y"}, {"index": 7, "term": 1, "payload_base64": "/w=="}],
        ),
        a("append", index=9, term=1, payload="x"),
        a("write_sparse", index=10, term=2, payload="s", previous=7),
        a("read", **{"from": 6}),
        a("read", indexes=[1, 6, 9], amount=1),
        a("truncate", **{"from": 7}),
        a("indexes", **{"from": 2}),
        a("append", index=7, term=3, payload="n"),
        a("snapshot", index=5, term=1, live="2,4", state="whatever"),
        a("fold"),
        {"op": "roll"},
        {"op": "drain"},
        a("state"),
        {"op": "state"},
        {"op": "close"},
        {"op": "close"},
        {"op": "state"},
        {"op": "reopen"},
        a("fold", **{"from": 4}),
        {"op": "read", "log": "b"},
        a("close"),
        a("append", index=8, term=3, payload="n"),
    )
    assert [item["line"] for item in found] == list(range(1, 25))
    failed = {item["line"]: (item["error"], item["message"].split(": ", 1)[1]) for item in found if not item["ok"]}
    assert failed == {
        4: ("LogGapError", "index 9 leaves a gap: the next entry is index 8"),
        19: ("LogClosedError", "closed: the system of logs is closed: reopen it"),
        22: ("UnknownLogError", "the system has no log 'b': open it first, which creates it"),
        24: ("LogClosedError", "closed: the log is closed"),
    }
    results = {item.pop("line"): item for item in found if item.pop("op") and item.pop("ok")}
    assert results[2] == {"index": 5, "term": 1}
    assert results[6]["entries"] == [
        {"index": 6, "term": 1, "payload": "y"},
        {"index": 7, "term": 1, "payload_base64": "/w=="},
        {"index": 10, "term": 2, "payload": "s"},
    ]
    assert results[7] == {"entries": [{"index": 1, "term": 1, "payload": "x"}], "more": True}
    assert results[8] == {"last": {"index": 6, "term": 1}}
    assert results[9] == {"indexes": "2-6", "count": 5}
    assert results[11] == {"index": 5, "term": 1, "live": 2, "path": "0000000000000001_0000000000000005"}
    kept = [(2, 1, b"x"), (4, 1, b"x"), (6, 1, b"y"), (7, 3, b"n")]
    data = b"".join(index.to_bytes(8, "big") + term.to_bytes(8, "big") + payload for index, term, payload in kept)
    assert results[12] == {"count": 4, "bytes": 4, "crc32": f"{zlib.crc32(data):08x}"}
    assert results[14] == {"drained": True}
    assert results[15] == {
        "last": {"index": 7, "term": 3},
        "last_written": {"index": 7, "term": 3},
        "snapshot": {"index": 5, "term": 1},
        "live": "2,4",
        "segments": 1,
        "segment_bytes": 4,
        "unflushed": 0,
        "unflushed_bytes": 0,
    }
    assert results[16] == {"logs": ["a"], "broken": {}, "wal": ["0000000000000002.wal"], "tails": []}
    assert results[20] == {"logs": ["a"]}
    assert results[21]["count"] == 3


def test_every_operation_is_documented_with_an_example_that_runs(tmp_path: Path) -> None:
    """The console of the page, line by line."""
    page = (ROOT / "docs" / "segment-logs.md").read_text()
    shown = re.search(
        r"\$ cat history\.jsonl\n(.*?)\$ compactor segments debug exec system history\.jsonl\n(.*?)```", page, re.S
    )
    assert shown is not None
    lines, results = shown[1].splitlines(), shown[2].splitlines()
    assert {json.loads(line)["op"] for line in lines} == set(OPERATIONS)
    result = exec_(tmp_path / "system", *lines)
    assert result.exit_code == 0
    assert result.stdout.replace(f"{tmp_path}/", "").splitlines() == results
    for name, operation in OPERATIONS.items():
        fields = ", ".join(f"`{field}`" for field in operation.fields) or "-"
        assert f"| `{name}` | {fields} |" in page, name


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("not json", "the line is not JSON"),
        ('{"op": "appendd"}', "which is no operation: write one of open, append, write_sparse"),
        ('{"op": "append", "log": "a", "index": 1, "term": 1}', 'operation append needs "payload", a text'),
        ('{"op": "append", "index": 1, "term": 1, "payload": "x"}', 'operation append needs "log", a text'),
        (
            '{"op": "append", "log": "a", "index": -1, "term": 1, "payload": "x"}',
            '"index" of operation append is a whole',
        ),
        (
            '{"op": "append", "log": "a", "index": 1, "term": 1, "payload_base64": "!"}',
            '"payload_base64" is not base64',
        ),
        ('{"op": "append", "log": "a", "index": 1, "entries": []}', 'has "entries" or "index", not both'),
        ('{"op": "append", "log": "a", "entries": [{"indx": 1}]}', 'an entry has no field "indx"'),
        ('{"op": "append", "log": "a", "entries": [1]}', '"entries" of operation append is a list of objects'),
        ('{"op": "snapshot", "log": "a", "index": 1, "term": 1}', 'needs "live", indexes as "1-5,9"'),
        ('{"op": "snapshot", "log": "a", "index": 1, "term": 1, "live": "5-3"}', "is not a range of indexes"),
        ('{"op": "read", "log": "a", "from": 1, "indexes": "1"}', 'has "indexes", or "from" and "to", not both'),
        ('{"op": "roll", "log": "a"}', 'operation roll has no field "log"'),
        ('{"op": "drain", "timeout": "1s"}', '"timeout" of operation drain is a number of seconds'),
    ],
)
def test_a_line_that_is_no_operation_ends_the_history_before_it(tmp_path: Path, raw: str, words: str) -> None:
    first = a("append", index=1, term=1, payload="x")
    result = exec_(tmp_path / "system", a("open"), first, "", raw, first)
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr.startswith("error: standard input: line 4: ")
    assert words in result.stderr


def test_an_error_ends_a_history_only_when_it_should(run: Run, tmp_path: Path) -> None:
    lines = [a("open"), a("append", index=7, term=1, payload=""), a("append", index=7, term=1, payload="x")]
    found = carry_out(tmp_path / "system", *lines)
    assert [item["ok"] for item in found] == [True, False, True]
    assert found[1]["error"] == "InvalidEntryError"
    stopped = exec_(
        tmp_path / "system",
        a("truncate", **{"from": "7"}) | {"from": 0},
        a("append", index=2, term=1, payload=""),
        a("state"),
        options=("--stop-on-error",),
    )
    assert (stopped.exit_code, len(stopped.stdout.splitlines())) == (1, 2)
    assert run("debug", "exec", tmp_path / "none" / "system", "-").exit_code == 1
    assert run("debug", "exec", tmp_path / "system", tmp_path / "none").exit_code == 1
    (tmp_path / "history.jsonl").write_text('{"op": "state"}\n{"op": "no"}\n')
    result = run("debug", "exec", tmp_path / "system", tmp_path / "history.jsonl")
    assert result.stderr.startswith(f"error: {tmp_path}/history.jsonl: line 2: ")
    (tmp_path / "system" / "0000000000000099.wal").write_bytes(b"RAWX")
    refused = run("debug", "exec", tmp_path / "system", tmp_path / "history.jsonl")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "0000000000000099.wal: not a write-ahead log file" in refused.stderr


def test_a_member_that_is_behind_gets_a_snapshot_and_its_live_entries(run: Run, tmp_path: Path) -> None:
    """Beside a compaction by the owner; all of it conforms, also while an installation's cut is there."""
    system = tmp_path / "system"
    found = carry_out(
        system,
        a("open"),
        a("append", index=1, term=1, payload="x", repeat=60),
        {"op": "roll"},
        {"op": "drain"},
        a("snapshot", index=50, term=1, live="3,20-22,50"),
        a("compact"),
        {"op": "open", "log": "b"},
        {"op": "append", "log": "b", "index": 1, "term": 1, "payload": "x", "repeat": 10},
        {"op": "install", "log": "b", "from": "a", "term": 2, "applied": 10},
        {"op": "install", "log": "b", "from": "a", "term": 2, "applied": 50},
        {"op": "install", "log": "a", "from": "b", "term": 1},
        {"op": "indexes", "log": "b"},
        {"op": "append", "log": "b", "index": 51, "term": 2, "payload": "y"},
        {"op": "reopen"},
        {"op": "indexes", "log": "b"},
        options=SMALL,
    )
    assert found[5]["ok"]
    assert (found[8]["installed"], found[8]["last"]) == (True, {"index": 50, "term": 1})
    assert found[9]["installed"] is False
    assert [found[position]["indexes"] for position in (11, 14)] == ["3,20-22,50", "3,20-22,50-51"]
    assert run("verify", system).exit_code == 0
    assert run("verify", system, "--rules").exit_code == 0


def test_a_live_set_that_is_missing_is_given_or_refused(tmp_path: Path) -> None:
    system = tmp_path / "system"
    carry_out(
        system, a("open"), a("append", index=1, term=1, payload="x", repeat=9), a("snapshot", index=5, term=1, live=[2])
    )
    next(system.rglob("indexes")).unlink()
    refused, opened, state = carry_out(system, a("fold"), a("open", live="2"), a("state"))
    assert refused["error"] == "LiveSetUnknownError"
    assert opened["live"] == state["live"] == "2"


def test_another_process_waits_for_its_turn_and_is_named(run: Run, tmp_path: Path) -> None:
    with owner_process(tmp_path / "system") as owner:
        owner.ask("open", log="a")
        # It reads, while another writes.
        assert run("verify", tmp_path / "system").exit_code == 0
        assert run("debug", "wal", tmp_path / "system").exit_code == 0
        refused = run("debug", "exec", tmp_path / "system", "-", "--lock-timeout", "0.1")
        assert refused.exit_code == 1
        assert f"pid {owner.process.pid}" in refused.stderr


def test_what_was_acknowledged_is_there_after_a_kill_anywhere(run: Run, tmp_path: Path) -> None:
    """Appends, overwrites, snapshots and rolls without a pause; killed in the middle; verified; opened again; again."""
    system, chance = tmp_path / "system", random.Random(5)
    content: dict[int, str] = {}
    last, term, snapshot, live = 0, 1, 0, set[int]()
    for _ in range(at_depth(short=3, deep=12)):
        with owner_process(system, *SMALL) as owner:
            owner.ask("open", log="a")
            found = owner.ask("read", log="a")["entries"]
            needed = {index: text for index, text in content.items() if index > snapshot or index in live}
            shown = {item["index"]: item["payload"] for item in found}
            assert needed.items() <= shown.items()
            assert len(shown.keys() - needed.keys()) <= 3, "at most the one write that was not acknowledged"
            content, last = dict(shown), max(shown, default=snapshot)
            for _ in range(chance.randint(20, 120)):
                match chance.randrange(12):
                    case 0 if last > snapshot:
                        chosen = chance.randint(snapshot + 1, last)
                        members = {index for index in content if index <= chosen and chance.random() < 0.4}
                        owner.ask("snapshot", log="a", index=chosen, term=term, live=sorted(members))
                        snapshot, live = chosen, members
                        content = {index: text for index, text in content.items() if index > chosen or index in members}
                    case 1:
                        owner.ask("roll")
                    case 2 if last > snapshot:
                        term += 1
                        first = chance.randint(snapshot + 1, last)
                        owner.ask("append", log="a", index=first, term=term, payload=f"{first}@{term}")
                        content = {index: text for index, text in content.items() if index < first}
                        content[first], last = f"{first}@{term}", first
                    case _:
                        owner.ask("append", log="a", index=last + 1, term=term, payload=f"{term}", repeat=3)
                        content |= dict.fromkeys(range(last + 1, last + 4), f"{term}")
                        last += 3
            owner.send("append", log="a", index=last + 1, term=term, payload="unseen", repeat=3)
            owner.send("roll")
            owner.kill()
        verified = run("verify", system)
        assert verified.exit_code == 0, verified.output
    assert run("verify", system, "--rules").exit_code == 0


def test_writes_in_flight_share_a_sync_and_keep_their_order(run: Run, tmp_path: Path) -> None:
    """Killed while many wait: the log holds what was acknowledged, and what follows it without a gap."""
    system = tmp_path / "system"
    with owner_process(system, "--in-flight", "64") as owner:
        for name in "ab":
            owner.ask("open", log=name)
        for index in range(1, 201):
            for name in "ab":
                owner.send("append", log=name, index=index, term=1, payload=f"{name}{index}")
        owner.send("append", log="a", index=999, term=1, payload="gap")
        owner.send("state", log="b")
        results = [owner.result() for _ in range(402)]
        assert [result["index"] for result in results[:400] if result] == [
            index for index in range(1, 201) for _ in "ab"
        ]
        assert results[400] is not None
        assert results[401] is not None
        assert results[400]["error"] == "LogGapError"
        assert results[401]["last_written"] == results[401]["last"] == {"index": 200, "term": 1}
        for index in range(201, 1201):
            owner.send("append", log="a", index=index, term=1, payload=f"a{index}")
        acknowledged = [owner.result() for _ in range(at_depth(short=300, deep=900))][-1]
        owner.kill()
    assert acknowledged is not None
    (found,) = carry_out(system, a("indexes"))
    assert re.fullmatch(r"1-\d+", found["indexes"])
    assert found["count"] >= acknowledged["index"]
    assert run("verify", system).exit_code == 0


def test_a_bad_line_ends_a_history_behind_what_is_in_flight(tmp_path: Path) -> None:
    lines: list[dict[str, Any] | str] = [
        a("open"),
        *(a("append", index=index, term=1, payload="x") for index in range(1, 30)),
        "{",
        a("state"),
    ]
    result = exec_(tmp_path / "system", *lines, options=("--in-flight", "8"))
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 30
    assert result.stderr.startswith("error: standard input: line 31: ")


OPERATION = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("back"), st.integers(1, 6)),
    st.tuples(st.just("truncate"), st.integers(1, 6)),
    st.tuples(st.just("snapshot"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["roll", "drain", "reopen"]), st.just(0)),
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(OPERATION, max_size=20), keep=st.randoms(use_true_random=False))
def test_a_history_shows_what_a_model_says(
    tmp_path_factory: pytest.TempPathFactory, run: Run, history: list[tuple[str, int]], keep: random.Random
) -> None:
    system = tmp_path_factory.mktemp("model") / "system"
    lines, expected = _modelled(history, keep)
    found = carry_out(system, *lines, options=SMALL)
    assert all(item["ok"] for item in found), found
    assert [[e["index"] for e in item["entries"]] for item in found if item["op"] == "read"] == expected
    verified = run("verify", system)
    assert verified.exit_code == 0, verified.output


def _modelled(history: list[tuple[str, int]], keep: random.Random) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The operations, each with a `read` behind it, and the indexes that each `read` shows."""
    lines, expected = [a("open")], []
    content, last, snapshot, term, truncated = list[int](), 0, 0, 1, False
    for op, number in history:
        back = max(snapshot + 1, last + 1 - number)
        match op:
            case "append" | "back":
                first = last + 1 if op == "append" else back
                term += 1
                lines.append(a("append", index=first, term=term, payload="x", repeat=number))
                content = [index for index in content if index < first] + list(range(first, first + number))
                last, truncated = first + number - 1, False
            case "truncate" if last > snapshot:
                lines.append(a("truncate", **{"from": back}))
                content, last, truncated = [index for index in content if index < back], back - 1, True
            case "snapshot" if last > snapshot and not truncated:
                live = [index for index in content if index <= last and keep.random() < 0.5]
                lines.append(a("snapshot", index=last, term=term, live=live))
                content, snapshot = live, last
            case "roll" | "drain" | "reopen" if not (op == "reopen" and truncated):
                lines.append({"op": op})
        lines.append(a("read"))
        expected.append(sorted(content))
    return lines, expected
