"""Targets beside the store: manifests, Leases and their annotations, values, state files, kubeconfigs, archives."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.config import kube_config
from pydantic import TypeAdapter, ValidationError

from compaction.api.base import Timestamp, format_timestamp
from compaction.api.enums import JobReason
from compaction.api.job.job import CompactionJob, JobReceipt, SkippedSource
from compaction.api.job.job_status import JobReport, ReportOutcome, parse_report
from compaction.api.manifests import load_secrets
from compaction.api.text.quantities import Duration, Quantity
from compaction.cli.local.policy_file import load_policies
from compaction.cli.places import options_of_file
from compaction.kube.client.config import from_kubeconfig
from compaction.kube.gather import job_lease, worker_lease
from compaction.kube.launchers.process import ProcessLauncher
from compaction.leases.record import Lease, LeaseObserver, format_micro_time, parse_micro_time
from compaction.local.cluster import control_plane
from compaction.local.programs import binaries
from compaction.segments.rewriting.report import SegmentJob
from compaction.segments.scan.find import compile_globs, matches
from fuzz.target import Target, refusing

POLICY: Final = b"""\
apiVersion: compaction.dev/v1alpha1
kind: CompactionPolicy
metadata: {name: logs, namespace: storage, labels: {team: a}}
spec:
  store:
    segmentLogs: {root: /data/ra, include: ["**"], maxBytesPerSegment: 64Mi}
  trigger: {interval: 30s}
  limits: {maxConcurrentJobs: 4}
  workers: {max: 2, sparkConf: {spark.ui.enabled: "false"}}
"""
BOMB: Final = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % (n, n, *([n - 1] * 9)) for n in range(ord("b"), ord("j"))
)
MERGE_BOMB: Final = b"a: &a {k: v}\n" + b"".join(
    b"%c: &%c {<<: [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]}\n" % (n, n, *([n - 1] * 9)) for n in range(ord("b"), ord("j"))
)
_YAML_TOKENS: Final = (
    b"&a [*a]", b"!!binary x", b"!!timestamp x", b"!!int ''", b"!!bool x", b"!!float x", b"2001-99-99", b"? [a]\n: b\n",
    b"? {a: b}\n: c\n", b"? 2001-01-01\n: c\n", b"[" * 3000, b"{a: " * 3000, b"- " * 3000, b".nan", b".inf",
    b"0x" + b"f" * 9000,
    b"9" * 9000, b'"\\ud800"', b'"\\x1b[2J"', b"1:" * 200 + b"1", b"!!set {a}", b"!!omap [a: 1]", b"<<: *a", b"---\n",
    b"%YAML 9.9\n---\n", b"\xff", BOMB, MERGE_BOMB,
)  # fmt: skip
_JSON_TOKENS: Final = (
    b"null", b"NaN", b"1e999", b"9" * 5000, b"-1", b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b'"\\u001b"', b"true",
    b"{}", b"[]",
)  # fmt: skip


def _manifest(data: bytes, _: Path) -> None:
    text = data.decode(errors="replace")
    with refusing("policy.yaml"):
        policies = load_policies(text, source="policy.yaml")
        again = load_policies(yaml.safe_dump_all([p.to_object() for p in policies]), source="policy.yaml")
        assert again == policies


SECRET: Final = b"""\
kind: Secret
metadata: {name: index}
data: {url: c3FsaXRlOi8v, other: ""}
stringData: {endpoint: "http://127.0.0.1:9000", allow_http: "true"}
"""


def _secrets(data: bytes, _: Path) -> None:
    text = data.decode(errors="replace")
    with refusing("policy.yaml"):
        for name, values in load_secrets(text, source="policy.yaml").items():
            assert name
            assert all(isinstance(part, str) for pair in values.items() for part in pair)


def _store_options(data: bytes, directory: Path) -> None:
    file = directory / "options.yaml"
    file.write_bytes(data)
    with refusing("options.yaml"):
        options = options_of_file(file)
        assert all(isinstance(part, str) for pair in options.items() for part in pair)


def _json(data: bytes) -> Any:
    """What the API client hands on: a JSON object; other bytes never get that far."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _job(data: bytes, _: Path) -> None:
    found = _json(data)
    if found is not None:
        with refusing("", ValidationError):
            job = CompactionJob.from_object(found)
            assert CompactionJob.from_object(job.to_object()) == job
            SegmentJob.of(job.spec, name="j")


def _lease(data: bytes, _: Path) -> None:
    found = _json(data)
    if found is not None:
        with refusing(""):
            lease = Lease.parse(found)
            assert Lease.parse(lease.body()) == lease


_META: Final = {"namespace": "n", "uid": "u", "resourceVersion": "1"}


def _annotations(data: bytes, _: Path) -> None:
    """What the coordinator reads of Leases that workers, or anybody, wrote: never an error of its own."""
    text = data.decode(errors="replace")
    keys = ("slots", "progress", "report", "stop")
    annotations = {f"compaction.dev/{key}": text for key in keys}
    spec = {"holderIdentity": "w", "leaseTransitions": 1, "leaseDurationSeconds": 15}
    body = {"metadata": {"name": "x", **_META, "annotations": annotations}, "spec": spec}
    worker = worker_lease(body, LeaseObserver(), now=1.0)
    assert 0 <= worker.slots <= 2**31
    job = job_lease(body, LeaseObserver(), now=1.0)
    assert (job.report is None) == bool(job.report_error)
    assert len(job.report_error) < 1000
    assert job.progress is None or 0 <= job.progress <= 100


def _report(data: bytes, _: Path) -> None:
    with refusing("report"):
        report = parse_report(data.decode(errors="replace"))
        assert parse_report(json.dumps(report.to_object())) == report


def _values(data: bytes, _: Path) -> None:
    text = data.decode(errors="replace")
    with refusing("", ValueError):
        duration = Duration(text)
        assert Duration(duration.text) == duration
        assert 0 <= duration < 10**12
    with refusing("", ValueError):
        quantity = Quantity(text)
        assert Quantity(quantity.text) == quantity
        assert 0 <= quantity < 2**63
    with refusing("", ValueError):
        moment = parse_micro_time(text)
        assert parse_micro_time(format_micro_time(moment)) == moment
    with refusing("", ValueError):
        stamp = TypeAdapter(Timestamp).validate_python(text)
        assert TypeAdapter(Timestamp).validate_python(format_timestamp(stamp)) == stamp


def _globs(data: bytes, directory: Path) -> None:
    pattern, _, path = os.fsdecode(data).partition("\n")
    with refusing(""):
        globs = compile_globs([pattern])
        assert matches(globs, path) == matches(compile_globs([pattern]), path)
        assert matches(compile_globs(["**"]), path)


def _worker_record(data: bytes, directory: Path) -> None:
    """A record that cannot be read is no worker; whatever it says, no process but a worker of ours is meant by it."""
    (directory / "workers").mkdir()
    (directory / "workers" / "w-1.json").write_bytes(data)
    launcher = ProcessLauncher(directory)
    for seen in launcher._observe():
        assert seen.name == "w-1"
        assert seen.ended
        assert seen.started.tzinfo is not None


def _local_state(data: bytes, directory: Path) -> None:
    control_plane.state_file(directory).write_bytes(data)
    with refusing(str(control_plane.state_file(directory))):
        found = control_plane.read_state(directory)
        assert found is not None
        assert not found.running
        control_plane.write_state(directory, found)
        assert control_plane.read_state(directory) == found


def _kubeconfig(data: bytes, directory: Path) -> None:
    if b"exec" in data or b"auth-provider" in data or b"\0" in data:
        return  # running programs is what these are for
    path = directory / "config"
    path.write_bytes(data)
    try:
        with refusing(str(path)):
            connection = from_kubeconfig(str(path))
            assert connection.namespace
            connection.token.header()
    finally:
        kube_config._cleanup_temp_files()


def _archive(data: bytes, directory: Path) -> None:
    place, file = directory / "place", directory / "a.tar.gz"
    place.mkdir()
    file.write_bytes(data)
    with refusing("a.tar.gz"):
        binaries.unpack(file, place, checksum=hashlib.sha512(data).hexdigest())
    assert {path.name for path in directory.iterdir()} == {"place", "a.tar.gz"}
    assert {path.name for path in place.iterdir()} <= set(binaries.PROGRAMS)
    assert all(path.is_file() and not path.is_symlink() for path in place.iterdir())


def _tar(*members: tuple[str, bytes, bytes]) -> bytes:
    """A gzipped archive of (name, type, content or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = content.decode() if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
    return buffer.getvalue()


_FILE = tarfile.REGTYPE
ARCHIVES: Final = (
    _tar(*((f"bin/{name}", _FILE, b"program") for name in binaries.PROGRAMS)),
    _tar(("../../etcd", _FILE, b"x"), ("/etc/kubectl", _FILE, b"y"), ("kubectl", tarfile.SYMTYPE, b"/etc/passwd")),
    _tar(("etcd", tarfile.LNKTYPE, b"../a.tar.gz"), ("etcd", tarfile.FIFOTYPE, b""), ("kubectl", tarfile.DIRTYPE, b"")),
)
JOB: Final = {
    "metadata": {"name": "j", **_META},
    "spec": {
        "policyRef": {"name": "p"},
        "kind": "SegmentRewrite",
        "sources": {
            "segmentLog": {
                "path": "/data/ra/a",
                "snapshotIndex": 7,
                "groups": [{"segments": ["0000000000000001.segment", "0000000000000002.segment"]}],
                "unreferenced": ["0000000000000003.segment"],
            }
        },
    },
}
LEASE: Final = {
    "metadata": {
        "name": "l",
        **_META,
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "ownerReferences": [{"uid": "u"}],
    },
    "spec": {
        "holderIdentity": "w",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 3,
        "acquireTime": "2026-11-21T06:00:00.000000Z",
        "renewTime": "2026-11-21T06:00:05.123456Z",
    },
}
REPORT: Final = JobReport(
    token=3,
    outcome=ReportOutcome.FAILED,
    reason=JobReason.SOURCE_CORRUPT,
    message="bad",
    skipped=(SkippedSource(source="0000000000000001.segment", index=4, offset=99, reason="SourceCorrupt"),),
    receipt=JobReceipt(token=3, worker="w", groups=1, sources=("0000000000000002.segment",)),
)
_RECORD: Final = {
    "name": "w-1",
    "namespace": "n",
    "policy": "p",
    "pid": 999_999_999,
    "startTicks": 5,
    "started": "2026-11-21T06:00:00+00:00",
}
_RECORDS: Final = tuple(
    json.dumps({**_RECORD, **change}).encode()
    for change in ({}, {"name": "../../x"}, {"pid": -1}, {"pid": "self"}, {"pid": True}, {"started": "2026-11-21"})
)
_STATE: Final = {
    "version": 1,
    "url": "https://127.0.0.1:1",
    "kubeconfig": "/x",
    "processes": [{"name": "etcd", "pid": 999_999_999, "started": "boot:5"}],
}
_KUBECONFIG: Final = b"""\
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: ""}}]
users: [{name: u, user: {token: abc}}]
contexts: [{name: one, context: {cluster: c, user: u, namespace: team}}]
"""
_TIMES: Final = (b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2026-W01", b"24:00", b"Z")


def _dump(value: object) -> bytes:
    return json.dumps(value).encode()


_LIST: Final = b"{kind: List, items: [" + json.dumps(yaml.safe_load(POLICY)).encode() + b"]}"
_GLOBS: Final = (b"**/log-[0-9]*\na/log-12", b"*a*b?c\nxaxbxc")

OBJECT_TARGETS: Final = (
    Target("secrets", _secrets, (SECRET, SECRET + b"---\n" + POLICY), _YAML_TOKENS),
    Target(
        "store options", _store_options, (b"endpoint: x\nallow_http: true\nregion: a-1\n", b'{"a": 1}'), _YAML_TOKENS
    ),
    Target("manifest", _manifest, (POLICY, b"---\n" + POLICY, _LIST, _dump(yaml.safe_load(POLICY))), _YAML_TOKENS),
    Target("job", _job, (_dump(JOB),), _JSON_TOKENS),
    Target("lease", _lease, (_dump(LEASE),), (*_JSON_TOKENS, *_TIMES)),
    Target("annotations", _annotations, (b"4", b"100", REPORT.to_json().encode()), (*_JSON_TOKENS, "٣".encode())),
    Target("report", _report, (REPORT.to_json().encode(),), _JSON_TOKENS),
    Target("values", _values, (b"1h30m", b"64Mi", b"2026-11-21T06:00:00Z", *_TIMES), (b"9" * 5000, b".", b"1e9")),
    Target("globs", _globs, _GLOBS, (b"**/", b"[", b"]", b"***", b"[!]", b"[z-a]")),
    Target("worker-record", _worker_record, _RECORDS, (*_JSON_TOKENS, b'"../../x"', b'"self"', *_TIMES)),
    Target("local-state", _local_state, (_dump(_STATE),), (*_JSON_TOKENS, b'"self"')),
    Target("kubeconfig", _kubeconfig, (_KUBECONFIG, _dump(yaml.safe_load(_KUBECONFIG))), _YAML_TOKENS),
    Target("archive", _archive, ARCHIVES),
)
