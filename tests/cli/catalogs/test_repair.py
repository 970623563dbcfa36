"""`compactor catalogs repair` on a real etcd: a version that no process reads is stepped over, on request only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compaction.catalogs.log.etcd.wire import Operation, Put, Transaction
from compaction.catalogs.log.layout import Keys, Stored, encoded, last
from compaction.catalogs.model.descriptors import ColumnType, Constant, Date, TableColumn, later
from compaction.catalogs.model.entries import NewColumnsEntry, VersionedUpdate
from compaction.cli.main import main
from support.catalogs.etcd_members import EtcdStore, Members

STAMP = b"w" * 16
DAYLESS = NewColumnsEntry(
    (TableColumn(9, "D", ColumnType.DATE, True, 0, 0, 1, Constant(ColumnType.DATE, Date(2024, 2, 30))),), 2
)
DDL = "\n".join(f"- {{type: CREATE_SCHEMA, schema: S{number}}}" for number in (2, 3, 4))


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = main(["catalogs", *map(str, args)])
    output = capsys.readouterr()
    return code, output.out, output.err


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
    apply(capsys, tmp_path, empty_place, DDL)
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
    apply(capsys, tmp_path, empty_place, DDL.replace("CREATE_SCHEMA, schema: S4", "DROP_SCHEMA, schema: S3"))
    keys, saved = Keys(empty_place[-1]), tmp_path / "saved"
    write(etcd, Put(keys.update(3), b"damaged"))
    code, _, err = run(capsys, "repair", "--step-over", 3, "--save", saved, *empty_place)
    assert code == 1
    assert "catalog version 3 is not replaced: a later version needs what it held" in err
    write(etcd, Put(keys.update(2), b"damaged"))
    code, _, err = run(capsys, "repair", "--step-over", 3, "--save", saved, *empty_place)
    assert (code, "version 2 is not replaced: it cannot be read either" in err) == (1, True)
    assert not saved.exists()
