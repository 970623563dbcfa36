"""The library as a program uses it: the lines of its page, on a real etcd; and arguments of another type."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import compaction.catalogs as library
from compaction.catalogs import (
    AddColumns,
    ColumnSpec,
    ColumnType,
    CreateSchema,
    CreateTable,
    CreateZone,
    OpenCatalog,
    PrimaryKey,
    Settings,
    open_catalog,
)
from compaction.catalogs.errors import (
    CatalogArgumentError,
    CatalogNotFoundError,
    CatalogNotRunError,
    CatalogValidationError,
)
from compaction.local.programs.binaries import Binaries
from support.catalogs.etcd_members import Members, etcd_members

PAGE = Path(__file__).parents[2] / "docs" / "catalog-library.md"
ID = ColumnSpec("ID", ColumnType.INT32, nullable=False)
KEY = PrimaryKey(("ID",))
QUICK = Settings(delay=20, max_skew=20)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, binaries: Binaries) -> Iterator[Members]:
    with etcd_members(tmp_path_factory.mktemp("etcd"), binaries.etcd) as running:
        yield running


@pytest.fixture(scope="module")
def catalog(etcd: Members) -> Iterator[OpenCatalog]:
    with open_catalog(str(etcd.members[0].endpoint), "/catalogs/library", settings=QUICK) as found:
        yield found


def test_the_lines_of_the_page(etcd: Members) -> None:
    """As they stand, but for the port."""
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in program.splitlines() if line]) <= 10
    program = program.replace("http://127.0.0.1:2379", str(etcd.members[0].endpoint))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    printed = re.search(r"It prints `(.*?)` and `(.*?)`\.", text)
    assert printed is not None
    assert done.stdout.splitlines() == list(printed.groups())


def test_every_name_of_the_package_is_there_and_none_is_loaded_for_the_others() -> None:
    for name in library.__all__:
        assert getattr(library, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Catalogue'"):
        getattr(library, "Catalogue")  # noqa: B009
    probe = (
        "import sys, compaction.catalogs.model.catalog; print('compaction.catalogs.log.etcd.gateway' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "False\n"


def test_batches_in_turn_wait_once(catalog: OpenCatalog) -> None:
    """Versions of 40 statements, of which the thirtieth is refused: those before it stay, none after it runs."""
    first = catalog.latest.version
    names = [f"S{number}" for number in range(40)]
    names[29] = names[3]
    manager = catalog.manager
    running = manager.execute_in_turn([[CreateSchema(name)] for name in names])
    outcomes = [item.exception(60) for item in running]
    assert outcomes[:29] == [None] * 29
    assert isinstance(outcomes[29], CatalogValidationError)
    assert [type(outcome) for outcome in outcomes[30:]] == [CatalogNotRunError] * 10
    assert catalog.latest.version == first + 29
    with pytest.raises(CatalogValidationError, match="schema S3 already exists"):
        catalog.apply_in_turn([CreateSchema("LAST")], [CreateSchema("S3")], [CreateSchema("NEVER")])
    assert catalog.latest.schema("LAST") is not None
    assert catalog.latest.schema("NEVER") is None


def test_reads_by_version_and_time(catalog: OpenCatalog) -> None:
    done = catalog.apply(CreateSchema("READ"))
    assert done is not None
    assert catalog.version(done.version).schema("READ") is not None
    assert catalog.version(done.version - 1).schema("READ") is None
    assert catalog.at(done.time).version == done.version
    assert catalog.at(done.time - 1).version == done.version - 1
    assert catalog.at(datetime.now(UTC)).version == done.version
    with pytest.raises(CatalogNotFoundError):
        catalog.version(done.version + 1)
    assert catalog.apply() is None


WRONG: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "a text for a schema": (
        lambda catalog: catalog.latest.table("PUBLIC", "T"),
        CatalogArgumentError,
        r"'PUBLIC' is no schema: name one with catalog\.schema\(NAME\)",
    ),
    "a float for a time": (lambda catalog: catalog.at(1.5e18), CatalogArgumentError, "1.5e\\+18 is not a time"),
    "a time without a zone": (lambda catalog: catalog.at(datetime(2026, 1, 1)), CatalogArgumentError, "no time zone"),  # noqa: DTZ001
    "a text for a version": (lambda catalog: catalog.version("3"), CatalogArgumentError, "'3' is not the number of"),
    "a text for a type": (
        lambda _: ColumnSpec("N", "INT32"),  # type: ignore[arg-type]
        CatalogValidationError,
        "ColumnSpec: type is 'INT32', not ColumnType",
    ),
    "a text for columns": (
        lambda _: CreateTable("PUBLIC", "T", "ID", KEY),  # type: ignore[arg-type]
        CatalogValidationError,
        r"CreateTable: columns is 'ID', not tuple\[ColumnSpec, \.\.\.\]",
    ),
    "a text for names": (
        lambda _: PrimaryKey("ID"),  # type: ignore[arg-type]
        CatalogValidationError,
        r"PrimaryKey: columns is 'ID', not tuple\[str, \.\.\.\]",
    ),
    "half a partition": (
        lambda _: CreateZone("Z", ("default",), partitions=1.5),  # type: ignore[arg-type]
        CatalogValidationError,
        r"CreateZone: partitions is 1\.5, not int \| None",
    ),
    "a truth for a number": (
        lambda _: CreateZone("Z", ("default",), replicas=True),
        CatalogValidationError,
        "replicas is True",
    ),
    "no name": (lambda _: CreateSchema(7), CatalogValidationError, "CreateSchema: name is 7, not str"),  # type: ignore[arg-type]
    "a list for a tuple": (
        lambda _: AddColumns("PUBLIC", "T", [ID]),  # type: ignore[arg-type]
        CatalogValidationError,
        "AddColumns: columns is",
    ),
    "no command": (lambda catalog: catalog.apply("CREATE TABLE"), CatalogArgumentError, "is no command"),
    "no list of commands": (
        lambda catalog: catalog.apply_in_turn(CreateSchema("S")),
        CatalogArgumentError,
        "no list of commands",
    ),
    "no kind": (lambda catalog: catalog.listen("TABLE_CREATE", print), CatalogArgumentError, "no kind of an event"),
    "no etcd": (lambda _: open_catalog(None, "/x").__enter__(), CatalogArgumentError, "etcd is None"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("which", list(WRONG))
def test_an_argument_of_another_type_is_named(catalog: OpenCatalog, which: str) -> None:
    call, kind, message = WRONG[which]
    before = catalog.latest.version
    with pytest.raises(kind, match=message):
        call(catalog)
    assert catalog.latest.version == before
