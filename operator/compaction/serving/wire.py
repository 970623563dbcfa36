"""What every model that goes over the wire is.

Requests are strict: an unknown field is an error of the client, never ignored.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from compaction.api.documented import Documented


class Wire(Documented):
    """Frozen, camelCase, nothing unknown, nothing converted."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def to_json(self) -> bytes:
        """As it is sent; what is None is left out."""
        return self.model_dump_json(exclude_none=True).encode()
