"""The gain that a compaction would bring to each segment log under a root now.

Invariants: nothing that cannot be read is passed over in silence; one broken log never hides its siblings; what has
not changed is not read again (the rule: `changes`). Reads only.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from compaction.api.policy.segment_logs import Ownership
from compaction.segments.commit import fence
from compaction.segments.commit.recovery import TEMPORARIES
from compaction.segments.directory.fs import fault_of
from compaction.segments.directory.owner import OwnerSigns, hazard_in, look_for_owner, signs_in
from compaction.segments.errors import OwnerRunningError, SegmentLogError
from compaction.segments.format import names
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.planning.plan import LogPlan, plan_log
from compaction.segments.planning.unreferenced import IndexesMissing, SegmentLimits, damage_of
from compaction.segments.reading.view import NOTHING_MISSING, LogState, MissingEntries, open_log
from compaction.segments.scan.find import VERIFY_LOOKS, FoundLog, LogError, LogFinder, State, Trust, log_error, state_of
from compaction.segments.snapshot.directories import DATA_FILE, INDEXES_FILE, SNAPSHOTS

_NONE: Final[frozenset[str]] = frozenset()
# Of the year 9999: file systems hold times that no calendar has.
_LATEST: Final = 253_402_300_799.0
_HALF_DONE: Final = (
    names.COMPACTING_SUFFIX,
    names.LINK_SUFFIX,
    names.RA_MARKER_SUFFIX,
    names.PARTIAL_SUFFIX,
    names.CLUMP_SUFFIX,
)


@dataclass(frozen=True, slots=True)
class LogDebt:
    """One log: its plan and what waits in it.

    `identities`: of the files that `plan` would rewrite or delete, as they were read, by name. `oldest_debt_at`: since
    when the dead data is dead (epoch seconds), None without debt. `tombstones`: names that wait for deletion, the
    oldest marked at `oldest_tombstone_at`; `partials`: outputs and small files not committed (yet), or
    left by a crash. `needs_recovery`: something is
    half-done: recover before anything is planned, `plan` is empty until then. `snapshot`: the newest one's directory;
    `is_whole`: neither that one nor a newer one is still being written, or damaged. `missing`: live entries that no
    segment holds.
    """

    path: Path
    plan: LogPlan
    identities: Mapping[str, str] = field(default_factory=dict)
    snapshot_index: int | None = None
    oldest_debt_at: float | None = None
    tombstones: int = 0
    oldest_tombstone_at: float | None = None
    partials: int = 0
    needs_recovery: bool = False
    snapshot: Path | None = None
    is_whole: bool = False
    missing: MissingEntries = NOTHING_MISSING
    damage: tuple[LogError, ...] = ()

    @property
    def bytes(self) -> int:
        return self.plan.debt_bytes

    @property
    def segments(self) -> int:
        return self.plan.debt_segments

    def sweep_in(self, now: float, grace_seconds: float) -> float | None:
        """Seconds until a sweep has something to do; None without tombstones. At once when the clock was set back
        since their creation: the sweep then restarts their grace.
        """
        if self.oldest_tombstone_at is None:
            return None
        if self.oldest_tombstone_at > now:
            return 0.0
        return max(0.0, self.oldest_tombstone_at + grace_seconds - now)

    def overdue(self, now: float, grace_seconds: float) -> float:
        """Seconds for which something could have been deleted and was not; 0.0 when nothing is due."""
        if self.oldest_tombstone_at is None:
            return 0.0
        return max(0.0, now - self.oldest_tombstone_at - grace_seconds)


@dataclass(frozen=True, slots=True)
class SenseResult:
    """Everything found under a root, in path order. `running`: the logs that must not be changed because their owner is
    not known to be stopped; each has its error too.
    """

    logs: tuple[LogDebt, ...]
    errors: tuple[LogError, ...]
    running: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class SenseSettings:
    """The settings of a search: the logs to include (see `find`), and the limits of a plan."""

    include: tuple[str, ...] = ("**",)
    exclude: tuple[str, ...] = ()
    limits: SegmentLimits = field(default_factory=SegmentLimits)
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE
    ownership: Ownership = Ownership.DETECT


@dataclass(slots=True)
class _Known:
    """A log as read last. `content`: what it was read from, file by file; `held`: the quarantined segments."""

    number: int
    held: frozenset[str]
    content: bytes
    debt: LogDebt
    trust: Trust = field(default_factory=Trust)

    def states(self, directory: State | None) -> tuple[State | None, ...]:
        """Of everything whose change means a change of the log: three directory entries."""
        snapshot = self.debt.snapshot
        newest = state_of(f"{snapshot}/{INDEXES_FILE}") if snapshot is not None else None
        return directory, state_of(f"{self.debt.path}/{SNAPSHOTS}"), newest


class SenseCache:
    """The last findings below one root, under one set of settings: what has not changed is not read again.

    An unchanged log costs three `stat`s: of its directory, of its `snapshots`, of the newest `indexes`. One whose
    newest snapshot is not whole is read file by file each time. `clock`: monotonic seconds.
    """

    def __init__(self, root: Path, settings: SenseSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.root = root
        self.settings = settings
        self.finder = LogFinder(root, include=settings.include, exclude=settings.exclude, clock=clock)
        self._clock = clock
        self._known: dict[Path, _Known] = {}
        self._numbers = count()
        self._looks = 0

    def begin(self) -> None:
        """A scan of everything starts."""
        self._looks += 1

    def debt_of(self, found: FoundLog, held: frozenset[str]) -> LogDebt:
        """A log's debt, read again only when something has changed. Errors as `sense_log`."""
        known = self._known.get(found.path)
        if known is None or known.held != held:
            return self._read(found, held, content_of(found.path))
        states = known.states(found.state)
        verified = (known.number + self._looks) % VERIFY_LOOKS == 0
        if not verified and known.trust.holds(states):
            return known.debt
        content = content_of(found.path)
        # Where entries are missing, a write-ahead log that was restored shows in no file of the log itself.
        if content != known.content or (verified and known.debt.missing):
            return self._read(found, held, content)
        if known.debt.is_whole:
            known.trust.was_read(states, asked=found.asked, now=self._clock())
        return known.debt

    def _read(self, found: FoundLog, held: frozenset[str], content: bytes) -> LogDebt:
        debt = sense_log(found.path, self.settings, quarantined=held)
        self._known[found.path] = _Known(next(self._numbers), held, content, debt)
        return debt

    def keep_only(self, present: Set[Path]) -> None:
        """Forget the logs that are gone, or could not be read."""
        for path in [path for path in self._known if path not in present]:
            del self._known[path]


def sense_root(
    root: Path,
    settings: SenseSettings,
    *,
    quarantined: Mapping[Path, frozenset[str]] | None = None,
    cache: SenseCache | None = None,
) -> SenseResult:
    """Scan every log directory under `root` that the patterns select. `quarantined`: segment names by log directory.

    Raises:
        GlobSyntaxError: a pattern is not one. Everything else is in the result's `errors`.
    """
    cache = cache if cache is not None else SenseCache(root, settings)
    assert (cache.root, cache.settings) == (root, settings), "a cache belongs to one root and one set of settings"
    quarantined = quarantined or {}
    logs: dict[Path, LogDebt] = {}
    errors: list[LogError] = []
    owners: dict[Path, OwnerSigns] = {}
    running: set[Path] = set()
    cache.begin()
    for found in cache.finder.find():
        if isinstance(found, LogError):
            errors.append(found)
            continue
        try:
            logs[found.path] = cache.debt_of(found, quarantined.get(found.path, _NONE))
        except (SegmentLogError, OSError) as error:
            errors.append(log_error(found.path, error))
            continue
        except Exception as error:  # noqa: BLE001 - of the program, at one log: its siblings go on
            errors.append(log_error(found.path, fault_of(error, found.path)))
            continue
        signs = _signs_of(found, owners)
        if settings.ownership is Ownership.DETECT and (doubt := signs.doubt()):
            running.add(found.path)
            errors.append(log_error(found.path, OwnerRunningError(str(found.path), doubt, hazard_in(found.path))))
        else:
            errors += logs[found.path].damage
    cache.keep_only(logs.keys())
    return SenseResult(
        logs=tuple(sorted(logs.values(), key=lambda log: str(log.path))),
        errors=tuple(sorted(errors, key=lambda error: str(error.path))),
        running=frozenset(running),
    )


def _signs_of(found: FoundLog, known: dict[Path, OwnerSigns]) -> OwnerSigns:
    """Of the data directory that a log lies in: looked into once for all its logs, and listed only with the root."""
    if found.wals is None:
        return look_for_owner(found.path)
    system = found.path.parent
    if system not in known:
        known[system] = signs_in(system, wals=found.wals)
    return known[system]


def sense_log(path: Path, settings: SenseSettings, *, quarantined: frozenset[str] = frozenset()) -> LogDebt:
    """One log's debt. SegmentLogError (corrupt, live set unknown, ...) and OSError pass through."""
    listing = os.listdir(path)
    record = fence.read(path)
    partials = sum(1 for name in listing if names.parse_partial(name) or name in TEMPORARIES)
    oldest = min((t.since for t in record.tombstones), default=None)
    # No plan for a half-done log: recovery changes what there is to plan.
    if names.needs_recovery(listing) or record.intents:
        return LogDebt(
            path=path,
            plan=LogPlan(),
            tombstones=len(record.tombstones),
            oldest_tombstone_at=oldest,
            partials=partials,
            needs_recovery=True,
        )
    log = open_log(path, skim=True)
    plan = plan_log(
        log,
        settings.limits,
        quarantined=quarantined,
        awaiting_deletion=frozenset(t.name for t in record.tombstones),
        indexes_missing=settings.indexes_missing,
    )
    missing = [log.entries_missing()] if log.missing else []
    return LogDebt(
        path=path,
        plan=plan,
        identities=_identities(log, plan),
        snapshot_index=log.snapshot_index,
        oldest_debt_at=_modified_at(log.snapshot.path) if log.snapshot and plan.debt_segments else None,
        tombstones=len(record.tombstones),
        oldest_tombstone_at=oldest,
        partials=partials,
        snapshot=log.snapshot.path if log.snapshot is not None else None,
        is_whole=_is_whole(log),
        missing=MissingEntries.of(log.missing),
        damage=tuple(log_error(path, error) for error in (*missing, *damage_of(log))),
    )


def _modified_at(path: Path) -> float | None:
    """Return the time of a directory's last write (epoch seconds), within the calendar; None when it is gone by now."""
    try:
        return min(max(os.stat(path).st_mtime, 0.0), _LATEST)
    except FileNotFoundError:
        return None


def _identities(log: LogState, plan: LogPlan) -> dict[str, str]:
    sources = [name for group in plan.groups for name in group.sources]
    return {name: str(log.segment(name).identity) for name in (*sources, *(item.name for item in plan.unreferenced))}


def _is_whole(log: LogState) -> bool:
    """Return whether the owner's newest snapshot is whole: `indexes` comes last (docs/design/segment-snapshots.md)."""
    return not log.rejected_snapshots and (log.snapshot is None or log.snapshot.live is not None)


def content_of(path: Path) -> bytes:
    """A hash over the identity of every file that a log's debt is made from: segments, links, snapshots, the fence."""
    digest = hashlib.sha256()
    for name in sorted(filter(_matters, os.listdir(path))):
        _add(digest.update, f"{path}/{name}")
    snapshots = f"{path}/{SNAPSHOTS}"
    _add(digest.update, snapshots)
    # A link in place of `snapshots` is refused by whoever reads the log; here it is only not followed.
    if os.path.isdir(snapshots) and not os.path.islink(snapshots):
        for name in sorted(os.listdir(snapshots)):
            for file in ("", f"/{DATA_FILE}", f"/{INDEXES_FILE}"):
                _add(digest.update, f"{snapshots}/{name}{file}")
    return digest.digest()


def _matters(name: str) -> bool:
    if SEGMENT_NAME.fullmatch(name) is not None or name == fence.FENCE_FILE or name in TEMPORARIES:
        return True
    return name.endswith(_HALF_DONE)


def _add(update: Callable[[bytes], None], path: str) -> None:
    """A file's name and identity: ctime too, which no program can set back."""
    try:
        s = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        # Absence counts as well: a file that appears changes the digest.
        said = "-"
    else:
        said = f"{s.st_dev}:{s.st_ino}:{s.st_mode}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}"
    update(f"{path}|{said}\n".encode(errors="surrogateescape"))
