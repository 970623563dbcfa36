"""The generated resource definitions: up to date, documented, bounded, structural."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from compaction.api.base import Documented, descriptions
from compaction.api.crd.definitions import (
    RESOURCES,
    crd_files,
    crd_objects,
    fields_of_model,
    fields_of_schema,
    lacking_fields,
)
from tools.shipped import definition_files, drifted, obsolete_definitions

ROOT = Path(__file__).resolve().parents[2]
POLICY_CRD, JOB_CRD, CATALOG_CRD = CRDS = crd_objects()


def version_of(crd: dict[str, Any]) -> dict[str, Any]:
    version: dict[str, Any]
    (version,) = crd["spec"]["versions"]
    return version


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = version_of(crd)["schema"]["openAPIV3Schema"]
    return schema


def walk(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of spec and status below a schema, with its path; items and map values included."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for keyword, suffix in (("items", "[]"), ("additionalProperties", "{}")):
        if keyword in node:
            yield from walk(node[keyword], path + suffix)


NODES = [
    pytest.param(node, id=f"{crd['spec']['names']['singular']}{path}")
    for crd in CRDS
    for part in ("spec", "status")
    for path, node in walk(schema_of(crd)["properties"][part], f".{part}")
]
FIELDS = [
    pytest.param(node, id=f"{crd['spec']['names']['singular']}{path}")
    for crd in CRDS
    for part in ("spec", "status")
    for path, node in walk(schema_of(crd)["properties"][part], f".{part}")
    if not path.endswith(("[]", "{}"))
]


def test_the_committed_definitions_are_what_the_models_say() -> None:
    assert obsolete_definitions(ROOT) + drifted(ROOT, definition_files()) == [], "run `make manifests`"


@pytest.mark.parametrize(("resource", "crd"), list(zip(RESOURCES, CRDS, strict=True)))
def test_the_fields_of_a_model_are_those_of_its_schema(resource: Any, crd: dict[str, Any]) -> None:
    fields = set(fields_of_model(resource))
    assert {"spec", "status", "status.conditions[].reason"} < fields
    assert fields == set(fields_of_schema(schema_of(crd)))


def test_what_a_schema_lacks_is_named() -> None:
    (policy, schema) = (RESOURCES[0], schema_of(crd_objects()[0]))
    assert lacking_fields(policy, schema) == ""
    del schema["properties"]["status"]["properties"]["lastHandledRunNow"]
    assert lacking_fields(policy, schema) == "status.lastHandledRunNow"
    del schema["properties"]["status"]["properties"]["cost"]["properties"]["gainPerCpuSecond"]
    assert lacking_fields(policy, schema) == "status.cost.gainPerCpuSecond and 1 more"
    assert lacking_fields(policy, {}).startswith("spec and ")


def test_generation_is_byte_stable() -> None:
    assert crd_files() == crd_files()


def test_every_file_holds_its_definition() -> None:
    assert [yaml.safe_load(text) for text in crd_files().values()] == crd_objects()
    assert [yaml.safe_load(text) for text in crd_files().values()] == crd_objects()


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_says_what_it_is(field: dict[str, Any]) -> None:
    description = field.get("description", "")
    assert description[:1].isupper(), "a sentence"
    assert description.endswith("."), "ends with a full stop"
    assert "  " not in description
    assert "\n" not in description
    assert "None" not in description
    assert "`" not in description, "kubectl explain shows plain text"


@pytest.mark.parametrize("node", NODES)
def test_every_value_is_bounded(node: dict[str, Any]) -> None:
    match node.get("type"):
        case "string":
            assert "maxLength" in node or "enum" in node or node.get("format") == "date-time"
        case "array":
            assert "maxItems" in node
            assert node["x-kubernetes-list-type"] in {"atomic", "set", "map"}
        case "object":
            assert "maxProperties" in node or "properties" in node
        case "integer":
            assert node["format"] == "int64"
        case "number":
            assert node["format"] == "double"
        case "boolean":
            pass
        case None:
            assert node["x-kubernetes-int-or-string"] is True
            assert node["maxLength"] > 0
        case other:
            pytest.fail(f"unexpected type {other}")


@pytest.mark.parametrize("node", NODES)
def test_nothing_unstructural_is_left(node: dict[str, Any]) -> None:
    assert (
        not {"$ref", "title", "const", "readOnly", "propertyNames", "exclusiveMinimum", "exclusiveMaximum"}
        & node.keys()
    )
    assert ("anyOf" in node) == ("x-kubernetes-int-or-string" in node)
    assert node.get("default", ...) is not None


@pytest.mark.parametrize("node", NODES)
def test_every_rule_has_advice(node: dict[str, Any]) -> None:
    for rule in node.get("x-kubernetes-validations", ()):
        assert rule["message"][0].islower(), "it follows the field's name"
        assert not rule["message"].endswith(".")


def test_rules_without_a_python_half_are_about_changes() -> None:
    for resource in RESOURCES:
        for field in ("spec", "status"):
            model = resource.model_fields[field].annotation
            assert model is not None
            assert all("oldSelf" in rule.cel for rule in model.RULES if rule.holds is None)


def test_parents_that_are_left_out_are_filled_in() -> None:
    spec = schema_of(POLICY_CRD)["properties"]["spec"]["properties"]
    assert all(spec[parent]["default"] == {} for parent in ("trigger", "lease", "cleanup"))
    stores = spec["store"]["properties"].values()
    assert [store["properties"]["thresholds"]["default"] for store in stores] == [{}, {}, {}]
    assert "default" not in spec["store"], "the user says which store"


def test_what_an_installation_may_fill_in_is_not_filled_in_by_the_api_server() -> None:
    spec = schema_of(POLICY_CRD)["properties"]["spec"]["properties"]
    for parent in ("workers", "limits"):
        # Of an item of a list: the list is one value.
        assert {path for path, node in walk(spec[parent], "") if "default" in node} <= {
            ".tolerations[].key",
            ".tolerations[].operator",
            ".tolerations[].value",
        }
    trigger = spec["trigger"]["properties"]
    assert {name for name, field in trigger.items() if "default" in field} == {"interval", "cooldown"}
    assert spec["limits"]["properties"]["maxAttempts"]["description"].endswith(
        "Without it, that of the operator's configuration, else 3."
    )


@pytest.mark.parametrize("crd", CRDS, ids=["policy", "job", "catalog"])
def test_a_status_nobody_has_written_is_not_mistaken_for_done(crd: dict[str, Any]) -> None:
    status = schema_of(crd)["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    assert version_of(crd)["subresources"] == {"status": {}}
    defaulted = {path for path, node in walk(status, "") if "default" in node and path}
    assert defaulted <= {".observedGeneration", ".state"}
    assert "required" not in status


def test_columns() -> None:
    def narrow(crd: dict[str, Any]) -> list[str]:
        return [item["name"].upper() for item in version_of(crd)["additionalPrinterColumns"] if "priority" not in item]

    assert narrow(POLICY_CRD) == [
        "STORE",
        "READY",
        "REASON",
        "DEBT",
        "OLDEST",
        "ACTIVE",
        "QUEUED",
        "FAULTY",
        "ETA",
        "AGE",
    ]
    assert narrow(JOB_CRD) == [
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
    assert narrow(CATALOG_CRD) == [
        "READY",
        "REASON",
        "EARLIEST",
        "LATEST",
        "PIN",
        "BY",
        "SINCE",
        "CUT",
        "LAST",
        "AGE",
    ]


@pytest.mark.parametrize("crd", CRDS, ids=["policy", "job", "catalog"])
def test_columns_and_selectable_fields_point_at_fields(crd: dict[str, Any]) -> None:
    paths = {path for path, _ in walk({"properties": schema_of(crd)["properties"]}, "")}
    version = version_of(crd)
    named = [item["jsonPath"] for item in (*version["additionalPrinterColumns"], *version["selectableFields"])]
    plain = [path.replace('[?(@.type=="Ready")]', "[]") for path in named if not path.startswith(".metadata")]
    assert set(plain) <= paths


def test_only_what_works_is_declared() -> None:
    assert [crd["spec"]["names"]["kind"] for crd in crd_objects()] == [
        "CompactionPolicy",
        "CompactionJob",
        "CatalogCompaction",
    ]
    store = schema_of(POLICY_CRD)["properties"]["spec"]["properties"]["store"]
    assert list(store["properties"]) == ["segmentLogs", "blockStore", "stagingArea"]


# Docstrings of attributes describe the fields of a schema, wherever the model is written.


class Part(Documented):
    """A model that another one has and a third one inherits from."""

    model_config = ConfigDict(alias_generator=to_camel)

    row_count: int
    """How many rows
    there are."""
    plain: int = 0

    def rows(self) -> int:
        """Not the docstring of an attribute."""
        return self.row_count


class Whole(Part):
    plain: int = 1
    """Described by the model that inherits it."""
    other: Part | None = None
    """The other part."""
    own: Annotated[int, Field(description="Its own words.")] = 2
    """Words for a reader of the code."""


def test_a_field_has_its_docstring_by_its_name_on_the_wire() -> None:
    shown = Part.model_json_schema()["properties"]
    assert shown["rowCount"]["description"] == "How many rows\nthere are."
    assert "description" not in shown["plain"]


def test_a_model_inherits_docstrings_and_adds_its_own_but_not_over_a_description() -> None:
    schema = Whole.model_json_schema()
    shown = {name: field.get("description") for name, field in schema["properties"].items()}
    assert shown == {
        "rowCount": "How many rows\nthere are.",
        "plain": "Described by the model that inherits it.",
        "other": "The other part.",
        "own": "Its own words.",
    }
    assert "description" not in schema["$defs"]["Part"]["properties"]["plain"]


def test_a_model_may_be_written_in_a_function_or_in_another_one() -> None:
    class Outer(Documented):
        class Inner(Documented):
            depth: int
            """How deep it is."""

        depth: int
        """Not so deep."""

    assert descriptions(Outer) == {"depth": "Not so deep."}
    assert descriptions(Outer.Inner) == {"depth": "How deep it is."}
