"""A kind that lives outside of the package, from a policy to receipts on a real API server: it is registered in the
operator's and the workers' processes and in the one that writes the resource definitions, and nothing else knows it.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.crd.definitions import crd_files
from compaction.api.job.job import JobReceipt
from compaction.api.policy.store import StoreSpec
from compaction.local.cluster.control_plane import start_control_plane
from compaction.local.programs.binaries import Binaries
from compaction.registry import all_kinds
from conformance.harnesses.lines import fill
from conformance.lines.kind import LINES, registered
from conformance.lines.rewriter import content
from support.clocks import eventually
from support.cluster.by_kubectl import Cluster, Object, condition, exit_code
from support.cluster.control_plane import ControlPlane, with_definitions
from support.processes.operators import OperatorFleet, OperatorProcess, fleet_in

KIND = "conformance.lines.kind:LINES"
DEFINITIONS = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from compaction.registry import register
from conformance.lines.kind import LINES
register(LINES)
from compaction.api.crd.definitions import crd_files
for name, text in crd_files().items():
    Path({directory!r}, name).write_text(text)
"""
"""The definitions as whoever adds a kind makes them: in a process of their own, which begins with the kind."""
NAMESPACE = "lines"


def compactor(*command: str) -> str:
    """What it prints."""
    out = io.StringIO()
    with registered(), redirect_stdout(out):
        code = exit_code(command)
    assert code == 0, out.getvalue()
    return out.getvalue()


@pytest.fixture
def plane(tmp_path: Path, binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane of the test's own, whose definitions have the kind."""
    definitions = tmp_path / "crds"
    definitions.mkdir()
    program = DEFINITIONS.format(tests=str(Path(__file__).parents[1]), directory=str(definitions))
    subprocess.run([sys.executable, "-c", program], check=True)
    with start_control_plane(tmp_path / "plane", binaries) as running:
        plane = with_definitions(running, binaries, definitions)
        plane.kubectl("create", "namespace", NAMESPACE)
        yield plane


@pytest.fixture
def fleet(plane: ControlPlane, tmp_path: Path) -> Iterator[OperatorFleet]:
    with fleet_in(plane, NAMESPACE, tmp_path / "operator", light=("--kind", KIND)) as fleet:
        yield fleet


def policy(root: Path) -> dict[str, Any]:
    return {
        "apiVersion": "compaction.dev/v1alpha1",
        "kind": "CompactionPolicy",
        "metadata": {"name": "lines"},
        "spec": {
            "store": {"lineStore": {"root": str(root)}},
            "trigger": {"interval": "2s"},
            "lease": {"durationSeconds": 5},
            "workers": {"max": 1, "slots": 2, "idleSeconds": 5},
            "cleanup": {"delay": "2s"},
        },
    }


@pytest.mark.apiserver
def test_from_a_policy_to_receipts(plane: ControlPlane, fleet: OperatorFleet, tmp_path: Path) -> None:
    cluster, replica = Cluster(plane, NAMESPACE), fleet.start()
    directories = [tmp_path / "lines" / name for name in ("a", "b")]
    for number, directory in enumerate(directories):
        fill(directory, small=3 + number)
    before = [content(directory) for directory in directories]
    cluster.apply(policy(tmp_path / "lines"))
    jobs = cluster.await_all_succeeded(at_least=2)
    found = cluster.await_idle("lines")

    assert [content(directory) for directory in directories] == before
    for job in jobs:
        receipt = JobReceipt.model_validate(job["status"]["receipt"])
        assert LINES.proves_equal(receipt)
        assert receipt.records == 3 * len(receipt.sources)
        assert sorted(receipt.sources) == sorted(job["spec"]["sources"]["lines"]["files"])
    assert condition(found, "Ready")["status"] == "True"
    assert found["status"]["debt"]["measures"] == [{"name": "lineFiles", "value": 4}]
    what_people_and_machines_are_shown(cluster, replica, jobs)
    eventually(
        lambda: sum(len(list(directory.glob("*.jsonl"))) for directory in directories) == 4,
        "the old files to be deleted",
    )
    assert [content(directory) for directory in directories] == before
    one_damaged_file_never_blocks_its_siblings(cluster, directories[1])


def what_people_and_machines_are_shown(cluster: Cluster, replica: OperatorProcess, jobs: list[Object]) -> None:
    header, row = cluster.kubectl("get", "cpol").splitlines()
    assert row.split()[: header.split().index("READY")] == ["lines", "LineStore"]
    header, *rows = cluster.kubectl("get", "cjob", "-o", "wide").splitlines()
    assert "LINES" in header.split()
    assert all(any(job["spec"]["sources"]["lines"]["path"] in row.split() for row in rows) for job in jobs)
    refused = cluster.kubectl("apply", "-f", "-", check=False, input=WRONG)
    assert "kind LineRewrite needs sources.lines: the path of a directory, and files" in refused
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{replica.metrics_port}/metrics").read().decode()
    assert re.search(r"^compaction_line_files\{.*\} 4.0$", metrics, re.MULTILINE)
    as_person = ("-n", NAMESPACE, "--kubeconfig", str(cluster.plane.kubeconfig))
    assert "LineStore" in compactor("status", "lines", *as_person)
    for job in jobs:
        said = compactor("why", job["metadata"]["name"], *as_person)
        files = len(job["spec"]["sources"]["lines"]["files"])
        assert f"{files} files became 1, {3 * files} lines." in said


def one_damaged_file_never_blocks_its_siblings(cluster: Cluster, directory: Path) -> None:
    (directory / "bad.jsonl").write_text("{")
    (directory / "good.jsonl").write_text('"good"\n')
    found = eventually(lambda: cluster.policy("lines")["status"].get("quarantined"), "the damaged file in quarantine")
    assert [(item["target"], item["source"], item["reason"]) for item in found] == [
        (str(directory), "bad.jsonl", "SourceCorrupt")
    ]

    def merged() -> list[Path]:
        return [path for path in directory.glob("*.merged.jsonl") if b'"good"' in path.read_bytes()]

    eventually(merged, "its sibling to be merged")
    assert (directory / "bad.jsonl").exists()


WRONG = """
apiVersion: compaction.dev/v1alpha1
kind: CompactionJob
metadata: {name: wrong}
spec:
  policyRef: {name: lines}
  kind: LineRewrite
  sources: {segmentLog: {path: /somewhere, obsolete: ["0000000000000001.segment"]}}
"""
"""A job of the kind with the sources of another one."""


def test_the_suite_leaves_no_trace_of_the_kind() -> None:
    """Models are the same objects for all tests of a process."""
    before, kinds = crd_files(), all_kinds()
    with registered():
        assert crd_files() != before
        assert all_kinds() == (*kinds, LINES)
    assert crd_files() == before
    assert all_kinds() == kinds
    with pytest.raises(ValueError, match="set exactly one store: segmentLogs or blockStore "):
        StoreSpec.from_object({"lineStore": {"root": "/data"}})


def test_a_plan_without_a_cluster(tmp_path: Path) -> None:
    fill(tmp_path / "lines" / "a")
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy(tmp_path / "lines")))
    plan = json.loads(compactor("run", "--dry-run", "-f", str(file), "-o", "json"))
    assert [(job["target"], job["files"]) for job in plan["jobs"]] == [(str(tmp_path / "lines" / "a"), 3)]
    assert "3 files would be merged" in compactor("run", "--dry-run", "-f", str(file))
