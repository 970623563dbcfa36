"""The control plane of the tests is real: versions, RBAC, namespaces, audit; and it leaves nothing behind."""

from __future__ import annotations

import json


def test_answers_as_a_real_api_server(control_plane, kubectl):
    version = json.loads(kubectl("version", "-o", "json").stdout)["serverVersion"]
    assert version["gitVersion"].startswith("v1.36.")
    assert kubectl("get", "namespace", "default", "-o", "name").stdout.strip() == "namespace/default"


def test_namespace_is_usable(namespace, kubectl):
    kubectl("create", "configmap", "thing", "--from-literal=a=1", namespace=namespace)
    assert kubectl("get", "configmap", "thing", "-o", "jsonpath={.data.a}", namespace=namespace).stdout == "1"
