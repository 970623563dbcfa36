"""The CustomResourceDefinitions: one object and one file for each resource, with structural schemas from the
models.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import yaml
from pydantic import BaseModel

from compaction.api.base import FREE_FORM, LIST_TYPE, ApiModel, PrinterColumn, ResourceInfo
from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.job.job import CompactionJob
from compaction.api.names import CATEGORY, GROUP, VERSION
from compaction.api.policy.configuration import PolicyDefaults
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import INT64_MAX

# From a model to a structural OpenAPI v3 schema as CustomResourceDefinitions want it: docs/design/api-conventions.md.
#
# Pydantic's JSON schema is the input; the output has no references, no titles, no nulls, an explicit list type on
# every list, int64 on every integer, and defaults that also fill in parents that were left out. Defaults are a matter
# of the spec: in the status only what must be seen before the operator's first write has one.

Schema = dict[str, Any]

_KEPT: Final = (
    "description",
    "type",
    "format",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "anyOf",
)
"""Keywords that carry over, in the order in which they are written; `x-kubernetes-*` follow."""

_OF_OBJECTS: Final = ("required", "additionalProperties")
_FORMATS: Final = {"integer": "int64", "number": "double"}
_DEFAULTED_IN_STATUS: Final = ("observedGeneration", "state")


def structural_schema(model: type[ApiModel]) -> Schema:
    """The schema of a whole resource: `openAPIV3Schema` of a CRD version."""
    source = model.model_json_schema(mode="serialization", by_alias=True)
    definitions = source.get("$defs", {})
    properties = source["properties"]
    status = _convert(properties["status"], definitions)
    for name, field in status["properties"].items():
        _drop_defaults(field, keep_own=name in _DEFAULTED_IN_STATUS)
    # The generation check of kstatus tells an object nobody has looked at yet from a finished one.
    status["default"] = {"observedGeneration": -1}
    spec = _convert(properties["spec"], definitions)
    spec.pop("default", None)
    if model is CompactionPolicy:
        open_fields = PolicyDefaults.model_json_schema(mode="serialization", by_alias=True)
        _leave_open(spec, _convert(open_fields, open_fields.get("$defs", {})))
    schema = {
        "description": _prose(model.__doc__ or ""),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Version of the schema of this object.", "type": "string"},
            "kind": {"description": "Kind of this object.", "type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    return schema | {key: value for key, value in source.items() if key.startswith("x-kubernetes-")}


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """One node without references, nulls and titles; its own keywords win over those of what it refers to."""
    merged = _resolve(node, definitions)
    if "const" in merged:
        merged["enum"] = [merged["const"]]
    kind = merged.get("type")
    if kind in _FORMATS:
        merged.setdefault("format", _FORMATS[kind])
    if merged.get("maximum") == INT64_MAX:
        del merged["maximum"]
    if kind == "array":
        merged["items"] = _convert(merged["items"], definitions)
        merged.setdefault(LIST_TYPE, "atomic")
    if kind == "object":
        converted = _convert_object(merged, definitions)
        merged = {key: value for key, value in merged.items() if key not in _OF_OBJECTS} | converted
    if "description" in merged:
        merged["description"] = _prose(merged["description"])
    if merged.get("default", ...) is None:
        del merged["default"]
    extensions = sorted(key for key in merged if key.startswith("x-kubernetes-"))
    return {key: merged[key] for key in (*_KEPT, *extensions) if key in merged}


def _convert_object(node: Schema, definitions: Mapping[str, Any]) -> Schema:
    """The parts of an object's schema that differ: its properties, or the values of a map."""
    if node.get(FREE_FORM):
        return {}
    if "properties" not in node:
        return {"additionalProperties": _convert(node["additionalProperties"], definitions)}
    properties: Schema = {}
    required = []
    for name, source in node["properties"].items():
        field = _convert(source, definitions)
        is_optional = _is_nullable(source) or source.get("readOnly", False)
        if name in node.get("required", ()) and not is_optional:
            required.append(name)
        elif field.get("type") == "object" and not is_optional:
            # A parent that is left out is filled in, and then its children's defaults are.
            ordered = {**field, "default": {}}
            field = {key: ordered[key] for key in (*_KEPT, *ordered) if key in ordered}
        properties[name] = field
    return {"properties": properties, "required": required} if required else {"properties": properties}


def _resolve(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """The node with its reference, or the one non-null alternative, merged in."""
    merged = dict(node)
    while "$ref" in merged or _is_nullable(merged):
        if "$ref" in merged:
            target = definitions[merged.pop("$ref").rpartition("/")[2]]
        else:
            alternatives = [choice for choice in merged.pop("anyOf") if choice.get("type") != "null"]
            (target,) = alternatives
        merged = {**target, **merged}
    return merged


def _is_nullable(node: Mapping[str, Any]) -> bool:
    return any(choice.get("type") == "null" for choice in node.get("anyOf", ()))


def _drop_defaults(node: Schema, *, keep_own: bool = False) -> None:
    """Remove defaults from a node and everything below it."""
    if not keep_own:
        node.pop("default", None)
    for child in (*node.get("properties", {}).values(), *filter(None, (node.get("items"),))):
        _drop_defaults(child)


def _leave_open(spec: Schema, defaults: Schema) -> None:
    """Remove the defaults of fields that an installation may fill in, and say in their place what
    is built in: the API server would write them into each policy, as if its owner had.
    """
    for name, below in defaults["properties"].items():
        field = spec["properties"][name]
        built_in = field.get("default")
        if "properties" in below:
            _leave_open(field, below)
            # A parent with a default is there for those of its children; without them it says nothing.
            if not any("default" in child for child in field["properties"].values()):
                field.pop("default", None)
            continue
        field.pop("default", None)
        # Of what is empty the description says what its absence means.
        if built_in not in (None, "", [], {}):
            field["description"] += f" Without it, that of the operator's configuration, else {built_in}."


def _prose(text: str) -> str:
    """A docstring as one line per paragraph: terminals wrap `kubectl explain` themselves."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# The CustomResourceDefinitions: one object, and one file, per resource.
#
# `crds/` is generated from the models by `make manifests`; a test fails when it differs. The text is
# byte-stable: same models, same bytes.

Resource = type[CompactionPolicy] | type[CompactionJob] | type[CatalogCompaction]
RESOURCES: Final[tuple[Resource, ...]] = (CompactionPolicy, CompactionJob, CatalogCompaction)

_HEADER: Final = "# Generated from the models in operator/compaction/api by `make manifests`. Do not edit.\n"


def crd_objects() -> list[dict[str, Any]]:
    """The CustomResourceDefinition of every resource, in the order of RESOURCES."""
    return [_crd(resource, resource.INFO) for resource in RESOURCES]


def crd_files() -> dict[str, str]:
    """File name -> YAML text of every resource: `compaction.dev_compactionpolicies.yaml` and so on."""
    return {
        f"{GROUP}_{crd['spec']['names']['plural']}.yaml": (
            _HEADER + yaml.dump(crd, Dumper=_NoAliases, sort_keys=False, width=118, allow_unicode=True)
        )
        for crd in crd_objects()
    }


def _crd(resource: type[ApiModel], info: ResourceInfo) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{info.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "compaction-operator"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": info.kind,
                "listKind": f"{info.kind}List",
                "plural": info.plural,
                "singular": info.singular,
                "shortNames": [info.short_name],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(column) for column in info.columns],
                    "selectableFields": [{"jsonPath": path} for path in info.selectable],
                    "schema": {"openAPIV3Schema": structural_schema(resource)},
                }
            ],
        },
    }


def _column(column: PrinterColumn) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": column.name,
        "type": column.type.value,
        "description": column.description,
        "jsonPath": column.path,
    }
    return entry | {"priority": 1} if column.wide else entry


class _NoAliases(yaml.CSafeDumper):
    """Writes equal lists out instead of referring to the first one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# What a definition that is served lacks. An API server drops fields that its definition does not have, and says
# nothing of it: an answer that was never stored is given again and again, and a request that counts once may be carried
# out twice (docs/adr/0355-no-work-with-older-definitions.md).

OPENAPI_PATH: Final = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Where the API server describes them to every user."""
_WALKED: Final = ("spec", "status")
"""What else an object has is of every kind."""


def served_schemas(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Schemas by kind in the answer of OPENAPI_PATH."""
    return {
        kind["kind"]: schema
        for schema in document.get("components", {}).get("schemas", {}).values()
        for kind in schema.get("x-kubernetes-group-version-kind", ())
    }


def lacking_fields(resource: Resource, served: Mapping[str, Any]) -> str:
    """Name what a schema lacks of the fields that this program knows, "" when nothing: `status.history and 3 more`."""
    there = set(fields_of_schema(served))
    lacking = sorted(field for field in fields_of_model(resource) if field not in there)
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return lacking[0] + more if lacking else ""


def fields_of_model(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the paths of all fields below `spec` and `status`: `status.plan.hash`, `status.waits[].reason`.

    The schema of the definition has the same; to make it takes a hundred times as long, and the sources of the models.
    """
    for name, field in (model.model_fields | model.model_computed_fields).items():
        alias = field.alias or name
        if path or alias in _WALKED:
            here = f"{path}.{alias}" if path else alias
            yield here
            yield from _fields_below(getattr(field, "annotation", None), here)


def _fields_below(annotation: Any, path: str) -> Iterator[str]:
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None:
        if issubclass(annotation, BaseModel):
            yield from fields_of_model(annotation, path)
    elif not (isinstance(origin, type) and issubclass(origin, Mapping)):
        inner = f"{path}[]" if origin in (tuple, list) else path
        for argument in get_args(annotation):
            yield from _fields_below(argument, inner)


def fields_of_schema(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the same paths of a schema."""
    for name, inner in (schema.get("properties") or {}).items():
        if path or name in _WALKED:
            here = f"{path}.{name}" if path else name
            yield here
            yield from fields_of_schema(inner, here)
    if isinstance(items := schema.get("items"), Mapping):
        yield from fields_of_schema(items, f"{path}[]")
