"""`compactor blocks sweep` as a user meets it: retention, tombstones and orphans, shown and done."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.blocks.cli import sweep as sweep_command
from compaction.blocks.index.queued import Fault
from compaction.blocks.index.tombstones import failed
from compaction.storage.errors import ObjectStoreUnavailableError
from support.blocks.block_commands import BlockCommands, policy_file

PARTS = ("retention", "tombstones", "orphans")
ONLY_TOMBSTONES = ("sweep", "--only", "tombstones")
ONLY_ORPHANS = ("sweep", "--only", "orphans", "--older-than", "0s")


def littered(blocks: BlockCommands) -> tuple[str, str, str]:
    """A store with something for each part: the id of an old block, of one that is replaced, the path of an orphan."""
    (replaced,) = blocks.add(1)
    with blocks.opened() as store:
        store.set_aside({replaced: Fault("SourceCorrupt", "x")})
        store.drop(replaced)
    (old,) = blocks.add(2)  # made in 2023, its rows of 1970
    return old, replaced, blocks.write(3)


def test_all_parts_are_shown_in_order_and_nothing_is_changed(blocks: BlockCommands) -> None:
    old, replaced, orphan = littered(blocks)
    asked = ("sweep", "--keep", "24h", "--grace", "0s", "--older-than", "0s")
    found = blocks.data(*asked)
    assert list(found) == ["applied", *PARTS]
    assert found["applied"] is False
    assert [item["block"] for item in found["retention"]["items"]] == [old]
    assert [item["block"] for item in found["tombstones"]["items"]] == [replaced]
    assert found["tombstones"]["swept"] is None
    assert [item["path"] for item in found["orphans"]["items"]] == [orphan]
    shown = blocks.run(*asked).stdout
    said = ["would end; nothing was changed (--apply does it)", "wait for their deletion, 1 of those", "1 orphan with "]
    assert [text in shown for text in said] == [True] * 3
    assert sorted(said, key=shown.index) == said
    assert blocks.data(*asked) | {"orphans": None} == found | {"orphans": None}, "only ages have changed"
    assert len(blocks.data("list")["items"]) == 1
    assert len({info.path for info in blocks.objects.list("acme")}) == 3


def test_all_parts_are_done_what_has_just_ended_included(blocks: BlockCommands) -> None:
    old, _, _ = littered(blocks)
    asked = ("sweep", "--keep", "24h", "--grace", "0s", "--older-than", "0s", "--apply")
    done = blocks.data(*asked)
    assert done["applied"] is True
    assert [item["block"] for item in done["retention"]["items"]] == [old]
    assert (done["tombstones"]["swept"]["blocks"], done["tombstones"]["blocks"]) == (2, 0)
    assert done["orphans"]["deleted"] == 1
    assert list(blocks.objects.list("acme")) == []
    assert blocks.data("list")["items"] == []
    shown = blocks.run(*asked).stdout
    assert shown.splitlines() == [
        "0 blocks with 0 ended; their objects are deleted after the grace",
        "deleted: 0 blocks, 0",
        "0 blocks with 0 wait for their deletion, 0 of those shown are due; 0 could not be deleted so far",
        "0 orphans with 0 deleted",
    ]


def test_only_the_parts_that_are_named_are_done(blocks: BlockCommands) -> None:
    old, replaced, orphan = littered(blocks)
    shown = blocks.data("sweep", "--only", "orphans", "--only", "tombstones", "--grace", "0s")
    assert {part for part in PARTS if shown[part] is None} == {"retention"}
    done = blocks.data("sweep", "--only", "orphans", "--apply", "--older-than", "0s")
    assert (done["retention"], done["tombstones"], done["orphans"]["deleted"]) == (None, None, 1)
    assert [item["block"] for item in blocks.data("sweep")["tombstones"]["items"]] == [replaced]
    assert [item["id"] for item in blocks.data("list")["items"]] == [old]
    assert orphan not in {info.path for info in blocks.objects.list("acme")}


def test_without_a_period_there_is_no_retention_and_that_is_said(blocks: BlockCommands, tmp_path: Path) -> None:
    blocks.add(1)
    for applied in ((), ("--apply", "--grace", "1h")):
        assert blocks.run("sweep", *applied).stdout.startswith("no retention: give --keep or a policy (-f)\n")
        assert blocks.data("sweep", *applied)["retention"] is None
    assert len(blocks.data("list")["items"]) == 1
    policy = policy_file(tmp_path / "policy.yaml", blocks, retention={"default": "24h"})
    assert blocks.data("sweep", "-f", policy)["retention"]["blocks"] == 1
    assert blocks.data("sweep", "-f", policy, "--keep", "999999h")["retention"]["blocks"] == 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--only", "retention"], "Give --keep, --keep-tenant, or a policy (-f)"),
        (["--only", "retention", "--only", "orphans", "--apply"], "Give --keep, --keep-tenant, or a policy (-f)"),
        (["--apply"], "Give --grace, or a policy (-f)"),
        (["--apply", "--keep", "24h"], "Give --grace, or a policy (-f)"),
        (["--only", "tombstones", "--apply"], "Give --grace, or a policy (-f)"),
        (["--only", "orphans", "--keep", "24h"], "--keep is about retention, which --only leaves out"),
        (["--only", "tombstones", "--keep-tenant", "a=1d"], "--keep-tenant is about retention"),
        (["--only", "orphans", "--grace", "0s"], "--grace is about tombstones"),
        (["--only", "tombstones", "--older-than", "1h"], "--older-than is about orphans"),
        (["--only", "orphans", "--limit", "1"], "--limit is about retention and tombstones"),
        (["--only", "all"], "'all' is not one of 'retention', 'tombstones', 'orphans'"),
        (["--grace", "soon"], "soon"),
        (["--keep-tenant", "audit"], "write TENANT=DURATION"),
    ],
)
def test_nothing_is_done_when_options_do_not_fit(blocks: BlockCommands, wrong: list[str], said: str) -> None:
    littered(blocks)
    refused = blocks.run("sweep", *wrong)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
    assert len({info.path for info in blocks.objects.list("acme")}) == 3


@pytest.mark.parametrize(
    ("part", "broken"), [("retention", "expire_all"), ("tombstones", "sweep_all"), ("orphans", "collect_orphans")]
)
def test_a_part_that_fails_is_named_and_the_others_are_done(
    blocks: BlockCommands, monkeypatch: pytest.MonkeyPatch, part: str, broken: str
) -> None:
    littered(blocks)

    def unavailable(*_args: object, **_options: object) -> Any:
        raise ObjectStoreUnavailableError("", "no answer from the store")

    monkeypatch.setattr(sweep_command, broken, unavailable)
    asked = ("sweep", "--keep", "24h", "--grace", "0s", "--older-than", "0s", "--apply")
    result = blocks.run(*asked, "-o", "json")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {blocks.connection.url}: no answer from the store. Check the folder"), line
    done = json.loads(result.stdout)
    assert [name for name in PARTS if done[name] is None] == [part]
    counts: dict[str, Callable[[], int]] = {
        "retention": lambda: done["retention"]["blocks"],
        "tombstones": lambda: done["tombstones"]["swept"]["blocks"],
        "orphans": lambda: done["orphans"]["deleted"],
    }
    assert all(count() >= 1 for name, count in counts.items() if name != part)
    table = blocks.run(*asked)
    assert table.exit_code == 1
    assert len(table.stdout.splitlines()) == {"retention": 3, "tombstones": 2, "orphans": 3}[part]


def test_what_cannot_be_deleted_is_named_and_ends_with_an_error(blocks: BlockCommands) -> None:
    _, replaced, orphan = littered(blocks)
    blocks.objects.put("acme/_delta_log/0.json", b"{}")
    dry = blocks.run("sweep", "--only", "orphans", "--older-than", "0s")
    assert f"1 object kept: {orphan}: it belongs to" in dry.stdout
    result = blocks.run("sweep", "--grace", "0s", "--older-than", "0s", "--apply")
    assert result.exit_code == 1
    first, second = result.stderr.splitlines()
    assert first.startswith(f"error: block {replaced} could not be deleted: ")
    assert second.startswith(f"error: {orphan} could not be deleted: ")
    assert " wait for their deletion, 1 of those shown are due; 1 could not be deleted so far" in result.stdout
    assert "0 orphans with 0 deleted" in result.stdout


def test_sweep_prints_yaml_and_wide_tables(blocks: BlockCommands) -> None:
    _, replaced, orphan = littered(blocks)
    asked = ("sweep", "--keep", "24h", "--older-than", "0s")
    data = yaml.safe_load(blocks.run(*asked, "-o", "yaml").stdout)
    assert data["orphans"]["items"][0]["path"] == orphan
    path = data["tombstones"]["items"][0]["path"]
    assert (path in blocks.run(*asked).stdout, path in blocks.run(*asked, "-o", "wide").stdout) == (False, True)
    assert replaced in path


def test_when_a_tombstone_is_due_says_whoever_knows_the_grace(blocks: BlockCommands, tmp_path: Path) -> None:
    """A store does not know its policy: without one no time is made up, and nothing is deleted before its grace."""
    blocks.add(1, 2)
    blocks.data("compact", "--all")
    assert {item["due"] for item in blocks.data("sweep")["tombstones"]["items"]} == {None}
    assert "2 blocks with " in blocks.run("sweep").stdout
    assert "due when the policy says (give -f or --grace)" in blocks.run("sweep").stdout
    refused = blocks.run("sweep", "--apply")
    assert refused.exit_code == 2
    assert "Give --grace, or a policy (-f)" in refused.stderr
    policy = policy_file(tmp_path / "policy.yaml", blocks, spec={"cleanup": {"delay": "20s"}})
    for item in blocks.data("sweep", "-f", policy)["tombstones"]["items"]:
        due, since = (datetime.fromisoformat(item[name]) for name in ("due", "since"))
        assert due - since == timedelta(seconds=20)


def test_tombstones_say_since_when_why_and_what_failed(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    assert blocks.run(*ONLY_TOMBSTONES).stdout.startswith("0 blocks with 0 wait for their deletion")
    with blocks.opened() as store:
        store.set_aside({name: Fault("SourceCorrupt", "x") for name in (one, two)})
        store.drop(one)
        store.drop(two)
        failed(store.index, {one: "access was denied"}, now=store.now())
    found = blocks.data("sweep", "--grace", "1h")["tombstones"]
    assert (found["blocks"], found["failing"]) == (2, 1)
    assert {item["block"]: (item["attempts"], item["error"]) for item in found["items"]} == {
        one: (1, "access was denied"),
        two: (0, None),
    }
    since, due = found["items"][0]["since"], found["items"][0]["due"]
    assert since < due
    assert "0 of those shown are due" in blocks.run("sweep", "--grace", "1h").stdout
    assert "2 of those shown are due; 1 could not be deleted so far" in blocks.run("sweep", "--grace", "0s").stdout
    assert len(blocks.data(*ONLY_TOMBSTONES, "--limit", "1")["tombstones"]["items"]) == 1


def test_a_sweep_deletes_what_is_due_and_nothing_else(blocks: BlockCommands) -> None:
    one, two = blocks.add(1, 2)
    paths = {item["id"]: item["path"] for item in blocks.data("list")["items"]}
    with blocks.opened() as store:
        store.set_aside({one: Fault("SourceCorrupt", "x")})
        store.drop(one)
    early = blocks.data("sweep", "--apply", "--grace", "1h")["tombstones"]
    assert (early["swept"]["blocks"], early["blocks"]) == (0, 1)
    assert blocks.objects.head(paths[one]).path == paths[one]
    done = blocks.data("sweep", "--apply", "--grace", "0s")["tombstones"]
    assert (done["swept"]["blocks"], done["swept"]["failed"], done["blocks"]) == (1, [], 0)
    assert [info.path for info in blocks.objects.list("acme")] == [paths[two]]
    assert "deleted: 0 blocks, 0" in blocks.run("sweep", "--apply", "--grace", "0s").stdout
    assert "is deleted" in blocks.fails("quarantine", one, "--release")


def test_retention_is_said_and_then_done(blocks: BlockCommands) -> None:
    ids = blocks.add(1, 2)  # made in 2023, their rows of 1970
    (kept,) = blocks.add(3, tenant="audit")
    asked = ("sweep", "--only", "retention", "--keep", "24h", "--keep-tenant", "audit=0s")
    dry = blocks.data(*asked)["retention"]
    assert [item["block"] for item in dry["items"]] == ids
    assert (dry["ended"], dry["blocks"], dry["more"]) == (False, 2, False)
    assert "more than 1 blocks would end" in blocks.run(*asked, "--limit", "1").stdout
    assert len(blocks.data("list")["items"]) == 3
    assert blocks.data("sweep", "--keep", "999999h")["retention"]["items"] == []
    result = blocks.run(*asked, "--apply")
    assert "2 blocks with" in result.stdout
    assert [item["id"] for item in blocks.data("list")["items"]] == [kept]
    assert {item["reason"] for item in blocks.data("sweep")["tombstones"]["items"]} == {"expired"}
    assert "0 blocks with 0 would end; nothing was changed (--apply does it)" in blocks.run(*asked).stdout


def test_orphans_are_listed_and_deleted_only_when_asked(blocks: BlockCommands) -> None:
    blocks.add(1)
    orphan = blocks.write(2)
    blocks.objects.put("notes/readme.txt", b"somebody else's")
    assert blocks.data("sweep")["orphans"]["items"] == []  # too young
    found = blocks.data(*ONLY_ORPHANS)["orphans"]
    assert [item["path"] for item in found["items"]] == [orphan]
    assert "1 orphan with" in blocks.run(*ONLY_ORPHANS).stdout
    assert blocks.objects.head(orphan).size == found["items"][0]["bytes"]
    assert blocks.data(*ONLY_ORPHANS, "--apply")["orphans"] == {
        "deleted": 1,
        "bytes": found["items"][0]["bytes"],
        "failed": [],
    }
    left = {info.path for info in blocks.objects.list()}
    assert orphan not in left
    assert "notes/readme.txt" in left
    assert len(blocks.data("verify")["items"]) == 1
    assert "0 orphans with 0 deleted" in blocks.run(*ONLY_ORPHANS, "--apply").stdout
    assert "was collected as an orphan" in blocks.fails("register", blocks.write(2), "--tenant", "acme")
