"""`compactor catalogs apply`, `list`, `inspect` and `diff` on a real etcd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compaction.catalogs.log.etcd.wire import Operation, Put, Transaction
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.layout import Keys, Stored, encoded, last
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.model.descriptors import ColumnType, Constant, Date, TableColumn, later
from compaction.catalogs.model.entries import NewColumnsEntry, VersionedUpdate
from compaction.cli.main import main
from support.catalogs.etcd_members import EtcdStore, Members

DDL = """
- type: CREATE_ZONE
  zone: FAST
  storageProfiles: [default]
- - type: CREATE_TABLE
    schema: PUBLIC
    table: ORDERS
    zone: FAST
    columns:
      - {name: ID, type: INT32, nullable: false}
      - {name: NOTE, type: STRING, nullable: true, length: 100}
    pk: {columns: [ID]}
  - type: CREATE_INDEX
    schema: PUBLIC
    table: ORDERS
    index: BY_NOTE
    kind: HASH
    columns: [NOTE]
- type: CREATE_SCHEMA
  schema: PUBLIC
  ifNotExists: true
- type: RENAME_TABLE
  schema: PUBLIC
  table: ORDERS
  newName: SALES
"""


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main(["catalogs", *map(str, args)])
    output = capsys.readouterr()
    return code, output.out, output.err


def shown(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    code, out, err = run(capsys, *args, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def applied(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, empty_place: list[str], ddl: str
) -> tuple[int, str, str]:
    file = tmp_path / "ddl.yaml"
    file.write_text(ddl)
    return run(capsys, "apply", file, *empty_place, "--delay", 1, "--max-skew", 1)


def test_from_ddl_to_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path, empty_place: list[str]) -> None:
    code, out, err = applied(capsys, tmp_path, empty_place, DDL)
    assert (code, err) == (0, "")
    assert [line.split()[:5] for line in out.splitlines()[1:]] == [
        ["1", "2", "1", "of", "1"],
        ["2", "3", "2", "of", "2"],
        ["3", "3", "0", "of", "1"],
        ["4", "4", "1", "of", "1"],
    ]

    latest = shown(capsys, "inspect", *empty_place)
    assert [table["name"] for schema in latest["schemas"] for table in schema["tables"]] == ["SALES"]
    before = shown(capsys, "inspect", *empty_place, "--version", 3)
    assert [table["name"] for schema in before["schemas"] for table in schema["tables"]] == ["ORDERS"]
    assert shown(capsys, "inspect", *empty_place, "--at", "2999-01-01T00:00:00Z") == latest

    _, out, _ = run(capsys, "inspect", *empty_place)
    assert "Fingerprint:   " + latest["fingerprint"] in out
    (table,) = [line for line in out.splitlines() if line.startswith("Table")]
    assert table.split()[2:6] == ["PUBLIC", "SALES", "2", "columns,"]

    versions = shown(capsys, "list", *empty_place)
    assert [version["version"] for version in versions] == [1, 2, 3, 4]
    assert [version["@type"] for version in versions[3]["value"]["entries"]] == ["RENAME_TABLE", "RENAME_INDEX"]
    assert versions[3]["activationTime"] == latest["time"]
    _, out, _ = run(capsys, "list", *empty_place)
    assert out.splitlines()[4].split()[2:] == ["Update", "RENAME_TABLE,", "RENAME_INDEX"]

    changes = shown(capsys, "diff", 2, 4, *empty_place)
    assert {(change["change"], change["kind"], change["name"]) for change in changes} == {
        ("Changed", "Schema", "PUBLIC"),
        ("Created", "Index", "SALES_PK"),
        ("Created", "Index", "BY_NOTE"),
        ("Created", "Table", "SALES"),
    }
    renamed = shown(capsys, "diff", 3, 4, *empty_place)
    assert [(item["change"], item["kind"], item["name"]) for item in renamed] == [
        ("Changed", "Index", "SALES_PK"),
        ("Changed", "Schema", "PUBLIC"),
        ("Changed", "Table", "SALES"),
    ]
    assert ["name" in item["fields"] for item in renamed] == [True, False, True]
    back = shown(capsys, "diff", 4, 2, *empty_place)
    assert {(item["change"], item["kind"]) for item in back} == {
        ("Deleted", "Index"),
        ("Changed", "Schema"),
        ("Deleted", "Table"),
    }


def test_what_was_cut_is_a_snapshot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, etcd: Members, empty_place: list[str]
) -> None:
    applied(capsys, tmp_path, empty_place, DDL)
    log = EtcdUpdateLog(etcd.client(), empty_place[-1])
    manager = CatalogManager(log)
    manager.start()
    manager.compact(3, 1).result()
    manager.close()
    log.close()
    _, out, _ = run(capsys, "list", *empty_place)
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [("3", "Snapshot"), ("4", "Update")]
    code, _, err = run(capsys, "inspect", *empty_place, "--version", 2)
    assert code == 1
    assert "version 2" in err


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("type: CREATE_ZONE", ["not a list"]),
        ("- [", ["not YAML"]),
        ("- name: x", ["step 1", "`type`"]),
        ("- type: CREATE_ZOO", ["step 1, CREATE_ZOO", "no such command"]),
        ("- {type: CREATE_ZONE, storageProfiles: [a]}", ["step 1, CREATE_ZONE", "zone"]),
        ("- {type: DROP_ZONE, zone: A, ifExist: true}", ["step 1, DROP_ZONE", "ifExist: no such member"]),
        ("- {type: CREATE_ZONE, zone: 7, storageProfiles: [a]}", ["step 1, CREATE_ZONE"]),
        ("- {type: CREATE_ZONE, zone: A, storageProfiles: [a], partitions: 1.5}", ["partitions is 1.5, not int"]),
        (
            "- {type: ADD_COLUMN, schema: S, table: T, columns: [{name: A, type: DATE, nullable: true, "
            "default: {const: DATE, value: 2024-02-30}}]}",
            ["not YAML: day is out of range for month"],
        ),
        (
            "- {type: ADD_COLUMN, schema: S, table: T, columns: [{name: A, type: DATE, nullable: true, "
            "default: {const: DATE, value: '2024-02-30'}}]}",
            ["column A: the default is not legal: no day is 2024-2-30"],
        ),
        (
            "- {type: ADD_COLUMN, schema: S, table: T, columns: [{name: A, type: INT32, nullable: true, "
            "default: {const: INT64, value: 3}}]}",
            ["column A: its default is of the type INT64, the column of INT32"],
        ),
        ("- {type: DROP_ZONE, zone: A}\n- {type: CREATE_TABLE, schema: S, table: T, columns: [{name: 1}]}", ["step 2"]),
        (
            "- {type: CREATE_TABLE, schema: S, table: T, pk: {columns: [A]}, "
            "columns: [{name: A, type: INT32, nullable: false, scal: 1}]}",
            ["columns.scal"],
        ),
    ],
)
def test_a_wrong_file_changes_nothing(
    ddl: str, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, empty_place: list[str]
) -> None:
    code, out, err = applied(capsys, tmp_path, empty_place, ddl)
    assert (code, out) == (1, "")
    assert all(word in err for word in words), err
    assert len(err.splitlines()) == 1
    assert shown(capsys, "list", *empty_place) == []


def test_the_first_refusal_ends_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, empty_place: list[str]
) -> None:
    zone = "- {type: CREATE_ZONE, zone: A, storageProfiles: [a]}\n"
    code, out, err = applied(capsys, tmp_path, empty_place, zone + zone + zone.replace("zone: A", "zone: B"))
    assert code == 1
    assert len(out.splitlines()) == 2
    assert "A" in err
    names = [zone["name"] for zone in shown(capsys, "inspect", *empty_place)["zones"]]
    assert names == ["A"]


def test_two_versions_at_once_are_wrong_usage(capsys: pytest.CaptureFixture[str], empty_place: list[str]) -> None:
    assert run(capsys, "inspect", *empty_place, "--version", 1, "--at", "2026-01-01T00:00:00Z")[0] == 2
    assert run(capsys, "inspect", *empty_place, "--at", "yesterday")[0] == 2


def test_an_etcd_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "list", "--etcd", "file:///x", "--prefix", "/c")
    assert code == 1
    assert "https://host:port" in err


# `compactor catalogs repair` on a real etcd: a version that no process reads is stepped over, on request only.

STAMP = b"w" * 16
DAYLESS = NewColumnsEntry(
    (TableColumn(9, "D", ColumnType.DATE, True, 0, 0, 1, Constant(ColumnType.DATE, Date(2024, 2, 30))),), 2
)
BROKEN_DDL = "\n".join(f"- {{type: CREATE_SCHEMA, schema: S{number}}}" for number in (2, 3, 4))


def apply(capsys: pytest.CaptureFixture[str], tmp_path: Path, place: list[str], ddl: str) -> None:
    file = tmp_path / "ddl.yaml"
    file.write_text(ddl)
    assert run(capsys, "apply", file, *place, "--delay", 1, "--max-skew", 1)[0] == 0


def poison(etcd: Members, prefix: str) -> bytes:
    """As an earlier release wrote it: version 5 has a default that is no day."""
    keys = Keys(prefix)
    with EtcdStore(etcd, prefix=prefix) as store:
        active = store.open().recover().events[-1].activation_time
    value = encoded(Stored(VersionedUpdate(5, 0, (DAYLESS,)), later(active, 7), STAMP))
    write(etcd, Put(keys.update(5), value), Put(keys.version, last(5, later(active, 7))))
    return value


def write(etcd: Members, *operations: Operation) -> None:
    client = etcd.client()
    client.transaction(Transaction((), operations))
    client.close()


def test_a_version_that_no_process_reads_is_stepped_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, etcd: Members, empty_place: list[str]
) -> None:
    apply(capsys, tmp_path, empty_place, BROKEN_DDL)
    assert run(capsys, "repair", *empty_place, "-o", "json") == (0, "[]\n", "")
    value = poison(etcd, empty_place[-1])
    code, _, err = run(capsys, "list", *empty_place)
    assert code == 1
    assert "catalog.update.0000000005: byte " in err
    assert "no day is 2024-2-30; restore the update log from a copy. `compactor catalogs repair` lists" in err

    code, out, err = run(capsys, "repair", *empty_place, "-o", "json")
    assert (code, err) == (1, "")
    (row,) = json.loads(out)
    assert (row["version"], row["bytes"]) == (5, len(value))
    saved = tmp_path / "saved"
    for version, reason in ((4, "version 4 is not replaced: it can be read"), (6, "or the log does not hold it")):
        code, _, err = run(capsys, "repair", "--step-over", version, "--save", saved, *empty_place)
        assert code == 1
        assert reason in err
    assert run(capsys, "repair", "--step-over", 5, *empty_place)[0] == 2
    assert not saved.exists()

    assert run(capsys, "repair", "--step-over", 5, "--save", saved, *empty_place)[0] == 0
    assert (saved / "version-5.bin").read_bytes() == value
    versions = json.loads(run(capsys, "list", *empty_place, "-o", "json")[1])
    assert [version["version"] for version in versions] == [1, 2, 3, 4, 5]
    assert versions[-1]["value"]["entries"] == []
    apply(capsys, tmp_path, empty_place, "- {type: CREATE_SCHEMA, schema: S6}")
    assert "S6" in run(capsys, "inspect", *empty_place)[1]


def test_a_version_that_a_later_one_needs_is_not_replaced(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, etcd: Members, empty_place: list[str]
) -> None:
    """Version 3 is damaged, and version 4 drops the schema that it made."""
    apply(capsys, tmp_path, empty_place, BROKEN_DDL.replace("CREATE_SCHEMA, schema: S4", "DROP_SCHEMA, schema: S3"))
    keys, saved = Keys(empty_place[-1]), tmp_path / "saved"
    write(etcd, Put(keys.update(3), b"damaged"))
    code, _, err = run(capsys, "repair", "--step-over", 3, "--save", saved, *empty_place)
    assert code == 1
    assert "catalog version 3 is not replaced: a later version needs what it held" in err
    write(etcd, Put(keys.update(2), b"damaged"))
    code, _, err = run(capsys, "repair", "--step-over", 3, "--save", saved, *empty_place)
    assert (code, "version 2 is not replaced: it cannot be read either" in err) == (1, True)
    assert not saved.exists()
