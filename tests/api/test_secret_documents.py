"""Secrets beside a policy, as people write them for kubectl."""

from __future__ import annotations

import base64

import pytest
import yaml

from compaction.api.manifests import load_secrets
from compaction.errors import InvalidManifestError

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
