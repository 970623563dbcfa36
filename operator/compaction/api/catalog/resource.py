"""CatalogCompaction: a catalog whose history is cut when no participant needs it."""

from typing import ClassVar, Final, Literal

from pydantic import Field

from compaction.api.base import ApiModel
from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.api.catalog.status import CatalogCompactionStatus
from compaction.api.crd.columns import ColumnType, PrinterColumn, ResourceInfo
from compaction.api.metadata import ObjectMeta
from compaction.api.names import API_VERSION, CATALOG_KIND, CATALOG_PLURAL

_READY: Final = '.status.conditions[?(@.type=="Ready")]'


class CatalogCompaction(ApiModel):
    """CatalogCompaction says which catalog's history is cut, and who must agree. Its status says how long the history
    is, and who pins it since when."""

    api_version: Literal["compaction.dev/v1alpha1"] = API_VERSION
    kind: Literal["CatalogCompaction"] = CATALOG_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: CatalogCompactionSpec
    """Which catalog to compact, and what must hold before its history is cut."""
    status: CatalogCompactionStatus = Field(default_factory=CatalogCompactionStatus)
    """What the operator last saw and did. Written by the operator only."""

    INFO: ClassVar[ResourceInfo] = ResourceInfo(
        kind=CATALOG_KIND,
        plural=CATALOG_PLURAL,
        singular="catalogcompaction",
        short_name="ccat",
        columns=(
            PrinterColumn(
                "Ready", f"{_READY}.status", "Whether history is cut without a user; False: a user has to act"
            ),
            PrinterColumn("Reason", f"{_READY}.reason", "How the last round ended, or what is wrong"),
            PrinterColumn("Earliest", ".status.earliestVersion", "First version of the history", ColumnType.INTEGER),
            PrinterColumn("Latest", ".status.latestVersion", "Last version of the history", ColumnType.INTEGER),
            PrinterColumn("Pin", ".status.requiredTime.reason", "What needs the history"),
            PrinterColumn("By", ".status.requiredTime.participant", "The participant that needs it"),
            PrinterColumn("Since", ".status.requiredTime.since", "How long it has needed it", ColumnType.DATE),
            PrinterColumn("Cut", ".status.versionsCut", "Versions that were cut", ColumnType.INTEGER),
            PrinterColumn("Last", ".status.lastCompactionTime", "Time since the last cut", ColumnType.DATE),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the object", ColumnType.DATE),
            PrinterColumn("Compaction", ".status.compaction.reason", "Why the last cut ended as it did", wide=True),
            PrinterColumn(
                "Propagation", ".status.propagation.reason", "Why the last propagation ended as it did", wide=True
            ),
            PrinterColumn("Propagated", ".status.propagatedMinimum.time", "Minimum that was propagated", wide=True),
            PrinterColumn("Next", ".status.nextRunTime", "Time of the next round", wide=True),
            PrinterColumn("Coordinator", ".status.coordinator", "Replica that ran the last round", wide=True),
            PrinterColumn("Message", f"{_READY}.message", "Message of the condition Ready", wide=True),
        ),
        selectable=(".spec.suspend",),
    )
