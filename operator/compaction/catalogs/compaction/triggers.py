"""When a round begins (docs/design/catalog-compaction.md#processes)."""

from __future__ import annotations

from dataclasses import replace

from compaction.api.catalog.processes import Stage, Trigger
from compaction.api.catalog.spec import CatalogCompactionSpec
from compaction.catalogs.compaction.memory import CatalogMemory
from compaction.catalogs.compaction.observations import CatalogSnapshot
from compaction.catalogs.compaction.steps import round_milliseconds
from compaction.catalogs.compaction.watermark import WatermarkRule, due_in, moved


def rule_of(spec: CatalogCompactionSpec) -> WatermarkRule:
    """The watermark's rule in milliseconds."""
    return WatermarkRule(
        round_milliseconds(spec.low_watermark.update_interval),
        round_milliseconds(spec.low_watermark.data_availability),
        round_milliseconds(spec.max_clock_skew),
    )


def triggered(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> CatalogMemory:
    """The memory with every trigger that has come; none while the catalog is suspended."""
    assert snapshot.catalog is not None, "only an existing catalog has triggers"
    generation, now = snapshot.catalog.metadata.generation, round_milliseconds(snapshot.now.wall)
    if spec.suspend:
        return memory
    found: list[Trigger] = []
    if memory.transitions != snapshot.transitions:
        found.append(Trigger.NEW_TERM)
    elif memory.generation != generation:
        found.append(Trigger.SPEC_CHANGED)
    rule = rule_of(spec)
    if due_in(memory.watermark, rule, now) == 0:
        watermark = moved(memory.watermark, rule, now)
        if watermark != memory.watermark:
            found.append(Trigger.WATERMARK)
        memory = replace(memory, watermark=watermark)
    if not found and _interval_left(memory, snapshot, spec) == 0.0:
        found.append(Trigger.INTERVAL)
    processes = memory.processes
    for one in found:
        processes = processes.triggered(one)
    if memory.processes.stage is Stage.IDLE and found:
        # Several at once are one: nothing has begun before the last of them.
        processes = memory.processes.triggered(min(found, key=tuple(Trigger).index))
    return replace(memory, processes=processes, transitions=snapshot.transitions, generation=generation)


def _interval_left(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> float | None:
    """Seconds until the interval has passed; None while a round runs, and before the first one."""
    if memory.processes.stage is not Stage.IDLE or memory.ended_at is None:
        return None
    return max(0.0, memory.ended_at + spec.interval - snapshot.now.monotonic)


def next_in(memory: CatalogMemory, snapshot: CatalogSnapshot, spec: CatalogCompactionSpec) -> float | None:
    """Seconds until time alone begins a round; None while it does not."""
    if spec.suspend:
        return None
    watermark = due_in(memory.watermark, rule_of(spec), round_milliseconds(snapshot.now.wall)) / 1000
    interval = _interval_left(memory, snapshot, spec)
    return watermark if interval is None else min(watermark, interval)
