"""`plan -f FILE`: what the specs of a file would do now, as the operator answers it where the store is.

The spec goes to the API server as a dry run first: its schema, its rules and the admission policies judge it as they
judge `kubectl apply`. What it would store is then proposed by the annotation compaction.dev/preview, and the answer is
in `status.preview`. Nothing is created, and what is in force goes on.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from compaction.api.catalog.catalog import CatalogCompaction
from compaction.api.manifests import documents_of, objects_of
from compaction.api.names import ANNOTATION_PREVIEW, CATALOG_KIND, POLICY_KIND
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.preview import preview_value, too_long
from compaction.api.requests import RequestOutcome
from compaction.api.text.printing import mark_of
from compaction.cli.lazy import EXIT_DATA_ERROR, report, warn
from compaction.cli.previews import Preview
from compaction.errors import ApiError, CompactionError, InvalidManifestError
from compaction.kube.client.transport import CATALOG_COMPACTIONS, COMPACTION_POLICIES
from compaction.kube.errors import ClusterCommandError

if TYPE_CHECKING:
    from compaction.cli.cluster.access import ClusterAccess

Subject = CompactionPolicy | CatalogCompaction

# What any program may call: a spec is proposed for an object, and the answer is waited for.

READ_EVERY: Final = 0.5
NOTES: Final = (
    (3.0, "the operator scans with both specs"),
    (30.0, "no answer for 30 s: does an operator run? kubectl compaction check says"),
)
"""After so many seconds without an answer, these words."""


async def propose(
    cluster: ClusterAccess,
    subject: Subject,
    spec: Mapping[str, Any],
    *,
    within: float,
    note: Callable[[str], None] = lambda words: None,
) -> Preview:
    """The operator's answer about `spec` (as in a manifest) instead of that of `subject`, an object in the namespace of
    `cluster`. `within`: seconds; `note`: called with words about what is waited for.

    Raises:
        ClusterCommandError: the spec is too long, another preview has come in between, or there is no answer in time.
        ApiError: the API server refuses the spec, or the annotation.
    """
    catalog, name = subject.kind == CATALOG_KIND, subject.metadata.name
    resource = CATALOG_COMPACTIONS if catalog else COMPACTION_POLICIES
    # What the API server would store, not what the file says: with defaults, and with what admission would change.
    value = preview_value(uuid.uuid4().hex, await cluster.propose(resource, name, dict(spec)))
    if refused := too_long(value):
        raise ClusterCommandError(refused)
    await cluster.annotate(resource, name, ANNOTATION_PREVIEW, value)
    # Read again and again instead of watched: a role that may get need not be one that may watch.
    began, notes = time.monotonic(), list(NOTES)
    while True:
        found: Subject = await (cluster.catalog(name) if catalog else cluster.policy(name))
        answer = found.status.preview
        if answer is not None and found.status.last_handled_preview == mark_of(value):
            return answer
        # The operator answers the value that is there: ours, once replaced, never.
        if found.metadata.annotations.get(ANNOTATION_PREVIEW) != value:
            raise ClusterCommandError("another preview was asked for meanwhile, and the last one counts: ask again")
        passed = time.monotonic() - began
        if passed >= within:
            raise ClusterCommandError(
                f"no answer within {within:g} s; it comes into status.preview, if an operator runs: kubectl compaction "
                "check"
            )
        if notes and passed >= notes[0][0]:
            note(notes.pop(0)[1])
        await asyncio.sleep(READ_EVERY)


# The file of the command.


@dataclass(frozen=True, slots=True)
class ProposedObject:
    """An object of a file: a policy or a catalog that is valid, and its spec as it stands there."""

    object: Subject
    spec: Mapping[str, Any]

    @property
    def noun(self) -> str:
        """`policy` or `catalog`."""
        return "catalog" if self.object.kind == CATALOG_KIND else "policy"


def proposed_in(text: str, source: str) -> list[ProposedObject]:
    """The policies and catalogs of a text, in order. Raises InvalidManifestError, with file and field."""
    valid: dict[str, list[Subject]] = {
        POLICY_KIND: list(objects_of(text, CompactionPolicy, POLICY_KIND, source=source)),
        CATALOG_KIND: list(objects_of(text, CatalogCompaction, CATALOG_KIND, source=source)),
    }
    found = [
        # Dates and the like are texts in JSON.
        ProposedObject(valid[kind].pop(0), json.loads(json.dumps(document["spec"], default=str)))
        for document in documents_of(text, source)
        if (kind := str(document.get("kind"))) in valid
    ]
    if not found:
        raise InvalidManifestError(f"{source}: no {POLICY_KIND} and no {CATALOG_KIND} in it")
    return found


async def ask_about(
    cluster: ClusterAccess,
    objects: Sequence[ProposedObject],
    source: str,
    *,
    against: str | None,
    namespace: str | None,
    within: float,
) -> tuple[list[tuple[Preview, dict[str, str]]], int]:
    """The answers, each with what it is about, and the exit code: what cannot be answered, or is refused, is reported
    and holds nothing up. `namespace`: that of -n.
    """
    answers: list[tuple[Preview, dict[str, str]]] = []
    code = 0
    for item in objects:
        meta = item.object.metadata
        name, where = against or meta.name, f"{source}: {item.noun} {meta.name}"
        try:
            if namespace is not None and meta.namespace not in ("", namespace):
                raise ClusterCommandError(f"metadata.namespace is {meta.namespace}, and -n says {namespace}")
            # As kubectl does: the file names the namespace, and the context those that it does not name.
            place = cluster.within(meta.namespace or cluster.namespace)
            answer = await _answer(place, item, name, within=within, where=where)
        except CompactionError as error:
            report(f"{where}: {cluster.explained(error) if isinstance(error, ApiError) else error}")
            code = EXIT_DATA_ERROR
            continue
        answers.append((answer, {"namespace": place.namespace, item.noun: name, "file": source}))
        if answer.outcome is RequestOutcome.REFUSED:
            report(f"{where}: {answer.reason}: {answer.message}")
            code = EXIT_DATA_ERROR
    return answers, code


async def _answer(cluster: ClusterAccess, item: ProposedObject, name: str, *, within: float, where: str) -> Preview:
    found: Subject | None
    found = await (cluster.find_catalog(name, alone=True) if item.noun == "catalog" else cluster.find_policy(name))
    if found is None:
        raise ClusterCommandError(
            f'no {item.object.kind} "{name}" in namespace "{cluster.namespace}" to compare with: apply it with '
            "spec.suspend: true, which starts nothing, and ask again"
        )
    return await propose(cluster, found, item.spec, within=within, note=lambda words: warn(f"{where}: {words}"))
