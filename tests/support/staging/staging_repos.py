"""A repository whose branches are put into any state, and a model of what they show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compaction.staging.cli.commands import group
from compaction.staging.flows.area import Area
from compaction.staging.flows.branching import Brancher
from compaction.staging.flows.committing import CommitDraft, Committer, Hook, Importer, Merger
from compaction.staging.flows.reading import Reader
from compaction.staging.flows.writing import Resetter, Writer
from compaction.staging.format.columns import TOMBSTONE, RecordColumns
from compaction.staging.format.identity import frame_value, split_value
from compaction.staging.format.ranges import BreakRule
from compaction.staging.kv.port import KeyValueStore, Pair
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.refs.branches import BranchRecord, Repositories
from compaction.staging.staged.counters import TokenCounters
from compaction.staging.staged.rows import new_token
from compaction.staging.store import StagingConnection, StagingStore
from compaction.staging.tree.applying import apply
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.errors import DatabaseError
from tools.servers.postgres import PostgresServer

SMALL_RANGES = BreakRule(raggedness=3)
"""Ranges of three records on average, so that small trees have several."""
DRAFT = CommitDraft("tester", "a commit")

Content = Mapping[str, str | None]
"""Keys and what is at each: None is a tombstone."""


def framed(text: str) -> bytes:
    """A value whose identity is that of the part before a `#`; what follows is data that the identity leaves out."""
    return frame_value(hashlib.sha256(text.split("#")[0].encode()).digest(), text.encode())


def text_of(value: bytes | None) -> str | None:
    """What `framed` was made of."""
    return None if value is None else split_value(value)[1].decode()


def changes_of(content: Content) -> RecordColumns:
    """Content as sorted changes."""
    pairs = sorted((key.encode(), TOMBSTONE if text is None else framed(text)) for key, text in content.items())
    return RecordColumns.of(pairs)


@dataclass
class TestClock:
    """Seconds since 1970 that stand still; pauses let them pass."""

    __test__ = False
    now: float = 1_700_000_000.0
    pauses: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


class StagingRepo:
    """One repository with all flows. Branch `main` is there, on the empty tree."""

    def __init__(
        self, kv: KeyValueStore, ranges: RangeStorage, *, name: str = "example", hooks: tuple[Hook, ...] = ()
    ) -> None:
        self.clock = TestClock()
        self._counters: set[TokenCounters] = set()
        repositories = Repositories(kv)
        repositories.prepare()
        repository = repositories.create(name, "s3://bucket/example", now=self.clock.now)
        self.area = Area.of(repository, kv, ranges, TokenCounters(kv), clock=self.clock.time, sleep=self.clock.sleep)
        self.use(self.area, hooks)
        self.brancher.begin("tester")

    def use(self, area: Area, hooks: tuple[Hook, ...] = ()) -> None:
        """Take another area: one whose store fails, for instance."""
        self.area = area
        self._counters.add(area.counters)
        self.reader, self.writer, self.brancher = Reader(area), Writer(area), Brancher(area)
        self.committer = Committer(area, hooks=hooks)
        self.merger = Merger(area, self.committer)
        self.resetter = Resetter(area, self.writer)
        self.importer = Importer(area, self.merger)

    def close(self) -> None:
        """End the counters of all areas: their threads try for good to write into a store that is gone."""
        for counters in self._counters:
            # What a test has broken on purpose stays uncounted.
            with suppress(DatabaseError):
                counters.close()

    def tree(self, content: Content) -> str:
        """A metarange of this content."""
        return apply(self.area.ranges, "", [changes_of(content)], allow_empty=True).metarange_id

    def put(
        self,
        head: Content,
        *,
        base: Content | None = None,
        sealed: Sequence[Content] = (),
        staging: Content | None = None,
        branch: str = "main",
    ) -> BranchRecord:
        """Put a branch into a state: tokens (`sealed`: the newest first) over a compacted base, over a commit."""
        area = self.area
        commit = area.commits.add(
            metarange_id=self.tree(head), parents=(), committer="t", message="head", metadata={}, now=area.clock()
        )
        tokens = [self.token(content, branch) for content in (staging or {}, *sealed)]
        found = area.branches.get(branch)
        record = BranchRecord(
            id=branch,
            commit_id=commit.id,
            staging_token=tokens[0],
            sealed_tokens=tuple(tokens[1:]),
            compacted_base="" if base is None else self.tree(base),
        )
        area.branches.swap(found, record)
        return record

    def token(self, content: Content, branch: str = "main") -> str:
        """A token with this content."""
        token = new_token(self.area.repository.name, branch)
        changes = changes_of(content)
        if len(changes):
            self.area.tokens.set_many(token, changes)
        return token

    # -- texts instead of framed values --------------------------------------------------------------------------------

    def get(self, key: str, reference: str = "main", *, stage_only: bool = False) -> str | None:
        return text_of(self.reader.get(reference, key.encode(), stage_only=stage_only))

    def set(self, key: str, text: str, branch: str = "main") -> None:
        self.writer.set(branch, key.encode(), framed(text))

    def delete(self, key: str, branch: str = "main") -> None:
        self.writer.delete(branch, key.encode())

    def shown(self, reference: str = "main") -> dict[str, str | None]:
        """All that a reference shows, by pages of three."""
        found: dict[str, str | None] = {}
        after = b""
        while True:
            page = self.reader.list(reference, after=after, amount=3)
            found |= {entry.key.decode(): text_of(entry.value) for entry in page.entries}
            if not page.more:
                return found
            after = page.entries[-1].key

    def names(self, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int = 1000) -> list[str]:
        """The keys and common prefixes of one page of `main`."""
        page = self.reader.list(
            "main", prefix=prefix.encode(), after=after.encode(), delimiter=delimiter.encode(), amount=amount
        )
        return [entry.key.decode() for entry in page.entries]

    def uncommitted(self, branch: str = "main") -> dict[str, str]:
        """Keys that differ from the commit, and how."""
        page = self.reader.uncommitted(branch)
        assert not page.more
        return {entry.key.decode(): entry.kind.name.lower() for entry in page.entries}


def overlaid(*layers: Content) -> dict[str, str]:
    """The model: what layers show, the newest first."""
    found: dict[str, str | None] = {}
    for layer in reversed(layers):
        found.update(layer)
    return {key: text for key, text in sorted(found.items()) if text is not None}


def differences(before: Content, after: Content) -> dict[str, str]:
    """The model: how one content differs from another, by identity."""
    kinds = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            kinds[key] = "added"
        elif old is not None and new is None:
            kinds[key] = "removed"
        elif old is not None and new is not None and old.split("#")[0] != new.split("#")[0]:
            kinds[key] = "changed"
    return kinds


# Key-value stores for tests: the fixtures `kv_url` and `kv` (each test runs on SQLite and PostgreSQL).


@pytest.fixture(scope="session")
def _postgres_kv_database(postgres: PostgresServer) -> str:
    """The name of a database with a key-value store, which tests use one after the other."""
    name = postgres.create()
    store = open_key_value_store(postgres.url(name))
    store.migrate()
    store.close()
    return name


@pytest.fixture
def postgres_kv(postgres: PostgresServer, _postgres_kv_database: str) -> str:
    """The name of a database with an empty key-value store: no earlier test has a row or a connection in it."""
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "DELETE FROM kv",
        database=_postgres_kv_database,
    )
    return _postgres_kv_database


@pytest.fixture(params=["sqlite", "postgresql"])
def kv_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty key-value store of the test's own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/kv.db"
        store = open_key_value_store(url)
        store.migrate()
        store.close()
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name: str = request.getfixturevalue("postgres_kv")
    yield server.url(name)


@pytest.fixture
def kv(kv_url: str) -> Iterator[SqlKeyValueStore]:
    """An empty key-value store of the test's own."""
    store = open_key_value_store(kv_url)
    yield store
    store.close()


def rows_of(store: KeyValueStore, partition: str, start: bytes = b"", stop: bytes | None = None) -> list[Pair]:
    """All rows of a scan, with pages small enough that there are several."""
    return [row for page in store.scan(partition, start, stop, page=3) for row in page]


# `compactor staging` in this process, on a staging area of the test's own.

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
