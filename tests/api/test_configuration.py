"""Defaults of an installation: the file, what a policy takes from it, and what is told of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel

from compaction.api.manifests import configuration_of
from compaction.api.policy.configuration import (
    CONFIGURATION_KIND,
    CONFIGURATION_VERSION,
    OperatorConfiguration,
    PolicyDefaults,
    completed,
    flattened,
    taken,
    with_flags,
)
from compaction.api.policy.policy import CompactionPolicy
from compaction.cli.main import cli
from compaction.errors import InvalidManifestError
from support.cluster.control_plane import ROOT
from support.cluster.manifests import policy_object

PAGE = (ROOT / "docs" / "configuration.md").read_text()
(EXAMPLE, *_) = re.findall(r"```yaml\n(apiVersion.*?)```", PAGE, re.DOTALL)
DEFAULTS = configuration_of(EXAMPLE, "docs/configuration.md").defaults


def configured(**members: Any) -> OperatorConfiguration:
    head = {"apiVersion": CONFIGURATION_VERSION, "kind": CONFIGURATION_KIND}
    return configuration_of(yaml.safe_dump(head | members), "config.yaml")


def spec_of(**members: Any) -> dict[str, Any]:
    spec: dict[str, Any] = policy_object(**members)["spec"]
    return spec


def in_force(spec: dict[str, Any], defaults: PolicyDefaults) -> CompactionPolicy:
    body = policy_object() | {"spec": spec}
    return CompactionPolicy.from_object(completed(body, taken(spec, defaults)))


def test_the_page_names_every_field() -> None:
    def fields(model: type[BaseModel]) -> set[str]:
        names = {field.alias or name for name, field in model.model_fields.items()}
        inner = {item for field in model.model_fields.values() for item in _models(field.annotation)}
        own = {item for item in inner if item.__module__ == OperatorConfiguration.__module__}
        return names.union(*(fields(item) for item in own))

    missing = {name for name in fields(OperatorConfiguration) if name not in PAGE}
    assert missing == set()


def _models(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for inner in getattr(annotation, "__args__", ()) for found in _models(inner)}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"defaults": {"worker": {}}}, "config.yaml: defaults.worker: unknown field: did you mean workers?"),
        ({"limits": {"maxWorkers": 0}}, "config.yaml: limits.maxWorkers: must be greater than or equal to 1"),
        ({"defaults": {"workers": {"slots": "2"}}}, "config.yaml: defaults.workers.slots: must be a valid integer"),
        (
            {"defaults": {"workers": {"serviceAccountName": "admin"}}},
            "config.yaml: defaults.workers.serviceAccountName: is not among workerAccounts, so no driver could run as "
            "it: add it there",
        ),
        ({"sink": {}}, "config.yaml: sink: set exactly one destination of events: folder or objectStore or webhook"),
        (
            {"sink": {"webhook": {"url": "https://user:word@x/"}}},
            "config.yaml: sink.webhook.url: write an http:// or https:// URL without user and password",
        ),
        (
            {"sink": {"webhook": {"url": "http://x/", "tokenFile": "/token"}}},
            "config.yaml: sink.webhook.tokenFile: a token would travel in clear text: use an https:// URL, or leave "
            "tokenFile out",
        ),
        ({"kind": "Configuration"}, "config.yaml: kind: must be OperatorConfiguration"),
    ],
)
def test_what_is_wrong_is_named_with_file_field_and_remedy(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifestError) as refused:
        configured(**members)
    assert str(refused.value) == message


def test_the_operator_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    wrong = tmp_path / "config.yaml"
    for text, message in (
        ("- a\n", f"{wrong}: a document is a list, not a Kubernetes object"),
        ("", f"{wrong}: it has 0 documents: write one, of kind OperatorConfiguration"),
        (None, f"{tmp_path / 'none'}: No such file or directory: correct --config, or mount the file"),
    ):
        if text is not None:
            wrong.write_text(text)
        given = wrong if text is not None else tmp_path / "none"
        answer = CliRunner().invoke(cli, ["operator", "-A", "--config", str(given)])
        assert answer.exit_code == 2
        assert message in answer.output


def test_the_spec_wins_then_the_configuration_then_what_is_built_in() -> None:
    own = spec_of(workers={"driver": {"cores": 3}, "nodeSelector": {"disk": "fast"}}, limits={"maxConcurrentJobs": 1})
    policy = in_force(own, DEFAULTS)
    workers = policy.spec.workers
    assert (workers.driver.cores, str(workers.driver.memory), workers.slots) == (3, "4Gi", 2)
    assert workers.node_selector == {"disk": "fast"}, "a map is one value"
    assert policy.spec.limits.max_concurrent_jobs == 1
    assert policy.spec.limits.bytes_per_second == 100_000_000
    assert policy.spec.trigger.time_zone == "Europe/Berlin"
    assert len(policy.spec.trigger.windows) == 1
    assert in_force(spec_of(trigger={"windows": []}), DEFAULTS).spec.trigger.windows == ()


def test_what_was_taken_is_all_that_differs() -> None:
    for own in (spec_of(), spec_of(workers={}, limits={"maxAttempts": 9}), spec_of(trigger={"interval": "5m"})):
        found = taken(own, DEFAULTS)
        again = taken(own, PolicyDefaults.from_object(found))
        assert again == found, "what stands in the status completes the spec as the configuration does"
        assert taken(completed({"spec": own}, found)["spec"], DEFAULTS) == {}
    assert taken(spec_of(), PolicyDefaults()) == {}


def test_defaults_about_pods_do_not_count_for_processes() -> None:
    own = spec_of(workers={"launcher": "process"})
    assert set(taken(own, DEFAULTS)["workers"]) == {"driver"}
    assert in_force(own, DEFAULTS).spec.workers.image == ""


@pytest.mark.parametrize(
    ("own", "trusted"),
    [
        ({}, True),
        ({"slots": 4, "podTemplate": {"metadata": {"labels": {"team": "a"}}}}, True),
        ({"image": "registry.of.hers/worker"}, False),
        ({"podTemplate": {"spec": {"containers": [{"name": "worker", "image": "registry.of.hers/worker"}]}}}, False),
    ],
)
def test_code_of_a_tenant_gets_nothing_that_he_did_not_ask_for(own: dict[str, Any], trusted: bool) -> None:
    of_trust = {
        "serviceAccountName": "trusted",
        "envFromSecrets": [{"name": "key"}],
        "secretVolumes": [{"secretName": "key", "mountPath": "/key"}],
        "podTemplate": {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}},
    }
    defaults = configured(
        defaults={"workers": {"priorityClassName": "batch"} | of_trust}, workerAccounts=["trusted"]
    ).defaults
    found = taken(spec_of(workers=own), defaults)["workers"]
    assert found["priorityClassName"] == "batch"
    assert set(found) - {"priorityClassName"} == (set(of_trust) if trusted else set())


def test_a_flag_wins_over_the_file() -> None:
    file = configured(limits={"maxWorkers": 9, "maxBytesPerSecond": "1M"}, workerAccounts=["a", "b"])
    flags = ("max_workers", "max_bytes_per_second", "worker_accounts", "privileged_workers")
    none: dict[str, Any] = dict.fromkeys(flags)
    assert with_flags(file, **none) == file
    changed = with_flags(file, **none | {"max_workers": 2, "worker_accounts": ("c",), "privileged_workers": True})
    assert (changed.limits.max_workers, changed.limits.max_bytes_per_second) == (2, 1_000_000)
    assert (changed.worker_accounts, changed.privileged_workers) == (("c",), True)


def test_what_is_published_has_no_secret_and_tells_one_configuration_from_another() -> None:
    template = {"spec": {"containers": [{"name": "worker", "env": [{"name": "KEY", "value": "hunter2"}]}]}}
    hook = {"url": "https://hooks.example/services/hunter2?key=hunter2"}
    one = configured(defaults={"workers": {"podTemplate": template}}, sink={"webhook": hook})
    assert "hunter2" not in one.published()
    told = json.loads(one.published())
    assert flattened(told["values"]) == [
        "defaults.workers.podTemplate=(set)",
        "sink.webhook.url=https://hooks.example",
    ]
    other = configured(defaults={"workers": {"podTemplate": {}}}, sink={"webhook": hook})
    assert json.loads(other.published())["hash"] != told["hash"], "also where what differs is not shown"
    assert json.loads(OperatorConfiguration().published())["values"] == {}
    long = configured(defaults={"workers": {"sparkConf": {f"spark.task.a{'b' * n}": "x" * 60 for n in range(60)}}})
    assert set(json.loads(long.published())) == {"hash"}
