"""Changes of a branch's record: swaps with their journal and receipts, and branches that come and go."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from compaction.staging.errors import MissingRangeError, PredicateFailedError, ProtectedBranchError, TooManyTriesError
from compaction.staging.flows.area import Area, marked_objects, names_any
from compaction.staging.flows.reading import is_clean, still_holds, view_of
from compaction.staging.format.messages import SIGNED, TEXT, StagingMessage, wire_at
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.refs.commits import FIRST_MESSAGE
from compaction.staging.refs.names import JOURNAL_PARTITION
from compaction.staging.staged.rows import new_token

# The journal of tokens that a branch is about to lose; the sweep drops those that no branch has any more.
#
# docs/design/staging-areas.md#swaps.

DROPPING: Final = -1
"""`unused_since` of a token whose rows are being deleted: no branch gets it any more."""


@dataclass(frozen=True)
class JournalledToken(StagingMessage):
    """A token that its branch was about to lose at `since` (milliseconds since 1970). `unused_since`: when a sweep saw
    for the first time that no branch has it; the grace runs from there. 0: not yet. `base`: the compacted base that it
    lay over, where the branch was about to lose that too: who has begun to read the branch needs both for as long.
    """

    NAME: ClassVar[str] = "JournalledToken"
    token: str = field(default="", metadata=wire_at(1, TEXT))
    repository: str = field(default="", metadata=wire_at(2, TEXT))
    since: int = field(default=0, metadata=wire_at(3, SIGNED))
    unused_since: int = field(default=0, metadata=wire_at(4, SIGNED))
    base: str = field(default="", metadata=wire_at(5, TEXT))


def journal(area: Area, tokens: Iterable[str], *, base: str = "") -> None:
    """Write down that a branch is about to lose tokens, and the compacted base below them."""
    now = int(area.clock() * 1000)
    rows = [
        (token.encode(), JournalledToken(token=token, repository=area.repository.name, since=now, base=base).encode())
        for token in tokens
    ]
    if rows:
        area.kv.set_many(JOURNAL_PARTITION, rows)


def was_dropped(area: Area, tokens: Iterable[str]) -> bool:
    """Return whether the sweep had begun to delete one of the tokens before a branch got it."""
    for token in tokens:
        row = area.kv.get(JOURNAL_PARTITION, token.encode())
        if row is not None and JournalledToken.decode(row, name=f"journal of token {token}").unused_since == DROPPING:
            return True
    return False


def journalled(kv: KeyValueStore) -> Iterator[JournalledToken]:
    """All tokens of the journal."""
    for page in kv.scan(JOURNAL_PARTITION):
        for key, row in page:
            yield JournalledToken.decode(row, name=f"journal of token {key.decode(errors='replace')}")


# Receipts of compactions: who swapped the base of a branch last, and the proof (docs/design/staging-areas.md#claims).
#
# A receipt is written before the swap and counts once the record of the branch names its job and token: so after a
# lost answer, or a crash between swap and report, the next attempt finds what was done. Every write of a branch reads
# its row, and a receipt may be large: so it lies beside it.


def keep_receipt(area: Area, branch: str, *, job: str, token: int, receipt: str) -> None:
    """Write down what a swap is about to prove. Raises DatabaseError."""
    area.kv.set(area.repository.receipts, _key(branch, job, token), receipt.encode())


def receipt_of(area: Area, record: BranchRecord, job: str) -> str | None:
    """The receipt of the last swap of a branch, "" when it was not kept; None when that was not for the job. Raises
    DatabaseError.
    """
    if not job or record.compacted_job != job:
        return None
    row = area.kv.get(area.repository.receipts, _key(record.id, job, record.compacted_token))
    return "" if row is None else row.decode(errors="replace")


def forget_receipts(area: Area, branch: str) -> None:
    """Delete the receipts of a branch that its record does not need, now or when its claim commits. Raises
    DatabaseError.
    """
    begin = branch.encode() + b"\0"
    keys = [key for page in area.kv.scan(area.repository.receipts, begin, begin[:-1] + b"\1") for key, _ in page]
    found = area.branches.find(branch)
    _forget(area, keys, [] if found is None else [found])


def sweep_receipts(area: Area) -> int:
    """Delete the receipts that no branch needs: those of attempts that never committed, and of branches that are gone.
    How many there were. Raises DatabaseError.
    """
    keys = [key for page in area.kv.scan(area.repository.receipts) for key, _ in page]
    return _forget(area, keys, area.branches.every())


def _forget(area: Area, keys: list[bytes], branches: Iterable[Branch]) -> int:
    """A claim is there before its attempt writes a receipt, so branches are read after the receipts."""
    needed = set()
    for branch in branches if keys else ():
        record = branch.record
        needed.add(_key(branch.name, record.compacted_job, record.compacted_token))
        needed.add(_key(branch.name, record.claim_job, record.claim_token))
    unneeded = [key for key in keys if key not in needed]
    area.kv.delete_many(area.repository.receipts, unneeded)
    return len(unneeded)


def _key(branch: str, job: str, token: int) -> bytes:
    return f"{branch}\0{job}.{token}".encode()


# Changes of a branch's record: journal, swap, and the tries it takes (docs/design/staging-areas.md#swaps).
#
# Tokens that a swap takes off a branch are journalled before it: a crash in between leaves tokens that are in use and
# in the journal, never some that nothing knows. The sweep drops those that no branch uses, after the grace, and keeps
# until then what the base below them has.

SWAP_TRIES: Final = 10
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 5.0


def swapped(
    area: Area,
    name: str,
    doing: str,
    change: Callable[[Branch], BranchRecord | None],
    *,
    tries: int = SWAP_TRIES,
    before_swap: Callable[[], None] | None = None,
) -> Branch:
    """Swap the record of a branch for what `change` makes of it; all of `change` again when another came first, or
    when the sweep is about to delete a part of the tree that the record would name.

    None: nothing has to be changed. Tokens and base that the new record has no more are journalled. `before_swap`:
    called when no object of the new tree is marked; what it sees then, a later sweep sees, too.

    Raises:
        UnknownRefError, TooManyTriesError, and what `change` raises
    """
    for attempt in range(tries):
        branch = area.branches.get(name)
        try:
            record = change(branch)
        except MissingRangeError:
            if still_holds(branch.record, area.branches.get(name).record):
                raise
            continue  # Others came first, so long ago that the sweep has deleted what the branch had.
        if record is None:
            return branch
        kept, base = set(record.tokens), branch.record.compacted_base
        lost = [token for token in branch.record.tokens if token not in kept]
        journal(area, lost, base=base if base != record.compacted_base else "")
        if not _swept(area, branch.record, record):
            if before_swap is not None:
                before_swap()
            try:
                return area.branches.swap(branch, record)
            except PredicateFailedError:
                # Another writer came first: the next try begins with the branch as it is then.
                pass
        # At random, so that writers which met once do not meet at every try.
        area.sleep(random.uniform(0.5, 1.0) * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
    raise TooManyTriesError(name, doing, tries)


def seal(area: Area, name: str) -> Branch:
    """Seal the staging token, so that what was written before is in tokens that no writer is acknowledged in. An empty
    one stays: a commit that is refused again and again leaves no tokens behind.
    """

    def sealed(branch: Branch) -> BranchRecord | None:
        if not area.tokens.has_rows(branch.record.staging_token):
            return None
        return branch.record.sealed(fresh_token(area, branch))

    return swapped(area, name, "seal its changes", sealed)


def has_changes(area: Area, branch: Branch, *, sealed_only: bool = False) -> bool:
    """Return whether a branch shows anything that its commit does not."""
    return not is_clean(area, view_of(area, branch, sealed_only=sealed_only))


def fresh_token(area: Area, branch: Branch) -> str:
    """A new staging token of a branch."""
    return new_token(area.repository.name, branch.name)


def _swept(area: Area, before: BranchRecord, after: BranchRecord) -> bool:
    """Return whether an object of a tree that the branch gets is marked by the sweep, which then may delete what was
    just written under the same id. One that is written after the mark is new for the sweep, and stays.
    """
    trees = [after.compacted_base] if after.compacted_base != before.compacted_base else []
    if after.commit_id != before.commit_id:
        trees.append(area.commits.get(after.commit_id).meta_range_id)
    marked = marked_objects(area.kv, area.repository.partition) if any(trees) else frozenset()
    return bool(marked) and any(tree and names_any(area.ranges, tree, marked) for tree in trees)


# Repositories and branches come and go (docs/design/staging-areas.md#branches).


class Brancher:
    """Creates and deletes branches of one repository."""

    def __init__(self, area: Area, *, protected: Callable[[str], bool] = lambda _: False) -> None:
        self._area = area
        self._protected = protected

    def begin(self, committer: str) -> Branch:
        """The first commit, of the empty tree, and the default branch on it: of a repository that was just created.

        Raises RefExistsError.
        """
        commit = self._area.commits.add(
            metarange_id="", parents=(), committer=committer, message=FIRST_MESSAGE, metadata={}, now=self._area.clock()
        )
        return self._create(self._area.repository.default_branch, commit.id)

    def create(self, name: str, source: str, *, hidden: bool = False) -> Branch:
        """A branch on the commit of a reference; uncommitted changes of that stay where they are.

        Raises StagingNameError, RefExistsError, UnknownRefError, RepositoryReadOnlyError.
        """
        self._area.repository.check_writable()
        return self._create(name, self._area.references.commit(source).id, hidden=hidden)

    def delete(self, name: str) -> None:
        """Delete a branch and what was uncommitted on it.

        First the record says so, then it goes: in between no swap by anybody else succeeds, so no token is put onto a
        branch that is no more. Raises UnknownRefError, ProtectedBranchError, RepositoryReadOnlyError.
        """
        self._area.repository.check_writable()
        if name == self._area.repository.default_branch:
            raise ProtectedBranchError(name, "deleting the default branch")
        if self._protected(name):
            raise ProtectedBranchError(name, "deleting it")

        def ended(branch: Branch) -> BranchRecord:
            journal(self._area, branch.record.tokens, base=branch.record.compacted_base)
            return replace(branch.record, deleted=True)

        swapped(self._area, name, "delete it", ended)
        self._area.branches.remove(name)
        forget_receipts(self._area, name)

    def _create(self, name: str, commit_id: str, *, hidden: bool = False) -> Branch:
        token = new_token(self._area.repository.name, name)
        return self._area.branches.create(
            BranchRecord(id=name, commit_id=commit_id, staging_token=token, hidden=hidden)
        )
