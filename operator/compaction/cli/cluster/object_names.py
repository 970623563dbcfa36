"""Names of objects as users write them: `NAME`, or `cpol/NAME` where several kinds share a name."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from compaction.kube.errors import ClusterCommandError


class ObjectKind(StrEnum):
    """Our kinds, by the short name that kubectl has for them."""

    POLICY = "cpol"
    JOB = "cjob"
    CATALOG = "ccat"


_WORDS: Final = {
    ObjectKind.POLICY: ("policy", "compactionpolicy", "compactionpolicies"),
    ObjectKind.JOB: ("job", "compactionjob", "compactionjobs"),
    ObjectKind.CATALOG: ("catalog", "catalogcompaction", "catalogcompactions"),
}
_NOUNS: Final = {ObjectKind.POLICY: "a policy", ObjectKind.JOB: "a job", ObjectKind.CATALOG: "a catalog"}


def kind_and_name(text: str, *kinds: ObjectKind) -> tuple[ObjectKind | None, str]:
    """The kind in front of the slash, None without one, and the name.

    Raises ClusterCommandError for a kind that is none of `kinds`.
    """
    word, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    plain = word.partition(".")[0].lower()
    for kind in kinds:
        if plain in (kind.value, *_WORDS[kind]):
            return kind, name
    known = [f"{kind.value} ({_NOUNS[kind]})" for kind in kinds]
    raise ClusterCommandError(f"{word} is not {', '.join(known[:-1])} or {known[-1]}")
