"""`compactor staging` in this process, on a staging area of the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from compaction.staging.cli.commands import group
from compaction.staging.flows.area import Area
from compaction.staging.store import StagingConnection, StagingStore

REPOSITORY = "example"


@dataclass
class StagingCommands:
    """`run(...)` runs a command on the repository that the environment names."""

    connection: StagingConnection
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def area(self) -> Iterator[Area]:
        """The repository itself."""
        store = StagingStore.open(self.connection)
        yield store.area(REPOSITORY)
        store.close()

    def run(self, *args: str | Path, input: str | bytes | None = None) -> Result:
        """A command that ends by itself, whatever its exit code, and shows no traceback."""
        result = CliRunner().invoke(group, [str(arg) for arg in args], env=dict(self.environment), input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
        return result

    def does(self, *args: str | Path, input: str | bytes | None = None) -> str:
        """What a command prints; it ends well."""
        result = self.run(*args, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def data(self, *args: str | Path, input: str | bytes | None = None) -> Any:
        """What a command prints with `-o json`; it ends well."""
        return json.loads(self.does(*args, "-o", "json", input=input))

    def fails(self, *args: str | Path, code: int = 1, input: str | bytes | None = None) -> str:
        """The one line that a command ends with."""
        result = self.run(*args, input=input)
        assert result.exit_code == code, result.output
        (line,) = [line for line in result.stderr.splitlines() if line.lower().startswith("error: ")]
        return line

    def keys(self, reference: str = "main", *args: str) -> list[str]:
        """The keys, and common prefixes, that a reference shows."""
        return [item.get("key", item.get("prefix")) for item in self.data("list", reference, *args)["items"]]

    def exec(self, operations: Sequence[Mapping[str, Any]], *args: str, code: int = 0) -> list[Any]:
        """The results of a history."""
        history = "".join(json.dumps(operation) + "\n" for operation in operations)
        result = self.run("debug", "exec", "-", *args, input=history)
        assert result.exit_code == code, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]


def in_folder(folder: Path) -> StagingCommands:
    """A repository with SQLite and a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder}/kv.db"
    commands = StagingCommands(StagingConnection(url), {"COMPACTION_KV_URL": url, "COMPACTION_REPOSITORY": REPOSITORY})
    commands.does("repo", REPOSITORY, folder / "objects")
    return commands
