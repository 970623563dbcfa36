"""A look at an unchanged store says the same as the one before; every change that could make debt says something else.

What is compared without being read, and the races of that: tests/segments/scan/test_changes.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.policy_spec import CompactionPolicySpec
from compaction.core.planning.debt import ScanResult
from compaction.segments.generate import generate_log
from compaction.segments.reading.view import open_log
from compaction.segments.scan.find import SETTLE_SECONDS
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.adapter import SenseRequest, StoreAdapter, open_store

FIRST, LAST = "0000000000000001.segment", "0000000000000006.segment"


class Looks:
    """Looks at one root, so far apart that everything that has not changed is trusted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "a"
        self.now = 100.0
        self.number = 0
        generate_log(self.log, segments=6, entries_per_segment=16, payload_bytes=32, sync=False)
        generate_log(root / "b", segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
        spec = CompactionPolicySpec.model_validate({"store": {"segmentLogs": {"root": str(root)}}})
        self.store: StoreAdapter = open_store(spec, holder="test", clock=lambda: self.now)
        self.quarantined: dict[str, frozenset[str]] = {}
        for _ in range(3):
            self.look()

    def look(self) -> ScanResult:
        self.number, self.now = self.number + 1, self.now + SETTLE_SECONDS
        request = SenseRequest(self.number, 1, self.now, quarantined=self.quarantined, recover=False)
        return self.store.sense(request).reading

    @property
    def snapshot(self) -> Path:
        return next((self.log / "snapshots").iterdir())


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(tmp_path)


def test_an_unchanged_store_says_the_same_without_being_read(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    before = looks.look()

    def refuse(*_: object) -> None:
        raise AssertionError("a directory was listed")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    again = looks.look()
    assert again.says_the_same(before)
    assert again.started > before.started


def replace_file(path: Path) -> None:
    """What a restore that writes beside and renames does: another file under the same name."""
    copy = path.with_name(f"{path.name}.restored")
    shutil.copy2(path, copy)
    copy.rename(path)


def newer_snapshot(looks: Looks) -> None:
    """Fewer live entries than before, as time goes on."""
    view = open_log(looks.log)
    write_snapshot(looks.log, index=(view.snapshot_index or 0) + 1, term=1, live=LiveSet.from_indexes([5]), sync=False)


def became_a_link(looks: Looks) -> None:
    (looks.log / FIRST).unlink()
    (looks.log / FIRST).symlink_to("0000000000000002.segment")


CHANGES: dict[str, Callable[[Looks], object]] = {
    "a segment is gone": lambda looks: (looks.log / FIRST).unlink(),
    "a segment was added": lambda looks: shutil.copy(looks.log / LAST, looks.log / "0000000000000007.segment"),
    "a segment is another file": lambda looks: replace_file(looks.log / FIRST),
    "a segment became a link": became_a_link,
    "the live indexes were written in place": lambda looks: (looks.snapshot / "indexes").write_bytes(b"nothing"),
    "the live indexes are gone": lambda looks: (looks.snapshot / "indexes").unlink(),
    "there is a newer snapshot": newer_snapshot,
    "the snapshot is gone": lambda looks: shutil.rmtree(looks.snapshot),
    "a commit was interrupted": lambda looks: (looks.log / f"{FIRST[:16]}-{LAST[:16]}.compacting").touch(),
    "a log appeared": lambda looks: shutil.copytree(looks.log, looks.root / "c"),
    "a log is gone": lambda looks: shutil.rmtree(looks.root / "b"),
    "a log was moved": lambda looks: (looks.root / "b").rename(looks.root / "d"),
    "the root is gone": lambda looks: shutil.rmtree(looks.root),
    "a source is in quarantine": lambda looks: looks.quarantined.update({str(looks.log): frozenset({FIRST})}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_says_something_else(looks: Looks, change: str) -> None:
    before = looks.look()
    assert looks.look().says_the_same(before)
    CHANGES[change](looks)
    assert not looks.look().says_the_same(before)


def test_a_released_source_that_became_another_file_says_something_else(looks: Looks) -> None:
    """The quarantine ends by itself when the identity of its source changes."""
    looks.quarantined[str(looks.log)] = frozenset({FIRST})
    before = looks.look()
    assert looks.look().says_the_same(before)
    replace_file(looks.log / FIRST)
    assert not looks.look().says_the_same(before)


def test_a_claim_changes_nothing_that_a_plan_is_made_from(looks: Looks) -> None:
    before = looks.look()
    sources = {"segmentLog": {"path": str(looks.log), "obsolete": [FIRST]}}
    spec = {"policyRef": {"name": "logs"}, "kind": "SegmentRewrite", "sources": sources}
    looks.store.claim(CompactionJobSpec.model_validate(spec), job="job", token=1)
    assert looks.look().says_the_same(before)
