"""Every error the project raises on purpose, in one flat module.

A message names the object (file, index, job, policy) and says what to do; the command line prints it as it is.
"""

from enum import StrEnum
from typing import Final, Self

CONFIG_MAP: Final = "configmap_"
"""Before the name of a ConfigMap where those of Secrets stand: no Secret has an underscore in its name. Both are keys
with texts, and are mounted, read and checked alike.
"""


def shown_bytes(raw: bytes, limit: int = 80) -> str:
    """Bytes from outside as quoted text, cut to so many of them: `'tables/a.json'`; what is no text is written out."""
    return ascii(raw[:limit].decode("utf-8", "backslashreplace"))


class CompactionError(Exception):
    """Base of all errors that are meant for a person to read."""


# --- stores of every kind -------------------------------------------------------------------------------------------


class StaleTokenError(CompactionError):
    """A token that is not the one claimed last for its job: another attempt took over, and this one commits nothing."""

    def __init__(self, path: str, job: str, token: int, claimed: int | None) -> None:
        super().__init__(path, job, token, claimed)
        self.path = path
        self.job = job
        self.token = token
        self.claimed = claimed

    def __str__(self) -> str:
        known = "no claim stands" if self.claimed is None else f"token {self.claimed} is claimed"
        return f"{self.path}: token {self.token} of job {self.job} is stale ({known}): nothing was committed by it"


class ClaimRefusal(StrEnum):
    """What a refused claim means for the job."""

    BUSY = "Busy"  # another job, or somebody else, has the target or a source: it is tried again
    GONE = "Gone"  # the job cannot have its sources: the next scan of the store says whether they are there at all
    ERROR = "Error"  # the store cannot be asked, or cannot write the claim down: it is tried again


class ClaimRefusedError(CompactionError):
    """A store refuses the claim of a job, and nothing was changed; raised by the adapters of all kinds.

    `wait`: the kind's own word for what the job waits for, "" for the general one of the `refusal`.
    """

    def __init__(self, refusal: ClaimRefusal, message: str, wait: str = "") -> None:
        super().__init__(refusal, message, wait)
        self.refusal = refusal
        self.message = message
        self.wait = wait

    def __str__(self) -> str:
        return self.message


class RecordTextError(CompactionError):
    """A record, value or operation that is not written as it must be; says what is wrong and what to write."""


class RecordLineError(RecordTextError):
    """A line of a file that is not written as it must be; `line` counts from 1."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}: {self.reason}"


class StorageError(CompactionError):
    """What a store depends on cannot be used: a Secret, object storage, or a database. A kind of store reports these
    together with errors of its own.
    """


class SecretError(StorageError):
    """A Secret (`secret`), or one `key` of it ("": all of it), that cannot be used; `reason` says why and what to do.

    No value is ever part of it.
    """

    def __init__(self, secret: str, key: str, reason: str) -> None:
        super().__init__(secret, key, reason)
        self.secret = secret
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        noun, name = self.shown(self.secret)
        where = f"key {self.key} of {noun} {name}" if self.key else f"{noun} {name}"
        return f"{where}: {self.reason}"

    @staticmethod
    def shown(name: str) -> tuple[str, str]:
        """Noun and name of what is read as a Secret (`storage.secrets`)."""
        config_map = name.removeprefix(CONFIG_MAP)
        return ("Secret", name) if config_map == name else ("ConfigMap", config_map)


class SecretMissingError(SecretError):
    """There is no such Secret, or it has no such key."""


class SecretsNotFoundError(SecretMissingError):
    """None of the Secrets `names` is in `where`; `remedy`: the verb for what to do about it there, such as Create."""

    def __init__(self, names: tuple[str, ...], where: str, remedy: str) -> None:
        super().__init__(names[0], "", f"not found in {where}")
        self.args = (names, where, remedy)  # what it is pickled with
        self.names = names
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        shown = [self.shown(name) for name in self.names]
        if len(shown) == 1:
            noun, name = shown[0]
            return f'{noun} "{name}" not found in {self.where}. {self.remedy} it or correct the name.'
        together = {noun: " and ".join(f'"{name}"' for one, name in shown if one == noun) for noun, _ in shown}
        named = " and ".join(f"{noun}{'s' if ' and ' in names else ''} {names}" for noun, names in together.items())
        return f"{named} not found in {self.where}. {self.remedy} them or correct the names."


class SecretForbiddenError(SecretError):
    """The Secret may not be read."""


# --- segment logs: format -----------------------------------------------------------------------------------------
# Arguments are positional and kept in `args`, so these errors survive pickling between Spark tasks and the driver.


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
    """What is live below the snapshot is unknown (`indexes` is missing), which never means that nothing is.

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


# --- segment logs: the writing side ---------------------------------------------------------------------------------


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


# --- the Kubernetes API -------------------------------------------------------------------------------------------


class ConnectionConfigError(CompactionError):
    """No usable way to reach the API server was found; names the files and variables that were tried."""


class KindsNotServedError(ConnectionConfigError):
    """The API server does not serve our kinds: their definitions are not applied, or it has not read them yet."""


class ApiError(CompactionError):
    """The API server answered with an error; `status` is the HTTP code, `reason` the machine-readable Status reason."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """404: the object, or its kind, does not exist."""

    @property
    def is_of_kind(self) -> bool:
        """Whether it is the kind that does not exist: a server without a handler for the path processes nothing, and
        answers with no Status, so there is no reason.
        """
        return not self.reason


class AlreadyExistsError(ApiError):
    """409 AlreadyExists: a create met an object of the same name."""


class ConflictError(ApiError):
    """409 Conflict: a resourceVersion or uid precondition did not hold; read again and decide again."""


class GoneError(ApiError):
    """410: the resourceVersion of a watch or of a continued list is too old; list again."""


class TooManyRequestsError(ApiError):
    """429: refused unprocessed by flow control even after the bounded retries."""


class ForbiddenError(ApiError):
    """403: the credentials lack a permission, or the API server takes no such object now."""

    @property
    def is_of_kind(self) -> bool:
        """Whether the kind goes away: its definition is being deleted, and takes no new objects. Nothing but the words
        of the API server tells this from a missing permission.
        """
        return "custom resource definition is terminating" in str(self)


class UnauthorizedError(ApiError):
    """401: the credentials are missing, expired or unknown."""


class InvalidObjectError(ApiError):
    """400 or 422: the API server refused the object itself; its message tells the fix."""


class ApiUnavailableError(ApiError):
    """No answer (transport error, deadline, 5xx): a write may have happened, so read again before deciding."""


class ClusterCommandError(CompactionError):
    """A command for a cluster cannot be carried out: no such object, no permission, no answer, not in this state."""


class PlanNotApprovedError(CompactionError):
    """A plan must be approved by its hash before it is carried out (`approval: Manual`), and was not."""


class MissingPermissionsError(CompactionError):
    """The operator's account lacks permissions it needs; lists every missing verb and resource."""


class MalformedLeaseError(CompactionError):
    """A Lease object holds a value this project cannot read; names the Lease and the field."""


class TokenExhaustedError(CompactionError):
    """A job's fencing counter reached the largest value a Lease can hold (int32)."""


# --- launching workers ----------------------------------------------------------------------------------------------


class LaunchError(CompactionError):
    """A worker could not be started; names the worker and the cause."""


class KindNotServedError(LaunchError):
    """The API server listed the kind of a worker's object and has no handler for it: it comes, or has just gone."""


class LaunchUncertainError(LaunchError):
    """The answer to a launch got lost: the worker may have been started."""


# --- the worker (worker/, cli/cluster/worker.py) ---


class LeaseLostError(CompactionError):
    """A job's lease has another holder or token, is gone, or was not renewed in time: nothing may be committed."""


class WorkerLeaseGoneError(CompactionError):
    """The worker's own lease was deleted or taken: the worker must abort and exit."""


class StopRequestedError(CompactionError):
    """The coordinator asks the worker to stop."""


class PortUnavailableError(CompactionError):
    """The API server did not answer, or not usefully; whether the request took effect is unknown."""


class JobStoppedError(CompactionError):
    """A job was stopped before its next commit because its worker was asked to stop."""


class InvalidAssignmentError(CompactionError):
    """An assigned job cannot be understood or carried out by this worker."""


class EngineStartError(CompactionError):
    """Spark could not be started."""


class EngineLostError(CompactionError):
    """Spark went away under a running job; the worker cannot go on."""


class TaskFailedError(CompactionError):
    """A Spark task raised something unexpected, or its process died."""


class ExecutorsOutOfMemoryError(TaskFailedError):
    """Executors that ran a task were killed for using more memory than their pods have."""


class RateBudgetError(CompactionError):
    """A task cannot ask the driver of its worker for its part of limits.bytesPerSecond."""

    def __init__(self, host: str, port: int, cause: Exception) -> None:
        super().__init__(host, port, cause)
        self.host, self.port, self.cause = host, port, cause

    def __str__(self) -> str:
        return (
            f"{self.host}:{self.port}: the worker's driver does not say how many bytes may be moved "
            f"({type(self.cause).__name__}: {self.cause}). Let executors reach their driver on every port, or remove "
            "limits.bytesPerSecond"
        )


class TaskCancelledError(CompactionError):
    """A Spark task was cancelled."""


# --- segment logs: plan, rewrite, commit, cleanup -------------------------------------------------------------------


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


class RewriteStoppedError(CompactionError):
    """A rewrite was asked to stop (lease lost, worker leaving); its partial file was removed."""


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
    """What stands under the name of the log's lock file cannot be locked."""

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


# --- planning and reconciling ---------------------------------------------------------------------------------------


class IllegalTransitionError(CompactionError):
    """A job was to change its state in a way the state machine does not know: a defect of the coordinator."""


class BlockIdError(CompactionError):
    """Ids of blocks that no job can be named or made of; says what an id looks like."""


# --- the local control plane ----------------------------------------------------------------------------------------


class LocalStateError(CompactionError):
    """The state file of a local control plane cannot be understood."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}: remove the file after checking that no etcd or kube-apiserver of it runs"


class ControlPlaneError(CompactionError):
    """etcd or kube-apiserver could not be started, or ended."""

    def __init__(self, server: str, reason: str, log: str = "") -> None:
        super().__init__(server, reason, log)
        self.server = server
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.server} {self.reason}" + (f"; the end of its log:\n{self.log}" if self.log else "")


class ControlPlaneBusyError(CompactionError):
    """A control plane already runs in the state directory, or none runs where one is needed."""


class BinaryError(CompactionError):
    """The programs of the control plane were not found and could not be downloaded or built; says what was tried."""


class NodeError(CompactionError):
    """A node could not be started, or left something behind; names it and says what to do."""


class CommandMissingError(CompactionError):
    """This installation does not hold a command, and says where it is available. Argument: the command as written."""

    def __str__(self) -> str:
        return (
            f"`{self.args[0]}` is not available in this image: it runs on workstations only; install the package there "
            "(docs/images.md)"
        )


class ImageError(CompactionError):
    """An image could not be built; names the step, and says what is missing or what was printed."""


class DemoError(CompactionError):
    """The demo could not be carried through; says at which step and what was seen."""


class DrillError(CompactionError):
    """A drill could not be carried through; says at which step. Nothing is said about what it was to prove."""


class JavaError(CompactionError):
    """No Java runtime of version 17 or later was found; names the package to install."""


class MalformedReportError(CompactionError):
    """The report a worker left on a job's Lease cannot be read; names the field."""


# --- resources --------------------------------------------------------------------------------------------------------


class InvalidManifestError(CompactionError):
    """A policy file that the API server would refuse; one line per problem, each with the field and the fix."""


class CrdDriftError(CompactionError):
    """The committed resource definitions differ from the models; names the files and the command that writes them."""


class ShippedFilesError(CompactionError):
    """A generated file of a checkout cannot be generated; says which and why."""


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
                f"`compactor segments recover {self.path} --owner-stopped` first{outlook}"
            )
        return f"{said}; run `compactor segments recover {self.path}` first{outlook}"


class RecoveryBlockedError(SegmentLogError):
    """A file of a half-done compaction that must not be removed: it may hold the only copy of live entries."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}: recovery keeps the file and the log is not compacted; restore the segments "
            f"that are missing, or move the file away if its entries are not needed"
        )


# --- running without Kubernetes -------------------------------------------------------------------------------------


class RootUnreadableError(CompactionError):
    """A policy's root cannot be scanned; says why and what to do."""


# --- object storage ---------------------------------------------------------------------------------------------------
# Arguments are positional and kept in `args`, so these errors survive pickling between Spark tasks and the driver.


class ObjectStoreUrlError(StorageError):
    """A URL or option from which no object store can be opened; options are named, their values never are."""


class StoreOptionsError(StorageError):
    """A file of options of an object store that holds none, or a Secret that cannot be read; values are never named."""


class ObjectError(StorageError):
    """One object (`path`, below the store's root) and what is wrong (`reason`, without anything secret)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class ObjectPathError(ObjectError):
    """A path that no object of ours can have: empty parts, `..`, control characters, or too long."""


class ObjectMissingError(ObjectError):
    """There is no such object."""


class ObjectExistsError(ObjectError):
    """The object was to be created, and another one has the path."""


class ObjectChangedError(ObjectError):
    """The object was replaced while it was read; blocks never change, so this is a foreign writer."""


class ObjectTruncatedError(ObjectError):
    """The object is shorter than what was asked of it."""


class ObjectAccessError(ObjectError):
    """The credentials are missing, wrong, or may not do this; or there is no such bucket."""


class ObjectRefusedError(ObjectError):
    """The store refused the request, and would again."""


class ObjectStoreUnavailableError(ObjectError):
    """No usable answer, even after the bounded retries. A write or a deletion may have happened: it may be repeated."""


class LackOfResourcesError(ObjectStoreUnavailableError):
    """This machine had not what it takes to read the object: memory, open files, disk space. It says nothing of the
    object.
    """

    def __init__(self, path: str, lacking: str) -> None:
        super().__init__(path, f"cannot be read on this machine now: {lacking}; make room for it, then try again")


# --- databases --------------------------------------------------------------------------------------------------------


class DatabaseError(StorageError):
    """A database (`database`: what it holds and where, without credentials) cannot do what was asked; `reason` says
    why.
    """

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(database, reason)
        self.database = database
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.database}: {self.reason}"


class DatabaseUrlError(DatabaseError):
    """A URL that is not one of SQLite or PostgreSQL, or names no database."""


class DatabaseUnavailableError(DatabaseError):
    """The database did not answer, or not in time. What was asked may have happened: every call may be repeated.
    `reason` begins with a verb.
    """

    def __str__(self) -> str:
        return f"{self.database} {self.reason}"


class DatabaseUnreachableError(DatabaseUnavailableError):
    """There is no connection to the database."""


class DatabaseLoginError(DatabaseError):
    """The database refuses the login; `reason` begins with a verb."""

    def __str__(self) -> str:
        return f"{self.database} {self.reason}"


class DatabaseSchemaError(DatabaseError):
    """The database holds none of our tables, or those of another version of this program."""


# --- block stores ---------------------------------------------------------------------------------------------------
# Arguments are positional and kept in `args`, so these errors survive pickling between Spark tasks and the driver.


class BlockStoreError(CompactionError):
    """Anything wrong with a block store: its objects, the format of its blocks, its index, a merge."""


# --- block stores: format


class BlockFormatError(BlockStoreError):
    """An object (`path`) that cannot be a block as it is; `reason` says what is wrong with it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CorruptBlockError(BlockFormatError):
    """No Parquet file, or one that contradicts itself: truncated, damaged, or of another kind."""

    def __str__(self) -> str:
        return f"{self.path}: corrupt block: {self.reason}"


class UnsuitableBlockError(BlockFormatError):
    """A sound Parquet file that cannot be a block: no time column, a name twice, encrypted, too large a footer."""


class UnexpectedBlockError(UnsuitableBlockError):
    """A file that this program fails on for a reason that no code expects: a defect of ours, not of the store."""


class UnknownOutputError(UnsuitableBlockError):
    """What a compaction (`job`) has written, in an index that knows neither: of another store, or of a lost index."""

    def __init__(self, path: str, job: str) -> None:
        super().__init__(
            path,
            f"compaction {job[:80]!r} wrote it, the index of this store knows neither of them, so no reader sees its "
            f"rows: where the store was copied or its index lost, make an index of all that lies there with compactor "
            f"blocks rebuild-index and the URL of an empty database (docs/block-stores.md, The index is lost)",
        )


class ForeignFileError(UnsuitableBlockError):
    """A file that belongs to a table format or to another block store: its owner compacts and deletes it, never we."""


class NoBlockIdError(UnsuitableBlockError):
    """A file whose name is not that of a block, so that it needs an id of its own."""


class InvalidTenantError(BlockStoreError):
    """A tenant's name that cannot be part of a path: empty, or too long."""


class UnsupportedColumnError(BlockStoreError):
    """A column that blocks cannot have: `column` is its path, `reason` its type or what else is wrong with it."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        return f"column {self.column[:200]!r} cannot be part of a block: {self.reason[:200]}"


# --- block stores: index


class NoBlockStoreError(BlockStoreError):
    """There is no block store at the location given to a command."""


class IndexMismatchError(BlockStoreError):
    """The objects (`store`, a URL without credentials) and the index (`index`) do not belong together."""

    def __init__(self, store: str, index: str, reason: str) -> None:
        super().__init__(store, index, reason)
        self.store = store
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.store} and {self.index}: {self.reason}"


class SnapshotExpiredError(BlockStoreError):
    """What was live at that instant (of `what`: an index, or an object) is gone or forgotten: it is too long ago."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}: take a new snapshot"


class InvalidBlockError(BlockStoreError):
    """What is to be registered cannot be a block (`block`: its id); names the field."""

    def __init__(self, block: str, reason: str) -> None:
        super().__init__(block, reason)
        self.block = block
        self.reason = reason

    def __str__(self) -> str:
        return f"block {self.block}: {self.reason}"


class BlockConflictError(InvalidBlockError):
    """The id or the path is known already, with another content: blocks never change, so one of both is wrong."""


class UnknownBlockError(BlockStoreError):
    """No such block, or not in the state that the call is for (`state`)."""

    def __init__(self, block: str, state: str) -> None:
        super().__init__(block, state)
        self.block = block
        self.state = state

    def __str__(self) -> str:
        return f"block {self.block} is {self.state}"


class JobRefusedError(BlockStoreError):
    """The index refused something for a job, and nothing was changed; `reason` is a `Refusal`."""

    def __init__(self, job: str, reason: str, detail: str) -> None:
        super().__init__(job, reason, detail)
        self.job = job
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"job {self.job}: {self.detail}; nothing was changed"


class BlockClaimError(JobRefusedError):
    """A job cannot have the blocks it is to replace: plan again."""


class ReplaceRefusedError(JobRefusedError):
    """A result cannot be committed: the attempt is fenced, late, or not what was claimed. Its outputs are orphans."""


# --- block stores: ingest


class IngestConfigError(CompactionError):
    """The endpoint cannot be started like this; names the option or file, never what is secret in it."""


class NotAuthenticatedError(CompactionError):
    """A caller without a token, or with an unknown one."""


class NotAllowedError(CompactionError):
    """A caller that is known and may not do this; names the principal, and the tenant."""


class OwnTokenError(CompactionError):
    """There is no token of the operator's own service account to show; says why and what to do."""


class TokenReviewUnavailableError(CompactionError):
    """The API server could not be asked whose token it is: neither known nor unknown, try again."""


# --- block stores: merge


class MergeError(BlockStoreError):
    """Blocks cannot be merged, or not as asked."""


class SchemaConflictError(MergeError):
    """A column whose types in two blocks have no common one that holds both exactly."""

    def __init__(self, column: str, block: str, kind: str, other_block: str, other_kind: str) -> None:
        super().__init__(column, block, kind, other_block, other_kind)
        self.column = column
        self.block = block
        self.other_block = other_block

    def __str__(self) -> str:
        column, block, kind, other_block, other_kind = self.args
        return (
            f"column {column}: {block} has {kind}, {other_block} has {other_kind}: these cannot be merged; rewrite one "
            f"of the two with the type of the other, or keep them in different shards"
        )


class SortKeyError(MergeError):
    """The sort key cannot order the rows: a column that no block has, or of a type without an order."""


class UnreadableBlockError(MergeError):
    """A block (`block`) that cannot be read as Parquet, or not to its end; `reason`: what the reader said."""

    def __init__(self, block: str, reason: str) -> None:
        super().__init__(block, reason)
        self.block = block
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.block}: cannot be read as Parquet: {self.reason}"


class BlockNotSortedError(MergeError):
    """A block (`block`) that says it is sorted by the key, and is not: it can be merged when it is sorted first."""

    def __init__(self, block: str) -> None:
        super().__init__(block)
        self.block = block

    def __str__(self) -> str:
        return f"{self.block}: its rows are not in the order that its metadata says; it must be sorted before a merge"


class MergeMemoryError(MergeError):
    """The memory limit is too small for a merge of even two blocks: names the block, what it needs and the limit."""

    def __init__(self, block: str, needed: int, limit: int, purpose: str = "to read") -> None:
        super().__init__(block, needed, limit, purpose)
        self.block = block

    def __str__(self) -> str:
        block, needed, limit, purpose = self.args
        return f"{block}: takes {needed} bytes of memory {purpose}, {limit} are allowed for it: raise the memory limit"


class BlockVerificationError(MergeError):
    """What was written does not read back as the rows that were read; nothing is committed. Says both fingerprints."""

    def __init__(self, output: str, expected: str, found: str) -> None:
        super().__init__(output, expected, found)
        self.output = output

    def __str__(self) -> str:
        output, expected, found = self.args
        return f"{output}: reads back as {found}, the sources are {expected} (rows:content): nothing is committed"


class LogicalTypeLostError(MergeError):
    """A column of a block (`block`) that would not mean what it does in there: says its logical type, and which."""

    def __init__(self, block: str, column: str, kind: str, written: str) -> None:
        super().__init__(block, column, kind, written)
        self.block = block
        self.reason = (
            f"column {column} is {kind} and would be written as {written}, so it cannot be merged: leave the file out, "
            f"or write the column as a type that is kept (docs/block-stores.md, Schemas)"
        )

    def __str__(self) -> str:
        return f"{self.block}: {self.reason}"


# --- staging areas: format ------------------------------------------------------------------------------------------


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


# --- staging areas: key-value store, tree ---------------------------------------------------------------------------


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


# --- staging areas: references and flows ----------------------------------------------------------------------------


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
    """What replaces the content of a branch needs a branch without uncommitted changes."""

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
    """What was written does not read back as what the branch shows; nothing is committed. Says both fingerprints."""

    def __init__(self, branch: str, expected: str, found: str) -> None:
        super().__init__(branch, expected, found)
        self.branch = branch

    def __str__(self) -> str:
        branch, expected, found = self.args
        return (
            f"{branch}: the ranges that were written read back as {found}, the branch shows {expected} "
            "(records:content): nothing is committed"
        )


# --- staging areas: live lakeFS -------------------------------------------------------------------------------------


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


# --- catalogs -------------------------------------------------------------------------------------------------------


class CatalogError(CompactionError):
    """Base of the errors of catalogs."""


class CorruptCatalogValueError(CatalogError):
    """A value of the update log that is damaged: `name` is the file or key, `offset` the byte that says so."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: damaged at byte {self.offset}: {self.reason}; restore the value from a copy of the log"


class UnsupportedCatalogValueError(CatalogError):
    """A value of the update log in a form that this version cannot read: a protocol, type or serializer version."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.name}: not a value that this version reads (byte {self.offset}: {self.reason}); use the version "
            "that wrote it, or name a value of a catalog's update log"
        )


class CatalogValueError(CatalogError):
    """An update or snapshot that no value of the log can hold; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the update cannot be written: {self.reason}"


class CatalogValueSizeError(CatalogError):
    """A file that is too large for a value of the update log."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, limit)
        self.name = name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.name}: larger than {self.limit} bytes, the most of a value; name a value of a catalog's update log"
        )


class SerializerTableError(CatalogError):
    """The table of serializers is wrong: a version is missing, twice there, or has no release that introduced it."""


class InapplicableEntryError(CatalogError):
    """An update or snapshot that contradicts the catalog it belongs to: the log is damaged."""

    def __init__(self, version: int, what: str, reason: str) -> None:
        super().__init__(version, what, reason)
        self.version = version
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"catalog version {self.version}: {self.what} cannot be applied: {self.reason}; restore the update log "
            "from a copy"
        )


class CatalogValidationError(CatalogError):
    """A command that the rules of a catalog refuse; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class IndexNotFoundError(CatalogValidationError):
    """A command names an index that does not exist, or is stopping."""


class IndexStatusError(CatalogValidationError):
    """A command that an index of another status expects."""


class NoStorageProfileError(CatalogValidationError):
    """A table that names no storage profile, in a zone that has none."""


class WatermarkFileError(CatalogError):
    """The file of a participant's low watermark cannot be read or written, or holds something else."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: the low watermark {self.reason}; fix the permissions or the disk, or delete a damaged file: "
            "the watermark is then undefined until its next update"
        )


class ParticipantStateError(CatalogError):
    """A request that does not fit the state of a participant: an unknown partition, a checkpoint that never began."""


class MinimumAheadError(CatalogError):
    """A minimum to store that is later than what the participant's own transactions need: nothing was stored."""

    def __init__(self, participant: str, timestamp: int, own: int) -> None:
        super().__init__(participant, timestamp, own)
        self.participant = participant
        self.timestamp = timestamp
        self.own = own

    def __str__(self) -> str:
        return (
            f"{self.participant}: the minimum {self.timestamp} is later than {self.own}, which its transactions need: "
            "it is no minimum of all participants; ask all of them again"
        )


class StaleCoordinatorError(CatalogError):
    """A minimum from a coordinator whose token is not the largest that the participant has seen; nothing was stored."""

    def __init__(self, participant: str, token: int, largest: int) -> None:
        super().__init__(participant, token, largest)
        self.participant = participant
        self.token = token
        self.largest = largest

    def __str__(self) -> str:
        return (
            f"{self.participant}: token {self.token} is stale: a coordinator came with {self.largest}; stop this "
            "one, or let it claim a new token"
        )


class ParticipantFailure(StrEnum):
    """Why there is no report of a participant that may be believed."""

    NO_ANSWER = "NoAnswer"
    LATE = "Late"
    UNAUTHORIZED = "Unauthorized"
    REDIRECTED = "Redirected"
    REFUSED = "Refused"
    GARBAGE = "Garbage"
    TOO_LARGE = "TooLarge"
    WRONG_VERSION = "WrongVersion"
    NAME_DIFFERS = "NameDiffers"
    STALE_TOKEN = "StaleToken"
    MINIMUM_AHEAD = "MinimumAhead"


_PARTICIPANT_ADVICE = {
    ParticipantFailure.NO_ANSWER: "check that it runs, its address, and network policies",
    ParticipantFailure.LATE: "check its load, or allow it more time",
    ParticipantFailure.UNAUTHORIZED: "give coordinator and participant the same secret, or allow the service account",
    ParticipantFailure.REDIRECTED: "name the address that answers itself: redirects are not followed",
    ParticipantFailure.REFUSED: "read its log",
    ParticipantFailure.GARBAGE: "run `compactor catalogs conformance` against it",
    ParticipantFailure.TOO_LARGE: "let the process hold fewer partitions",
    ParticipantFailure.WRONG_VERSION: "upgrade the participant or the operator, so that both have the same protocol",
    ParticipantFailure.NAME_DIFFERS: "name the participant that answers there, or correct the address",
    ParticipantFailure.STALE_TOKEN: "another coordinator was elected: this one has to stop. If there is none, restart "
    "the participant, which remembers the largest token until then",
    ParticipantFailure.MINIMUM_AHEAD: "compute the minimum again from new reports of all participants",
}


class ParticipantError(CatalogError):
    """A participant that gave no report, or none that may be believed: no history is cut. `name`, `url`: which one."""

    def __init__(self, name: str, url: str, reason: ParticipantFailure, detail: str) -> None:
        super().__init__(name, url, reason, detail)
        self.name = name
        self.url = url
        self.reason = reason
        self.detail = detail

    @property
    def explanation(self) -> str:
        """What happened and what to do, behind the name of the participant."""
        return f"{self.detail} ({self.reason}, {self.url}); {_PARTICIPANT_ADVICE[self.reason]}"

    def __str__(self) -> str:
        return f"participant {self.name}: {self.explanation}"


class ParticipantConfigError(CatalogError):
    """Addresses or secrets by which participants cannot be asked safely."""


class CatalogArgumentError(CatalogError):
    """An argument of another type than a call of the library takes."""


class CatalogNotFoundError(CatalogError):
    """A version that is not retained, or a time before the earliest retained one."""

    @classmethod
    def of_version(cls, version: int, earliest: int, latest: int) -> Self:
        return cls(f"catalog version {version} not found: versions {earliest} to {latest} are retained")

    @classmethod
    def at_time(cls, at: int, earliest: int, since: int) -> Self:
        return cls(
            f"no catalog found for the time {at}: the earliest retained version {earliest} is active from {since} on; "
            "use a later time"
        )


class CatalogConflictError(CatalogError):
    """Other processes wrote a version each time that this one was about to; nothing was changed."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        return f"other processes changed the catalog in each of {self.attempts} attempts; run the command again"


class CatalogClockError(CatalogError):
    """A clock is further off than the catalog's `max_skew` allows. `off`: milliseconds that the clock of `who` is ahead
    of that of `reference`, below 0 when it is behind.
    """

    def __init__(self, who: str, off: int, reference: str, allowed: int) -> None:
        super().__init__(who, off, reference, allowed)
        self.who = who
        self.off = off
        self.reference = reference
        self.allowed = allowed

    def __str__(self) -> str:
        direction = "ahead of" if self.off > 0 else "behind"
        return (
            f"the clock of {self.who} is {abs(self.off):,} ms {direction} that of {self.reference}, and "
            f"{self.allowed:,} ms are allowed (max_skew); synchronize the clocks, then run the command again"
        )


class CatalogNotRunError(CatalogError):
    """A batch that was to run after another one, which failed; nothing of it was written."""

    def __str__(self) -> str:
        return "not run: a step before it failed"


class CatalogLateError(CatalogError):
    """A version that came after its time was complete (`wait_complete`). `age`: milliseconds since its timestamp."""

    def __init__(self, version: int, writer: str, age: int) -> None:
        super().__init__(version, writer, age)
        self.version = version
        self.writer = writer
        self.age = age

    def __str__(self) -> str:
        return (
            f"version {self.version} of {self.writer} has a time {self.age:,} ms ago, for which the catalog was "
            "complete already; synchronize the clocks of both processes, or raise slowest_append where etcd is slower "
            "than that, then start this process again"
        )


class CatalogClosedError(CatalogError):
    """The manager of the catalog was closed before the result was known."""

    def __str__(self) -> str:
        return "the manager of the catalog is closed; what it was asked for may have reached the log or not"


class CatalogStoppedError(CatalogError):
    """The manager of a catalog applies no further versions, because of the error it was raised from."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(version, reason)
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"the catalog stopped at version {self.version}: {self.reason}"


class CatalogHistoryError(CatalogError):
    """A file that holds no history of a catalog, or a damaged one."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(name, line, reason)
        self.name = name
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: line {self.line} is no step of a history: {self.reason}; name a file of recorded DDL"


class CatalogLogError(CatalogError):
    """The update log did not do what was asked of it. `log` names it: endpoints and prefix, never a password."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(log, reason)
        self.log = log
        self.reason = reason

    def __str__(self) -> str:
        return f"update log {self.log}: {self.reason}"


class CatalogLogUnavailableError(CatalogLogError):
    """No endpoint answered in time. A write may have happened all the same: then the watch delivers it."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check that etcd has a quorum and that its endpoints can be reached"


class CatalogLogAccessError(CatalogLogError):
    """The log refuses the certificate, the user or what the user may do."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check the Secret of the log: certificates, user and password, and the user's role"


class CatalogLogRefusedError(CatalogLogError):
    """The log refuses a request for a reason of its own; `code` is that of gRPC."""

    def __init__(self, log: str, code: int, reason: str) -> None:
        super().__init__(log, reason)
        self.code = code

    def __str__(self) -> str:
        return f"{super().__str__()} (gRPC code {self.code}); see the log of the etcd server"


class CatalogLogCutError(CatalogLogError):
    """The history of etcd no longer reaches back to a revision that was asked for; reading again helps."""


class CatalogLogRewoundError(CatalogLogError):
    """The log has lost versions that it had: it was restored from an older copy."""

    def __str__(self) -> str:
        return f"{super().__str__()}; restart the processes that use the catalog, so that they recover from this log"


class CatalogLogUncertainError(CatalogLogError):
    """An answer was lost, and the log no longer holds what would show whether the write happened."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check the catalog before the command is given again"


class CatalogLogSizeError(CatalogLogRefusedError):
    """A request is larger than the log takes."""


class CatalogLogFullError(CatalogLogError):
    """etcd has no space left (its alarm NOSPACE): it reads and deletes, and writes nothing."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}: etcd has no space left and writes nothing. Compact its history (etcdctl compact "
            "REVISION), defragment each member (etcdctl defrag), then clear the alarm (etcdctl alarm disarm)"
        )


class CatalogLogLimitError(CatalogError):
    """A version that is larger than the log takes; nothing was written. `size`: bytes of its value."""

    def __init__(self, version: int, size: int, reason: str) -> None:
        super().__init__(version, size, reason)
        self.version = version
        self.size = size
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"catalog version {self.version} takes {self.size:,} bytes, more than the update log takes in one request "
            f"({self.reason}); set --max-request-bytes of every etcd member above that, or split the batch"
        )


class CorruptCatalogLogError(CatalogError):
    """The update log contradicts itself; `key` is the key that shows it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; restore the update log from a copy, or name the prefix of another log"


class UnreadableVersionError(CorruptCatalogLogError):
    """A value of the update log that does not decode; the versions around it may be whole."""

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.reason}; restore the update log from a copy. `compactor catalogs repair` lists such "
            "versions, and replaces them on request"
        )


class CatalogRepairError(CatalogError):
    """A version that is not stepped over; nothing was written for it."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(version, reason)
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"catalog version {self.version} is not replaced: {self.reason}"


class CatalogDdlError(CatalogError):
    """A file of DDL commands that cannot be run: nothing of it was."""

    def __init__(self, file: str, step: str, reason: str) -> None:
        super().__init__(f"{file}: {step}: {reason}" if step else f"{file}: {reason}")
