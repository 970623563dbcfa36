"""Previews of a catalog: how a round with another spec would end now, beside one with the spec in force.

A preview is a request (`api.preview`). Its work is a round that only asks: participants report, the log is read, and
both specs decide by the same answers. It claims no token, cuts nothing and propagates nothing, and the rounds of the
catalog go on beside it. A spec that names another log, other participants or another Secret is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compaction.api.catalog.catalog import (
    CatalogCompaction,
    CatalogCompactionStatus,
    CatalogPreview,
    CatalogReason,
    PreviewedCut,
)
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Finding, Reason
from compaction.api.names import ANNOTATION_PREVIEW
from compaction.api.preview import BeginReason, BeginStatus, PreviewRefusal, changes_of, parse_preview
from compaction.api.requests import RequestReason, answered_with, unhandled
from compaction.api.text.printing import mark_of, plural
from compaction.catalogs.compaction.deciding import Cut, compacting
from compaction.catalogs.compaction.observations import (
    Broken,
    CatalogMemory,
    CatalogSnapshot,
    CutForecast,
    Forecast,
    Heard,
    PreviewRound,
    Result,
    RoundWork,
)
from compaction.catalogs.compaction.round import with_assignments
from compaction.catalogs.compaction.round_status import hybrid_time, required_time, watermark_at
from compaction.catalogs.compaction.steps import round_of
from compaction.catalogs.manager.history import CatalogHistory
from compaction.core.reconcile.observations import Hold, Moment


def forecast(
    spec: CatalogCompactionSpec, watermark: int, heard: Heard, history: CatalogHistory, now: int
) -> tuple[CutForecast, Cut | None]:
    """Return the end of the attempt to cut, and the cut, if there is one, whose bytes are still to be counted. The
    arguments: as `compacting` has them in a round of that spec, whose dry run does not count here.
    """
    round = round_of(spec, watermark, heard, dry_run=False)
    round = replace(round, topology=with_assignments(round.topology, spec.topology, history))
    decided = compacting(round, history, now)
    earliest, latest = history.earliest.version, history.latest.version
    if not isinstance(decided.step, Cut):
        return CutForecast(decided.step, decided.pin, earliest, latest), None
    # The finding of a cut that was made names what it cost; this one was not made.
    cut = decided.step
    first = cut.candidate.version
    message = f"versions {earliest} to {first - 1} would be cut; version {first} would be the earliest"
    return CutForecast(Finding(Reason.COMPACTED, message), decided.pin, first, latest, cut.versions), cut


def is_preview(result: Result) -> bool:
    """Return whether the result is about a preview, and about no round."""
    return isinstance(result, Forecast) or (isinstance(result, Broken) and result.work is RoundWork.PREVIEW)


def opens_another_log(before: CatalogCompactionSpec, after: CatalogCompactionSpec) -> str:
    """Say what the proposed spec would ask or read that the one in force does not: its Secrets were never shown to
    these. "" when both name the same.
    """
    if (before.catalog, before.participants) == (after.catalog, after.participants):
        return ""
    places = ("spec.catalog", "spec.participants")
    named = [change.field for change in changes_of(before, after) if change.field.startswith(places)]
    return (
        f"the spec names another log, other participants or another Secret than the spec in force ({named[0]}), and "
        "nothing is asked for a preview: apply it as a catalog of another name with spec.suspend: true, which begins "
        "no round, and preview that"
    )


def look_ahead(
    snapshot: CatalogSnapshot, memory: CatalogMemory, status: CatalogCompactionStatus
) -> tuple[tuple[PreviewRound, ...], CatalogMemory, CatalogCompactionStatus]:
    """The work that a preview needs now, and the status with its answer, if there is one by now."""
    catalog = snapshot.catalog  # not the one of this reconcile: on hold, that one is suspended
    assert catalog is not None, "only an existing catalog has previews"
    result = next((result for result in snapshot.results if is_preview(result)), None)
    # What comes of work for a value that another one has replaced is dropped, and the newest is asked about.
    asked = memory.preview
    if result is not None:
        memory = replace(memory, preview=None)
    value, generation = (
        unhandled(catalog.metadata.annotations, ANNOTATION_PREVIEW, status.last_handled_preview),
        catalog.metadata.generation,
    )
    if not value:
        return (), memory, status
    mark, request = mark_of(value), parse_preview(value, CatalogCompactionSpec)
    if not isinstance(request, PreviewRefusal) and (other := opens_another_log(catalog.spec, request.spec)):
        request = PreviewRefusal(request.id, RequestReason.OTHER_STORE, other)
    if isinstance(request, PreviewRefusal):
        answer = request.answer(CatalogPreview, snapshot.now.time, generation=generation)
        return (), memory, _with_answer(status, mark, answer)
    if result is not None and asked is not None and (asked.mark, asked.generation) == (mark, generation):
        answer = compared(asked, result, snapshot.now, snapshot.hold, generation=generation, id=request.id)
        return (), memory, _with_answer(status, mark, answer)
    if memory.preview is not None:
        return (), memory, status
    task = preview_round(catalog, request.spec, memory.watermark, snapshot.now, mark=mark)
    return (task,), replace(memory, preview=task), status


def preview_round(
    catalog: CatalogCompaction, proposed: CatalogCompactionSpec, watermark: int, now: Moment, *, mark: str = ""
) -> PreviewRound:
    """The work of a preview. `watermark`: hybrid timestamp, of the last round."""
    watermarks = watermark_at(watermark, catalog.spec, now), watermark_at(watermark, proposed, now)
    return PreviewRound(catalog.spec, proposed, watermarks, mark, catalog.metadata.generation)


def _with_answer(status: CatalogCompactionStatus, mark: str, answer: CatalogPreview) -> CatalogCompactionStatus:
    return status.model_copy(update={"last_handled_preview": mark, "preview": answer})


def compared(
    asked: PreviewRound, result: Result, now: Moment, hold: Hold | None = None, *, generation: int = 0, id: str = ""
) -> CatalogPreview:
    """The answer from what the work has found."""
    changes = changes_of(asked.spec, asked.proposed)
    of_both = {"id": id, "generation": generation, "changes": changes, "changed": len(changes)}
    if isinstance(result, Broken):
        return answered_with(CatalogPreview, now.time, result.reason, result.message, accepted=False, **of_both)
    assert isinstance(result, Forecast), "the result of a preview"
    before, after = result.in_force, result.proposed
    instead = "as with the spec in force" if before == after else f"instead of {_said(before)}"
    return answered_with(
        CatalogPreview,
        now.time,
        RequestReason.PREVIEWED,
        f"{plural(len(changes), 'changed field')}: {_said(after)}, {instead}",
        accepted=True,
        **of_both,
        participants=result.asked,
        answered=result.answered,
        in_force=_Column(asked.spec, asked.watermarks[0], before).status(hold),
        proposed=_Column(asked.proposed, asked.watermarks[1], after).status(hold),
    )


def _said(found: CutForecast) -> str:
    return f"{plural(found.versions, 'version')} cut ({found.finding.reason})"


@dataclass(frozen=True, slots=True)
class _Column:
    spec: CatalogCompactionSpec
    watermark: int
    found: CutForecast

    def status(self, hold: Hold | None) -> PreviewedCut:
        found = self.found
        return PreviewedCut(
            reason=found.finding.reason,
            message=found.finding.message,
            participant=found.finding.participant,
            subject=found.finding.subject,
            earliest_version=found.earliest,
            latest_version=found.latest,
            versions=found.versions,
            bytes=max(0, found.bytes),
            required_time=required_time(found.pin),
            low_watermark=hybrid_time(self.watermark) if self.watermark else None,
            begins=self._begins(hold),
        )

    def _begins(self, hold: Hold | None) -> BeginStatus:
        found = [(CatalogReason.HELD.value, hold.said)] if hold is not None else []
        found += [(CatalogReason.SUSPENDED.value, "spec.suspend is true")] if self.spec.suspend else []
        found += [(Reason.DRY_RUN.value, "spec.dryRun is true")] if self.spec.dry_run else []
        # What stands in the way of a round stands in the way of nothing that would be cut.
        if not self.found.versions:
            return BeginStatus(reason=BeginReason.NOTHING_DUE, message="nothing would be cut now")
        if not found:
            return BeginStatus(reason=BeginReason.DUE, message="the next round cuts")
        return BeginStatus(reason=found[0][0], message="; ".join(words for _, words in found))
