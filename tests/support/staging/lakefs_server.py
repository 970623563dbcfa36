"""A lakeFS server as far as branches and tokens go, on the table it uses: its order of reads, writes and swaps.

Written after what servers of version 1.84 do. A point of `LakeFsServer.at` runs in the middle of an operation: that is
how tests interleave.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compaction.staging.errors import NoChangesError, PredicateFailedError, UnknownRefError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import commit_id
from compaction.staging.format.messages import BranchData, CommitData, ProtoTimestamp, RepositoryData
from compaction.staging.kv.port import Presence
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.refs.names import METADATA_PARTITION, REPOSITORIES_PARTITION, SCHEMA_KEY, new_instance_uid
from compaction.staging.staged.rows import StagedTokens, layered, new_token
from compaction.staging.tree.applying import apply
from compaction.staging.tree.diffing import diff_changes
from compaction.staging.tree.storage import RangeStorage
from support.staging.staging_repos import Content, changes_of, framed, text_of

WRITE_TRIES: Final = 3
COMMIT_TRIES: Final = 10


class TooManyTriesOfServerError(Exception):
    """HTTP 429."""


class CommitRefusedError(Exception):
    """A pre-commit hook said no."""


def _nothing() -> None:
    """A point at which nothing happens."""


@dataclass
class LakeFsServer:
    """One repository, `example`, with the branch `main`. `fixed_deletes`: without the lost-delete race of servers."""

    kv: SqlKeyValueStore
    ranges: RangeStorage
    fixed_deletes: bool = False
    name: str = "example"
    partition: str = ""
    at: dict[str, Callable[[], None]] = field(default_factory=dict)
    commits: int = 0

    def create(self, head: Content, namespace: str = "s3://bucket/example", **more: Any) -> LakeFsServer:
        """The repository, with a commit of this content on `main`. `more`: fields of its row."""
        data = RepositoryData(
            id=self.name,
            storage_namespace=namespace,
            default_branch_id="main",
            creation_date=ProtoTimestamp(1_700_000_000),
            instance_uid=new_instance_uid(),
        )
        self.partition = f"{self.name}-{data.instance_uid}"
        self.kv.set(METADATA_PARTITION, SCHEMA_KEY, b"4")
        self.kv.set(REPOSITORIES_PARTITION, f"repos/{self.name}".encode(), replace(data, **more).encode())
        tree = apply(self.ranges, "", [changes_of(head)], allow_empty=True).metarange_id if head else ""
        self.create_branch("main", self._add_commit(tree, ()))
        return self

    @contextmanager
    def point(self, name: str, action: Callable[[], None]) -> Iterator[None]:
        """Run something once, the next time that an operation comes to this point."""

        def once() -> None:
            self.at.pop(name)
            action()

        self.at[name] = once
        yield
        assert name not in self.at, f"no operation came to {name}"

    def _pass(self, name: str) -> None:
        self.at.get(name, _nothing)()

    # -- branches ------------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> StagedTokens:
        return StagedTokens(self.kv)

    def row(self, branch: str = "main") -> bytes | None:
        return self.kv.get(self.partition, f"branches/{branch}".encode())

    def branch(self, name: str = "main") -> BranchData:
        row = self.row(name)
        if row is None:
            raise UnknownRefError("branch", name)
        return BranchData.decode(row)

    def create_branch(self, name: str, commit: str) -> None:
        data = BranchData(id=name, commit_id=commit, staging_token=new_token(self.name, name))
        self.kv.set_if(self.partition, f"branches/{name}".encode(), data.encode(), Presence.ABSENT)

    def delete_branch(self, name: str) -> None:
        """Read, delete whatever is there, drop the tokens that were read."""
        data = self.branch(name)
        self._pass("delete: read")
        self.kv.delete(self.partition, f"branches/{name}".encode())
        for token in (data.staging_token, *data.sealed_tokens):
            self.tokens.drop(token)

    def update(self, name: str, change: Callable[[BranchData], BranchData]) -> None:
        """One swap, not retried. Fields that the server does not know are lost."""
        row = self.row(name)
        if row is None:
            raise UnknownRefError("branch", name)
        changed = replace(change(BranchData.decode(row)), unknown=b"")
        self._pass("update: read")
        self.kv.set_if(self.partition, f"branches/{name}".encode(), changed.encode(), row)

    def seal(self, name: str = "main") -> None:
        """The first phase of a commit."""
        self.update(
            name,
            lambda item: replace(
                item, staging_token=new_token(self.name, name), sealed_tokens=(item.staging_token, *item.sealed_tokens)
            ),
        )

    # -- writes --------------------------------------------------------------------------------------------------------

    def _write(self, branch: str, write: Callable[[BranchData], None]) -> None:
        """Write into the staging token; acknowledged when it still is the staging token afterwards."""
        for _ in range(WRITE_TRIES):
            before = self.branch(branch)
            self._pass("write: read")
            write(before)
            self._pass("write: written")
            if self.branch(branch).staging_token == before.staging_token:
                return
        raise TooManyTriesOfServerError

    def set(self, key: str, text: str, branch: str = "main") -> None:
        self._write(branch, lambda item: self.tokens.set(item.staging_token, key.encode(), framed(text)))

    def delete(self, key: str, branch: str = "main") -> None:
        self._write(branch, lambda item: self._delete(item, key.encode()))

    def _delete(self, one: BranchData, key: bytes) -> None:
        if self.tokens.get(one.staging_token, key) is not None or self.committed(one, key) is not None:
            self.tokens.set_tombstone(one.staging_token, key)
            return
        for token in one.sealed_tokens:
            found = self.tokens.get(token, key)
            if found is not None:
                if found or self.fixed_deletes:
                    self.tokens.set_tombstone(one.staging_token, key)
                return
        if self.fixed_deletes:
            self.tokens.set_tombstone(one.staging_token, key)

    def reset_key(self, key: str, branch: str = "main") -> None:
        """The commit's value or a tombstone into the staging token, without a second read of the branch."""
        one = self.branch(branch)
        self._pass("reset key: read")
        value = self.committed(one, key.encode())
        self.tokens.set(one.staging_token, key.encode(), value or b"")

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, name: str = "main", *, hook: Callable[[], None] = _nothing) -> str:
        """Seal; then build and swap, up to ten times; then drop the tokens of the commit at once."""
        self.seal(name)
        self._pass("commit: sealed")
        for _ in range(COMMIT_TRIES):
            row = self.row(name)
            if row is None:
                raise UnknownRefError("branch", name)
            data = BranchData.decode(row)
            hook()
            layers = [self.tokens.changes(token) for token in data.sealed_tokens]
            head = self.tree_of(data)
            tree = apply(self.ranges, head, layered(layers), allow_empty=True).metarange_id
            if self.same(head, tree):
                raise NoChangesError
            done = self._add_commit(tree, (data.commit_id,))
            self._pass("commit: built")
            committed = replace(data, commit_id=done, sealed_tokens=(), unknown=b"")
            try:
                self.kv.set_if(self.partition, f"branches/{name}".encode(), committed.encode(), row)
            except PredicateFailedError:
                continue
            for token in data.sealed_tokens:
                self.tokens.drop(token)
            return done
        raise TooManyTriesOfServerError

    def refused_commit(self, name: str = "main") -> None:
        """A commit that a hook refuses: its sealed token stays."""

        def hook() -> None:
            raise CommitRefusedError

        try:
            self.commit(name, hook=hook)
        except (CommitRefusedError, PredicateFailedError):
            return
        raise AssertionError("the commit was not refused")

    def reset(self, name: str = "main") -> None:
        """Drop all changes: one swap, then the tokens."""
        data = self.branch(name)
        self.update(name, lambda item: replace(item, staging_token=new_token(self.name, name), sealed_tokens=()))
        for token in (data.staging_token, *data.sealed_tokens):
            self.tokens.drop(token)

    def same(self, left: str, right: str) -> bool:
        return self.content_of_tree(left) == self.content_of_tree(right)

    def _add_commit(self, tree: str, parents: tuple[str, ...]) -> str:
        self.commits += 1
        bare = CommitData(
            committer="tester",
            message=f"commit {self.commits}",
            creation_date=ProtoTimestamp(1_700_000_000 + self.commits),
            meta_range_id=tree,
            parents=parents,
            version=1,
            generation=self.commits,
        )
        identifier = commit_id(bare)
        self.kv.set(self.partition, f"commits/{identifier}".encode(), replace(bare, id=identifier).encode())
        return identifier

    # -- reads ---------------------------------------------------------------------------------------------------------

    def tree_of(self, data: BranchData) -> str:
        row = self.kv.get(self.partition, f"commits/{data.commit_id}".encode())
        assert row is not None
        return CommitData.decode(row).meta_range_id

    def committed(self, data: BranchData, key: bytes) -> bytes | None:
        return self.ranges.get(self.tree_of(data), key)

    def get(self, key: str, branch: str = "main") -> str | None:
        data = self.branch(branch)
        for token in (data.staging_token, *data.sealed_tokens):
            found = self.tokens.get(token, key.encode())
            if found is not None:
                return text_of(found) if found else None
        return text_of(self.committed(data, key.encode()))

    def listed(self, branch: str = "main", data: BranchData | None = None) -> dict[str, str | None]:
        """All that a branch shows. `data`: as a reader that read the branch earlier sees it."""
        data = data or self.branch(branch)
        self._pass("list: read")
        layers = [self.tokens.changes(token) for token in (data.staging_token, *data.sealed_tokens)]
        return _shown(layered([*layers, self.ranges.records(self.tree_of(data))]))

    def uncommitted(self, branch: str = "main") -> list[tuple[bytes, int]]:
        data = self.branch(branch)
        changes = layered([self.tokens.changes(token) for token in (data.staging_token, *data.sealed_tokens)])
        differing = diff_changes(self.ranges, self.tree_of(data), changes)
        return [(key, int(kind)) for batch in differing for key, kind, _, _ in batch.rows()]

    def content_of_tree(self, tree: str) -> dict[str, str | None]:
        return _shown(self.ranges.records(tree))

    # -- states --------------------------------------------------------------------------------------------------------

    def put_sealed(self, *contents: Content, branch: str = "main") -> tuple[str, ...]:
        """Sealed tokens with these contents, the newest first."""
        tokens = tuple(new_token(self.name, branch) for _ in contents)
        for token, content in zip(tokens, contents, strict=True):
            self.tokens.set_many(token, changes_of(content))
        self.update(branch, lambda item: replace(item, sealed_tokens=(*tokens, *item.sealed_tokens)))
        return tokens

    def rows_of(self, tokens: Sequence[str]) -> dict[str, int]:
        """How many rows each token has."""
        return {token: sum(len(page) for page in self.kv.scan(token)) for token in tokens}


def _shown(batches: Iterator[RecordColumns]) -> dict[str, str | None]:
    return {key.decode(): text_of(value) for batch in batches for key, value in batch.pairs() if value}


def big_content(seed: str, keys: Sequence[int]) -> Mapping[str, str | None]:
    """Values for some keys; about one in three is a tombstone, always the same ones."""

    def text(number: int) -> str | None:
        digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()[0]
        return None if digest % 3 == 0 else f"{seed}/{number}"

    return {f"k/{number:05d}": text(number) for number in keys}
