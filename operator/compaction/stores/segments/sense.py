"""Finds the segment logs under a root and says what each would gain from compaction now.

Invariants: nothing outside the root is ever looked at (a symlink that leads out is refused, by name); nothing that
cannot be read is passed over in silence; one broken log never hides its siblings. Reads only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from compaction.exceptions import (
    CorruptFenceError,
    CorruptSegmentError,
    LiveSetUnknownError,
    SegmentLogError,
)
from compaction.stores.segments import fence, names
from compaction.stores.segments.faults import storage_error
from compaction.stores.segments.globs import compile_globs, matches
from compaction.stores.segments.limits import IndexesMissing, SegmentLimits
from compaction.stores.segments.model import SEGMENT_NAME
from compaction.stores.segments.plan import LogPlan, plan_log
from compaction.stores.segments.snapshot import SNAPSHOTS
from compaction.stores.segments.view import open_log

# A log's own directories: what lies in them belongs to the log.
_INSIDE_A_LOG = frozenset({SNAPSHOTS, "checkpoints", "recovery_checkpoint"})


class LogErrorReason(StrEnum):
    """Why a log, or a directory in which logs may be, could not be looked at."""

    NOT_FOUND = "NotFound"
    NOT_A_DIRECTORY = "NotADirectory"
    PERMISSION_DENIED = "PermissionDenied"
    OUTSIDE_ROOT = "OutsideRoot"
    CORRUPT_SEGMENT = "CorruptSegment"
    CORRUPT_FENCE = "CorruptFence"
    LIVE_SET_UNKNOWN = "LiveSetUnknown"
    LOG_INVALID = "LogInvalid"
    INPUT_OUTPUT = "InputOutputError"


@dataclass(frozen=True, slots=True)
class LogError:
    """A path, why it was left out, and the whole message. `segment`: the file's name when one segment is to blame."""

    path: Path
    reason: LogErrorReason
    message: str
    segment: str | None = None


@dataclass(frozen=True, slots=True)
class LogDebt:
    """One log: its plan and what waits in it.

    `fingerprint`: changes whenever a segment or the snapshot does; `oldest_debt_at`: since when the dead
    data is dead (epoch seconds), None without debt. `tombstones`: names that wait for deletion, the oldest marked at
    `oldest_tombstone_at`; `partials`: outputs not committed (yet). `needs_recovery`: something is half-done: recover
    before anything is planned, `plan` is empty until then.
    """

    path: Path
    plan: LogPlan
    fingerprint: str
    snapshot_index: int | None = None
    oldest_debt_at: float | None = None
    tombstones: int = 0
    oldest_tombstone_at: float | None = None
    partials: int = 0
    needs_recovery: bool = False

    @property
    def bytes(self) -> int:
        return self.plan.debt_bytes

    @property
    def segments(self) -> int:
        return self.plan.debt_segments

    def sweep_in(self, now: float, grace_seconds: float) -> float | None:
        """Seconds until a sweep has something to do; None without tombstones. At once when the clock was set back
        since they were made: the sweep then lets their grace begin anew.
        """
        if self.oldest_tombstone_at is None:
            return None
        if self.oldest_tombstone_at > now:
            return 0.0
        return max(0.0, self.oldest_tombstone_at + grace_seconds - now)

    def tombstones_due(self, now: float, grace_seconds: float) -> bool:
        """Whether a sweep would find something to do among the tombstones."""
        return self.sweep_in(now, grace_seconds) == 0.0


@dataclass(frozen=True, slots=True)
class SenseResult:
    """Everything found under a root, in path order."""

    logs: tuple[LogDebt, ...]
    errors: tuple[LogError, ...]


@dataclass(slots=True)
class SenseCache:
    """What was found last, by log. A log whose files and settings are unchanged is not read again.

    Kilobytes per log: plans are kept, not indexes. Belongs to one root and one set of limits at a time.
    """

    entries: dict[Path, tuple[str, LogDebt]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SenseSettings:
    """How to look: what to include (see `globs`), what may be planned."""

    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE


def sense_root(
    root: Path,
    settings: SenseSettings,
    *,
    quarantined: Mapping[Path, frozenset[str]] | None = None,
    cache: SenseCache | None = None,
) -> SenseResult:
    """Look at every log directory under `root` that the patterns select. `quarantined`: segment names by log directory.

    Raises:
        GlobSyntaxError: a pattern is not one. Everything else is in the result's `errors`.
    """
    cache = cache if cache is not None else SenseCache()
    logs: list[LogDebt] = []
    errors: list[LogError] = []
    for found in find_logs(root, include=settings.include, exclude=settings.exclude):
        if isinstance(found, LogError):
            errors.append(found)
            continue
        held = (quarantined or {}).get(found, frozenset())
        try:
            logs.append(_cached(found, settings, held, cache))
        except SegmentLogError as error:
            errors.append(_log_error(found, error))
        except OSError as error:
            errors.append(_log_error(found, error))
    present = {log.path for log in logs}
    for path in [path for path in cache.entries if path not in present]:
        del cache.entries[path]
    return SenseResult(
        logs=tuple(sorted(logs, key=lambda log: log.path)), errors=tuple(sorted(errors, key=lambda e: e.path))
    )


def find_logs(root: Path, *, include: tuple[str, ...], exclude: tuple[str, ...]) -> Iterator[Path | LogError]:
    """Log directories (with at least one file named like a segment) under the root, and what could not be searched."""
    wanted, unwanted = compile_globs(include), compile_globs(exclude)
    pending = [""]
    while pending:
        relative = pending.pop()
        path = root / relative if relative else root
        try:
            with os.scandir(path) as entries:
                listing = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not matches(unwanted, relative):
                yield _log_error(path, error)
            continue
        is_log = any(SEGMENT_NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False) for e in listing)
        if is_log and matches(wanted, relative) and not matches(unwanted, relative):
            yield path
        for entry in listing:
            below = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_symlink():
                if matches(wanted, below) and not matches(unwanted, below) and (refused := _leads_out(root, entry)):
                    yield refused
            elif entry.is_dir(follow_symlinks=False) and not (is_log and entry.name in _INSIDE_A_LOG):
                if _printable(below) == below:
                    pending.append(below)
                elif not matches(unwanted, below):
                    yield _unnameable(entry)


def _unnameable(entry: os.DirEntry[str]) -> LogError:
    """An error for a directory that no resource can name: strings of the API are UTF-8, and so are jobs' sources."""
    path = _printable(entry.path)
    message = f"{path}: name is not valid UTF-8: rename it"
    return LogError(path=Path(path), reason=LogErrorReason.LOG_INVALID, message=message)


def _printable(path: str) -> str:
    """The path itself when it is UTF-8, else with its other bytes written as `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _leads_out(root: Path, entry: os.DirEntry[str]) -> LogError | None:
    """An error for a symlinked directory that leads out of the root; one that stays inside is found under its own
    name.
    """
    try:
        if not entry.is_dir():
            return None
        target = Path(entry.path).resolve(strict=True)
    except OSError:
        return None
    if target.is_relative_to(root.resolve()):
        return None
    path = _printable(entry.path)
    message = (
        f"{path}: a symbolic link to {_printable(str(target))}, outside of {root}: not followed; "
        "make that directory a root"
    )
    return LogError(path=Path(path), reason=LogErrorReason.OUTSIDE_ROOT, message=message)


def _cached(path: Path, settings: SenseSettings, held: frozenset[str], cache: SenseCache) -> LogDebt:
    fingerprint = state_fingerprint(path)
    partials = sorted(name for name in os.listdir(path) if names.parse_partial(name))
    key = repr(
        (
            fingerprint,
            _identity(path / fence.FENCE_FILE),
            partials,
            settings.limits,
            settings.indexes_missing,
            sorted(held),
        )
    )
    known = cache.entries.get(path)
    if known is not None and known[0] == key:
        return known[1]
    debt = sense_log(path, settings, quarantined=held, fingerprint=fingerprint)
    cache.entries[path] = (key, debt)
    return debt


def sense_log(
    path: Path, settings: SenseSettings, *, quarantined: frozenset[str] = frozenset(), fingerprint: str | None = None
) -> LogDebt:
    """One log's debt. SegmentLogError (corrupt, live set unknown, ...) and OSError pass through."""
    fingerprint = state_fingerprint(path) if fingerprint is None else fingerprint
    listing = os.listdir(path)
    record = fence.read(path)
    partials = sum(1 for name in listing if names.parse_partial(name))
    oldest = min((t.since for t in record.tombstones), default=None)
    if names.needs_recovery(listing) or record.pending is not None:
        return LogDebt(
            path=path,
            plan=LogPlan(),
            fingerprint=fingerprint,
            tombstones=len(record.tombstones),
            oldest_tombstone_at=oldest,
            partials=partials,
            needs_recovery=True,
        )
    log = open_log(path)
    plan = plan_log(
        log,
        settings.limits,
        quarantined=quarantined,
        awaiting_deletion=frozenset(t.name for t in record.tombstones),
        indexes_missing=settings.indexes_missing,
    )
    return LogDebt(
        path=path,
        plan=plan,
        fingerprint=fingerprint,
        snapshot_index=log.snapshot_index,
        oldest_debt_at=log.snapshot.path.stat().st_mtime if log.snapshot and plan.debt_segments else None,
        tombstones=len(record.tombstones),
        oldest_tombstone_at=oldest,
        partials=partials,
    )


def state_fingerprint(path: Path) -> str:
    """A hash over the identity of everything that a plan is made from: segments, links, snapshots."""
    digest = hashlib.sha256()
    for directory, wanted in ((path, _matters), (path / SNAPSHOTS, None)):
        # A link in place of `snapshots` is refused by whoever reads the log; here it is only not followed.
        if wanted is None and directory.is_symlink():
            digest.update(f"{directory}|{_identity(directory)}\n".encode(errors="surrogateescape"))
            continue
        try:
            listing = sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in listing:
            if wanted is not None and not wanted(name):
                continue
            for file in (directory / name, *((directory / name / "indexes",) if wanted is None else ())):
                digest.update(f"{file}|{_identity(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _matters(name: str) -> bool:
    return SEGMENT_NAME.fullmatch(name) is not None or name.endswith(
        (names.COMPACTING_SUFFIX, names.LINK_SUFFIX, names.RA_MARKER_SUFFIX)
    )


def _identity(path: Path) -> str:
    try:
        s = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return "-"
    return f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{stat.S_IFMT(s.st_mode)}"


def _log_error(path: Path, error: SegmentLogError | OSError) -> LogError:
    """The entry for a log that could not be looked at."""
    reason, segment = LogErrorReason.LOG_INVALID, None
    match error:
        case LiveSetUnknownError():
            reason = LogErrorReason.LIVE_SET_UNKNOWN
        case CorruptSegmentError():
            reason, segment = LogErrorReason.CORRUPT_SEGMENT, Path(error.file).name
        case CorruptFenceError():
            reason = LogErrorReason.CORRUPT_FENCE
        case PermissionError():
            reason = LogErrorReason.PERMISSION_DENIED
        case FileNotFoundError():
            reason = LogErrorReason.NOT_FOUND
        case NotADirectoryError():
            reason = LogErrorReason.NOT_A_DIRECTORY
        case OSError():
            reason = LogErrorReason.INPUT_OUTPUT
        case _:
            pass
    message = _os_message(path, error) if isinstance(error, OSError) else str(error)
    return LogError(path=path, reason=reason, message=message, segment=segment)


def _os_message(path: Path, error: OSError) -> str:
    named = storage_error(error, path)
    return f"{getattr(named, 'path', path)}: {error.strerror or error}"
