"""Reads all of a repository again: every tree with every checksum and id, commits, tags, and the rows of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compaction.staging.errors import StagingStoreError
from compaction.staging.flows.area import Area
from compaction.staging.format.columns import RecordColumns, rows_where, tombstones
from compaction.staging.format.identity import RangeIdentity, commit_id, split_values
from compaction.staging.format.messages import CommitData
from compaction.staging.format.ranges import RangeInfo, TableKind
from compaction.staging.kv.port import Pair
from compaction.staging.refs.branches import Branch
from compaction.staging.staged.rows import decode_row, decode_rows


@dataclass(slots=True)
class Verified:
    """The amounts that were read, and one line for each thing that is wrong."""

    commits: int = 0
    trees: int = 0
    ranges: int = 0
    records: int = 0
    tokens: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)


def verify(area: Area, reference: str | None = None) -> Verified:
    """Read and check everything of a repository, or what a reference shows.

    Raises UnknownRefError, and errors of stores that cannot be reached; whatever is damaged or missing is a problem in
    the result.
    """
    pass_ = RepositoryPass(area)
    if reference is None:
        pass_.everything()
    else:
        resolved = area.references.resolve(reference)
        pass_.commits([resolved.commit])
        if resolved.branch is not None:
            pass_.branch(resolved.branch)
    return pass_.found


class RepositoryPass:
    """One pass over a repository. Trees and ranges that several commits have are read once."""

    def __init__(self, area: Area) -> None:
        self._area = area
        self.found = Verified()
        self._trees: set[str] = {""}
        self._ranges: set[RangeInfo] = set()

    def everything(self) -> None:
        """All commits, branches and tags."""
        known = self.commits(self._area.commits.every(lambda _, error: self._problem("", error)))
        for branch in self._area.branches.every(lambda _, error: self._problem("", error)):
            if branch.record.commit_id not in known:
                self._problem(f"branch {branch.name}", f"its commit {branch.record.commit_id} does not exist")
            self.branch(branch)
        for tag in self._area.commits.tags():
            if tag.commit_id not in known:
                self._problem(f"tag {tag.id}", f"its commit {tag.commit_id} does not exist")

    def commits(self, commits: Iterable[CommitData]) -> set[str]:
        """Commits with their trees; the ids of those that are there."""
        every = list(commits)
        known = {item.id for item in every}
        self.found.commits += len(every)
        for item in every:
            name = f"commit {item.id[:16]}"
            if commit_id(item) != item.id:
                self._problem(name, f"what it says has the id {commit_id(item)}")
            for parent in item.parents:
                if parent not in known and not bool(self._area.commits.starting_with(parent)):
                    self._problem(name, f"its parent {parent} does not exist")
            self.tree(item.meta_range_id, name)
        return known

    def branch(self, branch: Branch) -> None:
        """The compacted base and the tokens of a branch."""
        self.tree(branch.record.compacted_base, f"compacted base of branch {branch.name}")
        for token in branch.record.tokens:
            self.found.tokens += 1
            for page in self._area.kv.scan(token):
                self.found.rows += len(page)
                self._rows(f"branch {branch.name}", token, page)

    def tree(self, tree: str, name: str) -> None:
        """A metarange and the ranges that it lists."""
        if tree in self._trees:
            return
        self._trees.add(tree)
        self.found.trees += 1
        try:
            content = self._area.ranges.content_id(tree, TableKind.METARANGES)
            if content != tree:
                self._problem(name, f"the records of metarange {tree} have the id {content}")
            ranges = list(self._area.ranges.ranges(tree))
        except StagingStoreError as error:
            self._problem(name, error)
            return
        for info in ranges:
            if info not in self._ranges:
                self._ranges.add(info)
                self._range(info, tree, name)

    def _range(self, info: RangeInfo, tree: str, name: str) -> None:
        self.found.ranges += 1
        identity, keys = RangeIdentity(), []
        try:
            for batch in self._area.ranges.range_records(info, metarange=tree):
                identity.add(batch)
                split_values(batch)
                keys += [batch.keys[0].as_py(), batch.keys[-1].as_py()]
                self.found.records += len(batch)
            user = self._area.ranges.open(info.id, metarange=tree).properties.user
        except StagingStoreError as error:
            self._problem(name, error)
            return
        content = identity.hexdigest({"type": TableKind.RANGES.value})
        if content != info.id:
            self._problem(name, f"the records of range {info.id} have the id {content}")
        if keys and (keys[0], keys[-1]) != (info.min_key, info.max_key):
            self._problem(name, f"range {info.id} has other bounds than metarange {tree} lists")
        said = user.get(b"count", b"%d" % info.count), user.get(b"estimated_size_bytes", b"%d" % info.estimated_size)
        if said != (b"%d" % info.count, b"%d" % info.estimated_size):
            self._problem(name, f"range {info.id} says another count or size than metarange {tree} lists")

    def _rows(self, name: str, token: str, page: list[Pair]) -> None:
        """The rows of a page: one by one where one of them is damaged."""
        try:
            _check_values(decode_rows(token, page))
            return
        except StagingStoreError:
            pass
        for key, row in page:
            try:
                _check_values(RecordColumns.of([(key, decode_row(token, key, row))]))
            except StagingStoreError as error:
                self._problem(name, error)

    def _problem(self, name: str, what: StagingStoreError | str) -> None:
        self.found.problems.append(f"{name}: {what}" if name else str(what))


def _check_values(changes: RecordColumns) -> None:
    """RangeRecordError when a value is not framed."""
    split_values(rows_where(changes, ~tombstones(changes)))
