"""`compactor staging debug exec`: one result for each operation, in order, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stores.staging_commands import StagingCommands, in_folder


def main(op: str, **fields: Any) -> dict[str, Any]:
    return {"op": op, "branch": "main", **fields}


EVERYTHING = (
    {"op": "create_repo", "repo": "second", "namespace": "memory", "default_branch": "main"},
    main("set", key="a", value="1"),
    main("set", key_base64="//4=", value_base64="//4="),
    main("set", key="e", entry={"address": "s3://x/y", "size": 1, "eTag": "e"}),
    main("set", key="i", value="other", identity="c0ffee"),
    main("set_if", key="a", value="2", if_value="1"),
    main("set_if", key="a", value="3", if_absent=True),
    main("set_many", values={"p/1": "x", "p/2": "y"}),
    main("set_many", records=[{"key": "q", "value": "z"}]),
    main("commit", message="first", committer="me", metadata={"a": "b"}),
    main("create_branch", source="main") | {"branch": "etl"},
    main("delete", key="a"),
    main("delete_many", keys=["p/1", "nope"], keys_base64=["//4="]) | {"keys": ["p/1"]},
    {"op": "get", "ref": "main", "key": "a"},
    {"op": "get", "ref": "main", "key": "q", "stage_only": True},
    {"op": "list", "ref": "main", "delimiter": "/", "amount": 3},
    main("diff_uncommitted", prefix="p/"),
    {"op": "diff", "left": "main", "right": "main$"},
    main("seal"),
    main("inspect"),
    main("compact"),
    main("compact"),
    main("reset_key", key="a"),
    main("reset_prefix", prefix="p/"),
    main("diff_uncommitted"),
    main("reset"),
    main("import", values={"n/1": "1"}, prefixes=["p/"]),
    {"op": "merge", "source": "main", "into": "etl"},
    {"op": "cherry_pick", "branch": "main", "ref": "etl~1"},
    main("revert", ref="main"),
    main("hard_reset", ref="main~1"),
    {"op": "create_tag", "tag": "v1", "ref": "main"},
    {"op": "list_tags"},
    {"op": "delete_tag", "tag": "v1"},
    {"op": "list_branches"},
    {"op": "log", "ref": "main", "amount": 2},
    {"op": "delete_branch", "branch": "etl"},
    {"op": "sweep", "grace": 0},
    {"op": "verify"},
)


def test_each_operation_has_a_result_and_the_same_history_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcomes = []
    for name in ("one", "two"):
        staging = in_folder(tmp_path / name)
        operations = [
            item | ({"namespace": str(tmp_path / name / "second")} if "namespace" in item else {"repo": "second"})
            for item in EVERYTHING
        ]
        results = staging.exec(operations, "--clock", "1700000000")
        assert [result["line"] for result in results] == list(range(1, len(EVERYTHING) + 1))
        assert [result["op"] for result in results] == [item["op"] for item in EVERYTHING]
        outcomes.append(results)
    assert outcomes[0] == outcomes[1]
    failed = {(outcome["op"], outcome["error"]) for outcome in outcomes[0] if not outcome["ok"]}
    assert failed == {("set_if", "ConditionFailedError")}
    by_line = dict(enumerate(outcomes[0], 1))
    assert by_line[14] == {"line": 14, "op": "get", "ok": True, "found": False}
    assert by_line[21]["compacted"] is True
    assert by_line[22] == {"line": 22, "op": "compact", "ok": True, "compacted": False}
    assert [item["key_base64"] for item in by_line[25]["entries"]] == ["//4="]
    assert by_line[39]["problems"] == []


def test_keys_and_values_that_are_no_text_are_in_base64(staging: StagingCommands) -> None:
    results = staging.exec(
        [
            main("set", key_base64="//4=", value_base64="gA=="),
            main("set", key="e", entry={"address": "s3://x/y", "size": 1, "eTag": "e"}),
            {"op": "list", "ref": "main"},
        ]
    )
    entry, data = results[2]["entries"]
    assert entry["entry"]["address"] == "s3://x/y"
    assert (data["key_base64"], data["value_base64"]) == ("//4=", "gA==")


def test_an_error_ends_a_history_only_when_it_should(staging: StagingCommands) -> None:
    history = [main("set", key="a", value="1"), main("set", key="", value="1"), main("set", key="b", value="1")]
    one, two, three = staging.exec(history)
    assert (one["ok"], two["ok"], three["ok"]) == (True, False, True)
    assert two["error"] == "KeyValueArgumentError"
    assert len(staging.exec(history, "--stop-on-error", code=1)) == 2
    large = main("delete_many", keys=[str(number) for number in range(1001)])
    assert staging.exec([large])[0]["error"] == "InvalidBatchError"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("not json", "the line is not JSON"),
        ('["set"]', "the line is no JSON object"),
        ('{"op": "sett"}', "which is no operation: write one of create_repo, create_branch"),
        ('{"branch": "main"}', '"op" is None'),
        ('{"op": "set", "branch": "main", "key": "a"}', 'operation set needs "value", a text'),
        ('{"op": "set", "branch": 1, "key": "a", "value": ""}', 'operation set needs "branch", a text'),
        ('{"op": "set", "branch": "main", "key": "a", "value": "", "if": 1}', 'operation set has no field "if"'),
        ('{"op": "set", "branch": "main", "key": "a", "key_base64": "YQ==", "value": ""}', 'has "key" twice'),
        ('{"op": "set", "branch": "main", "key": "\\ud800", "value": ""}', "is not Unicode text"),
        ('{"op": "set_if", "branch": "main", "key": "a", "value": ""}', 'needs one of "if_absent": true'),
        ('{"op": "list", "ref": "main", "amount": "3"}', '"amount" of operation list is a whole number'),
        ('{"op": "commit", "branch": "main", "metadata": {"a": 1}}', '"metadata" of operation commit'),
        ('{"op": "commit", "branch": "main", "allow_empty": 1}', '"allow_empty" of operation commit is true or false'),
        ('{"op": "merge", "source": "a", "into": "b", "strategy": "x"}', "none, source-wins, dest-wins"),
        (
            '{"op": "set_many", "branch": "main", "records": [1]}',
            '"records" of operation set_many is a list of objects',
        ),
        ('{"op": "set_many", "branch": "main", "records": [{"kye": "a"}]}', 'a record has no field "kye"'),
        ('{"op": "sweep", "grace": "1h"}', '"grace" of operation sweep is a number of seconds'),
    ],
)
def test_a_line_that_is_no_operation_ends_the_history_before_it(staging: StagingCommands, raw: str, words: str) -> None:
    first = json.dumps(main("set", key="z", value="1"))
    result = staging.run("debug", "exec", "-", input=f"{first}\n\n{raw}\n{first}\n")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: standard input: line 3: ")
    assert words in line
    assert staging.keys() == ["z"]


def test_a_store_that_is_gone_is_an_error_of_each_operation(staging: StagingCommands, tmp_path: Path) -> None:
    staging.environment = {"COMPACTION_KV_URL": f"sqlite:///{tmp_path}/none/kv.db"}
    result = staging.run("debug", "exec", "-", input='{"op": "get", "repo": "example", "ref": "main", "key": "a"}\n')
    assert json.loads(result.stdout)["error"] == "NoStagingAreaError"
    assert not (tmp_path / "none").exists()
    assert staging.run("debug", "exec", "-", input='{"op": "get", "ref": "main", "key": "a"}\n').exit_code == 2
    (tmp_path / "kv.db").write_text("no database")
    staging.environment = {"COMPACTION_KV_URL": f"sqlite:///{tmp_path}/kv.db", "COMPACTION_REPOSITORY": "example"}
    result = staging.run("debug", "exec", "-", input='{"op": "get", "ref": "main", "key": "a"}\n')
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (1, False)
    assert "No such file" in staging.fails("debug", "exec", tmp_path / "none")


def test_what_was_acknowledged_is_there_after_a_kill(staging: StagingCommands) -> None:
    command = [sys.executable, "-m", "compaction.cli.main", "staging", "debug", "exec", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | staging.environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(20):
        process.stdin.write(json.dumps(main("set", key=f"{number:02}", value="1")) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == number + 1, "each result is flushed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert staging.keys() == [f"{number:02}" for number in range(20)]
    assert staging.data("verify")["problems"] == []


KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "c"])
OPERATIONS = st.one_of(
    st.builds(lambda key, value: main("set", key=key, value=value), KEYS, st.sampled_from("xyz")),
    st.builds(lambda key: main("delete", key=key), KEYS),
    st.sampled_from([main("seal"), main("compact"), main("commit"), main("reset"), {"op": "sweep", "grace": 0}]),
    st.sampled_from([main("reset_prefix", prefix="a/"), main("reset_key", key="b")]),
)


@settings(deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_a_history_shows_what_a_model_says(
    tmp_path_factory: pytest.TempPathFactory, history: list[dict[str, Any]]
) -> None:
    staging = in_folder(tmp_path_factory.mktemp("model"))
    shown: dict[str, str] = {}
    committed: dict[str, str] = {}
    expected = []
    for item in history:
        match item["op"]:
            case "set":
                shown[item["key"]] = item["value"]
            case "delete":
                shown.pop(item["key"], None)
            case "commit":
                committed = dict(shown)
            case "reset":
                shown = dict(committed)
            case "reset_prefix" | "reset_key":
                prefix = item.get("prefix", item.get("key"))
                shown = {key: value for key, value in shown.items() if not key.startswith(prefix)}
                shown |= {key: value for key, value in committed.items() if key.startswith(prefix)}
        expected.append(sorted(shown.items()))
    listing = {"op": "list", "ref": "main"}
    results = staging.exec([item for operation in history for item in (operation, listing)])
    found = [[(entry["key"], entry["value"]) for entry in result["entries"]] for result in results[1::2]]
    assert found == expected
