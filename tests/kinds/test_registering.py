"""A kind that lives outside of the package becomes a member of the unions, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from dataclasses import replace

from compaction.api.crd.definitions import crd_files
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.meaning import Fate
from compaction.registry import all_kinds, fate_of, kind_of, kind_of_job, register
from conformance.lines.kind import LINE_STORE, LineKind


class Lines(LineKind):
    fates = {"LineTooLong": Fate.PARK}


def refused(kind, what):
    try:
        register(kind)
    except ValueError as error:
        assert what in str(error), error
    else:
        raise AssertionError(what)


class Taken(Lines):
    member = replace(LINE_STORE, name="BlockStore")


class Contrary(Lines):
    fates = {"SourceCorrupt": Fate.RETRY}


refused(Taken(), "BlockStore")
refused(Contrary(), "SourceCorrupt")
known = len(all_kinds())
lines = Lines()
register(lines)
register(lines)
assert len(all_kinds()) == known + 1
spec = {"store": {"lineStore": {"root": "/data"}}}
policy = CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": spec, "status": {"store": "LineStore"}})
assert kind_of(policy.spec.store) is lines
assert (policy.spec.store.name, policy.spec.store.location, policy.status.store) == ("LineStore", "/data", "LineStore")
assert policy.to_object()["spec"]["store"]["lineStore"]["root"] == "/data"
both = {"lineStore": {"root": "/data"}, "segmentLogs": {"root": "/ra"}}
for wrong in (both, {}):
    try:
        CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": {"store": wrong}})
    except ValueError as error:
        assert "set exactly one store: segmentLogs or blockStore or stagingArea or lineStore" in str(error)
    else:
        raise AssertionError(wrong)
spec = {"policyRef": {"name": "a"}, "kind": "LineRewrite", "sources": {"lines": {"path": "/data/x", "files": ["a"]}}}
job = CompactionJob.from_object({"metadata": {"name": "a-1"}, "spec": spec})
assert kind_of_job(job.spec.kind) is lines
assert job.spec.target == "/data/x"
assert fate_of("LineTooLong") is Fate.PARK
text = "".join(crd_files().values())
assert "lineStore" in text and "LineRewrite" in text and ".spec.sources.lines.path" in text
"""


def test_a_kind_from_outside_is_a_member_of_every_union() -> None:
    """In another process: models are the same objects for all tests of this one."""
    tests = Path(__file__).parents[1]
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=tests)
    assert answer.returncode == 0, answer.stderr
