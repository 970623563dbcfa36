"""The view of a preview: what is in force and what is proposed, in two columns, of a cluster or of two files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import click

from compaction.api.base import format_timestamp
from compaction.api.catalog.catalog import CatalogPreview, PreviewedCut
from compaction.api.policy.policy_status import PlannedSum, PolicyPreview, PreviewedPlan
from compaction.api.preview import BeginReason, BeginStatus
from compaction.api.requests import RequestOutcome
from compaction.api.text.printing import format_bytes, format_work, plural, printable
from compaction.cli.output import OutputColumn, OutputFormat, emit, optional, print_table

Preview = PolicyPreview | CatalogPreview
Pair = tuple[str, object, object]
"""What a row is about, in force, proposed."""
CHANGED: Final = "Changed field"
_NOTHING: Final = "-"


def show_previews(found: Sequence[tuple[Preview, Mapping[str, str]]], output: OutputFormat) -> None:
    """Print answers, each with what it is about: `policy` or `catalog`, `file`, and `namespace` in a cluster. As data
    they are a list, also a single one. What was refused is no part of a table: the caller reports it.
    """
    if output is not OutputFormat.TABLE:
        emit([{**about, **preview.to_object()} for preview, about in found], output)
        return
    shown = [item for item in found if item[0].outcome is RequestOutcome.ACCEPTED]
    for number, (preview, about) in enumerate(shown):
        if number:
            click.echo()
        _show(preview, about)


def _show(preview: Preview, about: Mapping[str, str]) -> None:
    kind = "catalog" if "catalog" in about else "policy"
    where = f"{about['namespace']}/" if "namespace" in about else ""
    at = format_timestamp(preview.handled_at)
    click.echo(printable(f"{kind} {where}{about[kind]}: in force, and as {about['file']} proposes it, {at}"))
    for title, rows in preview_rows(preview).items():
        _table(title, rows)
        if title == CHANGED:
            _more(preview.changed - len(preview.changes), "field")
    if not preview.changed:
        click.echo("The spec is the one in force.")
    if isinstance(preview, PolicyPreview):
        _more(preview.differing - len(preview.differences), "target")
    lines = preview_lines(preview)
    click.echo("".join(f"\n{printable(line)}" for line in lines), nl=bool(lines))


def preview_rows(preview: Preview) -> dict[str, list[Pair]]:
    """The tables of an answer by their title: the fields that changed, the plan or the round, the targets that differ.
    One without a row is left out.
    """
    before, after = preview.in_force, preview.proposed
    found: dict[str, list[Pair]] = {
        CHANGED: [(row.field, row.before or None, row.after or None) for row in preview.changes]
    }
    if isinstance(before, PreviewedPlan) and isinstance(after, PreviewedPlan):
        found["Plan"] = list(_plan_rows(before, after))
    elif isinstance(before, PreviewedCut) and isinstance(after, PreviewedCut):
        found["Round"] = list(_cut_rows(before, after))
    if isinstance(preview, PolicyPreview):
        found["Target"] = [(row.target, _sum(row.in_force), _sum(row.proposed)) for row in preview.differences]
    return {title: rows for title, rows in found.items() if rows}


def preview_lines(preview: Preview) -> list[str]:
    """Say what stands in the way of each of the two, and what could not be planned."""
    columns = (("In force", preview.in_force), ("Proposed", preview.proposed))
    return [f"{title}: {line}" for title, column in columns for line in _lines(column)]


def _table(title: str, rows: Iterable[Pair]) -> None:
    data = [{"what": what, "inForce": before, "proposed": after} for what, before, after in rows]
    if data:
        click.echo()
        columns = (
            OutputColumn("what", title),
            OutputColumn("inForce", "In force", optional),
            OutputColumn("proposed", "Proposed", optional),
        )
        print_table(data, columns)


def _more(count: int, noun: str) -> None:
    if count > 0:
        click.echo(f"and {plural(count, f'more {noun}')}")


def _plan_rows(before: PreviewedPlan, after: PreviewedPlan) -> Iterable[Pair]:
    yield "Begins", _begins(before.begins), _begins(after.begins)
    yield "Jobs", before.plan.jobs, after.plan.jobs
    yield "Targets", before.targets, after.targets
    yield "Sources", before.sources, after.sources
    yield "Copies", format_bytes(before.plan.cost_bytes), format_bytes(after.plan.cost_bytes)
    yield "Reclaims", format_bytes(before.plan.gain_bytes), format_bytes(after.plan.gain_bytes)
    yield "Debt", format_bytes(before.debt_bytes), format_bytes(after.debt_bytes)
    counts = [{line.reason: line.count for line in column.plan.left_out} for column in (before, after)]
    for reason in sorted({*counts[0], *counts[1]}):
        yield f"Left out: {reason}", counts[0].get(reason, 0), counts[1].get(reason, 0)
    if before.target_errors or after.target_errors:
        yield "Not planned", len(before.target_errors), len(after.target_errors)


def _cut_rows(before: PreviewedCut, after: PreviewedCut) -> Iterable[Pair]:
    yield "Begins", _begins(before.begins), _begins(after.begins)
    yield "Ends", before.reason, after.reason
    yield "Cuts", plural(before.versions, "version"), plural(after.versions, "version")
    yield "Reclaims", format_bytes(before.bytes), format_bytes(after.bytes)
    yield "Earliest", before.earliest_version, after.earliest_version
    yield "Latest", before.latest_version, after.latest_version
    yield "Pinned by", _pin(before), _pin(after)


def _pin(cut: PreviewedCut) -> str | None:
    pin = cut.required_time
    return None if pin is None else f"{pin.reason} of {pin.participant or 'the coordinator'}"


def _begins(begins: BeginStatus) -> str:
    return f"{begins.reason}, {format_timestamp(begins.at)}" if begins.at is not None else begins.reason


def _sum(found: PlannedSum) -> str:
    # A target that the spec does not select has no reason: it is no candidate that was left out.
    if not found.jobs:
        return found.reason or _NOTHING
    return f"{plural(found.jobs, 'job')}: {format_work(found.cost_bytes, found.gain_bytes)}"


def _lines(column: PreviewedPlan | PreviewedCut | None) -> Iterable[str]:
    """Say what no table has room for: what stands in the way, and targets that could not be planned."""
    if column is None:
        return
    if column.begins.reason not in (BeginReason.DUE, BeginReason.NOTHING_DUE):
        yield column.begins.message
    if isinstance(column, PreviewedCut):
        yield column.message
    else:
        yield from (f"{problem.reason}: {problem.message}" for problem in column.target_errors)
