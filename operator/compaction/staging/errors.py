"""Errors of staging areas. Arguments are positional and kept in `args`, so they survive pickling."""

from __future__ import annotations

from compaction.errors import CompactionError, shown_bytes


class StagingStoreError(CompactionError):
    """Base of the errors of staging areas: ranges, metaranges, messages of the key-value store."""


class CorruptRangeError(StagingStoreError):
    """A range or metarange is damaged: `path` names it, `offset` is the byte where the damaged part begins."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged at byte {self.offset}: {self.reason}; restore the object from a copy (its content "
            "is named by its id), no part of it is used"
        )


class MissingRangeError(StagingStoreError):
    """A range or metarange is not in the object storage. `metarange`: the one that lists it, "" for a metarange."""

    def __init__(self, table: str, path: str, metarange: str) -> None:
        super().__init__(table, path, metarange)
        self.table = table
        self.path = path
        self.metarange = metarange

    def __str__(self) -> str:
        listed = f", which metarange {self.metarange} lists," if self.metarange else ""
        return (
            f"{self.path}: the object{listed} does not exist; restore it from a copy (its content is named by its id), "
            "or reset the branch to a commit whose ranges exist"
        )


class UnsupportedRangeError(StagingStoreError):
    """A table that may be sound, but not one that a staging area writes; `offset` is the byte that says so."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: not a range or metarange of a staging area (byte {self.offset}: {self.reason}); "
            "name an object that lakeFS or this project wrote"
        )


class UnexpectedRangeError(StagingStoreError):
    """A part of a branch that this program fails on for a reason that no code expects: a defect of ours."""


class RangeRecordError(StagingStoreError):
    """A record that no range can hold; nothing of its batch was written. `key` is quoted in part."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        shown = f"{shown_bytes(self.key)}{'...' if len(self.key) > 80 else ''}"
        return f"record {shown}: {self.reason}; pass records in strictly ascending order of their keys' bytes"


class CorruptMessageError(StagingStoreError):
    """A value of the key-value store that is not the message its key says; `offset` counts bytes of the value."""

    def __init__(self, name: str, message: str, offset: int, reason: str) -> None:
        super().__init__(name, message, offset, reason)
        self.name = name
        self.message = message
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.name}: not a {self.message} (byte {self.offset}: {self.reason}); restore the row from a backup of "
            "the key-value store"
        )


class RowMissingError(StagingStoreError):
    """A row of the key-value store is missing that a repository must have, so what is garbage is unknown."""

    def __init__(self, repository: str, row: str) -> None:
        super().__init__(repository, row)
        self.repository = repository
        self.row = row

    def __str__(self) -> str:
        return (
            f"repository {self.repository}: the row of {self.row} is missing, so no object is known to be garbage and "
            "none is deleted; restore the row from a backup of the key-value store"
        )


class KeyValueArgumentError(StagingStoreError):
    """A partition, key or value that a key-value store cannot hold; nothing was written."""


class PredicateFailedError(StagingStoreError):
    """A row is not as it was expected to be: another writer came first. Nothing was written; read the row again."""

    def __init__(self, partition: str, key: bytes) -> None:
        super().__init__(partition, key)
        self.partition = partition
        self.key = key

    def __str__(self) -> str:
        return f"{self.partition}: {shown_bytes(self.key)} was changed by another writer: nothing was written; retry"


class NoChangesError(StagingStoreError):
    """A commit or merge would change nothing."""


class MergeConflictError(StagingStoreError):
    """Both sides of a merge changed the same keys differently. `keys`: the first few of them."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        super().__init__(keys)
        self.keys = keys

    def __str__(self) -> str:
        shown = ", ".join(shown_bytes(key) for key in self.keys)
        return (
            f"both sides changed {shown} differently; resolve the conflict, or choose a strategy: source-wins, "
            "dest-wins"
        )


class StagingNameError(StagingStoreError):
    """A name that no repository, branch, tag or reference has."""

    def __init__(self, what: str, name: str, reason: str) -> None:
        super().__init__(what, name, reason)
        self.name = name

    def __str__(self) -> str:
        what, name, reason = self.args
        return f"{name[:80]!r} is not the name of a {what}: {reason}"


class UnknownRefError(StagingStoreError):
    """There is no such repository, branch, tag, commit or reference."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(what, name)
        self.what = what
        self.name = name

    def __str__(self) -> str:
        return f'{self.what} "{self.name}" not found'


class RefExistsError(StagingStoreError):
    """There is a repository, branch or tag of this name already."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(what, name)
        self.what = what
        self.name = name

    def __str__(self) -> str:
        return f'{self.what} "{self.name}" already exists'


class ForeignRepositoryError(StagingStoreError):
    """A repository that another system keeps: it would lose the compacted base of a branch with its next change."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f'repository "{self.name}" was created by another system, which would drop compacted changes of its '
            "branches: merge its sealed tokens (spec.store.stagingArea.lakefs), or create a repository here"
        )


class RepositoryReadOnlyError(StagingStoreError):
    """A change of a repository that is read-only."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f'repository "{self.name}" is read-only: nothing was changed'


class SchemaVersionError(StagingStoreError):
    """A key-value store whose layout has another version than the one that is known, or none."""

    def __init__(self, store: str, found: bytes | None, known: int) -> None:
        super().__init__(store, found, known)

    def __str__(self) -> str:
        store, found, known = self.args
        has = (
            "has no layout of a staging area"
            if found is None
            else f"has version {shown_bytes(found, 20)} of the layout"
        )
        return f"{store} {has}, version {known} is known: name the store of a staging area of that version"


class TooManyTriesError(StagingStoreError):
    """Others changed the branch during every try. Nothing is lost: a change that was written is there, or is not."""

    def __init__(self, branch: str, doing: str, tries: int) -> None:
        super().__init__(branch, doing, tries)

    def __str__(self) -> str:
        branch, doing, tries = self.args
        return f'branch "{branch}" was changed by others during each of {tries} tries to {doing}: retry'


class UncommittedChangesError(StagingStoreError):
    """An operation that replaces the content of a branch needs a branch without uncommitted changes."""

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch

    def __str__(self) -> str:
        return f'branch "{self.branch}" has uncommitted changes: commit or reset them first'


class ConditionFailedError(StagingStoreError):
    """The object is not as a conditional write expects it."""

    def __init__(self, key: bytes, expected: str) -> None:
        super().__init__(key, expected)
        self.key = key

    def __str__(self) -> str:
        key, expected = self.args
        return f"{shown_bytes(key)}: {expected}: nothing was written"


class HookRefusedError(StagingStoreError):
    """A hook refused a commit or merge. The branch has its changes still."""

    def __init__(self, branch: str, reason: str) -> None:
        super().__init__(branch, reason)
        self.branch = branch

    def __str__(self) -> str:
        branch, reason = self.args
        return f'branch "{branch}": a hook refused the commit: {reason}'


class ProtectedBranchError(StagingStoreError):
    """A change that a protected branch does not allow."""

    def __init__(self, branch: str, action: str) -> None:
        super().__init__(branch, action)
        self.branch = branch

    def __str__(self) -> str:
        branch, action = self.args
        return f'branch "{branch}" is protected: {action} is not allowed'


class NoStagingAreaError(StagingStoreError):
    """There is no key-value store where one was named."""


class BranchClaimedError(StagingStoreError):
    """Another compaction has claimed the branch; nothing was changed."""

    def __init__(self, branch: str, job: str) -> None:
        super().__init__(branch, job)
        self.branch = branch
        self.job = job

    def __str__(self) -> str:
        return (
            f'branch "{self.branch}" is claimed by compaction {self.job}: wait until that has ended, or take over the '
            "branch (--take-over); the other one then commits nothing"
        )


class InvalidBatchError(StagingStoreError):
    """A batch that is larger than one call takes; nothing of it was done."""


class WorkOutdatedError(StagingStoreError):
    """A branch has other tokens or trees than a compaction was planned for: it was committed, merged or reset."""

    def __init__(self, branch: str) -> None:
        super().__init__(branch)
        self.branch = branch

    def __str__(self) -> str:
        return f"{self.branch}: the branch has changed since the plan was made: nothing was committed; plan again"


class OutputSweptError(StagingStoreError):
    """An object (`table`) that an attempt wrote was deleted by a sweep that took it for an old one of the same id."""

    def __init__(self, branch: str, table: str) -> None:
        super().__init__(branch, table)
        self.branch = branch
        self.table = table

    def __str__(self) -> str:
        return f"{self.branch}: a sweep deleted range {self.table} while it was written: nothing was committed; retry"


class WorkerShortageError(StagingStoreError):
    """The worker has not what a rewrite of a branch takes: memory, or room on its disk. It says nothing of the branch.

    `cause`: MemoryError, or the OSError of the temporary files.
    """

    def __init__(self, branch: str, cause: OSError | MemoryError) -> None:
        super().__init__(branch, cause)
        self.branch = branch
        self.cause = cause

    def __str__(self) -> str:
        if isinstance(self.cause, MemoryError):
            return f"{self.branch}: out of memory: give the worker more"
        why = self.cause.strerror or type(self.cause).__name__
        return f"{self.branch}: scratch space of the worker: {why}; give the worker's temporary directory more room"


class RewriteProofError(StagingStoreError):
    """The output that was written does not read back as what the branch shows; nothing is committed. The message has
    both fingerprints.
    """

    def __init__(self, branch: str, expected: str, found: str) -> None:
        super().__init__(branch, expected, found)
        self.branch = branch

    def __str__(self) -> str:
        branch, expected, found = self.args
        return (
            f"{branch}: the ranges that were written read back as {found}, the branch shows {expected} "
            "(records:content): nothing is committed"
        )


class LiveStoreRefusedError(StagingStoreError):
    """A store, repository or branch of a live lakeFS that is not as this version knows it; nothing was changed."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}; nothing was changed"


class TokenMergeStoppedError(StagingStoreError):
    """A merge of sealed tokens yields: another writer came first, or it was stopped. The branch is unchanged."""

    def __init__(self, branch: str, reason: str) -> None:
        super().__init__(branch, reason)
        self.branch = branch
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.branch}: {self.reason}: the merge was discarded, the branch is unchanged"


class TokenMergeProofError(StagingStoreError):
    """A merged token does not show what the sealed tokens show; it was discarded. Says both fingerprints."""

    def __init__(self, branch: str, expected: str, found: str) -> None:
        super().__init__(branch, expected, found)
        self.branch = branch

    def __str__(self) -> str:
        branch, expected, found = self.args
        return f"{branch}: the merged token shows {found}, the sealed tokens show {expected}: the merge was discarded"
