"""`compactor blocks` in this process, on a store of the test's own: a folder, or whatever the environment names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result
from ulid import ULID

from compaction.blocks.cli.commands import group
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.model import block_path
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.objects.store import ObjectStorage, open_objects
from support.blocks.blocks import parquet, rows

KEY = ("service", "time")
MADE = 1_700_000_000_000
"""When blocks of tests are made, epoch milliseconds."""


@dataclass
class BlockCommands:
    """`run(...)` runs a command on the store; `write(n)` uploads a block, `add(n)` registers it too."""

    connection: BlockStoreConnection
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, url: str, index_url: str, options: Mapping[str, str], environment: Mapping[str, str]) -> BlockCommands:
        """A store that the environment names."""
        return cls(BlockStoreConnection(url, index_url, options), environment)

    @property
    def objects(self) -> ObjectStorage:
        return open_objects(self.connection.url, options=self.connection.options)

    @contextmanager
    def opened(self) -> Iterator[BlockStore]:
        """The store itself."""
        store = BlockStore.open(self.connection)
        yield store
        store.close()

    def run(self, *args: str | Path, input: str | None = None) -> Result:
        """A command that ends by itself, whatever its exit code, and shows no traceback."""
        result = CliRunner().invoke(group, [str(arg) for arg in args], env=dict(self.environment), input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
        return result

    def data(self, *args: str | Path) -> Any:
        """What a command prints with `-o json`; it ends well."""
        result = self.run(*args, "-o", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def fails(self, *args: str | Path, code: int = 1) -> str:
        """The one line that a command ends with."""
        result = self.run(*args)
        assert result.exit_code == code, result.output
        (line,) = [line for line in result.stderr.splitlines() if line.lower().startswith("error: ")]
        return line

    def write(self, number: int, *, tenant: str = "acme", count: int = 50, **said: Any) -> str:
        """Upload block number `number` (its rows lie in microseconds 100 * number...); returns its path."""
        identity = block(number)
        metadata = BlockMetadata(id=identity, tenant=tenant, shard=0, level=0, sort_key=KEY, **said)
        path = block_path(tenant, 0, identity)
        self.objects.put(path, parquet(rows(count, start=100 * number), metadata))
        return path

    def add_of(self, kind: pa.DataType, *numbers: int) -> list[str]:
        """The same of blocks whose times are of another type."""
        for number in numbers:
            table = rows(50, start=100 * number)
            table = table.set_column(1, "time", table["time"].cast(pa.int64()).cast(kind))
            metadata = BlockMetadata(id=block(number), tenant="acme", shard=0, level=0, sort_key=KEY)
            self.objects.put(block_path("acme", 0, block(number)), parquet(table, metadata))
        paths = [block_path("acme", 0, block(number)) for number in numbers]
        self.data("register", *paths, "--tenant", "acme")
        return [block(number) for number in numbers]

    def add(self, *numbers: int, tenant: str = "acme") -> list[str]:
        """Upload and register blocks; returns their ids."""
        paths = [self.write(number, tenant=tenant) for number in numbers]
        self.data("register", *paths, "--tenant", tenant)
        return [block(number) for number in numbers]


def block(number: int) -> str:
    """The id of block number `number`."""
    return str(ULID.from_bytes(MADE.to_bytes(6, "big") + number.to_bytes(10, "big")))


def in_folder(folder: Path) -> BlockCommands:
    """A store in a folder, its index in it, named by the environment."""
    connection = BlockStoreConnection(str(folder), f"sqlite:///{folder}/_compaction/index.db")
    return BlockCommands(connection, {"COMPACTION_STORE_URL": str(folder)})


def policy_file(path: Path, blocks: BlockCommands, *, spec: Mapping[str, Any] | None = None, **store: Any) -> Path:
    """A policy of the store with its Secrets beside it; `store` goes into blockStore, `spec` into the spec."""
    url = blocks.connection.url
    described = {"url": url if "://" in url else Path(url).as_uri(), "index": {"secretName": "index"}, **store}
    secrets = [_secret("index", {"url": blocks.connection.index_url})]
    if blocks.connection.options:
        described["credentialsSecretName"] = "credentials"
        secrets.append(_secret("credentials", blocks.connection.options))
    policy = {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "blocks"},
        "spec": {"store": {"blockStore": described}, **(spec or {})},
    }
    path.write_text(yaml.safe_dump_all([policy, *secrets]))
    return path


def _secret(name: str, values: Mapping[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(values)}


@pytest.fixture
def blocks(tmp_path: Path) -> BlockCommands:
    """`compactor blocks` on a store in a folder."""
    return in_folder(tmp_path / "store")
