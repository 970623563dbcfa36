"""Listings over the wire of the staging endpoint: pages of objects, and pages of differences."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from compaction.serving.wire import Wire
from compaction.staging.flows.reading import MOST_LISTED
from compaction.staging.kv.port import MAX_KEY_BYTES
from compaction.staging.serving.messages import LONGEST_BASE64, Base64, ShownEntry, bytes_of


class ListedObject(Wire):
    """One object of a listing, or a common prefix of keys."""

    key: str | None = None
    key_base64: str | None = None
    common_prefix: bool = False
    identity: str | None = None
    entry: ShownEntry | None = None
    bytes: int | None = None
    """Size of a value that is no entry."""


class ListedAnswer(Wire):
    """A page of a listing."""

    objects: tuple[ListedObject, ...]
    more: bool
    """Whether others follow: ask again with the last key as `after`."""


class DifferenceKind(StrEnum):
    """How an object differs."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class ObjectDifference(Wire):
    """One object that differs; identities are before and after."""

    key: str | None = None
    key_base64: str | None = None
    kind: DifferenceKind
    before: str | None = None
    after: str | None = None


class DifferencesAnswer(Wire):
    """A page of differences."""

    differences: tuple[ObjectDifference, ...]
    more: bool
    """Whether others follow: ask again with the last key as `after`."""


class PageQuery(Wire):
    """Which keys. Each of them has a form in base64 too."""

    model_config = ConfigDict(strict=False)

    prefix: Annotated[str, Field(max_length=MAX_KEY_BYTES)] = ""
    prefix_base64: Annotated[Base64, Field(max_length=LONGEST_BASE64)] = ""
    after: Annotated[str, Field(max_length=MAX_KEY_BYTES)] = ""
    """Only keys behind this one: the last of the page before."""
    after_base64: Annotated[Base64, Field(max_length=LONGEST_BASE64)] = ""
    amount: int = Field(default=MOST_LISTED, ge=1, le=MOST_LISTED)

    @property
    def prefix_bytes(self) -> bytes:
        return bytes_of(self.prefix, self.prefix_base64)

    @property
    def after_bytes(self) -> bytes:
        return bytes_of(self.after, self.after_base64)


class ObjectsQuery(PageQuery):
    """Which objects to list."""

    delimiter: Annotated[str, Field(max_length=16)] = ""
    """Keys that have it behind the prefix are listed once, as their common prefix."""


class DifferencesQuery(PageQuery):
    """Which differences to list."""

    since: Annotated[str, Field(max_length=512)] = ""
    """A reference to compare with; without it the commit of the branch: what is uncommitted."""
