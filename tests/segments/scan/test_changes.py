"""What has not changed is not read again, and no change is missed, on a file system with coarse time stamps too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction.segments.generate import generate_log
from compaction.segments.scan import find, sense
from compaction.segments.scan.find import SETTLE_SECONDS, VERIFY_LOOKS, State
from compaction.segments.scan.sense import SenseCache, SenseResult, SenseSettings, sense_root
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.timing import examples

SETTINGS = SenseSettings()
STATE_OF = find.state_of


@dataclass
class CoarseDisk:
    """Real files below `root`, whose directories are stamped as by a clock with ticks of `tick` seconds."""

    root: Path
    tick: float = SETTLE_SECONDS
    now: float = 100.0
    stamps: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def state_of(self, path: str, *, follow: bool = False) -> State | None:
        """Stands in for `find.state_of`."""
        self.asked.append(path)
        found = STATE_OF(path, follow=follow)
        stamp = self.stamps.get(path, 0)
        return None if found is None else (found[0], found[1], found[2], stamp, stamp)

    def change(self, directory: Path, act: Callable[[], object]) -> None:
        """Do something that changes the names in a directory."""
        act()
        self.stamps[str(directory)] = int(self.now / self.tick) + 1


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoarseDisk:
    disk = CoarseDisk(tmp_path / "root")
    for name in ("a", "team/b"):
        tiny_log(disk.root / name)
    monkeypatch.setattr(find, "state_of", disk.state_of)
    monkeypatch.setattr(sense, "state_of", disk.state_of)
    return disk


@pytest.fixture
def cache(disk: CoarseDisk) -> SenseCache:
    return SenseCache(disk.root, SETTINGS, clock=lambda: disk.now)


def look(cache: SenseCache) -> SenseResult:
    return sense_root(cache.root, SETTINGS, cache=cache)


def full_look(cache: SenseCache) -> SenseResult:
    """With nothing remembered."""
    return sense_root(cache.root, SETTINGS)


def settle(disk: CoarseDisk, cache: SenseCache) -> SenseResult:
    """Look until everything is trusted."""
    for _ in range(3):
        disk.now += SETTLE_SECONDS
        result = look(cache)
    disk.asked.clear()
    return result


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a directory was listed")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)


def test_an_unchanged_log_costs_one_stat_per_directory_and_one_of_its_indexes(
    disk: CoarseDisk, cache: SenseCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = settle(disk, cache)
    with monkeypatch.context() as patch:
        forbid_reading(patch)
        assert look(cache) == before
    root = str(disk.root)
    logs = [f"{root}/a", f"{root}/team/b"]
    indexes = [str(next((Path(log) / "snapshots").glob("*/indexes"))) for log in logs]
    assert sorted(disk.asked) == sorted([root, f"{root}/team", *logs, *(f"{log}/snapshots" for log in logs), *indexes])


def test_what_has_just_changed_is_listed_until_its_tick_is_over(
    disk: CoarseDisk, cache: SenseCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(disk, cache)
    disk.change(disk.root / "a", (disk.root / "a/0000000000000001.segment").unlink)
    seen: list[str] = []
    original = sense.content_of

    def noted(path: Path) -> bytes:
        seen.append(path.name)
        return original(path)

    monkeypatch.setattr(sense, "content_of", noted)
    for _ in range(5):
        disk.now += SETTLE_SECONDS / 3
        look(cache)
    # Read anew, then first seen with this stamp, then three more thirds of the time to wait.
    assert seen == ["a"] * 5
    disk.now += SETTLE_SECONDS
    look(cache)
    assert seen == ["a"] * 5


def change_twice_in_a_tick(disk: CoarseDisk, cache: SenseCache) -> SenseResult:
    """A segment goes, is missed by several looks, and another one goes before the file system's clock has moved on."""
    settle(disk, cache)
    log = disk.root / "a"
    disk.now = 1000.0
    disk.change(log, (log / "0000000000000001.segment").unlink)
    for _ in range(4):
        disk.now += 0.4
        look(cache)
    disk.change(log, (log / "0000000000000002.segment").unlink)
    return look(cache)


def test_a_second_change_in_the_same_tick_is_seen(disk: CoarseDisk, cache: SenseCache) -> None:
    assert change_twice_in_a_tick(disk, cache) == full_look(cache)


def test_without_the_rule_that_change_would_be_missed(
    disk: CoarseDisk, cache: SenseCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    monkeypatch.setattr(find, "SETTLE_SECONDS", 0.0)
    assert change_twice_in_a_tick(disk, cache) != full_look(cache)


STEPS = st.lists(
    st.one_of(
        st.floats(min_value=0, max_value=3),
        st.sampled_from(["add", "remove", "snapshot", "new log", "delete log", "look"]),
    ),
    max_size=25,
)


def tiny_log(path: Path, *, segments: int = 4) -> None:
    generate_log(path, segments=segments, entries_per_segment=8, payload_bytes=16, sync=False)


def take(step: str, disk: CoarseDisk, number: int) -> None:
    """One change by name; `number` is a new one each time."""
    log = disk.root / "a"
    segments = sorted(log.glob("*.segment"))
    others = [path for path in disk.root.iterdir() if path != log]
    match step:
        case "add":
            disk.change(log, lambda: shutil.copy(segments[-1], log / f"{number:016d}.segment"))
        case "remove" if len(segments) > 1:
            disk.change(log, segments[0].unlink)
        case "snapshot":
            live = LiveSet.empty()
            disk.change(log / "snapshots", lambda: write_snapshot(log, index=16, term=number, live=live, sync=False))
        case "new log":
            disk.change(disk.root, lambda: tiny_log(disk.root / f"log-{number}", segments=2))
        case "delete log" if others:
            disk.change(disk.root, lambda: shutil.rmtree(others[0]))


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_every_look_equals_a_full_one(disk: CoarseDisk, steps: list[float | str]) -> None:
    shutil.rmtree(disk.root)
    disk.stamps.clear()
    disk.now += 1000
    tiny_log(disk.root / "a")
    cache = SenseCache(disk.root, SETTINGS, clock=lambda: disk.now)
    for number, step in enumerate([*steps, "look"], start=5):
        if isinstance(step, float):
            disk.now += step
        elif step == "look":
            assert look(cache) == full_look(cache)
        else:
            take(step, disk, number)


def test_a_log_that_is_deleted_or_appears_is_noticed(disk: CoarseDisk, cache: SenseCache) -> None:
    settle(disk, cache)
    disk.change(disk.root, lambda: shutil.rmtree(disk.root / "a"))
    disk.now += 10
    team = disk.root / "team"
    disk.change(team, lambda: tiny_log(team / "c"))
    assert [log.path.name for log in look(cache).logs] == ["b", "c"]


def test_indexes_written_in_place_are_noticed_at_once(tmp_path: Path) -> None:
    """Real stamps: what is live decides what may be dropped, so this one file is asked for itself."""
    clock = 0.0
    tiny_log(tmp_path / "a")
    cache = SenseCache(tmp_path, SETTINGS, clock=lambda: clock)
    for _ in range(4):
        clock += SETTLE_SECONDS
        before = look(cache)
    indexes = next((tmp_path / "a/snapshots").glob("*/indexes"))
    elsewhere = write_snapshot(tmp_path / "b", index=24, term=1, live=LiveSet.empty(), sync=False)
    data = (elsewhere.path / "indexes").read_bytes()
    indexes.write_bytes(data)
    after = look(cache)
    assert after == full_look(cache) != before


def test_a_snapshot_that_is_still_being_written_is_never_trusted(tmp_path: Path) -> None:
    """Ra makes the directory first and writes `snapshot.dat` and `indexes` into it later, unseen from above."""
    clock = 0.0
    log = tmp_path / "a"
    tiny_log(log, segments=6)
    cache = SenseCache(tmp_path, SETTINGS, clock=lambda: clock)
    (old,) = (log / "snapshots").iterdir()
    made = write_snapshot(log, index=40, term=9, live=LiveSet.empty(), sync=False).path
    whole = (made / "snapshot.dat").read_bytes()
    (made / "snapshot.dat").write_bytes(whole[:20])
    for _ in range(6):
        clock += SETTLE_SECONDS
        (debt,) = look(cache).logs
        assert debt.snapshot == old
    with (made / "snapshot.dat").open("r+b") as file:
        file.write(whole)
    (debt,) = look(cache).logs
    assert debt.snapshot == made


def test_a_file_restored_in_place_is_noticed_within_some_looks(tmp_path: Path) -> None:
    clock = 0.0
    tiny_log(tmp_path / "a")
    cache = SenseCache(tmp_path, SETTINGS, clock=lambda: clock)
    for _ in range(4):
        clock += SETTLE_SECONDS
        look(cache)
    segment = tmp_path / "a/0000000000000001.segment"
    segment.write_bytes(segment.read_bytes())
    expected = full_look(cache)
    assert any(look(cache) == expected for _ in range(VERIFY_LOOKS))


def test_a_root_that_is_a_link_to_another_place_is_listed_again(tmp_path: Path) -> None:
    clock = 0.0
    for name in ("one", "two"):
        tiny_log(tmp_path / name / name)
    root = tmp_path / "root"
    root.symlink_to(tmp_path / "one")
    cache = SenseCache(root, SETTINGS, clock=lambda: clock)
    for _ in range(4):
        clock += SETTLE_SECONDS
        assert [log.path.name for log in look(cache).logs] == ["one"]
    root.unlink()
    root.symlink_to(tmp_path / "two")
    assert [log.path.name for log in look(cache).logs] == ["two"]


def test_permissions_taken_away_are_noticed(tmp_path: Path) -> None:
    """chmod changes the ctime alone."""
    tiny_log(tmp_path / "a")
    before = find.state_of(str(tmp_path / "a"))
    (tmp_path / "a").chmod(0o700)
    assert find.state_of(str(tmp_path / "a")) != before
