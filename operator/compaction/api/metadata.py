"""The part of `metadata` the operator reads. Metadata is the API server's: none of it is in the generated schemas."""

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from compaction.api.base import ApiModel
from compaction.api.text.times import Timestamp


class OwnerReference(ApiModel):
    """An object this one belongs to (metav1.OwnerReference)."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiModel):
    """Metadata of an object (metav1.ObjectMeta); empty strings and 0 before the API server filled them in."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def is_deleting(self) -> bool:
        """True when deletion was asked for."""
        return self.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A resourceVersion or uid of "" would be refused by the API server.
        return {key: value for key, value in handler(self).items() if value}
