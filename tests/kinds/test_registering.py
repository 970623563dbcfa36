"""A kind that lives outside of the package becomes a member of the unions, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = '''
from compaction.api.base import ApiModel
from compaction.api.crd.columns import PrinterColumn
from compaction.api.crd.definitions import crd_files
from compaction.api.job.resource import CompactionJob
from compaction.api.members import JobMember, SourcesModel, StoreMember, StoreModel
from compaction.api.policy.resource import CompactionPolicy, CompactionPolicyStatus
from compaction.kinds.fate import Fate
from compaction.kinds.registry import all_kinds, fate_of, kind_of, kind_of_job, register
from compaction.kinds.segments.kind import SegmentLogsKind


class LineStore(StoreModel):
    """Lines of text in files."""

    directory: str
    """Where the files are."""

    @property
    def location(self):
        return self.directory


class LineSources(SourcesModel):
    """Files of one directory."""

    path: str
    """Directory of the files."""

    @property
    def target(self):
        return self.path


class LineParameters(ApiModel):
    """How lines are rewritten."""


def member(**changes):
    column = PrinterColumn("Lines", ".spec.sources.lines.path", "Directory", wide=True)
    job = JobMember("LineRewrite", "lines", LineSources, LineParameters, "Files", "a path", column)
    usual = {"name": "LineStore", "member": "line_store", "model": LineStore, "help": "Lines.", "jobs": (job,)}
    return StoreMember(**(usual | changes))


class Lines(SegmentLogsKind):
    member = member()
    fates = {"LineTooLong": Fate.PARK}
    measures = ()


def refused(kind, what):
    try:
        register(kind)
    except ValueError as error:
        assert what in str(error), error
    else:
        raise AssertionError(what)


class Taken(Lines):
    member = member(name="BlockStore")


class Contrary(Lines):
    fates = {"SourceCorrupt": Fate.RETRY}


refused(Taken(), "BlockStore")
refused(Contrary(), "SourceCorrupt")
assert len(all_kinds()) == 2
lines = Lines()
register(lines)
register(lines)
assert len(all_kinds()) == 3
spec = {"store": {"lineStore": {"directory": "/data"}}}
policy = CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": spec, "status": {"store": "LineStore"}})
assert kind_of(policy.spec.store) is lines
assert (policy.spec.store.name, policy.spec.store.location, policy.status.store) == ("LineStore", "/data", "LineStore")
assert policy.to_object()["spec"]["store"] == {"lineStore": {"directory": "/data"}}
both = {"lineStore": {"directory": "/data"}, "segmentLogs": {"root": "/ra"}}
for wrong in (both, {}):
    try:
        CompactionPolicy.from_object({"metadata": {"name": "a"}, "spec": {"store": wrong}})
    except ValueError as error:
        assert "set exactly one store: segmentLogs or blockStore or lineStore" in str(error)
    else:
        raise AssertionError(wrong)
spec = {"policyRef": {"name": "a"}, "kind": "LineRewrite", "sources": {"lines": {"path": "/data/x"}}}
job = CompactionJob.from_object({"metadata": {"name": "a-1"}, "spec": spec})
assert kind_of_job(job.spec.kind) is lines
assert job.spec.target == "/data/x"
assert fate_of("LineTooLong") is Fate.PARK
text = "".join(crd_files().values())
assert "lineStore" in text and "LineRewrite" in text and ".spec.sources.lines.path" in text
'''


def test_a_kind_from_outside_is_a_member_of_every_union() -> None:
    """In another process: models are the same objects for all tests of this one."""
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
