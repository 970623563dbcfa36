"""The CustomResourceDefinitions: one object, and one file, per resource.

`crds/` is generated from the models by `compactor crds --write crds`; a test fails when it differs. The text is
byte-stable: same models, same bytes.
"""

from typing import Any, Final

import yaml

from compaction.api.base import ApiModel
from compaction.api.catalog.resource import CatalogCompaction
from compaction.api.crd.columns import PrinterColumn, ResourceInfo
from compaction.api.crd.schema import structural_schema
from compaction.api.job.resource import CompactionJob
from compaction.api.names import CATEGORY, GROUP, VERSION
from compaction.api.policy.resource import CompactionPolicy

Resource = type[CompactionPolicy] | type[CompactionJob] | type[CatalogCompaction]
RESOURCES: Final[tuple[Resource, ...]] = (CompactionPolicy, CompactionJob, CatalogCompaction)

_HEADER: Final = (
    "# Generated from the models in operator/compaction/api by `compactor crds --write crds`. Do not edit.\n"
)


def crd_objects() -> list[dict[str, Any]]:
    """The CustomResourceDefinition of every resource, in the order of RESOURCES."""
    return [_crd(resource, resource.INFO) for resource in RESOURCES]


def crd_files() -> dict[str, str]:
    """File name -> YAML text of every resource: `compaction.dev_compactionpolicies.yaml` and so on."""
    return {f"{GROUP}_{crd['spec']['names']['plural']}.yaml": _to_yaml(crd) for crd in crd_objects()}


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


def _to_yaml(crd: dict[str, Any]) -> str:
    return _HEADER + yaml.dump(crd, Dumper=_NoAliases, sort_keys=False, width=118, allow_unicode=True)


class _NoAliases(yaml.CSafeDumper):
    """Writes equal lists out instead of referring to the first one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
