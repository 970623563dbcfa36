"""Policies from YAML: the file kubectl takes is the file `compactor run -f` takes."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import yaml

from compaction.api.job.job import CompactionJob
from compaction.api.manifests import MAX_TEXT, load_secrets
from compaction.cli.local.policy_file import load_policies
from compaction.errors import InvalidManifestError
from fuzz.object_targets import BOMB, MERGE_BOMB

EXAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "examples"

POLICY = """\
apiVersion: compaction.dev/v1alpha1
kind: CompactionPolicy
metadata:
  name: logs
  namespace: storage
  annotations: {owner: me}
  creationTimestamp: null
spec:
  store:
    segmentLogs: {root: /data/ra, maxBytesPerSegment: 64Mi}
  limits: null
status: {observedGeneration: 7}
"""


def refusal_of(text: str) -> str:
    with pytest.raises(InvalidManifestError) as refusal:
        load_policies(text, source="policy.yaml")
    return str(refusal.value)


def test_a_policy_is_read_as_the_api_server_would() -> None:
    (policy,) = load_policies(POLICY, source="policy.yaml")
    assert (policy.metadata.name, policy.metadata.namespace) == ("logs", "storage")
    assert policy.spec.store.segment_logs is not None
    assert policy.spec.store.segment_logs.max_bytes_per_segment == 1 << 26
    assert policy.spec.limits.max_concurrent_jobs == 4, "null is pruned, then defaulted"
    assert policy.status.observed_generation == -1, "a status in a file means nothing"


def test_other_documents_are_passed_over() -> None:
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: storage}\n"
    policies = load_policies(f"{namespace}---\n{POLICY}---\n{POLICY}---\n", source="all.yaml")
    assert len(policies) == 2
    listed = f"kind: List\napiVersion: v1\nitems:\n- {POLICY.replace(chr(10), chr(10) + '  ')}"
    assert load_policies(listed, source="list.yaml") == policies[:1]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("policy*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(example: Path) -> None:
    assert load_policies(example.read_text(), source=str(example))


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*job.yaml")), ids=lambda path: path.name)
def test_the_jobs_made_by_hand_are_valid(example: Path) -> None:
    (job,) = yaml.safe_load_all(example.read_text())
    assert CompactionJob.model_validate(job).spec.sources.segment_log is not None


def test_what_an_example_leaves_to_the_reader_is_valid_too() -> None:
    text = (EXAMPLES / "policy.yaml").read_text()
    text, fields = re.subn(r"^( +)# ( *)(?=schedule:|windows:|- \{|bytesPerSecond:)", r"\1\2", text, flags=re.MULTILINE)
    (policy,) = load_policies(text, source="policy.yaml")
    assert (fields, len(policy.spec.trigger.windows)) == (4, 1)
    assert policy.spec.trigger.schedule == "0 1 * * *"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no CompactionPolicy in it (it is empty)"),
        ("kind: Pod", "no CompactionPolicy in it (Pod): it needs apiVersion: compaction.dev/v1alpha1"),
        ("- a", "a document is a list, not a Kubernetes object"),
        ("a: [", "not valid YAML"),
        (POLICY + "kind: CompactionPolicy\n", "key 'kind' occurs twice"),
        (POLICY.replace("  name: logs\n", ""), "metadata.name: is required: give the object a name"),
        (POLICY.replace("name: logs", "name: My_Logs"), "metadata.name: use lower case letters, digits"),
        (POLICY.replace("v1alpha1", "v1"), "apiVersion: must be 'compaction.dev/v1alpha1'"),
        (
            POLICY.replace("segmentLogs", "segmentLog"),
            "spec.store.segmentLog: unknown field: did you mean segmentLogs?",
        ),
        (POLICY.replace("root:", "path: /x, root:"), "spec.store.segmentLogs.path: unknown field"),
        (
            POLICY.replace("root:", "thresholds: {debtBlocks: 5}, root:"),
            "spec.store.segmentLogs.thresholds.debtBlocks: unknown field",
        ),
        (POLICY + "specs: {}\n", "specs: unknown field: did you mean spec?"),
        (POLICY.replace("64Mi", "[]"), "spec.store.segmentLogs.maxBytesPerSegment: write bytes as a whole number"),
    ],
    ids=str,
)
def test_a_refusal_names_the_file_the_field_and_the_fix(text: str, message: str) -> None:
    refusal = refusal_of(text)
    assert refusal.startswith("policy.yaml: ")
    assert message in refusal


def test_every_problem_is_named_at_once() -> None:
    text = POLICY.replace("root: /data/ra", "root: data").replace(
        "limits: null", "trigger: {interval: 0s}\n  suspend: 1"
    )
    assert len(refusal_of(text).splitlines()) == 3


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("a: &a [*a]", "stands inside itself"),
        (BOMB.decode(), "aliases expanded"),
        (MERGE_BOMB.decode(), "aliases expanded"),
        ("a: " + "[" * 5000, "nested deeper than"),
        ("created: 2001-99-99", "not a value of type tag:yaml.org,2002:timestamp.*line 1"),
        ("a: !!int x", "not a value of type tag:yaml.org,2002:int"),
        ("a: !!bool x", "not a value of type"),
        ("? [a, b]\n: c", "a key is a plain text"),
        ("? 2001-01-01\n: c", "a key is a plain text"),
        ("x" * (MAX_TEXT + 1), "not a file of policies"),
    ],
    ids=lambda value: value[:20],
)
def test_hostile_yaml_is_refused_in_a_line(damage: str, says: str) -> None:
    """Lines of aliases that stand for gigabytes, values that are none, nesting without end."""
    refusal = refusal_of(damage)
    assert re.search(says, refusal), refusal
    assert len(refusal) < 1000
    assert "\n" not in refusal


def test_a_list_is_not_too_short_because_its_only_item_is_wrong() -> None:
    """Pydantic does not count an item that is not valid; whoever wrote one is not short of one."""
    block_store = "blockStore: {url: 's3://b', index: {secretName: i}, levels: [%s]}"
    text = POLICY.replace("segmentLogs: {root: /data/ra, maxBytesPerSegment: 64Mi}", block_store)
    one_wrong = refusal_of(text % "{maxBlocks: 1, maxAge: 36s}")
    assert "levels[0].maxBlocks: must be greater than or equal to 2" in one_wrong
    assert len(one_wrong.splitlines()) == 1
    assert "at least 1 item" in refusal_of(text % "")


def test_of_many_problems_the_first_are_told() -> None:
    includes = ", ".join(["5"] * 5000)
    refusal = refusal_of(POLICY.replace("root: /data/ra,", f"root: /data/ra, exclude: [{includes}],"))
    assert len(refusal.splitlines()) == 11
    assert "problems more" in refusal.splitlines()[-1]


def test_names_cannot_write_on_the_terminal() -> None:
    refusal = refusal_of(POLICY.replace("name: logs", 'name: "\\e[2J\\n' + "x" * 5000 + '"'))
    assert "\\x1b[2J\\n" in refusal
    assert "\x1b" not in refusal
    assert len(refusal) < 1000


# Secrets beside a policy, as people write them for kubectl.

SECRET = "hunter2"


def document(**members: object) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "index"}, **members})


def test_plain_text_goes_above_base64_as_in_kubernetes() -> None:
    data = {"url": base64.b64encode(b"old").decode(), "other": base64.b64encode("ü\n".encode()).decode()}
    assert load_secrets(document(data=data, stringData={"url": "new"}), source="x") == {
        "index": {"url": "new", "other": "ü"}
    }


def test_secrets_of_lists_and_beside_other_kinds_are_found() -> None:
    listed = yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(document(stringData={"a": "1"}))]})
    text = f"kind: ConfigMap\nmetadata: {{name: c}}\n---\n{listed}---\n{document()}"
    assert load_secrets(f"---\n{listed}", source="x") == {"index": {"a": "1"}}
    assert load_secrets(text, source="x") == {"configmap_c": {}, "index": {}}, (
        "the last one of a name, as with kubectl apply"
    )
    assert load_secrets("", source="x") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (document(stringData={"url": 7}), "stringData.url: must be text"),
        (document(stringData={"url": [SECRET]}), "stringData.url: must be text"),
        (document(data={"url": SECRET}), "data.url: must be base64"),
        (document(data={"url": base64.b64encode(b"\xff").decode()}), "data.url: must be base64 of a text"),
        (document(data=[SECRET]), "data: must be keys"),
        (f"kind: Secret\nstringData: {{url: {SECRET}}}", "metadata.name: is required"),
        (f"kind: Secret\nstringData:\n  url: a: {SECRET}", "not valid YAML: see line 3, column 9"),
        (f"kind: Secret\nstringData:\n  url: *{SECRET}", "not valid YAML: see line 3"),
        (f'{{"kind": "Secret", "stringData": {{"url": !{SECRET} x}}}}', "not valid YAML: see line 1"),
    ],
)
def test_what_is_wrong_is_named_without_the_value(text: str, said: str) -> None:
    with pytest.raises(InvalidManifestError) as refused:
        load_secrets(text, source="policy.yaml")
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_file_without_secrets_says_what_is_wrong_with_it() -> None:
    with pytest.raises(InvalidManifestError, match=r"mapping values are not allowed here \(line 1, column 5\)"):
        load_secrets("a: b: c", source="policy.yaml")
