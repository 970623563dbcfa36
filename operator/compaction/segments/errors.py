"""Errors of segment logs. Arguments are positional and kept in `args`, so they survive pickling between Spark tasks and
the driver.
"""

from __future__ import annotations

from compaction.errors import CompactionError, StaleTokenError


class SegmentLogError(CompactionError):
    """Anything wrong with a segment log directory or one of its files."""


class SegmentFileError(SegmentLogError):
    """One file of a segment log (`file`) and what is wrong with it (`reason`); subclasses say what to do."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason


class LogPathError(SegmentLogError):
    """Something about one file or directory of a log; says which, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


class InterruptedCommitError(LogPathError):
    """The operating system refused something; `outcome`: what became of the commit under way, empty without one."""

    def __init__(self, path: str, reason: str, outcome: str = "") -> None:
        super().__init__(path, reason)
        self.args = (path, reason, outcome)  # what it is pickled with
        self.outcome = outcome


class NotALogDirectoryError(LogPathError):
    """The path is no segment log: it is missing, not a directory, or holds no segment file."""

    def __str__(self) -> str:
        return f"{self.path}: not a segment log directory: {self.reason}"


class SegmentNameError(SegmentLogError):
    """A `*.segment` file whose name is not 16 decimal digits, so its place in the log is unknown."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file

    def __str__(self) -> str:
        return (
            f"{self.file}: a segment file is named with 16 decimal digits; 8-digit names are a legacy form that the "
            f"owner renames at its next start, anything else must be moved out of the log directory"
        )


class CorruptSegmentError(SegmentFileError):
    """A segment file that cannot be parsed."""

    def __str__(self) -> str:
        return f"{self.file}: corrupt segment: {self.reason}"


class MissingSegmentHeaderError(CorruptSegmentError):
    """A segment file of 0 bytes: created, then the process died before the header was written."""

    def __init__(self, file: str) -> None:
        SegmentLogError.__init__(self, file)
        self.file = file
        self.reason = "the file is empty (0 bytes), the 8-byte header is missing"


class InvalidSegmentFormatError(CorruptSegmentError):
    """A file whose header is cut off, has another magic, or a version other than 1 and 2."""


class SegmentIsLinkError(CorruptSegmentError):
    """A symbolic link where a segment file of its own is expected: the old name of a compacted segment."""

    def __init__(self, file: str) -> None:
        SegmentLogError.__init__(self, file)
        self.file = file
        self.reason = "the name is a symbolic link, not a segment of its own"


class LogChangedError(SegmentLogError):
    """The log's files were replaced while they were read; the same call again works."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: the log's files were replaced while they were read (a compaction committed): run again"


class CorruptEntryError(SegmentLogError):
    """One entry of a segment cannot be read: bad CRC, or its bytes lie outside the file."""

    def __init__(self, file: str, index: int, offset: int, reason: str) -> None:
        super().__init__(file, index, offset, reason)
        self.file = file
        self.index = index
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.file}: corrupt entry at index {self.index}, offset {self.offset}: {self.reason}"


class CorruptIndexesError(SegmentFileError):
    """A live-index file (`indexes`) with a bad checksum, an unknown version or undecodable content."""

    def __str__(self) -> str:
        return f"{self.file}: corrupt live-index file: {self.reason}; say what is live with --live or restore the file"


class CorruptSnapshotError(SegmentFileError):
    """A snapshot.dat that is torn, foreign, or disagrees with the name of its directory."""

    def __str__(self) -> str:
        return f"{self.file}: invalid snapshot: {self.reason}"


class TermFormatError(CompactionError):
    """Bytes that are not the subset of the Erlang external term format which segment logs use."""


class LiveSetSyntaxError(CompactionError):
    """A written set of indexes that is not of the form 1-5,9,20-30."""


class LiveSetUnknownError(SegmentLogError):
    """The live set below the snapshot is unknown (`indexes` is missing), which never means that nothing is live.

    `given_index`: a snapshot index from the caller that is not the index of the log's own snapshot.
    """

    def __init__(self, path: str, given_index: int | None = None) -> None:
        super().__init__(path, given_index)
        self.path = path
        self.given_index = given_index

    def __str__(self) -> str:
        if self.given_index is not None:
            return (
                f"{self.path}: its own snapshot is not of index {self.given_index}, so what is live at or below that "
                f"is unknown (not empty): say what is live with --live"
            )
        return (
            f"{self.path}: the snapshot has no `indexes` file, so what is live below it is unknown (not empty): "
            f"say what is live with --live, or set whenIndexesMissing: TreatAsEmpty if the owner keeps no live indexes"
        )


class InvalidEntryError(SegmentLogError):
    """An entry that the segment format cannot hold (empty or oversized payload, index or term out of range)."""


class InvalidWalFormatError(SegmentFileError):
    """A write-ahead log file whose header is cut off, has another magic, or another version."""

    def __str__(self) -> str:
        return (
            f"{self.file}: not a write-ahead log file: {self.reason}; restore the file, or move it out of the "
            f"directory if no log needs its entries"
        )


class DamagedWalError(SegmentLogError):
    """A record of a write-ahead log file cannot be read, and is not the last one: acknowledged entries may be lost."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.file}: damaged write-ahead log at offset {self.offset}: {self.reason}. Entries behind the damage "
            f"may have been acknowledged: restore the file from a copy, or from another member of the log's cluster"
        )


class WalChangedAfterStopError(DamagedWalError):
    """A write-ahead log file does not end where it did when its system was stopped cleanly; `record` says where."""

    def __init__(self, file: str, offset: int, reason: str, record: str) -> None:
        super().__init__(file, offset, reason)
        self.args = (file, offset, reason, record)  # what it is pickled with
        self.record = record

    def __str__(self) -> str:
        return f"{super().__str__()}; to open the system without them, delete {self.record}"


class InvalidStopError(InvalidWalFormatError):
    """The record of a clean stop cannot be read, so where the write-ahead log ended is unknown."""

    def __str__(self) -> str:
        return (
            f"{self.file}: not a record of a clean stop: {self.reason}; whether the write-ahead log beside it is whole "
            f"is unknown: restore the record from a copy, or delete it to open the system with what the log holds"
        )


class WalFailedError(LogPathError):
    """Writing or syncing a write-ahead log failed, so nothing is acknowledged any more."""

    def __str__(self) -> str:
        return (
            f"{self.path}: the write-ahead log stopped: {self.reason}. Acknowledged entries are safe; remove the "
            f"cause, then close the system of logs and open it again"
        )


class FlushFailedError(LogPathError):
    """The segment writer could not move entries of a write-ahead log file into segments; the file stays."""

    def __str__(self) -> str:
        return (
            f"{self.path}: entries cannot be moved into segments: {self.reason}. The write-ahead log files stay and "
            f"hold them; remove the cause, then close the system of logs and open it again"
        )


class EntryMissingError(SegmentLogError):
    """An entry that a log must hold (above its snapshot, or live) is neither in memory nor in a segment."""

    def __init__(self, path: str, index: int) -> None:
        super().__init__(path, index)
        self.path = path
        self.index = index

    def __str__(self) -> str:
        return f"{self.path}: the entry of index {self.index} is missing: it is neither in memory nor in any segment"


class LogGapError(SegmentLogError):
    """An append does not follow the log's last entry; `expected` is the first index that would leave no gap."""

    def __init__(self, path: str, index: int, expected: int) -> None:
        super().__init__(path, index, expected)
        self.path = path
        self.index = index
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.path}: index {self.index} leaves a gap: the next entry is index {self.expected}"


class WriteRefusedError(LogPathError):
    """A write, truncation or snapshot contradicts what the log holds; says which and why."""

    def __str__(self) -> str:
        return f"{self.path}: refused: {self.reason}"


class LogBusyError(LogPathError):
    """The write-ahead log did not take more entries within the caller's time: its queue is full."""

    def __str__(self) -> str:
        return f"{self.path}: the write-ahead log is busy: {self.reason}; append again"


class UnknownLogError(SegmentLogError):
    """A system of logs has no log of this name."""

    def __init__(self, path: str, log: str) -> None:
        super().__init__(path, log)
        self.path = path
        self.log = log

    def __str__(self) -> str:
        return f"{self.path}: the system has no log {self.log!a}: open it first, which creates it"


class BrokenLogError(LogPathError):
    """A log that its system could not open, and keeps closed while the other logs go on; the cause is the error."""

    def __str__(self) -> str:
        return (
            f"{self.path}: the log is kept closed: {self.reason}. Its files are left as they are, and its entries stay "
            f"in the write-ahead log: remove the cause, or restore the files from a copy, then close the system of "
            f"logs and open it again"
        )


class LogClosedError(LogPathError):
    """A log or its system is closed."""

    def __str__(self) -> str:
        return f"{self.path}: closed: {self.reason}"


class InstallMessageError(SegmentLogError):
    """Bytes that are no message of an installation; `offset` is where that shows."""

    def __init__(self, size: int, offset: int, reason: str) -> None:
        super().__init__(size, offset, reason)
        self.size = size
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"install message of {self.size} bytes, at offset {self.offset}: {self.reason}; it does not count, and the "
            f"sender sends it again"
        )


class InstallIncompleteError(LogPathError):
    """A snapshot cannot be installed: live entries of it are not in the log, and were not sent."""

    def __str__(self) -> str:
        return f"{self.path}: the snapshot is not installed: {self.reason}"


class InvalidInstallError(LogPathError):
    """A snapshot cannot be installed: its files are damaged, or of another snapshot."""

    def __str__(self) -> str:
        return f"{self.path}: the snapshot is not installed, its files are not right: {self.reason}"


class InstallStoppedError(LogPathError):
    """The sender of a snapshot has given up, or there is nothing to send."""

    def __str__(self) -> str:
        return f"{self.path}: no snapshot is installed from here: {self.reason}"


class InvalidCutError(SegmentFileError):
    """The file that says where a log ends after an interrupted installation cannot be read."""

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.reason}: where the log ends is unknown. Delete the log's directory, so that a "
            f"snapshot is installed in an empty log, or restore the file from a copy"
        )


class InvalidGroupError(SegmentLogError):
    """A group, job name or token that no plan can have made (order, number or form of the names)."""


class GlobSyntaxError(SegmentLogError):
    """An include or exclude pattern that is not a path relative to the root."""


class MissingLiveIndexError(SegmentLogError):
    """An index that must survive is in a source's range, but the source has no record of it."""

    def __init__(self, file: str, index: int) -> None:
        super().__init__(file, index)
        self.file = file
        self.index = index

    def __str__(self) -> str:
        return (
            f"{self.file}: live index {self.index} is in the segment's range but has no record; "
            f"the segment stays as it is"
        )


class GroupTooLargeError(SegmentLogError):
    """A group holds more live data than one segment may: it was planned with other limits or another live set."""


class GroupEmptyError(SegmentLogError):
    """Nothing in a group is live any more: it is to be deleted as unreferenced, not rewritten."""


class SourcesChangedError(SegmentLogError):
    """The log is no longer what the plan or the rewrite saw (a segment replaced, gone, grown or live again): plan
    again.
    """


class VerificationFailedError(SegmentLogError):
    """A rewritten group did not read back equal to its sources; it was thrown away."""


class OwnerRunningError(LogPathError):
    """A log must not be compacted now: its owner runs, or nothing says that it is stopped; `reason` says which.

    `hazard`: what an owner would lose by starting now, and what comes before; empty when it may be started.
    """

    def __init__(self, path: str, reason: str, hazard: str = "") -> None:
        super().__init__(path, reason)
        self.args = (path, reason, hazard)  # what it is pickled with
        self.hazard = hazard

    def __str__(self) -> str:
        if self.hazard:
            return (
                f"{self.path}: {self.reason}. Stop the owner if it runs, and do not start it: {self.hazard}. Once it "
                f"is stopped, say so: --owner-stopped, in a policy ownership: Stopped"
            )
        return (
            f"{self.path}: {self.reason}. Stop the owner (one that was killed: start it and stop it), or say that "
            f"it is stopped: --owner-stopped, in a policy ownership: Stopped"
        )


class ServerRunningError(OwnerRunningError):
    """A system of logs must not be opened: a Ra server has its files open for writing."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. Stop it: one process at a time writes a system of logs"


class LiveEntriesMissingError(LogPathError):
    """Live indexes of a log are in no segment that can be read, nor in its write-ahead log, if one was found."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class EntriesHiddenError(LogPathError):
    """A segment (`path`) hides entries that the log needs and that no leader has dropped."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}. If it is an old file under a new name, move it out of the log's directory; "
            f"else restore the log from a copy or another member"
        )


class UnexpectedLogError(LogPathError):
    """An error of the program at one log, which is left out; the others go on."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ClumpRefusedError(LogPathError):
    """Live entries of a log must not, or cannot, be re-written at its head now; says why and what to do."""

    def __str__(self) -> str:
        return f"{self.path}: its live entries are not re-written at the head: {self.reason}"


class CorruptMovesError(SegmentFileError):
    """A map of moved entries (`*.moves`) that cannot be read as one."""

    def __str__(self) -> str:
        return (
            f"{self.file}: not a map of moved entries: {self.reason}. The log's owner needs it to find entries under "
            f"their new indexes: restore the file from a copy of the log before anything else"
        )


class StaleLogTokenError(SegmentLogError, StaleTokenError):
    """The same, as the fence of a segment log says it."""


class LockHeldError(SegmentLogError):
    """The log's lock could not be taken in time; names who holds it and since when.

    `process`: the holder as it can be found and ended (`pid 5 on host`), empty when it is unknown.
    """

    def __init__(self, path: str, holder: str, waited: float, process: str = "") -> None:
        super().__init__(path, holder, waited, process)
        self.path = path
        self.holder = holder
        self.waited = waited
        self.process = process

    def __str__(self) -> str:
        return (
            f"{self.path}: the lock is still held after {self.waited:.0f} s by {self.holder}: wait, and never "
            f"delete this file; end {self.process or 'the process that has it open'} instead if it is stuck"
        )


class LockLostError(LockHeldError):
    """The log's lock file was deleted or replaced while it was held, so others may hold the log's lock as well."""

    def __str__(self) -> str:
        return (
            f"{self.path}: the lock file was deleted or replaced while it was held, so another process may be at work: "
            f"this one has stopped. Run it again, what is half-done is settled first. Never delete this file"
        )


class LockFileError(LogPathError):
    """The file under the name of the log's lock file cannot be locked."""

    def __str__(self) -> str:
        return f"{self.path}: cannot be the log's lock, {self.reason}: move it out of the log directory"


class CorruptFenceError(SegmentFileError):
    """The fence file of a log cannot be read as one."""

    def __str__(self) -> str:
        return (
            f"{self.file}: not a fence record: {self.reason}. Stop all workers of this log, then move the file away: "
            f"claims, receipts and pending deletions start empty, no log data depends on it"
        )


class UnwritableFenceError(SegmentFileError):
    """A fence record that could not be read back, or is too large; the one on disk still stands."""

    def __str__(self) -> str:
        return f"{self.file}: left as it is, because the new record {self.reason}"


class LogNotWritableError(InterruptedCommitError):
    """The log's directory cannot be written: permission, read-only file system.

    `outcome`: what became of the commit that was under way, empty when there was none.
    """

    def __str__(self) -> str:
        outcome = f"; {self.outcome}" if self.outcome else ""
        return (
            f"{self.path}: cannot be written ({self.reason}): run with an account that may write to the log directory"
            f"{outcome}"
        )


class LogNotReadableError(LogPathError):
    """A file or directory of a log may not be read by this account."""

    def __str__(self) -> str:
        return f"{self.path}: cannot be read ({self.reason}): run with an account that may read the log directory"


class StoreIOError(InterruptedCommitError):
    """The operating system refused a read or write (no space, input/output error).

    `outcome`: what became of the commit that was under way, empty when there was none.
    """

    def __str__(self) -> str:
        outcome = f"{self.outcome}; " if self.outcome else ""
        return f"{self.path}: {self.reason}; {outcome}no entry is lost: remove the cause, then run again"


class RecoveryNeededError(SegmentLogError):
    """A log with a half-done compaction: it is settled before anything is planned. `outlook`: what recovery will do.

    `doubt`: why the log's owner is not known to be stopped; empty when it is.
    """

    def __init__(self, path: str, outlook: tuple[str, ...] = (), doubt: str = "") -> None:
        super().__init__(path, outlook, doubt)
        self.path = path
        self.outlook = outlook
        self.doubt = doubt

    def __str__(self) -> str:
        outlook = f" ({'; '.join(self.outlook)})" if self.outlook else ""
        said = f"{self.path}: a compaction died half-way here"
        if self.doubt:
            return (
                f"{said}, and {self.doubt}. Stop the owner if it runs, do not start it, and run "
                f"`compactor segments sweep {self.path} --apply --owner-stopped` first{outlook}"
            )
        return f"{said}; run `compactor segments sweep {self.path} --apply` first{outlook}"


class RecoveryBlockedError(LogPathError):
    """A file of a half-done compaction that must not be removed: it may hold the only copy of live entries."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}: recovery keeps the file and the log is not compacted; restore the segments "
            f"that are missing, or move the file away if its entries are not needed"
        )
