"""The store as the coordinator sees it: what is left behind is found by a look, and gone after the next sweep."""

from __future__ import annotations

from pathlib import Path

from compaction.api.policy_spec import CompactionPolicySpec
from compaction.stores.adapter import SenseRequest, open_store
from compaction.stores.segments.generate import generate_log


def test_an_orphaned_output_does_not_wait_for_a_grace_that_begins_anew_with_every_look(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generate_log(log, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "1h"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    store.claim(str(log), job="job", token=2)
    orphan = log / "0000000000000001-0000000000000002.job.1.partial"
    current = log / "0000000000000001-0000000000000002.job.2.partial"
    for path in (orphan, current):
        path.write_bytes(b"half an output")

    assert store.sense(SenseRequest(number=1, generation=1)).sweep_in == 0
    swept = store.sweep(active=frozenset({("job", 2)}))

    assert swept.deleted == 1
    assert not orphan.exists()
    assert current.exists()


def test_what_an_interrupted_write_of_a_small_file_left_is_found_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "a"
    generate_log(log, segments=3, entries_per_segment=16, payload_bytes=32, sync=False)
    spec = {"store": {"segmentLogs": {"root": str(tmp_path)}}, "cleanup": {"delay": "1h"}}
    store = open_store(CompactionPolicySpec.model_validate(spec), holder="test")
    leftover = log / "compaction.fence.tmp"
    leftover.write_bytes(b'{"version": 1')

    assert store.sense(SenseRequest(number=1, generation=1)).sweep_in == 0
    store.sweep(active=frozenset())

    assert not leftover.exists()
    assert store.sense(SenseRequest(number=2, generation=1)).sweep_in is None
