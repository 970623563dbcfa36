"""The resource definitions on a real API server, with the real kubectl: what users see of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from compaction.api.base import Timestamp, timestamp_from_epoch
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, ProcessStatus, RequiredTime
from compaction.api.catalog.reasons import Outcome
from compaction.api.conditions import set_complete, set_ready
from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob, CompactionJobStatus
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus, DebtStatus
from compaction.blocks.model import place_problem
from compaction.local.cluster.control_plane import AdminAnswer
from support.clocks import TIMEOUT_FLAG
from support.cluster.by_kubectl import Object
from support.cluster.manifests import (
    BLOCK_1,
    SEGMENT_1,
    SEGMENT_2,
    WRONG_BLOCK_JOBS,
    WRONG_BLOCK_POLICIES,
    WRONG_JOBS,
    WRONG_POLICIES,
    WRONG_STAGING_JOBS,
    WRONG_STAGING_POLICIES,
    Wrong,
    block_job_object,
    block_policy_object,
    job_object,
    policy_object,
    staging_job_object,
    staging_policy_object,
)
from support.cluster.orders import ACCEPTED, REFUSED, catalog_object

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parents[2]
CRDS = str(ROOT / "crds")
NOW: Timestamp = timestamp_from_epoch(1_750_000_000)
DryRun = Callable[[dict[str, Any]], AdminAnswer]


class Cluster:
    """kubectl in one namespace, with the verbs these tests use."""

    def __init__(self, kubectl: Any, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace

    def run(self, *args: str, **options: Any) -> str:
        output: str = self.kubectl(*args, namespace=self.namespace, **options).stdout
        return output

    def create(self, document: dict[str, Any]) -> None:
        self.run("create", "-f", "-", input=json.dumps(document))

    def read(self, what: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.run("get", what, "-o", "yaml"))
        return found

    def refusal(self, *args: str, **options: Any) -> str:
        answer = self.kubectl(*args, namespace=self.namespace, check=False, **options)
        assert answer.returncode != 0, answer.stdout
        message: str = answer.stderr
        return message

    def write_status(self, what: str, status: dict[str, Any]) -> None:
        self.run("patch", what, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


@pytest.fixture
def cluster(kubectl: Any, namespace: str) -> Cluster:
    return Cluster(kubectl, namespace)


def test_the_definitions_apply_from_the_client_and_from_the_server(kubectl: Any) -> None:
    for flags in (["--server-side", "--force-conflicts"], []):
        kubectl("apply", *flags, "-f", CRDS)
        kubectl("wait", "--for=condition=Established", TIMEOUT_FLAG, "-f", CRDS)
    for plural in ("compactionpolicies", "compactionjobs", "catalogcompactions"):
        name = f"{plural}.compaction.dev"
        conditions = json.loads(kubectl("get", "crd", name, "-o", "json").stdout)["status"]["conditions"]
        states = {condition["type"]: (condition["status"], condition.get("message")) for condition in conditions}
        assert states["NamesAccepted"][0] == "True"
        assert "NonStructuralSchema" not in states


def test_a_new_policy_shows_what_is_in_force(cluster: Cluster) -> None:
    cluster.create(policy_object())
    found = cluster.read("cpol/logs")
    expected = CompactionPolicy.from_object(policy_object()).to_object()["spec"]
    # What the operator's configuration may fill in has no default here (tests/api/test_configuration.py).
    for name in ("workers", "limits"):
        del expected[name]
    for name in ("timeZone", "windows"):
        del expected["trigger"][name]
    assert found["spec"] == expected, "the models and the schema have the same defaults"
    assert found["status"] == {"observedGeneration": -1}
    assert CompactionPolicy.from_object(found).spec == CompactionPolicy.from_object(policy_object()).spec


def test_a_new_job_waits_for_a_worker(cluster: Cluster) -> None:
    cluster.create(job_object())
    found = cluster.read("cjob/logs-1")
    assert found["spec"] == CompactionJob.from_object(job_object()).to_object()["spec"]
    assert found["status"] == {"observedGeneration": -1, "state": "Unassigned"}


@pytest.mark.parametrize(
    "example", sorted((ROOT / "manifests" / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_examples_are_accepted(cluster: Cluster, example: Path) -> None:
    cluster.run("create", "--validate=strict", "-f", str(example))


@pytest.mark.parametrize(
    ("member", "values"),
    [
        (
            "interval",
            [
                "1s",
                "250ms",
                "1m30s",
                "999999h",
                "999999h999999h99999h",
                "0.5h",
                "90d",
                "1d12h0.5s",
                "9999d999999h999999h",
            ],
        ),
        ("cooldown", ["0s", "0h0m0s", "1.123456s"]),
    ],
)
def test_durations_the_models_take_the_server_takes(dry_run: DryRun, member: str, values: list[str]) -> None:
    for value in values:
        document = policy_object(trigger={member: value})
        CompactionPolicy.from_object(document)
        assert dry_run(document).ok, dry_run(document).text


def test_schedules_the_models_take_the_server_takes(dry_run: DryRun) -> None:
    for schedule in (
        "* * * * *",
        "30 2 * * MON-FRI",
        "*/15 0-5,22-23 1,15 JAN-jun/2 *",
        "0 0 29 2 *",
        "0 0 31 2 MON",
        "5/20 08  1-7 * sun,3-7",
    ):
        for zone in ("Etc/UTC", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"):
            trigger = {"schedule": schedule, "timeZone": zone, "windows": [{"schedule": schedule, "duration": "31d"}]}
            document = policy_object(trigger=trigger)
            CompactionPolicy.from_object(document)
            assert dry_run(document).ok, dry_run(document).text


def test_quantities_the_models_take_the_server_takes(dry_run: DryRun) -> None:
    for value in (1, 2**40, "512", "64M", "64Mi", "1.5Gi", "0.001k", "8388607Ti"):
        document = policy_object(limits={"maxBytesPerJob": value})
        CompactionPolicy.from_object(document)
        assert dry_run(document).ok, dry_run(document).text


def test_the_spec_of_a_job_never_changes(cluster: Cluster) -> None:
    cluster.create(job_object())
    advice = "spec is immutable, a job is one unit of work: delete this job and create another"
    changes: list[Object] = [{"level": 1}, {"policyRef": {"name": "other"}}, {"parameters": {"segmentLog": {}}}]
    for change in changes:
        patch = json.dumps({"spec": change})
        assert advice in cluster.refusal("patch", "cjob/logs-1", "--type=merge", "-p", patch)
    cluster.run("label", "cjob/logs-1", "still=changeable")


def test_a_policy_can_be_changed(cluster: Cluster) -> None:
    cluster.create(policy_object())
    cluster.run("patch", "cpol/logs", "--type=merge", "-p", '{"spec":{"suspend":true,"limits":{"maxAttempts":5}}}')
    assert cluster.read("cpol/logs")["metadata"]["generation"] == 2


def test_unknown_fields_are_refused_by_kubectl(cluster: Cluster) -> None:
    document = policy_object(trigger={"intervall": "1m"})
    assert 'unknown field "spec.trigger.intervall"' in cluster.refusal("apply", "-f", "-", input=json.dumps(document))


def test_spec_and_status_are_written_apart(cluster: Cluster) -> None:
    cluster.create(job_object() | {"status": {"state": "Succeeded", "observedGeneration": 9}})
    assert cluster.read("cjob/logs-1")["status"] == {"observedGeneration": -1, "state": "Unassigned"}
    cluster.run("patch", "cjob/logs-1", "--type=merge", "-p", '{"status":{"state":"Faulty"}}')
    assert cluster.read("cjob/logs-1")["status"]["state"] == "Unassigned"
    cluster.write_status("cjob/logs-1", {"state": "InProgress"})
    found = cluster.read("cjob/logs-1")
    assert (found["status"]["state"], found["metadata"]["generation"]) == ("InProgress", 1)


def test_a_state_outside_the_machine_is_refused(cluster: Cluster) -> None:
    cluster.create(job_object())
    patch = '{"status":{"state":"Lost"}}'
    refusal = cluster.refusal("patch", "cjob/logs-1", "--subresource=status", "--type=merge", "-p", patch)
    assert '"Unassigned", "InProgress", "Abandoned", "Faulty", "Succeeded"' in refusal


def test_the_table_of_policies(cluster: Cluster) -> None:
    cluster.create(policy_object())
    status = CompactionPolicyStatus(
        observed_generation=1,
        conditions=set_ready((), reason="Scheduled", observed_generation=1, now=NOW),
        store="SegmentLogs",
        debt=DebtStatus(bytes=163 << 20, sources=12, targets=2),
        oldest_debt_at=NOW,
        eta_seconds=130,
        active=2,
        queued=5,
        faulty=1,
        bytes_reclaimed=3 << 29,
    )
    cluster.write_status("cpol/logs", status.to_object())
    header, row = (line.split() for line in cluster.run("get", "cpol").splitlines())
    assert header == ["NAME", "STORE", "READY", "REASON", "DEBT", "OLDEST", "ACTIVE", "QUEUED", "FAULTY", "ETA", "AGE"]
    assert row[:5] == ["logs", "SegmentLogs", "True", "Scheduled", "163Mi"]
    assert row[5][-1] in "dhy", "a date shows as an age"
    assert row[6:10] == ["2", "5", "1", "2m10s"]
    wide = cluster.run("get", "cpol", "-o", "wide").splitlines()[0].split()
    assert wide == [*header, "WAITING", "PLAN", "APPROVAL", "PROGRESS", "WORKERS", "RECLAIMED", "SINCE", "MESSAGE"]
    assert CompactionPolicy.from_object(cluster.read("cpol/logs")).status == status


def test_the_table_of_jobs(cluster: Cluster) -> None:
    cluster.create(job_object())
    status = CompactionJobStatus(
        state=JobState.IN_PROGRESS, worker="logs-w-abcde", fencing_token=3, progress_percent=37
    )
    cluster.write_status("cjob/logs-1", status.to_object())
    header, row = (line.split() for line in cluster.run("get", "cjob").splitlines())
    assert header == [
        "NAME",
        "POLICY",
        "KIND",
        "LEVEL",
        "STATE",
        "PROGRESS",
        "WORKER",
        "TOKEN",
        "STARTED",
        "ENDED",
        "TOOK",
        "AGE",
    ]
    assert row[:-1] == ["logs-1", "logs", "SegmentRewrite", "0", "InProgress", "37%", "logs-w-abcde", "3"]
    wide = cluster.run("get", "cjob", "-o", "wide").splitlines()[0].split()
    assert wide == [*header, "FAILURES", "RECLAIMED", "LOG", "BATCH", "BRANCH", "REASON"]


def test_names_for_short(cluster: Cluster) -> None:
    cluster.create(policy_object())
    cluster.create(job_object())
    everything = cluster.run("get", "compaction", "-o", "name").split()
    assert everything == ["compactionjob.compaction.dev/logs-1", "compactionpolicy.compaction.dev/logs"]
    assert cluster.run("get", "cpol,cjob", "-o", "name").split() == everything[::-1]
    assert cluster.run("get", "compactionjob", "-o", "name").split() == everything[:1]


def test_fields_to_select_by(cluster: Cluster) -> None:
    cluster.create(job_object("logs-1"))
    cluster.create(job_object("logs-2"))
    cluster.create(job_object("other-1", policy="other"))
    cluster.write_status("cjob/logs-2", {"state": "InProgress", "worker": "logs-w-abcde"})
    for selector, names in {
        "spec.policyRef.name=logs": ["logs-1", "logs-2"],
        "spec.kind=SegmentRewrite,status.state=Unassigned": ["logs-1", "other-1"],
        "status.state=InProgress": ["logs-2"],
        "status.worker=logs-w-abcde": ["logs-2"],
    }.items():
        found = cluster.run("get", "cjob", f"--field-selector={selector}", "-o", "name").split()
        assert [name.rpartition("/")[2] for name in found] == names
    cluster.create(policy_object(suspend=True))
    assert cluster.run("get", "cpol", "--field-selector=spec.suspend=true", "-o", "name").split()
    assert not cluster.run("get", "cpol", "--field-selector=spec.suspend=false", "-o", "name").split()


def test_waiting_for_a_job(cluster: Cluster) -> None:
    cluster.create(job_object())
    waited = cluster.refusal("wait", "--for=condition=Complete", "--timeout=1s", "cjob/logs-1")
    assert "timed out" in waited
    conditions = set_complete((), reason="Succeeded", observed_generation=1, now=NOW)
    status = CompactionJobStatus(observed_generation=1, state=JobState.SUCCEEDED, conditions=conditions)
    cluster.write_status("cjob/logs-1", status.to_object())
    met = cluster.run("wait", "--for=condition=Complete", "--timeout=10s", "cjob/logs-1")
    assert "condition met" in met
    cluster.run("wait", "--for=jsonpath={.status.state}=Succeeded", "--timeout=10s", "cjob/logs-1")


def test_segments_are_listed_once(cluster: Cluster) -> None:
    sources = {"segmentLog": {"path": "/data/ra/a", "obsolete": [SEGMENT_1, SEGMENT_2, SEGMENT_1]}}
    document = job_object(sources=sources)
    assert "Duplicate value" in cluster.refusal("create", "-f", "-", input=json.dumps(document))


@pytest.mark.parametrize(
    ("field", "sentences"),
    [
        ("cpol", ["CompactionPolicy says which store is kept compacted", "What the operator last saw and did."]),
        ("cpol.spec", ["The store to compact: exactly one member must be set.", "<Object> -required-"]),
        (
            "cpol.spec.store.segmentLogs",
            ["Directory below which the logs are", "-required-", "enum: Refuse, TreatAsEmpty", "such as 64M"],
        ),
        ("cpol.spec.store.segmentLogs.thresholds", ["Bytes that compaction of a log would reclaim"]),
        ("cpol.status.debt.summary", ["Bytes of debt for people, such as 163Mi"]),
        ("cjob.spec.sources.segmentLog.groups", ["Names of the segment files of the group, in ascending order."]),
        ("cjob.status.state", ["Unassigned (waits for a worker)", "Unassigned InProgress Abandoned"]),
        ("cjob.status.receipt", ["Bytes that the job frees.", "SHA-256 of the live entries"]),
    ],
)
def test_explain_reads_well(kubectl: Any, field: str, sentences: list[str]) -> None:
    # kubectl wraps at 80 columns; a sentence must be found whatever the wrapping.
    text = " ".join(kubectl("explain", field).stdout.split())
    for sentence in sentences:
        assert " ".join(sentence.split()) in text
    assert "<no description>" not in kubectl("explain", field).stdout.lower()


def test_every_field_is_explained(kubectl: Any) -> None:
    for name in ("cpol", "cjob"):
        assert "<empty>" not in kubectl("explain", name, "--recursive").stdout


# CatalogCompaction on a real API server: defaults, refusals, columns, status.

CUT_AT = timestamp_from_epoch(1_750_000_000)


@pytest.mark.parametrize(("spec", "advice"), [item[1:] for item in REFUSED], ids=[item[0] for item in REFUSED])
def test_the_server_refuses_with_the_same_advice(dry_run: DryRun, spec: dict[str, Any], advice: str) -> None:
    answer = dry_run(catalog_object(**spec))
    assert answer.status == 422, answer.text
    assert advice in answer.text


@pytest.mark.parametrize("spec", ACCEPTED)
def test_the_server_fills_in_the_defaults_of_the_models(dry_run: DryRun, spec: dict[str, Any]) -> None:
    answer = dry_run(catalog_object(**spec))
    assert answer.ok, answer.text
    stored = answer.json()
    assert stored["spec"] == CatalogCompaction.from_object(catalog_object(**spec)).to_object()["spec"]
    assert stored["status"] == {"observedGeneration": -1}


def test_columns_show_who_pins_the_history(kubectl: Any, namespace: str) -> None:
    kubectl("create", "-f", "-", namespace=namespace, input=json.dumps(catalog_object()))
    conditions = set_ready((), reason="Transaction", message="waits", observed_generation=1, now=CUT_AT)
    status = CatalogCompactionStatus(
        observed_generation=1,
        conditions=conditions,
        earliest_version=3,
        latest_version=9,
        versions_cut=2,
        required_time=RequiredTime(value=1, time=CUT_AT, reason="Transaction", participant="orders-2", subject="t"),
        compaction=ProcessStatus(outcome=Outcome.SKIPPED, reason="Transaction", finished_at=CUT_AT),
    )
    patch = json.dumps({"status": status.to_object()})
    kubectl("patch", "ccat/orders", "--subresource=status", "--type=merge", "-p", patch, namespace=namespace)
    header, row = kubectl("get", "ccat", namespace=namespace).stdout.splitlines()
    columns = dict(zip(header.split(), row.split(), strict=False))
    assert columns["READY"] == "True"
    assert (columns["REASON"], columns["PIN"], columns["BY"]) == ("Transaction", "Transaction", "orders-2")
    assert (columns["EARLIEST"], columns["LATEST"]) == ("3", "9")
    wide = kubectl("get", "catalogcompaction", "-o", "wide", namespace=namespace).stdout
    assert "waits" in wide
    assert "orders" in kubectl("get", "compaction", namespace=namespace).stdout


# Wrong specs are refused by a real API server with a message that names the field and tells the fix.


def refusal(dry_run: DryRun, document: dict[str, Any]) -> str:
    """The API server's words about a document that it does not take, as kubectl shows them (see test_crds_server)."""
    answer = dry_run(document)
    assert answer.status in {400, 422}, f"{answer.status}: {json.dumps(document)}"
    message: str = answer.json()["message"]
    return message


@pytest.mark.parametrize("wrong", WRONG_POLICIES, ids=str)
def test_a_wrong_policy(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(policy_object()))
    assert f"{wrong.field}: " in message or not wrong.field
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_JOBS, ids=str)
def test_a_wrong_job(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_POLICIES, ids=str)
def test_a_wrong_policy_of_a_block_store(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(block_policy_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_BLOCK_JOBS, ids=str)
def test_a_wrong_job_of_blocks(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(block_job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize(
    "tenant",
    [
        "acme", "x" * 200, "x" * 201, "ü" * 33, "ü" * 33 + "xx", "ü" * 33 + "xxx", ".", "..", "." + "x" * 197,
        "." + "x" * 198, "a.b" * 66, "a\nb", "b\n", "a\x7fb", "a\u0085b", "a\u202eb", "a\u2028b", "\U0001f600" * 16,
        "t=1", "日本/x y",
    ],
)  # fmt: skip
def test_a_tenant_is_taken_by_the_server_when_a_path_can_hold_it(dry_run: DryRun, tenant: str) -> None:
    """One rule, in two languages: CEL here, Python at every other entrance."""
    document = block_job_object()
    document["spec"]["sources"]["blocks"] |= {"tenant": tenant, "batch": f"{tenant}/0/L0/{BLOCK_1}"}
    assert (dry_run(document).status < 300) == (not place_problem(tenant, 0))


@pytest.mark.parametrize("wrong", WRONG_STAGING_POLICIES, ids=str)
def test_a_wrong_policy_of_a_staging_area(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(staging_policy_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


@pytest.mark.parametrize("wrong", WRONG_STAGING_JOBS, ids=str)
def test_a_wrong_job_of_a_branch(dry_run: DryRun, wrong: Wrong) -> None:
    message = refusal(dry_run, wrong.applied_to(staging_job_object()))
    assert f"{wrong.field}: " in message
    assert wrong.advice in message


def test_the_smallest_staging_area_is_taken_with_its_defaults(kubectl: Any, namespace: str) -> None:
    for document in (staging_policy_object(), staging_job_object()):
        kubectl("create", "-f", "-", input=json.dumps(document), namespace=namespace)
    answer = kubectl("get", "cpol", "staging", "-o", "json", namespace=namespace)
    store = json.loads(answer.stdout)["spec"]["store"]["stagingArea"]
    assert store["thresholds"] == {"tombstones": 1000, "sealedTokens": 10, "stagedWrites": 1_000_000}
    assert (store["include"], store["table"], store["kv"]["key"]) == (["*"], "kv", "url")
    assert "lakefs" not in store


def test_the_smallest_ones_are_taken_with_their_defaults(kubectl: Any, namespace: str) -> None:
    for document in (block_policy_object(), block_job_object()):
        kubectl("create", "-f", "-", input=json.dumps(document), namespace=namespace)
    answer = kubectl("get", "cpol", "blocks", "-o", "json", namespace=namespace)
    store = json.loads(answer.stdout)["spec"]["store"]["blockStore"]
    assert [level["maxBlocks"] for level in store["levels"]] == [20, 10, 10]
    assert store["retention"] == {"tenants": []}
